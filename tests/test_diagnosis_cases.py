"""The twenty cases of pasted evidence: what expected.md states is what `diagnose --json` says.

Each entry maps a name of the fact block to a check of our facts. Names that are no facts of a server (how a
reader cut lines, what a simulation found out) are checked where they belong, or listed in ELSEWHERE.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analyzer.diagnosis import diagnose
from tests.case_facts import read_expected
from traces.evidence.reading import read_evidence

CASES = Path(__file__).parent / "fixtures" / "cases"
Facts = dict[str, Any]
Check = Callable[[Facts, Any], bool]


def folders() -> list[Path]:
    return sorted(p for p in CASES.iterdir() if p.is_dir())


def files_of(folder: Path, *names: str) -> list[Path]:
    kept = [p for p in sorted(folder.iterdir()) if p.name != "expected.md"]
    return [p for p in kept if not names or p.name in names]


@cache
def diagnosed(folder: Path, *names: str) -> dict[str, Any]:
    return diagnose(read_evidence(files_of(folder, *names))).as_json()


def same(name: str) -> Check:
    return lambda facts, want: facts.get(name) == want


def near(name: str, tolerance: float) -> Check:
    def check(facts: Facts, want: Any) -> bool:
        got = facts.get(name)
        return isinstance(got, int | float) and abs(got - want) <= tolerance * abs(want)

    return check


def within(name: str) -> Check:
    """A number, or both ends of a range, inside the stated bounds."""

    def check(facts: Facts, want: Any) -> bool:
        got = facts.get(name)
        ends = got if isinstance(got, list) else [got]
        return all(isinstance(x, int | float) and want[0] <= x <= want[1] for x in ends)

    return check


def overlaps(name: str) -> Check:
    def check(facts: Facts, want: Any) -> bool:
        got = facts.get(name)
        return got is not None and got[0] <= want[1] and want[0] <= got[1]

    return check


def holds(low: str, high: str) -> Check:
    """The truth lies inside the inferred range."""
    return lambda facts, want: (
        facts[low] <= want and (facts[high] is None or want <= facts[high])
    )


def ends_with(name: str) -> Check:
    """A time of day of a time that has a date, fractions of seconds left out."""
    return lambda facts, want: facts.get(name) is not None and _time(facts[name]) == _time(want)


def between_times(name: str) -> Check:
    return lambda facts, want: (
        facts.get(name) is not None and (want[0][:8] <= _time(facts[name]) <= want[1][:8])
    )


def _time(text: str) -> str:
    return text.replace("Z", "").replace("T", " ").split(" ")[-1].split(".")[0]


def starts_with(name: str) -> Check:
    return lambda facts, want: str(facts.get(name)).startswith(str(want).split(" (")[0])


CHECKS: dict[str, Check] = {
    "engine": starts_with("engine"),
    "pool_blocks": lambda f, w: (
        within("pool_blocks")(f, w) if isinstance(w, list) else f["pool_blocks"] == w
    ),
    "pool_tokens": same("pool_tokens"),
    "block_size": same("block_size"),
    "tokens_per_block": same("block_size"),
    "cpu_blocks": same("cpu_blocks"),
    "host_pool_blocks": within("host_pool_blocks"),
    "null_blocks": same("null_blocks"),
    "state_blocks": same("state_blocks"),
    "max_model_len": same("max_model_len"),
    "pool_tokens_estimated_from_slope": overlaps("pool_tokens_estimated_from_slope"),
    "pool_tokens_estimate": within("pool_tokens_estimate"),
    "pool_blocks_estimate": within("pool_blocks_estimate"),
    "pool_tokens_per_rank": same("pool_tokens_per_rank"),
    "samples": same("samples"),
    "records": same("records"),
    "snapshots": same("snapshots"),
    "steps": same("steps"),
    "first_iteration": same("first_iteration"),
    "last_iteration": same("last_iteration"),
    "warnings": same("warnings"),
    "warnings_printed": same("warnings_printed"),
    "warnings_after_expanding_repeats": same("preemptions_logged"),
    "engines_with_preemption": same("engines_with_preemption"),
    "preemptions_min": same("preemptions_min"),
    "preemptions_max": same("preemptions_max"),
    "preemptions_max_busiest": same("preemptions_max_busiest"),
    "preemptions_first": same("preemptions_first"),
    "preemptions_logged": same("preemptions_logged"),
    "preemptions_true": holds("preemptions_min", "preemptions_max"),
    "recomputed_tokens_true": lambda f, w: (
        f["recomputed_tokens"]["low"] <= w <= f["recomputed_tokens"]["high"]
    ),
    "preemption_iterations_true": same("preemption_iterations"),
    "context_iterations_after_first_preemption": same(
        "context_iterations_after_first_preemption"
    ),
    "preemption_rate_per_s": lambda f, w: (
        within("preemption_rate_per_s")(f, w)
        if isinstance(w, list)
        else abs(f["preemption_rate_per_s"][1] - w) < 0.001
    ),
    "preemptions_delta_engine0": lambda f, w: f["preemptions_by_rank"]["0"] == w,
    "policy": same("policy"),
    "swapped_max": same("swapped_max"),
    "cpu_kv_usage_max": same("cpu_kv_usage_max"),
    "fatal": same("fatal"),
    "safe_concurrency": lambda f, w: (
        within("safe_concurrency")(f, w) if isinstance(w, list) else f["safe_concurrency"] == w
    ),
    "safe_concurrency_groups": same("safe_concurrency_groups"),
    "log_gap_s": same("log_gap_s"),
    "growth_tokens_per_s": within("growth_tokens_per_s"),
    "eta_full": ends_with("eta_full"),
    "first_preemption_true": lambda f, w: (
        _time(f["eta_full_range"][0]) <= w <= _time(f["eta_full_range"][1])
    ),
    "stalled_samples": same("stalled_samples"),
    "running_during_stall": same("running_during_stall"),
    "pending_during_stall": same("pending_during_stall"),
    "kv_usage_during_stall": same("kv_usage_during_stall"),
    "generation_before": same("generation_before"),
    "generation_after_median": same("generation_after_median"),
    "waiting_first_last": same("waiting_first_last"),
    "running_range": same("running_range"),
    "usage_range": same("usage_range"),
    "oversize_rejected": same("oversize_rejected"),
    "first": ends_with("first"),
    "last": ends_with("last"),
    "stall_from": same("stall_from"),
    "stall_to": same("stall_to"),
    "stats_gap_s": same("stats_gap_s"),
    "waiting_at_stall": same("waiting_at_stall"),
    "shortfall_tokens": same("shortfall_tokens"),
    "shortfall_blocks_of_16": same("shortfall_blocks_of_16"),
    "engines": same("engines"),
    "dp_ranks": same("dp_ranks"),
    "running": same("running"),
    "waiting": same("waiting"),
    "queue": same("queue"),
    "usage": same("usage"),
    "usage_rank2": lambda f, w: f["usage_last"]["2"] == w,
    "retracted_total": same("preemptions_by_rank"),
    "share_of_running_on_busiest": same("share_of_running_on_busiest"),
    "idle_engines_last": same("idle_engines_last"),
    "generation_rate_engine0_last": lambda f, w: (
        abs(f["per_rank"]["0"]["generation_per_s"] - w) < 0.1
    ),
    "paused_max": same("paused_max"),
    "scheduled_max": same("scheduled_max"),
    "active_max": same("active_max"),
    "used_blocks_peak": same("used_blocks_peak"),
    "reserved_blocks_per_request": same("reserved_blocks_per_request"),
    "no_evict_concurrency": same("no_evict_concurrency"),
    "failed_requests": same("failed_requests"),
    "asked_blocks": same("asked_blocks"),
    "free_blocks": same("free_blocks"),
    "resumed_events": same("resumed_events"),
    "resumed_computed_tokens": same("resumed_computed_tokens"),
    "recompute_saved_tokens": lambda f, w: w in f["resumed_computed_tokens"].values(),
    "servable_tokens": same("servable_tokens"),
    "request_total_tokens": same("request_total_tokens"),
    "first_preemption_step": same("first_preemption_step"),
    "preemptions": same("preemptions_min"),
    "min_blocks": same("min_blocks"),
    "waiting_steps_after": same("waiting_steps_after"),
    "output_tokens_before_wall": same("output_tokens_before_wall"),
    "swap_out_events": same("swap_out_events"),
    "swap_in_events": same("swap_in_events"),
    "victim": lambda f, w: str(f["victim"]) == str(w),
    "victim_blocks": same("victim_blocks"),
    "blocks_moved_out_in": same("blocks_moved_out_in"),
    "swapped_s": near("swapped_s", 0.01),
    "tokens_recomputed": lambda f, w: f["recomputed_tokens"]["high"] == w,
    "first_swap_out": ends_with("first_swap_out"),
    "usage_levels": same("usage_levels"),
    "step_pct": near("step_pct", 0.005),
    "blocks_needed_next_step": same("blocks_needed_next_step"),
    "blocks_free_before": same("blocks_free_before"),
    "wall_expected": between_times("eta_full"),
    "eta_full_predicted_from_first_lines": between_times("eta_full"),
    "stats_silent_after": ends_with("stats_silent_after"),
    "trigger": same("trigger"),
    "retract_events": same("retract_events"),
    "retracted_requests": same("retracted_requests"),
    "intervals_s": same("intervals_s"),
    "queue_first_last": lambda f, w: max(f["waiting"]) == w[0] and f["waiting"][-1] == w[1],
    "version": lambda f, w: (
        f["version"] is None if str(w).startswith("<") else str(w).startswith(str(f["version"]))
    ),
    "samples_of_log": same("samples"),
    "kv_gib": same("kv_gib"),
    "bytes_per_block": near("bytes_per_block", 0.002),
    "bytes_per_token": near("bytes_per_token", 0.0001),
    "starts": same("starts"),
    "max_kv_gib": same("max_kv_gib"),
    "gain_pct": same("gain_pct"),
    "pool_tokens_at_max": near("pool_tokens_at_max", 0.002),
    "min_gmu_for_zero_preemption": same("min_gmu_for_zero_preemption"),
    "tokens_needed": same("tokens_needed"),
    "fits": same("fits"),
    "total_cap_possible": same("total_cap_possible"),
    "oversubscription_at_cap": same("oversubscription_at_cap"),
    "recommended_total_cap": same("recommended_total_cap"),
    "pool_needed_for_10": same("pool_needed_for_10"),
    "kv_gib_needed_for_10": same("kv_gib_needed_for_10"),
    "held_tokens_per_running": same("held_tokens_per_running"),
    "fired_over_fit": same("fired_over_fit"),
    "preemptions_per_1000_requests": same("preemptions_per_1000_requests"),
}

# Names that say how a reader works or what a simulation found; the readers' tests have the former.
ELSEWHERE = {
    "log_family", "prefix", "wrap", "clock_offset_h", "records_on_one_line", "first_event_partial_paste",
    "new_token_ratio_before", "date", "step_explained", "lines", "severity", "verdict", "not_verdict",
    "eta_full_predicted_from_first_13_samples",
}  # fmt: skip

# Groups of a fact block -> the files that they are of.
GROUPS = {
    "node1": ("node1.log",),
    "prefill": ("v0.3-prefill.log",),
    "v0_20000": ("v0-max-len-20000.log",),
    "v0_29000": ("v0-max-len-29000.log",),
    "v1": ("v1-suggestion.log",),
    "gmu_sweep": ("small-gmu-sweep.csv",),
    "proxy_case": ("facts.yaml",),
    "runner_case": ("runner-report.csv",),
}


def faults(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What of a fact block is not so."""
    facts, wrong = found["facts"], []
    words = [v["word"] for v in found["verdicts"]]
    for name, want in expected.items():
        if name in GROUPS or name in ELSEWHERE:
            continue
        if name not in CHECKS:
            wrong.append(f"{name}: no check")
        elif not _holds(CHECKS[name], facts, want):
            wrong.append(f"{name}: expected {want!r}, the facts say {facts.get(name)!r}")
    if "verdict" in expected and expected["verdict"] != words[0]:
        wrong.append(f"verdict: expected {expected['verdict']}, got {words}")
    if expected.get("not_verdict") in words:
        wrong.append(f"{expected['not_verdict']} is given although it is excluded")
    if "severity" in expected and expected["severity"] != found["severity"]:
        wrong.append(f"severity: expected {expected['severity']}, got {found['severity']}")
    return wrong


