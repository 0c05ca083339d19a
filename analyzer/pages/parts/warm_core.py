"""Compiling the scheduler ahead of the first replay, in a process of its own.

A machine compiles it once and keeps the result on disk. In this process that would stop the page for
as long, because the compiler holds the interpreter's lock.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

WAIT_S = 0.2


@cache
def start() -> subprocess.Popen[bytes] | None:
    """Begin to compile, once for the server; None where it has been compiled before."""
    spec = find_spec("engine.core")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    sources = [*package.glob("*.py"), package.parent / "cost_model.py"]
    changed = max(source.stat().st_mtime for source in sources)
    kept = package.glob("__pycache__/core-*/**/loop.run_chunk*.nbi")
    if any(compiled.stat().st_mtime > changed for compiled in kept):
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "engine", "warm-up"],
        cwd=package.parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def compiled() -> bool:
    """Whether the compiler has ended; True too where it could not run: the replay will compile."""
    process = start()
    if process is None:
        return True
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        return False
    return True
