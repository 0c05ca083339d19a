"""The bytes of a plain, gzip or zstd file, and how damage shows in them and in zip files.

Knows no trace format and no text.
"""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

CHUNK_BYTES = 65_536
# what the zip reader and its decompressors raise; NotImplementedError is a RuntimeError
ZIP_DAMAGE = (
    zipfile.BadZipFile,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    OverflowError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
)


def is_damage(e: BaseException) -> bool:
    return isinstance(e, EOFError | gzip.BadGzipFile | zlib.error) or "Zstd" in type(e).__name__


def open_packed(path: Path, compression: str) -> IO[bytes]:
    if compression == "gzip":
        return io.BufferedReader(gzip.GzipFile(path))
    if compression == "zstd":
        return io.BufferedReader(_Unzstd(path.open("rb")), CHUNK_BYTES)
    return path.open("rb")


class _Unzstd(io.RawIOBase):
    """The bytes of a zstd file; unlike zstandard's reader, one that is cut off raises EOFError."""

    def __init__(self, packed: IO[bytes]) -> None:
        self.packed, self.frame, self.rest = packed, self._next_frame(), b""

    @staticmethod
    def _next_frame() -> Any:
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest:
            if self.frame.eof:
                packed = self.frame.unused_data or self.packed.read(CHUNK_BYTES)
                if not packed:
                    return 0
                self.frame = self._next_frame()
            else:
                packed = self.packed.read(CHUNK_BYTES)
                if not packed:
                    raise EOFError("the last zstd frame is not complete")
            self.rest = self.frame.decompress(packed)
        n = min(len(buffer), len(self.rest))
        buffer[:n], self.rest = self.rest[:n], self.rest[n:]
        return n

    def close(self) -> None:
        self.packed.close()
        super().close()
