"""Invented evidence of engines other than vLLM, of clients and of dashboards: words, pools and honest gaps."""

from __future__ import annotations

import json

import pytest

from analyzer.diagnosis import Diagnosis, diagnose
from tests.evidence_texts import diagnosis, sglang, words
from traces.evidence.reading import read_sources
from traces.evidence.source import Source


def of_text(text: str, name: str = "paste", **more: str) -> Diagnosis:
    """The diagnosis of one text, and of others beside it by their names."""
    sources = [Source.from_text(name, text)]
    sources += [Source.from_text(n.replace("__", "."), t) for n, t in more.items()]
    return diagnose(read_sources(sources))


def prefill(second: int, running: int, queue: int, usage: float, new: int = 8192) -> str:
    return (
        f"[2026-03-04 10:00:{second:02} TP0] Prefill batch. #new-seq: 4, #new-token: {new}, #cached-token: 0, "
        f"token usage: {usage:.2f}, #running-req: {running}, #queue-req: {queue}"
    )


def decode(second: int, fields: str, queue: int, rank: str = "TP0") -> str:
    return (
        f"[2026-03-04 10:00:{second:02} {rank}] Decode batch, {fields}, cuda graph: True, "
        f"gen throughput (token/s): 412.00, #queue-req: {queue}"
    )


def test_prompts_that_are_admitted_batch_by_batch_are_prefill_and_no_reservation() -> None:
    lines = [prefill(i, 4 * i, 90 - 4 * i, 0.04 * i) for i in range(8)]

    found = diagnosis(lines)

    assert words(found)[0] == "PREFILL_BOUND"
    assert "RESERVATION_BLOCKED" not in words(found)


def test_a_pool_that_fills_while_others_wait_is_a_queue_and_no_reservation() -> None:
    lines = [prefill(i, 4 * i, 40 - 4 * i, 0.15 * i) for i in range(6)]
    lines += [sglang(8 + 2 * i, 25, 17, 0.93 + 0.02 * i, 500.0) for i in range(3)]

    found = diagnosis(lines)

    assert words(found)[0] == "CAPACITY_QUEUE"


def test_a_batch_that_is_refilled_to_one_number_is_at_its_slots() -> None:
    lines = [sglang(2 * i, 100, 40 + i, 0.33, 900.0) for i in range(3)]
    lines.append(prefill(7, 96, 40, 0.33, new=400))
    lines += [sglang(8 + 2 * i, 100, 40 + i, 0.33, 900.0) for i in range(2)]

    found = diagnosis(lines)

    assert words(found)[0] == "SLOT_LIMIT"


def test_a_batch_that_stands_still_at_an_odd_number_is_not_said_to_be_at_its_slots() -> None:
    lines = [sglang(2 * i, 387, 600, 0.20 + 0.01 * i, 8000.0) for i in range(4)]

    found = diagnosis(lines)

    assert words(found)[0] == "RESERVATION_BLOCKED"


