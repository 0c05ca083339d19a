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
