"""What the Compare page remembers, and how it is mirrored in the URL.

Session state owns: the shown pair and what it was made from, the shown range, the trace to be
replayed, the running job. The URL is read when a session begins and written by `write_url` alone,
before anything slow is drawn: `a`, `b` and `c` for the runs, `t` for the range, `trace` and `columns` for the trace. A
browser may send the URL as it was before the last change; the next run writes it again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import streamlit as st

from analyzer.pages.parts.jobs import Job
from analyzer.pages.parts.runs import PairRef

SHOWN_RANGE = "shown_range"  # (start, end) on the axis, or None for all of it
VIEW = "view"  # what the range belongs to
MADE_FROM = "made_from"
FROM_LINK = "from_link"
FOLLOWED = "followed"  # the last link with a range that was followed, see `follow_range`


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
        third = st.query_params.get("c", "")
        st.session_state["pair"] = PairRef(a, b or "", third) if a else None
        st.session_state[FROM_LINK] = bool(a)
        linked = _linked_trace()
        st.session_state[MADE_FROM] = linked.key if linked and a else ""
    found = st.session_state["pair"]
    return found if isinstance(found, PairRef) else None


def show_pair(pair: PairRef | None, made_from: str = "") -> None:
    """Put another pair on the page (None: the sample) and forget the range of the old one.

    made_from: key of the trace that was replayed, "" where none was.
    """
    st.session_state["pair"] = pair
    st.session_state[MADE_FROM] = made_from
    st.session_state[FROM_LINK] = False
    forget_range()


def made_from() -> str:
    """Key of the trace whose replay is shown; "" for a sample's or given recordings."""
    shown_pair()
    return str(st.session_state.get(MADE_FROM, ""))


def opened_by_link() -> bool:
    """True once: whether the shown pair came with the URL and nobody has asked this before."""
    shown_pair()
    return bool(st.session_state.pop(FROM_LINK, False))


# ---- the shown range ------------------------------------------------------------------------------


def look_at(view: str) -> None:
    """Note whose range is shown: the pair and the axis it is drawn on."""
    st.session_state[VIEW] = view


def set_range(shown: tuple[float, float] | None, view: str) -> None:
    """Show a part of the axis, None for all of it; nothing happens where another view is shown by
    now, since a browser reports a zoom late."""
    if st.session_state.get(VIEW) == view:
        st.session_state[SHOWN_RANGE] = shown


def forget_range() -> None:
    """Show all of whatever is drawn next; reports for what was drawn before no longer count."""
    st.session_state[SHOWN_RANGE] = None
    st.session_state[VIEW] = None


def _range_text(shown: tuple[float, float]) -> str:
    return f"{shown[0]:.6g}-{shown[1]:.6g}"


def parse_range(text: str) -> tuple[float, float] | None:
    """'100-130.5' -> (100.0, 130.5); None for anything else."""
    start, dash, end = text.partition("-")
    try:
        found = float(start), float(end)
    except ValueError:
        return None
    return found if dash and 0 <= found[0] < found[1] < float("inf") else None


def range_query(shown: tuple[float, float]) -> dict[str, str]:
    """The part of a link between pages that asks for a range of time, in seconds. `go` is another one
    each time it is drawn, so that the link counts once, and again when it is drawn again."""
    return {"t": _range_text(shown), "go": secrets.token_hex(4)}


def follow_range() -> None:
    """Where a link between pages has asked for a range (`range_query`), show it, once.

    The range is otherwise this session's, since a browser may send the `t` of before the last zoom.
    """
    turn = st.query_params.get("go")
    if turn is None or turn == st.session_state.get(FOLLOWED):
        return
    st.session_state[FOLLOWED] = turn
    if (found := parse_range(st.query_params.get("t", ""))) is None:
        return
    if st.session_state.get("by", "time") != "time":
        st.session_state["by"] = "time"
    st.session_state[SHOWN_RANGE] = found


def asked_range() -> tuple[float, float] | None:
    """The range of this session; on its first run that of the URL."""
    if SHOWN_RANGE not in st.session_state:
        st.session_state[SHOWN_RANGE] = parse_range(st.query_params.get("t", ""))
    found = st.session_state[SHOWN_RANGE]
    return found if isinstance(found, tuple) else None


def asked_time_range() -> tuple[float, float] | None:
    """The range of this session in seconds; None where it was asked for on another axis than time."""
    return asked_range() if st.session_state.get("by", "time") == "time" else None


# ---- the URL --------------------------------------------------------------------------------------


def write_url() -> None:
    """Bring the URL to what is shown. A result of another trace than the one given is left out:
    opened again, the link replays its trace."""
    follow_range()
    pair, shown, ref = shown_pair(), asked_range(), trace()
    if ref is not None and made_from() != ref.key:
        pair = shown = None
    wanted = {
        "a": pair.a if pair else None,
        "b": pair.b or None if pair else None,
        "c": pair.c or None if pair else None,
        "t": _range_text(shown) if shown else None,
        "go": None,
        "trace": ref.id if ref else None,
        "columns": _columns_text(ref) if ref else None,
    }
    for name in [name for name, value in wanted.items() if value is None]:
        st.query_params.pop(name, None)
    # Sent even where nothing seems to have changed: what is known here of the URL may be old, and a
    # browser passes over the URL it has.
    st.query_params.update({name: value for name, value in wanted.items() if value})


def url_of_pair() -> dict[str, str]:
    """The part of the URL that says what is shown, for links between pages. The frame's own widgets
    (source, sample) write themselves into the URL of every page."""
    names = ("a", "b", "c", "t", "trace", "columns")
    return {n: v for n in names if (v := st.query_params.get(n))}


def _columns_text(ref: TraceRef) -> str | None:
    if not ref.mapping and not ref.time_unit:
        return None
    how = {"mapping": dict(ref.mapping), "time_unit": ref.time_unit}
    return json.dumps(how, separators=(",", ":"))


# ---- the trace and its replay -----------------------------------------------------------------------


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
    """The trace to be replayed from now on; None for none."""
    st.session_state["trace_ref"] = ref


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
