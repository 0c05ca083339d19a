"""Two recordings against each other: deltas, intervals, verdicts, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from analyzer.compare import compare, compare_all, preempted_requests
from analyzer.judging import (
    MEASURED_TOLERANCE_FRAC,
    MIN_REQUESTS,
    MODELLED_TOLERANCE_FRAC,
    RUN_FLOOR_FRAC,
    TOLERANCE_FRAC,
)
from analyzer.stats import paired_intervals, paired_sum_interval, summarize_sample
from tests.builders import make_events, make_meta, make_requests, make_steps, record
from tests.worlds import chunked_return
from traces.errors import CompareError
from traces.recording import Recording, open_recording


def make_run(
    root: Path, e2e: float = 10.0, n: int = 60, preempted: int = 3, **meta: Any
) -> Recording:
    """n requests, one a second, TTFT 1 s and the given E2E, plus a little that differs by request."""
    wobble = [0.1 * (i % 7) for i in range(n)]
    requests = make_requests(
        {
            "request_id": f"r{i}",
            "arrival_s": float(i),
            "prompt_tokens": 8,
            "output_tokens": 5,
            "first_scheduled_s": float(i),
            "first_token_s": i + 1.0 + wobble[i],
            "finish_s": i + e2e + wobble[i],
            "num_preemptions": int(i < preempted),
        }
        for i in range(n)
    )
    events = make_events(
        [
            {
                "step": 0,
                "kind": "preempt",
                "request_id": f"r{i}",
                "mode_used": "recompute",
                "tokens": 8,
                "recompute_est_s": 0.5,
            }
            for i in range(preempted)
        ]
    )
    steps = make_steps(
        [10, 5],
        duration_s=[n / 2, n / 2 + e2e],
        num_preempted=[preempted, 0],
        recomputed_tokens=[8 * preempted, 0],
    )
    return record(root, steps=steps, events=events, requests=requests, meta=make_meta(**meta))


def row_of(table: pl.DataFrame, metric: str) -> dict[str, Any]:
    return table.filter(pl.col("metric") == metric).row(0, named=True)


def test_a_run_against_itself_shows_no_difference_anywhere(tmp_path: Path) -> None:
    found = compare(make_run(tmp_path / "a"), make_run(tmp_path / "b"))

    judged = found.table["verdict"].drop_nulls()
    assert set(judged.to_list()) == {"no difference"}
    assert found.verdict.winner == "none"
    assert (
        found.verdict.text
        == "At 10 blocks, in modelled time, there is no difference between A (a) and B (b), which finish in 70.0 s and 70.0 s."
    )


def test_a_run_that_is_sooner_is_better_in_what_changed_and_only_there(tmp_path: Path) -> None:
    found = compare(make_run(tmp_path / "a"), make_run(tmp_path / "b", e2e=8.0))

    e2e = row_of(found.table, "e2e_s mean")
    assert (e2e["verdict"], e2e["delta"]) == ("better", pytest.approx(-2.0))
    assert e2e["low"] == pytest.approx(-2.0)
    assert e2e["high"] == pytest.approx(-2.0)
    assert row_of(found.table, "ttft_s p99")["verdict"] == "no difference"
    assert row_of(found.table, "duration_s")["verdict"] == "better"
    assert row_of(found.table, "num_steps")["verdict"] is None
    assert found.delta["e2e_s"]["p50"] == pytest.approx(-2.0)
    assert found.verdict.winner == "B"


def test_fewer_preemptions_are_better_and_fewer_finished_requests_worse(tmp_path: Path) -> None:
    found = compare(
        make_run(tmp_path / "a", n=60, preempted=40),
        make_run(tmp_path / "b", n=50, preempted=1),
    )

    row = row_of(found.table, "num_preemptions")
    assert (row["verdict"], row["delta"]) == ("better", -39.0)
    assert row["low"] < -39.0 < row["high"] < 0.0
    assert row_of(found.table, "num_finished")["verdict"] == "worse"


def test_a_few_preemptions_less_are_no_difference(tmp_path: Path) -> None:
    found = compare(
        make_run(tmp_path / "a", preempted=3), make_run(tmp_path / "b", preempted=2)
    )

    row = row_of(found.table, "num_preemptions")
    assert (row["verdict"], row["delta"], row["high"]) == ("no difference", -1.0, 0.0)
    assert row_of(found.table, "num_preempted_requests")["verdict"] == "no difference"


def test_times_of_one_measured_run_each_need_the_largest_difference(tmp_path: Path) -> None:
    judged = []
    for clock, e2e in (("modelled", 99.2), ("modelled", 96.0), ("measured", 96.0), ("measured", 90.0)):  # fmt: skip
        a = make_run(tmp_path / f"a-{clock}-{e2e}", e2e=100.0, clock=clock)
        b = make_run(tmp_path / f"b-{clock}-{e2e}", e2e=e2e, clock=clock)
        judged.append(row_of(compare(a, b).table, "e2e_s p50")["verdict"])

    assert judged == ["no difference", "better", "no difference", "better"]


def test_a_sum_over_pairs_has_an_interval_around_it() -> None:
    a = np.array([0, 3, 0, 0, 1, 2] * 50)

    found = paired_sum_interval(a, a + np.arange(300) % 2)

    assert found is not None
    assert found.delta == 150.0
    assert 120.0 < found.low < 150.0 < found.high < 180.0
    assert paired_sum_interval(np.empty(0), np.empty(0)) is None


def test_link_time_beside_the_computing_is_not_judged_against_engine_time(
    tmp_path: Path,
) -> None:
    swap = {**make_meta()["settings"], "preemption_mode": "swap"}
    blocking, beside = (
        make_run(tmp_path / mode, settings={**swap, "copy_mode": mode})
        for mode in ("blocking", "async")
    )
    a = make_run(tmp_path / "a")

    judged = [row_of(compare(a, b).table, "preemption_cost_s") for b in (blocking, beside)]

    assert [row["verdict"] for row in judged] == ["no difference", None]


def test_a_difference_that_other_requests_might_not_show_is_none() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(10.0, 1.0, 200)
    b = a + rng.normal(0.02, 1.0, 200)

    found = paired_intervals(a, b)

    assert not found["mean"].excludes_zero
    assert found["mean"].low < 0 < found["mean"].high


def test_pairs_make_a_small_but_steady_difference_visible() -> None:
    a = np.random.default_rng(1).lognormal(0.0, 2.0, 200)

    found = paired_intervals(a, a + 0.05)

    assert found["mean"].delta == pytest.approx(0.05)
    assert found["mean"].excludes_zero


def test_one_seed_gives_one_interval() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.random(500), rng.random(500)

    assert paired_intervals(a, b, seed=3) == paired_intervals(a, b, seed=3)
    assert paired_intervals(a, b, seed=3) != paired_intervals(a, b, seed=4)


def test_an_interval_narrows_with_the_number_of_requests_beyond_what_is_drawn() -> None:
    rng = np.random.default_rng(5)
    few, many = (
        paired_intervals(rng.random(n), rng.random(n))["mean"] for n in (4_000, 64_000)
    )

    ratio = (few.high - few.low) / (many.high - many.low)
    assert 3.0 < ratio < 5.0


def test_no_value_has_no_summary_and_no_interval() -> None:
    assert summarize_sample(np.array([np.nan])) == {
        "mean": None,
        "p50": None,
        "p90": None,
        "p99": None,
    }
    assert paired_intervals(np.empty(0), np.empty(0)) == {}


def test_a_replay_whose_requests_all_agree_is_compared_whatever_its_digest(
    tmp_path: Path,
) -> None:
    a = make_run(tmp_path / "a", n=30)
    b = make_run(tmp_path / "b", n=30, workload={"digest": "e" * 32})

    notes = compare(a, b).notes

    assert (
        "The recordings name different workloads; ids, arrivals and lengths of all requests agree."
        in notes
    )


def test_different_workloads_are_refused_with_what_they_share(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", n=60)
    b = make_run(tmp_path / "b", n=30, workload={"digest": "e" * 32})

    with pytest.raises(CompareError) as caught:
        compare(a, b)

    assert str(caught.value) == (
        "a and b come from different workloads: 50 % of request ids occur in both, 50 % with the same arrival and prompt length. "
        "Replay one trace with the same window and rate under both settings, then compare those."
    )


def test_different_workloads_can_be_compared_anyway_with_a_note(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", n=60)
    b = make_run(tmp_path / "b", n=30, workload={"digest": "e" * 32})

    found = compare(a, b, anyway=True)

    assert any("Differences may come from that" in note for note in found.notes)


def test_runs_without_a_digest_are_compared_if_their_requests_agree(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", workload={})

    assert any("do" in n or "does" in n for n in compare(a, make_run(tmp_path / "b")).notes)
    with pytest.raises(CompareError):
        compare(a, make_run(tmp_path / "c", n=30))


def test_steps_are_not_held_against_seconds(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="steps cannot be held against seconds"):
        compare(make_run(tmp_path / "a", clock="step"), make_run(tmp_path / "b"))


def test_modelled_and_measured_times_are_compared_with_a_note(tmp_path: Path) -> None:
    found = compare(make_run(tmp_path / "a"), make_run(tmp_path / "b", clock="measured"))

    assert any("Times of A are modelled, times of B measured" in n for n in found.notes)


def test_settings_that_differ_are_listed(tmp_path: Path) -> None:
    settings = {**make_meta()["settings"], "block_size": 8, "preemption_mode": "swap"}

    found = compare(make_run(tmp_path / "a"), make_run(tmp_path / "b", settings=settings))

    assert "block_size: 4 in A, 8 in B." in found.notes
    assert "preemption_mode: recompute in A, swap in B." in found.notes


def test_how_blocks_are_copied_is_noted_only_where_both_sides_copy(tmp_path: Path) -> None:
    plain = make_meta()["settings"]
    runs = {
        (mode, copy): make_run(
            tmp_path / f"{mode}-{copy}",
            settings={**plain, "preemption_mode": mode, "copy_mode": copy},
        )
        for mode, copy in (("recompute", "blocking"), ("swap", "async"), ("swap", "blocking"))
    }

    one = compare(runs["recompute", "blocking"], runs["swap", "async"]).notes
    both = compare(runs["swap", "blocking"], runs["swap", "async"]).notes

    assert one == ("preemption_mode: recompute in A, swap in B.",)
    assert both == ("copy_mode: blocking in A, async in B.",)


def test_requests_are_sorted_by_where_they_were_preempted() -> None:
    def table(**times: int) -> pl.DataFrame:
        rows = [
            {"request_id": k, "num_preemptions": v, "first_token_s": 1.0, "finish_s": 2.0 + v}
            for k, v in times.items()
        ]
        return pl.DataFrame(pl.from_arrow(make_requests(rows)))

    found = preempted_requests(table(p=1, q=0, r=2, s=0), table(p=0, q=1, r=1, s=0))

    assert found.rows() == [
        ("r", "both", 2, 1, -1.0),
        ("p", "only A", 1, 0, -1.0),
        ("q", "only B", 0, 1, 1.0),
    ]


def test_neither_recording_is_altered(tmp_path: Path) -> None:
    a = record(tmp_path / "a", **chunked_return())
    b = record(tmp_path / "b", **chunked_return())
    before = a.requests.clone()

    compare(a, b)

    assert a.requests.equals(before)


def test_a_third_run_is_held_against_the_first(tmp_path: Path) -> None:
    a, b, c = (
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", e2e=8.0),
        make_run(tmp_path / "c", e2e=12.0),
    )

    found = compare_all(a, b, c)

    assert [f.verdict.winner for f in found] == ["B", "A"]
    assert found[0].delta == compare(a, b).delta


def test_the_page_that_explains_figures_names_every_one_of_them_and_all_tolerances(
    tmp_path: Path,
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "figures-explained.md").read_text()

    missing = [
        key
        for key in compare(make_run(tmp_path / "a"), make_run(tmp_path / "b")).a
        if f"`{key}`" not in page
    ]

    assert missing == []
    assert (TOLERANCE_FRAC, MODELLED_TOLERANCE_FRAC) == (0.005, 0.01)
    assert "**0.5 %** of A, and **1 %** for times where a clock is modelled" in page
    assert (MEASURED_TOLERANCE_FRAC, RUN_FLOOR_FRAC, MIN_REQUESTS) == (0.05, 0.001, 20)
    assert "**5 %** for times where a clock is measured" in page
    assert "**0.1 %** of A's duration" in page
    assert "fewer than **20** requests" in page


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ({"closed": False}, "The recording of B was not closed"),
        ({"status": "stalled"}, "The recording of B ends stalled"),
    ],
)
def test_a_run_that_ended_early_is_no_better_for_it(
    tmp_path: Path, end: dict[str, Any], sentence: str
) -> None:
    def rows(num_finished: int) -> Any:
        return make_requests(
            {
                "request_id": f"r{i}",
                "arrival_s": float(i),
                "prompt_tokens": 8,
                "output_tokens": 5,
                **({"first_token_s": i + 1.0, "finish_s": i + 2.0} if i < num_finished else {}),
            }
            for i in range(60)
        )

    whole = record(
        tmp_path / "a", steps=make_steps([1, 1], duration_s=[40.0, 22.0]), requests=rows(60)
    )
    early = record(
        tmp_path / "b", steps=make_steps([1], duration_s=[40.0]), requests=rows(38), **end
    )

    found = compare(whole, early)

    for metric in ("duration_s", "num_finished", "output_tokens_per_s"):
        row = row_of(found.table, metric)
        assert (row["verdict"], row["reason"]) == (None, "B ended early")
    assert "sooner" not in found.verdict.text
    assert found.verdict.winner == "none"
    assert (
        f"{sentence}: its duration, counts, sums and ITL are not judged." in found.verdict.text
    )
    assert row_of(compare(early, whole).table, "duration_s")["reason"] == "A ended early"


def test_two_runs_that_were_not_closed_and_finished_the_same_are_judged(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / name) for name in "ab")
    for run in (a, b):
        (run.root / "closed.json").unlink()

    found = compare(*(open_recording(run.root) for run in (a, b)))

    assert row_of(found.table, "duration_s")["verdict"] == "no difference"
