"""How the core is compiled: cached on disk, without reference counting.

Integer division does not look for zero: settings are checked before. The core allocates nothing; its arrays belong to the caller for as long as a call lasts. Counting
references to them in every function cost more than the scheduling itself (docs/decisions).
"""

from __future__ import annotations

from typing import Any

from numba import njit

_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
}
kernel: Any = njit(**_OPTIONS)
# For functions of a few lines: merged into their callers before anything is typed, since a call takes
# every array of the state apart into arguments.
inlined: Any = njit(inline="always", **_OPTIONS)
