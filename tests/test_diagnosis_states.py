"""Invented evidence of vLLM in states that are easily taken for another: stuck, crawling, refused, dying, paged."""

from __future__ import annotations

import json

import pytest

from tests.evidence_texts import diagnosis, scrape, stamp, v0, v0_warning, v1, v1_pool, words


def crash(t: float, *texts: str) -> list[str]:
    return [f"(EngineCore pid=9) ERROR {stamp(t)} [core.py:700] {text}" for text in texts]


@pytest.mark.parametrize("external", [False, True])
def test_requests_that_ran_together_and_wait_before_an_empty_pool_are_a_stuck_scheduler(
    external: bool,
) -> None:
    more = ", External prefix cache hit rate: 4.0%" if external else ""
    lines = [
        v1(0, 24, 0, 71.0, prompt=2100.0, generation=640.0),
        v1(10, 21, 3, 90.5, prompt=900.0, generation=610.0),
        *(v1(20 + 10 * i, 0, 24, 0.0) for i in range(4)),
    ]

    found = diagnosis([line + more for line in lines])

    assert words(found)[0] == "ENGINE_DEADLOCK"
    assert found.facts["waiting_at_stall"] == 24
    assert ("connector" in found.next_step.first.change) == external


def test_a_queue_before_an_empty_pool_that_holds_the_longest_request_is_a_stuck_scheduler() -> (
    None
):
    lines = [v1(0, 1, 0, 4.0, generation=50.0), *(v1(10 + 10 * i, 0, 2, 0.0) for i in range(3))]

    fits = diagnosis(v1_pool(300_000, 65_536), lines)
    unknown = diagnosis(v1_pool(30_000), lines)

    assert words(fits)[0] == "ENGINE_DEADLOCK"
    assert words(unknown)[0] == "OVERSIZE_REQUEST"


def test_a_request_that_has_just_come_is_no_stall() -> None:
    lines = [
        v1(0, 2, 0, 9.0, generation=80.0),
        v1(10, 0, 1, 0.0),
        v1(20, 1, 0, 5.0, prompt=310.0, generation=44.0),
        v1(30, 1, 0, 5.2, generation=46.0),
    ]

    assert words(diagnosis(lines))[0] == "NO_PRESSURE_YET"


@pytest.mark.parametrize(("count", "word"), [(2, "ENGINE_DEADLOCK"), (1, "NO_PRESSURE_YET")])
def test_two_frozen_samples_at_the_end_are_enough_where_they_are_ten_seconds_apart(
    count: int, word: str
) -> None:
    alive = [v1(10 * i, 12, 0, 20.0 + i, generation=400.0) for i in range(4)]
    frozen = [v1(40 + 10 * i, 12, 0, 23.4) for i in range(count)]

    found = diagnosis(alive, frozen)

    assert words(found)[0] == word


def test_requests_that_get_less_than_a_token_a_second_are_not_held_by_the_pool() -> None:
    found = diagnosis([v0(5 * i, 3, 0, 0, 1.5, generation=0.9) for i in range(5)])

    assert words(found)[0] == "NOT_KV"
    assert "0.30 tokens/s" in found.verdict.statement


def test_a_queue_that_came_and_went_does_not_name_the_verdict() -> None:
    lines = [
        v1(0, 9, 20, 8.0, prompt=2500.0, generation=4.0),
        *(v1(10 * i, 29, 0, 12.0 + i, generation=500.0) for i in range(1, 9)),
    ]

    assert words(diagnosis(lines))[0] == "NO_PRESSURE_YET"


