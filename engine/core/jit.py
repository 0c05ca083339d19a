"""How the core is compiled: cached on disk by what all of it says, without reference counting.

Integer division does not look for zero: settings are checked before. The core allocates nothing; its
arrays belong to the caller for as long as a call lasts. Counting references to them in every function
cost more than the scheduling itself (docs/decisions).

numba finds a cached function out of date only when that function's own file has changed, not when a
function that it calls from another file has: after a change of pool.py alone, the old pool would go
on running inside loop.py. So the cache of all files lies in a folder named after all their contents.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba.core.config
from numba import njit

_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
}
_HERE = Path(__file__).parent
config: Any = (
    numba.core.config
)  # its attributes come from the environment, unknown to type checkers


def cache_folder(sources: Path = _HERE) -> Path:
    """Where compiled code of exactly these sources is kept; older ones beside it are removed.

    In `__pycache__`, or, where that cannot be written, in the user's cache; NUMBA_CACHE_DIR wins.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in [*sorted(sources.glob("*.py")), sources.parent / "cost_model.py"]:
        digest.update(path.read_bytes())
    if config.CACHE_DIR:
        base = Path(config.CACHE_DIR)
    elif os.access(sources, os.W_OK):
        base = sources / "__pycache__"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kv-replay"
    folder = base / f"core-{digest.hexdigest()}"
    if not folder.exists():
        for old in base.glob("core-*"):
            shutil.rmtree(old, ignore_errors=True)
    return folder


_FOLDER = str(cache_folder())


def _compiled(**more: Any) -> Callable[[Callable[..., Any]], Any]:
    def wrap(function: Callable[..., Any]) -> Any:
        before, config.CACHE_DIR = config.CACHE_DIR, _FOLDER
        try:
            return njit(**_OPTIONS, **more)(function)
        finally:
            config.CACHE_DIR = before

    return wrap


kernel: Any = _compiled()
# For functions of a few lines: merged into their callers before anything is typed, since a call takes
# every array of the state apart into arguments.
inlined: Any = _compiled(inline="always")
