"""What a measured recording tells of its own machine, and how two single runs are judged by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.__main__ import main
from analyzer.compare import compare
from analyzer.judging import Rules, judge, make_rules, share_verdict
from analyzer.measured import (
    copy_bytes_per_s,
    is_cost_estimated,
    recompute_token_s,
    step_noise_frac,
)
from analyzer.pages.parts.events import _captions
from analyzer.stats import Interval
from analyzer.summary import summarize
from analyzer.words import show_change, show_figure
from tests.builders import make_events, make_meta, make_requests, make_steps, record
from traces.recording import Recording

MEASURED: dict[str, Any] = {"clock": "measured", "executor": "torch"}
SWAP = {**make_meta()["settings"], "preemption_mode": "swap", "copy_mode": "blocking"}


def recomputed(root: Path, told: bool = True, n: int = 4, **meta: Any) -> Recording:
    """Two decodes take 0.2 s, four 0.3 s. r0 loses 40 tokens, of which 30 are computed again in chunks of
    20 beside three decodes and of 11 alone; the engine expected 0.04 s for all 40."""
    work: dict[str, Any] = {
        "num_decode": [2, 4, 2, 4, 3, 0],
        "num_chunks": [0, 0, 0, 0, 1, 1],
        "chunk_tokens": [0, 0, 0, 0, 20, 11],
        "compute_s": [0.2, 0.3, 0.2, 0.3, 0.65, 0.11],
    }
    steps = make_steps(
        [7] * 6,
        recomputed_tokens=[0, 0, 0, 0, 20, 10],
        decode_tokens=[2, 4, 2, 4, 3, 1],
        num_preempted=[0, 0, 0, 1, 0, 0],
        **(work if told else {}),
    )
    events = [
        {"step": 3, "kind": "preempt", "request_id": "r0", "mode_used": "recompute", "tokens": 40, "cost_s": 0.04},
        {"step": 4, "kind": "resume", "request_id": "r0", "tokens": 10},
    ]  # fmt: skip
    return record(
        root,
        steps=steps,
        events=make_events(events),
        requests=make_requests(people(n, 1.0)),
        meta=make_meta(**(MEASURED | meta)),
    )


def people(n: int, ttft_s: float) -> list[dict[str, Any]]:
    """n requests, of which r0 is preempted once."""
    return [
        {
            "request_id": f"r{i}",
            "arrival_s": float(i),
            "output_tokens": 5,
            "first_scheduled_s": float(i),
            "first_token_s": i + ttft_s,
            "finish_s": i + 5.0,
            "num_preemptions": int(i == 0),
            "recomputed_tokens": 30 * int(i == 0),
        }
        for i in range(n)
    ]


def swapped(root: Path, seconds: float = 0.5, n: int = 4, stall_s: float = 0.0) -> Recording:
    events = [
        {"step": 3, "kind": "preempt", "request_id": "r0", "mode_used": "swap", "tokens": 40, "cost_s": 9.0},
        {"step": 3, "kind": "swap_out", "request_id": "r0", "bytes": 10**9, "cost_s": seconds},
        {"step": 4, "kind": "swap_in", "request_id": "r0", "bytes": 10**9, "cost_s": seconds},
        {"step": 4, "kind": "resume", "request_id": "r0"},
    ]  # fmt: skip
    steps = make_steps(
        [7] * 6,
        num_preempted=[0, 0, 0, 1, 0, 0],
        decode_tokens=[2] * 6,
        swap_out_bytes=[0, 0, 0, 10**9, 0, 0],
        swap_in_bytes=[0, 0, 0, 0, 10**9, 0],
        stall_s=[0.0, 0.0, 0.0, stall_s, 0.0, 0.0],
    )
    requests = [{**r, "recomputed_tokens": 0} for r in people(n, 2.0)]
    device = {"name": "cpu", "link_out_bytes_per_s": 6e9}
    return record(
        root,
        steps=steps,
        events=make_events(events),
        requests=make_requests(requests),
        meta=make_meta(settings=SWAP, device=device, **MEASURED),
    )


def test_a_recomputed_token_has_the_price_that_the_runs_own_steps_show(tmp_path: Path) -> None:
    run = recomputed(tmp_path / "a")

    # three decodes alone would take 0.25 s: 0.4 s for 20 tokens, twice as many as the 10 at 0.01 s
    assert recompute_token_s(run) == pytest.approx(0.02)
    assert summarize(run)["preemption_cost_s"] == pytest.approx(0.6)
    assert not is_cost_estimated(run)


def test_without_such_steps_the_cost_is_an_estimate_and_is_called_one(tmp_path: Path) -> None:
    run = recomputed(tmp_path / "a", told=False)

    assert recompute_token_s(run) is None
    assert summarize(run)["preemption_cost_s"] == pytest.approx(0.04 * 30 / 40)
    found = compare(run, swapped(tmp_path / "b"))
    row = found.table.row(by_predicate=pl.col("metric") == "preemption_cost_s", named=True)
    assert found.estimated == {"A": {"preemption_cost_s"}, "B": frozenset()}
    assert (row["verdict"], row["reason"]) == (None, "estimated")
    assert (
        "costs 30.0 ms of computing by the engine's estimate, not measured."
        in found.verdict.why
    )
    assert found.verdict.why.endswith("costs 1.00 s of copying, measured.")


def test_a_modelled_run_is_neither_priced_nor_called_estimated(tmp_path: Path) -> None:
    run = recomputed(tmp_path / "a", clock="modelled")

    assert recompute_token_s(run) is None
    assert not is_cost_estimated(run)
    assert copy_bytes_per_s(run) is None


def test_measured_copies_tell_their_own_rate_and_no_preset_is_named(tmp_path: Path) -> None:
    found = compare(recomputed(tmp_path / "a"), swapped(tmp_path / "b"))

    assert "and blocking copies at a measured 2 GB/s, in measured time" in found.verdict.text
    assert "link" not in found.verdict.text
    both = compare(swapped(tmp_path / "c"), swapped(tmp_path / "d", seconds=0.25))
    assert "at a measured 2 (A) and 4 (B) GB/s" in both.verdict.text


def test_measured_runs_say_that_each_is_one_run_and_how_many_requests_it_had(
    tmp_path: Path,
) -> None:
    found = compare(recomputed(tmp_path / "a"), swapped(tmp_path / "b"))

    assert (
        "there is no difference beyond run-to-run noise between A (recompute)"
        in found.verdict.text
    )
    assert found.verdict.text.endswith(
        "Only 4 requests finished in both: latencies are not judged. One run each: run-to-run noise "
        "is not in the intervals, so times must differ by more than 5.00 %."
    )
    rows = {r["metric"]: (r["verdict"], r["reason"]) for r in found.table.iter_rows(named=True)}
    assert rows["ttft_s p50"] == (None, "only 4 requests")
    assert rows["e2e_s p99"] == ("no difference", None)  # to the last digit
    assert rows["recomputed_tokens"] == rows["recomputed_frac"] == (None, "only 4 requests")


def test_a_share_of_tokens_is_judged_as_the_tokens_are(tmp_path: Path) -> None:
    found = compare(recomputed(tmp_path / "a", n=40), swapped(tmp_path / "b", n=40))

    rows = {r["metric"]: r["verdict"] for r in found.table.iter_rows(named=True)}
    assert rows["recomputed_tokens"] == rows["recomputed_frac"] == "no difference"
    assert share_verdict(-0.1, -5.0, ("better", None)) == ("better", None)
    assert share_verdict(0.1, -5.0, ("better", None)) == ("no difference", None)
    assert share_verdict(None, -5.0, ("better", None)) == (None, None)


def test_a_stall_of_microseconds_is_no_difference_in_a_run_of_seconds(tmp_path: Path) -> None:
    said = []
    for stall_s in (33e-6, 0.5):
        found = compare(
            recomputed(tmp_path / f"a{stall_s}"),
            swapped(tmp_path / f"b{stall_s}", stall_s=stall_s),
        )
        said.append(found.table.filter(metric="stall_s")["verdict"][0])

    assert said == ["no difference", "worse"]


def test_intervals_of_measured_times_are_widened_by_the_noise() -> None:
    near, far = Interval(-1.0, -1.5, -0.5), Interval(-2.0, -2.5, -1.5)
    rules = Rules(time_frac=0.05, noise_frac=0.1)

    assert judge("ttft_s p50", 10.0, -1.0, near, rules) == ("no difference", None)
    assert judge("ttft_s p50", 10.0, -2.0, far, rules) == ("better", None)
    assert judge("recomputed_tokens", 10.0, -1.0, near, rules) == ("better", None)


def test_the_tolerance_of_measured_times_grows_with_the_scatter_of_the_steps() -> None:
    tolerances = [
        make_rules(("measured", "measured"), noise, 1.0, {}).time_frac
        for noise in ((None, None), (0.01, 0.01), (0.03, 0.04))
    ]

    assert tolerances == [0.05, 0.05, pytest.approx(0.098)]


def scattering(root: Path, slow: float) -> Recording:
    """100 steps that decode 2 tokens; the second half takes `slow` times as long; one prefills."""
    durations = [0.1] * 50 + [0.1 * slow] * 50 + [9.0]
    steps = make_steps(
        [7] * 101, duration_s=durations, decode_tokens=[2] * 101, prefill_tokens=[0] * 100 + [9]
    )
    return record(root, steps=steps, meta=make_meta(**MEASURED))


def test_a_machine_that_is_slow_for_a_while_scatters_more_than_one_that_is_not(
    tmp_path: Path,
) -> None:
    steady, uneven = scattering(tmp_path / "a", 1.0), scattering(tmp_path / "b", 2.0)
    short = record(tmp_path / "c", steps=make_steps([7] * 9, decode_tokens=[2] * 9))

    assert step_noise_frac(steady) == pytest.approx(0.0, abs=1e-12)
    # ten batch means, five of 1 and five of 2 (in units of one): 0.527 / sqrt(10) / 1.5
    assert step_noise_frac(uneven) == pytest.approx(0.1111, abs=1e-4)
    assert step_noise_frac(short) is None


def test_the_events_table_says_which_costs_are_measured(tmp_path: Path) -> None:
    class Pair:
        """As much of an aligned pair as captions look at."""

        def __init__(self, **runs: Recording) -> None:
            self.runs = {s: _Shown(r) for s, r in runs.items()}

    a, b = recomputed(tmp_path / "a"), recomputed(tmp_path / "b", told=False)

    said = _captions(Pair(A=a, B=b))  # type: ignore[arg-type]

    assert said == [
        "Costs of recomputing in A are measured: tokens at the price that the run's own steps show.",
        "Costs of recomputing in B are the engine's estimates, not measured.",
    ]


class _Shown:
    mode = "recompute"

    def __init__(self, recording: Recording) -> None:
        self.recording, self.meta = recording, recording.meta


def test_summary_says_that_a_cost_is_an_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recomputed(tmp_path / "a", told=False)

    assert main(["summary", str(tmp_path / "a")]) == 0

    assert "note: preemption_cost_s is the engine's estimate, not measured." in (
        capsys.readouterr().out
    )


def test_figures_carry_how_they_are_known_and_noise_few_digits() -> None:
    cost = {"preemption_cost_s"}

    assert show_figure("preemption_cost_s", 0.16, set(), cost) == "160 ms est."
    assert show_figure("preemption_cost_s", 0.0, set(), cost) == "0 s"
    assert show_figure("preemption_cost_s", 0.16, cost, set()) == "not recorded"
    assert show_change(-0.00236) == "−0.236 %"
    assert [show_change(x, coarse=True) for x in (-0.00236, 0.112, 1e-5, 0.05)] == [
        "−0.2 %",
        "+11.2 %",
        "0 %",
        "+5.0 %",
    ]
