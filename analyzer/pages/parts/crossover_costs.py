"""What recompute and swap cost a model on a device: the engine's cost model, as `Ways` asks for it.

The bridge from the Crossover page to the engine, which is imported when the page is drawn. The formulas are
those of the estimates that preemption mode cheapest compares (`engine/core/estimates.py`), without
what only a running engine knows: the queue on the link, and which blocks lie next to each other
(none here, so each is a copy). tests/test_crossover_costs.py holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from analyzer.crossover import Cell, Setup, Ways, Work, break_even_flops_per_byte
from traces.errors import SettingsError

if TYPE_CHECKING:
    from engine.cost_params import CostParams
    from engine.devices import DeviceSpec
    from engine.models import ModelShape

LONGEST = 131_072  # of a model that does not say


@dataclass(frozen=True)
class Own:
    """Model and device of a run as it recorded them, None where it did not; overrides: its changed cost
    parameters, which hold while both are its own."""

    model: ModelShape | None = None
    device: DeviceSpec | None = None
    overrides: Mapping[str, float] = field(default_factory=dict)


def own_of(meta: Mapping[str, Any]) -> Own:
    """Model, device and overrides that a recording's metadata states, as far as they can be read."""
    settings = meta.get("settings")
    overrides = settings.get("cost_overrides") if isinstance(settings, Mapping) else None
    return Own(
        _model_of(meta.get("model")),
        _device_of(meta.get("device")),
        dict(overrides) if isinstance(overrides, Mapping) else {},
    )


def _model_of(said: object) -> ModelShape | None:
    """The shape that was recorded; of another engine's model, the known one of that name."""
    from engine.models import ModelShape, find_preset

    if not isinstance(said, Mapping):
        return None
    texts = ("name", "source", "weight_dtype", "expert_weight_dtype")
    are_counts = all(
        isinstance(v, int) and v >= 0
        for k, v in said.items()
        if k not in texts and v is not None
    )
    try:
        shape = ModelShape(**said) if are_counts else None
    except TypeError:
        shape = None
    if shape is not None and min(shape.num_layers, shape.num_heads, shape.hidden) > 0:
        return shape
    preset = find_preset(str(said.get("name")))
    return None if preset is None else models()[preset.stem]


def _device_of(said: object) -> DeviceSpec | None:
    """The device that was recorded, or the known one of that name."""
    from engine.devices import LATER_NUMBERS, NUMBER_NAMES, AllReduce, DeviceSpec, check_number

    if not isinstance(said, Mapping):
        return None
    try:
        said = LATER_NUMBERS | dict(said)
        numbers: dict[str, Any] = {n: check_number(n, said[n], "device") for n in NUMBER_NAMES}
        rows = tuple(AllReduce(*row) for row in said["allreduce"])
        return DeviceSpec(name=str(said["name"]), allreduce=rows, **numbers)
    except (KeyError, TypeError, SettingsError):
        return devices().get(str(said.get("name")).lower())


@cache
def models() -> dict[str, ModelShape]:
    """The known models by name."""
    from engine.models import known_models, load_model

    return {name: load_model(name) for name in known_models()}


@cache
def devices() -> dict[str, DeviceSpec]:
    """The known devices by name."""
    from engine.devices import known_devices, load_device

    return {name: load_device(name, warn=False) for name in known_devices()}


def shape_of(setup: Setup, own: Own) -> ModelShape:
    """The model of that name: the run's where it is the run's."""
    if own.model is not None and own.model.name == setup.model:
        return own.model
    return models()[setup.model]


def device_of(setup: Setup, own: Own) -> DeviceSpec:
    """The device of that name, behind the link that is set."""
    is_own = own.device is not None and own.device.name == setup.device
    device = own.device if is_own and own.device is not None else devices()[setup.device]
    if setup.link_gb_per_s is None:
        return device
    speed = setup.link_gb_per_s * 1e9
    return replace(device, link_in_bytes_per_s=speed, link_out_bytes_per_s=speed)


