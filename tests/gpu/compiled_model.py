"""The model's fused kernels through Triton's compiler for a GPU that is not there.

Prints a line a kernel: registers, bytes of stack (spilled registers). Run by test_model_fused.py in a
process of its own: `python -m tests.gpu.compiled_model bfloat16:128`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from engine.gpu import fused_kernels
from engine.gpu.fused import gated, split_heads
from tests.gpu.compiled_attention import compile_launch, resources


class Recorder:
    """In place of fused_kernels: keeps what would be launched."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(fused_kernels, name)
        made = self.made

        class Launch:
            def __getitem__(self, grid: Any) -> Any:
                return lambda *args, **kwargs: made.append((kernel, args, kwargs))

        return Launch()


def main(cases: list[str]) -> None:
    for case in cases:
        name, width = case.split(":")
        dtype, d = getattr(torch, name), int(width)
        recorder: Any = Recorder()
        joint, angles = torch.zeros(2, 12, d, dtype=dtype), torch.zeros(2, 1, d // 2)
        norms = (torch.ones(d, dtype=dtype), torch.ones(d, dtype=dtype))
        split_heads(joint, 8, 2, norms, 1e-6, angles, angles, recorder)
        split_heads(joint, 8, 2, None, 1e-6, angles, angles, recorder)
        gated(torch.zeros(2, 2 * 14336, dtype=dtype), recorder)
        for kernel, args, kwargs in recorder.made:
            registers, stack = resources(compile_launch(kernel, args, kwargs))
            print(case, kernel.fn.__name__, f"{registers=} {stack=}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
