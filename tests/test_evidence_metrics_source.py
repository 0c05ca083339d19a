"""A source is streamed text with numbered lines, whatever it was packed, encoded or damaged by."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from traces.errors import EvidenceError
from traces.evidence.source import Source

LOG = "first line\nsecond line\r\n\nfourth, no end"
LINES = [(1, "first line"), (2, "second line"), (3, ""), (4, "fourth, no end")]


@pytest.mark.parametrize(
    "raw",
    [
        LOG.encode(),
        b"\xef\xbb\xbf" + LOG.encode(),
        LOG.encode("utf-16"),
        LOG.encode("utf-16-le"),
        gzip.compress(LOG.encode()),
        gzip.compress(LOG[:8].encode()) + gzip.compress(LOG[8:].encode()),
        zstandard.ZstdCompressor().compress(LOG.encode()),
        b"\x00" * 100 + LOG.encode(),
    ],
    ids=[
        "plain",
        "bom",
        "utf-16",
        "utf-16-no-mark",
        "gzip",
        "gzip-two",
        "zstd",
        "zeros-in-front",
    ],
)
def test_lines_are_numbered_whatever_they_were_packed_in(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(raw)

    on_disk, uploaded = Source.from_path(path), Source.from_text("upload", raw)

    assert list(on_disk.lines()) == LINES
    assert list(uploaded.lines()) == LINES
    assert on_disk.head.startswith("first line")


def test_lines_can_be_read_again() -> None:
    source = Source.from_text("paste", LOG)

    assert list(source.lines()) == list(source.lines()) == LINES


def test_old_mac_line_ends_end_lines() -> None:
    assert list(Source.from_text("paste", "a\rb\rc").lines()) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_carriage_return_of_a_progress_bar_ends_no_line() -> None:
    assert list(Source.from_text("paste", "10%\r20%\rINFO x\nb").lines()) == [
        (1, "10%\r20%\rINFO x"),
        (2, "b"),
    ]


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    source = Source.from_text(
        "latin.log", "caf\xe9 is running on the server\n".encode("latin-1")
    )

    assert list(source.lines()) == [(1, "caf\ufffd is running on the server")]
    assert source.replaced


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_log_that_is_cut_off_is_read_up_to_the_cut(pack, tmp_path: Path) -> None:
    text = "".join(f"line {i} {i * 7919 % 1009}\n" for i in range(200_000))
    path = tmp_path / "cut.log"
    path.write_bytes(pack(text.encode())[:-20_000])

    source = Source.from_path(path)
    lines = list(source.lines())

    assert 1_000 < len(lines) < 200_000
    assert lines[999] == (1000, "line 999 521")
    assert "cut off" in source.damage


def test_a_line_without_end_comes_in_pieces_of_the_same_number() -> None:
    source = Source.from_text("paste", "x" * 25 + "\ny")

    assert list(source.lines(max_chars=10)) == [
        (1, "x" * 10),
        (1, "x" * 10),
        (1, "x" * 5),
        (2, "y"),
    ]


def test_a_long_file_is_streamed_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_bytes((b"INFO a line of a log that is quite long\n" * 100_000) * 5)
    source = Source.from_path(path)

    tracemalloc.start()
    count = sum(1 for _ in source.lines())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 500_000
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "holds nothing"),
        (b" \n\r\n\x00", "holds nothing"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "it is a picture"),
        (b"PK\x03\x04" + b"\x14\x00" * 20, "zip archive"),
        (b"PAR1" + b"\x15\x04" * 20, "Parquet table"),
        (bytes(range(256)) * 40, "binary file"),
        (b"BZh91AY&SY" + bytes(range(100)), "bzip2"),
    ],
)
def test_what_is_no_text_is_refused_with_a_sentence(raw: bytes, what: str) -> None:
    with pytest.raises(EvidenceError, match=what):
        Source.from_text("file.bin", raw)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"gone\.log"):
        Source.from_path(tmp_path / "gone.log")
    with pytest.raises(EvidenceError, match="folder"):
        Source.from_path(tmp_path)


def test_a_document_that_is_too_long_is_refused() -> None:
    with pytest.raises(EvidenceError, match="more than 1 MiB"):
        Source.from_text("big.json", "[" + "1," * (1 << 20)).text(max_bytes=1 << 20)


def test_a_line_for_the_reader_has_no_colours_and_an_end() -> None:
    line = Source.from_text("a.log", "x").line(7, "\x1b[32mINFO\x1b[0m " + "y" * 500)

    assert (line.source, line.number) == ("a.log", 7)
    assert line.text == "INFO " + "y" * 395


def test_an_error_page_saved_as_metrics_is_called_a_page() -> None:
    page = "<!DOCTYPE html>\n<html><head><title>502 Bad\nGateway</title></head></html>"

    with pytest.raises(EvidenceError, match=r"it is a web page \(502 Bad Gateway\)"):
        Source.from_text("metrics.prom", page)
