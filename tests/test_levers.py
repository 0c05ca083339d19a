"""Levers: every one of the catalogue, its values, and flags that vLLM 0.26.0 and our own parser know."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from typing import Any

import pytest

from analyzer.lever_facts import Facts, facts_of
from analyzer.lever_flags import flag_line, flag_of, is_in_vllm, note_of, our_flags
from analyzer.levers import GROUPS, LEVERS, LOAD, levers_of
from engine.config import EngineSettings
from engine.flags import (
    add_engine_flags,
    add_machine_flags,
    add_swap_flags,
    add_trace_flags,
    read_settings,
)
from engine.trial_facts import machine_facts
from tests.engine_builders import make_request, make_settings, make_trace
from traces.workload import Workload

# Flags of vLLM 0.26.0 (vllm/engine/arg_utils.py) that a lever may name.
VLLM_FLAGS = {
    "--num-gpu-blocks-override", "--gpu-memory-utilization", "--kv-cache-dtype", "--quantization", "--dtype",
    "--block-size", "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--max-num-seqs",
    "--max-num-batched-tokens", "--max-model-len", "--watermark", "--scheduler-reserve-full-isl",
    "--no-scheduler-reserve-full-isl", "--enable-chunked-prefill", "--no-enable-chunked-prefill",
    "--enable-prefix-caching", "--no-enable-prefix-caching", "--long-prefill-token-threshold",
    "--kv-offloading-size", "--async-scheduling", "--no-async-scheduling", "--scheduling-policy",
}  # fmt: skip
ISSUE = {
    "num_gpu_blocks", "gpu_memory_utilization", "kv_cache_dtype", "weight_dtype", "tensor_parallel_size",
    "pipeline_parallel_size", "device", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "watermark",
    "scheduler_reserve_full_isl", "enable_chunked_prefill", "long_prefill_token_threshold", "enable_prefix_caching",
    "preemption_mode", "victim", "host_gib", "copy_path", "copy_mode", "link_gb_per_s", "block_size", "rate_scale",
    "replicas", "async_scheduling",
}  # fmt: skip
CARD = EngineSettings(model="llama-3.1-8b", device="rtx-4090", kv_tokens=41_408)


def workload() -> Workload:
    return make_trace(
        make_request("a", 3_000, 200), make_request("b", 500, 100, 1), make_request("c", 90, 10, 5)
    )  # fmt: skip


def facts(settings: EngineSettings = CARD, load: Workload | None = None) -> Facts:
    asked = load or workload()
    return facts_of(asked, machine_facts(settings, asked.concurrency))


def tried(name: str, f: Facts) -> list[Any]:
    return [v for ladder in LEVERS[name].ladders(f) for v in ladder.values]


def test_every_lever_of_an_operator_is_there_and_is_a_setting_or_a_change_of_the_load() -> None:
    settings = {f.name for f in fields(EngineSettings)}

    assert set(LEVERS) >= ISSUE
    assert {n for n in LEVERS if n not in settings} == set(LOAD)
    assert {lv.group for lv in LEVERS.values()} == set(GROUPS)
    assert [lv.name for lv in levers_of(facts())] == list(LEVERS)


@pytest.mark.parametrize("name", list(LEVERS))
def test_every_value_of_a_lever_can_be_set_or_is_refused_with_a_reason(name: str) -> None:
    f = facts()
    lever = LEVERS[name]
    values = {*lever.choices(f), *tried(name, f)} if name != "num_gpu_blocks" else set()

    assert lever.base(f) in lever.choices(f)
    for value in values - {lever.base(f)}:
        if name not in LOAD:
            assert getattr(CARD.with_(**{name: value}), name) == value


@pytest.mark.parametrize("name", list(LEVERS))
def test_the_flag_of_every_value_is_one_of_vllm_or_there_is_a_word_on_why_not(
    name: str,
) -> None:
    f = facts()
    values = tried(name, f)[:20] or [v for v in LEVERS[name].choices(f) if v != "auto"]

    for value in values:
        flag = flag_of(name, value, f.settings)
        words = [w for w in flag.split() if w.startswith("--")]
        assert set(words) <= VLLM_FLAGS
        assert words or note_of(name, value), f"{name} {value}"


@pytest.mark.parametrize("name", [n for n in LEVERS if n not in ("replicas", "router")])
def test_our_own_parser_takes_the_flags_that_stand_for_a_change(name: str) -> None:
    parser = argparse.ArgumentParser()
    for add in (add_trace_flags, add_engine_flags, add_swap_flags, add_machine_flags):
        add(parser)
    parser.set_defaults(settings=None)
    values = tried(name, facts(CARD.with_(kv_tokens=3_200)))[:6]

    assert values
    for value in values:
        args = parser.parse_args(our_flags({name: value}).split())
        found = args.rate_scale if name == "rate_scale" else getattr(read_settings(args), name)
        assert found == value


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("num_gpu_blocks", 3_120, "--num-gpu-blocks-override 3120"),
        ("gpu_memory_utilization", 0.95, "--gpu-memory-utilization 0.95"),
        ("kv_cache_dtype", "fp8", "--kv-cache-dtype fp8"),
        ("weight_dtype", "fp8", "--quantization fp8"),
        ("weight_dtype", "int4", "--quantization awq_marlin"),
        ("scheduler_reserve_full_isl", False, "--no-scheduler-reserve-full-isl"),
        ("scheduler_reserve_full_isl", True, "--scheduler-reserve-full-isl"),
        ("enable_chunked_prefill", False, "--no-enable-chunked-prefill"),
        ("watermark", 0.05, "--watermark 0.05"),
        ("preemption_mode", "offload", "--kv-offloading-size 16 --no-async-scheduling"),
        ("preemption_mode", "swap", ""),
        ("victim", "most-blocks", ""),
        ("device", "h200", ""),
        ("rate_scale", 0.8, ""),
    ],
)
def test_flag_lines_are_these(name: str, value: Any, flag: str) -> None:
    assert flag_of(name, value, facts().settings) == flag


def test_two_changes_make_one_line_and_host_memory_is_vllms_only_in_its_offload_mode() -> None:
    settings = facts().settings

    assert flag_line({"kv_cache_dtype": "fp8", "max_num_seqs": 64}, settings) == (
        "--kv-cache-dtype fp8 --max-num-seqs 64"
    )
    assert flag_line({"preemption_mode": "offload", "host_gib": 64.0}, settings) == (
        "--kv-offloading-size 64 --no-async-scheduling"
    )
    assert flag_line({"host_gib": 64.0}, {**settings, "preemption_mode": "swap"}) == ""


@pytest.mark.parametrize(
    ("changes", "base", "line"),
    [
        ({"max_num_seqs": 64}, {}, "--max-num-seqs 64"),
        ({"max_num_seqs": 64}, {"preemption_mode": "swap"}, "--max-num-seqs 64"),
        ({"max_num_seqs": 64}, {"preemption_mode": "offload"},
         "--max-num-seqs 64 --no-async-scheduling"),
        ({"max_num_seqs": 64}, {"preemption_mode": "offload", "async_scheduling": True},
         "--max-num-seqs 64"),
        ({"preemption_mode": "offload", "kv_cache_dtype": "fp8"}, {},
         "--kv-offloading-size 16 --kv-cache-dtype fp8 --no-async-scheduling"),
        ({"preemption_mode": "offload", "async_scheduling": False}, {},
         "--kv-offloading-size 16 --no-async-scheduling"),
        ({"preemption_mode": "offload", "async_scheduling": True}, {},
         "--kv-offloading-size 16 --async-scheduling"),
        ({"async_scheduling": False}, {"async_scheduling": True}, "--no-async-scheduling"),
        ({"preemption_mode": "recompute", "watermark": 0.1}, {"preemption_mode": "offload"},
         "--watermark 0.1"),
        ({"rate_scale": 0.5}, {"preemption_mode": "offload"}, ""),
    ],
)  # fmt: skip
def test_offload_that_was_simulated_synchronously_is_pasted_so(
    changes: dict[str, Any], base: dict[str, Any], line: str
) -> None:
    assert flag_line(changes, {**facts().settings, **base}) == line


def test_what_vllm_has_not_is_said() -> None:
    settings = facts().settings

    assert not is_in_vllm("preemption_mode", "swap", settings)
    assert not is_in_vllm("preemption_mode", "cheapest", settings)
    assert is_in_vllm("preemption_mode", "offload", settings)
    assert not is_in_vllm("victim", "fewest-computed", settings)
    assert not is_in_vllm("copy_mode", "async", settings)
    assert is_in_vllm("watermark", 0.05, settings)
    assert "not in vLLM 0.26.0" in note_of("preemption_mode", "swap")


# ---- ladders -------------------------------------------------------------------------------------


def test_a_pool_grows_from_one_block_more_to_room_for_all_that_may_run_at_once() -> None:
    f = facts()

    # 3,200, 600 and 100 tokens in blocks of 16: 200, 38 and 7, and the null block.
    assert f.blocks_of_all() == 246
    assert tried("num_gpu_blocks", f) == []  # 2,589 blocks are there
    small = facts(CARD.with_(kv_tokens=3_200))
    assert tried("num_gpu_blocks", small) == list(range(202, 247))
    two = facts(CARD.with_(kv_tokens=3_200, max_num_seqs=2))
    assert tried("num_gpu_blocks", two)[-1] == 239  # of two at once 200 + 38


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gpu_memory_utilization", [0.93, 0.94, 0.95, 0.96, 0.97, 0.98]),
        ("kv_cache_dtype", ["fp8"]),
        ("weight_dtype", ["fp8", "int4"]),
        ("tensor_parallel_size", [2, 4, 8, 16]),
        ("block_size", [32, 64, 128]),
        ("max_num_batched_tokens", [1024, 512, 256, 4096, 8192, 16384, 32768, 65536]),
        ("long_prefill_token_threshold", [1024, 512, 256, 128, 64]),
        ("scheduler_reserve_full_isl", [False]),
        ("preemption_mode", ["swap", "offload", "cheapest"]),
        ("victim", ["fewest-computed", "most-blocks"]),
        ("replicas", [2, 3, 4, 5, 6, 7, 8]),
        ("link_gb_per_s", [53.0, 100.0, 200.0, 450.0]),
    ],
)
def test_these_values_are_tried_on_a_24_gb_card(name: str, values: list[Any]) -> None:
    assert tried(name, facts()) == values


def test_fewer_at_once_begins_below_what_ever_ran_and_more_only_where_all_slots_were_taken() -> (
    None
):
    free = replace(facts(), max_running=2)
    full = replace(facts(CARD.with_(max_num_seqs=2)), max_running=2)

    assert tried("max_num_seqs", free) == [1]
    assert tried("max_num_seqs", full) == [1, 3]


def test_a_bigger_device_has_more_memory_the_smallest_first() -> None:
    found = tried("device", facts())

    assert found[:2] == ["a100-40", "l40s"]
    assert not {"cpu", "l4"} & set(found)


def test_a_model_length_that_cuts_none_comes_before_those_that_do() -> None:
    assert tried("max_model_len", facts())[0] == 3_201


@pytest.mark.parametrize("name", ["host_gib", "copy_path", "copy_mode", "link_gb_per_s"])
def test_levers_of_copies_are_idle_where_nothing_is_copied(name: str) -> None:
    assert "recompute mode" in LEVERS[name].idle(facts())
    assert LEVERS[name].idle(facts(CARD.with_(preemption_mode="swap"))) == ""


def test_a_rate_is_no_lever_of_a_closed_loop_nor_of_requests_that_come_at_once() -> None:
    loop = make_trace(make_request("a", 9, 9), make_request("b", 9, 9), concurrency=1)
    at_once = make_trace(make_request("a", 9, 9), make_request("b", 9, 9))

    assert "closed loop" in LEVERS["rate_scale"].idle(facts(load=loop))
    assert "at once" in LEVERS["rate_scale"].idle(facts(load=at_once))
    assert LEVERS["rate_scale"].idle(facts()) == ""


def test_facts_of_the_small_world_are_what_it_was_made_of() -> None:
    f = facts(make_settings(), make_trace(make_request("a", 6, 6), make_request("b", 3, 2, 4)))

    assert (f.num_gpu_blocks, f.block_size, f.max_num_seqs, f.max_model_len) == (5, 4, 8, 64)
    assert (f.num_requests, f.longest_tokens, f.span_s, f.rate_rps) == (2, 12, 4.0, 0.5)
    assert f.blocks_of_all() == 3 + 2 + 1
