"""Which backend a run uses: what was asked for, what is installed, and what fits cache and model.

Every backend's module has a function `unfit(need)` that gives the reason why it cannot serve, or
None. Modules are imported only when their backend is looked at, so that nobody pays for (or stumbles
over) a library that is not used.
"""

from __future__ import annotations

import warnings
from importlib import import_module

import torch

from engine.gpu.attention.interface import AttentionBackend
from engine.gpu.attention.need import CacheShape, Need
from traces.errors import SettingsError

# In the order in which they are named to the user. `auto` looks only at the first two.
BACKENDS = ("triton_paged", "gather_sdpa", "flashinfer", "torch_varlen")
_MODULES = {
    "triton_paged": "engine.gpu.attention.triton_paged",
    "gather_sdpa": "engine.gpu.attention.gather",
    "flashinfer": "engine.gpu.attention.flashinfer_paged",
    "torch_varlen": "engine.gpu.attention.varlen",
}


def get_backend(
    name: str,
    kv: CacheShape,
    num_heads: int,
    *,
    windows: tuple[int, ...] = (0,),
    max_num_seqs: int = 256,
    max_model_len: int | None = None,
) -> AttentionBackend:
    """The backend called `name`, ready for caches shaped like `kv`.

    num_heads: query heads; windows: the layers' sliding windows in tokens, 0 for full attention;
    max_num_seqs: most requests of a step, padding included; max_model_len: most tokens of a
    request, None: as many as the pool holds.

    "auto" is triton_paged on CUDA and gather_sdpa elsewhere; where triton_paged does not fit on
    CUDA, it is gather_sdpa with a warning that says why.

    Raises SettingsError where there is no such backend, or it is not installed or does not fit: the
    message gives the reason and the backends that do.
    """
    longest = kv.num_blocks * kv.block_size
    need = Need(
        kv, num_heads, tuple(windows), max_num_seqs, min(max_model_len or longest, longest)
    )
    if num_heads % kv.num_kv_heads:
        raise SettingsError(
            f"the model has {num_heads} query heads and {kv.num_kv_heads} key/value heads; attention "
            "needs a whole number of query heads for each key/value head. Check num_attention_heads "
            "and num_key_value_heads in the model's config.json."
        )
    if name == "auto":
        name = _auto(need)
    if name not in BACKENDS:
        raise SettingsError(
            f"there is no attention backend {name!r}. Choose auto, {', '.join(BACKENDS)}."
        )
    reason = _unfit(name, need)
    if reason is not None:
        fitting = [other for other in BACKENDS if other != name and _unfit(other, need) is None]
        raise SettingsError(
            f"attention backend {name} cannot be used here: {reason}. What fits: {', '.join(fitting)}."
        )
    backend: AttentionBackend = import_module(_MODULES[name]).build(need)
    return backend


def _unfit(name: str, need: Need) -> str | None:
    reason: str | None = import_module(_MODULES[name]).unfit(need)
    return reason


def _auto(need: Need) -> str:
    if torch.device(need.kv.device).type != "cuda":
        return "gather_sdpa"
    reason = _unfit("triton_paged", need)
    if reason is None:
        return "triton_paged"
    warnings.warn(
        f"attention falls back to gather_sdpa, which copies every request's KV in each layer and is "
        f"many times slower: triton_paged cannot be used here, {reason}.",
        stacklevel=3,
    )
    return "gather_sdpa"
