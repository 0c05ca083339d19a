"""Weights from a GGUF file, dequantised into the model a few rows at a time.

It knows llama.cpp's tensor names, and that its llama files hold query and key rows in the order of
interleaved rotation, which is undone here. The container is read by engine.gguf_header, quantised
blocks by the `gguf` package. It does not know the model (weights).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from engine.gguf_header import GGUFHeader, TensorInfo, read_gguf_header
from engine.gpu.model import CausalLM
from engine.gpu.model_config import ModelConfig, RopeConfig

# Hugging Face's name of a layer's tensor to llama.cpp's.
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_ROPE_FREQUENCIES = "rope_freqs.weight"
_CHUNK_ELEMENTS = 1 << 22  # 16 MiB of float32 at a time


def gguf_name(name: str) -> str:
    """llama.cpp's name of Hugging Face's tensor `name` (without "model.")."""
    if name in _TOP:
        return _TOP[name]
    _, index, rest = name.split(".", 2)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{index}.{_LAYER[stem]}.{kind}"


def add_rope_divisors(config: ModelConfig, path: Path) -> ModelConfig:
    """The config with the frequencies' divisors of the file, if it holds any (llama3's stretch)."""
    header = read_gguf_header(path)
    info = header.tensors.get(_ROPE_FREQUENCIES)
    if info is None:
        return config
    if info.shape != (config.head_dim // 2,):
        header.refuse(
            f"tensor {info.name!r}", f"its shape {list(info.shape)} is not half a head"
        )
    data = _bytes_of(header, info)
    divisors = tuple(float(d) for d in np.concatenate(list(_rows(header, info, data))).ravel())
    if not all(math.isfinite(d) and d > 0 for d in divisors):
        header.refuse(f"tensor {info.name!r}", "its values are not all positive")
    rope = RopeConfig(theta=config.rope.theta, divisors=divisors)
    return dataclasses.replace(config, rope=rope)


def fill_from_gguf(model: CausalLM, slots: dict[str, torch.Tensor], path: Path) -> None:
    """Dequantise every tensor into its slot; slots is emptied.

    Raises: SettingsError that names the file, the tensor, the fault and the next step.
    """
    header = read_gguf_header(path)
    wanted = {gguf_name(name): name for name in slots}
    missing = sorted(set(wanted) - set(header.tensors))
    if missing:
        header.refuse(
            "",
            f"{len(missing)} tensors are missing, among them {', '.join(missing[:3])}",
            "Convert the model again; files that are split in parts must be merged first.",
        )
    extra = sorted(set(header.tensors) - set(wanted) - {_ROPE_FREQUENCIES})
    if extra:
        header.refuse(
            f"tensor {extra[0]!r}",
            "it has no place in a plain model of this architecture",
            "Such variants are not supported by the torch engine.",
        )
    for theirs, ours in wanted.items():
        info, slot = header.tensors[theirs], slots.pop(ours)
        if info.shape != tuple(slot.shape):
            header.refuse(
                f"tensor {theirs!r}",
                f"its shape is {list(info.shape)}, the metadata asks for {list(slot.shape)}",
            )
        heads = _interleaved_heads(model.config, ours, header)
        _fill(slot, header, info, heads)


def _interleaved_heads(config: ModelConfig, name: str, header: GGUFHeader) -> int:
    """In how many heads the rows are interleaved; 0: they are not."""
    if header.metadata.get("general.architecture") != "llama":
        return 0
    if ".q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".k_proj." in name else 0


def _fill(slot: torch.Tensor, header: GGUFHeader, info: TensorInfo, heads: int) -> None:
    """Copy the tensor into slot; row 2 i + s of each of the heads becomes row s D/2 + i."""
    target = slot
    if heads:
        half = slot.shape[0] // heads // 2
        # (heads, 2, D/2, ...) -> (heads, D/2, 2, ...): the file's order, on the slot's memory
        target = slot.view(heads, 2, half, *slot.shape[1:]).transpose(1, 2)
        rows = [torch.from_numpy(r) for r in _rows(header, info, _bytes_of(header, info))]
        target.copy_(torch.cat(rows).view(target.shape))
        return
    start = 0
    for chunk in _rows(header, info, _bytes_of(header, info)):
        target[start : start + len(chunk)].copy_(torch.from_numpy(chunk))
        start += len(chunk)


def _bytes_of(header: GGUFHeader, info: TensorInfo) -> np.ndarray:
    """The tensor's bytes, (rows, bytes of a row), mapped from the file. Raises: SettingsError."""
    kind = _type_of(header, info)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    width = info.shape[-1]
    if width % block:
        header.refuse(
            f"tensor {info.name!r}", f"a row of {width} is no multiple of its block of {block}"
        )
    rows, row_bytes = math.prod(info.shape[:-1]), width // block * block_bytes
    if info.offset + rows * row_bytes > header.size_bytes:
        header.refuse(
            f"tensor {info.name!r}",
            f"the file of {header.size_bytes:,} bytes ends before the tensor's last byte",
        )
    return np.memmap(header.path, np.uint8, "r", info.offset, (rows, row_bytes))


def _type_of(header: GGUFHeader, info: TensorInfo) -> Any:
    try:
        return gguf.GGMLQuantizationType(info.type_id)
    except ValueError:
        header.refuse(
            f"tensor {info.name!r}",
            f"its type {info.type_id} is not known to the installed gguf package",
            "Update gguf, or use a file of another quantisation.",
        )


def _rows(header: GGUFHeader, info: TensorInfo, data: np.ndarray) -> Iterator[np.ndarray]:
    """Dequantised rows of the tensor, float32 (rows, width), or (width,) for a tensor of one dimension."""
    kind = _type_of(header, info)
    step = max(1, _CHUNK_ELEMENTS // info.shape[-1])
    for start in range(0, len(data), step):
        chunk = np.array(data[start : start + step])  # a copy: the mapping is read-only
        try:
            values = gguf.dequantize(chunk, kind)
        except NotImplementedError:
            header.refuse(
                f"tensor {info.name!r}",
                f"tensors of type {kind.name} cannot be dequantised by the installed gguf package",
                "Use a file of another quantisation, for example Q4_K_M or Q8_0.",
            )
        values = np.asarray(values, np.float32)
        yield values.ravel() if len(info.shape) == 1 else values
