"""What a file looks like from outside: compression, encoding, grammar and first record.

Knows bytes, CSV headers and JSON values. Knows no trace format; those ask it what they need.
Nothing is unpickled or executed, and no more than the head is read until somebody asks for rows.
"""

from __future__ import annotations

import csv
import io
import re
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from traces.errors import NotAWorkloadError, WorkloadError
from traces.formats.packed import is_damage, open_packed
from traces.paths import FOLDER, os_reason, path_kind

HEAD_BYTES = 65_536
MAX_DOCUMENT_BYTES = 1 << 30  # one JSON document is parsed in memory: above this, JSON lines
_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)


@dataclass(frozen=True)
class Source:
    """One file, opened far enough to know its grammar.

    name: the name it was uploaded under; compression: "", "gzip" or "zstd"; encoding: of its text;
    shape: "csv", "json", "parquet", "zip", "text" or "binary"; head: its first decoded characters;
    delimiter, columns: of a CSV (columns: header cells, or the keys of the first JSON record);
    first: the first JSON record (of a list: its first element); lines: each JSON record has a line
    of its own; listed: the JSON document is one list; inside: the key of its only object under which
    the records lie. Keys of nested objects are columns too, as "usage.prompt_tokens".
    skip_lines: comments above the header of a CSV; fields: dotted names inside Parquet structs.
    """

    path: Path
    name: str
    compression: str = ""
    encoding: str = "utf-8"
    shape: str = "text"
    head: str = ""
    delimiter: str = ","
    columns: tuple[str, ...] = ()
    first: Any = None
    lines: bool = False
    listed: bool = False
    inside: str = ""
    skip_lines: int = 0
    fields: tuple[str, ...] = ()
    magic: bytes = field(default=b"", repr=False)

    def error(self, place: str, fault: str, remedy: str) -> WorkloadError:
        return WorkloadError(self.name, place, fault, remedy)

    def refuse(self, fault: str, remedy: str) -> NotAWorkloadError:
        return NotAWorkloadError(self.name, "", fault, remedy)

    def has(self, *names: str) -> bool:
        """Whether every name is a column (CSV, Parquet) or a key of the first record (JSON)."""
        return set(names) <= set(self.columns)

    @property
    def is_table(self) -> bool:
        return self.shape in ("csv", "parquet")

    def open_bytes(self) -> IO[bytes]:
        """The decompressed bytes. The caller closes it."""
        return open_packed(self.path, self.compression)

    def open_text(self) -> IO[str]:
        """The decoded text with its line ends as they are. The caller closes it."""
        return io.TextIOWrapper(self.open_bytes(), encoding=self.encoding, newline="")

    def text(self) -> str:
        """The whole decoded text. Raises WorkloadError when it is too long, cut or no text."""
        with self.open_bytes() as f, reading(self):
            raw = f.read(MAX_DOCUMENT_BYTES + 1)
        if len(raw) > MAX_DOCUMENT_BYTES:
            raise self.error(
                "",
                f"one JSON document of more than {MAX_DOCUMENT_BYTES >> 30} GiB cannot be read at once",
                "Convert it to JSON lines (one record a line) or Parquet.",
            )
        try:
            return raw.decode(self.encoding)
        except UnicodeDecodeError as e:
            raise self.error(
                f"byte {e.start}", "it is not text in UTF-8", "Save it as UTF-8."
            ) from e


