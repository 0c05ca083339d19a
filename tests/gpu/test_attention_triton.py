"""triton_paged without a GPU: its arithmetic in Triton's interpreter, its kernels through the compiler.

The interpreter has to be chosen before Triton is imported, so these tests run in processes of their
own. What neither can show is speed, and anything that only the hardware does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.gpu.attention import triton_paged
from engine.gpu.attention.need import Need
from engine.gpu.attention.triton_paged import choose_tiles
from tests.gpu.attention_worlds import Shape, make_world
from traces.errors import InvariantError

pytest.importorskip("triton", reason="Triton is not installed")
ROOT = Path(__file__).parents[2]


def in_a_process(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_kernels_equal_gather_sdpa_in_tritons_interpreter():
    file = "tests/gpu/interpreted_attention.py"

    run = in_a_process(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", file], TRITON_INTERPRET="1"
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "skipped" not in run.stdout


def test_every_launch_compiles_for_hopper_without_spilling_and_with_tensor_cores(tmp_path):
    import triton

    if not (Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump").exists():
        pytest.skip("this Triton carries no compiler for NVIDIA")
    cases = ["bfloat16:64", "bfloat16:64:512"]

    run = in_a_process(
        ["-m", "tests.gpu.compiled_attention", *cases],
        TRITON_CACHE_DIR=str(tmp_path),
        TRITON_INTERPRET="0",
    )

    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [line[1] for line in lines[:4]] == [
        "store_kernel", "decode_kernel", "reduce_kernel", "prefill_kernel",
    ]  # fmt: skip
    assert len(lines) == 8
    assert {line[3] for line in lines} == {"stack=0"}
    assert {line[5] for line in lines if line[1] in ("decode_kernel", "prefill_kernel")} == {
        "tensor_cores=True"
    }


def test_three_decode_programs_fit_a_hopper_multiprocessor_at_128_dimensions():
    tiles = choose_tiles(128, 2, 8192, 227 << 10)

    assert (tiles.decode_tile, tiles.decode_stages, tiles.split) == (64, 5, 256)
    # Two buffers of K and V are 64 KiB, and 228 KiB is what a multiprocessor shares.


@pytest.mark.parametrize(
    ("max_model_len", "split"),
    [(16, 256), (8192, 256), (16384, 256), (16385, 512), (131072, 2048)],
)
def test_a_request_never_has_more_than_64_splits(max_model_len, split):
    assert choose_tiles(128, 2, max_model_len, 227 << 10).split == split
    assert -(-max_model_len // split) <= 64


def test_a_small_shared_memory_gets_smaller_tiles():
    tiles = choose_tiles(256, 2, 8192, 99 << 10)

    assert (tiles.decode_stages, tiles.prefill_rows) == (3, 64)


@pytest.mark.parametrize(
    ("num_decode", "max_seq_len", "shares"),
    [
        (1, 8192, 32),  # every split its own program
        (64, 8192, 5),  # 132 x 16 programs over 64 x 8
        (256, 8192, 4),  # enough programs; four, so that one long request is shared out
        (256, 300, 2),  # no more than there are splits
        (256, 10, 1),
    ],
)
def test_splits_are_shared_among_as_many_programs_as_fill_the_device(
    num_decode, max_seq_len, shares, monkeypatch
):
    monkeypatch.setattr(triton_paged, "_device_limits", lambda device: (132, 227 << 10))
    shape = Shape(num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    backend = triton_paged.TritonPaged(Need(shape, 32, (0,), 256, 8192))

    assert backend.shares(num_decode, max_seq_len) == shares


def test_the_workspace_is_allocated_once_and_a_batch_beyond_it_is_a_broken_law():
    shape = Shape(num_kv_heads=2, head_dim=16)
    backend = triton_paged.TritonPaged(Need(shape, 4, (0,), 2, 512))
    world = make_world([(1, 5), (1, 5), (1, 5)], shape, group=2)

    assert backend.workspace_bytes == 2 * 4 * 2 * (16 + 2) * 4
    with pytest.raises(
        InvariantError, match=r"3 decodes up to 5 tokens.*built for 2 up to 512"
    ):
        backend.prepare(world.batch)


def test_a_bound_looser_than_the_pool_is_no_fault():
    shape = Shape(num_blocks=8, num_kv_heads=2, head_dim=16)  # room for 128 tokens
    world = make_world([(1, 5)], shape, group=2)
    world.batch.max_seq_len = 4096

    triton_paged.TritonPaged(Need(shape, 4, (0,), 2, 128)).prepare(world.batch)

    with pytest.raises(InvariantError, match=r"up to 128 tokens.*up to 64"):
        triton_paged.TritonPaged(Need(shape, 4, (0,), 2, 64)).prepare(world.batch)
