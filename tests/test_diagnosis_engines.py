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
