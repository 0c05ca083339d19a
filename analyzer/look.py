"""Colours, and numbers as people read them: what figures and pages share about looks.

It knows no chart and no table. Seconds and bytes become ms and GiB here and nowhere deeper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Side = Literal["A", "B", "C"]
Role = Literal["prefill", "decode", "recomputed", "cached", "swap", "stall"]


@dataclass(frozen=True)
class Theme:
    """Colours of one brightness. Source: Okabe and Ito 2008, lightened for dark grounds; the
    third run has the wine of Tol 2021, since every other colour of theirs means something here.
    decode: a slate, since grey is what is free or cached."""

    template: str
    text: str
    muted: str
    grid: str
    ground: str
    a: str
    b: str
    c: str
    preempt: str
    swap: str
    ok: str
    decode: str
    grey: str
    preempt_text: str
    chosen_text: str
    good_text: str
    bad_text: str
    on_primary: str

    def side(self, side: Side | None) -> str:
        return {"A": self.a, "B": self.b, "C": self.c}.get(side or "", self.grey)

    def role(self, role: Role) -> str:
        return {
            "prefill": self.ok,
            "decode": self.decode,
            "recomputed": self.preempt,
            "cached": self.grey,
            "swap": self.swap,
            "stall": self.swap,
        }[role]


LIGHT = Theme(
    template="plotly_white",
    text="#262730",
    muted="#5a5d66",
    grid="#e4e6eb",
    ground="#ffffff",
    a="#0072B2",
    b="#E69F00",
    c="#882255",
    preempt="#D55E00",
    swap="#CC79A7",
    ok="#009E73",
    decode="#7d90a6",
    grey="#8a8d96",
    preempt_text="#b04700",
    chosen_text="#005a8e",
    good_text="#00704f",
    bad_text="#b04700",
    on_primary="#ffffff",
)
DARK = Theme(
    template="plotly_dark",
    text="#fafafa",
    muted="#b4b7c0",
    grid="#30343d",
    ground="#171614",
    a="#56B4E9",
    b="#E69F00",
    c="#D98CB3",
    preempt="#F0743B",
    swap="#E39AC4",
    ok="#2DC08D",
    decode="#74879c",
    grey="#9a9da6",
    preempt_text="#F28B5B",
    chosen_text="#8ecbf0",
    good_text="#2DC08D",
    bad_text="#F28B5B",
    on_primary="#0b1c28",
)

WHOLE_UP_TO = 1e15


def three_digits(value: float) -> str:
    """About three digits: 0.123, 1.23, 12.3, 123, 12,345; with an exponent only where a float does not
    hold every whole number any more: 7.75e+302."""
    size = abs(value)
    if size >= WHOLE_UP_TO:
        return f"{value:.2e}"
    for bound, decimals in ((99.95, 0), (9.995, 1), (0.9995, 2)):
        if size >= bound:
            return f"{value:,.{decimals}f}"
    return f"{value:.3f}" if size else "0"


def seconds(value: float | None) -> str:
    """'12.3 ms' below a second, '15.4 s' above, '—' for None: how the pages write a duration."""
    if value is None or not np.isfinite(value):
        return "—"
    if value == 0:
        return "0 s"
    for bound, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")):
        if abs(value) >= bound * 0.9995:
            return f"{three_digits(value * factor)} {unit}"
    return f"{three_digits(value * 1e6)} µs"


def gib(num_bytes: float | None) -> str:
    """Bytes as MiB or GiB: '512 MiB', '3.42 GiB', '—' for None."""
    if num_bytes is None:
        return "—"
    if num_bytes == 0:
        return "0 B"
    if abs(num_bytes) < 2**30:
        return f"{three_digits(num_bytes / 2**20)} MiB"
    return f"{three_digits(num_bytes / 2**30)} GiB"


def faded(colour: str, opacity: float) -> str:
    """'#rrggbb' -> 'rgba(r,g,b,opacity)', the only form with opacity that Plotly takes."""
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},{opacity})"
