"""Recordings -> a Perfetto trace, a table or a zip of tables, by the suffix of the file's name.

It knows suffixes; what the files hold is in `perfetto_export` and `range_data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from analyzer import range_data
from analyzer.look import Side
from analyzer.output import check_suffix, fresh_file
from analyzer.perfetto_export import write_trace
from analyzer.report_contents import check_within
from analyzer.run import Run

TRACES = (".perfetto-trace", ".pftrace")
TABLES = (".parquet", ".csv")
SUFFIXES = (*TRACES, *TABLES, ".zip")


def write_export(
    out: Path,
    runs: Mapping[Side, Run],
    part: tuple[float, float] | None = None,
    table: str = "steps",
) -> list[str]:
    """Write the file; returns sentences on what was left out. part: seconds since the start, None
    for all; table: which of `range_data.NAMES`, where the file holds one.

    Raises SettingsError for another suffix, an unknown or missing table, a range after the end, or an
    unwritable place.
    """
    kind = check_suffix(out, SUFFIXES)
    last = pl.col("t_start_s") + pl.col("duration_s")
    ends_s = [run.steps.select(last.max()).item() or 0.0 for run in runs.values()]
    check_within(part, max(ends_s))
    with fresh_file(out) as temporary:
        if kind in TRACES:
            with temporary.open("wb") as file:
                found = write_trace(file, runs, part)
            return [f"{side}: {said.words()}." for side, said in found.items() if said.words()]
        if kind in TABLES:
            range_data.write_table(temporary, kind, runs, table, part)
        else:
            range_data.write_zip(temporary, runs, part)
    return []
