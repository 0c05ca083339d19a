"""What a backend is asked for, and how it says that something it needs is not there.

It knows shapes and types, and computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol


class CacheShape(Protocol):
    """What a backend has to know of the cache; `kv_cache.KVCache` is one.

    Read-only members: num_blocks, num_layers, block_size (tokens a block), num_kv_heads, head_dim,
    dtype, device. Each layer's key and value are [num_blocks, block_size, num_kv_heads, head_dim],
    with the last dimension contiguous and any stride over the others.
    """

    @property
    def num_blocks(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> Any: ...


@dataclass(frozen=True)
class Need:
    """What a backend is asked for, and may refuse.

    kv: the cache; num_heads: query heads; windows: sliding windows of the layers in tokens, 0 full;
    max_num_seqs: most requests of a step; max_model_len: most tokens of a request.
    """

    kv: CacheShape
    num_heads: int
    windows: tuple[int, ...]
    max_num_seqs: int
    max_model_len: int


def missing(module: str) -> str | None:
    """Why `module` cannot be imported, or None; a library that breaks while it is imported is missing."""
    try:
        import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        return f"{module} cannot be imported ({type(error).__name__}: {error})"
    return None


def dtype_name(dtype: Any) -> str:
    """ "bfloat16", as the user writes it."""
    return str(dtype).removeprefix("torch.")
