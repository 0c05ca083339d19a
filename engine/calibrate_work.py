"""The work of each step in the terms of the step model, and the model over many steps at once.

Work is counted by the cost model's own code (`make_cost_params` at full efficiency), so that what is
fitted here is what `engine.cost_model.step_time_s` computes; a test holds the two together. It knows
nothing of how unknowns are found (`calibrate_fit.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from engine.calibrate_samples import Setup, Steps
from engine.cost_params import make_cost_params
from engine.devices import DeviceSpec

# Samples that the procedure asks for, in the order of calibrate_samples.KINDS.
WANTED = {"decode": 300, "prefill": 60, "near the knee": 100}


@dataclass(frozen=True)
class Features:
    """Work of each step in seconds at the base device's peaks, layers of each kind, and its time.

    read, head_read: of weights; look_read: of the KV that chunks look back at; source: index of the
    recording; weight: importance in the fit.
    """

    source: np.ndarray
    kind: np.ndarray
    tokens: np.ndarray
    flops: np.ndarray
    read: np.ndarray
    head_flops: np.ndarray
    head_read: np.ndarray
    layers: np.ndarray
    decode_layers: np.ndarray
    prefill_layers: np.ndarray
    request_layers: np.ndarray
    ctx_read: np.ndarray
    ctx_flops: np.ndarray
    look_read: np.ndarray
    io: np.ndarray
    pair: np.ndarray
    seconds: np.ndarray
    host_s: np.ndarray
    weight: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, which: np.ndarray) -> Features:
        """The steps that a mask or an index selects."""
        return Features(*(getattr(self, f.name)[which] for f in fields(self)))

    @property
    def crossing(self) -> np.ndarray:
        """Tokens at which arithmetic at the base's peak takes as long as reading the weights."""
        return self.tokens * self.read / self.flops


@dataclass(frozen=True)
class Coefficients:
    """The step model's unknowns: seconds of overhead, and 1 / efficiency at the base's peaks.

    ratio: linear efficiency over weight-read efficiency; knee: of the soft maximum.
    """

    step: float
    layer: float
    decode_layer: float
    prefill_layer: float
    request: float
    linear: float
    ratio: float
    knee: float
    context: float
    pairs: float
    io: float


def base_coefficients(base: DeviceSpec) -> Coefficients:
    """The base device's numbers as coefficients."""
    return Coefficients(
        step=base.step_overhead_s,
        layer=base.layer_overhead_s,
        decode_layer=base.attention_overhead_s,
        prefill_layer=base.prefill_overhead_s,
        request=base.request_overhead_s,
        linear=1 / base.linear_efficiency,
        ratio=base.linear_efficiency / base.weight_read_efficiency,
        knee=base.knee,
        context=1 / base.decode_attention_efficiency,
        pairs=1 / base.prefill_attention_efficiency,
        io=1 / base.prefill_io_efficiency,
    )


def make_features(
    parts: Sequence[tuple[Setup, Steps]], base: DeviceSpec, *, padded: bool = True
) -> Features:
    """Work of the steps of several recordings, one after the other.

    padded: decode batches as the device ran them (CUDA graphs), not as they were decided. Device
    time is fitted where every step has it, else the step's time without stalls.
    """
    known = all(not np.isnan(s.compute_s).any() for _, s in parts)
    rows = [_features(i, setup, s, base, padded, known) for i, (setup, s) in enumerate(parts)]
    names = [f.name for f in fields(Features) if f.name != "weight"]
    columns = {n: np.concatenate([r[n] for r in rows]) for n in names}
    weight = _weights(columns["kind"], columns["tokens"])
    return Features(weight=weight, **columns)


