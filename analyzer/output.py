"""Files that are made whole or not at all.

It knows names and bytes, and what to say where a file cannot be written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from traces.errors import SettingsError
from traces.paths import is_folder


def check_suffix(out: Path, known: tuple[str, ...]) -> str:
    """The suffix in small letters. Raises SettingsError for one that is not known."""
    kind = out.suffix.lower()
    if kind not in known:
        raise SettingsError(
            f"{out.name}: {f'{kind!r} is' if kind else 'no suffix is'} no kind of file that is written here. "
            f"End the name in {', '.join(known[:-1])} or {known[-1]}."
        )
    return kind


def refuse_inside(out: Path, given: Iterable[str | None]) -> None:
    """Raise SettingsError where `out` is one of the recordings that are read, or lies in one: to write
    there would lose it, or change what it says. given: their paths as the user wrote them."""
    try:
        target = out.resolve()
        places = [(path, Path(path).resolve()) for path in given if path is not None]
    except (OSError, RuntimeError, ValueError):
        return  # whoever opens or writes it says what is wrong with it
    for path, place in places:
        if target == place or place in target.parents:
            raise SettingsError(
                f"--out {out} is {path} itself, or lies in it, and that is only read. Give another place."
            )


def make_folder(out: Path) -> None:
    """The folder that --out names, made where it is not there. Raises SettingsError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise SettingsError(
            f"--out {str(out)[:120]!r}: no folder can be made there ({said}). Give another place."
        ) from None


def write_whole(out: Path, data: bytes) -> None:
    """Write the bytes; whoever reads `out` sees the old file or the whole new one.

    Raises SettingsError where it cannot be written.
    """
    with fresh_file(out) as temporary:
        temporary.write_bytes(data)


@contextmanager
def fresh_file(out: Path) -> Iterator[Path]:
    """A temporary file beside `out` that takes its name in the end; gone where something fails.

    Raises SettingsError where it cannot be written.
    """
    if "\0" in str(out):
        raise SettingsError(f"{str(out)[:60]!r} is no name of a file. Give another.")
    if is_folder(out):
        raise SettingsError(f"{out.name} is a folder. Give the name of a file in it.")
    if not is_folder(out.parent):
        raise SettingsError(
            f"{out.name}: there is no folder {out.parent.name!r} to write it to. Make it first, or give another."
        )
    temporary = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp keeps it to its owner
        os.replace(temporary, out)
    except OSError as error:
        raise SettingsError(
            f"{out.name[:120]} cannot be written ({error.strerror or error}). Free the space, or give another place."
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