def _holds(check: Check, facts: Facts, want: Any) -> bool:
    try:
        return check(facts, want)
    except (KeyError, TypeError):
        return False


@pytest.mark.parametrize("folder", folders(), ids=lambda p: p.name)
def test_a_case_says_what_its_fact_block_says(folder: Path) -> None:
    expected = read_expected(folder)

    wrong = (
        faults(diagnosed(folder), expected) if set(expected) - set(GROUPS) - ELSEWHERE else []
    )
    for group, files in GROUPS.items():
        if group in expected:
            wrong += [
                f"{group}.{w}" for w in faults(diagnosed(folder, *files), expected[group])
            ]

    assert wrong == []


def test_the_wall_is_forecast_from_the_lines_before_it(tmp_path: Path) -> None:
    folder = CASES / "05-v1-eight-long-decodes-collapse"
    text = (folder / "server.log").read_text()
    early = text[: text.index("INFO 07-28 06:43:09")]
    path = tmp_path / "server.log"
    path.write_text(early)

    found = diagnose(read_evidence([path])).as_json()

    low, high = read_expected(folder)["eta_full_predicted_from_first_13_samples"]
    assert found["verdict"] == "NO_PRESSURE_YET"
    assert found["facts"]["samples"] == 13
    assert low <= _time(found["facts"]["eta_full"]) <= high