def overrides_of(setup: Setup, own: Own) -> Mapping[str, float]:
    """The run's changed cost parameters, while model and device are the run's."""
    if own.model is None or own.device is None:
        return {}
    if (own.model.name, own.device.name) == (setup.model, setup.device):
        if setup.link_gb_per_s is None:
            return own.overrides
        links = ("link_in_bytes_per_s", "link_out_bytes_per_s")
        return {k: v for k, v in own.overrides.items() if k not in links}
    return {}


def params_of(setup: Setup, own: Own) -> CostParams:
    """The engine's cost parameters. Raises SettingsError where the model cannot be split so."""
    from engine.cost_model import make_cost_params

    return make_cost_params(
        shape_of(setup, own),
        device_of(setup, own),
        tp=setup.tp,
        pp=setup.pp,
        kv_dtype=setup.kv_dtype,
        weight_dtype=setup.weight_dtype,
        block_size=setup.block_size,
        copy_path=setup.copy_path,
        overrides=overrides_of(setup, own),
    )


def ways_of(setup: Setup, own: Own, longest: int | None = None) -> Ways:
    """Both ways of preemption under this setup. longest: of a request, None for the model's. Raises
    SettingsError."""
    from engine.memory import default_token_budget

    budget = setup.budget or default_token_budget(device_of(setup, own))
    most = longest or shape_of(setup, own).max_model_len or LONGEST
    return ways(params_of(setup, own), setup, budget, most)


