"""Which two runs a page shows, named so that the URL can hold it, and opening them.

It knows references: `sample:NAME` for a bundled recording, `run:ID` for a simulated one, `file:ID`
for a kept upload or a linked path. It does not know what the runs mean.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

import traces
from analyzer.pages.parts.store import Store
from analyzer.run import Run
from traces.errors import RecordingError
from traces.recording import open_recording

SAMPLES = Path(str(traces.__file__)).parent / "samples" / "recordings"


@dataclass(frozen=True)
class PairRef:
    """References of the runs in the places A, B and C; "" for none. A alone is one recording looked
    at by itself."""

    a: str
    b: str = ""
    c: str = ""

    def swapped(self) -> PairRef:
        return PairRef(self.b, self.a, self.c)


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