@pytest.mark.parametrize(("window", "full"), [(48_000, 210_000), (9_600, 81_920)])
def test_a_full_window_pool_is_sized_apart_from_the_pool_of_tokens(
    window: int, full: int
) -> None:
    lines = [
        decode(
            i,
            f"#running-req: 16, #full token: {int(0.4 * full)}, full token usage: 0.40, "
            f"#swa token: {int(0.97 * window)}, swa token usage: 0.97",
            30,
        )
        for i in range(3)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "HYBRID_OVERHEAD"
    assert found.facts["pool_tokens"] == pytest.approx(full, rel=0.02)
    assert found.facts["binding_pool_size"] == pytest.approx(window, rel=0.01)


def test_a_limit_that_state_slots_lowered_is_told_from_the_token_pool() -> None:
    lines = [
        "[2026-03-04 09:59:00 TP0] max_running_requests is capped to 6 by the mamba state cache (max_mamba_cache_size=24, 4 state slots per request).",
        *(
            decode(
                i,
                "#running-req: 6, #full token: 30000, full token usage: 0.30, mamba num: 18, mamba usage: 0.75",
                5,
            )
            for i in range(3)
        ),
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "HYBRID_OVERHEAD"
    assert found.facts["state_slots"] == 24


def test_a_decode_server_counts_those_before_its_pool_as_waiting() -> None:
    lines = [
        decode(
            4,
            f"#running-req: 1, #token: {int(u * 1e5)}, token usage: {u:.2f}, #prealloc-req: {p}, #transfer-req: 0",
            0,
            rank=f"DP{r} TP{r}",
        )
        for r, (u, p) in enumerate([(0.95, 18), (0.1, 0), (0.2, 0), (0.15, 0)])
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "DP_IMBALANCE"
    assert "18 waiting" in found.verdicts[0].statement


def test_a_lone_request_without_room_is_oversize_and_no_engine_fault() -> None:
    lines = [
        sglang(0, 1, 0, 0.97, 40.0),
        sglang(4, 1, 0, 0.99, 40.0),
        "[2026-03-04 10:00:06 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        "AssertionError: No space left for only one request, self.token_to_kv_pool_allocator.available_size()=0",
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "OVERSIZE_REQUEST"


def test_a_stated_pool_that_usage_contradicts_is_said() -> None:
    lines = [
        "[2026-03-04 09:59:00 TP0] max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072",
        *(sglang(2 * i, 60, 40, 0.98, 900.0) for i in range(3)),
    ]

    found = diagnosis(lines)

    assert any(n.startswith("Sources disagree on the pool: used tokens") for n in found.notes)


def iteration(i: int, used: int, allocated: int, pool: int, queued: int) -> dict[str, object]:
    return {
        "iter": i,
        "iterLatencyMS": 900.0,
        "numActiveRequests": 1 + i,
        "numQueuedRequests": queued,
        "kvCacheStats": {
            "maxNumBlocks": pool,
            "freeNumBlocks": pool - used,
            "usedNumBlocks": used,
            "allocTotalBlocks": allocated,
            "tokensPerBlock": 32,
        },
        "inflightBatchingStats": {
            "numScheduledRequests": 1 + i,
            "numContextRequests": 1,
            "numGenRequests": i,
            "numPausedRequests": 0,
            "numCtxTokens": 6400,
        },
    }


@pytest.mark.parametrize("host", [3000, 640])
def test_host_blocks_are_taken_out_of_pool_and_used_blocks(host: int) -> None:
    steps = [
        iteration(i, host + 200 * (i + 1), 200 * (i + 1), host + 2000, 9 - i) for i in range(3)
    ]

    found = of_text(json.dumps(steps), "stats.json")

    assert found.facts["pool_blocks"] == 2000
    assert found.facts["pool_tokens"] == 64_000
    assert words(found)[0] == "PREFILL_BOUND"


def test_a_queue_that_does_not_fit_beside_the_one_that_runs_is_not_called_room() -> None:
    steps = [
        {
            **iteration(500 + i, 31, 4000, 40, 6),
            "inflightBatchingStats": {
                "numScheduledRequests": 1,
                "numContextRequests": 0,
                "numGenRequests": 1,
                "numPausedRequests": 0,
                "numCtxTokens": 0,
            },
            "numActiveRequests": 1,
        }
        for i in range(3)
    ]

    found = of_text(json.dumps(steps), "stats.json")

    assert words(found)[0] == "RESERVATION_BLOCKED"


def test_a_budget_that_is_set_aside_blocks_a_router_though_usage_is_unknown() -> None:
    metrics = (
        "tgi_batch_current_size 10\ntgi_queue_size 33\ntgi_batch_current_max_tokens 19500\n"
    )

    found = of_text(
        metrics,
        "metrics.txt",
        flags__txt="text-generation-launcher --model-id m --max-batch-total-tokens 20000\n",
    )

    assert words(found)[0] == "RESERVATION_BLOCKED"
    assert found.facts["reserved_tokens_per_request"] == 1950


def test_two_models_of_one_server_are_no_ranks_that_could_share() -> None:
    lines = [
        f'vllm:{name}{{engine="0",model_name="{model}"}} {value}'
        for model, values in (("a", (2, 0, 0.02)), ("b", (40, 31, 0.998)))
        for name, value in zip(
            ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
            values,
            strict=True,
        )
    ]

    found = of_text("\n".join(lines) + "\n", "metrics.txt")

    assert words(found)[0] == "CAPACITY_QUEUE"


def test_names_that_were_copied_without_their_engine_are_read() -> None:
    found = of_text(
        "num_requests_running 40\nnum_requests_waiting 30\nkv_cache_usage_perc 0.997\n"
    )

    assert words(found)[0] == "CAPACITY_QUEUE"


PRINTED = """
============ Serving Benchmark Result ============
Successful requests:                     400
Maximum request concurrency:             128
Benchmark duration (s):                  250.10
Total input tokens:                      600000
Total generated tokens:                  200000
Request throughput (req/s):              1.60
Output token throughput (tok/s):         799.70
---------------Time to First Token----------------
Mean TTFT (ms):                          31000.00
Median TTFT (ms):                        33000.00
---------------Inter-token Latency----------------
Mean ITL (ms):                           40.00
Median ITL (ms):                         38.00
"""


def test_a_printed_load_test_alone_carries_no_verdict() -> None:
    found = of_text(PRINTED)

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]


def test_a_printed_load_test_before_a_stated_pool_shows_what_was_sent_over_what_fits() -> None:
    pool = "INFO 03-04 09:00:00 [kv_cache_utils.py:1087] GPU KV cache size: 40,000 tokens\n"

    found = of_text(PRINTED, "bench.txt", server__log=pool)

    assert words(found)[0] == "CAPACITY_QUEUE"
    assert found.facts["safe_concurrency"] == 20


def test_commas_semicolons_and_words_the_other_way_round_are_read() -> None:
    text = "sep=;\nTime;Requests Running;Requests Waiting;GPU Cache Usage (%)\n" + "".join(
        f"2026-03-04 10:00:{15 * i:02};12;{4 + i};9{8 + i // 2},{i + 2}\n" for i in range(3)
    )

    found = of_text(text, "panel.csv")

    assert words(found)[0] == "CAPACITY_QUEUE"
    assert found.facts["samples"] == 3


def test_a_panel_of_usage_alone_asks_for_the_queue() -> None:
    text = '"Time","KV Cache Utilization"\n"2026-03-04 10:00:00","97.1%"\n"2026-03-04 10:00:15","99.6%"\n'

    found = of_text(text, "panel.csv")

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
    assert found.facts["samples"] == 2


@pytest.mark.parametrize(
    ("line", "software"),
    [
        ("slot update_slots: id  0 | task 9 | new prompt, n_ctx_slot = 4096", "llama.cpp"),
        ("[TM][INFO] [BlockManager] max_block_count = 512", "LMDeploy"),
        ('time=2026-03-04T10:00:00Z level=INFO source=server.go:135 msg="starting"', "Ollama"),
    ],
)
def test_other_software_is_named(line: str, software: str) -> None:
    found = of_text(f"{line}\n{line}\n{line}\n", "server.log")

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
    assert software in found.verdicts[0].statement


def test_logs_of_two_engines_are_judged_one_by_one() -> None:
    calm = "".join(
        f"INFO 03-04 10:00:{10 * i:02} [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: 90.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.0%, Prefix cache hit rate: 0.0%\n"
        for i in range(3)
    )
    full = "".join(sglang(10 * i, 50, 30, 0.98, 900.0) + "\n" for i in range(3))

    found = of_text(calm, "a.log", b__log=full)

    assert words(found) == ["CAPACITY_QUEUE", "NO_PRESSURE_YET"]
    assert found.verdicts[0].statement.startswith("b.log")


def test_a_queue_before_a_full_pool_is_told_without_running() -> None:
    text = "Time,vllm:kv_cache_usage_perc,vllm:num_requests_waiting\n" + "".join(
        f"{1767261600000 + 15000 * i},0.99{i},{10 + i}\n" for i in range(3)
    )

    found = of_text(text, "panel.csv")

    assert words(found)[0] == "CAPACITY_QUEUE"


def test_a_list_of_ranks_as_pairs_is_a_snapshot() -> None:
    lines = ["engine 192.0.2.7"] + [
        f"  dp_rank={r}  num_running_reqs={n}  num_queue_reqs={w}"
        for r, (n, w) in enumerate([(0, 0), (2, 14), (0, 0), (0, 0)])
    ]

    found = of_text("\n".join(lines) + "\n")

    assert words(found)[0] == "DP_IMBALANCE"
    assert found.facts["busiest_rank"] == 1


NO_EVICT = """
[TensorRT-LLM][INFO] TRTGptModel maxNumSequences: 32
[TensorRT-LLM][INFO] Capacity Scheduler Policy: {policy}
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 300
[TensorRT-LLM][INFO] Number of tokens per block: 64.
"""


def test_what_a_policy_sets_aside_is_told_before_anything_ran() -> None:
    found = of_text(
        NO_EVICT.format(policy="GUARANTEED_NO_EVICT"),
        "server.log",
        notes__txt="6 concurrent; 400 prompt tokens, max_tokens 8000\n",
    )

    assert words(found)[0] == "RESERVATION_BLOCKED"
    assert found.facts["reserved_blocks_per_request"] == 132
    assert found.facts["no_evict_concurrency"] == 2


def test_a_policy_that_admits_by_use_is_not_said_to_reserve() -> None:
    steps = [
        {
            **iteration(500 + i, 30, 4000, 200, 6),
            "inflightBatchingStats": {
                "numScheduledRequests": 2,
                "numContextRequests": 0,
                "numGenRequests": 2,
                "numPausedRequests": 0,
                "numCtxTokens": 0,
            },
            "numActiveRequests": 2,
        }
        for i in range(3)
    ]

    reserving = of_text(json.dumps(steps), "stats.json")
    using = of_text(
        json.dumps(steps), "stats.json", c__txt="batch_scheduler_policy: max_utilization\n"
    )

    assert words(reserving)[0] == "RESERVATION_BLOCKED"
    assert "RESERVATION_BLOCKED" not in words(using)


def test_pauses_of_generation_are_preemptions() -> None:
    lines = [
        f"[TensorRT-LLM][WARNING] Pause generation only request ,request_id :{n} , change it as context init state, which may degrade performance"
        for n in (7, 9, 12)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert found.facts["preemptions"]["value"] == 3


@pytest.mark.parametrize(
    ("asked", "word"), [(90_000, "CAPACITY_QUEUE"), (300_000, "OVERSIZE_REQUEST")]
)
def test_a_refusal_for_room_is_told_from_a_request_that_never_fits(
    asked: int, word: str
) -> None:
    lines = [
        "2026-03-04T10:00:00.1Z  INFO vllm_rs::core::scheduler: GPU Kvcache: 1000 blocks (64000 tokens) free, used 60.0% (6.00GB/10.00GB); CPU swap used 0.0% (0.00GB/4.00GB)",
        f"2026-03-04T10:00:01.1Z ERROR vllm_rs::server: Stream generation failed: Remaining 64000 kvcache tokens, but your prompt requires {asked} new tokens, please request later!",
    ]

    found = diagnosis(lines)

    assert words(found)[0] == word


def test_settings_of_a_model_repository_are_read() -> None:
    text = """
parameters: {
  key: "batch_scheduler_policy"
  value: {
    string_value: "guaranteed_no_evict"
  }
}
parameters: {
  key: "max_tokens_in_paged_kv_cache"
  value: { string_value: "5120" }
}
"""

    found = of_text(text, "config.pbtxt")

    assert found.facts["pool_tokens"] == 5120


def test_a_router_that_is_overloaded_says_nothing_of_lengths() -> None:
    line = "2026-03-04T10:00:00.100000Z ERROR text_generation_router::infer: router/src/infer.rs:100: Model is overloaded"

    found = diagnosis([line, line.replace("00.1", "01.1")])

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
