"""Which fleet the page shows: a folder of this machine, a simulated one, or the sample; and reading it.

It knows references (`file:ID` for a folder that was given, `run:ID` for a simulated fleet), the `fleet` of
the URL, and the job that reads. What is read is known in `analyzer/fleet_series.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from analyzer.fleet_balance import Balance, balance
from analyzer.fleet_series import FleetSeries, read_fleet
from analyzer.pages.parts import fleet_job, state
from analyzer.pages.parts.jobs import Cancelled, Report
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.replay import wait_for_core
from analyzer.pages.parts.store import Store
from traces import samples
from traces.errors import RecordingError
from traces.fleet import open_fleet

REF, GIVEN = "fleet_ref", "fleet_given"
READING, SAMPLE = "reading", "sample"
SAMPLE_WORKLOAD, SAMPLE_RATE = "chat", 3.0
SAMPLE_SHARES = (0.46, 0.24, 0.18, 0.12)  # of the requests, by rank: hash routing gone wrong


@dataclass(frozen=True, eq=False)
class Shown:
    """A fleet that was read. ref: its reference; path: its folder."""

    ref: str
    path: Path
    series: FleetSeries
    balance: Balance


@dataclass
class _Slot:
    """A place for a fleet that may still be on its way."""

    shown: Shown | None = None


@st.cache_resource(max_entries=4, show_spinner=False)
def _slot(ref: str, path: str) -> _Slot:
    return _Slot()


# ---- choosing ---------------------------------------------------------------------------------------


def current_ref() -> str:
    """The reference on the page: of this session, else of the URL, else ""."""
    if REF not in st.session_state:
        st.session_state[REF] = st.query_params.get("fleet", "")
    return str(st.session_state[REF])


def show(ref: str) -> None:
    """Put another fleet on the page; the shown part of the old one's axis is forgotten."""
    st.session_state[REF] = ref
    state.forget_range()
    fleet_job.stop(READING)


def write_url() -> None:
    """Bring the URL's `fleet` to what is shown."""
    ref = current_ref()
    if ref:
        st.query_params["fleet"] = ref
    else:
        st.query_params.pop("fleet", None)


def inputs_section(store: Store, is_shown: bool) -> None:
    """A path, the side bar's fleet, and the sample. is_shown: a fleet is on the page already."""
    place = st.expander("Another fleet") if is_shown else st.container(key="fleet_inputs")
    with place:
        text = str(
            st.text_input(
                "Folder of recordings on this machine",
                key="fleet_path",
                placeholder="the folder that the ranks, replicas or hours lie in",
            )
            or ""
        ).strip()
        if text and st.session_state.get(GIVEN) != text:
            st.session_state[GIVEN] = text
            with guarded():
                _give(store, text)
                st.rerun()
        with st.container(horizontal=True, vertical_alignment="center"):
            for side in "abc":
                given = str(st.session_state.get(f"fleet_{side}") or "")
                if given:
                    st.button(
                        f"The fleet in the side bar ({side.upper()})",
                        key=f"fleet_from_{side}",
                        on_click=_ask,
                        args=(given,),
                    )
            st.button(
                "Try a sample fleet",
                key="fleet_sample",
                icon=":material/science:",
                on_click=_start_sample,
                args=(store,),
                help="Four ranks, simulated here in a second or two: a router that sends nearly half of the requests to one of them.",
            )
    if fleet_job.was_cancelled(SAMPLE):
        st.info("The sample was not made.")
    made = fleet_job.watch(SAMPLE, SAMPLE, "Simulating the sample fleet")
    if made:
        show(f"run:{made}")
        st.rerun()


def follow_side_bar(store: Store) -> None:
    """Show the fleet that the side bar's button asked for, once."""
    asked = st.session_state.pop("fleet_asked", None)
    if asked:
        _give(store, str(asked))


def _ask(path: str) -> None:
    st.session_state["fleet_asked"] = path


def _give(store: Store, path: str) -> None:
    """Put the fleet in that folder on the page. Raises FileError."""
    show(f"file:{store.link(Path(path)).id}")


def _start_sample(store: Store) -> None:
    fleet_job.start(
        SAMPLE, SAMPLE, lambda report, cancelled: make_sample(store, report, cancelled)
    )


def make_sample(store: Store, report: Report, cancelled: Cancelled) -> str | None:
    """Simulate the sample fleet into the store, or find it there; its id, None where cancelled."""
    import numpy as np

    from analyzer.pages.parts.fleet_simulate import FleetRequest, simulate_into
    from engine.config import EngineSettings

    if not wait_for_core(lambda done, text: report(SAMPLE, done, text), cancelled):
        return None
    about = samples.info(SAMPLE_WORKLOAD)
    workload = samples.load(SAMPLE_WORKLOAD).scale_rate(SAMPLE_RATE)
    settings = EngineSettings(
        kv_tokens=about.pool_tokens, model=about.model, device=about.device
    )
    replica_of = np.random.default_rng(0).choice(
        len(SAMPLE_SHARES), len(workload), p=SAMPLE_SHARES
    )
    asked = FleetRequest(
        workload, replica_of.astype(np.int32), (settings,) * len(SAMPLE_SHARES)
    )
    return simulate_into(store, asked, lambda done, text: report(SAMPLE, done, text), cancelled)


# ---- reading ------------------------------------------------------------------------------------------


def locate(ref: str, store: Store) -> Path:
    """The folder of a reference. Raises RecordingError where it leads nowhere."""
    kind, _, key = ref.partition(":")
    if kind == "file" and (entry := store.get(key)):
        return Path(entry.path)
    if kind == "run":
        try:
            path = store.run_dir(key)
        except ValueError:
            path = Path("-")
        if path.exists():
            return path
    raise RecordingError(
        ref[:60], "", "this link leads to a fleet that is not on this machine (any more)",
        "Give its folder again.",
    )  # fmt: skip


def shown_fleet(ref: str, store: Store) -> Shown | None:
    """The fleet of a reference, read; None while it is, with a bar drawn. Raises RecordingError."""
    path = locate(ref, store)
    slot = _slot(ref, str(path))
    if slot.shown is not None:
        return slot.shown
    if fleet_job.was_cancelled(READING):
        st.info("Reading was cancelled.")
        st.button("Read it", key="fleet_read_again")
        return None
    if not fleet_job.is_running(READING, ref):
        fleet_job.start(
            READING, ref, lambda report, cancelled: _read(ref, path, report, cancelled)
        )
    found = fleet_job.watch(READING, ref, "Reading the fleet")
    if isinstance(found, Shown):
        slot.shown = found
        return found
    if not fleet_job.is_running(READING, ref):  # it failed, and the reason was said
        show("")
    return None


def _read(ref: str, path: Path, report: Report, cancelled: Cancelled) -> Shown:
    series = read_fleet(
        open_fleet(path), lambda done, text: report(READING, done, text), cancelled
    )
    return Shown(ref, path, series, balance(series))


def notes_section(shown: Shown) -> None:
    """Who was left out and why, and what members disagree in."""
    for said in shown.series.left_out:
        st.warning(plain(said), icon=":material/error:")
    if shown.series.notes:
        with st.expander(f"Notes ({len(shown.series.notes)})"):
            st.markdown("\n".join(f"- {plain(note)}" for note in shown.series.notes))
