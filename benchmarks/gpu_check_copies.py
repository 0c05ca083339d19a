"""GPU check, copies: every path, layout, direction and block size against one large pinned copy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from gpu_check_table import FAILED, OK, Check

from engine.gpu.kv_cache import HostPool, KVCache
from engine.gpu.swap import Copier, Copy

MIB = 2**20
TARGET = 0.90
LONG_RUN_BYTES = MIB  # the target is for runs at least this long
# Label, layers, tokens of a block: 8 KV heads of 128 in 16 bits are 32 KiB a fragment of 16 tokens.
SHAPES = (("256 KiB", 4, 16), ("2 MiB", 32, 16), ("8 MiB", 32, 64))
QUICK_SHAPES = (("32 KiB", 2, 4),)


def link(check: Check) -> None:
    """GB/s of one large pinned copy each way, and of both at once."""
    size = 8 * MIB if check.quick else 1024 * MIB
    there = torch.ones(size, dtype=torch.uint8, device=check.device)
    here = torch.ones(size, dtype=torch.uint8, pin_memory=check.on_cuda)
    rates = {}
    for way, (to, of) in {"out": (here, there), "in": (there, here)}.items():
        taken = check.seconds(lambda to=to, of=of: to.copy_(of, non_blocking=True))
        rates[way] = size / taken / 1e9
        kind = "pinned" if check.on_cuda else "CPU, no link:"
        check.row(f"{kind} copy of {size // MIB} MiB {way}", rates[way], "GB/s", verdict=OK)
    check.shared["link_gb_s"] = rates
    if check.on_cuda:
        _both_ways(check, size, rates)


def _both_ways(check: Check, size: int, rates: dict[str, float]) -> None:
    """What is left of each direction while the other is busy: the cost model's contention factors."""
    there = torch.ones(2, size, dtype=torch.uint8, device=check.device)
    here = torch.ones(2, size, dtype=torch.uint8, pin_memory=True)
    streams = {way: torch.cuda.Stream(check.device) for way in ("out", "in")}
    events = {way: [torch.cuda.Event(enable_timing=True) for _ in range(2)] for way in streams}
    torch.cuda.synchronize(check.device)
    for way, stream in streams.items():
        with torch.cuda.stream(stream):
            events[way][0].record()
            for _ in range(4):
                if way == "out":
                    here[0].copy_(there[0], non_blocking=True)
                else:
                    there[1].copy_(here[1], non_blocking=True)
            events[way][1].record()
    torch.cuda.synchronize(check.device)
    for way, (first, last) in events.items():
        rate = 4 * size / (first.elapsed_time(last) / 1e3) / 1e9
        note = f"{rate / rates[way]:.2f} of the copy alone"
        check.row(f"both ways at once, {way}", rate, "GB/s", note=note)


def swap(check: Check) -> None:
    """Every path: bytes equal after out and in, GB/s each way. Device blocks shuffled, host blocks a run."""
    total = MIB // 2 if check.quick else 256 * MIB
    for label, layers, block in QUICK_SHAPES if check.quick else SHAPES:
        for layout in ("block", "layer"):
            check.need_time(2.0)
            dtype = "float32" if check.quick else "bfloat16"
            heads = 4 if check.quick else 8
            size = 2 * layers * block * heads * 128 * (4 if check.quick else 2)
            num = max(2, total // size)
            kv = KVCache(
                2 * num,
                layers,
                block,
                heads,
                128,
                dtype=dtype,
                device=check.device,
                layout=layout,
            )
            kv.words.random_(0, 2**15)
            host = HostPool(kv, num)
            for path in ("loop", "batch", "coalesced"):
                case = f"{path}, layout {layout}, blocks of {label}"
                check.attempt(
                    case, lambda p=path, k=kv, h=host, n=label: _one_path(check, k, h, p, n)
                )
            host.close()


def _one_path(check: Check, kv: KVCache, host: HostPool, path: str, label: str) -> None:
    """Two rows, out and in."""
    rng, num = np.random.default_rng(2), host.num_blocks
    gpu, back = np.split(rng.permutation(kv.num_blocks), 2)
    there = np.arange(num)
    before = kv.words[torch.as_tensor(gpu)].clone()
    copies: dict[str, list[Copy]] = {"out": [], "in": []}
    enqueue: dict[str, list[float]] = {"out": [], "in": []}
    with Copier(kv, host, path, asynchronous=check.on_cuda) as copier:
        for _ in range(1 if check.quick else 5):
            for way, ask in (
                ("out", lambda: copier.copy_out(gpu, there)),
                ("in", lambda: copier.copy_in(there, back)),
            ):
                began = time.perf_counter()
                copies[way].append(ask())
                enqueue[way].append(time.perf_counter() - began)
                copies[way][-1].wait()
        how = copier.batch_call if path != "loop" else "one call each"
    same = torch.equal(kv.words[torch.as_tensor(back)], before)
    for way in ("out", "in"):
        one = copies[way][0]
        rate = one.num_bytes / statistics.median(c.seconds for c in copies[way]) / 1e9
        run = one.num_bytes / one.num_runs
        note = (
            f"{rate:.1f} GB/s, runs of {run / 1024:.0f} KiB, {one.num_runs} a copy, "
            f"handed over in {statistics.median(enqueue[way]) * 1e3:.2f} ms, {how}"
        )
        share = rate / check.shared.get("link_gb_s", {}).get(way, float("nan"))
        case = f"{path} {way}, layout {kv.layout}, blocks of {label}"
        counts = check.on_cuda and path == "coalesced" and run >= LONG_RUN_BYTES
        if not same:
            check.row(case, share, "of the link", verdict=FAILED, note=f"bytes differ; {note}")
        else:
            check.held(case, share, "of the link", least=TARGET, note=note, counts=counts)


class Pump:
    """Keeps asynchronous copies under way beside steps: call it before each of them."""

    def __init__(self, copier: Copier, gpu: np.ndarray, way: str) -> None:
        there = np.arange(len(gpu))
        self._ask: Callable[[], Copy] = (
            (lambda: copier.copy_out(gpu, there))
            if way == "out"
            else (lambda: copier.copy_in(there, gpu))
        )
        self._copies: list[Copy] = []
        self.num_bytes = 0

    def __call__(self) -> None:
        """Ask for copies until two are under way."""
        self._copies = [c for c in self._copies if not c.done()]
        while len(self._copies) < 2:
            self._copies.append(self._ask())
            self.num_bytes += self._copies[-1].num_bytes

    def drain(self) -> None:
        for copy in self._copies:
            copy.wait()
