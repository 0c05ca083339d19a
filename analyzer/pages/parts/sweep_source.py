"""Where the Sweeps page has its table from: bundled, dropped, or at a path of this machine.

It knows widgets and the store. A table that cannot be read is said, and what was shown stays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import streamlit as st

import traces
from analyzer.pages.parts import sweep_state as state
from analyzer.pages.parts.messages import guarded, say_error
from analyzer.pages.parts.store import Entry, Store, default_root
from analyzer.pages.parts.uploads import stored
from analyzer.sweep_table import SweepTable, read_sweep
from traces.errors import KVReplayError, SweepError
from traces.sweep_schema import TABLE_FILE

SAMPLE_TABLE = Path(str(traces.__file__)).parent / "samples" / "sweeps" / "chat.parquet"
_TURN = "sweep_turn"


@st.cache_resource(max_entries=4, show_spinner="Reading the table")
def _read(path: str, name: str, stamp: str) -> SweepTable:
    return read_sweep(path, name)


def opened() -> tuple[SweepTable, Path | None]:
    """The shown table, and the folder that its recordings lie under, None where that is not here."""
    ref = state.shown()
    if ref == state.SAMPLE:
        return _load(SAMPLE_TABLE, "sample"), None
    entry = Store(default_root()).get(ref)
    if entry is None:
        raise SweepError(
            "sweep", "", "this link leads to a sweep that is not on this machine (any more)", "Open its table again, or look at the sample."
        )  # fmt: skip
    return _load(Path(entry.path), entry.name), _folder(entry)


def _load(path: Path, name: str) -> SweepTable:
    file = path / TABLE_FILE if path.is_dir() else path
    try:
        stat = file.stat()
        stamp = f"{stat.st_mtime_ns} {stat.st_size}"
    except OSError:
        stamp = ""
    return _read(str(path), name, stamp)


def _folder(entry: Entry) -> Path | None:
    path = Path(entry.path)
    if not entry.linked:
        return None
    return path if path.is_dir() else path.parent


def source_section(is_sample: bool) -> None:
    """Boxes to give another table in."""
    if (fault := st.session_state.pop(state.FAULT, None)) is not None:
        say_error(fault)
    with st.expander("Open the table of a sweep", icon=":material/folder_open:"), guarded():
        turn = st.session_state.setdefault(_TURN, 0)
        left, right = st.columns(2)
        given = left.file_uploader("Drop a sweep.parquet", key=f"sweep_upload_{turn}")
        path = right.text_input(
            "or a path on this machine: the sweep's folder, or its table",
            key=f"sweep_path_{turn}",
            placeholder="runs/my-sweep",
        )
        right.caption(
            "Recordings that were kept (--keep) can be compared where the folder is given by its path. Runs on your machine; nothing leaves it."
        )
        store = Store(default_root())
        if given is not None:
            _use(lambda: stored(store, given))
        elif path.strip():
            _use(lambda: store.link(Path(path.strip())))
        if not is_sample and st.button("Show the sample", key="sweep_sample"):
            state.show(state.SAMPLE)
            st.rerun()


def _use(given: Callable[[], Entry]) -> None:
    """Show that table if it can be kept and read; the boxes are emptied either way."""
    try:
        entry = given()
        _load(Path(entry.path), entry.name)
    except KVReplayError as error:
        st.session_state[state.FAULT] = error
    else:
        state.show(entry.id)
    st.session_state[_TURN] += 1
    st.rerun()
