"""The sentence about two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.compare import VERDICTS
from analyzer.condition import describe_condition, side_names
from analyzer.verdict import Verdict, give_verdict
from analyzer.words import show_move, show_time
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
            "preemption_cost_s": 2.5 - side,
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
        "At 10 blocks on card and blocking coalesced copies over a 25 GB/s link, in modelled time, B (swap) finishes 0.600 % "
        "sooner (500 -> 497 s) and cuts TTFT p99 by 9.94 % (17.1 -> 15.4 s) against A (recompute)."
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
        "cuts ITL p99 by 50.0 % (200 -> 100 ms), but finishes 20.0 % later (10.0 -> 12.0 s)"
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
        "No preemption in either run; peak use 70.0 % of 10 blocks: recompute and swap never come into play. "
        "At 10 blocks on card, in modelled time, there is no difference between A (recompute) and B (swap), "
        "which finish in 10.0 s and 10.0 s."
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
    assert show_time(seconds) == shown


def test_neighbours_that_go_the_same_way_share_a_verb(
    runs: tuple[Recording, Recording],
) -> None:
    found = sentence(
        runs, [("ttft_s p99", 2.0, 1.0, "better"), ("itl_s p99", 0.2, 0.1, "better")]
    )

    assert (
        "B (swap) cuts TTFT p99 by 50.0 % (2.00 -> 1.00 s) and ITL p99 by 50.0 % (200 -> 100 ms) against"
        in found.text
    )


def test_values_show_as_many_digits_as_tell_them_apart() -> None:
    assert show_move(506.12, 505.88) == "506.1 -> 505.9 s"
    assert show_move(0.5, 1.25) == "0.5 -> 1.25 s"


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
        == "10 blocks on card and coalesced copies over a 25 GB/s link"
    )


def test_what_each_side_spent_is_said_beside_the_verdict(
    runs: tuple[Recording, Recording],
) -> None:
    found = sentence(runs, [("duration_s", 10.0, 5.0, "better")], preemptions=(1, 5))

    assert found.why == (
        "A preempts once and recomputes 30 tokens (6.00 % of all computed; 25.0 % of what it lost was still in the prefix cache), which costs 2.50 s of computing. "
        "B preempts 5 times and copies 7.45 GiB out and 6.52 GiB in, stalling 1.25 s, which costs 1.50 s of copying and computing."
    )


def test_a_step_clock_counts_in_steps_and_names_no_link(tmp_path: Path) -> None:
    side = record(tmp_path / "a", steps=make_steps([1]), meta=make_meta(clock="step", **SWAP))

    found = sentence((side, side), [("duration_s", 100.0, 90.0, "better")])

    assert (
        found.text
        == "At 10 blocks on card, in steps, B (a) finishes 10.0 % sooner (100 -> 90.0 steps) against A (a)."
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


def test_a_median_that_moved_more_than_its_tail_is_named_before_it(
    runs: tuple[Recording, Recording],
) -> None:
    rows = [
        ("ttft_s p50", 2.0, 1.5, "better"),
        ("ttft_s p99", 20.0, 19.0, "better"),
        ("itl_s p50", 0.2, 0.19, "better"),
        ("itl_s p99", 0.4, 0.2, "better"),
    ]

    found = sentence(runs, rows)

    assert (
        "cuts TTFT p50 by 25.0 % (2.00 -> 1.50 s), TTFT p99 by 5.00 % (20.0 -> 19.0 s) "
        "and ITL p99 by 50.0 % (400 -> 200 ms) against" in found.text
    )


def test_a_median_stands_alone_where_the_tail_did_not_move(
    runs: tuple[Recording, Recording],
) -> None:
    found = sentence(
        runs,
        [("ttft_s p50", 2.0, 1.5, "better"), ("ttft_s p99", 20.0, 19.0, "no difference")],
    )

    assert (
        "B (swap) cuts TTFT p50 by 25.0 % (2.00 -> 1.50 s) against A (recompute)." in found.text
    )


def test_what_moved_most_the_other_way_ends_the_sentence(
    runs: tuple[Recording, Recording],
) -> None:
    rows = [
        ("ttft_s p99", 20.0, 19.0, "better"),
        ("itl_s p90", 0.1, 0.102, "worse"),
        ("tpot_s p90", 0.1, 0.103, "worse"),
        ("queue_s p90", 1.0, 2.0, "worse"),  # part of TTFT, and not named
    ]

    gain = sentence(runs, rows)
    loss = sentence(
        runs, [("ttft_s p99", 19.0, 20.0, "worse"), ("itl_s p90", 0.1, 0.09, "better")]
    )

    assert (
        "cuts TTFT p99 by 5.00 % (20.0 -> 19.0 s), but raises TPOT p90 by 3.00 % (100 -> 103 ms) against"
        in gain.text
    )
    assert gain.winner == "B"
    assert (
        "raises TTFT p99 by 5.26 % (19.0 -> 20.0 s), but cuts ITL p90 by 10.0 % (100 -> 90.0 ms) against"
        in loss.text
    )
    assert loss.winner == "A"


def test_no_difference_names_what_did_move_elsewhere(runs: tuple[Recording, Recording]) -> None:
    rows = [
        ("duration_s", 10.0, 10.0, "no difference"),
        ("itl_s p90", 0.1, 0.102, "worse"),
        ("tpot_s p90", 0.1, 0.097, "better"),
    ]

    found = sentence(runs, rows)

    assert found.text.endswith(
        "which finish in 10.0 s and 10.0 s, except that B cuts TPOT p90 by 3.00 % (100 -> 97.0 ms)."
    )
    assert found.winner == "none"


def crowd(root: Path, waits: list[float]) -> Recording:
    """A request a second; each waits that long and then runs for 10 s."""
    rows = [
        {
            "request_id": f"r{i}",
            "arrival_s": float(i),
            "first_scheduled_s": i + wait,
            "first_token_s": i + wait + 1,
            "finish_s": i + wait + 10,
        }
        for i, wait in enumerate(waits)
    ]
    return record(root, steps=make_steps([7]), requests=make_requests(rows))


def test_a_load_that_outruns_the_engine_is_said_with_the_mean_wait(tmp_path: Path) -> None:
    rows = [("duration_s", 10.0, 10.0, "no difference")]
    growing = crowd(tmp_path / "a", [10.0 * i for i in range(40)])  # 0 to 390 s
    slower = crowd(tmp_path / "b", [12.0 * i for i in range(40)])
    steady = crowd(tmp_path / "c", [100.0] * 40)

    assert sentence((growing, growing), rows).text.endswith(
        "The load outruns the engine: requests wait 195 s on average before they first run."
    )
    assert sentence((growing, slower), rows).text.endswith(
        "requests wait 195 s (A) and 234 s (B) on average before they first run."
    )
    assert "In B the load outruns the engine: requests wait 234 s on average" in (
        sentence((steady, slower), rows).text
    )
    assert "outruns" not in sentence((steady, steady), rows).text


def test_unusual_settings_are_part_of_the_condition_and_usual_ones_are_not() -> None:
    plain = Meta(make_meta())
    usual = Meta(
        make_meta(settings={**plain.settings, "victim": "last", "model": "llama-3.1-8b"})
    )
    settings = {
        **plain.settings,
        "victim": "most-blocks",
        "enable_prefix_caching": False,
        "model": "qwen3-32b",
        "device": "rtx-4090",
    }
    unusual = Meta(make_meta(settings=settings))

    assert describe_condition(usual, usual, 10, 10) == "10 blocks"
    assert (
        describe_condition(unusual, unusual, 10, 10)
        == "10 blocks on rtx-4090 with qwen3-32b, no prefix cache, victim most-blocks"
    )
    other = Meta({**unusual, "settings": {**settings, "device": "a100"}})
    assert describe_condition(unusual, other, 10, 10).startswith(
        "10 blocks on rtx-4090 (A) and a100 (B) with"
    )


def test_sides_of_two_modes_also_name_what_else_differs(tmp_path: Path) -> None:
    settings = make_meta()["settings"]
    left = make_meta(settings={**settings, "victim": None, "copy_mode": "blocking"})
    right = make_meta(
        settings={
            **settings,
            "preemption_mode": "swap",
            "victim": "most-blocks",
            "copy_mode": "async",
        }
    )
    a, b = (record(tmp_path / n, meta=m) for n, m in (("a", left), ("b", right)))

    assert side_names(a, b) == (
        "A (recompute, victim last)",
        "B (swap, victim most-blocks)",
    )


def test_copies_beside_the_computing_cost_link_time(tmp_path: Path) -> None:
    swap = {**SWAP, "settings": {**SWAP["settings"], "copy_mode": "async"}}
    b = record(tmp_path / "b", steps=make_steps([7]), meta=make_meta(**swap))

    found = sentence((b, b), [("duration_s", 10.0, 5.0, "better")], preemptions=(0, 5))

    assert found.why.endswith(
        "stalling 1.25 s, which costs 1.50 s of the link, beside the computing."
    )
