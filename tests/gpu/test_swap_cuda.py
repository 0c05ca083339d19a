"""Copies on CUDA: what is asked of streams and driver (on any machine), and the copies themselves (on a card)."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine.gpu import driver_copies, streams
from engine.gpu.copy_paths import Piece, Plan
from engine.gpu.driver_copies import ManyCopies
from engine.gpu.kv_cache import HostPool, KVCache
from engine.gpu.streams import CudaCopy, CudaLanes
from engine.gpu.swap import Copier

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


class PaperCuda:
    """torch.cuda on paper: notes what is asked, in order; a millisecond passes with each event."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now_ms = 0.0
        self.names = iter(["out", "in", "clock"])
        self.compute = PaperStream(self, "compute")

    def Stream(self, device: Any, priority: int = 0) -> PaperStream:
        return PaperStream(self, next(self.names), priority)

    def Event(self, enable_timing: bool) -> PaperEvent:
        assert enable_timing
        return PaperEvent(self)

    def current_stream(self, device: Any) -> PaperStream:
        return self.compute

    @contextlib.contextmanager
    def stream(self, stream: PaperStream) -> Iterator[None]:
        self.log.append(f"enter {stream.name}")
        yield
        self.log.append(f"leave {stream.name}")

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield


class PaperStream:
    def __init__(self, cuda: PaperCuda, name: str, priority: int = 0) -> None:
        self.cuda, self.name, self.priority = cuda, name, priority

    def wait_stream(self, other: PaperStream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: PaperEvent) -> None:
        self.cuda.log.append(f"{self.name} waits for {event.name}")

    def synchronize(self) -> None:
        self.cuda.log.append(f"host waits for {self.name}")


class PaperEvent:
    def __init__(self, cuda: PaperCuda) -> None:
        self.cuda, self.name, self.at_ms = cuda, "nothing", 0.0

    def record(self, stream: PaperStream) -> None:
        self.cuda.now_ms += 1.0
        self.at_ms = self.cuda.now_ms
        self.name = f"{stream.name}@{self.at_ms:g}"
        if stream.name != "clock":
            self.cuda.log.append(f"record {self.name}")

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return self.at_ms > 0

    def elapsed_time(self, later: PaperEvent) -> float:
        return later.at_ms - self.at_ms


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> PaperCuda:
    paper = PaperCuda()
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=paper))
    return paper


def start(lanes: CudaLanes, cuda: PaperCuda, direction: str, *after: CudaCopy) -> CudaCopy:
    copy = lanes.new(direction, 1, 8, 1)
    lanes.start(copy, Plan(1, lambda: cuda.log.append("copy")), after)
    return copy


def test_a_copy_is_enqueued_after_compute_and_after_the_copies_it_needs(
    cuda: PaperCuda,
) -> None:
    lanes = CudaLanes("cuda", None, None)
    outward = start(lanes, cuda, "out")

    start(lanes, cuda, "in", outward)

    assert cuda.log == [
        *("out waits for compute", "enter out", "record out@2", "copy", "record out@3"),
        "leave out",
        *("in waits for compute", "in waits for out@3"),
        *("enter in", "record in@4", "copy", "record in@5", "leave in"),
    ]


def test_a_step_waits_for_a_copy_on_its_stream_while_the_host_goes_on(cuda: PaperCuda) -> None:
    lanes = CudaLanes("cuda", None, None)
    copy = start(lanes, cuda, "out")
    cuda.log.clear()

    copy.wait_on_compute()

    assert cuda.log == ["compute waits for out@3"]


def test_an_engine_may_compute_on_a_stream_of_its_own(cuda: PaperCuda) -> None:
    own = PaperStream(cuda, "own")
    lanes = CudaLanes("cuda", lambda: own, None)

    start(lanes, cuda, "in").wait_on_compute()

    assert cuda.log[0] == "in waits for own"
    assert cuda.log[-1] == "own waits for in@3"


def test_a_delay_is_enqueued_between_the_start_and_the_bytes(cuda: PaperCuda) -> None:
    lanes = CudaLanes("cuda", None, lambda copy: cuda.log.append("delay"))

    start(lanes, cuda, "out")

    assert cuda.log[2:5] == ["record out@2", "delay", "copy"]


