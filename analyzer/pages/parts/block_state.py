"""What the block map remembers beside the shown range, and how it stands in the URL.

Session state owns: the shown blocks, the step of the snapshot. Both are read from the URL when a
session begins and written by `write` alone: `blocks` and `step`. Widgets bound to the URL (the
chosen request, the colour) look after themselves.
"""

from __future__ import annotations

import streamlit as st

BLOCKS = "shown_blocks"  # (first, last), None for all
STEP = "shown_step"  # step number of the first run, or None
REQUEST = "request"  # key of the widget, and its name in the URL
LONGEST_REQUEST = 300  # characters of an id that a link can hold


def asked_blocks() -> tuple[int, int] | None:
    """The blocks of this session; on its first run those of the URL."""
    if BLOCKS not in st.session_state:
        st.session_state[BLOCKS] = parse_blocks(st.query_params.get("blocks", ""))
    found = st.session_state[BLOCKS]
    return found if isinstance(found, tuple) else None


def parse_blocks(text: str) -> tuple[int, int] | None:
    """'100-300' -> (100, 300); None for anything else."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and len(text) < 24):
        return None
    return (int(first), int(last)) if 1 <= int(first) <= int(last) else None


def show_blocks(blocks: tuple[int, int] | None) -> None:
    st.session_state[BLOCKS] = blocks


def asked_step() -> int | None:
    """The step of the snapshot, of this session or on its first run of the URL; None: not chosen."""
    if STEP not in st.session_state:
        text = st.query_params.get("step", "")
        st.session_state[STEP] = int(text) if text.isdecimal() and len(text) < 16 else None
    found = st.session_state[STEP]
    return found if isinstance(found, int) else None


def show_step(step: int | None) -> None:
    st.session_state[STEP] = step


def choose_request(request_id: str) -> None:
    """Light up a request; only in a callback, before its widget is drawn."""
    st.session_state[REQUEST] = request_id


def write() -> None:
    """Bring `blocks` and `step` in the URL to what is shown."""
    blocks, step = asked_blocks(), asked_step()
    wanted = {
        "blocks": f"{blocks[0]}-{blocks[1]}" if blocks else None,
        "step": None if step is None else str(step),
    }
    for name in [name for name, value in wanted.items() if value is None]:
        st.query_params.pop(name, None)
    st.query_params.update({name: value for name, value in wanted.items() if value})
