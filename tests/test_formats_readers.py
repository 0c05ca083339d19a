"""Each format's reader on a small file of its grammar: every quirk, with typed figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import traces
from traces.description import describe
from traces.workload import Workload

FIXTURES = Path(__file__).parent / "fixtures" / "formats"


def opened(name: str, **how: Any) -> Workload:
    return traces.open_workload(FIXTURES / name, **how)


def rows(workload: Workload, *columns: str) -> list[tuple[Any, ...]]:
    return workload.table.select(columns).rows()


REQUESTS = ("arrival_s", "prompt_tokens", "output_tokens")

# file, format, requests, first_s, span_s, out of order, duplicates, zero outputs, set aside, unit
FIGURES = [
    ("azure-2023.csv", "Azure LLM inference trace", 3, 32400.123456, 3.0, 0, 0, 0, {}, "date and time"),
    ("azure-2024-mixed.csv", "Azure LLM inference trace", 3, 1715472000.0, 2.0, 0, 0, 0, {}, "date and time"),
    ("azure-2025.csv.gz", "Azure multimodal inference trace", 2, 1728993600.25, 1.25, 0, 0, 0, {}, "date and time"),
    ("burstgpt-1.csv", "BurstGPT", 4, 5.0, 7.0, 0, 1, 1, {"failed (no response tokens)": 1}, "s"),
    ("burstgpt-3.csv", "BurstGPT", 3, 19440200.0, 4.0, 0, 1, 1, {"failed (no response tokens)": 1}, "s"),
    ("mooncake-conversation.jsonl", "Mooncake", 5, 0.0, 3.0, 0, 3, 0, {}, "ms"),
    ("mooncake-synthetic.jsonl.zst", "Mooncake", 2, 0.04, 1.1, 0, 0, 0, {}, "ms"),
    ("bailian.jsonl", "Qwen-Bailian", 4, 0.0, 21.0, 0, 0, 0, {}, "s"),
    ("vidur.csv", "Vidur processed trace", 3, 0.0, 4.1, 0, 0, 0, {}, "s"),
    ("splitwise-sim.csv", "splitwise-sim trace", 2, 0.0, 1.5, 0, 0, 0, {}, "s"),
    ("llmservingsim-requests.jsonl", "LLMServingSim", 2, 1700000000.5, 0.75, 0, 0, 0, {}, "s"),
    ("llmservingsim-workload.jsonl", "LLMServingSim", 2, 0.1, 0.250000001, 0, 0, 0, {}, "ns"),
    ("weka-a.json", "Weka session", 3, 0.0, 20.0, 0, 0, 1, {"zero output tokens": 1}, "s"),
    ("tracelab-rounds.jsonl", "TraceLab rounds", 3, 1780290000.5, 3.5, 0, 0, 0, {"no arrival time": 1}, "date and time"),
    ("ragpulse/0_trace.jsonl", "RAGPulse", 3, 10.0, 603997.0, 1, 0, 0, {}, "s"),
    ("swissai.jsonl", "SwissAI serving trace", 2, 1755784802.5, 2.5, 1, 0, 0, {"failed (status ERROR)": 1, "no token counts": 1}, "date and time"),
    ("vllm-bench-appended.json", "vLLM bench serve", 9, 3770.25, 14.0, 0, 0, 3, {"failed": 3}, "s"),
    ("aiperf.jsonl", "aiperf records", 4, 1795964962.000000001, 1.999999999, 1, 0, 0, {"warm-up": 1, "failed": 1, "cancelled": 1}, "ns"),
    ("guidellm.json", "guidellm", 3, 1700000001.5, 2.0, 1, 0, 0, {"failed": 1, "incomplete": 1}, "s"),
    ("inference-perf-requests.json", "inference-perf requests", 3, 55.5, 2.5, 1, 0, 1, {"failed": 1}, "s"),
    ("otlp-vllm.jsonl", "OpenTelemetry spans", 3, 1777142986.122353, 1.0, 1, 0, 0, {"span around another request span": 1}, "ns"),
    ("otel-flat.json", "OpenTelemetry spans", 2, 28800.0, 3.5, 0, 0, 0, {}, "date and time"),
    ("litellm.jsonl", "LiteLLM", 3, 1700000002.5, 1.5, 1, 0, 1, {"failed": 1}, "s"),
    ("litellm-spendlogs.csv", "LiteLLM", 2, 36000.123, 1.877, 0, 0, 1, {"failed": 1}, "date and time"),
    ("multi-round-qa.csv", "multi-round-qa", 3, 1742750800.5, 6.0, 1, 0, 0, {}, "s"),
    ("dynamo.jsonl", "Dynamo request trace", 2, 1760000000.0, 1.5, 0, 0, 0, {}, "ms"),
    ("chutes.parquet", "Chutes metadata", 2, 0.0, 0.025, 0, 0, 0, {"no token counts": 1}, "date and time"),
    ("langfuse.json", "Langfuse observations", 2, 1767607200.125, 5.875, 0, 0, 0, {"failed": 1}, "date and time"),
    ("sagemaker.jsonl", "SageMaker data capture", 2, 1777420805.0, 2.0, 0, 0, 0, {"no token counts": 1}, "date and time"),
    ("lmcache.jsonl", "LMCache agent trace", 3, 1761001120.5, 1.0, 1, 0, 1, {"zero output tokens": 1}, "us"),
    ("aibrix.jsonl", "AIBrix workload", 3, 0.0, 2.5, 0, 1, 0, {}, "ms"),
    ("gateway-us-dates.csv", "generic CSV", 3, 86399.5, 3.0, 0, 0, 1, {"failed": 1}, "date and time"),
    ("openai-log.jsonl", "generic JSON lines", 2, 1700000000.0, 3.0, 0, 0, 0, {}, "s"),
]  # fmt: skip


@pytest.mark.parametrize("expected", FIGURES, ids=[f[0] for f in FIGURES])
def test_a_file_is_described_as_it_lies_there(expected: tuple[Any, ...]) -> None:
    name, form, requests, first, span, inversions, duplicates, zeros, aside, unit = expected

    found = describe(FIXTURES / name)

    assert (found["kind"], found["format"]) == ("workload", form)
    assert found["requests"] == requests
    assert found["first_s"] == pytest.approx(first, abs=1e-6)
    assert found["span_s"] == pytest.approx(span, abs=1e-9)
    assert (found["out_of_order"], found["duplicate_timestamps"]) == (inversions, duplicates)
    assert found["zero_output"] == zeros
    assert found["dropped"] == aside
    assert found["time_unit"] == unit


@pytest.mark.parametrize("name", [f[0] for f in FIGURES])
def test_a_workload_holds_what_the_description_says_can_be_replayed(name: str) -> None:
    found = describe(FIXTURES / name)

    workload = opened(name)

    assert len(workload) == found["replayable"]
    assert dict(workload.report.dropped) == found["dropped"]
    assert workload.report.first_s == found["first_s"]
    assert workload.table["arrival_s"][0] == 0.0
    assert workload.table["arrival_s"].is_sorted()
    assert workload.table["output_tokens"].min() >= 1


def test_azure_2023_has_seven_digits_crlf_and_no_last_line_end() -> None:
    raw = (FIXTURES / "azure-2023.csv").read_bytes()

    workload = opened("azure-2023.csv")

    assert b"\r\n" in raw
    assert not raw.endswith(b"\n")
    assert rows(workload, *REQUESTS) == [(0.0, 100, 10), (0.5, 250, 20), (3.0, 400, 30)]


def test_azure_2024_mixes_fractions_and_none() -> None:
    assert rows(opened("azure-2024-mixed.csv"), "arrival_s") == [(0.0,), (0.25,), (2.0,)]


def test_mooncake_ids_are_blocks_of_512_and_the_coarse_clock_is_noted() -> None:
    workload = opened("mooncake-conversation.jsonl")

    assert workload.prefix_block_tokens == 512
    assert workload.table["prefix_ids"].to_list()[0] == [0, 1, 2]
    assert "ticks about every 3 s" in workload.report.notes[0]


def test_bailian_sessions_follow_the_parents_and_may_begin_outside() -> None:
    workload = opened("bailian.jsonl")

    assert workload.prefix_block_tokens == 16
    assert rows(workload, "request_id", "session_id") == [
        ("3", "3"),
        ("5", "5"),
        ("8", "3"),
        ("9", "777"),
    ]
    assert "1 turns follow a turn that lies before this file" in workload.report.notes[0]


def test_a_weka_subagent_is_replayed_on_the_clock_of_its_session() -> None:
    workload = opened("weka-a.json")

    assert rows(workload, "request_id", *REQUESTS) == [
        ("sess-a-1", 0.0, 130, 10),
        ("sess-a-agent_001-1", 10.0, 70, 3),
        ("sess-a-agent_001-2", 12.5, 140, 4),
        ("sess-a-4", 20.0, 260, 12),
    ]
    found = describe(FIXTURES / "weka-a.json")
    assert found["details"] == {
        "subagents": 1,
        "subagent_requests": 2,
        "streaming": 1,
        "missing_api_time": 1,
    }


def test_weka_sessions_share_no_blocks_and_start_a_chosen_distance_apart() -> None:
    both = traces.open_workload(
        [FIXTURES / "weka-a.json", FIXTURES / "weka-b.json"], stagger_s=30
    )

    ids = dict(zip(both.table["request_id"], both.table["prefix_ids"].to_list(), strict=True))
    assert ids["sess-a-1"] == ids["sess-a-4"][:2]
    assert not set(ids["sess-a-1"]) & set(ids["sess-b-1"])
    assert ids["sess-b-1"] == ids["sess-b-2"]
    assert rows(both, "arrival_s")[-2:] == [(30.0,), (31.0,)]
    assert "2 sessions without absolute times were laid 30 s apart." in both.report.notes


def test_a_tracelab_round_waits_for_the_one_before() -> None:
    workload = opened("tracelab-replay.csv")

    # 800 prompt tokens at 8,000 a second, 10 output tokens of 30 ms, 500 ms of tool: 0.9 s
    assert rows(workload, "request_id", *REQUESTS) == [
        ("0-0", 0.0, 800, 10),
        ("1-0", pytest.approx(0.2), 400, 30),
        ("0-1", pytest.approx(0.9), 890, 20),
    ]
    first, other, second = workload.table["prefix_ids"].to_list()
    assert workload.table["prefix_tokens"].to_list() == [[800], [400], [800, 10, 80]]
    assert second[0] == first[0]
    assert other[0] not in second


def test_tracelab_sessions_without_arrivals_are_laid_apart() -> None:
    workload = opened("tracelab-no-arrivals.csv")

    assert rows(workload, "request_id", "arrival_s")[-1] == ("1-0", 20.0)


def test_ragpulse_segments_have_their_own_lengths() -> None:
    workload = opened("ragpulse/0_trace.jsonl")

    assert workload.prefix_block_tokens is None
    by_session = dict(
        zip(workload.table["session_id"], workload.table.iter_rows(named=True), strict=True)
    )
    assert by_session["1-a"]["prefix_ids"] == [100, 1, 2, 300]
    assert by_session["1-a"]["prefix_tokens"] == [40, 50, 20, 9]
    assert by_session["1-c"]["prefix_ids"] == [
        100
    ]  # passage 999 is in no map: the prefix ends there
    assert any("folded onto one week" in n for n in workload.report.notes)


def test_ragpulse_without_its_maps_has_no_prefixes_and_says_so(tmp_path: Path) -> None:
    alone = tmp_path / "upload"
    alone.write_bytes((FIXTURES / "ragpulse/0_trace.jsonl").read_bytes())

    workload = traces.open_workload(alone, name="0_trace.jsonl")

    assert workload.name == "0_trace.jsonl"
    assert workload.table["prefix_ids"].list.len().sum() == 0
    assert any("do not lie beside it" in n for n in workload.report.notes)


def test_appended_vllm_runs_follow_each_other_even_when_the_clock_began_anew() -> None:
    workload = opened("vllm-bench-appended.json")

    arrivals = [
        0.0,
        1.5,
        10.0,
        11.5,
        12.5,
        14.0,
    ]  # the third run is laid behind the second's 2.5 s
    assert workload.table["arrival_s"].to_list() == arrivals
    assert workload.report.notes[1] == "The file holds 3 runs, replayed one after another."


def test_an_engine_span_inside_a_gateway_span_is_replayed_once() -> None:
    workload = opened("otlp-vllm.jsonl")

    assert rows(workload, "request_id", *REQUESTS) == [("r0", 0.0, 40, 5), ("r1", 1.0, 42, 6)]


def test_base64_span_ids_are_matched_like_hex() -> None:
    assert rows(opened("otlp-base64.json"), "request_id") == [("r1",)]


def test_dynamo_hashes_keep_all_64_bits() -> None:
    workload = opened("dynamo.jsonl")

    assert workload.prefix_block_tokens == 64
    assert workload.table["prefix_ids"].to_list() == [
        [14879255164371896291, 274632075616497421],
        [14879255164371896291, 9007199254740993],
    ]


def test_lmcache_counts_are_estimated_from_characters_and_marked() -> None:
    workload = opened("lmcache.jsonl")

    assert workload.estimated
    assert rows(workload, *REQUESTS) == [
        (0.0, 17, 1),
        (0.5, 18, 2),
    ]  # 68, 70 and 3, 8 characters
    first, second = workload.table["prefix_ids"].to_list()
    assert first == second  # the first 64 characters are the same
    assert "estimated from the texts" in workload.report.notes[0]


def test_lmcache_sessions_follow_their_gaps_at_a_nominal_pace() -> None:
    workload = opened("lmcache-sessions.jsonl", stagger_s=30)

    # 20 prompt tokens at 8,000 a second, 100 output tokens of 30 ms, then a gap of 2 s
    assert rows(workload, "session_id", *REQUESTS) == [
        ("s1", 0.0, 20, 100),
        ("s1", pytest.approx(5.0025), 40, 50),
        ("s2", 30.0, 10, 10),
    ]
    assert workload.estimated
    assert "2 sessions without absolute times were laid 30 s apart" in workload.report.notes[1]


def test_a_subagent_may_have_subagents(tmp_path: Path) -> None:
    def asked(t: float, out: int) -> dict[str, Any]:
        return {"t": t, "type": "n", "in": 64, "out": out, "hash_ids": [1]}

    inner = {"t": 2.0, "type": "subagent", "agent_id": "b", "requests": [asked(0.5, 3)]}
    outer = {"t": 10.0, "type": "subagent", "agent_id": "a", "requests": [asked(0.0, 2), inner]}
    path = tmp_path / "s.json"
    path.write_text(
        json.dumps({"id": "s", "block_size": 64, "requests": [asked(0.0, 1), outer]})
    )

    assert rows(traces.open_workload(path), "request_id", "arrival_s", "output_tokens") == [
        ("s-1", 0.0, 1),
        ("s-a-1", 10.0, 2),
        ("s-a-b-1", 12.5, 3),
    ]
    assert describe(path)["requests"] == 1


def test_langfuse_counts_cached_input_too() -> None:
    assert rows(opened("langfuse.json"), *REQUESTS) == [(0.0, 812, 143), (5.875, 20, 4)]


def test_litellm_falls_back_to_the_trace_where_there_is_no_session() -> None:
    assert rows(opened("litellm.jsonl"), "request_id", "session_id") == [
        ("a", "s1"),
        ("b", "tr-b"),
    ]


def test_multi_round_qa_floats_become_counts_and_completion_order_is_sorted() -> None:
    assert rows(opened("multi-round-qa.csv"), *REQUESTS, "session_id") == [
        (0.0, 2107, 100, "3"),
        (1.0, 2107, 100, "2"),
        (6.0, 2300, 87, "2"),
    ]
