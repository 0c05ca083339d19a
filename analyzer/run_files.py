"""What was worked out of a long recording, kept in files beside its tables.

It knows names and files: who asks says how a thing is made. A file is written under another name and
renamed, so that half of one is never read; where the disk takes none, the thing is made each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np


class RunFiles:
    """Arrays by name below `folder`, which is of one recording only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "derived"

    def arrays(
        self, name: str, make: Callable[[], Sequence[np.ndarray]]
    ) -> tuple[np.ndarray, ...]:
        """The arrays of that name, in memory; made and kept where they are not there."""
        path = self.folder / f"{name}.npz"
        try:
            with np.load(path, allow_pickle=False) as file:
                return tuple(file[f"arr_{i}"] for i in range(len(file.files)))
        except (OSError, ValueError, KeyError, EOFError):
            pass
        found = tuple(make())
        self._write(path, lambda temporary: _save(temporary, found))
        return found

    def numbers(self, name: str, pieces: Callable[[], Iterable[np.ndarray]]) -> np.ndarray:
        """One long array of float64, mapped and not read; made of its pieces where it is not there."""
        path = self.folder / f"{name}.bin"
        if not path.exists():
            self._write(path, lambda temporary: _append_all(temporary, pieces()))
        try:
            return np.asarray(np.memmap(path, np.float64, "r"))
        except (OSError, ValueError):
            return np.concatenate(list(pieces()))

    def _write(self, path: Path, write: Callable[[Path], None]) -> bool:
        temporary = path.with_name(f".{path.name}-{os.getpid()}-{time.monotonic_ns()}")
        try:
            self.folder.mkdir(exist_ok=True)
            write(temporary)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            return False
        return True


def _save(path: Path, arrays: Sequence[np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, *arrays)


def _append_all(path: Path, pieces: Iterable[np.ndarray]) -> None:
    with path.open("wb") as file:
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, np.float64).data)
