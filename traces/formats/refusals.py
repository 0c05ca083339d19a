"""Files that are understood and are no request trace; filled in beside the readers."""

from __future__ import annotations

from traces.errors import NotAWorkloadError
from traces.formats.source import Source


def refusal(source: Source) -> NotAWorkloadError | None:
    """Why this file is no request trace and what to use instead, or None."""
    return None
