"""Files that are made whole or not at all.

It knows names and bytes, and what to say where a file cannot be written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traces.errors import SettingsError


def check_suffix(out: Path, known: tuple[str, ...]) -> str:
    """The suffix in small letters. Raises SettingsError for one that is not known."""
    kind = out.suffix.lower()
    if kind not in known:
        raise SettingsError(
            f"{out.name}: {f'{kind!r} is' if kind else 'no suffix is'} no kind of file that is written here. "
            f"End the name in {', '.join(known[:-1])} or {known[-1]}."
        )
    return kind


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
    if out.is_dir():
        raise SettingsError(f"{out.name} is a folder. Give the name of a file in it.")
    if not out.parent.is_dir():
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
            f"{out.name} cannot be written ({error.strerror or error}). Free the space, or give another place."
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
