"""Where copies run: two side streams on CUDA, two threads on a CPU, one for each direction.

Each lane keeps its copies in the order in which they were given. The module knows how a copy is started
after others, timed and waited for; not which blocks it moves (copy_paths.py), nor which copies must wait
for which (swap.py). All times are perf_counter seconds of this process.
"""

from __future__ import annotations

import enum
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from engine.gpu.copy_paths import Plan

Hook = Callable[["Copy"], None]
_ANCHOR_EVERY_S = 10.0  # elapsed_time is a float of milliseconds: 1 us is lost at 16 s


class State(enum.Enum):
    """A copy is running until its last byte has arrived or something stopped it."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    FAILED_AND_TOLD = "failed, and somebody was told"


class Copy:
    """One transfer of blocks under way or done.

    direction: "out" (device to host) or "in"; num_blocks, num_bytes: what it moves; num_runs: separate
    copies that cross the link.
    """

    def __init__(self, direction: str, num_blocks: int, num_bytes: int, num_runs: int) -> None:
        self.direction = direction
        self.num_blocks = num_blocks
        self.num_bytes = num_bytes
        self.num_runs = num_runs

    def state(self) -> State:
        """How it stands, without waiting and without raising what stopped it."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether all bytes have arrived, without waiting. Raises what stopped the copy, if anything did."""
        raise NotImplementedError

    def wait(self) -> None:
        """Have the host wait until all bytes have arrived. Raises what stopped the copy."""
        raise NotImplementedError

    def wait_on_compute(self) -> None:
        """Have what is enqueued on the compute stream from now on wait; on CUDA the host goes on at once."""
        raise NotImplementedError

    @property
    def started_s(self) -> float:
        """When its first byte could move: earlier copies and steps it waits for are over. Waits for its end."""
        raise NotImplementedError

    @property
    def ended_s(self) -> float:
        """When its last byte had arrived. Waits for that."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """How long it held its link. Waits for its end."""
        return self.ended_s - self.started_s


class Lanes(Protocol):
    """Two lanes; see CudaLanes and CpuLanes."""

    def start(self, copy: Any, plan: Plan, after: Sequence[Any]) -> None: ...
    def new(self, direction: str, blocks: int, num_bytes: int, runs: int) -> Any: ...
    def close(self) -> None: ...


class CudaCopy(Copy):
    """A transfer between two events of its lane's stream."""

    def __init__(self, *what: Any, lanes: CudaLanes) -> None:
        super().__init__(*what)
        self._lanes = lanes
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self._anchor = lanes.clock.anchor()

    def state(self) -> State:
        return (
            State.ENDED if self.done() else State.RUNNING
        )  # a failing device raises: all is lost

    def done(self) -> bool:
        return bool(self.end.query())

    def wait(self) -> None:
        self.end.synchronize()

    def wait_on_compute(self) -> None:
        self._lanes.compute_stream().wait_event(self.end)

    @property
    def started_s(self) -> float:
        self.wait()
        event, at_s = self._anchor
        return float(at_s + event.elapsed_time(self.start) / 1e3)

    @property
    def ended_s(self) -> float:
        return self.started_s + self.seconds

    @property
    def seconds(self) -> float:
        self.wait()
        return float(self.start.elapsed_time(self.end) / 1e3)


class DeviceClock:
    """Pairs of a device event and the host time at which it fired."""

    def __init__(self, device: Any) -> None:
        self._stream = torch.cuda.Stream(
            device
        )  # nothing else runs on it: its events fire at once
        self._pair: tuple[Any, float] | None = None

    def anchor(self) -> tuple[Any, float]:
        """(event, perf_counter seconds), at most _ANCHOR_EVERY_S old."""
        now = time.perf_counter()
        if self._pair is None or now - self._pair[1] > _ANCHOR_EVERY_S:
            event = torch.cuda.Event(enable_timing=True)
            before = time.perf_counter()
            event.record(self._stream)
            event.synchronize()
            self._pair = event, (before + time.perf_counter()) / 2
        return self._pair