@pytest.mark.parametrize(("usage", "running"), [(78.0, 1), (84.0, 2)])
def test_few_long_requests_that_leave_no_room_hold_up_the_head_of_the_queue(
    usage: float, running: int
) -> None:
    lines = [
        v1(10 * i, running, 11, usage + 0.1 * i, generation=6.0 * running) for i in range(4)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "HOL_CAPACITY"
    assert any("limit" in m.what for m in found.missing)


def test_long_prompts_that_are_counted_in_every_second_sample_still_bind() -> None:
    lines = [
        v1(10 * i, 5, 30 + 11 * i, 33.0 + i % 2, prompt=7400.0 * (i % 2), generation=47.0)
        for i in range(8)
    ]

    assert words(diagnosis(lines))[0] == "PREFILL_BOUND"


def test_the_sample_before_prompts_are_counted_says_nothing_of_the_pool() -> None:
    lines = [
        v1(0, 8, 0, 60.0, prompt=6000.0, generation=5.0),
        v1(10, 9, 0, 66.0, generation=6.0),
        v1(20, 9, 0, 71.0, generation=6.5),
        v1(30, 9, 0, 72.0, prompt=5200.0, generation=7.0),
    ]

    found = diagnosis(lines)

    assert found.facts["pool_tokens"] is None


def test_memory_of_the_device_that_ends_an_engine_is_not_the_pool() -> None:
    found = diagnosis(
        [v1(10 * i, 9, 0, 40.0 + i, prompt=9000.0, generation=90.0) for i in range(3)],
        crash(
            24,
            "EngineCore encountered a fatal error.",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.",
        ),
    )

    assert words(found)[0] == "NOT_KV"
    assert "ENGINE_BUG" in found.excluded


def test_a_crash_names_its_cause_and_the_preemption_just_before_it() -> None:
    warning = v0_warning(30, 1).replace("is preempted by", "is preempted in")
    found = diagnosis(
        [v0(5 * i, 20, 0, 0, 90.0 + i, generation=300.0) for i in range(6)],
        warning,
        crash(
            30,
            "Engine background task failed",
            "Traceback (most recent call last):",
            "IndexError: list index out of range",
        ),
    )

    assert words(found)[0] == "ENGINE_BUG"
    assert "IndexError: list index out of range" in found.verdict.statement
    assert "preemption" in found.verdict.statement


def test_the_statistics_of_a_failed_step_are_a_sample() -> None:
    found = diagnosis(
        crash(
            5,
            "Dumping scheduler stats: SchedulerStats(num_running_reqs=31, num_waiting_reqs=7, step_counter=0, kv_cache_usage=0.3125, prefix_cache_stats=PrefixCacheStats(reset=False))",
            "EngineCore encountered a fatal error.",
            "KeyError: 'cmpl-7'",
        )
    )

    assert words(found)[0] == "ENGINE_BUG"
    assert found.facts["samples"] == 1
    assert found.facts["held_share_per_running"] == pytest.approx(0.3125 / 31, abs=1e-4)


@pytest.mark.parametrize(
    ("why", "word"),
    [
        ("exceeds limit of 2048", "NOT_KV"),
        ("exceeds the capacity of block_manager", "OVERSIZE_REQUEST"),
    ],
)
def test_a_refused_prompt_is_too_long_for_a_limit_or_for_the_pool(why: str, word: str) -> None:
    found = diagnosis(
        f"WARNING {stamp(0)} scheduler.py:731] Input prompt (5120 tokens) is too long and {why}"
    )

    assert words(found)[0] == word
    assert "5,120" in found.verdict.statement


def test_the_mean_of_several_ranks_excludes_nothing() -> None:
    lines = [
        v1(10 * i, 300, 90 + 4 * i, 60.0, generation=7000.0).replace(
            "Engine 000", "6 Engines Aggregated"
        )
        for i in range(4)
    ]

    found = diagnosis(lines)

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
    assert "rank" in found.missing[0].what


def test_ranks_that_all_wait_with_room_are_not_unbalanced() -> None:
    lines = [
        v1(10 * i, 32, 9 + i, 40.0 + r, generation=600.0, rank=r)
        for i in range(4)
        for r in range(3)
    ]

    assert words(diagnosis("vllm serve m --max-num-seqs 32", lines))[0] == "SLOT_LIMIT"


def test_requests_on_one_rank_alone_are_unbalanced_though_no_usage_is_known() -> None:
    text = scrape(
        [(0, 30, 9, 0.0, 0, 0.0), (1, 2, 0, 0.0, 0, 0.0), (2, 0, 0, 0.0, 0, 0.0)],
        "2026-03-04 10:00:00",
    )
    known = "\n".join(line for line in text.split("\n") if "usage" not in line)

    found = diagnosis(known)

    assert words(found)[0] == "DP_IMBALANCE"
    assert "%" not in found.verdict.statement


def test_swapped_requests_in_statistics_are_preemptions() -> None:
    lines = [
        v0(5 * i, 20 - i, 6 + i, 30 + 2 * i, 99.0, generation=200.0, host=20.0 + i)
        for i in range(4)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert found.facts["preemptions"]["low"] == 9


def test_blocks_as_large_as_a_state_page_bind_though_there_seems_to_be_room() -> None:
    page = (
        f"INFO {stamp(-60)} [interface.py:931] Setting attention block size to 4096 tokens to ensure that "
        "attention page size is >= mamba page size."
    )
    lines = [v1(10 * i, 2, 5, 61.0, generation=60.0) for i in range(4)]

    found = diagnosis(page, v1_pool(409_600), lines)

    assert words(found)[0] == "HYBRID_OVERHEAD"
    assert found.facts["page_tokens"] == 4096
    assert found.facts["safe_concurrency"] == 3


def test_more_requests_than_state_blocks_do_not_start() -> None:
    found = diagnosis(
        "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (97)."
    )

    assert words(found) == ["HYBRID_OVERHEAD"]
    assert found.next_step.first.numbers == {"max_num_seqs": 97}


def test_a_size_and_a_concurrency_of_different_pools_are_said_to_disagree() -> None:
    lines = v1_pool(150_000, 32_768)
    told = [line.replace(" 4.58x", " 17.25x") for line in lines]

    assert words(diagnosis(lines)) == ["INSUFFICIENT_EVIDENCE"]
    found = diagnosis(told)
    assert words(found) == ["HYBRID_OVERHEAD"]
    assert found.facts["safe_concurrency"] == 17


def test_a_printed_concurrency_alone_gives_the_pool() -> None:
    found = diagnosis(v1_pool(100_000, 20_000)[1:])

    assert found.facts["pool_tokens"] == 100_000
    assert found.facts["pool_kind"] == "inferred"


def test_lines_without_heads_and_times_are_records_of_their_own() -> None:
    lines = [v1(0, 5 + i, i, 10.0 * i, generation=100.0).split(" ", 3)[3] for i in range(6)]
    assert lines[0].startswith("[loggers.py:259] Engine 000")

    assert diagnosis("\n".join(lines)).facts["samples"] == 6


@pytest.mark.parametrize(
    "remark",
    ["after that the GPU utilization is 0 %", "device utilisation 0 % since", "NPU利用率为0%"],
)
def test_a_remark_among_the_lines_tells_that_the_device_is_idle(remark: str) -> None:
    stairs = [
        v1(10 * i, 40, 0, 30.0 + 8.0 * (i // 2), generation=400.0 - 2 * i) for i in range(17)
    ]

    silent = diagnosis("\n".join([*stairs, remark]))
    alone = diagnosis("\n".join(stairs))

    assert words(silent)[0] == "ENGINE_BUG"
    assert words(alone)[0] == "NO_PRESSURE_YET"
    assert any("after the last line" in m.what for m in alone.missing)


def test_a_full_pool_is_not_called_calm() -> None:
    found = diagnosis([v1(10 * i, 9 - i, 0, 97.0 + i, prompt=100.0) for i in range(3)])

    assert "NO_PRESSURE_YET" not in words(found)


def test_a_client_knows_how_long_and_not_why() -> None:
    result = {
        "date": "20260304-100000",
        "backend": "vllm",
        "model_id": "m",
        "num_prompts": 3,
        "request_rate": "inf",
        "duration": 30.0,
        "completed": 3,
        "total_input_tokens": 3000,
        "total_output_tokens": 600,
        "request_throughput": 0.1,
        "output_throughput": 20.0,
        "median_ttft_ms": 9000.0,
        "p99_ttft_ms": 21000.0,
        "median_itl_ms": 20.0,
        "input_lens": [1000, 1000, 1000],
        "output_lens": [200, 200, 200],
        "itls": [[0.02] * 198 + [6.5]] * 3,
    }

    found = diagnosis(json.dumps(result))

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
    assert "9.00 s" in found.verdict.statement
    assert not any("lengths" in m.what for m in found.missing)
    assert any("stood still for 6.50 s" in p.sentence for p in found.proofs)


def test_a_long_prompt_that_starves_those_that_decode_is_seen_without_a_queue() -> None:
    lines = [
        *(v1(10 * i, 5, 0, 30.0 + 0.2 * i, generation=110.0) for i in range(3)),
        *(v1(30 + 10 * i, 6, 0, 32.0 + 3 * i, generation=2.0) for i in range(4)),
        v1(70, 6, 0, 43.0, prompt=7600.0, generation=30.0),
        v1(80, 6, 0, 43.4, generation=130.0),
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "PREFILL_BOUND"
    assert found.facts["pool_tokens"] is None or found.facts["pool_tokens"] > 100_000


def test_deferred_requests_take_slots() -> None:
    lines = [v1(10 * i, 3, 50 + i, 14.0, generation=60.0, deferred=21) for i in range(4)]

    assert words(diagnosis("vllm serve m --max-num-seqs 24", lines))[0] == "SLOT_LIMIT"


def test_a_v0_queue_before_an_empty_pool_is_the_engine() -> None:
    lines = [
        v0(0, 3, 0, 0, 1.0, prompt=90.0, generation=20.0),
        *(v0(5 + 5 * i, 0, 0, 9 + 8 * i, 0.0) for i in range(4)),
    ]

    assert words(diagnosis(lines))[0] == "ENGINE_DEADLOCK"


def test_the_null_block_of_an_override_is_not_handed_out() -> None:
    metrics = scrape([(0, 0, 2, 0.0, 0, 50.0)])

    found = diagnosis(
        f"vllm serve m --num-gpu-blocks-override 21 --block-size 512 --max-model-len 10752\n{metrics}"
    )

    assert words(found)[0] == "OVERSIZE_REQUEST"
    assert found.facts["pool_tokens"] == 20 * 512


def test_an_engine_that_preempted_before_is_not_stopped_by_its_first_preemption() -> None:
    lines = [v0(5 * i, 30, 0, 4, 98.0 + 0.3 * i, generation=300.0) for i in range(5)]
    warned = [v0_warning(6, 1), v0_warning(15, 51)]

    found = diagnosis([*lines[:2], warned[0], *lines[2:4], warned[1], lines[4]], "^C")

    assert words(found)[0] == "CAPACITY_PREEMPTION"


def test_a_stated_prompt_and_an_unknown_pool_leave_a_queue_open() -> None:
    lines = [v1(10 * i, 2, 1, 12.0, prompt=5.0, generation=90.0) for i in range(2)]

    found = diagnosis("vllm serve m\nclient: one prompt of 90,000 tokens", lines)

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
    assert any("pool" in m.what for m in found.missing)


def test_a_table_that_stands_in_a_paste_of_log_lines_is_read_beside_them() -> None:
    table = "max_num_seqs,kv_pool_tokens,running,preemptions\n16,9000,16,0\n64,9000,40,31"
    starts = [
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored "
        "in KV cache (4096). Try increasing `gpu_memory_utilization`",
        f"INFO {stamp(0)} gpu_executor.py:113] # GPU blocks: 256, # CPU blocks: 512",
        f"INFO {stamp(0)} gpu_executor.py:117] Maximum concurrency for 8192 tokens per request: 0.50x",
    ]

    found = diagnosis(starts, table)

    assert words(found) == ["OVERSIZE_REQUEST", "CAPACITY_PREEMPTION"]


def test_a_request_that_came_back_with_room_is_told_and_is_no_pressure() -> None:
    lines = [v1(10 * i, 8, 0, 30.0 + i, prompt=20.0, generation=200.0) for i in range(3)]
    back = f"INFO {stamp(15)} [scheduler.py:495] Preempted request cmpl-4 has been resumed!"

    found = diagnosis(lines, back)

    assert words(found) == ["NO_PRESSURE_YET"]
    assert "came back" in found.verdict.statement
