"""What the Compare page remembers, and how it is mirrored in the URL.

Session state owns: the shown pair, the shown range, the trace to be replayed, the running job. The URL follows: `a` and `b` for the pair, `t` for the range, `trace` and `columns` for the trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import streamlit as st

from analyzer.pages.parts.jobs import Job
from analyzer.pages.parts.runs import PairRef

SHOWN_RANGE = "shown_range"  # (start, end) on the axis, or None for all of it


@dataclass(frozen=True)
class TraceRef:
    """A request trace and how to read it. id: of a kept file, or "sample:NAME"; mapping: role ->
    column, empty to let the reader guess; time_unit: None to let it guess."""

    id: str
    mapping: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None

    @property
    def key(self) -> str:
        return repr((self.id, sorted(self.mapping.items()), self.time_unit))


def shown_pair() -> PairRef | None:
    """The pair on the page: of this session, else of the URL, else None."""
    if "pair" not in st.session_state:
        a, b = st.query_params.get("a"), st.query_params.get("b")
        st.session_state["pair"] = PairRef(a, b) if a and b else None
    found = st.session_state["pair"]
    return found if isinstance(found, PairRef) else None


def show_pair(pair: PairRef | None) -> None:
    """Put another pair on the page (None: the sample) and forget the range of the old one."""
    st.session_state["pair"] = pair
    if pair is None:
        st.query_params.pop("a", None)
        st.query_params.pop("b", None)
    else:
        st.query_params["a"], st.query_params["b"] = pair.a, pair.b
    set_range(None)


def set_range(shown: tuple[float, float] | None) -> None:
    """The part of the axis to show, in session and URL (`?t=100-130`)."""
    st.session_state[SHOWN_RANGE] = shown
    if shown is None:
        st.query_params.pop("t", None)
    else:
        st.query_params["t"] = f"{shown[0]:.6g}-{shown[1]:.6g}"


def parse_range(text: str) -> tuple[float, float] | None:
    """'100-130.5' -> (100.0, 130.5); None for anything else."""
    start, dash, end = text.partition("-")
    try:
        found = float(start), float(end)
    except ValueError:
        return None
    return found if dash and 0 <= found[0] < found[1] < float("inf") else None


def asked_range() -> tuple[float, float] | None:
    """The range of this session; on its first run that of the URL."""
    if SHOWN_RANGE not in st.session_state:
        st.session_state[SHOWN_RANGE] = parse_range(st.query_params.get("t", ""))
    found = st.session_state[SHOWN_RANGE]
    return found if isinstance(found, tuple) else None


def trace() -> TraceRef | None:
    """The trace that is to be replayed: of this session, else of the URL."""
    if "trace_ref" not in st.session_state:
        ref = _linked_trace()
        st.session_state["trace_ref"] = ref
        if ref is not None and shown_pair() is not None:  # a link to a result: replay nothing
            mark_replayed(ref.key)
    found = st.session_state["trace_ref"]
    return found if isinstance(found, TraceRef) else None


def _linked_trace() -> TraceRef | None:
    """The trace that the URL names: `trace`, and where columns were mapped by hand `columns`."""
    id_ = st.query_params.get("trace")
    if not id_:
        return None
    try:
        how = json.loads(st.query_params.get("columns", "{}"))
        mapping = {str(k): str(v) for k, v in dict(how.get("mapping", {})).items()}
        unit = how.get("time_unit")
    except (ValueError, TypeError, AttributeError):
        return TraceRef(id_)  # a damaged link still names the file
    return TraceRef(id_, mapping, None if unit is None else str(unit))


def set_trace(ref: TraceRef | None) -> None:
    st.session_state["trace_ref"] = ref
    for name in ("trace", "columns"):
        st.query_params.pop(name, None)
    if ref is None:
        return
    st.query_params["trace"] = ref.id
    if ref.mapping or ref.time_unit:
        how = {"mapping": dict(ref.mapping), "time_unit": ref.time_unit}
        st.query_params["columns"] = json.dumps(how, separators=(",", ":"))


def mark_replayed(key: str) -> None:
    """Note what has been replayed, so that it is not started again by itself."""
    st.session_state["replayed"] = key


def was_replayed(key: str) -> bool:
    return bool(st.session_state.get("replayed") == key)


def job() -> Job | None:
    found = st.session_state.get("job")
    return found if isinstance(found, Job) else None


def set_job(running: Job | None) -> None:
    st.session_state["job"] = running
