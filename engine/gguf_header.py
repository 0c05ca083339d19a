"""What the head of a GGUF file says: its metadata, and where each tensor lies.

It reads the container itself, because the `gguf` package's reader takes seconds for a vocabulary (one
object a token) and answers damage with whatever NumPy raises; every length is checked against the
file's size here. It does not know tensor types (weights_gguf asks `gguf`) or what keys mean (gguf_config).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from traces.errors import SettingsError

VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# GGUF value types that are one number. Source: the GGUF specification, gguf_metadata_value_type.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_MOST_DIMENSIONS = 4
DOWNLOAD_AGAIN = "Download or convert the file again."


@dataclass(frozen=True)
class TensorInfo:
    """shape: rows first (GGUF stores it reversed); type_id: ggml's; offset: in bytes, in the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True)
class GGUFHeader:
    """path; metadata: key to number, text, list or array; tensors: name to place; size_bytes: the file's."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    size_bytes: int

    def refuse(self, place: str, fault: str, remedy: str = DOWNLOAD_AGAIN) -> NoReturn:
        """Raises: SettingsError about this file."""
        refuse(self.path, place, fault, remedy)


def refuse(path: Path, place: str, fault: str, remedy: str = DOWNLOAD_AGAIN) -> NoReturn:
    where = f"{path.name}, {place}" if place else path.name
    raise SettingsError(f"{where}: {fault}. {remedy}")


def read_gguf_header(path: str | Path) -> GGUFHeader:
    """The header of a GGUF file; no tensor is read.

    Raises: SettingsError if the file is missing, no GGUF, cut off or damaged in its header.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size < 24 or file.read(4) != b"GGUF":
                refuse(path, "", "this is no GGUF file (it does not begin with GGUF)")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Cursor(path, data, size).header()
    except OSError as e:
        raise SettingsError(f"{path.name}: the file cannot be read ({e.strerror}).") from e


class _Cursor:
    """Walks over the header; `place` says what it is reading when the file ends too early."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size = path, data, size
        self.at = 4
        self.place = "header"

    def header(self) -> GGUFHeader:
        version = self.number("<u4")
        if version not in VERSIONS:
            big = version.to_bytes(4, "little")[::-1] == (3).to_bytes(4, "little")
            fault = "big-endian files" if big else f"version {version}"
            refuse(self.path, "header", f"GGUF {fault} cannot be read", "Supported: 2 and 3.")
        num_tensors, num_keys = self.number("<u8"), self.number("<u8")
        metadata: dict[str, Any] = {}
        for i in range(num_keys):
            self.place = f"metadata key {i + 1} of {num_keys}"
            key = self.text()
            self.place = f"metadata key {key!r}"
            metadata[key] = self.value(self.number("<u4"))
        found = [self.tensor(i, num_tensors) for i in range(num_tensors)]
        start = self._aligned(metadata.get("general.alignment", 32))
        tensors = {
            t.name: TensorInfo(t.name, t.shape, t.type_id, start + t.offset) for t in found
        }
        return GGUFHeader(self.path, metadata, tensors, self.size)

    def tensor(self, index: int, count: int) -> TensorInfo:
        self.place = f"tensor {index + 1} of {count}"
        name = self.text()
        dimensions = self.number("<u4")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            refuse(self.path, f"tensor {name!r}", f"{dimensions} dimensions are none")
        shape = tuple(self.number("<u8") for _ in range(dimensions))[::-1]
        if not 0 < math.prod(shape) < 2**48:
            refuse(self.path, f"tensor {name!r}", f"the shape {list(shape)} is impossible")
        return TensorInfo(name, shape, self.number("<u4"), self.number("<u8"))

    def value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            refuse(self.path, self.place, f"value type {kind} is unknown")
        inner, length = self.number("<u4"), self.number("<u8")
        if inner == _ARRAY:
            refuse(self.path, self.place, "an array of arrays is not supported")
        if inner in _NUMBERS:
            dtype = np.dtype(_NUMBERS[inner])
            return np.frombuffer(self.take(length * dtype.itemsize), dtype)
        if inner != _STRING:
            refuse(self.path, self.place, f"value type {inner} is unknown")
        if length * 8 > self.size - self.at:  # each text takes eight bytes and more
            self.cut_off()
        return [self.text() for _ in range(length)]

    def number(self, dtype: str) -> Any:
        kind = np.dtype(dtype)
        return np.frombuffer(self.take(kind.itemsize), kind)[0].item()

    def text(self) -> str:
        if self.at + 8 > self.size:
            self.cut_off()
        (length,) = struct.unpack_from("<Q", self.data, self.at)
        self.at += 8
        # Tokens may be broken UTF-8; they are kept byte for byte.
        return self.take(length).decode("utf-8", "surrogateescape")

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            self.cut_off()
        self.at += count
        return self.data[self.at - count : self.at]

    def cut_off(self) -> NoReturn:
        refuse(self.path, self.place, f"the file of {self.size:,} bytes ends inside this")

    def _aligned(self, alignment: Any) -> int:
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            refuse(
                self.path,
                "metadata key 'general.alignment'",
                f"{alignment!r} is no power of two",
            )
        return -(-self.at // alignment) * alignment
