"""One preemption in words: who, for whom, why, what it cost, whom it delayed, and the other run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.preemption_rows import told
from analyzer.preemption_story import Story, same_request, short_id, tell
from analyzer.run import Run
from tests.preemption_worlds import run_of


def story(run: Run, nth: int = 0, **changes: Any) -> Story:
    """The nth preemption of the run, told; keyword arguments replace what its row says."""
    table = told(run)
    row: Mapping[str, Any] = {**table.row(nth, named=True), **changes}
    return tell(run, row, table.filter(pl.col("cascade_id") == row["cascade_id"]))


def costs(told_story: Story) -> dict[str, tuple[str, str]]:
    return {c.label: (c.value, c.known) for c in told_story.costs}


def test_a_recompute_says_who_why_what_and_whom_it_delayed(tmp_path: Path) -> None:
    found = story(run_of(tmp_path))

    assert found.title == "Request b evicted at step 3 (3.0 s)"
    assert found.lines == {
        "Why": "Request a needed a block and 0 of 10 were free; victim rule: last admitted.",
        "Freed": "2 blocks, that held 6 computed tokens.",
        "Cost": "As recompute: 6 tokens computed again, 600 ms of computing (modelled).",
        "Otherwise": "Had it been swapped: 500 ms (estimated).",
        # steps 5 to 7 ran 2, 2 and 1: 2 of 4, 2 of 4 and 2 of 3 tokens were b's, and one other ran in two
        "Delay": "Waited 2.00 s, 2 steps, until it ran again at step 5; the steps of 1 other running request were lengthened, by 1.00 request-seconds.",
    }
    assert costs(found) == {
        "Direct": ("600 ms", "modelled"),
        "Delay of others": ("1.00 req·s", "modelled"),
        "Wasted KV work": ("6 tokens", "counted"),
        "Away": ("2.00 s", "modelled"),
    }
    assert found.notes == ("One of 3 preemptions in a row, steps 3 to 7.",)


def test_a_swap_says_what_moved_and_how_long_the_engine_stood_still(tmp_path: Path) -> None:
    found = story(run_of(tmp_path, "swap"))

    assert (
        found.lines["Freed"] == "2 blocks to the host (0.000 MiB), that hold 6 computed tokens."
    )
    assert found.lines["Cost"] == (
        "As swap: 500 ms on the link, out and back, for which the engine stood still 500 ms (modelled)."
    )
    assert found.lines["Otherwise"] == "Had it been recomputed: 1.20 s (estimated)."
    assert costs(found)["Wasted KV work"] == ("0 tokens", "counted")


def test_who_asked_itself_and_found_too_few_blocks_is_told_so(tmp_path: Path) -> None:
    found = story(run_of(tmp_path), nth=1)

    assert found.lines["Why"] == (
        "It itself needed more blocks than the 2 of 10 that were free; victim rule: last admitted."
    )


def test_a_second_preemption_says_how_soon_it_came(tmp_path: Path) -> None:
    found = story(run_of(tmp_path), nth=2)

    assert found.notes[0] == "Its preemption number 2, 2.00 s after it had come back."


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": "priority"}, "least important, then last arrived"),
        ({"policy": "fcfs", "victim": "most-blocks"}, "most blocks"),
        ({"policy": "fcfs", "victim": "fewest-computed"}, "fewest computed tokens"),
        ({}, "not recorded"),
        ({"victim": "by <b>moon</b>"}, "by <b>moon</b>"),
    ],
)
def test_the_victim_rule_is_the_one_of_the_settings(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    found = story(run_of(tmp_path, settings={"num_gpu_blocks": 11, **settings}))

    assert found.lines["Why"].endswith(f"victim rule: {words}.")


def test_what_was_not_recorded_is_said_and_never_shown_as_nothing(tmp_path: Path) -> None:
    unseen = [
        f"events.{c}"
        for c in ("cost_s", "recompute_est_s", "swap_est_s", "cause_request_id", "free_blocks_before", "blocks", "tokens")
    ]  # fmt: skip
    found = story(run_of(tmp_path, costs=False, clock="measured", not_recorded=unseen))

    assert found.lines["Why"] == (
        "Whose need evicted it is not recorded; free blocks not recorded; victim rule: last admitted."
    )
    assert found.lines["Freed"] == "Blocks not recorded."
    assert found.lines["Cost"] == "As recompute: cost not recorded."
    assert found.lines["Otherwise"] == "Had it been swapped: not recorded."
    assert "how long others were held up is not recorded" in found.lines["Delay"]
    assert costs(found) == {
        "Direct": ("not recorded", "not recorded"),
        "Delay of others": ("not recorded", "not recorded"),
        "Wasted KV work": ("not recorded", "not recorded"),
        "Away": ("2.00 s", "measured"),
    }


def test_a_cost_of_a_measured_run_says_that_it_is_estimated(tmp_path: Path) -> None:
    assert costs(story(run_of(tmp_path / "a", clock="measured")))["Direct"] == (
        "600 ms",
        "estimated",
    )
    swapped = story(run_of(tmp_path / "b", "swap", clock="measured"))
    assert costs(swapped)["Direct"] == ("500 ms", "measured")


def test_a_clock_of_steps_counts_steps_and_prices_nothing(tmp_path: Path) -> None:
    found = story(run_of(tmp_path, clock="step"))

    assert found.title == "Request b evicted at step 3"
    assert found.lines["Cost"] == (
        "As recompute: 6 tokens computed again, no cost in seconds, since this run's clock counts steps."
    )
    assert found.lines["Delay"].startswith("Waited 2 steps, until it ran again at step 5; ")
    assert costs(found)["Away"] == ("2.00 steps", "modelled")


def test_who_never_came_back_is_told_so(tmp_path: Path) -> None:
    found = story(run_of(tmp_path, evicted=((6, "c", "a", None, 4, 0),)))

    assert found.lines["Delay"].startswith("It never ran again in this recording; ")
    assert costs(found)["Away"][0] == "never back"
    assert costs(found)["Wasted KV work"][0] == "none yet"


@pytest.mark.parametrize(
    ("asked", "used", "words"),
    [
        ("swap", "recompute", "As recompute (swap was asked for, the host was full): "),
        ("cheapest", "recompute", "As recompute (chosen as the cheapest): "),
        ("recompute", "recompute", "As recompute: "),
        (None, "recompute", "As recompute: "),
        (None, None, "As a mode not recorded: "),
    ],
)
def test_the_mode_asked_for_is_told_where_another_was_used(
    tmp_path: Path, asked: str | None, used: str | None, words: str
) -> None:
    found = story(run_of(tmp_path), mode_asked=asked, mode_used=used)

    assert found.lines["Cost"].startswith(words)


def test_tokens_found_and_restored_are_told_apart(tmp_path: Path) -> None:
    found = story(
        run_of(tmp_path), mode_used="offload", found_tokens=3, restored_tokens=2, recomputed_tokens=1
    )  # fmt: skip

    assert found.lines["Cost"] == (
        "As offload (recompute was asked for): 1 token computed again (3 were found in the prefix "
        "cache, 2 came from the host), 600 ms of computing and loading (modelled)."
    )
    assert found.lines["Otherwise"] == (
        "Had it been swapped: 500 ms (estimated); without the host cache: 1.20 s (estimated)."
    )


def test_a_long_id_is_cut_and_kept_on_one_line() -> None:
    assert short_id("a\nb\tc") == "a b c"
    assert short_id("x" * 10_000_000) == "x" * 48 + "…"


def test_the_same_request_is_told_of_every_run(tmp_path: Path) -> None:
    runs: dict[Any, Run] = {
        "A": run_of(tmp_path / "a"),
        "B": run_of(tmp_path / "b", "swap", evicted=((3, "b", "a", None, 6, 0),)),
    }

    table = same_request(runs, {s: told(r) for s, r in runs.items()}, "b")

    assert table.rows() == [
        ("Preempted", "2 times", "1 time"),
        ("At steps", "3, 7", "3"),
        ("Time away", "4.00 s", "0 s, not back at the end"),
        ("Direct cost", "1.40 s", "250 ms"),
        ("Tokens computed again", "14", "0"),
        ("TTFT", "1.00 s", "1.00 s"),
        ("E2E", "12.0 s", "12.0 s"),
        ("Longest gap between tokens", "3.00 s", "3.00 s"),
        ("Ended", "finished", "finished"),
    ]


def test_a_request_that_a_run_does_not_have_is_told_so(tmp_path: Path) -> None:
    runs: dict[Any, Run] = {"A": run_of(tmp_path / "a"), "B": run_of(tmp_path / "b")}

    table = same_request(runs, {s: told(r) for s, r in runs.items()}, "nobody")

    assert set(table["A"]) == {"not in this run"}
