"""Modes offload and cheapest, and columns that were not recorded, in the analyzer's tables and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.compare import compare
from analyzer.condition import describe_condition, idle_settings, side_names
from analyzer.lifecycles import away_intervals
from analyzer.preemptions import Choices, choices, preemption_cost, preemptions
from analyzer.spending import describe_spending
from analyzer.summary import summarize
from tests.builders import make_events, make_meta, make_requests, make_steps, record
from traces.recording import Meta, Recording


def frame(table: Any) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table))


def settings_of(mode: str, **more: Any) -> dict[str, Any]:
    return {**make_meta()["settings"], "preemption_mode": mode, **more}


def evict(who: str, step: int = 1, **more: Any) -> dict[str, Any]:
    return {"step": step, "kind": "preempt", "request_id": who, **more}


# b loses 100 tokens; 20 are in the prefix cache when it returns, 50 come from the host. Blocks of a and
# b were copied out as they filled, before and after that, and a prefix of b was loaded when it came.
OFFLOADED = [
    {"step": 0, "kind": "load", "request_id": "b", "tokens": 16, "cost_s": 9.0},
    {"step": 0, "kind": "swap_out", "request_id": "a", "bytes": 100, "cost_s": 7.0},
    evict("b", mode_asked="offload", mode_used="offload", tokens=100, blocks=7, recompute_est_s=3.0, cost_s=4.0),
    {"step": 2, "kind": "load", "request_id": "b", "tokens": 50, "cost_s": 0.5},
    {"step": 3, "kind": "resume", "request_id": "b", "tokens": 20},
    {"step": 3, "kind": "swap_out", "request_id": "b", "bytes": 100, "cost_s": 7.0},
]  # fmt: skip


def offloaded(root: Path, **meta: Any) -> Recording:
    steps = make_steps(
        [7, 7, 7, 7],
        num_running=[2, 1, 1, 2],
        num_preempted=[0, 1, 0, 0],
        num_resumed=[0, 0, 0, 1],
        decode_tokens=[2, 1, 1, 1],
        recomputed_tokens=[0, 0, 0, 30],
        restored_tokens=[16, 0, 0, 50],
        cached_tokens=[0, 0, 0, 20],
        swap_out_bytes=[2**30, 0, 0, 2**30],
        swap_in_bytes=[0, 0, 2**29, 0],
    )
    requests = [{"request_id": "a"}, {"request_id": "b", "num_preemptions": 1}]
    return record(
        root,
        steps=steps,
        events=make_events(OFFLOADED),
        requests=make_requests(requests),
        meta=make_meta(settings=settings_of("offload"), **meta),
    )


def test_what_a_victim_lost_was_found_restored_or_computed_again() -> None:
    events = frame(make_events(OFFLOADED))

    away = away_intervals(events).select("tokens", "found_tokens", "restored_tokens")
    table = preemptions(events, frame(make_steps([7] * 4, recomputed_tokens=[0, 0, 0, 30])))

    assert away.rows() == [(100, 20, 50)]
    assert table.select("found_tokens", "restored_tokens", "recomputed_tokens").row(0) == (20, 50, 30)  # fmt: skip


def test_an_offloaded_victim_costs_its_load_and_what_was_computed_again() -> None:
    events = frame(make_events(OFFLOADED))

    row = preemptions(events, frame(make_steps([7] * 4))).row(0, named=True)

    # 30 of 100 tokens of 4 s, and a load of 0.5 s; copies to the host belong to no preemption
    assert row["direct_cost_s"] == pytest.approx(1.2 + 0.5)
    assert row["uncached_cost_s"] == 4.0
    assert (row["stalled_s"], preemption_cost(events)) == (0.0, pytest.approx(1.7))


def test_an_offloaded_victim_without_a_cost_is_told_by_its_estimate() -> None:
    untold = [{**e, "cost_s": None} if e["kind"] == "preempt" else e for e in OFFLOADED]

    row = preemptions(frame(make_events(untold)), frame(make_steps([7] * 4))).row(0, named=True)

    # 3 s for the 80 tokens that the prefix cache did not have; 30 of them were computed again
    assert row["direct_cost_s"] == pytest.approx(3.0 * 30 / 80 + 0.5)
    assert row["uncached_cost_s"] is None


def test_a_load_that_tells_no_time_leaves_the_cost_unknown() -> None:
    untimed = [{**e, "cost_s": None} if e["kind"] == "load" else e for e in OFFLOADED]

    assert preemption_cost(frame(make_events(untimed))) is None


def test_offload_is_told_by_what_was_restored_and_what_fills(tmp_path: Path) -> None:
    run = offloaded(tmp_path)

    said = describe_spending("B", run, summarize(run))

    assert said == (
        "B preempts once and recomputes 30 tokens (85.7 % of all computed; 20.0 % of what it lost was still in the "
        "prefix cache, 50.0 % was restored from the host), and copies 2.00 GiB to the host as blocks fill and "
        "512 MiB back; its victims' return costs 1.70 s of computing and of loading, which runs beside it."
    )
    assert "swap" not in said


def test_restored_tokens_are_a_figure_of_the_run(tmp_path: Path) -> None:
    assert summarize(offloaded(tmp_path))["restored_tokens"] == 66


CHOSEN = [
    evict("a", mode_asked="cheapest", mode_used="swap", recompute_est_s=3.0, swap_est_s=1.0, tokens=40),
    evict("b", mode_asked="cheapest", mode_used="recompute", recompute_est_s=0.5, swap_est_s=1.5, tokens=40),
    evict("c", mode_asked="cheapest", mode_used="recompute", recompute_est_s=2.0, swap_est_s=1.25, tokens=40),
]  # fmt: skip


def test_choices_of_cheapest_are_counted_with_their_estimates() -> None:
    assert choices(frame(make_events(CHOSEN))) == Choices(
        num_swapped=1,
        num_recomputed=2,
        num_host_full=1,  # c was recomputed although swap was cheaper
        used_est_s=3.5,
        other_est_s=5.75,
    )


def test_a_pure_mode_chose_nothing() -> None:
    events = frame(make_events([evict("a", mode_asked="swap", mode_used="swap")]))

    assert choices(events) is None


def test_choices_without_estimates_have_no_sums() -> None:
    untold = [{**e, "swap_est_s": None} for e in CHOSEN]

    chosen = choices(frame(make_events(untold)))

    assert chosen == Choices(1, 2, 0, None, None)


def test_cheapest_is_told_by_its_choices(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        steps=make_steps([7, 7], num_preempted=[0, 3]),
        events=make_events(CHOSEN),
        requests=make_requests([{"request_id": x, "num_preemptions": 1} for x in "abc"]),
        meta=make_meta(settings=settings_of("cheapest")),
    )

    said = describe_spending("A", run, summarize(run))

    assert said.endswith(
        "It swapped 1 of its victims and recomputed 2 (1 of them because the host was full): "
        "by its estimates 3.50 s of engine time, where the other way each time would have cost 5.75 s."
    )


@pytest.mark.parametrize(
    ("modes", "told"),
    [
        (("swap", "cheapest"), {"copy_mode", "copy_path", "host_gib"}),
        (("swap", "offload"), {"copy_path", "host_gib"}),
        (("offload", "offload"), {"copy_path", "host_gib", "offload_connector"}),
        (("recompute", "cheapest"), set()),
    ],
)
def test_settings_tell_sides_apart_only_where_both_modes_heed_them(
    modes: tuple[str, str], told: set[str]
) -> None:
    a, b = (Meta(make_meta(settings=settings_of(mode))) for mode in modes)

    everything = {"copy_mode", "copy_path", "host_gib", "offload_connector"}

    assert everything - idle_settings(a, b) == told


def test_sides_are_named_by_their_modes(tmp_path: Path) -> None:
    a = record(tmp_path / "a", meta=make_meta(settings=settings_of("offload")))
    b = record(tmp_path / "b", meta=make_meta(settings=settings_of("cheapest")))

    assert side_names(a, b) == ("A (offload)", "B (cheapest)")


def test_a_host_cache_is_no_blocking_copy_in_the_condition() -> None:
    settings = settings_of("offload", copy_mode="blocking", copy_path="coalesced")
    run = Meta(
        make_meta(settings=settings, device={"name": "card", "link_out_bytes_per_s": 25e9})
    )

    said = describe_condition(run, run, 10, 10)

    assert said == "10 blocks on card and coalesced copies over a 25 GB/s link"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"offload_connector": "native"}, " by the native connector"),
        (
            {"offload_connector": "native", "offload_prompt_only": True},
            " by the native connector, prompt blocks only,",
        ),
        (
            {"offload_connector": "simple", "lazy_offload": True},
            " by the simple connector, late,",
        ),
    ],
)
def test_the_condition_names_the_connector(settings: dict[str, Any], said: str) -> None:
    device = {"name": "card", "link_out_bytes_per_s": 25e9}
    run = Meta(
        make_meta(
            settings=settings_of("offload", copy_path="coalesced", **settings), device=device
        )
    )

    text = describe_condition(run, run, 10, 10)

    assert text == f"10 blocks on card and coalesced copies{said} over a 25 GB/s link"


def test_modes_that_never_come_into_play_are_named(tmp_path: Path) -> None:
    runs = [
        record(
            tmp_path / mode,
            steps=make_steps([7]),
            requests=make_requests(
                [{"request_id": "a", "first_token_s": 0.5, "finish_s": 1.0}]
            ),
            meta=make_meta(settings=settings_of(mode)),
        )
        for mode in ("swap", "offload")
    ]

    text = str(compare(*runs).verdict)

    assert "peak use 70.0 % of 10 blocks: swap and offload never come into play." in text
    assert "recompute" not in text


def test_loads_beside_the_computing_are_not_judged_against_engine_time(tmp_path: Path) -> None:
    a = record(
        tmp_path / "a",
        steps=make_steps([7] * 4, num_preempted=[0, 1, 0, 0]),
        events=make_events([evict("b", mode_used="recompute", tokens=9, cost_s=1.0)]),
        requests=make_requests([{"request_id": "a"}, {"request_id": "b"}]),
    )

    row = compare(a, offloaded(tmp_path / "b")).table.filter(metric="preemption_cost_s")

    assert row["verdict"].to_list() == [None]


LIVE = ["steps.stall_s", "steps.swap_out_bytes", "steps.swap_in_bytes", "events.cost_s"]


def test_what_was_not_recorded_is_none_and_not_zero(tmp_path: Path) -> None:
    run = offloaded(tmp_path, not_recorded=LIVE)

    figures = summarize(run)

    unseen = ("stall_s", "swap_out_bytes", "swap_in_bytes", "preemption_cost_s")
    assert [figures[k] for k in unseen] == [None] * 4
    assert figures["restored_tokens"] == 66
    assert describe_spending("A", run, figures).endswith("50.0 % was restored from the host).")


def test_a_comparison_says_which_figures_a_side_did_not_record(tmp_path: Path) -> None:
    a = offloaded(tmp_path / "a", not_recorded=LIVE, workload={})
    b = offloaded(tmp_path / "b")

    found = compare(a, b)

    assert found.missing["A"] == {
        "stall_s",
        "swap_out_bytes",
        "swap_in_bytes",
        "preemption_cost_s",
    }
    assert found.missing["B"] == frozenset()
    assert found.delta["stall_s"] is None


def test_preemptions_that_were_not_recorded_are_not_told_as_none(tmp_path: Path) -> None:
    unseen = ["steps.num_preempted", "requests.num_preemptions"]
    run = record(tmp_path, steps=make_steps([7]), meta=make_meta(not_recorded=unseen))

    figures = summarize(run)

    assert figures["num_preemptions"] is None
    assert describe_spending("A", run, figures) == ""
    assert "No preemption" not in str(compare(run, run).verdict)
