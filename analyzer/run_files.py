"""What was worked out of a long recording, kept in files beside its tables.

It knows names and files: who asks says how a thing is made. A file is written under another name and
renamed, so that half of one is never read; where the disk takes none, the thing is made each time.
What was made by other code than this is not read, and goes.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import traces
from traces.mapped_tables import map_rows, write_rows

_PREFIX = "derived-"


class RunFiles:
    """Things by name below `folder`, which is of one recording only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / f"{_PREFIX}{code_digest()}"

    def has(self, *names: str) -> bool:
        """Whether documents and frames of all these names are there."""
        return all(
            any((self.folder / f"{name}.{kind}").exists() for kind in ("json", "arrow"))
            for name in names
        )

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

    def frame(self, name: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """The table of that name, mapped and not read; made and kept where it is not there."""
        path = self.folder / f"{name}.arrow"
        try:
            return map_rows(path)
        except (OSError, ValueError):
            pass
        found = make()
        if not self._write(path, lambda temporary: write_rows(temporary, found)):
            return found
        try:
            return map_rows(path)
        except (OSError, ValueError):
            return found

    def document(self, name: str, make: Callable[[], Any]) -> Any:
        """What JSON can hold, under that name; made and kept where it is not there."""
        path = self.folder / f"{name}.json"
        try:
            return json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            pass
        found = make()
        self._write(path, lambda temporary: _write_text(temporary, json.dumps(found)))
        return found

    def _write(self, path: Path, write: Callable[[Path], None]) -> bool:
        temporary = path.with_name(f".{path.name}-{os.getpid()}-{time.monotonic_ns()}")
        try:
            if not self.folder.exists():
                self.folder.mkdir(exist_ok=True)
                self._forget_others()
            write(temporary)
            os.replace(temporary, path)
        except OSError:
            return False
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return True

    def _forget_others(self) -> None:
        """Remove what other code has made."""
        for other in self.folder.parent.glob(f"{_PREFIX}*"):
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)


@cache
def code_digest() -> str:
    """Changes with the code that reads recordings and works things out of them."""
    digest = blake2b(digest_size=6)
    for folder in (Path(__file__).parent, Path(str(traces.__file__)).parent):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _save(path: Path, arrays: Sequence[np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, *arrays)


def _append_all(path: Path, pieces: Iterable[np.ndarray]) -> None:
    with path.open("wb") as file:
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, np.float64).data)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
