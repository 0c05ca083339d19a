"""CostParams: model, device and their settings folded into one flat tuple of numbers.

It knows which numbers of a model shape and a device preset make up each term of the cost model,
and which of them a user may override. What is computed from them is `cost_model.py`, which offers
the names of this module too.

Source: the project's reference on recompute and swap, section 2.2 (step) and 1.3 (copies);
docs/cost-model.md retells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from engine.devices import NUMBER_NAMES, DeviceSpec, check_number
from engine.models import (
    ModelShape,
    check_tp,
    kv_bytes_per_block,
    kv_bytes_per_layer_token,
    weight_bytes_per_param,
)
from engine.stages import check_pp, stage_layers
from traces.errors import SettingsError

COPY_PATHS = ("loop", "batch", "coalesced")


class CostParams(NamedTuple):
    """Everything the compiled functions need, per GPU of the tensor-parallel group.

    Times are for one GPU's share of the work (all GPUs do their share at once); over pipeline stages,
    of a round in which the batches in flight share the step's requests (`_pipelined`). `*_s` of a token,
    pair or row is the seconds it takes when nothing else limits. window_tokens 0: no window layers.
    tile_tokens: rows of a tile of the matrix products; *mixed_extra_token_s: what a context token of
    a decoding request takes longer in a step that computes prompts too.
    kv_block_bytes: of one block on one GPU (of the stage with most layers); kv_block_total_bytes: on all of them (what a recording's
    swap bytes count). copies_per_block: separate copies that the copy path needs for each block,
    0 where one copy takes a whole run of blocks. linear 1: the step costs
    (base_ms + prefill_ms * prefill + decode_ms * decode) / 1e3 instead.
    """

    linear: int
    base_ms: float
    prefill_ms: float
    decode_ms: float
    step_overhead_s: float
    layers_overhead_s: float
    token_compute_s: float
    always_read_s: float
    experts_read_s: float
    expert_skip_frac: float
    knee: float
    head_row_s: float
    head_read_s: float
    decode_fixed_s: float
    context_token_s: float
    window_context_token_s: float
    mixed_extra_token_s: float
    window_mixed_extra_token_s: float
    prefill_fixed_s: float
    request_s: float
    prefill_token_s: float
    pair_s: float
    window_pair_s: float
    context_read_s: float
    window_context_read_s: float
    allreduce_fixed_s: float
    allreduce_token_s: float
    allreduce_small_token_s: float
    allreduce_switch_s: float
    window_tokens: int
    tile_tokens: int
    block_size_tokens: int
    kv_block_bytes: int
    kv_block_total_bytes: int
    copies_per_block: int
    transfer_overhead_s: float
    copy_s: float
    link_in_bytes_per_s: float
    link_out_bytes_per_s: float
    contention_in: float
    contention_out: float


_INT_FIELDS = ("linear", "window_tokens", "tile_tokens", "block_size_tokens", "kv_block_bytes", "kv_block_total_bytes", "copies_per_block")  # fmt: skip
_OVERRIDABLE = tuple(n for n in CostParams._fields if n not in ("block_size_tokens",))


def override_names() -> tuple[str, ...]:
    """Names that `overrides` accepts: first a device's numbers, then fields of CostParams.

    A device's number changes everything derived from it; a field of CostParams is set as it is.
    """
    return NUMBER_NAMES + tuple(n for n in _OVERRIDABLE if n not in NUMBER_NAMES)


def make_cost_params(
    model: ModelShape,
    device: DeviceSpec,
    *,
    tp: int = 1,
    kv_dtype: str = "auto",
    weight_dtype: str = "auto",
    block_size: int = 16,
    copy_path: str = "coalesced",
    overrides: Mapping[str, float] | None = None,
    pp: int = 1,
) -> CostParams:
    """CostParams of `model` on `tp` GPUs of `device` in each of `pp` pipeline stages.

    Raises: SettingsError for an unknown data type, copy path or override (valid names listed),
    a tp that does not divide the heads, or more stages than layers.
    """
    check_tp(model, tp)
    check_pp(model, pp)
    if copy_path not in COPY_PATHS:
        raise SettingsError(
            f"copy_path {copy_path!r} is not known. Choose one of {', '.join(COPY_PATHS)}."
        )
    given = dict(overrides or {})
    unknown = sorted(set(given) - set(override_names()))
    if unknown:
        raise SettingsError(
            f"unknown cost parameters: {', '.join(unknown)}. Valid are: {', '.join(override_names())}."
        )
    of_device = {
        k: check_number(k, v, "cost parameter") for k, v in given.items() if k in NUMBER_NAMES
    }
    device = replace(device, **of_device)  # type: ignore[arg-type]
    fields = _linear_layers(model, device, tp, weight_dtype)
    fields |= _attention(model, device, tp, kv_dtype, activation_bytes(model, weight_dtype))
    fields |= _copies(model, device, tp, kv_dtype, block_size, copy_path, pp)
    if pp > 1:
        fields = _pipelined(fields, model, device, tp, pp, weight_dtype)
    params = CostParams(linear=0, base_ms=0.0, prefill_ms=0.0, decode_ms=0.0, **fields)  # type: ignore[arg-type]
    of_params = {k: v for k, v in given.items() if k not in NUMBER_NAMES}
    return params._replace(**{k: _number(k, v) for k, v in of_params.items()})  # type: ignore[arg-type]


def linear_cost_params(
    params: CostParams, base_ms: float, prefill_ms: float, decode_ms: float
) -> CostParams:
    """The same copies, but steps that cost (base + prefill_ms * prefill + decode_ms * decode) / 1e3 s."""
    return params._replace(
        linear=1,
        base_ms=float(base_ms),
        prefill_ms=float(prefill_ms),
        decode_ms=float(decode_ms),
    )


def _number(name: str, value: float) -> float:
    """An override of a CostParams field with the field's own type. Raises SettingsError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not 0 <= number <= 1e18 or (name == "expert_skip_frac" and number > 1):
        raise SettingsError(
            f"cost parameter {name}: {value!r} is out of range. It must lie between 0 and 1e18."
        )
    return int(number) if name in _INT_FIELDS else number


