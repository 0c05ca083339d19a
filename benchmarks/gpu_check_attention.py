"""GPU check, attention: every backend against float64, and how fast a decode reads its KV."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from gpu_check_table import OK, SKIPPED, Check

from engine.gpu.attention import get_backend
from engine.gpu.attention.choose import BACKENDS
from engine.gpu.attention.interface import AttentionBackend, decode_bytes
from engine.gpu.batch import AttentionBatch
from engine.gpu.kv_cache import KVCache
from traces.errors import SettingsError

MIB = 2**20
# (query tokens, attended tokens): decodes first, then chunks behind what is there already.
REQUESTS = [(1, 1), (1, 16), (1, 17), (1, 333), (1, 1500), (1, 4000), (5, 5), (64, 700), (300, 300), (700, 2000)]  # fmt: skip
QUICK_REQUESTS = [(1, 1), (1, 17), (1, 90), (5, 5), (20, 50)]
# Largest error in units of standard-normal values, where an output is about one of them: rounding of
# inputs is shared by both sides, so this is the rounding of probabilities and of the result.
BOUNDS = {"bfloat16": 4e-2, "float16": 5e-3, "float32": 2e-4, "float64": 1e-9}
# (query heads, KV heads, head dim), data type, layout: each is compiled anew, which takes seconds.
CASES = [
    ((32, 8, 128), "bfloat16", "block"),
    ((32, 8, 128), "bfloat16", "layer"),
    ((32, 8, 128), "float16", "block"),
    ((32, 8, 128), "float32", "block"),
    ((32, 32, 64), "bfloat16", "block"),
    ((9, 3, 64), "bfloat16", "block"),
]
QUICK_CASES = [((9, 3, 64), "float32", "block"), ((9, 3, 64), "float32", "layer")]
OWN = ("triton_paged", "gather_sdpa")  # first: others may compile for minutes
TARGET = 0.75
SIZES_MB = (8, 16, 32, 64, 128, 256, 512)


def make_batch(
    requests: list[tuple[int, int]], kv: KVCache, seed: int = 0
) -> tuple[AttentionBatch, torch.Tensor]:
    """A step of (query tokens, attended tokens), decodes first, in shuffled blocks; and the slots (n,) of
    every token that may be read."""
    query_lens = np.array([q for q, _ in requests])
    seq_lens = np.array([s for _, s in requests])
    blocks = -(-seq_lens // kv.block_size)
    ids = np.random.default_rng(seed).permutation(kv.num_blocks)[: blocks.sum()]
    table = np.zeros((len(requests), blocks.max()), np.int32)
    parts = np.split(ids, np.cumsum(blocks)[:-1])
    slots, used = [], []
    for row, own, n, length in zip(table, parts, query_lens, seq_lens, strict=True):
        row[: len(own)] = own
        places = np.arange(length)
        at = own[places // kv.block_size] * kv.block_size + places % kv.block_size
        slots.append(at[length - n :])
        used.append(at)

    def there(values: np.ndarray, kind: type) -> torch.Tensor:
        return torch.as_tensor(values.astype(kind), device=kv.device)

    batch = AttentionBatch(
        slot_mapping=there(np.concatenate(slots), np.int64),
        block_table=there(table, np.int32),
        query_start=there(np.concatenate(([0], np.cumsum(query_lens))), np.int32),
        seq_lens=there(seq_lens, np.int32),
        query_lens_host=query_lens,
        seq_lens_host=seq_lens,
        num_decode=int((query_lens == 1).sum()),
        max_query_len=int(query_lens.max()),
        max_seq_len=int(seq_lens.max()),
    )
    return batch, there(np.concatenate(used), np.int64)


def backend_or_row(
    check: Check, name: str, kv: KVCache, heads: int, case: str
) -> AttentionBackend | None:
    """The backend, or None and a row that says why it cannot be had."""
    try:
        return get_backend(name, kv, heads)
    except (SettingsError, ImportError) as why:
        check.row(case, verdict=SKIPPED, note=str(why)[:160])
        return None


def correctness(check: Check) -> None:
    """Every backend against float64 in a mixed step, unused places full of NaN."""
    requests = QUICK_REQUESTS if check.quick else REQUESTS
    for names in OWN, [n for n in BACKENDS if n not in OWN]:
        for shape, dtype, layout in QUICK_CASES if check.quick else CASES:
            check.need_time()
            compare(check, names, requests, shape, dtype, layout)


def compare(
    check: Check, names: Sequence[str], requests: list[tuple[int, int]],
    shape: tuple[int, int, int], dtype: str, layout: str,
) -> None:  # fmt: skip
    """One row a backend: its largest error on one step."""
    heads, kv_heads, dim = shape
    num_blocks = 8 + sum(-(-s // 16) for _, s in requests)
    kv = KVCache(
        num_blocks, 2, 16, kv_heads, dim, dtype=dtype, device=check.device, layout=layout
    )
    batch, used = make_batch(requests, kv)
    draw = torch.Generator(check.device).manual_seed(1)

    def noise(num: int, of_heads: int) -> torch.Tensor:
        values = torch.randn(num, of_heads, dim, generator=draw, device=check.device)
        return values.to(kv.dtype)

    kv.poison(np.arange(num_blocks))
    tokens = int(batch.query_lens_host.sum())
    query, key, value = noise(tokens, heads), noise(tokens, kv_heads), noise(tokens, kv_heads)
    own = batch.slot_mapping
    for cache in kv.layer(1):
        cache[used // 16, used % 16] = noise(len(used), kv_heads)
        cache[own // 16, own % 16] = float(
            "nan"
        )  # this step's tokens are the backend's to write
    empty = kv.words.clone()
    truth = exact(check, kv, batch, (query, key, value), heads)

    def error_of(backend: AttentionBackend) -> float:
        kv.words.copy_(empty)
        with torch.inference_mode():
            backend.prepare(batch)
            backend.write(*kv.layer(1), key, value, batch.slot_mapping)
            got = backend.attend(query, *kv.layer(1), batch, dim**-0.5)
        return float((got.double() - truth).abs().max())

    for name in names:
        case = f"{name} {dtype} {heads}/{kv_heads} heads of {dim}, {layout}"
        backend = backend_or_row(check, name, kv, heads, case)
        error = check.attempt(case, lambda b=backend: error_of(b)) if backend else None
        if error is not None:
            check.correct(case, error, "max error", BOUNDS[dtype])


def exact(
    check: Check, kv: KVCache, batch: AttentionBatch, new: tuple[torch.Tensor, ...], heads: int
) -> torch.Tensor:
    """Attention [T, H, D] of the same step by gather_sdpa in float64."""
    wide = KVCache(
        kv.num_blocks, 1, 16, kv.num_kv_heads, kv.head_dim, dtype="float64", device=check.device
    )
    for to, of in zip(wide.layer(0), kv.layer(1), strict=True):
        to.copy_(of)
    query, key, value = (x.double() for x in new)
    backend = get_backend("gather_sdpa", wide, heads)
    with torch.inference_mode():
        backend.prepare(batch)
        backend.write(*wide.layer(0), key, value, batch.slot_mapping)
        return backend.attend(query, *wide.layer(0), batch, kv.head_dim**-0.5)


# --- bandwidth ------------------------------------------------------------------------------------


def device_copy(check: Check) -> None:
    """GB/s of a copy on the device, bytes read and bytes written both counted."""
    size = 16 * MIB if check.quick else 2048 * MIB
    of = torch.ones(size, dtype=torch.uint8, device=check.device)
    to = torch.empty_like(of)
    rate = 2 * size / check.seconds(lambda: to.copy_(of), repeats=7) / 1e9
    check.shared["copy_gb_s"] = rate
    check.row(
        f"copy of {size // MIB} MiB on the device, read + write", rate, "GB/s", verdict=OK
    )


def bandwidth(check: Check) -> None:
    """KV bytes a decode reads over its time, beside the device copy: 8B-shaped layers, block 16."""
    sizes = (1, 2) if check.quick else SIZES_MB
    dtype = "float32" if check.quick else "bfloat16"
    for name in BACKENDS:
        slow = (
            name == "gather_sdpa" and not check.quick
        )  # it copies all KV first: three points do
        cases = product((4,) if check.quick else (32, 4), (8, 64, 512) if slow else sizes)
        for requests, size in cases:
            check.need_time(1.0)
            case = f"{name}, {requests} requests, {size} MB"
            if not check.attempt(
                case, lambda n=name, r=requests, s=size: one_bandwidth(check, n, dtype, r, s)
            ):
                break  # it cannot be had for another size either


def one_bandwidth(check: Check, name: str, dtype: str, requests: int, size_mb: int) -> bool:
    """A row of one decode; False where the backend cannot be had."""
    heads, kv_heads, dim, block = 32, 8, 128, 16
    probe = torch.float32 if dtype == "float32" else torch.bfloat16
    context = size_mb * 1_000_000 // (requests * decode_bytes([1], kv_heads, dim, probe))
    layers = max(2, min(32, (1024 if not check.quick else 8) // size_mb))  # beyond any cache
    num_blocks = requests * -(-context // block) + 1
    kv = KVCache(num_blocks, layers, block, kv_heads, dim, dtype=dtype, device=check.device)
    case = f"{name}, {requests} x {context} tokens = {size_mb} MB"
    backend = backend_or_row(check, name, kv, heads, case)
    if backend is None:
        return False
    batch, _ = make_batch([(1, context)] * requests, kv)
    query = torch.randn(requests, heads, dim, device=check.device).to(kv.dtype)
    with torch.inference_mode():
        backend.prepare(batch)

        def all_layers() -> None:
            for layer in range(layers):
                backend.attend(query, *kv.layer(layer), batch, dim**-0.5)

        work, how = _captured(check, backend, all_layers)
        taken = check.seconds(work, repeats=7, inner=1 if check.quick else 3) / layers
    rate = decode_bytes([context] * requests, kv_heads, dim, kv.dtype) / taken / 1e9
    share = rate / check.shared["copy_gb_s"] if "copy_gb_s" in check.shared else float("nan")
    check.held(
        case, share, "of a copy", least=TARGET, note=f"{rate:.0f} GB/s, {taken * 1e6:.1f} us, {how}",
        counts=check.on_cuda and name == "triton_paged" and size_mb >= 64,
    )  # fmt: skip
    return True


def _captured(check: Check, backend: AttentionBackend, work):  # type: ignore[no-untyped-def]
    """The same work as a replay of a CUDA graph where that can be had, as the engine decodes."""
    if not (check.on_cuda and backend.graph_safe):
        return work, "eager"
    work()
    torch.cuda.synchronize(check.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay, "CUDA graph"
