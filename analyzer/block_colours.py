"""Colours of the block map: cells -> palette indices, and the palettes, light and dark.

It knows themes and what owner, state and age look like. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from analyzer.block_map import Cells
from analyzer.block_states import CellState
from analyzer.look import Theme

ColourBy = Literal["owner", "state", "age"]
COLOUR_BY: dict[ColourBy, str] = {"owner": "Owner", "state": "State", "age": "Age"}
NOT_THERE = 7  # before the run began or after it ended
_OWNERS = 8  # first index of the owners' colours
_AGES = 40
_LIT = 63
_DIMMED = 64  # added to an index: the same colour, faint
NUM_OWNER_COLOURS = 21
AGES_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
AGES_STEPS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
# Okabe and Ito 2008 without black.
_HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
# Share of white (above 0) or black (below) mixed in.
_SHADES = {"plotly_white": (0.0, 0.42, -0.28), "plotly_dark": (0.0, 0.40, -0.30)}


def palette(theme: Theme) -> list[str]:
    """128 colours, '#rrggbb': of states, owners and ages, and all of them dimmed."""
    colours = [theme.ground] * _DIMMED
    for state in CellState:
        colours[state] = state_colour(state, theme)
    colours[NOT_THERE] = theme.ground
    for code in range(NUM_OWNER_COLOURS):
        colours[_OWNERS + code] = owner_colour(code, theme)
    for i in range(len(AGES_S) + 1):
        colours[_AGES + i] = age_colour(i, theme)
    colours[_LIT] = theme.text
    pale = {int(s) for s in CellState if s < CellState.PREFILL} | {NOT_THERE}
    dimmed = [_mixed(c, theme.ground, 0.5 if i in pale else 0.8) for i, c in enumerate(colours)]
    return colours + dimmed


def owner_colour(code: int, theme: Theme) -> str:
    """The colour of an owner code; neighbours in arrival differ in hue and in brightness."""
    shade = _SHADES[theme.template][code % 3]
    return _mixed(_HUES[code % 7], "#ffffff" if shade > 0 else "#000000", abs(shade))


def owner_index(codes: np.ndarray) -> np.ndarray:
    """Palette index of owner codes."""
    return _OWNERS + codes % NUM_OWNER_COLOURS


def state_colour(state: CellState, theme: Theme) -> str:
    """Prefill, decode, swap as everywhere; free blocks stay near the ground."""
    return {
        CellState.UNUSED: _mixed(theme.ground, theme.text, 0.03),
        CellState.EMPTY: _mixed(theme.ground, theme.text, 0.09),
        CellState.CACHED: _mixed(theme.ground, theme.text, 0.22),
        CellState.PREFILL: theme.role("prefill"),
        CellState.DECODE: theme.role("decode"),
        CellState.SHARED: "#F0E442",
        CellState.FENCED: theme.role("swap"),
    }[state]


def age_colour(i: int, theme: Theme) -> str:
    """From pale (just taken) to strong (held for long)."""
    return _mixed(theme.ground, theme.a, 0.18 + 0.82 * i / len(AGES_S))


def painted(
    cells: Cells, states: np.ndarray, by: ColourBy, starts_s: np.ndarray | None = None
) -> np.ndarray:
    """[b, t] palette index of each cell, uint8.

    states: [b, t] of CellState; starts_s: [steps] for ages in seconds, None for ages in steps.
    """
    own = cells.ownership
    index = states.astype(np.uint8)
    if len(own) and by != "state":
        if by == "owner":
            colour = owner_index(own.owner[cells.latest])
        else:
            colour = _AGES + _age_class(cells, starts_s)
        index = np.where(cells.held, colour, np.minimum(index, CellState.CACHED))
    index = np.where(cells.rows[None, :] >= 0, index, NOT_THERE)
    return index.astype(np.uint8)


def _age_class(cells: Cells, starts_s: np.ndarray | None) -> np.ndarray:
    since = cells.ownership.first[cells.latest]
    if starts_s is None or not len(starts_s):
        return np.searchsorted(AGES_STEPS, cells.rows[None, :] - since, "right")
    age = starts_s[cells.rows][None, :] - starts_s[since]
    return np.searchsorted(AGES_S, age, "right")


def lit_up(index: np.ndarray, lit: np.ndarray) -> np.ndarray:
    """The indices with everything dimmed but what is lit ([b, t] bool)."""
    return np.where(lit, _LIT, index + _DIMMED).astype(np.uint8)


def rgb(colours: Sequence[str]) -> bytes:
    """Three bytes a colour."""
    return b"".join(bytes.fromhex(c[1:]) for c in colours)


def _mixed(colour: str, other: str, share: float) -> str:
    """The colour with a share (0 to 1) of another one."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)