def activation_bytes(m: ModelShape, weight_dtype: str = "auto") -> float:
    """Bytes of an activation, and of an element of embedding and head: 16 bits, or 32 with such weights."""
    return max(2.0, weight_bytes_per_param(m, weight_dtype)[0])


def _linear_layers(
    m: ModelShape, d: DeviceSpec, tp: int, weight_dtype: str
) -> dict[str, float]:
    """Linear layers, LM head and all-reduces. Terms C, W, H, K of the step model.

    Experts have tiles of their own, whose filling is in the moe_* numbers: they were fitted to it.
    """
    linear_bytes, expert_bytes = weight_bytes_per_param(m, weight_dtype)
    busiest = expert_bytes if m.is_moe else linear_bytes  # where most of the arithmetic is
    fp8 = busiest == 1.0 and d.peak_fp8_flops > 0
    peak = d.peak_fp8_flops if fp8 else d.peak_flops
    compute = d.linear_efficiency * (d.moe_linear_factor if m.is_moe else 1.0) * peak * tp
    read = d.weight_read_efficiency * d.memory_bytes_per_s * tp
    num_allreduces = 2 * m.num_layers if tp > 1 else 0  # after attention and after the MLP
    link = d.allreduce_at(max(2, tp))
    wide = activation_bytes(m, weight_dtype)
    token_bytes = 2.0 * (tp - 1) / tp * m.hidden * wide  # that each GPU moves
    return {
        "step_overhead_s": d.step_overhead_s,
        "layers_overhead_s": m.num_layers
        * (d.moe_layer_overhead_s if m.is_moe else d.layer_overhead_s),
        "token_compute_s": 2.0 * m.active_params / compute,
        "always_read_s": m.always_read_params * linear_bytes / read,
        "experts_read_s": m.expert_params * expert_bytes / read,
        "expert_skip_frac": 1.0 - m.experts_per_token / m.num_experts if m.is_moe else 0.0,
        "knee": d.moe_knee if m.is_moe else d.knee,
        "tile_tokens": 1 if m.is_moe else int(d.linear_tile_tokens),
        "head_row_s": 2.0 * m.head_params / (d.linear_efficiency * d.peak_flops * tp),
        "head_read_s": m.head_params * wide / read,
        "allreduce_fixed_s": num_allreduces * link.latency_s,
        "allreduce_token_s": num_allreduces * token_bytes / link.bytes_per_s,
        "allreduce_small_token_s": num_allreduces * token_bytes / link.small_bytes_per_s,
        "allreduce_switch_s": num_allreduces * link.switch_s,
    }


