"""The model's steps between matrix products, as one launch each where Triton runs, else in torch.

It knows when the kernels of fused_kernels.py fit (a CUDA device, 16 or 32 bits, Triton installed) and
how they are launched. Both ways compute in fp32; Triton's rounds once where torch's rounds after
each operation, so that 16-bit results differ in the last digit.

Legend: T tokens, H query heads, Hkv KV heads, D head_dim.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch
import torch.nn.functional as F

from engine.gpu.rope import rotate

_HEADS_TILE = 8
_GATE_TILE = 1024
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def kernels_for(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The kernels, or None where plain torch has to do: on a CPU, in float64, without Triton."""
    if device.type != "cuda" or dtype == torch.float64:
        return None
    if importlib.util.find_spec("triton") is None:
        return None
    from engine.gpu import fused_kernels

    return fused_kernels


def split_heads(
    joint: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kernels: ModuleType | None,
) -> Heads:
    """Query (T, H, D), key and value (T, Hkv, D), contiguous, of joint (T, H + 2 Hkv, D).

    norms: weights (D,) of query and key, which are normed before they are turned by cos and sin
    (T, 1, D/2); None: they are not.
    """
    if kernels is not None:
        return _split_by_kernel(joint, num_heads, num_kv_heads, norms, eps, cos, sin, kernels)
    q, k, v = joint.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if norms is not None:
        q = F.rms_norm(q, norms[0].shape, norms[0], eps)
        k = F.rms_norm(k, norms[1].shape, norms[1], eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v.contiguous()


def _split_by_kernel(
    joint: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kernels: ModuleType,
) -> Heads:
    tokens, rows, width = joint.shape
    q = joint.new_empty((tokens, num_heads, width))
    k, v = joint.new_empty((2, tokens, num_kv_heads, width)).unbind(0)
    if tokens:
        query_norm, key_norm = norms if norms is not None else (joint, joint)
        kernels.heads_kernel[(tokens, -(-rows // _HEADS_TILE))](
            joint,
            q,
            k,
            v,
            query_norm,
            key_norm,
            cos,
            sin,
            eps,
            HEADS=num_heads,
            KV_HEADS=num_kv_heads,
            D=width,
            HALF=_power_of_two(width // 2),
            TILE=_HEADS_TILE,
            NORM=norms is not None,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return q, k, v


def gated(gate_up: torch.Tensor, kernels: ModuleType | None) -> torch.Tensor:
    """SiLU(gate) * up, (T, ffn), of gate_up (T, 2 ffn): gate first."""
    if kernels is None:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((tokens, width))
    if tokens:
        kernels.gate_kernel[(tokens, -(-width // _GATE_TILE))](
            gate_up, out, WIDTH=width, TILE=_GATE_TILE, num_warps=4, enable_fp_fusion=True
        )
    return out


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