def _features(
    source: int, setup: Setup, s: Steps, base: DeviceSpec, padded: bool, known: bool
) -> dict[str, np.ndarray]:
    """Columns of Features of one recording, from the cost model's own numbers at full efficiency."""
    m = setup.model
    unit = replace(
        base, linear_efficiency=1.0, weight_read_efficiency=1.0, decode_attention_efficiency=1.0,
        prefill_attention_efficiency=1.0, prefill_io_efficiency=1.0, layer_overhead_s=1.0,
        attention_overhead_s=1.0, prefill_overhead_s=1.0, request_overhead_s=1.0,
    )  # fmt: skip
    p = make_cost_params(
        m, unit, kv_dtype=setup.kv_dtype, weight_dtype=setup.weight_dtype, block_size=setup.block_size
    )  # fmt: skip
    decode = s.num_padded if padded else s.num_decode
    rows = s.logit_rows + decode - s.num_decode
    tokens = decode + s.chunk_tokens
    ctx_layers, qk_layers, look = layer_tokens(setup, s)
    per_token = p.context_read_s / max(1, m.num_full_layers) if m.num_full_layers else p.window_context_read_s / m.num_layers  # fmt: skip
    per_pair = m.attention_flops_per_pair / base.peak_flops
    tile = max(1, p.tile_tokens)  # as engine.cost_model.tiled_tokens
    tiled = np.where(tokens > 2 * tile, np.ceil(tokens / tile) * tile, tokens)
    mixed = (decode > 0) & (s.num_chunks > 0) & (not m.is_mla)
    return {
        "source": np.full(len(s), source),
        "kind": s.kind,
        "tokens": tokens,
        "flops": p.token_compute_s * tiled,
        "read": np.full(len(s), p.always_read_s),
        "head_flops": p.head_row_s * rows,
        "head_read": np.where(rows > 0, p.head_read_s, 0.0),
        "layers": np.full(len(s), p.layers_overhead_s),
        "decode_layers": np.where(decode > 0, p.decode_fixed_s, 0.0),
        "prefill_layers": np.where(s.num_chunks > 0, p.prefill_fixed_s, 0.0),
        "request_layers": p.request_s * (decode + s.num_chunks),
        "ctx_read": per_token * ctx_layers,
        "ctx_flops": np.where(mixed, base.mixed_decode_rows, 1.0)
        * m.decode_flops_per_context_token
        / base.peak_flops
        * ctx_layers,
        "look_read": per_token * look,
        "io": p.prefill_token_s * s.chunk_tokens,
        "pair": per_pair * qk_layers,
        "seconds": s.compute_s if known else s.busy_s,
        "host_s": s.busy_s - s.compute_s if known else np.zeros(len(s)),
    }


def window_sums(setup: Setup, s: Steps) -> tuple[np.ndarray, np.ndarray]:
    """(decode_window_ctx_tokens, prefill_window_qk) of each step, which recordings do not hold.

    Taken as if the step's requests were equally long; without window layers 0.
    """
    w = float(setup.model.window_tokens)
    if not w or not setup.model.num_window_layers:
        return np.zeros(len(s)), np.zeros(len(s))
    n = np.maximum(1.0, s.num_decode)
    chunk = np.maximum(1.0, s.chunk_tokens)
    return n * np.minimum(s.ctx / n, w), chunk * np.minimum(s.qk / chunk, w)


def layer_tokens(setup: Setup, s: Steps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Context tokens, pairs and tokens looked back at, each summed over the layers."""
    m = setup.model
    full, window = m.num_full_layers, m.num_window_layers
    window_ctx, window_qk = window_sums(setup, s)
    chunk, n = np.maximum(1.0, s.chunk_tokens), s.num_chunks
    half = 0.5 * chunk / np.maximum(1.0, n)
    look = full * n * (s.qk / chunk + half) + window * n * (window_qk / chunk + half)
    return full * s.ctx + window * window_ctx, full * s.qk + window * window_qk, look


def _weights(kind: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Importance of each step: kinds count alike once they have the samples wanted, and within a kind
    a batch size seen rarely is not drowned by one seen always."""
    cell = kind * 64 + np.floor(np.log2(np.maximum(1.0, tokens))).astype(np.int64)
    _, place, count = np.unique(cell, return_inverse=True, return_counts=True)
    weight = 1 / np.sqrt(count[place])
    wanted = (WANTED["decode"], WANTED["prefill"], WANTED["near the knee"])
    for k in range(3):
        mine = kind == k
        if mine.any():
            weight[mine] *= min(1.0, mine.sum() / wanted[k]) / weight[mine].sum()
    return weight


def predict(f: Features, c: Coefficients) -> np.ndarray:
    """Seconds of each step by the step model, host time left out (`engine.cost_model.step_time_s`)."""
    high = np.maximum(f.flops, c.ratio * f.read)
    low = np.minimum(f.flops, c.ratio * f.read)
    soft = high * (1 + (low / high) ** c.knee) ** (1 / c.knee)
    t = c.linear * (soft + np.maximum(f.head_flops, c.ratio * f.head_read))
    t += c.layer * f.layers + c.decode_layer * f.decode_layers + c.request * f.request_layers
    t += np.maximum(c.context * f.ctx_read, c.pairs * f.ctx_flops)
    t += c.prefill_layer * f.prefill_layers + c.io * f.io
    return t + np.maximum(c.pairs * f.pair, c.context * f.look_read)
