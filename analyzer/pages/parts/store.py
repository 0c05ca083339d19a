"""Files that a user gave to the page, kept on disk under the hash of their content.

It knows a folder with `uploads/<id>/` (a file or a link to one, and `entry.json`), `runs/<id>/`
(simulated recordings) and `tables/<id>-<stamp>/` (the tables of long recordings as they are mapped,
and what was worked out of them). It does not know what the files mean, and holds none of them in memory.
The folder is KV_REPLAY_CACHE, or `kv-replay` in the platform's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, BinaryIO

from traces.errors import FileError
from traces.mapped_tables import set_aside
from traces.paths import path_kind

CHUNK_BYTES = 4 * 2**20
HASH_BYTES = 16  # blake2b
KEEP_ENTRIES = 12
KEEP_RUNS = 400  # a what-if makes some 30 small ones
KEEP_RUN_BYTES = 4 * 2**30
KEEP_BYTES = 8 * 2**30  # of uploads, and as much again of tables
MOST_FILES = 200_000  # below a folder that is linked
STALE_S = 86_400.0  # a file in the making that is older was left behind
_PART = ".part-"  # begins the name of a file in the making
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Entry:
    """One kept file. id: 32 hex digits of its content; name: as the user called it, never trusted;
    path: where it lies; num_bytes; linked: it lies elsewhere on this machine and was not copied;
    opened_at: seconds since 1970 when it was last used."""

    id: str
    name: str
    path: str
    num_bytes: int
    linked: bool
    opened_at: float


def default_root() -> Path:
    """The platform's cache folder for this product, KV_REPLAY_CACHE if that is set."""
    chosen = os.environ.get("KV_REPLAY_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kv-replay"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "kv-replay"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kv-replay"


class Store:
    """Kept files below one folder. Oldest ones go first when there are more than `keep_entries`."""

    def __init__(self, root: Path, keep_entries: int | None = None) -> None:
        self.root = root
        self.keep_entries = keep_entries  # None: KEEP_ENTRIES

    def spool(
        self, source: BinaryIO, name: str, progress: Callable[[int], object] | None = None
    ) -> Entry:
        """Copy a file-like object to disk under its content's hash, a few MiB in memory at a time.

        Reads from the start. progress: called with the bytes copied so far. Raises FileError when
        the disk does not take it.
        """
        source.seek(0)
        digest = hashlib.blake2b(digest_size=HASH_BYTES)
        copied, part = 0, None
        try:
            with self.open_part() as file:
                part = Path(file.name)
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                    copied += len(chunk)
                    if progress is not None:
                        progress(copied)
            return self.adopt(part, digest.hexdigest(), name, copied)
        except OSError as error:
            raise self.no_room(name, error.strerror or str(error)) from error
        finally:
            if part is not None:
                part.unlink(missing_ok=True)

    def open_part(self) -> IO[bytes]:
        """A new file of this store, to be written, closed and adopted; who made it removes it where that
        fails. Parts that were left behind go. Raises OSError."""
        folder = self._folder("uploads")
        for left in folder.glob(f"{_PART}*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > STALE_S:
                    left.unlink()
        return tempfile.NamedTemporaryFile(dir=folder, prefix=_PART, delete=False)

    def adopt(self, part: Path, id_: str, name: str, num_bytes: int) -> Entry:
        """Keep a file that is written under its content's hash, without copying it.

        part: lies on the same disk, and is gone then. id_: what `spool` would have found. Raises FileError.
        """
        if not _ID.fullmatch(id_):
            raise ValueError(f"{id_!r} is not an id of 32 hex digits")
        try:
            home = self._folder("uploads") / id_
            home.mkdir(exist_ok=True)
            target = home / f"file{_suffixes(name)}"
            os.replace(part, target)
            return self._keep(Entry(id_, name, str(target), num_bytes, False, time.time()))
        except OSError as error:
            raise self.no_room(name, error.strerror or str(error)) from error

    def no_room(self, name: str, why: str) -> FileError:
        """What to say where the disk does not take the file of that name."""
        return FileError(
            name, "", f"it could not be stored ({why})",
            f"Make room in {self.root}, or set KV_REPLAY_CACHE to a folder that has some.",
        )  # fmt: skip

    def link(self, path: Path) -> Entry:
        """Remember a file or folder of this machine where it lies. Raises FileError."""
        with suppress(RuntimeError):  # ~ of nobody: there is no such file
            path = path.expanduser()
        if not _is_there(path):
            fault = path_kind(path)[1] or "there is no such file or folder"
            raise FileError(
                path,
                "",
                fault,
                "Check the path; it is read on the machine that runs this page.",
            )
        path = path.resolve()
        num_bytes, newest = _looked_over(path)
        stamp = f"{path}\0{newest}\0{num_bytes}"
        key = hashlib.blake2b(stamp.encode(), digest_size=16).hexdigest()
        return self._keep(Entry(key, path.name, str(path), num_bytes, True, time.time()))

    def get(self, id_: str) -> Entry | None:
        """The entry of that id, or None if it is gone or the id is none of ours."""
        if not _ID.fullmatch(id_):
            return None
        try:
            raw = json.loads((self.root / "uploads" / id_ / "entry.json").read_text("utf-8"))
            entry = Entry(**raw)
        except (OSError, ValueError, TypeError):
            return None
        return entry if Path(entry.path).exists() else None

    def touch(self, entry: Entry) -> Entry:
        """The entry, noted as used now."""
        return self._keep(replace(entry, opened_at=time.time()))

    def recent(self, limit: int = 5) -> list[Entry]:
        """Entries by last use, newest first."""
        folder = self.root / "uploads"
        found = [self.get(p.name) for p in folder.iterdir()] if folder.is_dir() else []
        return sorted((e for e in found if e), key=lambda e: -e.opened_at)[:limit]

    def delete(self, entry: Entry) -> None:
        """Remove the entry; a linked file itself stays where it lies."""
        shutil.rmtree(self.root / "uploads" / entry.id, ignore_errors=True)
        for tables in self._tables_of(entry.id):
            set_aside(tables)

    def run_dir(self, id_: str) -> Path:
        """Where the simulated recording of that id lies or is to be written. Raises ValueError."""
        if not _ID.fullmatch(id_):
            raise ValueError(f"{id_!r} is not an id of 32 hex digits")
        return self._folder("runs") / id_

    def forget_old_runs(self) -> None:
        """Remove the longest unused simulated recordings beyond the number and bytes that are kept, and
        what was left behind half made. The one used last stays, however large."""
        num = total = 0
        for path in _by_use(self._folder("runs")):
            if path.name.startswith("."):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > STALE_S:
                        shutil.rmtree(path, ignore_errors=True)
                continue
            with suppress(OSError, FileError):  # it may go while it is counted
                total += _looked_over(path)[0]
            num += 1
            if num > KEEP_RUNS or (num > 1 and total > KEEP_RUN_BYTES):
                shutil.rmtree(path, ignore_errors=True)
                for tables in self._tables_of(path.name):
                    set_aside(tables)

    def tables_dir(self, ref: str, stamp: str) -> Path:
        """Where the tables of a long recording lie or are to be kept. ref: its reference or path; stamp:
        changes with its files."""
        id_ = ref.partition(":")[2]
        if not _ID.fullmatch(id_):
            id_ = hashlib.blake2b(ref.encode(), digest_size=16).hexdigest()
        return self._folder("tables") / f"{id_}-{stamp}"

    def use_tables(self, folder: Path) -> None:
        """Note that they are used now, and remove those that nobody needs: of an older state of the
        same recording, of what is gone, and the longest unused beyond KEEP_BYTES."""
        if not folder.is_dir():
            return
        os.utime(folder)
        id_ = folder.name.partition("-")[0]
        for other in self._tables_of(id_):
            if other != folder:
                set_aside(other)
        total = 0
        for path in _by_use(self._folder("tables")):
            if path.name.startswith((".", "kv-replay-")):
                if time.time() - path.stat().st_mtime > STALE_S:
                    shutil.rmtree(path, ignore_errors=True)
                continue
            total += _disk_bytes(path)
            if total > KEEP_BYTES and path != folder:
                set_aside(path)

    def _tables_of(self, id_: str) -> list[Path]:
        return list((self.root / "tables").glob(f"{id_}-*"))

    def _folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _keep(self, entry: Entry) -> Entry:
        home = self._folder("uploads") / entry.id
        home.mkdir(exist_ok=True)
        temporary = home / f".entry-{os.getpid()}-{time.monotonic_ns()}"
        temporary.write_text(json.dumps(asdict(entry)), "utf-8")
        os.replace(temporary, home / "entry.json")
        self._forget_old()
        return entry

    def _forget_old(self) -> None:
        """Remove the longest unused entries beyond the number and bytes that are kept. A linked folder that
        changes has an entry for each state, which together count as one."""
        most = KEEP_ENTRIES if self.keep_entries is None else self.keep_entries
        total, states = 0, Counter[str]()
        for i, entry in enumerate(self.recent(limit=10_000)):
            total += 0 if entry.linked else entry.num_bytes
            states[entry.path] += 1
            too_many = len(states) > most or states[entry.path] > most
            if i > 0 and (too_many or total > KEEP_BYTES):
                self.delete(entry)


def _suffixes(name: str) -> str:
    """The last two file extensions of a name, as far as they are harmless: '.csv.gz'."""
    kept = [s for s in Path(name).suffixes[-2:] if re.fullmatch(r"\.[A-Za-z0-9]{1,10}", s)]
    return "".join(kept).lower()


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that must not be looked into
        return False


def _looked_over(path: Path) -> tuple[int, int]:
    """(bytes, last change in ns) of a file, or of all files below a folder; what must not be looked into
    is left out. Raises FileError for a folder of far more files than recordings have."""
    own = path.stat()
    if not path.is_dir():
        return own.st_size, own.st_mtime_ns
    num, num_bytes, newest = 0, 0, own.st_mtime_ns
    for folder, _, names in os.walk(path):
        num += len(names)
        if num > MOST_FILES:
            raise FileError(
                path.name or str(path),
                "",
                f"more than {MOST_FILES:,} files lie below this folder",
                "Give the folder of the recording itself, or the one that ranks wrote into.",
            )
        for name in names:
            with suppress(OSError):
                found = os.stat(os.path.join(folder, name))
                if stat.S_ISREG(found.st_mode):
                    num_bytes += found.st_size
                    newest = max(newest, found.st_mtime_ns)
    return num_bytes, newest


def _disk_bytes(path: Path) -> int:
    """What a folder takes of the disk, which for files with holes is less than their sizes."""
    found = [p.stat() for p in path.rglob("*") if p.is_file()]
    return sum(getattr(s, "st_blocks", -(-s.st_size // 512)) * 512 for s in found)


def _by_use(folder: Path) -> list[Path]:
    """What lies in a folder, last used first; what goes meanwhile is left out."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):
            found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]
