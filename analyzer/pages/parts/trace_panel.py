"""What was recognised in a request trace, and the way to correct it.

It knows how a reader's report is said to a person. Reading is the readers' business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import streamlit as st

from analyzer.pages.parts import state
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.state import TraceRef
from analyzer.pages.parts.store import Store
from traces.errors import WorkloadError
from traces.formats.columns import NEEDED
from traces.formats.source import inspect
from traces.formats.times import UNITS
from traces.open import is_recording, open_workload
from traces.workload import Workload, token_summary

GUESS = "guess"
NONE = "—"
ROLES = {
    "arrival_s": "Arrival time",
    "prompt_tokens": "Prompt tokens",
    "output_tokens": "Output tokens",
    "request_id": "Request id",
    "priority": "Priority",
    "session_id": "Session",
}


def read_trace(ref: TraceRef, store: Store) -> Workload:
    """The workload of a kept file, read once. Raises WorkloadError or NotAWorkloadError."""
    entry = store.get(ref.id)
    if entry is None:
        raise WorkloadError(
            "this link",
            "",
            "its trace is not on this machine (any more)",
            "Give the file again in the side bar.",
        )
    if is_recording(entry.path):
        raise WorkloadError(
            entry.name,
            "",
            "it is a recording, not a request trace",
            "Choose Recordings as the source and give two of them.",
        )
    return _read(ref.key, entry.path, entry.name, ref)


@st.cache_resource(max_entries=3, show_spinner="Reading the trace")
def _read(key: str, path: str, name: str, _ref: TraceRef) -> Workload:
    return open_workload(
        Path(path), mapping=_ref.mapping or None, time_unit=_ref.time_unit, name=name
    )


def recognised_section(ref: TraceRef, workload: Workload, store: Store) -> None:
    """Format, rows, lengths, what was dropped and noted; select boxes for guessed columns."""
    report = workload.report
    with st.expander(
        f"{plain(workload.name)}: {len(workload):,} requests read as {plain(report.format)}",
        icon=":material/description:",
    ):
        prompt, output = (
            token_summary(workload.table[c].to_numpy())
            for c in ("prompt_tokens", "output_tokens")
        )
        facts = [
            f"{report.rows_read:,} rows read, {len(workload):,} requests kept, over {workload.span_s:,.0f} s.",
            f"Prompt tokens: median {prompt['p50']:,.0f}, 99 % at most {prompt['p99']:,.0f}, longest {prompt['max']:,.0f}.",
            f"Output tokens: median {output['p50']:,.0f}, 99 % at most {output['p99']:,.0f}, longest {output['max']:,.0f}.",
            f"Time unit: {report.time_unit}.",
        ]
        facts += [f"Set aside: {n:,} ({reason})." for reason, n in report.dropped.items()]
        if report.out_of_order:
            facts.append(
                f"{report.out_of_order:,} rows were before the row above and have been sorted."
            )
        if report.duplicate_timestamps:
            facts.append(
                f"{report.duplicate_timestamps:,} requests share their arrival time with another."
            )
        facts += list(report.notes)
        st.markdown("\n".join(f"- {plain(fact)}" for fact in facts))
        if report.columns and (entry := store.get(ref.id)):
            mapping_form(ref, inspect(entry.path, entry.name).columns, report.columns)


def by_hand_section(ref: TraceRef, store: Store) -> None:
    """Where a file could not be read: its columns, to be mapped by hand, if it has any."""
    entry = store.get(ref.id)
    if entry is None:
        return
    try:
        columns = inspect(entry.path, entry.name).columns
    except WorkloadError:
        return  # said already: the same fault that kept it from being read
    if columns:
        with st.expander("Map its columns by hand", expanded=True):
            mapping_form(ref, columns)


def mapping_form(
    ref: TraceRef, columns: Sequence[str], guessed: Mapping[str, str] | None = None
) -> None:
    """Select boxes for roles and unit; reading again is one button. guessed: role -> column."""
    current = {**(guessed or {}), **ref.mapping}
    with st.form("mapping", border=False):
        st.caption("Which column is what. Change a guess and read again.")
        chosen: dict[str, str] = {}
        boxes = st.columns(3)
        for i, (role, title) in enumerate(ROLES.items()):
            options = [GUESS if role in NEEDED else NONE, *columns]
            index = options.index(current[role]) if current.get(role) in options else 0
            value = boxes[i % 3].selectbox(
                title, options, index=index, key=f"map_{ref.id}_{role}"
            )
            if value not in (GUESS, NONE):
                chosen[role] = str(value)
        unit = st.selectbox("Time unit", [GUESS, *UNITS], key=f"map_{ref.id}_unit")
        if st.form_submit_button("Read again with these columns"):
            state.set_trace(TraceRef(ref.id, chosen, None if unit == GUESS else str(unit)))
            st.rerun()
