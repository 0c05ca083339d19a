"""How a phase of a request looks in a lane: colour, height, hatching; and names made harmless.

A phase is told by colour and by height: thin while a request waits, full while it runs; hatched while
it is without its KV. It knows themes, and no chart but the form of its marks.
"""

from __future__ import annotations

import html
import io
from typing import Any

import numpy as np
from PIL import Image

from analyzer.lanes import (
    DECODE,
    PHASES,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTING,
    RESTORING,
    SWAPPED,
)
from analyzer.lanes_picture import NOBODY
from analyzer.look import Theme

LABELS = {
    QUEUED: "queued",
    PREFILL: "prefill",
    DECODE: "decode",
    PREEMPTED: "preempted",
    RECOMPUTING: "recomputing",
    SWAPPED: "swapped out",
    RESTORING: "restoring",
}
_HATCHES = {PREEMPTED: "/", SWAPPED: "x"}  # what waits without its KV
HEIGHTS = {
    QUEUED: 0.26,
    PREFILL: 0.84,
    DECODE: 0.84,
    PREEMPTED: 0.5,
    RECOMPUTING: 0.84,
    SWAPPED: 0.5,
    RESTORING: 0.84,
}
LONGEST_ID = 12


def phase_colour(phase: int, theme: Theme, is_flat: bool = False) -> str:
    """One colour a phase, as in the timeline: prefill, decode, recomputing and swap.

    is_flat: where there is no room for hatching, what is hatched elsewhere is paler.
    """
    colour = {
        QUEUED: _mixed(theme.grey, theme.ground, 0.58),
        PREFILL: theme.role("prefill"),
        DECODE: theme.role("decode"),
        PREEMPTED: theme.preempt,
        RECOMPUTING: theme.role("recomputed"),
        SWAPPED: theme.role("swap"),
        RESTORING: theme.role("swap"),
    }[phase]
    return _mixed(colour, theme.ground, 0.42) if is_flat and phase in _HATCHES else colour


def _mixed(colour: str, other: str, share: float) -> str:
    """'#rrggbb' with so much of another colour in it."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def fill(phase: int, theme: Theme) -> dict[str, Any]:
    return {
        "color": phase_colour(phase, theme),
        "line": {"width": 0},
        "pattern": hatch(phase, theme),
    }


def hatch(phase: int, theme: Theme) -> dict[str, Any]:
    if phase not in _HATCHES:
        return {}
    return {"shape": _HATCHES[phase], "size": 4, "solidity": 0.35, "fgcolor": theme.ground}


def png(index: np.ndarray, theme: Theme) -> bytes:
    """A raster [rows, columns] of phases as a PNG, first row on top; NOBODY is see-through."""
    colours = b"".join(
        bytes.fromhex(phase_colour(p, theme, is_flat=True)[1:]) for p in range(len(PHASES))
    )
    image = Image.fromarray(index, "P")
    image.putpalette(colours + bytes.fromhex(theme.ground[1:]))
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=4, transparency=NOBODY, bits=4)
    return out.getvalue()


def harmless(text: str, longest: int = LONGEST_ID) -> str:
    """A request's name without markup of Plotly, cut to so many characters."""
    short = text if len(text) <= longest else f"{text[: longest - 5]}…{text[-4:]}"
    return html.escape(" ".join(short.split())).replace("$", "&#36;")
