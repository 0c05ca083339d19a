"""Every launch that triton_paged makes, through Triton's compiler for a GPU that is not there.

Prints a line a kernel: what was compiled, registers, bytes of stack (spilled registers), shared memory. Run by
test_attention_triton.py in a process of its own: `python -m tests.gpu.compiled_attention bfloat16:128`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.gpu.attention import triton_kernels, triton_paged
from engine.gpu.attention.need import Need
from tests.gpu.attention_worlds import Shape, make_world

OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion"}
TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
}
TARGET = GPUTarget("cuda", 90, 32)
HOPPER = (132, 227 << 10)  # multiprocessors, bytes of shared memory a program may have


def compile_launch(kernel, args, kwargs):
    """What the launch would compile: types of its arguments, and those that 16 divides."""
    names = kernel.arg_names
    given = dict(zip(names, args, strict=False))
    options = {k: v for k, v in kwargs.items() if k in OPTIONS}
    constants = {k: v for k, v in kwargs.items() if k not in OPTIONS}
    signature, attrs = {}, {}
    for place, (name, parameter) in enumerate(zip(names, kernel.params, strict=True)):
        if name in constants:
            signature[name] = "constexpr"
            continue
        value = given[name]
        if isinstance(value, torch.Tensor):
            signature[name] = "*" + TYPES[value.dtype]
            aligned = not parameter.do_not_specialize_on_alignment
        elif isinstance(value, float):
            signature[name], aligned = "fp32", False
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            aligned = value % 16 == 0 and not parameter.do_not_specialize
        if aligned:
            attrs[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attrs)
    return triton.compile(source, target=TARGET, options=options)


def resources(compiled) -> tuple[int, int]:
    """(registers, bytes of stack) a thread, as cuobjdump reads them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        text = subprocess.run(
            [tool, "-res-usage", cubin.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


def launches(dtype: torch.dtype, head_dim: int, group: int, window: int):
    """(kernel, args, kwargs) of every launch of a mixed step on a Hopper GPU."""
    made = []

    class Recorder:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            return lambda *args, **kwargs: made.append((self.kernel, args, kwargs))

    kernels = ("store_kernel", "decode_kernel", "reduce_kernel", "prefill_kernel")
    shape = Shape(num_kv_heads=2, head_dim=head_dim, dtype=dtype)
    triton_paged._device_limits = lambda device: HOPPER
    backend = triton_paged.TritonPaged(Need(shape, 2 * group, (window,), 8, 8192))
    recorders = SimpleNamespace(
        **{name: Recorder(getattr(triton_kernels, name)) for name in kernels}
    )
    triton_paged.kernels = lambda: recorders
    make_world([(1, 300), (5, 40)], shape, group=group).run(backend, window)
    return made


def main(cases: list[str]) -> None:
    for case in cases:
        dtype, head_dim, *more = case.split(":")
        window = int(more[0]) if more else 0
        for kernel, args, kwargs in launches(getattr(torch, dtype), int(head_dim), 4, window):
            compiled = compile_launch(kernel, args, kwargs)
            registers, stack = resources(compiled)
            name = kernel.fn.__name__
            shared = compiled.metadata.shared
            tensor_cores = bool(re.search(r"wgmma\.mma|mma\.sync", compiled.asm["ptx"]))
            print(case, name, f"{registers=} {stack=} {shared=} {tensor_cores=}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
