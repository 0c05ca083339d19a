"""Settings: vLLM's defaults, what is derived, and what is refused."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineSettings, resolve, settings_from_file
from engine.flags import add_engine_flags, add_machine_flags, add_swap_flags, read_settings
from tests.engine_builders import make_settings
from traces.errors import SettingsError


def from_file(folder: Path, document: Any) -> EngineSettings:
    path = folder / "s.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return settings_from_file(path)


def test_batch_limits_default_to_vllms_for_the_device() -> None:
    big = resolve(EngineSettings(device="h100-sxm", num_gpu_blocks=100)).rules
    small = resolve(EngineSettings(device="l4", num_gpu_blocks=100)).rules

    assert (big.max_num_seqs, big.token_budget) == (1024, 8192)
    assert (small.max_num_seqs, small.token_budget) == (256, 2048)


def test_the_pool_counts_the_null_block_as_vllm_does() -> None:
    resolved = resolve(make_settings(4))

    assert (resolved.num_gpu_blocks, resolved.pool_blocks) == (5, 4)


def test_a_pool_in_tokens_holds_whole_blocks() -> None:
    resolved = resolve(EngineSettings(kv_tokens=1000, block_size=16))

    assert resolved.pool_blocks == 62  # 992 tokens


def test_less_than_one_block_of_tokens_is_refused() -> None:
    with pytest.raises(SettingsError, match="kv_tokens 15 is less than one block of 16 tokens"):
        resolve(EngineSettings(kv_tokens=15, block_size=16))


def test_the_watermark_is_a_share_of_all_blocks_rounded_down() -> None:
    rules = resolve(EngineSettings(num_gpu_blocks=100, watermark=0.029)).rules

    assert rules.watermark_blocks == 2


def test_the_victim_follows_the_policy_unless_it_is_named() -> None:
    fcfs = resolve(make_settings()).rules.victim
    priority = resolve(make_settings(policy="priority")).rules.victim
    named = resolve(make_settings(policy="priority", victim="last")).rules.victim

    assert (fcfs, priority, named) == (0, 1, 0)


def test_host_blocks_are_for_modes_that_copy() -> None:
    blocks = {
        mode: resolve(
            make_settings(num_host_blocks=7, preemption_mode=mode, clock="modelled")
        ).host_blocks
        for mode in ("recompute", "swap", "offload", "cheapest")
    }

    assert blocks == {"recompute": 0, "swap": 7, "offload": 7, "cheapest": 7}


def test_the_simple_connector_keeps_a_null_block_on_the_host_too() -> None:
    settings = make_settings(
        num_host_blocks=7,
        preemption_mode="offload",
        offload_connector="simple",
        enable_prefix_caching=True,
    )

    assert resolve(settings).rules.host_blocks == 6


def test_a_settings_file_names_the_host_cache_as_the_harness_does(tmp_path: Path) -> None:
    settings = from_file(
        tmp_path,
        {"offload": "native", "cpu_blocks": 256, "offload_prompt_only": False, "load_steps": 2},
    )

    assert settings.preemption_mode == "offload"
    assert settings.offload_connector == "native"
    assert settings.num_host_blocks == 256
    assert (settings.offload_prompt_only, settings.load_steps) == (False, 2)


def test_host_gib_are_whole_blocks() -> None:
    # Llama-3.1-8B: 16 tokens of 128 KiB are 2 MiB.
    resolved = resolve(
        EngineSettings(num_gpu_blocks=9, preemption_mode="swap", host_gib=1.0, block_size=16)
    )

    assert resolved.host_blocks == 512


def test_more_host_blocks_than_can_be_counted_are_refused_by_name() -> None:
    settings = EngineSettings(
        num_gpu_blocks=9, preemption_mode="swap", host_gib=1e6, block_size=1
    )

    with pytest.raises(SettingsError, match="host_gib 1e\\+06 holds 8,192,000,000 blocks"):
        resolve(settings)


def test_without_chunking_a_budget_below_max_model_len_is_refused() -> None:
    with pytest.raises(SettingsError, match="with chunked prefill off"):
        resolve(make_settings(enable_chunked_prefill=False, max_num_batched_tokens=32))


def test_a_settings_file_takes_vllms_and_the_harness_names(tmp_path: Path) -> None:
    settings = from_file(
        tmp_path,
        {"num_blocks": 65, "latency_ms": [1, 2, 3], "cpu_blocks": 0, "offload": None, "policy": "priority"},
    )  # fmt: skip

    assert settings.num_gpu_blocks == 65
    assert settings.latency_ms == (1, 2, 3)
    assert settings.policy == "priority"


BAD_FILES: dict[str, tuple[Any, str]] = {
    "unknown key": ({"num_block": 5}, "unknown setting 'num_block'"),
    "unknown connector": ({"offload": "lmcache"}, "offload_connector 'lmcache' is not known"),
    "simple without a prefix cache": (
        {"offload": "simple", "cpu_blocks": 9, "enable_prefix_caching": False},
        "'simple' needs prefix caching",
    ),
    "no host block": ({"offload": "native", "cpu_blocks": 0}, "num_host_blocks 0 leaves"),
    "only the simple connector's null block": (
        {"offload": "simple", "cpu_blocks": 1},
        "num_host_blocks 1 leaves",
    ),
    "no room on the host": (
        {"preemption_mode": "offload", "host_gib": 0.0},
        "host_gib 0 holds no block",
    ),
    "no object": ([1, 2], "holds a list, not an object of settings"),
    "no JSON": ("{", "not a readable JSON file"),
    "text for a number": ({"num_blocks": "65"}, "num_gpu_blocks"),
    "fraction for a count": ({"num_blocks": 6.5}, "num_gpu_blocks"),
    "text for a switch": ({"enable_prefix_caching": "no"}, "enable_prefix_caching"),
    "null for a switch": ({"async_scheduling": None}, "async_scheduling"),
    "one latency": ({"latency_ms": 5}, "latency_ms"),
    "two latencies": ({"latency_ms": [5, 1]}, "latency_ms"),
    "negative latency": ({"latency_ms": [5, -1, 0]}, "latency_ms"),
    "infinite latency": ('{"latency_ms": [5, Infinity, 0]}', "latency_ms"),
    "null for a share": ({"watermark": None}, "watermark"),
    "null for a count": ({"block_size": None}, "block_size"),
    "list for a policy": ({"policy": ["fcfs"]}, "policy"),
    "text for a seed": ({"seed": "x"}, "seed"),
    "number for a model": ({"model": 8}, "model"),
    "list of overrides": ({"cost_overrides": [1]}, "cost_overrides"),
    "negative seed": ({"seed": -1}, "seed"),
    "absurdly many blocks": (
        {"num_blocks": 10**12},
        "num_gpu_blocks must be at most 67,108,864",
    ),
    "absurdly many seqs": ({"max_num_seqs": 10**9}, "max_num_seqs must be at most 65,536"),
    "absurdly many tokens": (
        {"kv_tokens": 10**9, "block_size": 1},
        "at most 67,108,864 can be simulated",
    ),
    "text override": ({"cost_overrides": {"step_overhead_s": "fast"}}, "step_overhead_s"),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_bad_settings_file_is_one_sentence(fault: str, tmp_path: Path) -> None:
    document, wanted = BAD_FILES[fault]

    with pytest.raises(SettingsError) as caught:
        resolve(from_file(tmp_path, document))

    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fault_in_a_settings_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^s\.json: block_size must be"):
        from_file(tmp_path, {"block_size": 0})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"num_gpu_blocks": 1}, "leaves no block to use"),
        ({"num_gpu_blocks": True}, "num_gpu_blocks"),
        ({"kv_tokens": 100}, "both set the pool"),
        ({"policy": "lifo"}, "policy 'lifo' is not known. Choose one of fcfs, priority"),
        ({"victim": "oldest"}, "Choose one of last, priority, fewest-computed, most-blocks"),
        ({"copy_path": "dma"}, "Choose one of loop, batch, coalesced"),
        ({"clock": "wall"}, "Choose one of modelled, step, latency"),
        ({"watermark": float("nan")}, "watermark must lie between 0 and 1"),
        ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization must lie between 0 and 1"),
        ({"max_model_len": 1}, "max_model_len must be a whole number of at least 2"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_settings(**changes)

    assert wanted in str(caught.value)


LEVERS = (
    "num_gpu_blocks", "kv_tokens", "gpu_memory_utilization", "kv_cache_dtype", "weight_dtype", "tensor_parallel_size",
    "pipeline_parallel_size", "device", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "watermark",
    "scheduler_reserve_full_isl", "enable_chunked_prefill", "long_prefill_token_threshold", "enable_prefix_caching",
    "preemption_mode", "victim", "host_gib", "num_host_blocks", "copy_path", "copy_mode", "link_gb_per_s", "block_size",
)  # fmt: skip


def test_every_lever_of_an_operator_is_a_setting_with_a_flag() -> None:
    parser = argparse.ArgumentParser()
    for add in (add_engine_flags, add_swap_flags, add_machine_flags):
        add(parser)

    flags = {action.dest for action in parser._actions}
    settings = {f.name for f in dataclasses.fields(EngineSettings)}

    assert set(LEVERS) <= flags & settings


def test_flags_of_stages_and_link_reach_the_settings() -> None:
    parser = argparse.ArgumentParser()
    for add in (add_swap_flags, add_machine_flags):
        add(parser)
    given = parser.parse_args(
        ["--pp", "4", "--link-gb-per-s", "12.5", "--num-host-blocks", "9"]
    )
    given.settings = None

    settings = read_settings(given)

    assert (settings.pipeline_parallel_size, settings.link_gb_per_s) == (4, 12.5)