def _attention(
    m: ModelShape, d: DeviceSpec, tp: int, kv_dtype: str, wide: float
) -> dict[str, float]:
    """Decode and prefill attention. Terms A_d and A_p; seconds per context token and per pair.

    A context token costs the larger of reading its KV and multiplying with it; the second is never
    the larger one for GQA, but is near it for MLA, where every head reads the one latent. Beside a
    prompt the products are those of mixed_decode_rows queries (MLA has kernels apart for the two).
    """
    per_layer = kv_bytes_per_layer_token(m, kv_dtype, tp)
    read = per_layer / (d.decode_attention_efficiency * d.memory_bytes_per_s)
    compute = d.prefill_attention_efficiency * d.peak_flops * tp
    context = max(read, m.decode_flops_per_context_token / compute)
    rows = 1.0 if m.is_mla else d.mixed_decode_rows
    beside = max(context, rows * m.decode_flops_per_context_token / compute)
    io = wide * m.attention_io_elements / (d.prefill_io_efficiency * d.memory_bytes_per_s * tp)
    pair = m.attention_flops_per_pair / compute
    return {
        "decode_fixed_s": m.num_layers * d.attention_overhead_s,
        "context_token_s": m.num_full_layers * context,
        "window_context_token_s": m.num_window_layers * context,
        "mixed_extra_token_s": m.num_full_layers * (beside - context),
        "window_mixed_extra_token_s": m.num_window_layers * (beside - context),
        "prefill_fixed_s": m.num_layers * d.prefill_overhead_s,
        "request_s": m.num_layers * d.request_overhead_s,
        "prefill_token_s": m.num_layers * io,
        "pair_s": m.num_full_layers * pair,
        "window_pair_s": m.num_window_layers * pair,
        "context_read_s": m.num_full_layers * read,
        "window_context_read_s": m.num_window_layers * read,
        "window_tokens": m.window_tokens,
    }


_SHARED = (
    "token_compute_s", "context_token_s", "window_context_token_s", "request_s", "prefill_token_s",
    "pair_s", "window_pair_s", "context_read_s", "window_context_read_s", "allreduce_token_s",
    "allreduce_small_token_s", "mixed_extra_token_s", "window_mixed_extra_token_s",
)  # fmt: skip
_ONCE_A_BATCH = ("layers_overhead_s", "always_read_s", "experts_read_s", "decode_fixed_s",
                 "prefill_fixed_s", "allreduce_fixed_s", "allreduce_switch_s")  # fmt: skip


def _pipelined(
    fields: Mapping[str, float],
    m: ModelShape,
    d: DeviceSpec,
    tp: int,
    pp: int,
    weight_dtype: str,
) -> dict[str, float]:
    """The same terms for a round of a full pipeline: pp equal batches in flight, one on each stage.

    A batch has N / pp of the round's tokens and takes 1 / pp of the layers' time on each stage; pp of
    them pass. So arithmetic and attention of the N tokens are shared by the stages, while weights,
    launches and latencies are paid once a batch and stage, which together is once. A batch touches
    the experts of N / pp tokens. The slowest stage sets the pace: the one with most layers, and the
    head's, where only the last works. Between stages each batch hands on hidden states and residual,
    split over the tp GPUs (vLLM sends slices and gathers them), one way of the GPUs' link.
    """
    pace = pp * max(stage_layers(m.num_layers, pp)) / m.num_layers  # 1 where they divide
    link = d.allreduce_at(2)
    hop_bytes = 2.0 * m.hidden * activation_bytes(m, weight_dtype) / tp
    hops = (pp - 1) / pp * hop_bytes
    found = dict(fields)
    found |= {name: fields[name] * pace / pp for name in _SHARED}
    found |= {name: fields[name] * pace for name in _ONCE_A_BATCH}
    found["tile_tokens"] = pp * int(fields["tile_tokens"])  # of each batch
    found["expert_skip_frac"] = fields["expert_skip_frac"] ** (1.0 / pp)
    found["head_read_s"] = fields["head_read_s"] * pp
    found["allreduce_fixed_s"] += (pp - 1) * link.latency_s
    for name, rate in (
        ("allreduce_token_s", link.bytes_per_s),
        ("allreduce_small_token_s", link.small_bytes_per_s),
    ):
        found[name] += hops / rate
    if tp == 1:  # no all-reduce has set it
        found["allreduce_switch_s"] = (pp - 1) * link.switch_s
    return found


def _copies(
    m: ModelShape,
    d: DeviceSpec,
    tp: int,
    kv_dtype: str,
    block_size: int,
    copy_path: str,
    pp: int,
) -> dict[str, float]:
    """Copies between device and host. loop and batch move one layer's K or V of a block at a time.

    Every GPU has its own link; over stages the one with most layers takes longest.
    """
    layers = max(stage_layers(m.num_layers, pp))
    block_bytes = kv_bytes_per_block(m, block_size, kv_dtype, tp)
    fragments = layers * (1 if m.is_mla else 2)
    each = {"loop": d.loop_copy_s, "batch": d.batch_copy_s, "coalesced": d.coalesced_copy_s}
    return {
        "block_size_tokens": block_size,
        "kv_block_bytes": block_bytes * layers // m.num_layers,
        "kv_block_total_bytes": block_bytes * tp,
        "copies_per_block": 0 if copy_path == "coalesced" else fragments,
        "transfer_overhead_s": d.transfer_overhead_s,
        "copy_s": each[copy_path],
        "link_in_bytes_per_s": d.link_in_bytes_per_s,
        "link_out_bytes_per_s": d.link_out_bytes_per_s,
        "contention_in": d.contention_in,
        "contention_out": d.contention_out,
    }
