"""The sentence about two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.compare import VERDICTS
from analyzer.verdict import (
    Verdict,
    describe_condition,
    give_verdict,
    show_change,
    show_s,
    side_names,
)
from tests.builders import make_events, make_meta, make_requests, make_steps, record
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

EVICTED = [
    {"step": 0, "kind": "preempt", "request_id": "a", "mode_used": "recompute", "tokens": 40},
    {"step": 1, "kind": "resume", "request_id": "a", "tokens": 10},
]


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Recording, Recording]:
    return (
        record(
            tmp_path / "a",
            steps=make_steps([7]),
            events=make_events(EVICTED),
            requests=make_requests([{"request_id": "a"}]),
        ),
        record(tmp_path / "b", steps=make_steps([7]), meta=make_meta(**SWAP)),
    )


def sentence(
    runs: tuple[Recording, Recording],
    rows: list[tuple[Any, ...]],
    preemptions: tuple[int, int] = (5, 5),
    peak: float = 1.0,
    finished: tuple[int, int] = (9, 9),
    refused: tuple[int, int] = (0, 0),
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
    figures = [
        {
            "num_preemptions": n,
            "peak_used_frac": peak,
            "num_finished": f,
            "num_refused": r,
            "num_requests": 9,
            "recomputed_tokens": 30,
            "recomputed_frac": 0.06,
            "swap_out_bytes": side * 8_000_000_000,
            "swap_in_bytes": side * 7_000_000_000,
            "stall_s": 1.25,
        }
        for side, (n, f, r) in enumerate(zip(preemptions, finished, refused, strict=True))
    ]
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
        "At 10 blocks and blocking coalesced copies over a 25 GB/s link, B (swap) finishes 0.6 % sooner (500 -> 497 s) "
        "and cuts TTFT p99 by 9.9 % (17.1 -> 15.4 s) against A (recompute)."
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
        "finishes 20 % later (10.0 -> 12.0 s) and cuts ITL p99 by 50 % (200 -> 100 ms)"
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
    [
        (0.0, "0 s"),
        (0.0234, "23.4 ms"),
        (17.12, "17.1 s"),
        (1234.5, "1,234 s"),
        (12.0, "12.0 s"),
    ],
)
def test_times_are_shown_with_three_digits(seconds: float, shown: str) -> None:
    assert show_s(seconds) == shown


def test_neighbours_that_go_the_same_way_share_a_verb(
    runs: tuple[Recording, Recording],
) -> None:
    found = sentence(
        runs, [("ttft_s p99", 2.0, 1.0, "better"), ("itl_s p99", 0.2, 0.1, "better")]
    )

    assert (
        "B (swap) cuts TTFT p99 by 50 % (2.00 -> 1.00 s) and ITL p99 by 50 % (200 -> 100 ms) against"
        in found.text
    )


def test_values_show_as_many_digits_as_tell_them_apart() -> None:
    assert show_change(506.12, 505.88) == "506.1 -> 505.9 s"
    assert show_change(0.5, 1.25) == "0.5 -> 1.25 s"


def test_a_run_that_finished_fewer_requests_is_not_praised_without_saying_so(
    runs: tuple[Recording, Recording],
) -> None:
    found = sentence(runs, [("duration_s", 10.0, 5.0, "better")], finished=(60, 50))

    assert found.text.endswith(
        "But A finished 60 and B 50 requests, and latencies are of those."
    )


def test_sides_of_one_mode_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    other = make_meta(settings={**make_meta()["settings"], "block_size": 8})
    a = record(tmp_path / "a", steps=make_steps([1]))
    b = record(tmp_path / "b", steps=make_steps([1]), meta=other)

    assert side_names(a, b) == ("A (block_size 4)", "B (block_size 8)")
    assert side_names(a, a) == ("A (a)", "B (a)")


def test_two_copying_sides_name_what_they_share_in_the_condition() -> None:
    sync = Meta(make_meta(**SWAP))
    other = Meta({**sync, "settings": {**sync.settings, "copy_mode": "async"}})

    assert (
        describe_condition(sync, other, 10, 10)
        == "10 blocks and coalesced copies over a 25 GB/s link"
    )


def test_what_each_side_spent_is_said_beside_the_verdict(
    runs: tuple[Recording, Recording],
) -> None:
    found = sentence(runs, [("duration_s", 10.0, 5.0, "better")], preemptions=(1, 5))

    assert found.why == (
        "A preempts once and recomputes 30 tokens (6.0 % of all computed; 25 % of what it lost was still in the prefix cache). "
        "B preempts 5 times and copies 8.00 GB out and 7.00 GB in, stalling 1.25 s."
    )


def test_a_step_clock_counts_in_steps_and_names_no_link(tmp_path: Path) -> None:
    side = record(tmp_path / "a", steps=make_steps([1]), meta=make_meta(clock="step", **SWAP))

    found = sentence((side, side), [("duration_s", 100.0, 90.0, "better")])

    assert (
        found.text
        == "At 10 blocks, in steps, B (a) finishes 10 % sooner (100 -> 90.0 steps) against A (a)."
    )


def test_refused_requests_are_counted_beside_the_outcome(
    runs: tuple[Recording, Recording],
) -> None:
    rows = [("duration_s", 500.0, 497.0, "better")]

    both = sentence(runs, rows, refused=(2, 2), finished=(7, 7)).text
    unlike = sentence(runs, rows, refused=(2, 3), finished=(7, 7)).text

    assert both.endswith("Both refused 2 of 9 requests: they can never fit.")
    assert unlike.endswith("A refused 2 and B 3 of 9 requests: they can never fit.")


def test_runs_that_refused_everything_are_not_called_alike(
    runs: tuple[Recording, Recording],
) -> None:
    rows = [("duration_s", 1.0, 1.0, "no difference")]

    found = sentence(runs, rows, refused=(9, 9), finished=(0, 0), preemptions=(0, 0)).text

    assert "nothing ran: all 9 requests were refused" in found
    assert "no difference" not in found
