"""Two Triton kernels for what lies between the model's matrix products: heads, and the MLP's gate.

In plain torch these are some twenty launches a layer, as long together as the weights of a small
layer take to read. Everything is computed in fp32 and rounded once. Launching is fused.py's.

Legend: T tokens, H query heads, Hkv KV heads, D head_dim, HALF = D / 2 padded to a power of two.
"""

# Arguments of kernels are pointers and scalars of the compiler's own, which Python's types do not name.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def heads_kernel(
    joint,
    query,
    key,
    value,
    query_norm,
    key_norm,
    cos,
    sin,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    TILE: tl.constexpr,
    NORM: tl.constexpr,
):
    """Program (token, tile of TILE heads): norm and turn query and key heads, copy value heads.

    joint [T, H + 2 Hkv, D] and query [T, H, D], key and value [T, Hkv, D] are contiguous; cos and
    sin [T, D / 2] fp32; query_norm, key_norm (D,): read if NORM.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    turns = pair < D // 2
    inside = (head < HEADS + 2 * KV_HEADS) & turns
    at = joint + token * ((HEADS + 2 * KV_HEADS) * D) + head * D + pair
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + D // 2, mask=inside, other=0.0).to(tl.float32)
    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    x, y = first, second
    if NORM:
        square = tl.sum(x * x + y * y, axis=1, keep_dims=True)
        scale = tl.rsqrt(square / D + eps)
        for_query, for_key = is_query & turns, is_key & turns
        weight_x = tl.load(query_norm + pair, mask=for_query, other=0.0).to(tl.float32)
        weight_x += tl.load(key_norm + pair, mask=for_key, other=0.0).to(tl.float32)
        weight_y = tl.load(query_norm + D // 2 + pair, mask=for_query, other=0.0).to(tl.float32)
        weight_y += tl.load(key_norm + D // 2 + pair, mask=for_key, other=0.0).to(tl.float32)
        x, y = x * scale * weight_x, y * scale * weight_y
    c = tl.load(cos + token * (D // 2) + pair, mask=turns, other=0.0)
    s = tl.load(sin + token * (D // 2) + pair, mask=turns, other=0.0)
    turned_x, turned_y = x * c - y * s, y * c + x * s
    out = query.dtype.element_ty
    q_at = query + (token * HEADS + head) * D + pair
    tl.store(q_at, turned_x.to(out), mask=is_query & turns)
    tl.store(q_at + D // 2, turned_y.to(out), mask=is_query & turns)
    k_at = key + (token * KV_HEADS + head - HEADS) * D + pair
    tl.store(k_at, turned_x.to(out), mask=is_key & turns)
    tl.store(k_at + D // 2, turned_y.to(out), mask=is_key & turns)
    v_at = value + (token * KV_HEADS + head - HEADS - KV_HEADS) * D + pair
    tl.store(v_at, first.to(out), mask=is_value & turns)
    tl.store(v_at + D // 2, second.to(out), mask=is_value & turns)


@triton.jit
def gate_kernel(gate_up, out, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Program (token, tile): SiLU of gate times up. gate_up [T, 2 WIDTH], out [T, WIDTH], contiguous."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < WIDTH
    at = gate_up + token * (2 * WIDTH) + place
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out + token * WIDTH + place, product.to(out.dtype.element_ty), mask=inside)
