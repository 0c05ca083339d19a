"""What stands behind a path that a user gave, asked without ever failing or waiting.

Knows file kinds and what the operating system says of a path. Knows no format, and opens nothing:
to open a pipe would wait for its writer for ever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FILE, FOLDER = "file", "folder"
_OTHER = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def path_kind(path: Path) -> tuple[str, str, str]:
    """(kind, fault, remedy): kind is FILE, FOLDER or "", and then the fault says what is wrong."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "", "there is no such file or folder", "Check the path."
    except ValueError as e:  # a NUL in the name
        return "", f"the path cannot be used ({e})", "Check the path."
    except OSError as e:
        return (
            "",
            f"it cannot be opened ({os_reason(e)})",
            "Check the path and its permissions.",
        )
    if stat.S_ISDIR(mode):
        return FOLDER, "", ""
    if stat.S_ISREG(mode):
        return FILE, "", ""
    what = next((w for test, w in _OTHER if test(mode)), "something else")
    return "", f"it is not a regular file but {what}", "Copy its data to a file and give that."


def is_file(path: Path) -> bool:
    """Whether a regular file is there; False where the system will not say."""
    return path_kind(path)[0] == FILE


def is_folder(path: Path) -> bool:
    """Whether a folder is there; False where the system will not say."""
    return path_kind(path)[0] == FOLDER


def os_reason(e: OSError) -> str:
    """What the operating system says, without the path."""
    return os.strerror(e.errno) if e.errno else str(e)
