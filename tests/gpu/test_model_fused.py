"""The model's fused kernels without a GPU: arithmetic in Triton's interpreter, and through its compiler.

The interpreter has to be chosen before Triton is imported, so these run in processes of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.gpu.fused import kernels_for

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


def test_the_kernels_equal_torch_in_tritons_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    file = "tests/gpu/interpreted_model.py"

    run = in_a_process(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", file], TRITON_INTERPRET="1"
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "skipped" not in run.stdout


def test_the_kernels_compile_for_hopper_without_spilling(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if not (Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump").exists():
        pytest.skip("this Triton carries no compiler for NVIDIA")

    run = in_a_process(
        ["-m", "tests.gpu.compiled_model", "bfloat16:128", "float32:64"],
        TRITON_CACHE_DIR=str(tmp_path),
        TRITON_INTERPRET="0",
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert len(run.stdout.splitlines()) == 6
    assert re.findall(r"stack=(\d+)", run.stdout) == ["0"] * 6


def test_plain_torch_serves_where_the_kernels_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")
    assert kernels_for(torch.device("cpu"), torch.bfloat16) is None
    assert kernels_for(gpu, torch.float64) is None

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert kernels_for(gpu, torch.bfloat16) is None
