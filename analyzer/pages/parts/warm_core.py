"""Compiling the scheduler ahead of the first replay, in a process of its own.

A machine compiles it once and keeps the result on disk. In this process that would stop the page for
as long, because the compiler holds the interpreter's lock.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

WAIT_S = 0.2
_once = threading.Lock()  # a cache alone lets two threads in at the same time


def start() -> subprocess.Popen[bytes] | None:
    """Begin to compile, once for the server; None where it has been compiled before."""
    with _once:
        return _started()[0]


def elapsed_s() -> float:
    """Seconds since the compiler was asked for."""
    with _once:
        return time.monotonic() - _started()[1]


@cache
def _started() -> tuple[subprocess.Popen[bytes] | None, float]:
    """The compiler's process, if one is needed, and when it began."""
    spec = find_spec("engine.core")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    sources = [*package.glob("*.py"), package.parent / "cost_model.py"]
    changed = max(source.stat().st_mtime for source in sources)
    kept = package.glob("__pycache__/core-*/**/loop.run_chunk*.nbi")
    if any(compiled.stat().st_mtime > changed for compiled in kept):
        return None, time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "warm-up"],
        cwd=package.parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return process, time.monotonic()


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