class CudaLanes:
    """A stream out and a stream in beside the compute stream.

    compute_stream: gives the stream on which steps are enqueued; before_copy: called with a copy on its
    stream, before its bytes move (a test delays it there).
    """

    def __init__(
        self, device: Any, compute_stream: Callable[[], Any] | None, before_copy: Hook | None
    ) -> None:
        self.device = device
        self._compute = compute_stream
        self._before = before_copy
        # High priority, so that gathering is not queued behind the kernels of a whole step.
        self._streams = {d: torch.cuda.Stream(device, priority=-1) for d in ("out", "in")}
        self.clock = DeviceClock(device)

    def compute_stream(self) -> Any:
        """The stream on which steps are enqueued."""
        return self._compute() if self._compute else torch.cuda.current_stream(self.device)

    def new(self, direction: str, blocks: int, num_bytes: int, runs: int) -> CudaCopy:
        return CudaCopy(direction, blocks, num_bytes, runs, lanes=self)

    def start(self, copy: CudaCopy, plan: Plan, after: Sequence[CudaCopy]) -> None:
        """Enqueue: after all compute enqueued so far, after the copies `after`, after its lane's last."""
        stream = self._streams[copy.direction]
        stream.wait_stream(self.compute_stream())
        for other in after:
            stream.wait_event(other.end)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            copy.start.record(stream)
            if self._before:
                self._before(copy)
            plan.run()
            copy.end.record(stream)

    def close(self) -> None:
        """Wait for both streams."""
        for stream in self._streams.values():
            stream.synchronize()


class CpuCopy(Copy):
    """A transfer that a thread makes, or has been made where copies block."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.ended = threading.Event()
        self.fault: BaseException | None = None
        self._told = False
        self._times = (0.0, 0.0)

    def make(self, plan: Plan, after: Sequence[CpuCopy], before: Hook | None) -> None:
        """Wait for `after`, move the bytes, keep times or fault. Never raises: whoever waits is told."""
        try:
            for other in after:
                other.ended.wait()
                if other.fault is not None:
                    raise RuntimeError(
                        "the copy that this one waits for failed"
                    ) from other.fault
            start = time.perf_counter()
            if before:
                before(self)
            plan.run()
            self._times = start, time.perf_counter()
        except BaseException as fault:
            self.fault = fault
        self.ended.set()

    def state(self) -> State:
        if not self.ended.is_set():
            return State.RUNNING
        if self.fault is None:
            return State.ENDED
        return State.FAILED_AND_TOLD if self._told else State.FAILED

    def done(self) -> bool:
        ended = self.ended.is_set()
        if ended and self.fault is not None:
            self._told = True
            raise self.fault
        return ended

    def wait(self) -> None:
        self.ended.wait()
        self.done()

    def wait_on_compute(self) -> None:
        self.wait()  # on a CPU the host computes

    @property
    def started_s(self) -> float:
        self.wait()
        return self._times[0]

    @property
    def ended_s(self) -> float:
        self.wait()
        return self._times[1]


class CpuLanes:
    """A thread out and a thread in where copies are asynchronous (torch's copies let go of the GIL);
    otherwise copies are made where they are asked for."""

    def __init__(self, asynchronous: bool, before_copy: Hook | None) -> None:
        self._before = before_copy
        self._work: dict[str, queue.SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []
        for direction in ("out", "in") if asynchronous else ():
            work: queue.SimpleQueue[Any] = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(work,), name=f"kv-copy-{direction}", daemon=True
            )
            thread.start()
            self._work[direction] = work
            self._threads.append(thread)

    def new(self, direction: str, blocks: int, num_bytes: int, runs: int) -> CpuCopy:
        return CpuCopy(direction, blocks, num_bytes, runs)

    def start(self, copy: CpuCopy, plan: Plan, after: Sequence[CpuCopy]) -> None:
        """Make the copy, or hand it to its lane; whatever was computed so far on a CPU is over."""
        if self._work:
            self._work[copy.direction].put((copy, plan, after))
        else:
            copy.make(plan, after, self._before)
            copy.done()

    def _serve(self, work: queue.SimpleQueue[Any]) -> None:
        while (job := work.get()) is not None:
            copy, plan, after = job
            copy.make(plan, after, self._before)

    def close(self) -> None:
        """Let both threads finish what they were given and end."""
        for work in self._work.values():
            work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