def test_the_pool_of_a_staircase_needs_no_block_size_from_notes() -> None:
    folder = CASES / "36-v1-staircase-usage-then-silent"

    found = diagnosed(folder, "server.log")

    assert found["facts"]["block_size"] == 128
    assert 64_000 <= found["facts"]["pool_tokens"] <= 66_600


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("01-v0-recompute-warning-every-50", "--max-num-seqs 20"),
        (
            "05-v1-eight-long-decodes-collapse",
            "admit a request only when its whole sequence fits",
        ),
        ("08-docker-timestamps-hard-wrapped", "shed 68 requests a minute"),
        ("10-k8s-cri-request-larger-than-pool", "--max-model-len 76640"),
        ("18-triton-trtllm-reservation-blocks-queue", "max_tokens <= 1920"),
        ("36-v1-staircase-usage-then-silent", "at most 48 parallel requests"),
    ],
)
def test_the_next_step_is_the_smallest_change_that_the_reasons_name(
    case: str, change: str
) -> None:
    assert diagnosed(CASES / case)["next_step"]["change"].startswith(change)


@pytest.mark.parametrize("folder", folders(), ids=lambda p: p.name)
def test_every_proof_of_a_case_names_lines_that_are_in_its_files(folder: Path) -> None:
    found = diagnosed(folder)
    texts = {p.name: p.read_text(encoding="utf-8").split("\n") for p in files_of(folder)}
    lines = [at for proof in found["proofs"] for at in proof["lines"]]

    assert all(1 <= at["line"] <= len(texts[at["source"].split(" (")[0]]) for at in lines)


def test_each_per_cent_of_pool_is_worth_the_seconds_that_growth_takes() -> None:
    found = diagnosed(CASES / "05-v1-eight-long-decodes-collapse")

    effects = {s["change"]: s["effect"] for s in found["next_step"]["alternatives"]}

    assert (
        effects["a pool 1 % larger"] == "puts the wall off by 26 s"
    )  # 6,262 tokens at 240.8 a second
