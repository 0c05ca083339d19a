"""Which sweep the Sweeps page shows and what is chosen in it, and how both stand in the URL.

`sw` names the table: the id of a kept file, nothing for the bundled one. Choices are `sw_NAME`. Session
state owns them; the URL is read where a session has no choice yet. It knows references, no contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

SHOWN, FAULT = "sweep_shown", "sweep_fault"
SAMPLE = ""
_REF, _PREFIX = "sw", "sw_"
_ID = re.compile(r"[0-9a-f]{32}")


def shown() -> str:
    """Id of the table: of this session, else of the URL; SAMPLE for the bundled one."""
    if SHOWN not in st.session_state:
        linked = st.query_params.get(_REF, "")
        st.session_state[SHOWN] = linked if _ID.fullmatch(linked) else SAMPLE
    return str(st.session_state[SHOWN])


def show(ref: str) -> None:
    """Show another table. What was chosen holds as far as it has the same settings."""
    st.session_state[SHOWN] = ref


def write_url() -> None:
    """Bring `sw` to what is shown."""
    _write(_REF, shown())


def _write(name: str, value: str) -> None:
    if value:
        st.query_params[name] = value
    else:
        st.query_params.pop(name, None)


def choose(
    label: str,
    name: str,
    options: Sequence[Any],
    default: Any,
    say: Callable[[Any], str] = str,
    help: str | None = None,
) -> Any:
    """A select box whose choice stands in the URL unless it is the default.

    options: not empty, told apart by their text; default: one of them.
    """
    key = f"sweep_{name}"
    by_text = {_text(option): option for option in options}
    if key not in st.session_state:
        linked = st.query_params.get(f"{_PREFIX}{name}", "")
        if linked in by_text:
            st.session_state[key] = linked
    elif st.session_state[key] not in by_text:
        del st.session_state[key]
    texts = list(by_text)
    chosen = st.selectbox(
        label,
        texts,
        index=texts.index(_text(default)),
        format_func=lambda text: say(by_text[text]) if text in by_text else str(text),
        key=key,
        help=help,
        persist_state="session",
    )
    _write(f"{_PREFIX}{name}", "" if chosen == _text(default) else str(chosen))
    return by_text[str(chosen)]


def forget_others(names: Sequence[str]) -> None:
    """Take out of the URL what belongs to choices that are not drawn."""
    wanted = {f"{_PREFIX}{name}" for name in names}
    for name in [n for n in st.query_params if n.startswith(_PREFIX) and n not in wanted]:
        st.query_params.pop(name, None)


def _text(option: Any) -> str:
    """A value in the URL: short, and another for each value."""
    return "default" if option is None else str(option)
