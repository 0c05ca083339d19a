"""What is said about the bundled pair of recordings: the figures that a reader checks by hand."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from analyzer.compare import Comparison, compare
from analyzer.preemptions import preemptions
from traces.recording import open_recording

PAIR = Path(__file__).parents[1] / "traces" / "samples" / "recordings"


@pytest.fixture(scope="module")
def found() -> Comparison:
    with open_recording(PAIR / "chat-recompute") as a, open_recording(PAIR / "chat-swap") as b:
        return compare(a, b)


def test_the_cost_of_recomputing_is_that_of_the_tokens_computed_again(
    found: Comparison,
) -> None:
    with open_recording(PAIR / "chat-recompute") as run:
        table = preemptions(run.events, run.steps)

    # 26.6 s for 222,841 lost tokens, of which 41,865 were computed again: about 5.0 s
    assert table["uncached_cost_s"].sum() == pytest.approx(26.6, abs=0.05)
    assert (table["tokens"].sum(), table["recomputed_tokens"].sum()) == (222_841, 41_865)
    assert found.a["preemption_cost_s"] == pytest.approx(4.89, abs=0.005)


def test_the_cost_of_swapping_is_the_time_of_its_copies(found: Comparison) -> None:
    assert found.b["preemption_cost_s"] == pytest.approx(2.22, abs=0.005)
    assert found.b["stall_s"] == pytest.approx(2.22, abs=0.005)


def test_the_verdict_names_median_and_tail_and_what_got_worse(found: Comparison) -> None:
    assert found.verdict.text == (
        "At 2,588 blocks on rtx-4090 and blocking coalesced copies over a 24.8 GB/s link, in modelled time, B (swap) cuts "
        "TTFT p50 by 10.7 % (2.15 -> 1.92 s) and TTFT p99 by 2.75 % (17.0 -> 16.5 s), but raises ITL p90 by 1.18 % "
        "(32.2 -> 32.6 ms) against A (recompute)."
    )
    assert found.verdict.why == (
        "A preempts 176 times and recomputes 41,865 tokens (1.35 % of all computed; 81.2 % of what it lost was still in the "
        "prefix cache), which costs 4.89 s of computing. B preempts 167 times and copies 24.6 GiB out and 24.6 GiB in, "
        "stalling 2.22 s."
    )


def test_a_few_preemptions_less_and_small_modelled_differences_are_not_praised(
    found: Comparison,
) -> None:
    quiet = [
        "num_preemptions",
        "num_preempted_requests",
        "e2e_s p99",
        "tpot_s p90",
        "itl_s mean",
    ]

    judged = found.table.filter(pl.col("metric").is_in(quiet))["verdict"]

    assert judged.to_list() == ["no difference"] * 5
