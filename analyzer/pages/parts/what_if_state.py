"""What was changed on the What-if page, and how it is mirrored in the URL.

Session state owns the changes and the two policies. Each change is a parameter of the URL under its
lever's name (`max_num_seqs=128`), the policies are `policies=recompute,swap`. What the URL says is taken
over when it is new; a browser may send it as it was before the last change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from analyzer.levers import LEVERS, MODES

POLICIES = "policies"
MODE = "preemption_mode"  # both policies are always drawn: it is no change of its own
_CHANGES, _OF, _SEEN, _WRITTEN, _TURN, _NONSENSE = (
    f"what_if_{n}" for n in ("changes", "of", "seen", "written", "turn", "nonsense")
)
_WHOLE = re.compile(r"-?\d{1,15}")
_MOST_CHARS = 80


def changes() -> dict[str, Any]:
    """Lever -> value, of those that are not as in the base."""
    found = st.session_state.get(_CHANGES)
    return dict(found) if isinstance(found, Mapping) else {}


def change(name: str, value: Any, base: Any) -> None:
    """Set a lever; at the base's value it is no change."""
    now = changes()
    now.pop(name, None)
    if value != base:
        now[name] = value
    st.session_state[_CHANGES] = now


def set_changes(wanted: Mapping[str, Any]) -> None:
    """Make these the changes, those that were made before taken back; for whoever proposes some. A
    preemption mode among them becomes the first policy."""
    mode = wanted.get(MODE)
    st.session_state[_CHANGES] = {k: v for k, v in wanted.items() if k != MODE}
    if mode in MODES:
        other = next(m for m in ("recompute", "swap") if m != mode)
        set_policies((str(mode), other))


def reset(*names: str) -> None:
    """Take these changes back; all of them where none is named."""
    now = {} if not names else {k: v for k, v in changes().items() if k not in names}
    st.session_state[_CHANGES] = now


def policies(default: tuple[str, str]) -> tuple[str, str]:
    """The two policies that are simulated. default: those of the opened pair."""
    found = st.session_state.get(POLICIES)
    return found if isinstance(found, tuple) else default


def set_policies(chosen: tuple[str, str]) -> None:
    st.session_state[POLICIES] = chosen


def follow_choice(name: str, options: Sequence[str], default: str) -> None:
    """Let the widget of that key begin with what was last chosen in it, else with what the URL says,
    and never hold what is no option; before it is drawn."""
    if name not in st.session_state:
        asked = st.session_state.get(f"{name}_kept", st.query_params.get(name, ""))
        st.session_state[name] = asked if asked in options else default
    elif st.session_state[name] not in options:
        st.session_state[name] = default


def keep_choice(name: str, default: str) -> None:
    """Bring the URL to what that widget shows; kept, since a widget's value goes with its page."""
    value = str(st.session_state[name])
    st.session_state[f"{name}_kept"] = value
    if value == default:
        st.query_params.pop(name, None)
    elif st.query_params.get(name) != value:
        st.query_params[name] = value


def nonsense() -> list[str]:
    """What the URL asked for and cannot be, in sentences; once."""
    return list(st.session_state.pop(_NONSENSE, []))


def belongs_to(key: str) -> None:
    """Forget changes that were made to another base."""
    before = st.session_state.get(_OF)
    if before is not None and before != key:
        st.session_state.pop(_CHANGES, None)
        st.session_state.pop(POLICIES, None)
    st.session_state[_OF] = key


# ---- the URL -------------------------------------------------------------------------------------


def follow_url() -> None:
    """Take over what the URL says, where it says something new."""
    now = _in_url()
    before = (st.session_state.get(_SEEN), st.session_state.get(_WRITTEN))
    st.session_state[_SEEN] = now
    if not now or now in before:
        return
    found, bad = {}, []
    for name, text in now.items():
        if name == POLICIES:
            chosen = tuple(text.split(","))
            if len(chosen) == 2 and all(mode in MODES for mode in chosen):
                set_policies((chosen[0], chosen[1]))
            else:
                bad.append(f"policies={text[:_MOST_CHARS]}: give two of {', '.join(MODES)}.")
            continue
        try:
            found[name] = parse(name, text)
        except ValueError as error:
            bad.append(str(error))
    st.session_state[_CHANGES] = found
    st.session_state[_OF] = None
    st.session_state[_NONSENSE] = bad


def write_url(default: tuple[str, str]) -> None:
    """Bring the URL to the changes."""
    wanted = {name: text_of(value) for name, value in changes().items()}
    if policies(default) != default:
        wanted[POLICIES] = ",".join(policies(default))
    st.session_state[_WRITTEN] = wanted
    for name in [n for n in (*LEVERS, POLICIES) if n in st.query_params and n not in wanted]:
        st.query_params.pop(name, None)
    news = {n: text for n, text in wanted.items() if st.query_params.get(n) != text}
    if news:
        st.query_params.update(news)


def _in_url() -> dict[str, str]:
    return {n: st.query_params[n] for n in (*LEVERS, POLICIES) if n != MODE and n in st.query_params}  # fmt: skip


def text_of(value: Any) -> str:
    """A lever's value as the URL has it: '128', '0.95', 'on', 'fp8'."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def parse(name: str, text: str) -> Any:
    """The value that a URL's text means for a lever. Raises ValueError with a sentence; whether the
    engine takes it is the engine's business."""
    kind, text = LEVERS[name].kind, text.strip()
    said = f"{name}={text[:_MOST_CHARS]}"
    if kind == "whole":
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"{said}: give a whole number of at most 15 digits.")
        return int(text)
    if kind == "fraction":
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{said}: give a number.") from None
        if not -1e15 < value < 1e15:
            raise ValueError(f"{said}: give a number.")
        return value
    if kind == "switch":
        words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
        if text.lower() not in words:
            raise ValueError(f"{said}: give on or off.")
        return words[text.lower()]
    if not text or len(text) > _MOST_CHARS:
        raise ValueError(f"{said}: give one of the lever's choices.")
    return text
