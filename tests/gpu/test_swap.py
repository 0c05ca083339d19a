"""Copies of blocks: every byte arrives, runs are counted, and nothing starts before what it depends on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from engine.gpu.copy_paths import runs_of
from engine.gpu.kv_cache import KV_DTYPES, HostPool, KVCache
from engine.gpu.swap import Copier, Copy, HostBlocks
from traces.errors import InvariantError, SettingsError

torch.set_num_threads(1)
WAIT_S = 20.0  # a test that waits longer has failed


def make_kv(num_blocks: int = 12, layout: str = "block", dtype: str = "float32") -> KVCache:
    """Blocks of 4 tokens, 3 layers, 2 KV heads of 8; every element differs from its neighbours."""
    kv = KVCache(num_blocks, 3, 4, 2, 8, dtype=dtype, layout=layout)
    noise = torch.Generator().manual_seed(7)
    values = torch.randint(0, 256, kv.words.shape, generator=noise, dtype=torch.int64)
    kv.words.copy_(
        values * 0x0101_0307_0F1F_3F7F
    )  # arbitrary bits: NaN payloads and denormals too
    return kv


def as_bits(pool: Any, ids: Any) -> Any:
    """A copy of the bytes of some blocks, as integers: equal only where every bit is."""
    return pool.words[torch.as_tensor(np.asarray(ids))].clone()


class Gate:
    """Holds copies back until open() is called; notes those that have begun."""

    def __init__(self, direction: str = "out") -> None:
        self.direction = direction
        self.opened = threading.Event()
        self.begun = threading.Event()

    def __call__(self, copy: Copy) -> None:
        if copy.direction == self.direction:
            self.begun.set()
            assert self.opened.wait(WAIT_S)

    def open(self) -> None:
        self.opened.set()


# --- every byte arrives ---------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("path", ["loop", "batch", "coalesced", "staged"])
@pytest.mark.parametrize("layout", ["block", "layer"])
@pytest.mark.parametrize("dtype", sorted(KV_DTYPES))
def test_swapped_blocks_come_back_bit_for_bit(
    dtype: str, layout: str, path: str, asynchronous: bool
) -> None:
    kv = make_kv(layout=layout, dtype=dtype)
    host = HostPool(kv, 9)
    gpu, there, back = [7, 2, 3, 11, 0], [5, 6, 0, 1, 2], [1, 4, 9, 5, 6]
    before, others = as_bits(kv, gpu), as_bits(kv, [8, 10])
    staged = {"stage_below_bytes": 2**20, "staging_bytes": 3 * kv.block_bytes}

    with Copier(
        kv,
        host,
        "coalesced" if path == "staged" else path,
        asynchronous,
        **(staged if path == "staged" else {}),
    ) as copier:
        out = copier.copy_out(gpu, there)
        out.wait()
        kv.poison(gpu)
        copier.copy_in(there, back).wait()

    if (
        path == "staged"
    ):  # 0-2 and 5-6 on the host, for each layer's K and V where they lie apart
        assert out.num_runs == (2 if layout == "block" else 12)
    assert torch.equal(as_bits(kv, back), before)
    assert torch.equal(as_bits(host, there), before)
    assert torch.equal(as_bits(kv, [8, 10]), others)
    assert (as_bits(host, [3, 4, 7, 8]) == 0).all()


def test_a_staged_copy_is_really_staged_and_needs_fewer_runs() -> None:
    kv = make_kv()
    host = HostPool(kv, 9)
    gpu, there = [7, 2, 5, 11], [3, 4, 5, 6]  # one run on the host, four on the device

    with Copier(kv, host, stage_below_bytes=0) as copier:
        assert copier.copy_out(gpu, there).num_runs == 4
    with Copier(kv, host, stage_below_bytes=2**20) as copier:
        assert copier.copy_out(gpu, there).num_runs == 1
    with Copier(kv, host, stage_below_bytes=2**20, staging_bytes=2 * kv.block_bytes) as copier:
        assert copier.copy_in(there, gpu).num_runs == 2  # two slabs of two blocks
    with Copier(kv, host, stage_below_bytes=kv.block_bytes) as copier:
        assert copier.copy_out(gpu, there).num_runs == 4  # blocks are long enough as they are


# --- runs and bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "layout", "num_runs"),
    [
        ("loop", "block", 18),  # 3 blocks x 3 layers x K and V
        ("loop", "layer", 18),
        ("batch", "block", 18),
        ("batch", "layer", 18),
        ("coalesced", "block", 2),  # 4-5 and 9
        ("coalesced", "layer", 12),  # the same two, layer by layer, K and V apart
    ],
)
def test_runs_and_bytes_are_counted_along_each_path(
    path: str, layout: str, num_runs: int
) -> None:
    kv = make_kv(layout=layout)

    with Copier(kv, HostPool(kv, 6), path) as copier:
        copy = copier.copy_out([4, 5, 9], [1, 2, 3])

    assert copy.num_runs == num_runs
    assert copy.num_bytes == 3 * 1536
    assert (copy.direction, copy.num_blocks) == ("out", 3)


@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [
        ([3], [8], [(3, 8, 1)]),
        ([3, 4, 5], [7, 8, 9], [(3, 7, 3)]),
        ([5, 3, 4], [9, 7, 8], [(3, 7, 3)]),  # the order of the pairs does not matter
        ([3, 4, 5], [9, 8, 7], [(5, 7, 1), (4, 8, 1), (3, 9, 1)]),  # one runs down
        ([3, 4, 6], [7, 8, 9], [(3, 7, 2), (6, 9, 1)]),
        ([3, 4, 5], [7, 8, 1], [(5, 1, 1), (3, 7, 2)]),
    ],
)
def test_a_run_is_adjacent_on_both_sides(
    device: list[int], host: list[int], expected: list[tuple[int, int, int]]
) -> None:
    runs = runs_of(np.array(device), np.array(host))

    assert list(zip(*(column.tolist() for column in runs), strict=True)) == expected


def test_times_lie_on_the_host_clock_and_add_up() -> None:
    kv = make_kv()
    with Copier(kv, HostPool(kv, 9), asynchronous=True) as copier:
        first, second = copier.copy_out([1], [1]), copier.copy_out([2], [2])

    assert first.started_s <= first.ended_s <= second.started_s <= second.ended_s
    assert first.seconds == first.ended_s - first.started_s > 0


# --- order ----------------------------------------------------------------------------------------


def test_a_block_reused_before_its_copy_has_ended_is_corrupted_and_found_out() -> None:
    kv, gate = make_kv(), Gate()
    host = HostPool(kv, 9)

    with Copier(kv, host, asynchronous=True, before_copy=gate) as copier:
        copy = copier.copy_out([3], [0])
        assert not copy.done()
        kv.poison([3])  # no fence: somebody else's now
        gate.open()
        copy.wait()

    assert torch.isnan(host.blocks[0]).all()


def test_a_block_reused_when_its_copy_is_done_is_safe_on_the_host() -> None:
    kv, gate = make_kv(), Gate()
    host, before = HostPool(kv, 9), as_bits(kv, [3])

    with Copier(kv, host, asynchronous=True, before_copy=gate) as copier:
        copy = copier.copy_out([3], [0])
        gate.open()
        copy.wait()
        assert copy.done()
        kv.poison([3])

    assert torch.equal(as_bits(host, [0]), before)


def test_a_blocking_copy_is_over_before_the_step_that_reuses_its_block() -> None:
    kv = make_kv()
    host, before = HostPool(kv, 9), as_bits(kv, [3])

    with Copier(kv, host, asynchronous=False) as copier:
        copy = copier.copy_out([3], [0])
        copier.order_step()
        assert copy.done()
        kv.poison([3])
        copier.after_step()

    assert torch.equal(as_bits(host, [0]), before)


def test_waiting_on_compute_holds_back_the_step_that_reuses_a_block() -> None:
    kv, gate = make_kv(), Gate()
    host, before = HostPool(kv, 9), as_bits(kv, [3])

    with Copier(kv, host, asynchronous=True, before_copy=gate) as copier:
        copy = copier.copy_out([3], [0])
        threading.Timer(0.05, gate.open).start()
        copy.wait_on_compute()
        kv.poison([3])

    assert torch.equal(as_bits(host, [0]), before)


def test_a_copy_in_waits_for_the_copy_out_of_the_same_device_block() -> None:
    kv, gate = make_kv(), Gate()
    host = HostPool(kv, 9)
    host.blocks[5] = 2.0
    before = as_bits(kv, [3])

    with Copier(kv, host, asynchronous=True, before_copy=gate) as copier:
        copier.copy_out([3], [0])
        inward = copier.copy_in([5], [3])
        assert gate.begun.wait(WAIT_S)
        assert not inward.done()
        gate.open()

    assert torch.equal(as_bits(host, [0]), before)
    assert (kv.blocks[3] == 2.0).all()


def test_a_copy_in_waits_for_the_copy_out_that_fills_its_host_block() -> None:
    kv, gate = make_kv(), Gate()
    before = as_bits(kv, [3])

    with Copier(kv, HostPool(kv, 9), asynchronous=True, before_copy=gate) as copier:
        copier.copy_out([3], [0])
        copier.copy_out([4], [1])
        inward = copier.copy_in([0], [7])
        assert gate.begun.wait(WAIT_S)
        assert not inward.done()
        gate.open()

    assert torch.equal(as_bits(kv, [7]), before)


def test_a_copy_out_waits_for_the_copy_in_that_still_reads_its_host_block() -> None:
    kv, gate = make_kv(), Gate("in")
    host = HostPool(kv, 9)
    host.blocks[0] = 2.0

    with Copier(kv, host, asynchronous=True, before_copy=gate) as copier:
        copier.copy_in([0], [7])
        outward = copier.copy_out([3], [0])
        assert gate.begun.wait(WAIT_S)
        assert not outward.done()
        gate.open()

    assert (kv.blocks[7] == 2.0).all()
    assert torch.equal(as_bits(host, [0]), as_bits(kv, [3]))


def test_copies_that_share_no_block_run_in_both_directions_at_once() -> None:
    kv, gate = make_kv(), Gate()
    host = HostPool(kv, 9)
    host.blocks[5] = 2.0

    with Copier(kv, host, asynchronous=True, before_copy=gate) as copier:
        outward = copier.copy_out([3], [0])
        inward = copier.copy_in([5], [7])
        inward.wait()
        assert not outward.done()
        gate.open()

    assert (kv.blocks[7] == 2.0).all()


def test_an_asynchronous_step_does_not_wait_for_copies() -> None:
    kv, gate = make_kv(), Gate()

    with Copier(kv, HostPool(kv, 9), asynchronous=True, before_copy=gate) as copier:
        copy = copier.copy_out([3], [0])
        copier.order_step()  # would not come back if it waited: the gate is shut
        copier.after_step()
        assert not copy.done()
        gate.open()


def test_many_random_swaps_keep_every_requests_blocks() -> None:
    """Four requests of four blocks move in and out 60 times; freed blocks are poisoned once fenced."""
    rng, kv = np.random.default_rng(3), make_kv(num_blocks=16)
    host, host_ids = HostPool(kv, 20), HostBlocks(20)
    free = list(range(16))
    homes: dict[int, Any] = {}
    for r in range(4):
        homes[r] = ("gpu", [free.pop() for _ in range(4)])
    content = {r: as_bits(kv, ids) for r, (_, ids) in homes.items()}
    fenced: list[tuple[Copy, list[int]]] = []

    with Copier(kv, host, asynchronous=True) as copier:
        for _ in range(60):
            for copy, ids in [f for f in fenced if f[0].done()]:
                kv.poison(ids)
                free += ids
                fenced.remove((copy, ids))
            r = int(rng.integers(4))
            side, ids = homes[r]
            if side == "gpu":
                there = host_ids.allocate(4)
                assert there is not None
                fenced.append((copier.copy_out(ids, there), ids))
                homes[r] = ("host", there)
            elif len(free) >= 4:
                back = [free.pop(int(rng.integers(len(free)))) for _ in range(4)]
                copier.copy_in(ids, back).wait()
                host_ids.free(ids)
                homes[r] = ("gpu", back)
            copier.order_step()
            copier.after_step()

    for r, (side, ids) in homes.items():
        assert torch.equal(as_bits(kv if side == "gpu" else host, ids), content[r])


# --- faults ---------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def break_out(copy: Copy) -> None:
    if copy.direction == "out":
        raise Broken("the link is down")


def test_a_fault_in_a_copy_surfaces_where_it_is_waited_for() -> None:
    kv = make_kv()
    with Copier(kv, HostPool(kv, 9), asynchronous=True, before_copy=break_out) as copier:
        copy = copier.copy_out([3], [0])

        with pytest.raises(Broken):
            copy.wait()
        with pytest.raises(Broken):
            copy.done()
        with pytest.raises(Broken):
            _ = copy.seconds


def test_a_copy_that_needs_a_failed_one_fails_too() -> None:
    kv = make_kv()
    with Copier(kv, HostPool(kv, 9), asynchronous=True, before_copy=break_out) as copier:
        first = copier.copy_out([3], [0])
        second = copier.copy_in([0], [4])
        third = copier.copy_in([1], [5])

        with pytest.raises(RuntimeError, match="the copy that this one waits for failed"):
            second.wait()
        with pytest.raises(Broken):
            first.wait()
        third.wait()


def test_a_fault_nobody_asked_for_is_raised_by_close() -> None:
    kv = make_kv()
    copier = Copier(kv, HostPool(kv, 9), asynchronous=True, before_copy=break_out)
    copier.copy_out([3], [0])
    copier.order_step()
    copier.after_step()

    with pytest.raises(Broken):
        copier.close()


def test_a_blocking_copy_raises_where_it_is_asked_for() -> None:
    kv = make_kv()

    with (
        pytest.raises(Broken),
        Copier(kv, HostPool(kv, 9), before_copy=break_out) as copier,
    ):
        copier.copy_out([3], [0])


def test_close_finishes_what_was_asked_for_and_ends_the_threads() -> None:
    kv, gate = make_kv(), Gate()
    copier = Copier(kv, HostPool(kv, 9), asynchronous=True, before_copy=gate)
    copies = [copier.copy_out([i], [i]) for i in range(5)]
    threading.Timer(0.05, gate.open).start()

    copier.close()
    copier.close()

    assert all(copy.done() for copy in copies)
    assert not [t for t in threading.enumerate() if t.name.startswith("kv-copy")]
    with pytest.raises(InvariantError, match="after the copier was closed"):
        copier.copy_out([0], [0])


@pytest.mark.parametrize(
    ("gpu", "host", "sentence"),
    [
        ([12], [0], "GPU blocks [12] are not among 12"),
        ([0], [-1], "host blocks [-1] are not among 9"),
        ([0, 1], [2, 2], "host blocks [2, 2] name one block twice"),
        ([0, 1], [2], "2 GPU blocks, 1 host blocks"),
        ([], [], "a copy of no GPU blocks"),
    ],
)
def test_ids_that_cannot_be_are_a_broken_law(
    gpu: list[int], host: list[int], sentence: str
) -> None:
    kv = make_kv()
    with Copier(kv, HostPool(kv, 9)) as copier, pytest.raises(InvariantError) as fault:
        copier.copy_out(gpu, host)

    assert sentence in str(fault.value)


def test_settings_that_cannot_be_are_refused() -> None:
    kv = make_kv()

    with pytest.raises(SettingsError, match="Choose one of loop, batch, coalesced"):
        Copier(kv, HostPool(kv, 2), "teleport")
    with pytest.raises(SettingsError, match="are not the device's"):
        Copier(kv, HostPool(make_kv(layout="layer"), 2))


# --- host block ids -------------------------------------------------------------------------------


def test_host_blocks_come_as_an_ascending_run_from_the_shortest_gap_that_holds_them() -> None:
    blocks = HostBlocks(12)
    held = blocks.allocate(12)
    assert held is not None
    blocks.free([1, 2, 3, 4, 5])  # a gap of five
    blocks.free([9, 8, 7])  # and one of three

    got = blocks.allocate(3)

    assert got is not None
    assert got.tolist() == [7, 8, 9]
    assert blocks.num_free == 5


def test_host_blocks_take_the_longest_gaps_where_no_gap_holds_them_all() -> None:
    blocks = HostBlocks(12)
    blocks.allocate(12)
    blocks.free([0, 4, 5, 6, 9, 10])

    got = blocks.allocate(5)

    assert got is not None
    assert got.tolist() == [4, 5, 6, 9, 10]


def test_host_blocks_say_none_when_there_is_no_room_now() -> None:
    blocks = HostBlocks(4)
    blocks.allocate(3)

    assert blocks.allocate(2) is None
    assert blocks.num_free == 1
    assert HostBlocks(0).allocate(1) is None


@pytest.mark.parametrize("ids", [[2], [0, 0], [4], [-1]])
def test_host_blocks_refuse_what_is_free_already_or_unknown(ids: list[int]) -> None:
    blocks = HostBlocks(4)
    blocks.allocate(2)

    with pytest.raises(InvariantError, match="host blocks"):
        blocks.free(ids)
    assert blocks.num_free == 2
