"""What is read of the logs of twenty cases: engines, samples, facts, notices, clocks.

Numbers are those of each folder's expected.md, or counted by hand in the log.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from traces.evidence.evidence import Evidence
from traces.evidence.reading import read_evidence

CASES = Path(__file__).parent / "fixtures" / "cases"


def case(start: str, *names: str) -> Evidence:
    (folder,) = CASES.glob(f"{start}-*")
    files = [folder / n for n in names] if names else sorted(folder.iterdir())
    return read_evidence([f for f in files if f.name != "expected.md"])


def column(evidence: Evidence, name: str) -> list[float]:
    assert evidence.telemetry is not None
    return evidence.telemetry.samples[name].to_list()


def facts(evidence: Evidence, *names: str) -> list[object]:
    found = [evidence.fact(n) for n in names]
    return [f.value if f else None for f in found]


@pytest.mark.parametrize(
    ("start", "engine", "family", "samples"),
    [
        ("01", "vllm", "v0-metrics", 12),
        ("02", "vllm", "v0-metrics", 5),
        ("03", "vllm", "v0-llm_engine", 6),
        ("04", "vllm", "v0-llm_engine-patched", 10),
        ("05", "vllm", "v1-engine", 40),
        ("08", "vllm", "v1-apiserver", 7),
        ("10", "vllm", "v1-apiserver", 5),
        ("18", "tensorrt-llm", "triton-inflight-json", 6),
        ("20", "tgi", "tgi-router", 0),
        ("21", "vllm", "v0-metrics", 0),
        ("26", "vllm", "v1-apiserver + rust tracing + lmcache", 3),
        ("30", "vllm", "v1-iteration", 55),
        ("32", "vllm.rs", "rust tracing", 8),
        ("36", "vllm", "v1-engine", 14),
    ],
)
def test_engine_family_and_samples_of_a_case(
    start: str, engine: str, family: str, samples: int
) -> None:
    evidence = case(start)

    assert (evidence.engine, evidence.family) == (engine, family)
    assert (evidence.telemetry.samples.height if evidence.telemetry else 0) == samples


def test_01_counts_by_the_counter_that_a_warning_prints() -> None:
    evidence = case("01")

    assert facts(evidence, "version", "pool_blocks", "host_pool_blocks", "max_model_len") == [
        "0.6.4.post1", 1952, 2048, 20000,
    ]  # fmt: skip
    assert [n.count for n in evidence.all_notices("preemption")] == [1, 51, 101]
    first = evidence.all_notices("preemption")[0]
    assert first.t_s is not None
    assert evidence.clock(first.t_s) == "11-26 14:43:22"
    assert max(column(evidence, "num_swapped")) == 0


def test_02_reads_records_behind_progress_bars_and_the_override() -> None:
    evidence = case("02")

    assert facts(evidence, "pool_blocks", "available_pool_blocks", "host_pool_blocks") == [
        8192, 120841, 7281,
    ]  # fmt: skip
    assert [n.count for n in evidence.all_notices("preemption")] == [1, 101, 151]
    assert facts(evidence, "preemption_mode") == ["swap"]
    assert max(column(evidence, "num_swapped")) == 137
    assert max(column(evidence, "host_usage_frac")) == 0.978
    (fatal,) = evidence.all_notices("fatal")
    assert fatal.values["what"] == "Aborted due to the lack of CPU swap space"


def test_03_leaves_the_silence_a_gap_and_sees_that_somebody_ended_it() -> None:
    evidence = case("03")

    assert column(evidence, "t_s")[-1] == 25.0
    (received,) = evidence.all_notices("request_received")
    assert received.t_s == 25.0 + 324
    assert [n.kind for n in evidence.all_notices("killed")] == ["killed"]


def test_05_splits_records_that_share_a_line() -> None:
    evidence = case("05")

    assert evidence.telemetry is not None
    assert evidence.telemetry.samples["line"].to_list()[:5] == [3, 4, 4, 4, 5]
    assert facts(evidence, "pool_tokens", "max_concurrency", "max_concurrency_tokens") == [
        626192, 4.78, 131072,
    ]  # fmt: skip
    origin = evidence.telemetry.origin(0, "num_running")
    assert origin is not None
    assert "Running: 8 reqs" in evidence.telemetry.text(origin)[0]


def test_08_joins_lines_broken_in_words_and_uses_one_of_two_clocks() -> None:
    evidence = case("08")

    assert evidence.first_time == "2025-10-15T00:04:38Z"
    assert evidence.clock(column(evidence, "t_s")[-1]) == "2025-10-15T00:05:38Z"
    assert column(evidence, "num_waiting") == [9, 18, 40, 47, 58, 66, 77]
    assert column(evidence, "kv_usage_frac")[0] == 0.988
    (refused,) = evidence.all_notices("request_refused")
    assert refused.values["prompt_tokens"] == 41877
    assert refused.values["limit_tokens"] == 32768
    notes = evidence.sources[0].notes
    assert any("7 h behind" in n for n in notes)
    assert any("column 160" in n for n in notes)


def test_10_joins_the_parts_of_a_cri_line() -> None:
    evidence = case("10")

    assert facts(evidence, "pool_tokens", "max_model_len", "tensor_parallel_size") == [
        76640, 262144, 2,
    ]  # fmt: skip
    (aborted,) = evidence.all_notices("request_aborted")
    assert aborted.t_s is not None
    assert evidence.clock(aborted.t_s) == "2026-04-15T09:47:31Z"
    assert column(evidence, "num_running") == [2, 2, 0, 0, 6]


def test_14_counts_an_event_once_that_every_rank_prints() -> None:
    evidence = case("14", "node1.log")

    retracts = evidence.all_notices("retract")
    assert [n.t_s for n in retracts] == [0.0, 12.0, 18.0]
    assert [n.count for n in retracts] == [1, 1, 1]
    assert [n.values["ratio_before"] for n in retracts] == [0.1474, 0.098, 0.1207]
    assert [n.values["copies"] for n in retracts] == [3, 8, 8]


def test_14_reads_the_old_prefill_lines() -> None:
    evidence = case("14", "v0.3-prefill.log")

    assert column(evidence, "num_waiting") == [0, 38, 34, 30, 26, 22, 18]
    assert sum(column(evidence, "context_tokens")) == 2062 + 6 * 8192
    assert evidence.first_time == "16:43:29"


def test_18_reads_triton_statistics() -> None:
    evidence = case("18", "triton.log")

    assert facts(evidence, "pool_blocks", "block_size", "max_num_seqs") == [157, 128, 16]
    assert column(evidence, "used_blocks") == [4, 5, 15, 20, 60, 4]
    assert column(evidence, "num_running") == [1] * 6
    assert column(evidence, "num_waiting") == [0, 1, 1, 3, 8, 8]
    assert evidence.telemetry is not None
    assert evidence.telemetry.state("num_waiting").to_list() == ["inferred"] * 6


def test_20_puts_a_failure_that_is_told_twice_together() -> None:
    evidence = case("20")

    failed = evidence.all_notices("out_of_blocks")
    assert [(n.values["request"], n.values["asked_blocks"], n.values["free_blocks"]) for n in failed] == [
        ("7570", 98, 11),
        ("7571", 107, 4),
    ]  # fmt: skip
    assert failed[1].values["max_tokens"] == 180
    assert facts(evidence, "pool_tokens") == [17440]


def test_21_keeps_processes_apart_and_counts_what_the_collector_left_out() -> None:
    evidence = case("21")

    warned = evidence.all_notices("preemption")
    assert [n.count for n in warned] == [1, 1, 51]
    assert len({n.values["process"] for n in warned}) == 2
    assert [n.count for n in evidence.all_notices("repeated")] == [1]
    assert facts(evidence, "sequences_per_request", "output_tokens") == [8, 32768]


def test_24_reads_start_up_lines_of_both_engines() -> None:
    long = case("24", "v0-max-len-29000.log")
    assert facts(long, "starts", "pool_blocks", "pool_tokens", "max_model_len") == [
        False, 1478, 23648, 29000,
    ]  # fmt: skip
    new = case("24", "v1-suggestion.log")
    assert facts(new, "pool_tokens", "kv_bytes_available", "gpu_memory_utilization") == [
        948224, 57542425088, 0.85,
    ]  # fmt: skip
    assert new.all_notices("suggestion")[0].values["fits_kv_bytes"] == 46421742490


def test_26_reads_three_kinds_of_lines_between_each_other() -> None:
    evidence = case("26")

    assert facts(evidence, "pool_tokens", "pool_blocks", "block_size") == [132752, 8297, 16]
    assert column(evidence, "num_running") == [16, 40, 64]
    (resume,) = evidence.all_notices("resume")
    assert resume.values["computed_tokens"] == 8704
    (connector,) = evidence.all_notices("connector")
    assert (connector.values["total_tokens"], connector.values["hit_tokens"]) == (8891, 8704)


def test_30_reads_one_sample_a_step_and_fills_no_gap() -> None:
    evidence = case("30")

    steps = column(evidence, "step")
    assert (steps[0], steps[-1], len(steps)) == (1, 1591, 55)
    assert evidence.telemetry is not None
    assert evidence.telemetry.meta["sampling"] == "steps"
    by_step = dict(zip(steps, column(evidence, "context_tokens"), strict=True))
    assert (by_step[1550], by_step[1564], by_step[1591]) == (1969, 1943, 1691)


def test_32_infers_the_pools_and_sees_a_swap_each_way() -> None:
    evidence = case("32")

    assert facts(evidence, "block_size", "pool_blocks", "pool_tokens", "host_pool_blocks") == [
        64, 312, 19968, 1567,
    ]  # fmt: skip
    (out,) = evidence.all_notices("swap_out")
    (back,) = evidence.all_notices("swap_in")
    assert (out.values["request"], out.values["blocks"], back.values["blocks"]) == (
        "21",
        14,
        14,
    )
    assert out.t_s is not None
    assert back.t_s is not None
    assert round(back.t_s - out.t_s, 2) == 6.48


def test_36_reads_the_staircase() -> None:
    evidence = case("36")

    levels = sorted(set(column(evidence, "kv_usage_frac")))
    assert levels == [0.219, 0.317, 0.415, 0.513, 0.611, 0.709, 0.807, 0.905]
    assert evidence.clock(column(evidence, "t_s")[-1]) == "08-06 09:39:26"
