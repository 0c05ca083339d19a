"""Recordings told of as servers would tell, read and diagnosed: what is inferred against what is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analyzer.estimate import estimate_workload, fit
from analyzer.sampled import KINDS, follow, sampled_evidence, scrapes, v0_log, v1_log
from benchmarks.inferred_preemptions import Row, batch, rows_of
from engine.config import EngineSettings
from engine.simulator import simulate
from traces import samples
from traces.errors import NotAWorkloadError
from traces.evidence.reading import read_sources
from traces.evidence.source import Source
from traces.lengths import Fixed, Uniform
from traces.recording import Recording, open_recording
from traces.workload import Workload

SLOW = EngineSettings(device="a100-40", enable_prefix_caching=False, kv_tokens=100_000)
WORLDS: dict[str, tuple[Workload, EngineSettings]] = {
    "eight long decodes": (batch(8, Fixed(8_000), Fixed(9_000)), SLOW),
    "eight of mixed prompts": (batch(8, Uniform(4_000, 12_000), Fixed(9_000)), SLOW),
    "swapped": (batch(8, Fixed(8_000), Fixed(9_000)), SLOW.with_(preemption_mode="swap")),
    "roomy": (batch(64, Fixed(300), Fixed(2_000)), SLOW.with_(kv_tokens=400_000)),
    "chat": (
        samples.load("chat").head(500).scale_rate(3.0),
        EngineSettings(kv_tokens=30_000),
    ),
    "calm chat": (samples.load("chat").head(200), EngineSettings(kv_tokens=120_000)),
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    folder = tmp_path_factory.mktemp("truth")
    found = {}
    for name, (workload, settings) in WORLDS.items():
        simulate(workload, settings, folder / name)
        found[name] = open_recording(folder / name)
    return found


@pytest.fixture(scope="module")
def rows(recordings: dict[str, Recording]) -> list[Row]:
    kinds = ("v1-log", "v0-log", "metrics")
    return [r for name, one in recordings.items() for r in rows_of(one, name, kinds)]


def test_worlds_with_and_without_preemptions_are_told_of(rows: list[Row]) -> None:
    assert {r.world for r in rows if r.true_count} >= {"eight long decodes", "swapped", "chat"}
    assert {r.world for r in rows if not r.true_count} >= {"roomy", "calm chat"}


def test_every_count_or_range_holds_the_true_number_of_preemptions(rows: list[Row]) -> None:
    wrong = [
        (r.world, r.kind, r.low, r.high, r.true_count) for r in rows if r.says and not r.holds
    ]

    assert wrong == []


def test_the_counter_of_metrics_gives_the_exact_count_though_it_comes_late(
    rows: list[Row],
) -> None:
    mine = [r for r in rows if r.kind == "metrics"]

    assert [(r.low, r.high) for r in mine] == [(r.true_count, r.true_count) for r in mine]


def test_warnings_of_v0_bound_the_count_by_fifty(rows: list[Row]) -> None:
    mine = [r for r in rows if r.kind == "v0-log" and r.true_count]

    assert all(r.low is not None and r.high == r.low + 49 for r in mine)


def test_no_log_of_a_run_without_preemptions_says_that_there_were_some(rows: list[Row]) -> None:
    assert [r.world for r in rows if not r.true_count and r.low] == []


def test_verdicts_name_capacity_where_requests_were_evicted_and_not_where_the_pool_was_never_full(
    rows: list[Row],
) -> None:
    assert [(r.world, r.kind, r.verdicts) for r in rows if not r.right] == []


def test_a_pool_that_no_line_states_follows_from_growth_within_three_per_cent(
    rows: list[Row],
) -> None:
    found = [
        r
        for r in rows
        if not r.stated_pool and r.world.startswith(("eight", "swapped", "roomy")) and r.pool
    ]

    assert len(found) >= 8
    assert all(abs((r.pool or 0) / r.true_pool - 1) < 0.03 for r in found)


def test_lines_of_iterations_give_the_count_of_a_run_of_decodes(tmp_path: Path) -> None:
    load = batch(8, Fixed(300), Fixed(600))
    simulate(load, SLOW.with_(kv_tokens=5_000), tmp_path / "run")
    (row,) = rows_of(open_recording(tmp_path / "run"), "eight", ("v1-iterations",))

    assert row.true_count > 0
    assert (row.low, row.high) == (row.true_count, row.true_count)


def test_a_v1_log_has_a_line_each_ten_seconds_and_no_word_of_preemption(
    recordings: dict[str, Recording],
) -> None:
    run = recordings["eight long decodes"]
    lines = v1_log(run).splitlines()

    assert len(lines) == 1 + -(-follow(run).ends_s[-1] // 10)
    assert "GPU KV cache size: 100,016 tokens" in lines[0]  # the null block is counted
    assert "Running: 8 reqs" in lines[1]
    assert "reempt" not in "".join(lines)


def test_what_a_log_generates_is_what_the_requests_got(
    recordings: dict[str, Recording],
) -> None:
    for run in recordings.values():
        told = follow(run)

        assert told.generated[-1] == run.requests["output_tokens"].sum()
        assert (
            told.prompt_tokens[-1] + told.cached_tokens[-1]
            == run.requests["prompt_tokens"].sum()
        )


def test_a_v0_log_warns_of_the_first_preemption_and_each_fiftieth(
    recordings: dict[str, Recording],
) -> None:
    run = recordings["chat"]
    count = int(run.steps["num_preempted"].sum())
    warned = [x for x in v0_log(run).splitlines() if "is preempted by" in x]

    assert len(warned) == -(-count // 50)
    assert warned[0].endswith("total_num_cumulative_preemption=1")


def test_the_counter_of_scrapes_does_not_know_of_a_victim_that_has_not_come_back(
    recordings: dict[str, Recording],
) -> None:
    told = follow(recordings["eight long decodes"])

    assert (told.reported_s > told.preempted_s).all()
    assert "num_preemptions_total" in scrapes(recordings["eight long decodes"])


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "v1-iterations"])
def test_each_way_of_telling_is_read_as_vllms_without_a_line_skipped(
    recordings: dict[str, Recording], kind: str
) -> None:
    evidence = sampled_evidence(recordings["eight long decodes"], kind)

    assert evidence.engine == "vllm"
    assert [r.skipped for r in evidence.sources] == [0]


# ---- estimated workloads ----


def simulated(settings: EngineSettings, folder: Path) -> Any:
    def run(workload: Workload, found: Mapping[str, Any]) -> Recording:
        simulate(workload, settings.with_(kv_tokens=found["kv_tokens"]), folder)
        return open_recording(folder)

    return run


@pytest.mark.parametrize("kind", ["v1-log", "metrics"])
def test_a_batch_is_estimated_to_the_token_and_its_run_says_what_was_observed(
    recordings: dict[str, Recording], kind: str, tmp_path: Path
) -> None:
    estimate = estimate_workload(sampled_evidence(recordings["eight long decodes"], kind))

    found = fit(estimate, simulated(SLOW, tmp_path / "run"))

    assert estimate.workload.estimated
    assert estimate.workload.table["prompt_tokens"].to_list() == [8_000] * 8
    assert estimate.workload.table["output_tokens"].to_list() == [9_000] * 8
    assert max(e for e in found.errors.values() if e is not None) < 0.05


def test_open_arrivals_are_estimated_within_a_fifth(
    recordings: dict[str, Recording], tmp_path: Path
) -> None:
    estimate = estimate_workload(sampled_evidence(recordings["chat"], "v1-log"))
    true = WORLDS["chat"][0].table

    found = fit(estimate, simulated(WORLDS["chat"][1], tmp_path / "run"))

    assert 0.8 < len(estimate.workload) / 500 < 1.25
    assert 0.8 < estimate.prompt_mean / float(true["prompt_tokens"].mean()) < 1.25  # type: ignore[arg-type]
    assert 0.8 < estimate.output_mean / float(true["output_tokens"].mean()) < 1.25  # type: ignore[arg-type]
    observed, told = found.means["generation"] or (1.0, 0.0)
    assert abs(told / observed - 1) < 0.1
    assert any("exponential" in text for text in estimate.assumptions)


def test_one_seed_gives_one_workload(recordings: dict[str, Recording]) -> None:
    evidence = sampled_evidence(recordings["chat"], "v1-log")

    first, again = estimate_workload(evidence), estimate_workload(evidence)

    assert first.workload.digest == again.workload.digest
    assert estimate_workload(evidence, seed=1).workload.digest != first.workload.digest


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("INFO 03-04 10:00:00 [kv.py:1] GPU KV cache size: 41,424 tokens\n", "no samples"),
        (
            "INFO 03-04 10:00:10 [loggers.py:310] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation "
            "throughput: 9.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 52.4%, Prefix cache hit rate: 0.0%\n",
            "3 are needed",
        ),
    ],
)
def test_thin_evidence_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(NotAWorkloadError, match=why):
        estimate_workload(read_sources([Source.from_text("server.log", text)]))


def test_a_log_without_the_pool_and_without_growth_is_refused(
    recordings: dict[str, Recording],
) -> None:
    with pytest.raises(NotAWorkloadError, match="the pool is not known"):
        estimate_workload(sampled_evidence(recordings["chat"], "v1-log", pool=False))


def test_the_command_writes_a_trace_that_opens_as_a_workload(
    recordings: dict[str, Recording], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from analyzer.__main__ import main
    from traces.open import open_workload

    log, out = tmp_path / "server.log", tmp_path / "trace.jsonl"
    log.write_text(v1_log(recordings["eight long decodes"]), encoding="utf-8")

    assert main(["estimate", str(log), "--out", str(out)]) == 0

    assert "8 requests" in capsys.readouterr().out
    assert open_workload(out).table["output_tokens"].to_list() == [9_000] * 8


def test_requests_of_several_sequences_are_refused(recordings: dict[str, Recording]) -> None:
    log = Source.from_text("server.log", v1_log(recordings["chat"]))
    flags = Source.from_text("config.txt", "SamplingParams(n=8, max_tokens=100)\n")

    with pytest.raises(NotAWorkloadError, match="generates 8 sequences"):
        estimate_workload(read_sources([log, flags]))
