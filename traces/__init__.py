"""What engine and analyzer share: workloads, recordings, and the files they come from.

`traces.open_any(path)` says what a file is. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "guess_columns": "traces.open",
    "open_any": "traces.open",
    "open_workload": "traces.open",
    "describe": "traces.description",
}
__all__ = ["describe", "guess_columns", "open_any", "open_workload"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'traces' has no attribute {name!r}")
