"""References -> evidence that was read and diagnosed, once per content; a big file in a job that can stop.

It knows where evidence lies (kept files, bundled samples, runs of the pair) and how its lines are
read again. It draws nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import streamlit as st

import traces
from analyzer.diagnosis import Diagnosis, diagnose
from analyzer.diagnosis.parts import split_parts
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.recording import recording_evidence, telemetry_evidence
from analyzer.pages.parts.evidence_state import EvidenceRef
from analyzer.pages.parts.jobs import Cancelled, Report
from analyzer.pages.parts.shell import open_pair
from analyzer.pages.parts.store import Entry, Store, default_root
from traces.errors import EvidenceError, RecordingError
from traces.evidence.evidence import Evidence, Line
from traces.evidence.reading import read_sources
from traces.evidence.source import Source
from traces.open import FLEET, RECORDING, TELEMETRY, what_is
from traces.recording import open_recording
from traces.telemetry import open_telemetry

SAMPLES = Path(str(traces.__file__)).parent / "samples" / "evidence"
READ_AT_ONCE_BYTES = 1_500_000  # a second or less; more is read in a job
KEEP_FILES = 400
MIB = 2**20
MAX_SHOWN_LINES = 12  # of one place
MAX_LINE_CHARS = 400
PASTE = "paste"


@dataclass(frozen=True, eq=False)
class Part:
    """A server or run of the evidence: what is of it, its diagnosis and quantities."""

    evidence: Evidence
    diagnosis: Diagnosis
    quantities: Quantities


@dataclass(frozen=True, eq=False)
class Reading:
    """Evidence that was read. key: names its content; parts: one for each server or run, one where it is of
    one; files: name of a source -> where its lines can be read again."""

    key: str
    evidence: Evidence
    diagnosis: Diagnosis
    parts: tuple[Part, ...]
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass
class Slot:
    """A place for a reading that may still be on its way."""

    reading: Reading | None = None


@dataclass(frozen=True)
class Given:
    """A file to read: where it lies and what it is called."""

    path: Path
    name: str
    num_bytes: int


def evidence_store() -> Store:
    """Where evidence is kept: apart from traces and recordings, and more of it."""
    return Store(default_root() / "evidence", KEEP_FILES)


def sample_names() -> list[str]:
    """Names of the bundled cases."""
    return sorted(p.name for p in SAMPLES.iterdir() if p.is_dir()) if SAMPLES.is_dir() else []


def files_of(ref: EvidenceRef) -> list[Given]:
    """The files that a reference names. Raises EvidenceError where one is gone."""
    if ref.kind == "sample":
        folder = SAMPLES / ref.names[0]
        paths = sorted(folder.glob("*")) if folder.is_dir() else []
        if not paths:
            raise _gone(f"the sample {ref.names[0]} is not there")
        return [Given(p, p.name, p.stat().st_size) for p in paths]
    store = evidence_store()
    entries = [store.get(id_) for id_ in ref.names]
    gone = sum(e is None for e in entries)
    if gone:
        what = "its file is" if len(entries) == 1 else f"{gone} of its {len(entries)} files are"
        raise _gone(f"{what} not on this machine (any more)")
    return [_given(e) for e in entries if e is not None]


def _given(entry: Entry) -> Given:
    path = Path(entry.path)
    size = path.stat().st_size if path.is_file() else entry.num_bytes
    return Given(path, entry.name, size)


def _gone(why: str) -> EvidenceError:
    return EvidenceError("this link", "", why, "Paste or give the evidence again.")


def key_of(ref: EvidenceRef) -> str:
    """Names the content behind a reference. Raises EvidenceError, RecordingError."""
    if ref.kind == "side":
        return f"side\0{_run(ref).ref}\0{_run(ref).stamp}"
    digest = hashlib.blake2b(digest_size=12)
    for given in files_of(ref):
        stat = given.path.stat()
        digest.update(
            f"{given.path}\0{given.name}\0{stat.st_mtime_ns}\0{stat.st_size}\0".encode()
        )
    return digest.hexdigest()


@st.cache_resource(max_entries=4, show_spinner=False)
def slot(key: str) -> Slot:
    """The place for the reading of that content, shared by all sessions."""
    return Slot()


def is_big(ref: EvidenceRef) -> bool:
    """Whether reading it takes long enough for a bar. Raises EvidenceError."""
    return ref.kind == "files" and sum(g.num_bytes for g in files_of(ref)) > READ_AT_ONCE_BYTES


def read(
    ref: EvidenceRef,
    key: str,
    report: Report | None = None,
    cancelled: Cancelled | None = None,
) -> Reading:
    """Read and diagnose. Raises EvidenceError or RecordingError; ReadingCancelled where `cancelled` says so."""
    if ref.kind == "side":
        run = _run(ref)
        return _reading(key, recording_evidence(run.recording), {})
    given = files_of(ref)
    folders = [g for g in given if g.path.is_dir()]
    if folders:
        return _of_folder(key, given)
    sources: list[Source] = []
    faults: list[EvidenceError] = []
    for g in given:
        try:
            sources.append(Source.from_path(g.path, g.name))
        except EvidenceError as fault:
            faults.append(fault)
    if not sources:
        raise faults[0]

    def tell(done: int, total: int) -> None:
        if report is not None:
            report(
                "Reading", done / max(total, 1), f"{done / MIB:,.0f} of {total / MIB:,.0f} MiB"
            )

    evidence = read_sources(sources, tell, cancelled)
    if faults:
        evidence = _with_notes(evidence, [str(f) for f in faults])
    if report is not None:
        report("Reading", 1.0, "judging")
    return _reading(key, evidence, {s.name: s.path for s in sources if s.path is not None})


def _with_notes(evidence: Evidence, notes: Sequence[str]) -> Evidence:
    return replace(evidence, notes=(*notes, *evidence.notes))


def _reading(key: str, evidence: Evidence, files: Mapping[str, Path]) -> Reading:
    found = diagnose(evidence)
    if not found.parts:
        return Reading(
            key, evidence, found, (Part(evidence, found, Quantities(evidence)),), files
        )
    parts = tuple(
        Part(e, d, Quantities(e))
        for e, d in zip(split_parts(evidence), found.parts, strict=True)
    )
    return Reading(key, evidence, found, parts, files)


def _of_folder(key: str, given: Sequence[Given]) -> Reading:
    """A recording or telemetry that a recorder wrote."""
    if len(given) > 1:
        raise EvidenceError(
            given[0].name, "", "a recorded folder and other files cannot be read together", "Give the folder alone."
        )  # fmt: skip
    path, kind = what_is(given[0].path)
    if kind == TELEMETRY:
        return _reading(key, telemetry_evidence(open_telemetry(path, given[0].name)), {})
    if kind == RECORDING:
        with open_recording(path, given[0].name) as recording:
            return _reading(key, recording_evidence(recording), {})
    what = "it holds several ranks" if kind == FLEET else "it is a folder that nothing recorded"
    remedy = (
        "Give the folder of one rank."
        if kind == FLEET
        else "Give the files in it, such as its *.log."
    )
    raise RecordingError(given[0].name, "", what, remedy)


def _run(ref: EvidenceRef) -> Any:
    opened = open_pair()
    if opened is None:
        raise EvidenceError(
            "this link", "", "no pair of runs is shown yet", "Choose a source on the left, or paste a log."
        )  # fmt: skip
    side = ref.names[0]
    run = {str(s): r for s, r in opened.runs.items()}.get(side)
    if run is None:
        raise EvidenceError(
            "this link", "", f"no run {side} is shown", "Diagnose another run of Compare."
        )
    return run


# ---- lines again --------------------------------------------------------------------------------


def raw_lines(reading: Reading, places: Sequence[Line]) -> dict[Line, list[tuple[int, str]]]:
    """Place -> its lines as (number, text), read again from the kept files, each file once."""
    found: dict[Line, list[tuple[int, str]]] = {}
    for source, path in reading.files.items():
        wanted: dict[int, list[Line]] = {}
        for at in places:
            if at.source == source:
                for n in range(at.number, at.number + min(at.num_lines, MAX_SHOWN_LINES)):
                    wanted.setdefault(n, []).append(at)
        if wanted:
            _collect(Source.from_path(path, source), wanted, found)
    return found


def _collect(
    source: Source,
    wanted: Mapping[int, Sequence[Line]],
    found: dict[Line, list[tuple[int, str]]],
) -> None:
    last = max(wanted)
    before = 0
    for number, text in source.lines(1 << 16):
        if number > last:
            return
        if number in wanted and number != before:  # of a long line its first piece
            clean = source.line(number, text).text[:MAX_LINE_CHARS]
            for at in wanted[number]:
                found.setdefault(at, []).append((number, clean))
        before = number
