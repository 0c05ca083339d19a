"""Invented evidence, made from parameters: what each kind of sign means, whatever its numbers, engine or prefix."""

from __future__ import annotations

import pytest

from tests.evidence_texts import (
    diagnosis,
    scrape,
    sglang,
    stamp,
    triton,
    v0,
    v0_pool,
    v0_warning,
    v1,
    v1_pool,
    words,
)


@pytest.mark.parametrize(
    ("limit", "usage", "prefix"),
    [
        (64, 41.0, ""),
        (128, 72.5, "(APIServer pid=7) "),
        (256, 12.0, "2026-03-04T10:00:00.123456789Z stdout F (APIServer pid=7) "),
        (16, 55.0, "Mar  4 10:00:00 node7 vllm[812]: "),
    ],
)
def test_running_at_its_stated_limit_with_room_is_a_slot_limit(
    limit: int, usage: float, prefix: str
) -> None:
    lines = [
        v1(10 * i, limit, 40 + i, usage + i % 3, generation=30.0 * limit, prefix=prefix)
        for i in range(8)
    ]

    found = diagnosis(f"vllm serve /models/a --max-num-seqs {limit}", *v1_pool(400_000), lines)

    assert words(found)[0] == "SLOT_LIMIT"
    assert found.facts["slot_limit"] == limit
    assert "CAPACITY_QUEUE" in found.excluded


