"""The Workload itself: order, checks, slicing, spreading, and its digest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traces.errors import WorkloadError
from traces.workload import WORKLOAD_SCHEMA, ReadReport, Workload, make_workload, token_summary


def made(**columns: Any) -> Workload:
    n = len(columns.get("arrival_s", [0.0, 1.0, 3.0]))
    base = {"arrival_s": [0.0, 1.0, 3.0], "prompt_tokens": [10] * n, "output_tokens": [5] * n}
    return make_workload(base | columns, name="t.csv", report=ReadReport(format="test"))


def test_missing_columns_are_filled_and_types_are_fixed() -> None:
    table = made().table

    assert dict(table.schema) == WORKLOAD_SCHEMA
    assert table["request_id"].to_list() == ["0", "1", "2"]
    assert table["priority"].to_list() == [0, 0, 0]
    assert table["prefix_ids"].to_list() == [[], [], []]
    assert table["session_id"].to_list() == [None, None, None]


def test_arrivals_are_sorted_and_ties_keep_the_order_of_the_file() -> None:
    workload = made(arrival_s=[7.0, 5.0, 7.0, 5.0], request_id=["a", "b", "c", "d"])

    assert workload.table["request_id"].to_list() == ["b", "d", "a", "c"]
    assert workload.table["arrival_s"].to_list() == [0.0, 0.0, 2.0, 2.0]
    assert workload.report.out_of_order == 2
    assert workload.report.duplicate_timestamps == 2
    assert workload.report.first_s == 5.0


def test_aborts_move_with_the_arrivals() -> None:
    table = made(arrival_s=[5.0, 6.0], abort_s=[None, 9.0]).table

    assert table["abort_s"].to_list() == [None, 4.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt_tokens": [1, 0, 1]}, "row 2, prompt_tokens: 0: the request has a prompt of less"),
        ({"output_tokens": [1, 1, -3]}, "row 3, output_tokens: -3: the request asks for less"),
        ({"output_tokens": [1, 10**9, 1]}, "row 2, output_tokens: 1000000000: the request asks for more"),
        ({"prompt_tokens": [None, 1, 1]}, "row 1, prompt_tokens: None"),
        ({"arrival_s": [0.0, float("nan"), 1.0]}, "row 2, arrival_s: nan"),
        ({"arrival_s": [0.0, float("inf"), 1.0]}, "row 2, arrival_s: inf"),
        ({"request_id": ["a", "b", "a"]}, "row 1, request_id: the id 'a' is missing or occurs more than once"),
        ({"request_id": ["a", None, "b"]}, "row 2, request_id: the id None is missing"),
    ],
)  # fmt: skip
def test_a_row_that_no_engine_could_run_is_named(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError) as e:
        made(**columns)

    assert str(e.value).startswith(f"t.csv, {message}")


def test_no_rows_are_refused() -> None:
    with pytest.raises(WorkloadError, match="no request is left to replay"):
        made(arrival_s=[])


def test_a_window_is_half_open_and_starts_at_zero() -> None:
    cut = made().window(1.0, 3.0)

    assert cut.table["request_id"].to_list() == ["1"]
    assert cut.table["arrival_s"].to_list() == [0.0]
    assert cut.name == "t.csv [1:3]"
    assert made().window(1.0, None).name == "t.csv [1:]"
    with pytest.raises(
        WorkloadError, match=r"no request arrives between 4 s and the end.*0 to 3 s"
    ):
        made().window(4.0, None)


def test_a_rate_scale_of_two_halves_the_times() -> None:
    fast = made(abort_s=[None, 4.0, None]).scale_rate(2.0)

    assert fast.table["arrival_s"].to_list() == [0.0, 0.5, 1.5]
    assert fast.table["abort_s"].to_list() == [None, 2.0, None]
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(WorkloadError, match="is not a positive number"):
            made().scale_rate(factor)


def test_spreading_stays_within_the_tick_and_keeps_the_order() -> None:
    workload = made(arrival_s=[0.0, 0.0, 0.0, 3.0, 3.0, 6.0])

    spread = workload.spread_ticks(seed=1).table

    times = spread["arrival_s"].to_numpy()
    assert spread["request_id"].to_list() == ["0", "1", "2", "3", "4", "5"]
    assert (np.diff(times) > 0).all()
    assert times[0] == 0.0
    shift = times - np.array(
        [0.0, 0.0, 0.0, 3.0, 3.0, 6.0]
    )  # less the first offset of below 3 s
    assert ((shift > -3.0) & (shift < 3.0)).all()
    assert spread.equals(workload.spread_ticks(seed=1).table)
    assert not spread.equals(workload.spread_ticks(seed=2).table)


def test_one_tick_cannot_be_spread() -> None:
    workload = made(arrival_s=[4.0, 4.0])

    assert workload.spread_ticks() is workload


def test_the_digest_names_the_requests_and_not_the_file() -> None:
    one = made(prefix_ids=[[1, 2], [], [3]], prefix_tokens=[[], [], []])
    same = made(prefix_ids=[[1, 2], [], [3]])
    moved = made(prefix_ids=[[1], [2], [3]])
    later = made(prefix_ids=[[1, 2], [], [3]], arrival_s=[0.0, 1.0, 3.5])

    assert one.digest == same.digest
    assert len({one.digest, moved.digest, later.digest, made().digest}) == 4
    assert len(one.digest) == 32


def test_head_and_span() -> None:
    workload = made()

    assert workload.span_s == 3.0
    assert len(workload.head(2)) == 2
    assert workload.head(2).name == "t.csv [first 2]"


def test_percentiles_are_linear() -> None:
    assert token_summary(np.array([1, 2, 3, 4])) == {
        "min": 1.0, "p50": 2.5, "p90": pytest.approx(3.7), "p99": pytest.approx(3.97), "max": 4.0, "mean": 2.5, "sum": 10.0,
    }  # fmt: skip
    assert token_summary(np.array([])) == {}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"abort_s": [None, 0.5, 9.0]}, "row 2, abort_s: 0.5: the request is aborted before"),
        (
            {"abort_s": [None, None, float("inf")]},
            "row 3, abort_s: inf: the request has no finite",
        ),
    ],
)
def test_an_abort_before_the_arrival_is_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        made(**columns)


def test_a_script_of_steps_may_abort_what_has_not_arrived() -> None:
    columns = {"arrival_step": [0, 1, 3], "abort_step": [None, 1, 2]}

    assert made(**columns).table["abort_step"].to_list() == [None, 1, 2]


def test_an_abort_at_the_arrival_is_possible() -> None:
    assert made(abort_s=[0.0, 1.0, None]).table["abort_s"].to_list() == [0.0, 1.0, None]


@pytest.mark.parametrize("factor", [1e-11, 1e-320])
def test_a_rate_that_spreads_requests_over_millennia_is_refused(factor: float) -> None:
    with pytest.raises(WorkloadError, match=r"it would last .* years"):
        made().scale_rate(factor)
    with pytest.raises(WorkloadError, match=r"it would last .* years"):
        made(arrival_s=[0.0, 0.0, 0.0], abort_s=[None, 1.0, None]).scale_rate(factor)


def test_the_head_of_more_than_there_is_is_all() -> None:
    assert len(made().head(2**70)) == 3
