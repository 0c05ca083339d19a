"""Which two runs a page shows, named so that the URL can hold it, and opening them.

It knows references: `sample:NAME` for a bundled recording, `run:ID` for a simulated one, `file:ID`
for a kept upload or a linked path. It does not know what the runs mean.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl
import streamlit as st

import traces
from analyzer.condition import idle_settings
from analyzer.look import Side
from analyzer.pages.parts.store import Store
from traces.errors import RecordingError
from traces.recording import Meta, Recording, open_recording

SAMPLES = Path(str(traces.__file__)).parent / "samples" / "recordings"


@dataclass(frozen=True)
class PairRef:
    """References of the runs in the places A and B."""

    a: str
    b: str

    def swapped(self) -> PairRef:
        return PairRef(self.b, self.a)


class Run:
    """An opened recording with its tables in memory. ref: its reference; stamp: changes with its
    files."""

    def __init__(self, ref: str, recording: Recording, stamp: str = "") -> None:
        self.ref = ref
        self.recording = recording
        self.stamp = stamp
        self._ever: dict[str, bool] = {}

    @property
    def meta(self) -> Meta:
        return self.recording.meta

    @cached_property
    def steps(self) -> pl.DataFrame:
        return self.recording.steps.rechunk()

    @cached_property
    def events(self) -> pl.DataFrame:
        return self.recording.events

    @cached_property
    def requests(self) -> pl.DataFrame:
        return self.recording.requests

    def ever(self, column: str) -> bool:
        """Whether a column of `steps` is ever more than 0."""
        if column not in self._ever:
            self._ever[column] = bool(self.steps[column].max() or 0)
        return self._ever[column]

    @property
    def mode(self) -> str:
        """The preemption mode it was run with, or its file's name where it does not say."""
        return str(self.meta.preemption_mode or self.recording.label)

    @property
    def is_simulated(self) -> bool:
        return self.meta.clock in ("modelled", "step")


def run_names(a: Run, b: Run) -> dict[Side, str]:
    """A short name of each run: its mode, and up to two settings in which it differs and that do
    something in both modes."""
    ours, theirs = a.meta.settings, b.meta.settings
    left_out = {"preemption_mode", *idle_settings(a.meta, b.meta)}
    keys = [
        k
        for k in sorted({*ours, *theirs})
        if k not in left_out and ours.get(k) != theirs.get(k)
    ]
    names: dict[Side, str] = {}
    for side, run in (("A", a), ("B", b)):
        extra = [f"{k} {run.meta.settings.get(k)}" for k in keys[:2]]
        more = [f"{len(keys) - 2} more"] if len(keys) > 2 else []
        names[side] = ", ".join([run.mode, *extra, *more])  # type: ignore[index]
    return names


def sample_pairs() -> dict[str, PairRef]:
    """Name of each bundled workload that has both a recompute and a swap recording -> the pair."""
    found: dict[str, PairRef] = {}
    for path in sorted(SAMPLES.glob("*-recompute*")):
        name = path.name.split("-recompute")[0]
        other = path.with_name(path.name.replace("-recompute", "-swap"))
        if other.exists():
            found[name] = PairRef(f"sample:{path.name}", f"sample:{other.name}")
    return found


def locate(ref: str, store: Store) -> tuple[Path, str]:
    """Path and display name of a reference. Raises RecordingError where it leads nowhere."""
    kind, _, key = ref.partition(":")
    if kind == "sample" and key == Path(key).name and (SAMPLES / key).exists():
        return SAMPLES / key, f"sample {key}"
    if kind == "run":
        try:
            path = store.run_dir(key)
        except ValueError:
            path = Path("-")
        if path.exists():
            return path, f"run {key[:8]}"
    if kind == "file" and (entry := store.get(key)):
        return Path(entry.path), entry.name
    raise RecordingError(
        ref[:60], "", "this link leads to a run that is not on this machine (any more)",
        "Choose a source in the side bar and replay it again.",
    )  # fmt: skip


def load(ref: str, store: Store) -> Run:
    """The run of that reference, opened once per content. Raises RecordingError."""
    path, name = locate(ref, store)
    return _open(ref, str(path), name, _stamp(path))


@st.cache_resource(max_entries=6, show_spinner=False)
def _open(ref: str, path: str, name: str, stamp: str) -> Run:
    return Run(ref, open_recording(Path(path), name), stamp)


def _stamp(path: Path) -> str:
    """Changes when a file below the path does."""
    parts = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        stat = part.stat()
        digest.update(f"{part.name}\0{stat.st_mtime_ns}\0{stat.st_size}\0".encode())
    return digest.hexdigest()
