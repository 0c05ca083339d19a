"""Which two runs a page shows, named so that the URL can hold it, and opening them.

It knows references: `sample:NAME` for a bundled recording, `run:ID` for a simulated one, `file:ID`
for a kept upload or a linked path. A long recording is checked once, and its tables are kept in the
store. It does not know what the runs mean.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

import streamlit as st

import traces
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.store import Store
from analyzer.run import Run
from traces.errors import RecordingError
from traces.mapped_tables import LONG_ROWS, Keep
from traces.recording import open_recording

LARGE_BYTES = 10 * 2**20  # from which on a bar shows how far the first opening is
BAR_EVERY_S = 0.5  # a browser that draws it more often takes a processor from who reads
MOST_FAULTS = 32
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
    stamp = _stamp(path)
    tables = store.tables_dir(ref, stamp)
    seen = _seen()
    if str(tables) not in seen:
        if not tables.is_dir() and _num_bytes(path) > LARGE_BYTES:
            _check_once(path, name, tables)
        seen.add(str(tables))
    run = _open(ref, str(path), name, stamp, str(tables))
    store.use_tables(tables)
    return run


@st.cache_resource(show_spinner=False)
def _seen() -> set[str]:
    """Recordings that this server has opened, by where their tables would be kept."""
    return set()


@st.cache_resource(max_entries=6, show_spinner=False)
def _open(ref: str, path: str, name: str, stamp: str, tables: str) -> Run:
    return Run(ref, open_recording(Path(path), name, Keep(Path(tables), LONG_ROWS)), stamp)


@st.cache_resource(show_spinner=False)
def _faults() -> dict[tuple[str, str], RecordingError]:
    """What large recordings were refused for, by name and by where their tables would be kept: another
    state of the same files has another place."""
    return {}


def _check_once(path: Path, name: str, tables: Path) -> None:
    """As `_check_large`; what was refused is told again at once. Raises RecordingError."""
    faults, key = _faults(), (name, str(tables))
    if key in faults:
        raise replace(faults[key])
    try:
        _check_large(path, name, tables)
    except RecordingError as error:
        if not _may_pass(error):
            faults[key] = replace(error)
            while len(faults) > MOST_FAULTS:
                del faults[next(iter(faults))]
        raise


def _may_pass(error: RecordingError) -> bool:
    """Whether the system refused it, which may change while the files stay as they are."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno is not None


def _check_large(path: Path, name: str, tables: Path) -> None:
    """Check a large recording and keep its tables, with a bar; to open it is then quick."""
    bar = st.progress(0.0, text=plain(f"Reading {name}"))
    told_s = float("-inf")

    def progress(done: int, total: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s < BAR_EVERY_S:
            return
        told_s = time.monotonic()
        said = f"Checking every row of {name}, once: {done:,} of {total:,}"
        bar.progress(min(1.0, done / max(total, 1)), text=plain(said))

    try:
        open_recording(path, name, Keep(tables, LONG_ROWS, progress)).close()
    finally:
        bar.empty()


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def _num_bytes(path: Path) -> int:
    return sum(p.stat().st_size for p in _files(path))


def _stamp(path: Path) -> str:
    """Changes when a file below the path does."""
    parts = _files(path)
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        stat = part.stat()
        digest.update(f"{part.name}\0{stat.st_mtime_ns}\0{stat.st_size}\0".encode())
    return digest.hexdigest()
