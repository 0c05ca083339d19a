"""Which evidence the Diagnose page shows, and how it is mirrored in the URL: `e`, or `side`, and what was chosen in it.

It knows references, never contents. `e` is `sample:NAME`, or ids of kept files joined by dots; `side` is a
run of the pair that the pages share.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import streamlit as st

SIDES = ("A", "B", "C")
CHOICES = (
    "part",
    "ranks",
    "zoom",
)  # of the URL: which server or run, which ranks, what of the axis
Kind = Literal["files", "sample", "side"]
_SHOWN, _ASKED, _SEEN, _WRITTEN = (
    f"evidence_{n}" for n in ("shown", "asked", "seen", "written")
)
_ZOOM = "evidence_zoom"
_IDS = re.compile(r"[0-9a-f]{32}(?:\.[0-9a-f]{32})*")
_NAME = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True)
class EvidenceRef:
    """kind: kept files, a bundled sample, or a run of the shown pair; names: ids, the sample's name, or
    the side."""

    kind: Kind
    names: tuple[str, ...]

    @property
    def url(self) -> tuple[str, str]:
        """Values of `e` and `side`, "" for none."""
        if self.kind == "side":
            return "", self.names[0]
        return (
            f"sample:{self.names[0]}" if self.kind == "sample" else ".".join(self.names)
        ), ""


def parse(e: str, side: str) -> EvidenceRef | None:
    """The reference that a URL holds; None where it holds none, or nonsense."""
    if side in SIDES:
        return EvidenceRef("side", (side,))
    name = e.removeprefix("sample:")
    if name != e and _NAME.fullmatch(name):
        return EvidenceRef("sample", (name,))
    if _IDS.fullmatch(e):
        return EvidenceRef("files", tuple(dict.fromkeys(e.split("."))))
    return None


def side_ref(side: str) -> EvidenceRef:
    return EvidenceRef("side", (side,))


def follow_url() -> None:
    """Ask for what the URL names, where it names something new.

    A browser may send the URL as it was before the last change: what was seen or written last is no news.
    """
    now = (st.query_params.get("e", ""), st.query_params.get("side", ""))
    before = (st.session_state.get(_SEEN), st.session_state.get(_WRITTEN))
    st.session_state[_SEEN] = now
    if now == ("", "") or now in before:
        return
    ref = parse(*now)
    if ref is not None and ref != shown():
        ask(ref)


def expect_link() -> None:
    """Let the next URL count, even if it names what was seen before; for pages that link here."""
    st.session_state.pop(_SEEN, None)
    st.session_state.pop(_WRITTEN, None)


def write_url() -> None:
    """Bring the URL to what is shown, or, where nothing is, to what is being read."""
    ref = shown() or asked()
    e, side = ref.url if ref is not None else ("", "")
    st.session_state[_WRITTEN] = (e, side)
    for name, value in (("e", e), ("side", side)):
        if value:
            st.query_params[name] = value
        else:
            st.query_params.pop(name, None)


def chosen_numbers(name: str) -> list[int]:
    """One of CHOICES as the URL has it; nonsense is nothing."""
    return [
        int(n) for n in st.query_params.get(name, "").split(",") if n.isdecimal() and len(n) < 7
    ]


def choose_numbers(name: str, numbers: Sequence[int]) -> None:
    """Put a choice into the URL; none: take it out."""
    if numbers:
        st.query_params[name] = ",".join(map(str, numbers))
    else:
        st.query_params.pop(name, None)


def zoom(view: str) -> tuple[float, float] | None:
    """The part of the axis to show, of this session; where it has none yet, of the URL. None: all.

    view: names what is drawn; a part of something else is none of it.
    """
    kept = st.session_state.get(_ZOOM)
    if kept is None:
        kept = (view, _parse_zoom(st.query_params.get("zoom", "")))
        st.session_state[_ZOOM] = kept
    part: tuple[float, float] | None = kept[1] if kept[0] == view else None
    return part


def set_zoom(part: tuple[float, float] | None, view: str) -> None:
    st.session_state[_ZOOM] = (view, part)


def write_zoom(part: tuple[float, float] | None) -> None:
    """Bring the URL to the part that is shown; None takes it out."""
    if part is None:
        st.query_params.pop("zoom", None)
    else:
        st.query_params["zoom"] = f"{part[0]:.9g}_{part[1]:.9g}"


def _parse_zoom(text: str) -> tuple[float, float] | None:
    """'12.5_80' -> (12.5, 80.0); None for anything else."""
    try:
        low, high = map(float, text.split("_"))
    except ValueError:
        return None
    return (low, high) if -1e12 < low < high < 1e12 else None


def shown() -> EvidenceRef | None:
    found = st.session_state.get(_SHOWN)
    return found if isinstance(found, EvidenceRef) else None


def show(ref: EvidenceRef | None) -> None:
    """Show this from now on; what was asked for has been answered. What was chosen in other evidence goes."""
    if shown() not in (None, ref):
        for name in CHOICES:
            st.query_params.pop(name, None)
    st.session_state[_SHOWN] = ref
    st.session_state.pop(_ASKED, None)


def asked() -> EvidenceRef | None:
    """What is to be read next; what is shown stays until it is there."""
    found = st.session_state.get(_ASKED)
    return found if isinstance(found, EvidenceRef) else None


def ask(ref: EvidenceRef) -> None:
    st.session_state[_ASKED] = ref


def give_up() -> None:
    """Forget what was asked for."""
    st.session_state.pop(_ASKED, None)
