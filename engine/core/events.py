"""Noting what happened: rows of the event and ended-request buffers.

Facts are noted where they happen; the recorder empties the buffers between chunks of steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core.jit import kernel
from engine.core.state import NONE, Status

_FINISHED = np.int64(Status.FINISHED)


@kernel
def note(
    s: Any, kind: Any, r: Any, t_s: Any, blocks: Any, tokens: Any, free_before: Any
) -> Any:
    """Append an event row and return its place, so that the caller can add what is special."""
    c = s.c[0]
    i = c.num_event_rows
    e = s.event_rows[i]
    e.step = c.step
    e.t_s = t_s
    e.kind = kind
    e.request = r
    e.mode_asked = NONE
    e.mode_used = NONE
    e.blocks = blocks
    e.cause = NONE
    e.tokens = tokens
    e.bytes = 0
    e.cost_s = np.nan
    e.recompute_est_s = np.nan
    e.swap_est_s = np.nan
    e.free_before = free_before
    e.reason = 0
    c.num_event_rows = i + 1
    return i


@kernel
def end_request(s: Any, r: Any, status: Any, kind: Any, t_s: Any, reason: Any) -> None:
    """Mark request r as ended and note it."""
    c = s.c[0]
    q = s.requests[r]
    q.status = status
    q.reason = reason
    q.finish_s = t_s
    if status == _FINISHED:
        c.num_done += 1
        c.finished_tokens += q.num_tokens - q.prompt
    i = note(s, kind, r, t_s, q.num_blocks, q.num_tokens - q.prompt, c.num_free)
    s.event_rows[i].reason = reason
    c.num_ended += 1
