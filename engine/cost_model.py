"""Seconds from tokens and bytes: the step-latency model, copies, recompute.

The functions are compiled and take only counts and CostParams, a flat tuple of numbers into which
`cost_params.py` folds a model and a device. This module does not know models, devices, scheduling,
queues on the link or stalls (the simulator adds those), nor memory sizes: `memory.py`, whose two
functions are offered here too because they complete the interface.

Source: the project's reference on recompute and swap, section 2.2 (soft roofline fitted to NVIDIA
AIConfigurator's kernel tables and Vidur's profiles) and 1.3 (copies); docs/cost-model.md retells it
with the errors that were measured.
"""

from __future__ import annotations

from numba import njit

from engine.cost_params import (
    COPY_PATHS,
    CostParams,
    linear_cost_params,
    make_cost_params,
    override_names,
)
from engine.memory import host_blocks, pool_blocks

__all__ = [
    "COPY_PATHS",
    "CostParams",
    "allreduce_time_s",
    "beside_prompt_time_s",
    "copy_time_s",
    "decode_attention_time_s",
    "host_blocks",
    "isolated_recompute_time_s",
    "linear_cost_params",
    "linear_layers_time_s",
    "make_cost_params",
    "override_names",
    "pool_blocks",
    "prefill_attention_time_s",
    "recompute_time_s",
    "step_time_s",
    "tiled_tokens",
]


@njit(cache=True)
def linear_layers_time_s(p: CostParams, num_tokens: int) -> float:
    """Linear layers of a step of `num_tokens` > 0: soft maximum of arithmetic and weight reads."""
    compute = p.token_compute_s * num_tokens
    read = p.always_read_s
    if p.experts_read_s > 0.0:
        read += p.experts_read_s * (1.0 - p.expert_skip_frac**num_tokens)
    high = max(compute, read)
    if high <= 0.0:
        return p.layers_overhead_s
    low = min(compute, read)
    return p.layers_overhead_s + high * (1.0 + (low / high) ** p.knee) ** (1.0 / p.knee)


