"""The side bar's first half: where the runs come from.

It knows uploads, paths, the last files and the bundled sample. It reads no file: a chosen trace
becomes a TraceRef, chosen recordings a PairRef.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

from analyzer.pages.parts import state
from analyzer.pages.parts.fleets import choose_rank
from analyzer.pages.parts.messages import guarded, plain, say_error
from analyzer.pages.parts.runs import PairRef
from analyzer.pages.parts.state import TraceRef
from analyzer.pages.parts.store import Entry, Store
from analyzer.pages.parts.uploads import stored
from traces import samples
from traces.errors import FileError

SOURCES = {"sample": "Sample", "trace": "Trace", "recordings": "Recordings"}
PLACES = "abc"
MOST_RECENT, MOST_LOOKED_AT = 5, 200  # last files
LOCAL = "Runs on your machine; nothing leaves it."


def source_section(store: Store) -> str:
    """Draw the choice of source; returns its name. Changes the shown pair or the trace."""
    source = st.segmented_control(
        "Source",
        list(SOURCES),
        format_func=lambda k: SOURCES[k],
        default="sample",
        required=True,
        key="source",
        bind="query-params",
        width="stretch",
        on_change=_source_changed,
    )
    with guarded():  # whatever cannot be read, the source stays the one that was chosen
        if source == "trace":
            _trace_inputs(store)
        elif source == "recordings":
            _recording_inputs(store)
        else:
            _sample_inputs()
    return str(source or "sample")


def _source_changed() -> None:
    _forget_faults()
    if (running := state.job()) is not None:  # its result would land under another source
        running.cancel()
        state.set_job(None)
    if st.session_state.get("source") in (None, "sample"):
        state.show_pair(None)
        state.set_trace(None)


def is_previous(source: str) -> bool:
    """Whether the shown pair is of a source given before, for want of a result of this one."""
    pair = state.shown_pair()
    if source == "trace":
        ref = state.trace()
        return ref is None or pair is None or state.made_from() != ref.key
    if source == "recordings":
        sides = _sides()
        if pair is None:
            return True
        return sides not in ([pair.a, pair.b, pair.c], [pair.b, pair.a, pair.c])
    return False


def _sides() -> list[str]:
    """The chosen recordings, "" where none is chosen; those of a link until others are chosen."""
    pair = state.shown_pair()
    if pair and pair.a.startswith("file:") and "side_a" not in st.session_state:
        for side, ref in zip(PLACES, (pair.a, pair.b, pair.c), strict=True):
            st.session_state[f"side_{side}"] = ref
    return [str(st.session_state.get(f"side_{s}") or "") for s in PLACES]


def _sample_inputs() -> None:
    name = st.selectbox(
        "Workload",
        samples.names(),
        format_func=lambda n: samples.info(n).title,
        key="sample",
        bind="query-params",
        on_change=state.show_pair,
        args=(None,),
    )
    about = samples.info(name)
    st.caption(f"{about.what}.")
    with st.expander("What it is shaped after"):
        st.markdown("\n".join(f"- {plain(line)}" for line in about.follows))
        st.caption(plain("Departs: " + "; ".join(about.departs) + "."))


def _trace_inputs(store: Store) -> None:
    ref = state.trace()
    entry = store.get(ref.id) if ref else None
    if entry is not None:
        st.markdown(f":material/description: **{plain(entry.name)}**")
    given = _uploader("trace", "Drop another trace" if entry else "Drop a request trace", False)
    if given is not None:
        for kept in _kept("trace", store, [given]):
            _use_trace(kept)
        _close_uploader("trace")
    path = _path_input("trace_path", "or a path on this machine")
    with guarded():
        if path:
            _use_trace(store.link(Path(path)))
            st.rerun()
    _recent(store, _may_be_trace, _use_trace)
    st.caption(f"CSV, TSV, JSON, JSON lines or Parquet, plain, .gz or .zst. {LOCAL}")


def _recording_inputs(store: Store) -> None:
    given = _uploader("recordings", "Drop one to three recordings (A, B, C)", True)
    if given:
        found = _kept("recordings", store, given)
        for side, entry in zip(_places_for(len(found)), found, strict=False):
            _set_side(side, entry)
        _close_uploader("recordings")
    for side in PLACES:
        path = _path_input(f"path_{side}", f"or {side.upper()}: folder or zip on this machine")
        with guarded():
            chosen = choose_rank(side, path)
            if chosen is not None:
                _set_side(side, store.link(chosen))
                st.rerun()
    _chosen_sides(store)
    _recent(store, _may_be_recording, lambda entry: _set_side(_places_for(1)[0], entry))
    st.caption(f"A recording is a folder or zip that the engine or a recorder wrote. {LOCAL}")


def _uploader(name: str, label: str, several: bool) -> Any:
    """A file uploader that can be emptied by giving it another key, and what was wrong with the last drop."""
    turn = st.session_state.setdefault(f"upload_turn_{name}", 0)
    given = st.file_uploader(label, accept_multiple_files=several, key=f"upload_{name}_{turn}")
    for fault in () if given else st.session_state.get(f"upload_faults_{name}", ()):
        say_error(fault)
    return given or None


def _kept(name: str, store: Store, given: list[Any]) -> list[Entry]:
    """What the store took of a drop. What it did not is let go of too, or it would stand before whatever is
    dropped next; why is said until then."""
    found, faults = [], []
    for upload in given:
        try:
            found.append(stored(store, upload))
        except FileError as fault:
            faults.append(fault)
    st.session_state[f"upload_faults_{name}"] = faults
    return found


def _forget_faults() -> None:
    for name in ("trace", "recordings"):
        st.session_state.pop(f"upload_faults_{name}", None)


def _close_uploader(name: str) -> None:
    """Let go of the uploaded bytes, which stay in memory as long as the widget holds them."""
    st.session_state[f"upload_turn_{name}"] += 1
    st.rerun()


def _path_input(key: str, label: str) -> str:
    """A path, once: the field is read when it changes and keeps its text."""
    text = str(st.text_input(label, key=key) or "").strip()
    if text and st.session_state.get(f"{key}_read") != text:
        st.session_state[f"{key}_read"] = text
        _forget_faults()
        return text
    return ""


def _use_trace(entry: Entry) -> None:
    state.set_trace(TraceRef(entry.id))


def _places_for(num_given: int) -> str:
    """Where dropped recordings go: several fill the places from A on, one the first free place."""
    free = [place for place, ref in zip(PLACES, _sides(), strict=True) if not ref]
    return free[0] if num_given == 1 and free else PLACES


def _set_side(side: str, entry: Entry) -> None:
    _sides()  # a link's recordings stay in the place that is not given anew
    st.session_state[f"side_{side}"] = f"file:{entry.id}"
    _show_sides()


def _show_sides() -> None:
    """Show what lies in the places, moved up where one before it is empty."""
    refs = [ref for ref in _sides() if ref]
    for place, ref in zip(PLACES, [*refs, "", "", ""], strict=False):
        st.session_state[f"side_{place}"] = ref
    state.show_pair(PairRef(*refs) if refs else None)


def _take_out(place: str) -> None:
    st.session_state[f"side_{place}"] = ""
    _show_sides()


def _chosen_sides(store: Store) -> None:
    """Which file is in which place."""
    pair, sides = state.shown_pair(), _sides()
    if pair and sides == [pair.b, pair.a, pair.c]:  # the page's button has exchanged them
        for place, ref in zip(PLACES, (pair.a, pair.b, pair.c), strict=True):
            st.session_state[f"side_{place}"] = ref
        sides = _sides()
    for place, ref in zip(PLACES, sides, strict=True):
        entry = store.get(ref.partition(":")[2]) if ref else None
        if entry is None:
            if place == "a" or sides[0]:
                st.markdown(f"**{place.upper()}**: not chosen")
            continue
        with st.container(
            horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"
        ):
            st.markdown(f"**{place.upper()}**: {plain(entry.name)}", width="content")
            st.button(
                "",
                icon=":material/close:",
                key=f"take_out_{place}",
                type="tertiary",
                on_click=_take_out,
                args=(place,),
                help=f"Take {place.upper()} out of the comparison; the file is kept.",
            )


def _may_be_recording(entry: Entry) -> bool:
    """By what it looks like from outside: no file is read for a list."""
    path = Path(entry.path)
    return path.suffix.lower() == ".zip" or path.is_dir()


def _may_be_trace(entry: Entry) -> bool:
    return not Path(entry.path).is_dir()


def _recent(
    store: Store, may_be: Callable[[Entry], bool], use: Callable[[Entry], object]
) -> None:
    """The last files of a kind, to open again or to delete."""
    states: dict[str, list[Entry]] = {}  # a linked folder that changes has an entry for each
    for entry in filter(may_be, store.recent(MOST_LOOKED_AT)):
        states.setdefault(entry.path, []).append(entry)
    if not states:
        return
    by_id = {found[0].id: found[0] for found in list(states.values())[:MOST_RECENT]}
    with st.expander("Last files"):
        id_ = st.selectbox(
            "Opened before",
            list(by_id),
            format_func=lambda k: f"{by_id[k].name} ({by_id[k].num_bytes / 2**20:,.1f} MiB)",
            key="recent_file",
        )
        left, right = st.columns(2)
        if left.button("Open", width="stretch", key="open_recent"):
            _forget_faults()
            use(store.touch(by_id[id_]))
            st.rerun()
        if right.button("Delete", width="stretch", key="delete_recent"):
            gone = states[by_id[id_].path]
            for entry in gone:
                store.delete(entry)
            refs = {f"file:{entry.id}" for entry in gone}
            for place in reversed(PLACES):  # what lies behind a place moves up
                if st.session_state.get(f"side_{place}") in refs:
                    _take_out(place)
            st.rerun()
