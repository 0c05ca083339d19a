"""One file or paste as readers see it: name, head, numbered lines, or the whole text of a document.

It knows compression (gzip, zstd), encodings (UTF-8, UTF-16 as PowerShell writes it, anything else with
its odd bytes replaced), line ends, and what is no text at all. Lines are streamed: a file of any size is
read in bounded memory, as often as somebody asks. It knows no grammar.

    source = Source.from_path("server.log.gz")
    for number, text in source.lines(): ...
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from traces.errors import EvidenceError, KVReplayError
from traces.evidence.evidence import Line
from traces.formats.packed import is_damage, open_packed
from traces.paths import FOLDER, os_reason, path_kind

HEAD_BYTES = 65_536
MAX_LINE_CHARS = 1 << 20  # a longer line is handed out in pieces that carry the same number
MAX_DOCUMENT_BYTES = 1 << 28  # a document (JSON, YAML) is parsed in memory
MAX_LINE_TEXT = 400
BLOCK_BYTES = 1 << 20
MAX_PIECES = 16  # of one line; what comes behind them is left out
WATCH_LINES = 4096  # lines between two reports of how far it is
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]"
)
_PAGE = re.compile(r"\s*(?:<!doctype html|<html)", re.IGNORECASE)
_TITLE = re.compile(r"<(?:title|h1)[^>]*>(.*?)</", re.IGNORECASE | re.DOTALL)
_PACKED = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))
_KINDS_OF_BINARY = (
    (b"PK\x03\x04", "a zip archive", "Unpack it and give the files inside."),
    (b"PAR1", "a Parquet table", "A telemetry recording is given as its folder or zip."),
    (b"\x89PNG", "a picture", "Paste the text instead of a screenshot of it."),
    (b"\xff\xd8\xff", "a picture", "Paste the text instead of a photo of it."),
    (b"GIF8", "a picture", "Paste the text instead of a picture of it."),
    (b"%PDF", "a PDF", "Copy the text out of it and paste that."),
    (b"\x7fELF", "a program", "Give the log or the metrics of the server as text."),
    (b"SQLite format 3", "a database", "Export the rows as CSV or JSON."),
    (b"BZh", "packed with bzip2", "Unpack it, or pack it with gzip or zstd."),
    (b"\xfd7zXZ", "packed with xz", "Unpack it, or pack it with gzip or zstd."),
)
_GIVE_TEXT = "Give the log, the metrics or a table as text."


class ReadingCancelled(KVReplayError):
    """The reader was told to stop."""


class Source:
    """A file or a paste, opened far enough to know that it is text.

    name: as it is shown; head: its first characters (up to 64 KiB of bytes), control codes kept;
    compression: "", "gzip" or "zstd"; encoding: "utf-8", "utf-16" or "utf-16-le"; damage: after a reading,
    a sentence on where the packed data ended early, else ""; replaced: whether some bytes of the head
    are no text of that encoding and were replaced; left_out: sentences on what a reading passed over;
    watch: called on the way with the bytes of the file (packed, as it lies there) that were read, and may
    raise to stop the reading; size: these bytes in all.
    """

    def __init__(
        self,
        name: str,
        *,
        path: Path | None = None,
        data: bytes = b"",
        compression: str = "",
    ) -> None:
        self.name = name
        self.path = path
        self.compression = compression
        self.damage = ""
        self.left_out: list[str] = []
        self.watch: Callable[[int], None] | None = None
        self.encoding = "utf-8"
        self._data = data
        raw = self._head_bytes()
        self.encoding = _encoding(raw)
        self._refuse_binary(raw)
        decoded = raw.decode(self.encoding, errors="replace")
        self.head = decoded.lstrip("\ufeff").lstrip("\x00")
        self._refuse_page()
        self.replaced = "\ufffd" in decoded[:-4]
        self._newline = "\r" if "\r" in self.head and "\n" not in self.head else "\n"

    @classmethod
    def from_path(cls, path: str | Path, name: str | None = None) -> Source:
        """Raises EvidenceError when the file is missing, empty, unreadable or no text."""
        path = Path(path)
        label = name or path.name
        kind, fault, remedy = path_kind(path)
        if kind == FOLDER:
            raise EvidenceError(
                label, "", "it is a folder, not a file", "Give the files in it."
            )
        if fault:
            raise EvidenceError(label, "", fault, remedy)
        try:
            with path.open("rb") as f:
                magic = f.read(8)
        except OSError as e:
            fault = f"it cannot be opened ({os_reason(e)})"
            raise EvidenceError(label, "", fault, "Check its permissions.") from e
        return cls(label, path=path, compression=_compression(magic))

    @classmethod
    def from_text(cls, name: str, text: str | bytes) -> Source:
        """A paste, or the bytes of an upload (which may be packed). Raises EvidenceError."""
        data = text.encode("utf-8", errors="replace") if isinstance(text, str) else text
        return cls(name, data=data, compression=_compression(data[:8]))

    def lines(self, max_chars: int = MAX_LINE_CHARS) -> Iterator[tuple[int, str]]:
        """(number from 1, text without its end) of every line, in bounded memory.

        A line of more than max_chars comes in pieces with the same number. Where packed data is cut
        off, the lines before the cut are handed out and `damage` says so.
        """
        self.damage = ""
        with io.TextIOWrapper(
            self._open(), encoding=self.encoding, errors="replace", newline=self._newline
        ) as f:
            number, at_start, due = 0, True, WATCH_LINES
            while True:
                due -= 1
                if not due:
                    self._report(f.buffer)
                    due = WATCH_LINES
                try:
                    piece = f.readline(max_chars)
                except (OSError, EOFError) as e:
                    self._note_damage(e, number)
                    return
                except Exception as e:  # decoders of packed files raise kinds of their own
                    if not is_damage(e):
                        raise
                    self._note_damage(e, number)
                    return
                if not piece:
                    return
                number += at_start
                if number == 1 and at_start:
                    piece = piece.lstrip("\ufeff").lstrip("\x00")
                at_start = piece.endswith(self._newline) or not piece
                yield number, piece.rstrip("\r\n")

    def blocks(self) -> Iterator[tuple[int, bytes, bool]]:
        """(number of its first line, lines as UTF-8 that end with \\n, whether it is a piece of one line).

        The same lines as `lines()` hands out, many at once. A line of more than 1 MiB comes in pieces,
        and of one of more than 16 MiB the rest is left out, as `left_out` says.
        """
        self.damage, self.left_out = "", []
        number, rest, pieces = 1, b"", 0
        for block in self._utf8():
            block = rest + block if rest else block
            end = block.rfind(b"\n") + 1
            if pieces and end:  # the end of a line of which pieces were handed out
                first = block.index(b"\n") + 1
                if pieces < MAX_PIECES and first > 1:
                    yield number, block[:first], True
                number, pieces, block = number + 1, 0, block[first:]
                end -= first
            whole, rest = block[:end], block[end:]
            if whole:
                yield number, whole, False
                number += whole.count(b"\n")
            while len(rest) >= BLOCK_BYTES:
                cut = _character_end(rest, BLOCK_BYTES)
                if pieces < MAX_PIECES:
                    yield number, rest[:cut] + b"\n", True
                elif pieces == MAX_PIECES:
                    self.left_out.append(
                        f"Line {number:,} is longer than {MAX_PIECES * BLOCK_BYTES >> 20} MiB; what stands behind "
                        "that in it was left out"
                    )
                pieces, rest = pieces + 1, rest[cut:]
        if rest and pieces < MAX_PIECES:
            yield number, rest + b"\n", pieces > 0
        if self.damage:
            self._note_damage(EOFError(), number - (not rest))

    def _utf8(self) -> Iterator[bytes]:
        """The file as UTF-8 with \\n for line ends, block by block, without what stands before its first line."""
        first = True
        with self._open() as f:
            text: Any = f
            if self.encoding != "utf-8":
                text = io.TextIOWrapper(f, encoding=self.encoding, errors="replace", newline="")
            while True:
                try:
                    block = text.read(BLOCK_BYTES)
                except Exception as e:  # decoders of packed files raise kinds of their own
                    if not (is_damage(e) or isinstance(e, OSError)):
                        raise
                    self._note_damage(e, 0)
                    return
                if not block:
                    return
                if isinstance(block, str):
                    block = block.encode("utf-8", errors="replace")
                if first:
                    block = block.removeprefix(b"\xef\xbb\xbf").lstrip(b"\x00")
                    first = not block
                if self._newline == "\r":
                    block = block.replace(b"\r", b"\n")
                yield block
                self._report(f)

    def _report(self, f: Any) -> None:
        """Tell the watcher how far the reading is."""
        if self.watch is not None:
            raw = getattr(f, "raw", f)
            packed = getattr(raw, "fileobj", None) or getattr(raw, "packed", None) or f
            self.watch(packed.tell())

    def text(self, max_bytes: int = MAX_DOCUMENT_BYTES) -> str:
        """The whole text of a document. Raises EvidenceError when it is longer than max_bytes."""
        parts, size = [], 0
        with self._open() as f:
            try:
                while chunk := f.read(1 << 20):
                    size += len(chunk)
                    self._report(f)
                    if size > max_bytes:
                        raise EvidenceError(
                            self.name,
                            "",
                            f"one document of more than {max_bytes >> 20} MiB cannot be read at once",
                            "Give one record a line, or a part of it.",
                        )
                    parts.append(chunk)
            except KVReplayError:
                raise
            except Exception as e:  # decoders of packed files raise kinds of their own
                if not (is_damage(e) or isinstance(e, OSError)):
                    raise
                self._note_damage(e, 0)
        text = b"".join(parts).decode(self.encoding, errors="replace")
        return text.lstrip("\ufeff").lstrip("\x00")

    def line(self, number: int, text: str, num_lines: int = 1) -> Line:
        """A Line of this source: control codes removed, at most 400 characters."""
        clean = _CONTROL.sub("", text).rstrip()
        return Line(self.name, number, num_lines, clean[:MAX_LINE_TEXT])

    @property
    def size(self) -> int:
        """Bytes of the file or paste as it lies there."""
        return self.path.stat().st_size if self.path is not None else len(self._data)

    def _open(self) -> IO[bytes]:
        if self.path is not None:
            return open_packed(self.path, self.compression)
        if not self.compression:
            return io.BytesIO(self._data)
        return io.BytesIO(_unpack(self._data, self.compression))

    def _head_bytes(self) -> bytes:
        parts: list[bytes] = []
        need = HEAD_BYTES
        try:
            with self._open() as f:
                while need > 0 and (part := f.read(need)):
                    parts.append(part)
                    need -= len(part)
        except Exception as e:  # decoders of packed files raise kinds of their own
            if not (is_damage(e) or isinstance(e, OSError)):
                raise
            if not parts:
                fault = f"it cannot be read ({e})"
                raise EvidenceError(self.name, "", fault, "Copy the file again.") from e
        raw = b"".join(parts)
        if not raw.strip(b"\x00 \t\r\n\xef\xbb\xbf\xff\xfe"):
            raise EvidenceError(
                self.name, "", "it holds nothing", "Check that the copy or the paste finished."
            )
        return raw

    def _refuse_binary(self, raw: bytes) -> None:
        """Raise EvidenceError for what is no text, in a sentence that says what it is."""
        for magic, what, remedy in _KINDS_OF_BINARY:
            if raw.startswith(magic):
                raise EvidenceError(self.name, "", f"it is {what}, not text", remedy)
        if self.encoding != "utf-8":
            return
        part = raw[:8192].replace(b"\x00", b"")  # a log that was cut in place begins with zeros
        odd = sum(b < 32 and b not in b"\t\n\r\x0c\x1b\x08" for b in part)
        lost = part.decode("utf-8", errors="replace").count("\ufffd")
        zeros = raw[:8192].rstrip(b"\x00").lstrip(b"\x00").count(0)
        if odd > 0.02 * len(part) or lost > 0.3 * len(part) or zeros > 0.1 * len(part):
            raise EvidenceError(self.name, "", "it is a binary file, not text", _GIVE_TEXT)

    def _refuse_page(self) -> None:
        """Raise EvidenceError for a web page, such as the error page of a proxy saved as metrics."""
        if not _PAGE.match(self.head):
            return
        title = _TITLE.search(self.head)
        what = " ".join(title[1].split())[:80] if title else ""
        raise EvidenceError(
            self.name,
            "",
            f"it is a web page{f' ({what})' if what else ''}, not a log, metrics or a table",
            "Ask the server itself for /metrics, and look at what it answers.",
        )

    def _note_damage(self, e: BaseException, number: int) -> None:
        where = f" after line {number}" if number else ""
        what = self.compression or "file"
        self.damage = (
            f"The {what} data is damaged or cut off{where}; what comes before was read."
        )


def _character_end(text: bytes, most: int) -> int:
    """The end of the last whole UTF-8 character in the first `most` bytes."""
    end = most
    while end > most - 4 and end < len(text) and text[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _compression(magic: bytes) -> str:
    return next((c for m, c in _PACKED if magic.startswith(m)), "")


def _unpack(data: bytes, compression: str) -> bytes:
    """The bytes of an upload; of one that is cut off, those before the cut."""
    if compression == "gzip":
        import zlib

        out, rest = [], data
        while rest[:2] == b"\x1f\x8b":
            member = zlib.decompressobj(31)
            try:
                out.append(member.decompress(rest))
            except zlib.error:
                break
            rest = member.unused_data
        return b"".join(out)
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as f:
        return bytes(f.read())


def _encoding(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    pairs = raw[:4096]
    if len(pairs) >= 16 and pairs[1::2].count(0) > 0.8 * len(pairs[1::2]) and pairs[0] != 0:
        return "utf-16-le"
    return "utf-8"
