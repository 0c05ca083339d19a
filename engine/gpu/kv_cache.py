"""The paged KV cache: one tensor of blocks on the device, and the same on the host.

In layout "block" a block is contiguous over all layers, so that moving it is one copy. Layout "layer"
keeps a tensor a layer, as engines did whose swap was slow; it is here so that the difference can be
measured. The module knows shapes, bytes and what a device can hold; not who owns a block (engine.core)
and not how blocks are moved (swap.py).

Legend: N blocks, L layers, B tokens of a block, H KV heads, D head dim, F words of a fragment (one
layer's K or V of one block: the smallest piece that is contiguous in both layouts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.gpu.host_memory import HostBuffer, available_host_bytes, gib
from traces.errors import SettingsError

LAYOUTS = ("block", "layer")
KV_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))
BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class BlockShape:
    """What one block holds: block_size tokens of K and V of num_layers layers, in dtype."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: Any

    def __post_init__(self) -> None:
        for name in ("num_layers", "block_size", "num_kv_heads", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise SettingsError(f"{name} {value!r} of the KV cache must be 1 or more.")

    @property
    def fragment_bytes(self) -> int:
        """Bytes of one layer's K or V of one block."""
        return self.block_size * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """KV bytes of a block over all layers."""
        return 2 * self.num_layers * self.fragment_bytes


class BlockPool:
    """N blocks of one shape in one piece of memory.

    blocks (N, L, 2, B, H, D): every block, a view in both layouts; words (N, 2 L, F): the same bytes as
    integers, for copies that must not look at them. In layout "block" words[i:j] is contiguous, in
    layout "layer" words[i:j, f].
    """

    def __init__(self, num_blocks: int, shape: BlockShape, layout: str, memory: Any) -> None:
        self.num_blocks = num_blocks
        self.shape = shape
        self.layout = layout
        self.block_bytes = shape.block_bytes
        self.dtype = shape.dtype
        self.device = memory.device
        size, word = next(w for w in _WORDS if shape.fragment_bytes % w[0] == 0)
        typed, words = memory.view(shape.dtype), memory.view(word)
        fragments, width = 2 * shape.num_layers, shape.fragment_bytes // size
        inner = (shape.block_size, shape.num_kv_heads, shape.head_dim)
        if layout == "block":
            self.blocks = typed.view(num_blocks, shape.num_layers, 2, *inner)
            self.words = words.view(num_blocks, fragments, width)
        else:
            by_layer = typed.view(shape.num_layers, 2, num_blocks, *inner)
            self.blocks = by_layer.permute(2, 0, 1, 3, 4, 5)
            self.words = words.view(fragments, num_blocks, width).transpose(0, 1)

    def poison(self, block_ids: Any) -> None:
        """Fill the blocks with NaN, so that whoever reads one before it is written again is found out."""
        ids = torch.as_tensor(np.asarray(block_ids, dtype=np.int64)).to(self.device)
        self.blocks.index_fill_(0, ids, float("nan"))


class KVCache(BlockPool):
    """The KV blocks of a model on its device.

    num_blocks .. head_dim: sizes, in blocks, layers, tokens, heads, elements; dtype: a torch dtype or its
    name; device: where; layout: "block" or "layer". Blocks start as zeros.

    Raises: SettingsError where a size, layout or dtype cannot be, or the memory is not there; it says how
    many blocks would fit.
    """

    def __init__(
        self,
        num_blocks: int,
        num_layers: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: Any,
        device: Any = "cpu",
        layout: str = "block",
    ) -> None:
        where = check_device(device)
        if layout not in LAYOUTS:
            raise SettingsError(
                f"KV layout {layout!r} is not known. Choose one of {', '.join(LAYOUTS)}."
            )
        kind = check_dtype(dtype, where)
        shape = BlockShape(num_layers, block_size, num_kv_heads, head_dim, kind)
        free = free_device_bytes(where)
        check_fits(num_blocks, shape.block_bytes, free, f"device {where}")
        super().__init__(num_blocks, shape, layout, _device_memory(num_blocks, shape, where))
        self.num_layers = num_layers
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        # Built once: a step asks for every layer, and making a view costs microseconds.
        self._layers = tuple(
            (self.blocks[:, layer, 0], self.blocks[:, layer, 1]) for layer in range(num_layers)
        )

    def layer(self, layer: int) -> tuple[Any, Any]:
        """Keys and values of one layer, each a view (N, B, H, D)."""
        return self._layers[layer]


class HostPool(BlockPool):
    """Blocks on the host with the shape, layout and dtype of those of `kv`.

    pin: None pins exactly where the device is CUDA. Unpinned memory of a CUDA device makes every copy
    block the host, which is why it has to be asked for. On a CPU blocks take memory when first written.

    Raises: SettingsError where the memory is not there or cannot be pinned.
    """

    def __init__(self, kv: KVCache, num_blocks: int, *, pin: bool | None = None) -> None:
        pinned = kv.device.type == "cuda" if pin is None else pin
        what = f"host pool of {num_blocks:,} blocks ({kv.block_bytes:,} bytes each)"
        remedy = "Give fewer host blocks (a smaller --host-gib or --num-host-blocks)."
        if num_blocks < 1:
            raise SettingsError(
                f"{what}: it needs at least one block. Give more --host-gib or --num-host-blocks."
            )
        if pinned and kv.device.type != "cuda":
            raise SettingsError(f"{what}: memory is pinned for CUDA only, not for {kv.device}.")
        free = available_host_bytes() if pinned else None
        if free is not None and num_blocks * kv.block_bytes > free:
            raise SettingsError(
                f"{what} needs {gib(num_blocks * kv.block_bytes)} GiB of pinned host memory, {gib(free)} GiB are "
                f"available: {free // kv.block_bytes:,} blocks would fit. {remedy}"
            )
        self._buffer = HostBuffer(
            num_blocks * kv.block_bytes, pin=pinned, what=what, remedy=remedy
        )
        super().__init__(num_blocks, kv.shape, kv.layout, self._buffer.bytes)
        self.pinned = self._buffer.pinned

    def close(self) -> None:
        """Unpin. No copy may be under way (Copier.close() sees to that)."""
        self._buffer.close()
        self.pinned = False


def check_device(device: Any) -> Any:
    """The torch device. Raises SettingsError where it is neither a CPU nor a CUDA card that is there."""
    try:
        where = torch.device(device)
    except RuntimeError as fault:
        raise SettingsError(f"device {device!r} is not known. Use cuda or cpu.") from fault
    if where.type not in ("cpu", "cuda"):
        raise SettingsError(f"device {where} is not supported. Use cuda or cpu.")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise SettingsError(
            f"device {where} is not there: torch {torch.__version__} finds {torch.cuda.device_count()} CUDA devices. "
            "Use --torch-device cpu, or install a torch built for CUDA and its driver."
        )
    return where


def check_dtype(dtype: Any, device: Any) -> Any:
    """The torch dtype of KV blocks on that device. Raises SettingsError with the dtypes that go."""
    name = str(dtype).removeprefix("torch.")
    if "float8" in name or name.startswith("fp8"):
        raise SettingsError(
            f"KV dtype {name}: this engine keeps no scales for 8-bit KV, so it would answer with other tokens "
            "than the model's. Use bfloat16 or float16; `simulate --kv-cache-dtype fp8` models its cost."
        )
    if name not in KV_DTYPES:
        raise SettingsError(
            f"KV dtype {name} is not known. Choose one of {', '.join(KV_DTYPES)}."
        )
    device = torch.device(device)
    if device.type == "cuda" and name == "bfloat16":
        capability = torch.cuda.get_device_capability(device)
        if tuple(capability) < BF16_CAPABILITY:
            raise SettingsError(
                f"KV dtype bfloat16 needs compute capability 8.0, {torch.cuda.get_device_name(device)} has "
                f"{capability[0]}.{capability[1]}. Use --dtype float16."
            )
    return KV_DTYPES[name]


def check_fits(num_blocks: int, block_bytes: int, free_bytes: int | None, where: str) -> None:
    """Raise SettingsError unless that many blocks fit; it says how many would."""
    if not isinstance(num_blocks, (int, np.integer)) or num_blocks < 1:
        raise SettingsError(f"num_gpu_blocks {num_blocks!r} must be 1 or more.")
    if free_bytes is None or num_blocks * block_bytes <= free_bytes:
        return
    fit = max(0, free_bytes) // block_bytes
    need = f"{num_blocks:,} KV blocks of {block_bytes:,} bytes need {gib(num_blocks * block_bytes)} GiB"
    if fit < 2:  # one is the null block
        raise SettingsError(
            f"{need}, but {where} has {max(0, free_bytes):,} bytes free, not enough for two blocks, which is the least. "
            "Use a smaller model, --dtype or --block-size, or free memory there."
        )
    raise SettingsError(
        f"{need}, but {where} has {gib(free_bytes)} GiB free: {fit:,} blocks would fit. "
        f"Set --num-gpu-blocks to {fit} or less, or free memory there."
    )


def free_device_bytes(device: Any) -> int | None:
    """Bytes that can still be allocated there, the allocator's own reserve included; None: unknown."""
    if device.type == "cpu":
        return available_host_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + held)


def _device_memory(num_blocks: int, shape: BlockShape, device: Any) -> Any:
    """num_blocks * block_bytes zero bytes there, (bytes,) uint8."""
    num_bytes = num_blocks * shape.block_bytes
    what = f"KV cache of {num_blocks:,} blocks"
    if device.type == "cpu":
        remedy = "Set a smaller --num-gpu-blocks."
        return HostBuffer(num_bytes, pin=False, what=what, remedy=remedy).bytes
    try:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as fault:
        # Free memory in pieces, or somebody else took it since it was counted.
        raise SettingsError(
            f"{what} needs {gib(num_bytes)} GiB in one piece on {device}, which it does not have. "
            "Set a smaller --num-gpu-blocks or --gpu-memory-utilization, or free memory there."
        ) from fault