def ways(cost: CostParams, setup: Setup, budget: int, longest: int = LONGEST) -> Ways:
    """Both ways by these cost parameters. budget: most tokens of a step."""
    from engine.cost_model import copy_time_s, isolated_recompute_time_s

    def copies_s(tokens: int) -> tuple[float, float]:
        num = -(-tokens // setup.block_size)
        return copy_time_s(cost, num, num, False), copy_time_s(cost, num, num, True)

    def recompute_s(again: int, found: int) -> float:
        if setup.beside == 0:
            return float(isolated_recompute_time_s(cost, again, found))
        return recompute_among_s(cost, again, found, setup.beside, budget, setup.long_prefill)

    def swap_s(tokens: int) -> float:
        out, back = copies_s(tokens)
        if setup.copy_mode == "blocking":
            return out + back
        num = -(-tokens // setup.block_size)
        running = max(setup.beside, 1)
        held = 1.0 / (running + 1)  # the pool is full of requests like the victim
        step_s = _decode_step_s(cost, running, tokens)
        return beside_computing_s(cost, running, held if num else 0.0, step_s, out, back)

    return Ways(recompute_s, copies_s, swap_s, setup.block_size, longest)


def recompute_among_s(
    cost: CostParams, again: int, found: int, running: int, budget: int, long_prefill: int = 0
) -> float:
    """Engine time that computing `again` tokens behind `found` ones adds to steps of `running` requests.

    Source: `recompute_estimate_s` of engine/core/estimates.py, nobody waiting.
    """
    from engine.cost_model import linear_layers_time_s, recompute_time_s

    if again <= 0:
        return 0.0
    t = float(recompute_time_s(cost, again, found))
    if cost.linear == 1:
        return t
    room = max(budget - running, 1)
    if long_prefill > 0:
        room = min(room, long_prefill)
    chunks = -(-again // room)
    chunk = -(-again // chunks)
    more = linear_layers_time_s(cost, running + chunk) - linear_layers_time_s(cost, running)
    t += again / chunk * more - cost.token_compute_s * again
    return float(t + (chunks - 1) * cost.prefill_fixed_s)


def beside_computing_s(
    cost: CostParams, running: int, held: float, step_s: float, out: float, back: float
) -> float:
    """Engine time lost by copies that nobody waits for: the share of the batch that is away meanwhile.

    held: share of the pool that the victim holds; step_s: of a step without stalls. Source:
    `swap_estimate_s` of engine/core/estimates.py, the link idle, no block shared.
    """
    if step_s <= 0:
        return 0.0
    fenced, away = math.ceil(out / step_s), math.ceil(back / step_s)
    waiting = 1.0 / max(running, 1) + 0.5 * fenced / cost.block_size_tokens
    return _idle_step_s(cost, running) * (fenced * min(1.0, max(held, waiting)) + away * held)


def _idle_step_s(cost: CostParams, running: int) -> float:
    """Engine time that a step would lose were its whole batch away. Source: as above."""
    from engine.cost_model import linear_layers_time_s

    if cost.linear == 1:
        return cost.base_ms / 1e3
    linear = linear_layers_time_s(cost, running)
    slope = linear_layers_time_s(cost, running + 1) - linear
    fixed = cost.step_overhead_s + max(linear - running * slope, 0.0) + cost.decode_fixed_s
    return float(fixed + max(cost.head_read_s - running * cost.head_row_s, 0.0))


def _decode_step_s(cost: CostParams, running: int, tokens: int) -> float:
    """A step of so many requests of that length, each making a token."""
    from engine.cost_model import step_time_s

    window = float(running * min(tokens, cost.window_tokens))
    return float(
        step_time_s(cost, running, float(running * tokens), window, 0, 0.0, 0.0, 0, running)
    )


# ---- kFLOP per KV byte, and the map ---------------------------------------------------------------


def work_of(model: ModelShape, setup: Setup, derate: float = 1.0) -> Work:
    """What rebuilding the model's KV asks for; KV of all its devices. Raises SettingsError."""
    from engine.models import kv_bytes_per_token

    pair = model.attention_flops_per_pair
    return Work(
        2.0 * model.active_params,
        model.num_full_layers * pair,
        model.num_window_layers * pair,
        model.window_tokens,
        kv_bytes_per_token(model, setup.kv_dtype, setup.tp) * setup.tp,
        derate if model.is_moe else 1.0,
    )


def kv_bytes_per_token_of(setup: Setup, own: Own) -> float:
    """KV bytes of a token on all devices. Raises SettingsError."""
    from engine.models import check_tp, kv_bytes_per_token

    model = shape_of(setup, own)
    check_tp(model, setup.tp)
    return kv_bytes_per_token(model, setup.kv_dtype, setup.tp) * setup.tp


def break_even_of(setup: Setup, own: Own) -> float:
    """FLOP per KV byte at which the setup's device and copy path break even for its model.

    The effective speed of the link is that of the model's own copies, so that many small ones count.
    """
    cost, device = params_of(setup, own), device_of(setup, own)
    per_byte = 0.0
    if cost.kv_block_bytes > 0:
        per_byte = max(cost.copies_per_block, 1) * cost.copy_s / cost.kv_block_bytes
    return break_even_flops_per_byte(
        device.linear_efficiency * device.peak_flops,
        1.0 / (per_byte + 1.0 / cost.link_out_bytes_per_s),
        1.0 / (per_byte + 1.0 / cost.link_in_bytes_per_s),
    )


def large_copies_break_even(device: DeviceSpec) -> float:
    """FLOP per KV byte at which the device breaks even with copies of many megabytes."""
    return break_even_flops_per_byte(
        device.linear_efficiency * device.peak_flops,
        device.link_out_bytes_per_s,
        device.link_in_bytes_per_s,
    )


def cell_of(setup: Setup, own: Own, tokens: int, cached_frac: float) -> Cell:
    """One model on one device at that length."""
    try:
        costs = ways_of(setup, own).at(tokens, cached_frac)
    except SettingsError as error:
        return Cell(setup.model, setup.device, None, False, str(error))
    return Cell(setup.model, setup.device, costs, _fits(setup, own))


def _fits(setup: Setup, own: Own) -> bool:
    from engine.memory import pool_blocks

    try:
        pool_blocks(
            shape_of(setup, own),
            device_of(setup, own),
            tp=setup.tp,
            pp=setup.pp,
            kv_dtype=setup.kv_dtype,
            weight_dtype=setup.weight_dtype,
            block_size=setup.block_size,
        )
    except SettingsError:
        return False
    return True
