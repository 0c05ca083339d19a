"""Settings of a run: what a user may say, checked, and what the compiled core gets.

Names are vLLM's where vLLM has the setting. A setting left at None takes vLLM's default for the
device, or is derived; `resolve` does that once and returns everything a run needs. It knows no trace
and runs nothing.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine.core.state import UNLIMITED, Clock, Mode, Offload, Rules, Victim
from engine.cost_model import COPY_PATHS, CostParams, make_cost_params
from engine.devices import DeviceSpec, load_device
from engine.memory import default_token_budget, host_blocks, pool_blocks
from engine.models import ModelShape, kv_bytes_per_block, load_model
from engine.stages import check_pp
from traces.errors import SettingsError

POLICIES = ("fcfs", "priority")
PREEMPTION_MODES = ("recompute", "swap", "offload", "cheapest")
OFFLOAD_CONNECTORS = ("native", "simple")
VICTIMS = ("last", "priority", "fewest-computed", "most-blocks")
COPY_MODES = ("blocking", "async")
CLOCKS = ("modelled", "step", "latency", "measured")  # in the order of core.state.Clock
COMPAT = ("vllm-0.26",)
DEFAULT_MODEL_LEN = 131_072
MAX_BLOCKS = 1 << 26  # the core keeps some 80 bytes a block
_MOST = 1 << 30  # step rows count tokens and blocks in 32 bits
# Settings whose None means: vLLM's default, derived, or no limit.
_DERIVED = ("num_gpu_blocks", "kv_tokens", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_host_blocks", "max_steps")  # fmt: skip
_SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "scheduler_reserve_full_isl", "async_scheduling", "offload_prompt_only", "lazy_offload")  # fmt: skip

# Keys of the parity harness's settings.json that mean the same under another name, and those that
# only steer the harness itself.
_ALIASES = {"num_blocks": "num_gpu_blocks"}
_HARNESS_ONLY = ("record_free_queue",)


@dataclass(frozen=True)
class EngineSettings:
    """What a user may set. None: vLLM's default, or derived from model and device.

    num_gpu_blocks counts the null block, as vLLM does; kv_tokens is the pool in tokens instead;
    with neither, the pool is what gpu_memory_utilization of the device leaves. victim None: last
    admitted under fcfs, least important under priority (both vLLM's). preemption_mode cheapest: for
    each victim the cheaper of recompute and swap. host_gib / num_host_blocks:
    room for swapped requests, or for the host's block cache (vLLM's --kv-offloading-size).
    offload_connector: vLLM's OffloadingConnector ("native") or SimpleCPUOffloadConnector;
    offload_prompt_only is the former's, lazy_offload the latter's. copy_path, copy_mode: how blocks
    cross the link; offload always copies asynchronously. load_steps, store_steps: how long its copies
    take on the step and latency clocks. pipeline_parallel_size: stages that the layers are dealt out
    to, each of tensor_parallel_size devices. link_gb_per_s: of large copies to and from the host, each
    way, in 1e9 bytes; None: the device's. compat "vllm-0.26"
    keeps that version's known faults. cost_overrides: parameters of the cost model by name.
    """

    num_gpu_blocks: int | None = None
    kv_tokens: int | None = None
    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    preemption_mode: str = "recompute"
    victim: str | None = None
    host_gib: float = 16.0
    num_host_blocks: int | None = None
    copy_path: str = "coalesced"
    copy_mode: str = "blocking"
    offload_connector: str = "native"
    offload_prompt_only: bool = True
    lazy_offload: bool = False
    load_steps: int = 1
    store_steps: int = 1
    model: str = "llama-3.1-8b"
    device: str = "h100-sxm"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    link_gb_per_s: float | None = None
    kv_cache_dtype: str = "auto"
    weight_dtype: str = "auto"
    compat: str | None = None
    clock: str = "modelled"
    latency_ms: tuple[float, float, float] = (5.0, 0.05, 0.1)
    livelock_steps: int = 5_000
    max_steps: int | None = None
    seed: int = 0
    cost_overrides: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    def with_(self, **changes: Any) -> EngineSettings:
        """A copy with these fields changed. Raises SettingsError."""
        return replace(self, **changes)


def _one_of(name: str, value: Any, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise SettingsError(f"{name} {value!r} is not known. Choose one of {', '.join(valid)}.")


def _whole(name: str, value: Any, least: int, most: int) -> None:
    """Raise unless the value is a whole number in the range, or None where None has a meaning."""
    if value is None and name in _DERIVED:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError(
            f"{name} must be a whole number of at least {least}, not {value!r}."
        )
    if value > most:
        raise SettingsError(f"{name} must be at most {most:,}, not {value:,}.")


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and -1e12 < value < 1e12
    )


def _check_types(s: EngineSettings) -> None:
    """Raise SettingsError where a value is of another kind than its setting."""
    for name in _SWITCHES:
        if not isinstance(getattr(s, name), bool):
            raise SettingsError(f"{name} must be true or false, not {getattr(s, name)!r}.")
    for name in ("model", "device", "kv_cache_dtype", "weight_dtype"):
        if not isinstance(getattr(s, name), (str, Path)):
            raise SettingsError(f"{name} must be a name, not {getattr(s, name)!r}.")
    ms = s.latency_ms
    if not isinstance(ms, (list, tuple)) or len(ms) != 3 or not all(map(_is_number, ms)) or min(ms) < 0:  # fmt: skip
        raise SettingsError(
            f"latency_ms must be three numbers of at least 0 (a step, a prefill token, a decoding request), not {ms!r}."
        )
    if not isinstance(s.cost_overrides, Mapping):
        raise SettingsError(
            f"cost_overrides must map names to numbers, not be {s.cost_overrides!r}."
        )


def _check(s: EngineSettings) -> None:
    """Raise SettingsError at the first setting that cannot be."""
    _check_types(s)
    _one_of("policy", s.policy, POLICIES)
    _one_of("preemption_mode", s.preemption_mode, PREEMPTION_MODES)
    _one_of("offload_connector", s.offload_connector, OFFLOAD_CONNECTORS)
    _check_offload(s)
    _one_of("copy_path", s.copy_path, COPY_PATHS)
    _one_of("copy_mode", s.copy_mode, COPY_MODES)
    _one_of("clock", s.clock, CLOCKS)
    if s.victim is not None:
        _one_of("victim", s.victim, VICTIMS)
        if s.victim == "priority" and s.policy != "priority":
            raise SettingsError(
                "victim 'priority' needs policy 'priority': requests have no rank otherwise."
            )
    if s.preemption_mode == "cheapest" and s.clock == "step":
        raise SettingsError(
            "preemption_mode cheapest compares seconds, which the step clock does not have. Use the modelled clock, or name one of the ways."
        )
    if s.compat is not None:
        _one_of("compat", s.compat, COMPAT)
    if isinstance(s.num_gpu_blocks, int) and s.num_gpu_blocks < 2:
        raise SettingsError(
            f"num_gpu_blocks {s.num_gpu_blocks} leaves no block to use: one is vLLM's null block. Give 2 or more."
        )
    if s.num_gpu_blocks is not None and s.kv_tokens is not None:
        raise SettingsError("num_gpu_blocks and kv_tokens both set the pool. Give one of them.")
    for name, least, most in (
        ("num_gpu_blocks", 2, MAX_BLOCKS),
        ("kv_tokens", 1, _MOST),
        ("block_size", 1, _MOST),
        ("max_num_seqs", 1, 65_536),
        ("max_num_batched_tokens", 1, _MOST),
        ("max_model_len", 2, _MOST),
        ("long_prefill_token_threshold", 0, _MOST),
        ("num_host_blocks", 0, _MOST),
        ("tensor_parallel_size", 1, 1024),
        ("pipeline_parallel_size", 1, 1024),
        ("load_steps", 1, _MOST),
        ("store_steps", 1, _MOST),
        ("livelock_steps", 1, _MOST),
        ("max_steps", 1, UNLIMITED),
        ("seed", 0, UNLIMITED),
    ):
        _whole(name, getattr(s, name), least, most)
    for name, low, high in (
        ("watermark", 0.0, 1.0),
        ("gpu_memory_utilization", 0.0, 1.0),
        ("host_gib", 0.0, 1e6),
    ):
        value = getattr(s, name)
        if not _is_number(value) or not low <= value <= high:
            raise SettingsError(f"{name} must lie between {low:g} and {high:g}, not {value!r}.")
    link = s.link_gb_per_s
    if link is not None and (not _is_number(link) or not 1e-3 <= link <= 1e6):
        raise SettingsError(
            f"link_gb_per_s must lie between 0.001 and 1e+06, not {link!r}. Leave it out for the device's own link."
        )


def _check_offload(s: EngineSettings) -> None:
    """Raise SettingsError where the connector could not work, as vLLM would say at start-up or not at all."""
    if s.preemption_mode != "offload":
        return
    if s.offload_connector == "simple" and not s.enable_prefix_caching:
        raise SettingsError(
            "offload_connector 'simple' needs prefix caching: without it vLLM's connector switches itself off. "
            "Leave enable_prefix_caching on, or use the native connector."
        )
    least = 1 if s.offload_connector == "native" else 2
    if isinstance(s.num_host_blocks, int) and s.num_host_blocks < least:
        raise SettingsError(
            f"num_host_blocks {s.num_host_blocks} leaves the host cache without a block. Give {least} or more."
        )


@dataclass(frozen=True)
class Resolved:
    """Everything a run needs: rules and cost for the core, the rest for the record.

    pool_blocks: usable blocks (num_gpu_blocks - 1); block_bytes: KV bytes of a block over all GPUs;
    device: with the link that was set.
    """

    settings: EngineSettings
    rules: Rules
    cost: CostParams
    model: ModelShape
    device: DeviceSpec
    num_gpu_blocks: int
    host_blocks: int
    block_bytes: int

    @property
    def pool_blocks(self) -> int:
        return self.num_gpu_blocks - 1


def resolve(s: EngineSettings, *, concurrency: int | None = None) -> Resolved:
    """Fill in defaults and derive pool, rules and cost model.

    Raises: SettingsError for anything that does not fit together.
    """
    model, device = load_model(s.model), _with_link(load_device(s.device), s.link_gb_per_s)
    seqs, budget, length = _batch_limits(s, model, device)
    tp, pp = s.tensor_parallel_size, s.pipeline_parallel_size
    check_pp(model, pp)
    block_bytes = kv_bytes_per_block(model, s.block_size, s.kv_cache_dtype, tp) * tp
    if s.num_gpu_blocks is not None:
        blocks = s.num_gpu_blocks
    elif s.kv_tokens is not None:
        blocks = s.kv_tokens // s.block_size + 1
        if blocks < 2:
            raise SettingsError(
                f"kv_tokens {s.kv_tokens} is less than one block of {s.block_size} tokens."
            )
    else:
        blocks = pool_blocks(
            model,
            device,
            gpu_memory_utilization=s.gpu_memory_utilization,
            tp=tp,
            kv_dtype=s.kv_cache_dtype,
            weight_dtype=s.weight_dtype,
            block_size=s.block_size,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            pp=pp,
        )
    host = 0
    if s.preemption_mode != "recompute":
        if s.num_host_blocks is not None:
            host = s.num_host_blocks
        else:
            host = host_blocks(
                model, s.host_gib, tp=tp, kv_dtype=s.kv_cache_dtype, block_size=s.block_size
            )
    offload = _connector(s)
    if offload in (Offload.EAGER, Offload.LAZY):
        host -= 1  # vLLM's simple connector keeps a null block on the host too
    if offload and host < 1:
        raise SettingsError(
            f"host_gib {s.host_gib:g} holds no block of the host cache. Give more, or num_host_blocks."
        )
    if host > _MOST:
        raise SettingsError(
            f"host_gib {s.host_gib:g} holds {host:,} blocks of {s.block_size:,} tokens, and at most {_MOST:,} can be counted. Give less, a larger block_size, or num_host_blocks."
        )
    if blocks > MAX_BLOCKS:
        raise SettingsError(
            f"the pool would have {blocks:,} blocks, and at most {MAX_BLOCKS:,} can be simulated. Use larger blocks or less memory."
        )
    cost = make_cost_params(
        model,
        device,
        tp=tp,
        kv_dtype=s.kv_cache_dtype,
        weight_dtype=s.weight_dtype,
        block_size=s.block_size,
        copy_path=s.copy_path,
        overrides=s.cost_overrides,
        pp=pp,
    )
    victim = s.victim or ("priority" if s.policy == "priority" else "last")
    rules = Rules(
        block_size=s.block_size,
        num_blocks=blocks,
        max_num_seqs=seqs,
        token_budget=budget,
        max_model_len=length,
        caching=int(s.enable_prefix_caching),
        chunked=int(s.enable_chunked_prefill),
        long_prefill=s.long_prefill_token_threshold,
        priority=int(s.policy == "priority"),
        watermark_blocks=int(s.watermark * blocks),
        reserve_full=int(s.scheduler_reserve_full_isl),
        async_scheduling=int(s.async_scheduling),
        victim=int(list(Victim)[VICTIMS.index(victim)]),
        mode=int(Mode[s.preemption_mode.upper()]),
        host_blocks=host,
        copy_async=int(s.copy_mode == "async"),
        compat=int(s.compat is not None),
        clock=int(list(Clock)[CLOCKS.index(s.clock)]),
        concurrency=concurrency or 0,
        livelock_steps=s.livelock_steps,
        max_steps=s.max_steps or UNLIMITED,
        block_bytes=block_bytes,
        linear_base_ms=float(s.latency_ms[0]),
        linear_prefill_ms=float(s.latency_ms[1]),
        linear_decode_ms=float(s.latency_ms[2]),
        offload=int(offload),
        prompt_only=int(s.offload_prompt_only),
        load_steps=s.load_steps,
        store_steps=s.store_steps,
    )
    return Resolved(s, rules, cost, model, device, blocks, host, block_bytes)


def _with_link(device: DeviceSpec, link_gb_per_s: float | None) -> DeviceSpec:
    """The device behind a link of that speed each way; None: as it is."""
    if link_gb_per_s is None:
        return device
    ways = ("link_in_bytes_per_s", "link_out_bytes_per_s")
    sources = {**device.sources, **dict.fromkeys(ways, "given: link_gb_per_s of the settings")}
    speeds: dict[str, Any] = dict.fromkeys(ways, link_gb_per_s * 1e9)
    return replace(device, **speeds, sources=sources)


def _connector(s: EngineSettings) -> Offload:
    if s.preemption_mode != "offload":
        return Offload.NONE
    if s.offload_connector == "native":
        return Offload.NATIVE
    return Offload.LAZY if s.lazy_offload else Offload.EAGER


def _batch_limits(
    s: EngineSettings, model: ModelShape, device: DeviceSpec
) -> tuple[int, int, int]:
    """(max_num_seqs, max_num_batched_tokens, max_model_len) with vLLM's defaults and checks."""
    default_budget = default_token_budget(device)
    seqs = s.max_num_seqs or (1024 if default_budget == 8192 else 256)
    length = s.max_model_len or model.max_model_len or DEFAULT_MODEL_LEN
    budget = s.max_num_batched_tokens
    if budget is None:
        budget = max(default_budget, seqs)
        if not s.enable_chunked_prefill:
            budget = max(budget, length)
        return seqs, budget, length
    if budget < seqs:
        raise SettingsError(
            f"max_num_batched_tokens {budget} is less than max_num_seqs {seqs}: vLLM refuses that. Raise the first or lower the second."
        )
    if not s.enable_chunked_prefill and budget < length:
        raise SettingsError(
            f"max_num_batched_tokens {budget} is less than max_model_len {length} with chunked prefill off: a prompt "
            "longer than the budget could never run. Raise the first, lower the second, or leave chunked prefill on."
        )
    return seqs, budget, length


