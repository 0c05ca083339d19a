"""The sentence about two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.compare import VERDICTS
from analyzer.verdict import Verdict, describe_condition, give_verdict, show_s
from tests.builders import make_meta, make_steps, record
from traces.recording import Meta, Recording

SWAP = {
    "settings": {
        **make_meta()["settings"],
        "preemption_mode": "swap",
        "copy_path": "coalesced",
        "copy_mode": "blocking",
    },
    "device": {"name": "card", "link_out_bytes_per_s": 25e9},
}


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Recording, Recording]:
    return (
        record(tmp_path / "a", steps=make_steps([7])),
        record(tmp_path / "b", steps=make_steps([7]), meta=make_meta(**SWAP)),
    )


def sentence(
    runs: tuple[Recording, Recording],
    rows: list[tuple[Any, ...]],
    preemptions: tuple[int, int] = (5, 5),
    peak: float = 1.0,
) -> Verdict:
    """The verdict on rows of (metric, a, b, verdict)."""
    table = pl.DataFrame(
        [
            {"metric": m, "a": a, "b": b, "delta_frac": (b - a) / a, "verdict": v}
            for m, a, b, v in rows
        ],
        schema={
            "metric": pl.String,
            "a": pl.Float64,
            "b": pl.Float64,
            "delta_frac": pl.Float64,
            "verdict": pl.Enum(VERDICTS),
        },
    )
    figures = [{"num_preemptions": n, "peak_used_frac": peak} for n in preemptions]
    return give_verdict(*runs, *figures, table)


def test_the_sentence_gives_condition_direction_and_both_values(
    runs: tuple[Recording, Recording],
) -> None:
    found = sentence(
        runs,
        [
            ("duration_s", 500.0, 497.0, "better"),
            ("ttft_s p99", 17.1, 15.4, "better"),
            ("e2e_s p99", 40.0, 40.1, "no difference"),
        ],
    )

    assert found.text == (
        "At 10 blocks and blocking coalesced copies over a 25 GB/s link, B (swap) finishes 0.6 % sooner (500 s -> 497 s) "
        "and cuts TTFT p99 by 9.9 % (17.1 s -> 15.4 s) against A (recompute)."
    )
    assert (found.winner, [f.verdict for f in found.facts]) == (
        "B",
        ["better", "better", "no difference"],
    )


def test_a_gain_and_a_loss_are_both_said(runs: tuple[Recording, Recording]) -> None:
    found = sentence(
        runs, [("duration_s", 10.0, 12.0, "worse"), ("itl_s p99", 0.2, 0.1, "better")]
    )

    assert (
        "finishes 20 % later (10 s -> 12 s) and cuts ITL p99 by 50 % (200 ms -> 100 ms)"
        in found.text
    )
    assert found.winner == "mixed"


def test_nothing_preempted_is_good_news_with_the_peak(
    runs: tuple[Recording, Recording],
) -> None:
    found = sentence(
        runs, [("duration_s", 10.0, 10.0, "no difference")], preemptions=(0, 0), peak=0.7
    )

    assert found.text.startswith(
        "No preemption in either run; peak use 70 % of 10 blocks. At 10 blocks"
    )
    assert found.winner == "none"


def test_without_swap_no_link_is_named() -> None:
    meta = Meta(make_meta())

    assert describe_condition(meta, meta, 1200, 1200) == "1,200 blocks"
    assert describe_condition(meta, meta, 1200, 900) == "1,200 (A) and 900 (B) blocks"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0 s"), (0.0234, "23.4 ms"), (17.12, "17.1 s"), (1234.5, "1,234 s")],
)
def test_times_are_shown_with_three_digits(seconds: float, shown: str) -> None:
    assert show_s(seconds) == shown
