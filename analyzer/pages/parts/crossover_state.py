"""What is chosen on the Crossover page, and how it stands in the URL.

Session state owns what differs from the opened run's own set-up (`crossover`); it is read from the URL
when a session begins and written by `write` alone, under names that begin with `cx_`. A value that
cannot be is said once, in a sentence, and the default holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

from analyzer.crossover import Setup

CHANGED = "crossover"  # name -> value, of what is not the run's own
NOTES = "crossover_notes"  # name -> why its value in the URL was not taken
_TURN = "crossover_turn"
PREFIX = "cx_"
TPS = (1, 2, 4, 8, 16)
PPS = (1, 2, 4, 8)
KV_DTYPES = ("auto", "fp8")
COPY_PATHS = ("loop", "batch", "coalesced")
COPY_MODES = ("blocking", "async")
MOST_BESIDE, LONGEST = 8_192, 4_194_304
LINK_GB_PER_S = (0.1, 10_000.0)
_SHOWN = 40  # characters of a bad value


@dataclass(frozen=True)
class Chosen:
    """What the page shows. cached_pct: of the victim, found in the prefix cache, percent; tokens: the
    length that is looked at."""

    setup: Setup = field(default_factory=Setup)
    cached_pct: int = 0
    tokens: int = 2048

    def get(self, name: str) -> Any:
        return getattr(self if name in ("cached_pct", "tokens") else self.setup, name)

    def with_(self, changes: Mapping[str, Any]) -> Chosen:
        own = {k: v for k, v in changes.items() if k in ("cached_pct", "tokens")}
        rest = {k: v for k, v in changes.items() if k not in own}
        return replace(self, **own, setup=replace(self.setup, **rest))


@dataclass(frozen=True)
class Names:
    """Models and devices that may be chosen."""

    models: Sequence[str]
    devices: Sequence[str]


def chosen(defaults: Chosen, names: Names) -> Chosen:
    """The defaults with what this session has changed, or on its first run the URL."""
    if CHANGED not in st.session_state:
        found, notes = parse(dict(st.query_params.to_dict()), names)
        st.session_state[CHANGED], st.session_state[NOTES] = found, notes
    changed: dict[str, Any] = st.session_state[CHANGED]
    known = {"model": names.models, "device": names.devices}
    # what another run brought along and this one does not know
    held = {k: v for k, v in changed.items() if k not in known or v in known[k]}
    return defaults.with_(held)


def change(name: str, value: Any, defaults: Chosen) -> None:
    """Keep a value that a widget gave; the run's own is not kept."""
    before = st.session_state[CHANGED]
    if value == defaults.get(name):
        st.session_state[CHANGED] = {k: v for k, v in before.items() if k != name}
    else:
        st.session_state[CHANGED] = {**before, name: value}


def go_back() -> None:
    """Show the opened run's own set-up again; for a button's callback."""
    st.session_state[CHANGED] = {}
    st.session_state[NOTES] = {}
    st.session_state[_TURN] = turn() + 1


def turn() -> int:
    """Another number gives every widget its default anew."""
    return int(st.session_state.get(_TURN, 0))


def is_changed() -> bool:
    return bool(st.session_state.get(CHANGED))


def notes() -> list[str]:
    """Why values of the URL were not taken."""
    return list(st.session_state.get(NOTES, {}).values())


def write() -> None:
    """Bring the URL to what differs from the run's own set-up."""
    changed = st.session_state.get(CHANGED, {})
    wanted = {f"{PREFIX}{_IN_URL[k]}": _text(v) for k, v in changed.items()}
    for name in [n for n in st.query_params if n.startswith(PREFIX) and n not in wanted]:
        st.query_params.pop(name, None)
    st.query_params.update(wanted)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- reading the URL ------------------------------------------------------------------------------

_IN_URL = {
    "model": "model",
    "device": "device",
    "tp": "tp",
    "pp": "pp",
    "kv_dtype": "kv",
    "copy_path": "path",
    "copy_mode": "copies",
    "link_gb_per_s": "link",
    "cached_pct": "cached",
    "beside": "beside",
    "tokens": "tokens",
}


def parse(query: Mapping[str, str], names: Names) -> tuple[dict[str, Any], dict[str, str]]:
    """Values that the URL names, and for those that cannot be a sentence each."""
    readers: dict[str, Callable[[str], Any]] = {
        "model": _one_of(names.models),
        "device": _one_of(names.devices),
        "tp": _one_of(TPS),
        "pp": _one_of(PPS),
        "kv_dtype": _one_of(KV_DTYPES),
        "copy_path": _one_of(COPY_PATHS),
        "copy_mode": _one_of(COPY_MODES),
        "link_gb_per_s": _number(float, *LINK_GB_PER_S),
        "cached_pct": _number(int, 0, 100),
        "beside": _number(int, 0, MOST_BESIDE),
        "tokens": _number(int, 1, LONGEST),
    }
    found: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, read in readers.items():
        text = query.get(f"{PREFIX}{_IN_URL[name]}")
        if text is None:
            continue
        try:
            found[name] = read(text.strip())
        except ValueError as error:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            wrong[name] = f"{PREFIX}{_IN_URL[name]} in the link is {shown!r}, which is not {error}. The run's own is shown instead."  # fmt: skip
    return found, wrong


def _one_of(choices: Sequence[Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        for choice in choices:
            if text == str(choice):
                return choice
        listed = ", ".join(map(str, choices[:8])) + (", ..." if len(choices) > 8 else "")
        raise ValueError(f"one of {listed}")

    return read


def _number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], Any]:
    whole = "a whole number" if kind is int else "a number"
    said = f"{whole} from {low:,g} to {high:,.0f}"

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except (ValueError, OverflowError):
            raise ValueError(said) from None
        if not low <= value <= high:
            raise ValueError(said)
        return value

    return read