@njit(cache=True)
def tiled_tokens(p: CostParams, num_tokens: int) -> int:
    """Rows that the matrix products of a step of `num_tokens` compute: whole tiles of p.tile_tokens.

    Up to two tiles there are kernels for every size (and CUDA graphs), so nothing is added.
    """
    tile = max(1, p.tile_tokens)
    if num_tokens <= 2 * tile:
        return num_tokens
    return -(-num_tokens // tile) * tile


@njit(cache=True)
def allreduce_time_s(p: CostParams, num_tokens: int) -> float:
    """All-reduces of a step; 0 on one GPU."""
    small = p.allreduce_small_token_s * num_tokens
    return p.allreduce_fixed_s + min(
        small, p.allreduce_switch_s + p.allreduce_token_s * num_tokens
    )


@njit(cache=True)
def decode_attention_time_s(
    p: CostParams, ctx_tokens: float, window_ctx_tokens: float
) -> float:
    """Attention of the decoding requests, whose contexts sum to these tokens, no prompt beside."""
    return (
        p.decode_fixed_s
        + p.context_token_s * ctx_tokens
        + p.window_context_token_s * window_ctx_tokens
    )


@njit(cache=True)
def beside_prompt_time_s(p: CostParams, ctx_tokens: float, window_ctx_tokens: float) -> float:
    """What that attention takes longer where the step computes prompts too.

    FlashAttention 2 takes both in one call, and its kernel for decoding (heads of a group packed,
    one row each) only where every query of the call is a single token. Beside a prompt each query
    head of a decoding request occupies a whole tile of rows. 0 where both have kernels of their own.
    """
    return p.mixed_extra_token_s * ctx_tokens + p.window_mixed_extra_token_s * window_ctx_tokens


@njit(cache=True)
def prefill_attention_time_s(
    p: CostParams, tokens: int, qk: float, window_qk: float, num_chunks: int
) -> float:
    """Attention of prefill chunks: queries, keys, values and output streamed once, and the larger of
    the products and of reading the KV the chunks look back at.

    All chunks of a step are one kernel launch a layer (vLLM's variable-length attention), so the
    fixed part is paid once; Vidur too models a batch of prefills as one equivalent prefill.
    What the chunks look back at is known only in sum; they are taken as equally long with the same
    context (exact for one chunk). It matters for a short chunk behind a long cached prefix.
    """
    half_chunk = 0.5 * tokens / num_chunks
    work = p.pair_s * qk + p.window_pair_s * window_qk
    read = p.context_read_s * num_chunks * (qk / tokens + half_chunk)
    read += p.window_context_read_s * num_chunks * (window_qk / tokens + half_chunk)
    return p.prefill_fixed_s + p.prefill_token_s * tokens + max(work, read)


@njit(cache=True)
def step_time_s(
    p: CostParams,
    num_decode: int,
    decode_ctx_tokens: float,
    decode_window_ctx_tokens: float,
    prefill_tokens: int,
    prefill_qk: float,
    prefill_window_qk: float,
    num_chunks: int,
    num_logit_rows: int,
) -> float:
    """Seconds of one step without stalls; 0 for an empty one (in linear mode: base_ms).

    num_decode requests compute one token each, over contexts that sum to decode_ctx_tokens
    (decode_window_ctx_tokens: each counted up to p.window_tokens); num_chunks chunks of n prefill
    or recompute tokens behind s computed ones: prefill_tokens = sum of n, prefill_qk = sum of
    n * (s + n / 2), prefill_window_qk = sum of n * min(s + n / 2, p.window_tokens);
    num_logit_rows rows go through the LM head.
    """
    if p.linear == 1:
        return (p.base_ms + p.prefill_ms * prefill_tokens + p.decode_ms * num_decode) / 1e3
    num_tokens = num_decode + prefill_tokens
    if num_tokens == 0:
        return 0.0
    return _step_of_rows_s(
        p, tiled_tokens(p, num_tokens), num_decode, decode_ctx_tokens, decode_window_ctx_tokens,
        prefill_tokens, prefill_qk, prefill_window_qk, num_chunks, num_logit_rows,
    )  # fmt: skip


@njit(cache=True)
def _step_of_rows_s(
    p: CostParams,
    rows: int,
    num_decode: int,
    decode_ctx_tokens: float,
    decode_window_ctx_tokens: float,
    prefill_tokens: int,
    prefill_qk: float,
    prefill_window_qk: float,
    num_chunks: int,
    num_logit_rows: int,
) -> float:
    """`step_time_s` of a step that is not empty and whose matrix products have so many rows."""
    num_tokens = num_decode + prefill_tokens
    t = p.step_overhead_s + linear_layers_time_s(p, rows)
    t += allreduce_time_s(p, num_tokens) + p.request_s * (num_decode + num_chunks)
    if num_logit_rows > 0:
        t += max(p.head_row_s * num_logit_rows, p.head_read_s)
    if num_decode > 0:
        t += decode_attention_time_s(p, decode_ctx_tokens, decode_window_ctx_tokens)
    if prefill_tokens > 0:
        t += beside_prompt_time_s(p, decode_ctx_tokens, decode_window_ctx_tokens)
        t += prefill_attention_time_s(
            p, prefill_tokens, prefill_qk, prefill_window_qk, max(1, num_chunks)
        )
    return t


@njit(cache=True)
def copy_time_s(p: CostParams, num_blocks: int, num_runs: int, inbound: bool) -> float:
    """Seconds to copy `num_blocks` blocks between device and host on a link that is otherwise idle.

    num_runs: contiguous runs they form on both sides (num_blocks: none are neighbours); only the
    coalesced path gains by runs. inbound: from the host. While the other direction is busy the
    bandwidth is p.contention_in or p.contention_out of this: the caller divides by it.
    """
    if num_blocks <= 0:
        return 0.0
    copies = num_runs if p.copies_per_block == 0 else num_blocks * p.copies_per_block
    bandwidth = p.link_in_bytes_per_s if inbound else p.link_out_bytes_per_s
    return p.transfer_overhead_s + copies * p.copy_s + num_blocks * p.kv_block_bytes / bandwidth


@njit(cache=True)
def recompute_time_s(p: CostParams, num_tokens: int, prefix_tokens: int) -> float:
    """Seconds that recomputing `num_tokens` behind `prefix_tokens` computed ones adds to a busy engine.

    Marginal: arithmetic of the linear layers, all-reduce volume and attention. The weights are read
    and the layers launched for the running requests anyway. It is an upper bound where the step has
    room left under its weight read (a few hundred tokens), where recomputed tokens ride free. Left
    out: rows that fill up the last tile, and what decoding beside the chunks takes longer.
    """
    if num_tokens <= 0:
        return 0.0
    if p.linear == 1:
        return p.prefill_ms * num_tokens / 1e3
    mean_ctx = prefix_tokens + 0.5 * num_tokens
    qk = num_tokens * mean_ctx
    window_qk = num_tokens * min(mean_ctx, float(p.window_tokens))
    t = (p.token_compute_s + p.allreduce_token_s) * num_tokens
    return t + prefill_attention_time_s(p, num_tokens, qk, window_qk, 1)


@njit(cache=True)
def isolated_recompute_time_s(p: CostParams, num_tokens: int, prefix_tokens: int) -> float:
    """Seconds of a step that does nothing but this recompute, weight read and launches included.

    Rows that fill up the last tile are left out: the curve over lengths has no teeth.
    """
    if num_tokens <= 0:
        return 0.0
    if p.linear == 1:
        return (p.base_ms + p.prefill_ms * num_tokens) / 1e3
    mean_ctx = prefix_tokens + 0.5 * num_tokens
    window_qk = num_tokens * min(mean_ctx, float(p.window_tokens))
    qk = num_tokens * mean_ctx
    return _step_of_rows_s(p, num_tokens, 0, 0.0, 0.0, num_tokens, qk, window_qk, 1, 1)