def test_device_times_are_put_on_the_host_clock_by_an_anchor(
    cuda: PaperCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = iter([100.0, 100.0, 100.002, 105.0, 111.5, 111.5, 111.5])
    monkeypatch.setattr(streams.time, "perf_counter", lambda: next(host))
    lanes = CudaLanes("cuda", None, None)

    first = start(lanes, cuda, "out")  # anchored at 100.001 s, device time 1 ms
    second = start(lanes, cuda, "out")  # at 105 s: the anchor is still good
    third = start(lanes, cuda, "out")  # at 111.5 s: a new one, device time 6 ms

    assert first.started_s == pytest.approx(100.002)
    assert (first.ended_s, first.seconds) == (pytest.approx(100.003), 0.001)
    assert second.started_s == pytest.approx(100.004)
    assert third.started_s == pytest.approx(111.501)


# --- the driver's call ----------------------------------------------------------------------------


class PaperDriver:
    """cuMemcpyBatchAsync of one CUDA version, between host addresses; notes the stream it was given."""

    def __init__(self, symbol: str, code: int = 0, same_address: int = 1) -> None:
        self.code, self.streams, self.same_address = code, [], same_address

        def call(dst, src, sizes, count, attributes, first, num, *rest):  # type: ignore[no-untyped-def]
            (stream,) = rest[1:] if symbol == "cuMemcpyBatchAsync" else rest
            assert first._obj.value == 0
            assert num.value == 1
            assert attributes._obj.source_access_order == 1
            assert ctypes.sizeof(attributes._obj) == 24
            self.streams.append(stream.value)
            arrays = [
                np.ctypeslib.as_array((ctypes.c_uint64 * count.value).from_address(p.value))
                for p in (dst, src, sizes)
            ]
            for to, of, size in zip(*(a.tolist() for a in arrays), strict=True):
                ctypes.memmove(to, of, size)
            return self.code

        setattr(self, symbol, call)

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        device._obj.value = 40 + ordinal.value
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: Any, device: Any) -> int:
        assert (attribute.value, device.value) == (91, 43)
        value._obj.value = self.same_address
        return 0


