"""The body of an upload as it comes: the file goes to disk, what stands around it is kept.

It knows multipart/form-data (RFC 7578) and a file to write to. It does not know HTTP, the store or what
a file means. All methods may be called from any thread, one at a time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from analyzer.pages.parts.store import HASH_BYTES
from analyzer.pages.parts.uploads import OnDisk

MOST_OVERHEAD_BYTES = 2**20  # of a body beyond its file: headers and boundaries


class BodyTooLargeError(Exception):
    """The file, or the body around it, is larger than the server allows."""


class BodyMalformedError(Exception):
    """The body is no multipart form, or one of several files."""


@dataclass
class _Part:
    """headers: as they came, each ended by CR LF; has_content: the blank line after them has come."""

    headers: bytearray = field(default_factory=bytearray)
    disposition: bytes = b""
    has_content: bool = False


class MultipartFile:
    """One body. Its one file is written and hashed; the content of plain fields is dropped, since whoever
    reads the body ignores it.

    Where the disk does not take the file, the rest of the body is read all the same: a browser that is
    answered earlier says nothing but that the connection broke.
    """

    def __init__(
        self,
        boundary: bytes,
        open_part: Callable[[], IO[bytes]],
        most_bytes: int,
        expected_bytes: int,
    ) -> None:
        """open_part: opens the file to write; most_bytes: of the file; expected_bytes: of the body, 0 where
        nobody said. Raises BodyMalformedError."""
        self._boundary = boundary
        self._open_part = open_part
        self._most_bytes = most_bytes
        self._expected_bytes = expected_bytes
        self._digest = hashlib.blake2b(digest_size=HASH_BYTES)
        self._lock = threading.Lock()
        self._parts: list[_Part] = []
        self._name, self._value = bytearray(), bytearray()
        self._file: IO[bytes] | None = None
        self._file_part: _Part | None = None
        self._is_over = self._is_discarded = False
        self._num_body_bytes = self._num_kept_bytes = 0
        self._num_bytes = 0
        self._fault = ""
        self._path: Path | None = None
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._take_name,
                    "on_header_value": self._take_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._take_content,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise BodyMalformedError(str(error)) from error

    @property
    def found(self) -> OnDisk | None:
        """The file, once all has come; None where the form has none."""
        if self._file_part is None:
            return None
        return OnDisk(self._path, self._digest.hexdigest(), self._num_bytes, self._fault)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body. Raises BodyTooLargeError, BodyMalformedError."""
        with self._lock:
            if self._is_discarded:
                return
            self._num_body_bytes += len(data)
            if self._num_body_bytes > self._most_bytes + MOST_OVERHEAD_BYTES:
                raise BodyTooLargeError
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise BodyMalformedError(str(error)) from error

    def close(self) -> None:
        """Nothing more comes; the file is on disk, or why it is not is in `found`."""
        with self._lock:
            self._close()

    def discard(self) -> None:
        """Remove what was written. A `feed` that still runs elsewhere is waited for."""
        with self._lock:
            self._is_discarded = True
            self._close()
            self._remove()

    def with_content(self, content: bytes) -> bytes:
        """The body once more, with that in place of the file's content."""
        body = bytearray()
        for part in self._parts:
            body += b"--" + self._boundary + b"\r\n" + part.headers
            if part.has_content:
                body += b"\r\n" + (content if part is self._file_part else b"") + b"\r\n"
        if self._is_over:
            body += b"--" + self._boundary + b"--\r\n"
        return bytes(body)

    # ---- what the parser finds ----

    def _begin_part(self) -> None:
        self._parts.append(_Part())
        self._keep(len(self._boundary) + 8)

    def _take_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        part = self._parts[-1]
        part.headers += self._name + b": " + self._value + b"\r\n"
        if self._name.lower() == b"content-disposition":
            part.disposition = bytes(self._value)
        self._keep(len(self._name) + len(self._value) + 4)
        self._name.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        part = self._parts[-1]
        part.has_content = True
        if b"filename" in parse_options_header(part.disposition)[1]:
            if self._file_part is not None:
                raise BodyMalformedError("Expected 1 file, but got several")
            self._file_part = part
            self._open()

    def _take_content(self, data: bytes, start: int, end: int) -> None:
        if self._parts[-1] is not self._file_part:
            return
        self._num_bytes += end - start
        if self._num_bytes > self._most_bytes:
            raise BodyTooLargeError
        if self._file is None:
            return
        content = memoryview(data)[start:end]
        try:
            self._file.write(content)
        except OSError as error:
            self._fail(error)
        else:
            self._digest.update(content)

    def _end(self) -> None:
        self._is_over = True

    def _keep(self, num_bytes: int) -> None:
        """Count what is held in memory. Raises BodyMalformedError where that is no form of a browser."""
        self._num_kept_bytes += num_bytes
        if self._num_kept_bytes > MOST_OVERHEAD_BYTES:
            raise BodyMalformedError("Too many parts.")

    # ---- the file ----

    def _open(self) -> None:
        try:
            self._file = self._open_part()
            self._path = Path(self._file.name)
            if shutil.disk_usage(self._path.parent).free < self._expected_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._fail(error)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()  # writes what is buffered still
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Give the file up, and the room it took."""
        self._fault = error.strerror or str(error)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
        self._remove()

    def _remove(self) -> None:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
