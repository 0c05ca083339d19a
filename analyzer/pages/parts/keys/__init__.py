"""The sheet of keys, opened by `?` or by its button, on every page.

It knows which keys there are. What they do is known where they are heard: `zoom`, and the buttons
with a shortcut.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_JS = (Path(__file__).parent / "keys.js").read_text("utf-8")
_mount = st.components.v2.component("kv_replay_keys", js=_JS)

SHEET = {
    "On every timeline": (
        ("Drag", "show that part of the axis"),
        ("Ctrl + wheel, pinch", "zoom about the pointer (⌘ on a Mac)"),
        ("Shift + wheel", "move along the axis"),
        ("W, S", "zoom in, zoom out"),
        ("A, D", "move left, move right"),
        ("0, double click", "show all"),
    ),
    "Preemptions": (("←, →", "the one before, the next one"),),
    "Block map": (
        ("Drag", "show that part of the axis and those blocks"),
        ("Click on a block", "light up the request that holds it"),
    ),
    "Everywhere": (
        ("Tab, Enter, Space", "go to a control and use it"),
        ("R", "draw the page again"),
        ("?", "this sheet"),
        ("Esc", "close it"),
    ),
}


@st.fragment
def keys_section() -> None:
    """Listen for `?`, and draw the button that opens the sheet. A fragment: the page stays as it is."""
    heard = _mount(key="keys_heard", on_asked_change=lambda: None, height=1)
    asked = st.button(
        "Keys",
        icon=":material/keyboard:",
        key="open_keys",
        type="tertiary",
        help="Which keys there are (press ?).",
    )
    if asked or heard.asked:
        _sheet()


@st.dialog("Keys")
def _sheet() -> None:
    for title, keys in SHEET.items():
        rows = "\n".join(f"| **{key}** | {what} |" for key, what in keys)
        st.markdown(f"{title}\n\n| Key | What it does |\n|---|---|\n{rows}")
