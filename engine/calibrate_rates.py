"""A device scaled to a recording: how much slower or faster its memory, arithmetic, host and links are.

Where a run does not tell every number of a device apart (one batch all the time, experts, several GPUs),
`calibrate.py` refuses. Four scales it can still tell, because each is held at 1 by a prior unless the steps
say otherwise. It takes steps and a base device and gives a device; where the steps come from it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from engine.calibrate_samples import KINDS, Steps
from engine.cost_model import make_cost_params, step_time_s
from engine.devices import VALUE_NAMES, AllReduce, DeviceSpec
from engine.models import ModelShape
from traces.errors import SettingsError

LEAST_STEPS = 30
MOST_STEPS = 600  # more are thinned evenly
PRIOR = 0.01  # cost of a scale of e, beside a mean relative error of 1 %
MOST = np.log(8.0)  # no scale beyond
ROUNDS = 4
_HOST = ("step_overhead_s", "layer_overhead_s", "moe_layer_overhead_s", "attention_overhead_s",
         "prefill_overhead_s", "request_overhead_s")  # fmt: skip
NAMES = ("memory", "arithmetic", "overheads", "all-reduce")


@dataclass(frozen=True)
class Machine:
    """What ran: the model's shape, the GPUs it was split over, and the types."""

    model: ModelShape
    tp: int = 1
    kv_dtype: str = "auto"
    weight_dtype: str = "auto"
    block_size: int = 16


@dataclass(frozen=True)
class Rates:
    """device: the base, scaled; scales: name -> how many times the base's; error: median of the absolute
    relative errors of step times, on the steps that were fitted."""

    device: DeviceSpec
    scales: Mapping[str, float]
    error: float

    def document(self, source: str) -> dict[str, object]:
        """The device file. source: where the scales come from."""
        said = ", ".join(f"{name} x {scale:.3g}" for name, scale in self.scales.items())
        values = {}
        for name in VALUE_NAMES:
            value = getattr(self.device, name)
            value = [list(row) for row in value] if name == "allreduce" else value
            before = self.device.sources.get(name, self.device.name)
            values[name] = [value, f"[P] scaled ({said}) to {source}; before: {before}"]
        return {"name": self.device.name, "values": values}


def fit_rates(steps: Steps, machine: Machine, base: DeviceSpec) -> Rates:
    """The base device, scaled to these steps. Raises SettingsError for too few of them."""
    if len(steps) < LEAST_STEPS:
        raise SettingsError(
            f"only {len(steps)} steps can be used, and at least {LEAST_STEPS} are needed to scale a device. Record longer."
        )
    thin = steps.take(np.arange(0, len(steps), max(1, len(steps) // MOST_STEPS)))
    weight = _weights(thin)
    free = [0, 1, 2, *([3] if machine.tp > 1 else [])]

    def cost(logs: np.ndarray) -> float:
        away = np.log(predict(_scaled(base, np.exp(logs)), machine, thin) / thin.busy_s)
        size = np.abs(away)
        soft = np.where(
            size < 0.05, size**2 / 0.1, size - 0.025
        )  # outliers count by their size
        return float((weight * soft).sum() + PRIOR * np.abs(logs).sum())

    logs = np.zeros(len(NAMES))
    for turn in range(ROUNDS):
        reach = MOST / 2**turn if turn else MOST
        for which in free:
            logs[which] = _line(cost, logs, which, reach)
    device = replace(_scaled(base, np.exp(logs)), name=f"{base.name}-scaled")
    away = predict(device, machine, steps) / steps.busy_s - 1
    scales = {NAMES[k]: float(np.exp(logs[k])) for k in free}
    return Rates(device, scales, float(np.median(np.abs(away))))


def predict(device: DeviceSpec, machine: Machine, steps: Steps) -> np.ndarray:
    """Seconds of each step on that device, as the simulator has them; windows taken as full contexts."""
    p = make_cost_params(
        machine.model, device, tp=machine.tp, kv_dtype=machine.kv_dtype,
        weight_dtype=machine.weight_dtype, block_size=machine.block_size,
    )  # fmt: skip
    rows = zip(
        steps.num_decode.astype(np.int64).tolist(), steps.ctx.tolist(),
        steps.num_chunks.astype(np.int64).tolist(), steps.chunk_tokens.astype(np.int64).tolist(),
        steps.qk.tolist(), steps.logit_rows.astype(np.int64).tolist(), strict=True,
    )  # fmt: skip
    windowed = machine.model.window_tokens > 0
    return np.array(
        [
            step_time_s(
                p, decode, ctx, _window(ctx, decode, p.window_tokens) if windowed else 0.0,
                tokens, qk, min(qk, tokens * float(p.window_tokens)) if windowed else 0.0, chunks, logits,
            )
            for decode, ctx, chunks, tokens, qk, logits in rows
        ]
    )  # fmt: skip


def _window(ctx: float, num: int, window: int) -> float:
    return min(ctx, float(num * window))


def _weights(steps: Steps) -> np.ndarray:
    """Weights that sum to 1, every kind of step alike."""
    kind = steps.kind
    weight = np.zeros(len(steps))
    there = [k for k in range(len(KINDS)) if (kind == k).any()]
    for k in there:
        weight[kind == k] = 1.0 / (len(there) * (kind == k).sum())
    return weight


def _scaled(base: DeviceSpec, scales: np.ndarray) -> DeviceSpec:
    """The device with rates times these, overheads over the third."""
    memory, arithmetic, overheads, links = (float(s) for s in scales)
    allreduce = tuple(
        AllReduce(r.tp, r.latency_s / links, r.bytes_per_s * links, r.small_bytes_per_s * links, r.switch_s / links)
        for r in base.allreduce
    )  # fmt: skip
    return replace(
        base,
        memory_bytes_per_s=base.memory_bytes_per_s * memory,
        peak_flops=base.peak_flops * arithmetic,
        peak_fp8_flops=base.peak_fp8_flops * arithmetic,
        allreduce=allreduce,
        **{name: getattr(base, name) * overheads for name in _HOST},
    )


def _line(
    cost: Callable[[np.ndarray], float], logs: np.ndarray, which: int, reach: float
) -> float:
    """The best value of one scale, the others held: golden section around where it stands."""
    low, high = max(-MOST, logs[which] - reach), min(MOST, logs[which] + reach)
    golden = (np.sqrt(5.0) - 1) / 2

    def at(value: float) -> float:
        tried = logs.copy()
        tried[which] = value
        return float(cost(tried))

    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = at(a), at(b)
    for _ in range(14):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = at(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = at(b)
    best = (low + high) / 2
    return best if at(best) <= at(float(logs[which])) else float(logs[which])
