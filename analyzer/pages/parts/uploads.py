"""From what a file uploader holds to a file of the store, for every uploader of the app.

It knows that a large upload lies on disk before a page sees it: the server wrote it there while it came
(analyzer/web/upload_to_disk.py) and gave Streamlit a token in its place, which only this process can
make. It does not know what files mean. A page asks `num_bytes` and `stored`, never the upload itself.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from analyzer.pages.parts.store import Entry, Store
from traces.errors import FileError

_MARK = b"kv-replay-upload-"
_TOKEN_BYTES = len(_MARK) + 64


@dataclass(frozen=True)
class OnDisk:
    """A file that was written while it came. part: of the store, until a page asks for it, None where it
    could not even be opened; id: of its content, as Store.spool finds it; fault: why the disk did not take
    it, "" where it did."""

    part: Path | None
    id: str
    num_bytes: int
    fault: str = ""


_handed: dict[bytes, OnDisk] = {}  # by token
_lock = threading.Lock()  # a page may ask while the browser takes the file back


def hand_over(upload: OnDisk) -> bytes:
    """A token that stands for the upload where Streamlit keeps its content."""
    token = _MARK + secrets.token_hex(32).encode()
    with _lock:
        _handed[token] = upload
    return token


def take_back(token: bytes) -> None:
    """Forget the token, and remove its part unless a page has it already."""
    with _lock, suppress(OSError):
        upload = _handed.pop(token, None)
        if upload is not None and upload.part is not None:
            upload.part.unlink(missing_ok=True)


def num_bytes(upload: Any) -> int:
    """The size of the user's file, which is not that of what Streamlit keeps of it."""
    found = _on_disk(upload)
    return int(upload.size) if found is None else found.num_bytes


def stored(store: Store, upload: Any) -> Entry:
    """The upload in the store: moved there, or copied with a bar where Streamlit holds its bytes.

    May be asked again for the same upload. Raises FileError: it is empty, the disk did not take it, or
    it is gone again.
    """
    size = num_bytes(upload)
    if not size:
        raise FileError(
            upload.name,
            "",
            "the file is empty",
            "Check how it was written, and give one with content.",
        )
    found = _on_disk(upload)
    if found is not None:
        return _claimed(store, found, upload.name)
    bar = st.progress(0.0, text="Storing")
    try:
        return store.spool(
            upload, upload.name, lambda done: bar.progress(min(1.0, done / size))
        )
    finally:
        bar.empty()


def _on_disk(upload: Any) -> OnDisk | None:
    if upload.size != _TOKEN_BYTES:
        return None
    with _lock:
        return _handed.get(bytes(upload.getvalue()))


def _claimed(store: Store, upload: OnDisk, name: str) -> Entry:
    if upload.fault or upload.part is None:
        raise store.no_room(name, upload.fault)
    with _lock:
        if upload.part.exists():
            return store.adopt(upload.part, upload.id, name, upload.num_bytes)
    entry = store.get(upload.id)
    if entry is None:
        raise FileError(
            name,
            "",
            f"its {upload.num_bytes:,} bytes are not kept any more",
            "Drop the file again.",
        )
    return store.touch(entry)