def settings_from_file(path: str | Path, base: EngineSettings | None = None) -> EngineSettings:
    """Settings from a JSON object whose keys are fields of EngineSettings or of the parity harness.

    Unknown keys raise SettingsError; keys that only steer the harness are passed over, with a
    warning where they hold something that would change the run.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"{path.name}: there is no such file. Give the path of a settings JSON."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path.name}: not a readable JSON file ({error}).") from None
    if not isinstance(document, dict):
        raise SettingsError(
            f"{path.name}: holds a {type(document).__name__}, not an object of settings."
        )
    known = {f.name for f in fields(EngineSettings)}
    changes: dict[str, Any] = {}
    for key, value in document.items():
        name = _ALIASES.get(key, key)
        if name in known:
            changes[name] = tuple(value) if isinstance(value, list) else value
        elif key == "offload":
            if value is not None:
                changes["preemption_mode"] = "offload"
                changes["offload_connector"] = value
        elif key == "cpu_blocks":
            if document.get("offload") is not None:
                changes["num_host_blocks"] = value
        elif key not in _HARNESS_ONLY:
            raise SettingsError(
                f"{path.name}: unknown setting {key!r}. Known are {', '.join(sorted(known))}."
            )
    if (
        changes.get("num_gpu_blocks") is not None
        and base is not None
        and base.kv_tokens is not None
    ):
        warnings.warn(f"{path.name}: num_gpu_blocks replaces kv_tokens", stacklevel=2)
        base = replace(base, kv_tokens=None)
    try:
        return replace(base or EngineSettings(), **changes)
    except SettingsError as error:
        raise SettingsError(f"{path.name}: {error}") from None
