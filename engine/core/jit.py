"""How the core is compiled: cached on disk, without reference counting.

Integer division does not look for zero: settings are checked before. The core allocates nothing; its arrays belong to the caller for as long as a call lasts. Counting
references to them in every function cost more than the scheduling itself (docs/decisions).
"""

from __future__ import annotations

from numba import njit

kernel = njit(cache=True, _nrt=False, error_model="numpy")
# For functions of a few lines: merged into their callers before anything is typed, since a call takes
# every array of the state apart into arguments.
inlined = njit(cache=True, _nrt=False, inline="always", error_model="numpy")
