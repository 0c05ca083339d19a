"""A long recording out of a short one: the same run again and again, one after the other.

    python benchmarks/big_recording.py traces/samples/recordings/chat-swap OUT --copies 520

Steps and times go on, request ids get the copy's number, blocks are left out. For measuring pages and
readers, not for looking at: every stretch is like the first.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from traces.schema import CLOSED_FILE

ROWS_A_PART = 1_000_000
_TIMES = ("t_s", "t_start_s", "arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
_IDS = ("request_id", "cause_request_id")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--copies", type=int, required=True)
    given = parser.parse_args()
    make_big(given.source, given.out, given.copies)
    size = sum(p.stat().st_size for p in given.out.rglob("*") if p.is_file())
    print(f"{given.out}: {size / 2**20:,.0f} MiB")


def make_big(source: Path, out: Path, copies: int) -> None:
    """Write `copies` of the recording in folder `source` one after the other into folder `out`."""
    steps = _read(source, "steps")
    num_steps = steps.num_rows
    last = {c: steps[c][num_steps - 1].as_py() for c in ("t_start_s", "duration_s")}
    length_s = last["t_start_s"] + last["duration_s"] + 1.0
    for name in ("steps", "events", "requests"):
        table = _read(source, name)
        folder = out / name
        folder.mkdir(parents=True)
        at_once = max(1, ROWS_A_PART // max(table.num_rows, 1))
        for part, first in enumerate(range(0, copies, at_once)):
            shifted = [
                _shifted(table, i, num_steps, length_s)
                for i in range(first, min(first + at_once, copies))
            ]
            pq.write_table(
                pa.concat_tables(shifted),
                folder / f"part-{part:05d}.parquet",
                compression="zstd",
                row_group_size=131_072,
            )
    closed = json.loads((source / CLOSED_FILE).read_text("utf-8"))
    closed["rows"] = {
        name: n * copies for name, n in closed["rows"].items() if name != "blocks"
    }
    (out / CLOSED_FILE).write_text(json.dumps(closed), "utf-8")


def _read(source: Path, name: str) -> pa.Table:
    parts = sorted((source / name).glob("*.parquet"))
    return pa.concat_tables(pq.read_table(p) for p in parts).replace_schema_metadata(
        pq.read_schema(parts[0]).metadata
    )


def _shifted(table: pa.Table, copy: int, num_steps: int, length_s: float) -> pa.Table:
    """The table as of its n-th copy: steps and times later, ids with the copy's number."""
    for i, column in enumerate(table.schema):
        values = table[column.name]
        if column.name == "step":
            values = pc.add(values, pa.scalar(copy * num_steps, column.type))
        elif column.name in _TIMES:
            values = pc.add(values, copy * length_s)
        elif column.name in _IDS:
            plain = values.cast(pa.string())
            values = pc.binary_join_element_wise(plain, f"c{copy}", "-").cast(column.type)
        table = table.set_column(i, column, values)
    return table


if __name__ == "__main__":
    main()
