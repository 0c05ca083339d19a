"""The reported cases that hold no log, and real output of engines: what is read out of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from traces.evidence.evidence import Found
from traces.evidence.files import READERS
from traces.evidence.source import Source

CASES = Path(__file__).parent / "fixtures" / "cases"
SHARED = Path(os.environ.get("KV_REPLAY_SHARED") or Path(__file__).parents[2] / "shared")
SAMPLES = SHARED / "reference" / "telemetry-samples"
ANSWERS = SHARED / "traces" / "prometheus"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="there is no ../shared/reference here")


def read(path: Path) -> Found:
    """By the reader that is most sure, as reading.py does."""
    source = Source.from_path(path)
    reader = max(READERS, key=lambda r: r.sniff(source.head, source.name))
    assert reader.sniff(source.head, source.name) >= 0.5
    return reader.read(source)


def case(number: int, name: str) -> Found:
    (folder,) = CASES.glob(f"{number:02}-*")
    return read(folder / name)


def said(found: Found) -> dict[str, Any]:
    return {f.name: f.value for f in found.facts}


def test_four_ranks_in_three_pasted_snapshots() -> None:
    found = case(12, "metrics-paste.txt")

    by_time: dict[Any, list[Any]] = {}
    for s in found.samples:
        by_time.setdefault(s["t_s"], []).append(s)
    assert list(by_time) == [0.0, 401.0, 521.0]
    assert [[s["num_running"] for s in rows] for rows in by_time.values()] == [
        [8, 8, 8, 8],
        [27, 5, 0, 0],
        [27, 1, 0, 0],
    ]
    assert [s["num_waiting"] for s in by_time[521.0]] == [4, 0, 0, 0]
    busiest = by_time[521.0][0]
    assert busiest["num_preempted"] == 38
    assert busiest["generation_tokens_per_s"] == pytest.approx(97.65)
    assert found.report.family == "prometheus-with-loose-timestamps"


def test_four_ranks_of_sglang() -> None:
    found = case(16, "metrics.prom")

    assert [s["num_running"] for s in found.samples] == [0, 0, 1, 0]
    assert [s["num_waiting"] for s in found.samples] == [0, 0, 11, 0]
    assert [s["preemptions_total"] for s in found.samples] == [1, 2, 57, 0]
    assert found.samples[2]["kv_usage_frac"] == 0.97
    assert {f.value for f in found.facts if f.name == "pool_tokens"} == {412672}


def test_a_step_trace_to_the_wall() -> None:
    found = case(28, "steps.txt")

    assert len(found.samples) == 30
    assert [(n.at.number, n.count) for n in found.notices] == [(15, 1)]
    assert found.samples[13]["step"] == 13
    assert found.samples[13]["recomputed_tokens"] == 1008
    assert found.samples[12]["generation_tokens_total"] == 9
    facts = said(found)
    assert (facts["pool_blocks"], facts["null_blocks"], facts["state_blocks"]) == (68, 1, 5)
    assert (facts["prompt_tokens"], facts["output_tokens"]) == (1000, 24)
    assert sum(s["num_waiting"] for s in found.samples[14:]) == 16


def test_sweeps_of_utilisation_and_of_a_runner() -> None:
    assert case(24, "small-gmu-sweep.csv").sweeps == (
        {
            "gpu_memory_utilization": 0.05,
            "pool_tokens": 2162,
            "max_model_len": 128,
            "clients": 32,
            "preemptions": 24,
        },
        {
            "gpu_memory_utilization": 0.12,
            "pool_tokens": 12463,
            "max_model_len": 128,
            "clients": 32,
            "preemptions": 0,
        },
    )
    (run,) = case(34, "runner-report.csv").sweeps
    assert run["pool_tokens"] == 77088
    assert (run["clients"], run["num_running"], run["num_waiting"]) == (256, 72, 184)
    assert (run["preemptions"], run["num_requests"], run["ttft_p50_s"]) == (480, 5000, 60)


def test_facts_that_a_user_typed() -> None:
    assert said(case(34, "facts.yaml")) == {
        "kv_bytes": 9663676416,
        "max_num_seqs": 32,
        "enable_prefix_caching": True,
        "pool_tokens": 288493,
        "prompt_tokens": (47000, 56000),
        "client_caps": (5, 5),
        "preemptions": (40, 45),
    }


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, {"max_model_len": 20000, "max_num_seqs": 256, "clients": 120, "prompt_tokens": 500, "output_tokens": 1024}),
        (2, {"sequences_per_request": 8, "num_requests": 10000, "prompt_tokens": 330, "log_stats": True}),
        (5, {"max_model_len": 131072, "enable_prefix_caching": False, "version": "0.10.0", "num_requests": 8}),
        (10, {"tensor_parallel_size": 2, "prompt_tokens": 100000}),
        (12, {"data_parallel_size": 4, "max_num_seqs": 256, "clients": 32, "prompt_tokens": 20000}),
        (18, {"policy": "guaranteed_no_evict", "prompt_tokens": 512, "output_tokens": 11776}),
        (36, {"block_size": 128, "clients": 50, "idle_device": True}),
    ],
)  # fmt: skip
def test_what_a_configuration_beside_a_log_says(number: int, expected: dict[str, Any]) -> None:
    facts = said(case(number, "config.txt"))

    assert expected.items() <= facts.items()


@real
@pytest.mark.shared
@pytest.mark.parametrize("name", ["metrics_default.txt", "metrics_default.openmetrics.txt"])
def test_both_text_formats_of_a_real_dump_say_the_same(name: str) -> None:
    found = read(SAMPLES / name)

    (sample,) = found.samples
    assert sample["preemptions_total"] == 23
    assert sample["prompt_tokens_total"] == 25078
    assert sample["prefix_hit_frac"] == pytest.approx(1920 / 25078)
    facts = said(found)
    assert (facts["pool_blocks"], facts["pool_tokens"], facts["max_model_len"]) == (
        479,
        7680,
        4096,
    )
    assert facts["prompt_mean_tokens"] == pytest.approx(25078 / 48)


@real
@pytest.mark.shared
def test_real_statistics_of_two_hundred_steps() -> None:
    found = read(SAMPLES / "scheduler_stats_per_step.jsonl")

    assert len(found.samples) == 200
    last = found.samples[-1]
    assert (last["step"], last["num_running"], last["num_waiting"]) == (199, 13, 5)
    assert (last["resumed_query_tokens"], last["resumed_hit_tokens"]) == (852, 320)
    assert last["t_s"] == 3.1189


@real
@pytest.mark.shared
def test_a_real_result_of_bench_serve_and_real_events() -> None:
    (run,) = read(SAMPLES / "bench_serve_detailed.json").sweeps
    assert (run["num_requests"], run["prompt_mean_tokens"], run["output_mean_tokens"]) == (
        8,
        64,
        12,
    )

    events = read(SAMPLES / "kv_events.jsonl")
    assert said(events) == {"block_size": 16, "enable_prefix_caching": True}
    assert "8 cached blocks were overwritten" in " ".join(events.report.notes)


@pytest.mark.shared
@pytest.mark.skipif(not ANSWERS.is_dir(), reason="there is no ../shared/traces here")
def test_real_answers_of_prometheus() -> None:
    found = read(ANSWERS / "query_range.step15s.json")

    assert len(found.samples) == 10
    assert [s["t_s"] for s in found.samples[:3]] == [0.0, 15.0, 30.0]
    assert found.samples[1]["num_running"] == 24
    assert found.samples[1]["generation_tokens"] == 8799
    assert found.first_time == "2026-11-29T15:31:42Z"
    assert read(ANSWERS / "query_range.rate.json").samples == ()