@pytest.fixture
def paper_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of this machine stand for device addresses; the trial run is left out."""
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(ManyCopies, "_try_out", lambda self: "")


@pytest.mark.parametrize("symbol", ["cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync"])
@pytest.mark.parametrize(
    ("layout", "split"), [("block", False), ("block", True), ("layer", True)]
)
def test_the_driver_gets_the_addresses_and_sizes_of_every_piece(
    symbol: str, layout: str, split: bool, paper_device: None
) -> None:
    kv = KVCache(6, 3, 4, 2, 8, dtype="float32", layout=layout)
    host = HostPool(kv, 6)
    kv.blocks.copy_(torch.arange(kv.blocks.numel()).view(kv.blocks.shape))
    driver = PaperDriver(symbol)
    first, lengths = np.array([4, 0]), np.array([1, 1] if split else [2, 1])

    many = ManyCopies("cuda", driver)
    many(Piece(host, np.array([1, 5])), Piece(kv, first), lengths, split)

    assert many.name == "cuMemcpyBatchAsync"
    assert driver.streams == [77]
    assert torch.equal(host.blocks[1], kv.blocks[4])
    assert torch.equal(host.blocks[5], kv.blocks[0])
    assert torch.equal(
        host.blocks[2], kv.blocks[5] if not split else torch.zeros(3, 2, 4, 2, 8)
    )
    assert (host.blocks[[0, 3, 4]] == 0).all()


def test_a_refusal_of_the_driver_is_an_error(paper_device: None) -> None:
    kv = KVCache(2, 1, 4, 1, 8, dtype="float32")
    many = ManyCopies("cuda", PaperDriver("cuMemcpyBatchAsync_v2", code=1))

    with pytest.raises(RuntimeError, match="refused 1 copies with CUDA error 1"):
        many(
            Piece(HostPool(kv, 2), np.array([0])),
            Piece(kv, np.array([1])),
            np.array([1]),
            False,
        )


def test_an_old_driver_is_named_as_the_reason_for_torchs_loop() -> None:
    many = ManyCopies("cuda", SimpleNamespace())

    assert many.name == (
        "torch._foreach_copy_ (cuMemcpyBatchAsync: needs a driver for CUDA 12.8 or newer)"
    )


def test_a_device_with_other_addresses_for_pinned_memory_gets_torchs_loop(
    paper_device: None,
) -> None:
    many = ManyCopies("cuda", PaperDriver("cuMemcpyBatchAsync_v2", same_address=0))

    assert "pinned memory has other addresses" in many.name


def test_pageable_memory_is_not_given_to_the_driver_in_one_call(paper_device: None) -> None:
    many = ManyCopies("cuda", PaperDriver("cuMemcpyBatchAsync_v2"), pinned=False)

    assert "not pinned" in many.name


def test_a_driver_that_fails_its_trial_is_not_used(
    paper_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ManyCopies, "_try_out", lambda self: "it moved other bytes")
    kv = KVCache(2, 1, 4, 1, 8, dtype="float32")
    kv.blocks[1] = 3.0
    host = HostPool(kv, 2)

    many = ManyCopies("cuda", PaperDriver("cuMemcpyBatchAsync_v2"))
    many(Piece(host, np.array([0])), Piece(kv, np.array([1])), np.array([1]), False)

    assert "it moved other bytes" in many.name
    assert (host.blocks[0] == 3.0).all()


def test_the_library_of_the_driver_is_looked_for_by_its_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def load(name: str) -> Any:
        asked.append(name)
        raise OSError(name)

    monkeypatch.setattr(driver_copies.ctypes, "CDLL", load)

    assert "no libcuda.so.1" in ManyCopies("cuda").name
    assert asked == ["libcuda.so.1", "libcuda.so"]


# --- on a card ------------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("path", ["loop", "batch", "coalesced", "staged"])
@pytest.mark.parametrize("layout", ["block", "layer"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_swapped_blocks_come_back_bit_for_bit_on_a_card(
    dtype: str, layout: str, path: str, asynchronous: bool
) -> None:
    kv = KVCache(64, 4, 16, 2, 64, dtype=dtype, device="cuda", layout=layout)
    kv.words.random_(0, 2**15)
    host, rng = HostPool(kv, 40), np.random.default_rng(5)
    gpu, back = np.split(rng.permutation(64), 2)
    there = np.arange(3, 35)
    before = kv.words[torch.as_tensor(gpu)].cpu()
    below = 2**20 if path == "staged" else 0
    name = "coalesced" if path == "staged" else path

    with Copier(
        kv,
        host,
        name,
        asynchronous,
        stage_below_bytes=below,
        staging_bytes=10 * kv.block_bytes,
        before_copy=lambda copy: torch.cuda._sleep(2_000_000),
    ) as copier:
        out = copier.copy_out(gpu, there)
        out.wait_on_compute()
        kv.poison(gpu)
        inward = copier.copy_in(there, back)
        inward.wait_on_compute()
        after = kv.words[torch.as_tensor(back)].cpu()

    assert host.pinned
    assert torch.equal(after, before)
    assert torch.equal(host.words[torch.as_tensor(there)], before)
    assert out.ended_s <= inward.started_s
    host.close()


@pytest.mark.gpu
@needs_gpu
def test_a_card_reuses_a_block_too_early_without_a_fence_and_not_with_it() -> None:
    kv = KVCache(8, 4, 16, 2, 64, dtype="float32", device="cuda")
    host = HostPool(kv, 8)
    kv.blocks.fill_(1.0)
    torch.cuda.synchronize()

    with Copier(
        kv, host, asynchronous=True, before_copy=lambda copy: torch.cuda._sleep(100_000_000)
    ) as copier:
        early = copier.copy_out([3], [0])
        copier.order_step()
        kv.poison([3])  # no fence
        early.wait()
        fenced = copier.copy_out([4], [1])
        fenced.wait_on_compute()
        kv.poison([4])
        fenced.wait()

    assert torch.isnan(host.blocks[0]).all()
    assert (host.blocks[1] == 1.0).all()
    host.close()


@pytest.mark.gpu
@needs_gpu
def test_a_blocking_step_on_a_card_waits_for_its_copies() -> None:
    kv = KVCache(8, 4, 16, 2, 64, dtype="float32", device="cuda")
    host = HostPool(kv, 8)
    kv.blocks.fill_(1.0)

    with Copier(kv, host, before_copy=lambda copy: torch.cuda._sleep(100_000_000)) as copier:
        copier.copy_out([3], [0])
        copier.order_step()
        kv.poison([3])
        copier.after_step()

    assert (host.blocks[0] == 1.0).all()
    host.close()


@pytest.mark.gpu
@needs_gpu
def test_asynchronous_copies_refuse_memory_that_is_not_pinned() -> None:
    kv = KVCache(8, 4, 16, 2, 64, dtype="float32", device="cuda")

    with pytest.raises(Exception, match="need pinned host memory"):
        Copier(kv, HostPool(kv, 8, pin=False), asynchronous=True)