@pytest.mark.parametrize("running", [37, 48, 256])
def test_running_that_never_moves_with_a_queue_is_a_slot_limit_though_no_flag_says_so(
    running: int,
) -> None:
    lines = [
        v1(10 * i, running, 12 + 3 * i, 50.0 + 0.3 * i, prompt=80.0, generation=900.0)
        for i in range(6)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "SLOT_LIMIT"
    assert [m.what for m in found.missing] == ["the limit"]


@pytest.mark.parametrize(
    ("prompt", "generation", "usage"),
    [(9000.0, 120.0, 32.0), (41000.0, 800.0, 61.0), (2600.0, 40.0, 8.0)],
)
def test_a_queue_behind_steady_prompt_compute_with_room_is_prefill_bound(
    prompt: float, generation: float, usage: float
) -> None:
    lines = [
        v1(
            10 * i,
            21 + (i * 7) % 5,
            5 + 18 * i,
            usage + i % 4,
            prompt=prompt * (1 + 0.04 * (i % 3)),
            generation=generation,
        )
        for i in range(8)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "PREFILL_BOUND"
    assert any(
        "queue grows by 1.80" in p.sentence or "1.80 a second" in found.verdict.statement
        for p in found.proofs
    )
    assert any("gpu_memory_utilization" in text for text in found.next_step.useless)


@pytest.mark.parametrize(("usage", "first"), [(62.0, 19), (78.0, 9), (45.0, 31)])
def test_nobody_admitted_with_room_and_a_queue_is_a_blocked_head(
    usage: float, first: int
) -> None:
    lines = [
        v1(10 * i, first - i, 6 + 2 * i, usage - i, generation=20.0 * (first - i))
        for i in range(6)
    ]

    found = diagnosis(*v1_pool(200_000), lines)

    assert words(found)[0] == "HOL_CAPACITY"
    assert found.facts["would_fit_behind_head"] > 0


@pytest.mark.parametrize(
    ("tokens", "running", "rate"), [(100_000, 4, 160.0), (1_200_000, 12, 420.0)]
)
def test_a_collapse_at_the_wall_with_growing_usage_and_the_same_running_is_thrash(
    tokens: int, running: int, rate: float
) -> None:
    per_interval = 100 * rate * 10 / tokens
    up = [
        v1(10 * i, running, 0, 99.6 - (9 - i) * per_interval, generation=rate)
        for i in range(10)
    ]
    share = 100 / running
    after = []
    usage = 100 - share * 0.9
    for i in range(10, 26):
        after.append(v1(10 * i, running, 0, usage, generation=rate / 15))
        usage += share * 0.21
        if usage > 99.8:
            usage -= share * 0.95

    found = diagnosis(*v1_pool(tokens, tokens // 4), up, after)

    assert words(found)[0] == "THRASH_PREFILL_READMIT"
    assert found.facts["preemptions"]["kind"] == "inferred"
    assert found.facts["preemptions_min"] >= 2
    assert abs(found.facts["pool_tokens_estimated_from_slope"][0] / tokens - 1) < 0.1


@pytest.mark.parametrize(
    "prefix",
    ["", "\x1b[1;36m(APIServer pid=3)\x1b[0;0m ", "(RayWorkerWrapper pid=44, ip=192.0.2.9) "],
)
def test_a_full_pool_with_a_queue_and_no_counter_is_a_queue_with_unknown_preemptions(
    prefix: str,
) -> None:
    running = [50, 49, 50, 48, 49, 50, 49]
    lines = [
        v1(
            10 * i,
            r,
            20 + 9 * i,
            99.1 - (i % 3) * 0.6,
            prompt=110.0 * (i % 2),
            generation=1200.0,
            prefix=prefix,
        )
        for i, r in enumerate(running)
    ]

    found = diagnosis(lines)

    assert words(found) == ["CAPACITY_QUEUE"]
    assert found.facts["preemptions"]["kind"] == "unknown"
    assert found.facts["preemptions"]["value"] is None
    assert any("num_preemptions_total" in m.settle for m in found.missing)


@pytest.mark.parametrize(("usage", "running"), [(97.3, 18), (41.0, 7)])
def test_frozen_running_usage_and_throughput_is_a_deadlock_at_any_usage(
    usage: float, running: int
) -> None:
    alive = [
        v1(10 * i, running, 3, usage - 2 + i, generation=400.0, prompt=50.0) for i in range(3)
    ]
    frozen = [v1(30 + 10 * i, running, 4 + i, usage) for i in range(5)]

    found = diagnosis(alive, frozen)

    assert words(found) == ["ENGINE_DEADLOCK"]
    assert found.facts["stalled_samples"] == 5
    assert found.facts["pending_during_stall"] == [4, 8]
    assert not any(
        "gpu_memory_utilization" in s.change
        for s in (found.next_step.first, *found.next_step.alternatives)
    )


def test_scrapes_whose_counters_stand_while_requests_run_are_a_deadlock() -> None:
    text = "\n".join(
        scrape([(0, 14, 3 + i, 0.883, 2, 91_000.0)], f"2026-03-04 10:0{i}:00") for i in range(4)
    )

    found = diagnosis(text)

    assert words(found)[0] == "ENGINE_DEADLOCK"


@pytest.mark.parametrize(("pool", "asked"), [(50_000, 64_000), (9_600, 16_384)])
def test_a_queue_before_an_empty_pool_is_a_request_that_never_fits(
    pool: int, asked: int
) -> None:
    lines = [
        v1(0, 3, 0, 22.0, generation=90.0),
        v1(10, 0, 1, 0.0),
        v1(20, 0, 3, 0.0),
    ]
    note = f"a client sent one prompt of {asked:,} tokens"

    found = diagnosis(
        f"vllm serve /models/a --max-model-len {2 * asked}", note, *v1_pool(pool), lines
    )

    assert words(found)[0] == "OVERSIZE_REQUEST"
    if found.facts.get("request_total_tokens"):
        assert found.facts["shortfall_tokens"] == asked - pool


def test_a_queue_before_an_empty_pool_of_unknown_size_asks_for_pool_and_length() -> None:
    lines = [v1(10 * i, 0, 2 + i, 0.0) for i in range(4)]

    found = diagnosis(lines)

    assert words(found)[0] == "OVERSIZE_REQUEST"
    assert {m.what for m in found.missing} == {
        "the size of the pool",
        "the length of the request at the head",
    }


@pytest.mark.parametrize(("last", "total", "low"), [(51, 2, 51), (201, 3, 201)])
def test_the_counter_of_v0_gives_a_range_of_fifty(last: int, total: int, low: int) -> None:
    warnings = [
        v0_warning(20 + 90 * i, 1 + (last - 1) * i // (total - 1)) for i in range(total)
    ]
    counted = [w for w in warnings if (int(w.rsplit("=", 1)[1]) - 1) % 50 == 0]
    lines = [v0(5 * i, 30, 0, 12, 98.9, prompt=90.0, generation=400.0) for i in range(10)]

    found = diagnosis(*v0_pool(3000), lines, counted)

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert (found.facts["preemptions_min"], found.facts["preemptions_max"]) == (low, low + 49)
    assert found.facts["preemptions"]["kind"] == "known"


def test_v0_with_start_up_lines_and_no_warning_preempted_nobody() -> None:
    lines = [v0(5 * i, 30, 0, 0, 60.0 + i, generation=400.0) for i in range(6)]

    found = diagnosis(*v0_pool(3000), lines)

    assert found.facts["preemptions"] == {
        **found.facts["preemptions"],
        "value": 0,
        "kind": "known",
    }
    assert "CAPACITY_PREEMPTION" in found.excluded


def test_a_host_pool_that_fills_is_a_swap_stall() -> None:
    lines = [
        v0(5 * i, 20, 30 + 12 * i, 400, 99.0, generation=800.0, host=40.0 + 14 * i)
        for i in range(5)
    ]

    found = diagnosis(*v0_pool(4000, 1000), lines, v0_warning(3, 1, "SWAP"))

    assert words(found)[0] == "SWAP_STALL"
    assert found.facts["swapped_max"] == 78
    assert any("postpones" in text for text in found.next_step.useless)


def test_one_swapped_request_that_comes_back_is_low_capacity_pressure() -> None:
    swapped = [0, 1, 1, 0, 0]
    lines = [
        v0(5 * i, 9, s, 0, 97.0, generation=300.0, host=float(s)) for i, s in enumerate(swapped)
    ]

    found = diagnosis(*v0_pool(900), lines, v0_warning(4, 1, "SWAP"))

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert "SWAP_STALL" not in words(found)


@pytest.mark.parametrize("running", [12, 45])
def test_silence_with_an_idle_device_at_the_wall_is_an_engine_fault(running: int) -> None:
    rate = 30.0 * running
    lines = [v1(10 * i, running, 0, 99.3 - (7 - i) * 1.1, generation=rate) for i in range(8)]

    found = diagnosis(lines, notes="device utilisation 0 % after the last line")

    assert words(found)[0] == "ENGINE_BUG"
    assert found.facts["trigger"] == "CAPACITY_PREEMPTION"


@pytest.mark.parametrize(("ranks", "copies"), [(1, 1), (4, 4), (8, 8)])
def test_retractions_of_sglang_are_counted_once_whatever_the_number_of_ranks(
    ranks: int, copies: int
) -> None:
    events = [
        f"[2026-03-04 10:00:{second:02} TP{rank}] KV cache pool is full. Retract requests. #retracted_reqs: {count}, #new_token_ratio: {ratio:.4f} -> {ratio + 0.1:.4f}"
        for second, count, ratio in ((5, 2, 0.31), (25, 1, 0.22), (45, 4, 0.18))
        for rank in range(ranks)
    ]
    lines = [sglang(10 * i, 60, 9, 0.97, 2100.0) for i in range(6)]

    found = diagnosis(lines, events)

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert found.facts["preemptions"]["value"] == 7
    assert found.facts["retract_events"] == 3


@pytest.mark.parametrize(("usage", "queue"), [(0.35, 120), (0.58, 40)])
def test_sglang_with_room_and_a_queue_and_a_moving_batch_reserves(
    usage: float, queue: int
) -> None:
    running = [31, 33, 30, 32, 31, 34]
    lines = [
        sglang(10 * i, r, queue + i, usage + 0.01 * (i % 2), 900.0)
        for i, r in enumerate(running)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "RESERVATION_BLOCKED"


def test_sglang_at_its_running_limit_is_a_slot_limit() -> None:
    args = "[2026-03-04 09:59:00 TP0] max_total_num_tokens=412672, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=131072, available_gpu_mem=4.22 GB"
    lines = [sglang(10 * i, 48, 20 + i, 0.44, 1400.0) for i in range(5)]

    found = diagnosis(args, lines)

    assert words(found)[0] == "SLOT_LIMIT"
    assert "--max-running-requests" in found.next_step.first.change


@pytest.mark.parametrize(
    ("pool", "used", "scheduled", "prompt", "output"),
    [(400, 90, 3, 1000, 7000), (1000, 120, 7, 256, 8000)],
)
def test_reserved_blocks_that_are_not_used_block_the_queue(
    pool: int, used: int, scheduled: int, prompt: int, output: int
) -> None:
    lines = [
        triton(5 * i, 1000 + 300 * i, scheduled + 6, scheduled, used + i, pool)
        for i in range(5)
    ]
    note = f"batch_scheduler_policy: guaranteed_no_evict\nrequests: {prompt} prompt tokens, max_tokens {output}"

    found = diagnosis(lines, notes=note)

    assert words(found)[0] == "RESERVATION_BLOCKED"
    assert found.facts["used_blocks_peak"] == used + 4


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_full_rank_beside_idle_ones_is_imbalance(ranks: int) -> None:
    lines = []
    for i in range(4):
        lines.append(v1(10 * i, 30, 6 + i, 98.8, generation=300.0, rank=0))
        lines += [
            v1(
                10 * i,
                1 if r == 1 else 0,
                0,
                3.0 if r == 1 else 0.0,
                generation=20.0 * (r == 1),
                rank=r,
            )
            for r in range(1, ranks)
        ]

    found = diagnosis(lines)

    assert words(found) == ["DP_IMBALANCE"]
    assert found.facts["idle_engines_last"] == list(range(2, ranks))
    assert found.facts["fit_elsewhere"] == 9


def test_ranks_that_are_all_full_are_no_imbalance() -> None:
    lines = [
        v1(10 * i, 30 + r, 6 + i + r, 98.5, generation=300.0, rank=r)
        for i in range(4)
        for r in range(2)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "CAPACITY_QUEUE"
    assert "DP_IMBALANCE" in found.excluded


def test_statistics_that_stop_with_room_are_not_kv() -> None:
    lines = [v1(10 * i, 20 + i, 0, 31.0 + i, generation=800.0) for i in range(5)]
    later = (
        f"(APIServer pid=7) INFO {stamp(240)} [async_llm.py:702] Request chatcmpl-9 aborted."
    )

    found = diagnosis(lines, later)

    assert words(found)[0] == "NOT_KV"
    assert found.facts["log_gap_s"] == 200


def test_those_that_wait_for_a_grammar_or_adapter_do_not_wait_for_kv() -> None:
    lines = [v1(10 * i, 5, 6, 22.0, generation=200.0, deferred=6) for i in range(4)]

    found = diagnosis(lines)

    assert words(found)[0] == "NOT_KV"
    assert "deferred" in found.verdict.statement


def test_calm_samples_with_room_are_no_pressure() -> None:
    lines = [
        v1(10 * i, 12, 0, 34.0 - (i % 3), prompt=300.0, generation=500.0) for i in range(6)
    ]

    found = diagnosis(*v1_pool(300_000, 8192), lines)

    assert words(found) == ["NO_PRESSURE_YET"]
    assert found.verdict.severity == "low"


@pytest.mark.parametrize(("tokens", "rate"), [(500_000, 250.0), (80_000, 110.0)])
def test_growth_without_pressure_gives_a_time_for_the_wall(tokens: int, rate: float) -> None:
    per_interval = 100 * rate * 10 / tokens
    lines = [v1(10 * i, 6, 0, 70.0 + i * per_interval, generation=rate) for i in range(8)]
    expected_s = 70 + (30.0 - 7 * per_interval) / per_interval * 10

    found = diagnosis(*v1_pool(tokens), lines)

    assert words(found) == ["NO_PRESSURE_YET"]
    minutes, seconds = divmod(int(expected_s), 60)
    assert (
        found.facts["eta_full_range"][0]
        <= f"03-04 10:{minutes:02}:{seconds:02}"
        <= f"{found.facts['eta_full_range'][1]}~"
    )


def test_a_pool_size_follows_from_two_lines_without_start_up_lines() -> None:
    lines = [v1(0, 3, 0, 40.0, generation=100.0), v1(10, 3, 0, 42.0, generation=100.0)]

    found = diagnosis(lines)

    assert found.facts["pool_kind"] == "inferred"
    assert abs(found.facts["pool_tokens"] - 50_000) <= 5_000


def test_one_scrape_with_a_full_pool_and_a_counter_is_pressure_since_the_start() -> None:
    found = diagnosis(scrape([(0, 80, 33, 0.992, 410, 5_000_000.0)]))

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert found.facts["preemptions"]["since_start"]
    assert found.facts["preemptions"]["value"] == 410


def test_a_counter_that_falls_is_a_restart_and_no_negative_count() -> None:
    counts = [40, 52, 3, 9]
    text = "\n".join(
        scrape([(0, 60, 12, 0.985, c, 1000.0 * (i + 1))], f"2026-03-04 10:0{i}:00")
        for i, c in enumerate(counts)
    )

    found = diagnosis(text)

    assert found.facts["preemptions"]["value"] == 12 + 3 + 6
    assert "1 resets" in found.facts["preemptions"]["how"]


def test_a_printed_size_that_growth_contradicts_misleads() -> None:
    lines = [v1(10 * i, 10, 0, 20.0 + 4.0 * i, generation=400.0) for i in range(8)]

    found = diagnosis(*v1_pool(900_000), lines)

    assert words(found)[0] == "HYBRID_OVERHEAD"
    assert abs(found.facts["pool_tokens_usable"] - 100_000) < 4_000
    assert any("disagree" in n for n in found.notes)


def test_start_up_lines_alone_give_a_capacity_and_ask_for_the_rest() -> None:
    found = diagnosis(*v1_pool(163_840, 4096))

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
    assert found.facts["pool_tokens"] == 163_840
    assert found.facts["safe_concurrency"] == 39  # 163,840 / 4,096 is 40, less the null block
    assert any("lengths" in m.what for m in found.missing)


def test_lines_without_any_time_still_carry_a_verdict() -> None:
    lines = [v1(0, 33, 18 + i, 99.0, generation=700.0).split("] ", 1)[1] for i in range(4)]

    found = diagnosis(lines)

    assert words(found)[0] == "CAPACITY_QUEUE"


def test_steady_prompts_with_a_batch_that_does_not_move_are_prefill_bound_without_a_stated_limit() -> (
    None
):
    lines = [
        v1(10 * i, 6, 14 + 9 * i, 31.0 + i, prompt=8100.0 + 90 * (i % 2), generation=140.0)
        for i in range(6)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "PREFILL_BOUND"


def test_a_queue_at_three_per_cent_with_nothing_else_known_is_not_kv() -> None:
    lines = [v1(10 * i, 1, 14, 3.0, generation=25.0) for i in range(4)]

    found = diagnosis(lines)

    assert words(found)[0] == "NOT_KV"


def test_blocks_that_nobody_who_runs_holds_are_a_deadlock() -> None:
    lines = [
        v1(0, 4, 2, 97.0, generation=90.0),
        *(v1(10 + 10 * i, 0, 6 + i, 97.4) for i in range(4)),
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "ENGINE_DEADLOCK"


@pytest.mark.parametrize(("name", "usage"), [("mamba", 0.98), ("swa token", 0.95)])
def test_the_pool_of_states_or_windows_that_binds_is_named(name: str, usage: float) -> None:
    lines = [
        f"[2026-03-04 10:00:{5 * i:02} TP0] Decode batch, #running-req: {40 + i % 2}, #full token: 9000, full token usage: 0.31, "
        f"{name} usage: {usage:.2f}, cuda graph: True, gen throughput (token/s): 812.31, #queue-req: {20 + i}"
        for i in range(5)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "HYBRID_OVERHEAD"
    assert found.facts["binding_pool"] == name.split()[0]


def test_an_error_of_a_request_after_which_the_engine_goes_on_is_no_engine_fault() -> None:
    error = f"ERROR {stamp(12)} [serving_chat.py:251] ValueError: something is wrong with this request"
    lines = [v1(10 * i, 12, 0, 30.0, generation=500.0) for i in range(5)]

    found = diagnosis(lines[:2], error, lines[2:])

    assert words(found) == ["NO_PRESSURE_YET"]


def test_an_engine_that_dies_at_the_wall_is_a_fault_with_the_wall_as_trigger() -> None:
    lines = [v1(10 * i, 40, 5, 98.0 + i / 10, generation=900.0) for i in range(5)]
    error = f"ERROR {stamp(41)} [core.py:700] EngineCore encountered a fatal error. vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."

    found = diagnosis(lines, error)

    assert words(found)[0] == "ENGINE_BUG"
    assert found.facts["trigger"] == "CAPACITY_PREEMPTION"


def test_a_step_that_times_out_is_a_deadlock() -> None:
    lines = [v1(10 * i, 40, 0, 55.0, generation=900.0) for i in range(3)]
    error = f"INFO {stamp(95)} [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds."

    found = diagnosis(lines, error)

    assert words(found)[0] == "ENGINE_DEADLOCK"


def test_counted_preemptions_whose_recompute_dwarfs_generation_are_thrash() -> None:
    text = "\n".join(
        scrape([(0, 8, 0, 0.97, 20 * i, 5_000_000.0 + 300 * i)], f"2026-03-04 10:0{i}:00")
        for i in range(5)
    )
    pool = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="40001",engine="0"} 1.0\n'

    found = diagnosis(text, pool)

    assert words(found)[0] == "THRASH_PREFILL_READMIT"
    assert found.facts["preemptions"]["value"] == 80


def test_a_full_pool_without_a_queue_asks_for_the_counter() -> None:
    lines = [
        v1(10 * i, 30, 0, 99.0 - (i % 2) * 0.4, prompt=300.0, generation=500.0)
        for i in range(4)
    ]

    found = diagnosis(lines)

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
    assert "num_preemptions_total" in found.next_step.first.change


def test_a_queue_that_drained_is_told_by_its_height() -> None:
    seen = ((5, 0, 10.0), (60, 20, 99.0), (50, 4, 98.0), (20, 0, 50.0))
    lines = [
        v1(10 * i, r, w, u, prompt=400.0, generation=600.0) for i, (r, w, u) in enumerate(seen)
    ]

    found = diagnosis(lines)

    assert words(found)[0] == "CAPACITY_QUEUE"
    assert "up to 20 requests waited outside, none in the end" in found.verdict.statement
