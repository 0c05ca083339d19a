"""Whatever happens to a file, reading it ends in a workload or in a readable error."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import traces
from traces.description import describe
from traces.errors import KVReplayError

FIXTURES = Path(__file__).parent / "fixtures" / "formats"
FILES = sorted(p for p in FIXTURES.rglob("*") if p.is_file())
CELLS = [
    b"null", b'""', b"[]", b"{}", b"-1", b"1e400", b"NaN", b"true", b'"x"', b",", b"\n", b'"', b"\x00",
    b"\xff", b"99999999999999999999", b"[1]", b"0.5", b"\xef\xbb\xbf", b"2025-01-01", b'{"a":1}',
]  # fmt: skip
CELL = re.compile(rb'-?\d+\.?\d*|"[^"\n]{0,30}"|\[[^\]\n]{0,40}\]|null')


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes cut, flipped, doubled, or with a cell replaced by something odd."""
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.randint(1, 100))
    cells = list(CELL.finditer(data))
    kind = rng.choice(["cut", "flip", "drop", "double", "cell", "cell", "cell"])
    if kind == "cut":
        return data[:at]
    if kind == "flip":
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == "drop":
        return data[:at] + data[to:]
    if kind == "double" or not cells:
        return data[:to] + data[at:]
    cell = rng.choice(cells)
    return data[: cell.start()] + rng.choice(CELLS) + data[cell.end() :]


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_never_raises_anything_but_a_readable_error(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    for i in range(15):
        original = rng.choice(FILES)
        path = tmp_path / f"{i}{original.suffix}"
        path.write_bytes(damaged(original.read_bytes(), rng))

        found = describe(path)

        if found["kind"] == "workload":
            assert len(traces.open_workload(path)) == found["replayable"]
            continue
        assert found["kind"] in ("telemetry", "refused")
        with pytest.raises(KVReplayError, match=re.escape(path.name)):
            traces.open_workload(path)
