"""Decode under CUDA graphs: for which numbers of requests, capture, replay, and what they hold.

A graph replays the kernels that were launched while it was captured, on the same addresses. It is told
nothing at replay: what changes between steps lies in buffers, and a step is padded to a size that was
captured. It knows sizes and captured work; not the model, not what is in the buffers (forward.py).

A graph ends with the hidden states. Logits and sampling stay outside: the host enqueues them while
the graph runs, so they cost no time; only rows that sample get logits (a captured head would keep a
padded [requests, vocabulary] buffer); and it is the same code as for steps without a graph.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

LARGEST = 512  # requests; above it a step is so long that launches no longer count

Replay = Callable[[], None]


class PaddedDecode(Protocol):
    """Work that can be captured: a decode of so many requests, on buffers that never move."""

    def rehearse(self, size: int) -> None:
        """Fill the buffers with padding and run, so that everything is compiled and allocated."""

    def run(self, size: int) -> None:
        """Compute what the buffers hold; launches depend on size alone."""


class Capturer(Protocol):
    """Makes graphs. used_bytes(): device memory in use, to tell what the graphs took."""

    def rehearse(self, run: Callable[[], None]) -> None: ...
    def capture(self, run: Callable[[], None]) -> Replay: ...
    def used_bytes(self) -> int: ...


def bucket_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Sizes to capture: 1, 2, 4, 8 and then every eighth, up to max_num_seqs or 512, which is one."""
    most = min(max_num_seqs, LARGEST)
    return (*(n for n in (1, 2, 4) if n < most), *range(8, most, 8), most)


class DecodeGraphs:
    """A graph for each size, captured largest first, so that the smaller ones fit into its memory.

    sizes: ascending; memory_bytes: what they took from the device.
    """

    def __init__(self, work: PaddedDecode, sizes: Sequence[int], capturer: Capturer) -> None:
        self.sizes = tuple(sorted(sizes))
        self._replays: dict[int, Replay] = {}
        before = capturer.used_bytes()
        for size in reversed(self.sizes):
            capturer.rehearse(partial(work.rehearse, size))
            self._replays[size] = capturer.capture(partial(work.run, size))
        self.memory_bytes = max(0, capturer.used_bytes() - before)

    def size_for(self, num_requests: int) -> int | None:
        """The smallest size that holds so many requests; None: there is none."""
        at = bisect_left(self.sizes, num_requests)
        return self.sizes[at] if at < len(self.sizes) else None

    def replay(self, size: int) -> None:
        """Enqueue the work captured for `size` on the current stream."""
        self._replays[size]()


def capture_or_warn(
    work: PaddedDecode, sizes: Sequence[int], capturer: Capturer
) -> DecodeGraphs | None:
    """The graphs, or None with a warning that says why there are none: decode then runs without."""
    try:
        return DecodeGraphs(work, sizes, capturer)
    except RuntimeError as fault:  # also torch.OutOfMemoryError and torch.AcceleratorError
        reason = str(fault).strip().split("\n")[0]
        warnings.warn(
            f"decode runs without CUDA graphs, which is slower for small models: capturing them failed "
            f"({type(fault).__name__}: {reason}). Use --no-cuda-graphs to run like this without trying, "
            "or a lower --gpu-memory-utilization if memory was short.",
            stacklevel=2,
        )
        return None


class CudaCapturer:
    """Graphs of one device: one memory pool and one side stream for all of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def rehearse(self, run: Callable[[], None]) -> None:
        """Run on the stream of the capture, whose libraries' workspaces are its own."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)

    def capture(self, run: Callable[[], None]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                run()
        finally:
            # After a fault in a capture torch leaves the side stream current.
            torch.cuda.set_stream(current)
        replay: Replay = graph.replay
        return replay

    def used_bytes(self) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)