class reading:
    """Turns what a decompressor says about a damaged file into a WorkloadError that names it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, e: BaseException | None, tb: Any) -> None:
        if e is None or isinstance(e, WorkloadError):
            return
        if is_damage(e):
            fault = f"the {self.source.compression or 'file'} data is damaged or cut off"
            raise self.source.error("", fault, "Copy or download the file again.") from e
        if isinstance(e, UnicodeError):
            raise self.source.error("", "it is not text in UTF-8", "Save it as UTF-8.") from e
        if isinstance(e, OSError):
            fault = f"it cannot be read to its end ({os_reason(e)})"
            raise self.source.error("", fault, "Copy the file again.") from e


def inspect(path: str | Path, name: str | None = None) -> Source:
    """A Source for the file. Raises WorkloadError when it is missing, empty or unreadable."""
    path = Path(path)
    name = Path(name).name if name else path.name
    magic = _first_bytes(path, name)
    compression = next((c for m, c in _MAGIC if magic.startswith(m)), "")
    source = Source(path, name, compression=compression, magic=magic)
    with reading(source), source.open_bytes() as f:
        raw = _read_up_to(f, HEAD_BYTES)
    if not raw.strip(b"\x00 \t\r\n\xef\xbb\xbf\xff\xfe"):
        raise source.error(
            "", "the file holds nothing", "Check that the export or download finished."
        )
    if raw.startswith(b"PAR1"):
        return _parquet(source)
    if raw.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return replace(source, shape="zip")
    encoding = _encoding(raw)
    if encoding == "utf-8" and _decode_head(raw, encoding) is None and _looks_like_text(raw):
        encoding = "cp1252"  # what old spreadsheets on Windows write
    head = _decode_head(raw, encoding)
    if head is None:
        return replace(source, shape="binary", magic=raw[:64])
    source = replace(source, encoding=encoding, head=head)
    if head.lstrip()[:1] in ("{", "["):
        from traces.formats.json_records import inspect_json  # it needs Source itself

        found = inspect_json(source)
        if found is not None:
            return found
    return _csv(source)


def _first_bytes(path: Path, name: str) -> bytes:
    kind, fault, remedy = path_kind(path)
    if kind == FOLDER:
        raise WorkloadError(
            name, "", "it is a folder, not a file", "Give the trace file inside it."
        )
    if fault:
        raise WorkloadError(name, "", fault, remedy)
    try:
        with path.open("rb") as f:
            magic = f.read(64)
    except OSError as e:
        raise WorkloadError(
            name, "", f"it cannot be opened ({os_reason(e)})", "Check its permissions."
        ) from e
    if not magic:
        raise WorkloadError(
            name, "", "the file is empty", "Check that the export or download finished."
        )
    return magic


def _read_up_to(f: IO[bytes], n: int) -> bytes:
    parts = []
    while n > 0:
        part = f.read(n)
        if not part:
            break
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def _encoding(raw: bytes) -> str:
    if raw.startswith(b"\xef\xbb\xbf"):
        return "utf-8-sig"
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return "utf-8"


def _looks_like_text(raw: bytes) -> bool:
    """Whether bytes that are no UTF-8 could still be text of an 8-bit encoding."""
    control = sum(b < 32 and b not in b"\t\r\n\f\x1b" for b in raw[:4096])
    return control == 0 and b"\n" in raw and raw.isascii() is False


def _decode_head(raw: bytes, encoding: str) -> str | None:
    """The text of the head (a character that the cut splits is left out), or None: no text."""
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as e:
        if e.start < len(raw) - 4:
            return None
        try:
            text = raw[: e.start].decode(encoding)
        except UnicodeDecodeError:
            return None
    return None if "\x00" in text else text


def _parquet(source: Source) -> Source:
    import pyarrow.parquet as pq

    if source.compression:
        raise source.error(
            "",
            f"it is Parquet packed with {source.compression}",
            "Unpack it: Parquet is compressed inside.",
        )
    try:
        schema = pq.read_schema(source.path)
    except Exception as e:  # pyarrow raises several kinds for damaged footers
        raise source.error(
            "", f"the Parquet file is damaged or cut off ({e})", "Copy or write it again."
        ) from e
    fields = tuple(f for field in schema for f in _struct_fields(field))
    return replace(source, shape="parquet", columns=(*schema.names, *fields), fields=fields)


def _struct_fields(field: Any, prefix: str = "") -> list[str]:
    """Dotted names of what lies in a struct column, level by level."""
    import pyarrow as pa

    if not pa.types.is_struct(field.type):
        return []
    inner = [field.type.field(i) for i in range(field.type.num_fields)]
    here = f"{prefix}{field.name}."
    return [n for f in inner for n in (f"{here}{f.name}", *_struct_fields(f, here))]


def _csv(source: Source) -> Source:
    """A CSV when the first line splits into two cells or more, else plain text."""
    lines = source.head.splitlines()
    skip = _lines_above_header(lines)
    line = next((x for x in lines[skip:] if x.strip()), "")
    delimiter = max(",\t;|", key=line.count)
    if line.count(delimiter) == 0:
        return replace(source, shape="text")
    cells = next(csv.reader([line], delimiter=delimiter), [])
    columns = tuple(c.strip().strip("\ufeff").lstrip("# ") for c in cells)
    return replace(source, shape="csv", delimiter=delimiter, columns=columns, skip_lines=skip)


def _lines_above_header(lines: list[str]) -> int:
    """Comment lines and Excel's "sep=;" on top. A comment just above data is the header itself."""
    skip = 0
    while skip < len(lines) and re.match(r"\s*#|sep=.$|\s*$", lines[skip].strip("\ufeff")):
        skip += 1
    above = lines[skip - 1] if 0 < skip < len(lines) else ""
    commented_header = above.lstrip().startswith("#") and re.match(r"\s*[\d\"]", lines[skip])
    return skip - 1 if commented_header and re.search(r"[,;\t|]", above) else skip


def utf8_copy(source: Source) -> tempfile._TemporaryFileWrapper[bytes]:
    """The text of the file in UTF-8 in a temporary file, for readers that take nothing else."""
    out = tempfile.NamedTemporaryFile(suffix=".csv")  # noqa: SIM115 - the caller holds it
    old_mac = "\r" in source.head and "\n" not in source.head
    with source.open_text() as f, reading(source):
        while chunk := f.read(1 << 20):
            out.write((chunk.replace("\r", "\n") if old_mac else chunk).encode())
    out.flush()
    return out
