"""The data of a range as files: tables of one to three recordings as Parquet, CSV, or all in a zip.

It knows which rows of each table belong to a stretch of time, and file types. Rows are streamed from
the recording's parts into the file; only the preemptions, which are computed, are held.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from analyzer.look import Side
from analyzer.measured import recompute_token_s
from analyzer.preemptions import preemptions
from analyzer.report_evidence import as_json, evidence
from analyzer.run import Run
from traces.errors import SettingsError
from traces.schema import TABLES

PREEMPTIONS = "preemptions"
NAMES = (*(table.name for table in TABLES), PREEMPTIONS)
_README = """Data of a range of KV Replay recordings.

A/, and B/ and C/ where there are more, hold one file a table, {part}.
The table preemptions is computed: one row a preemption with its costs. columns.json says type, unit and
meaning of each recorded column; evidence-*.json name the recordings by hash.
Times are seconds since the start of the run. polars, pandas and DuckDB read these files.
"""

Part = tuple[float, float]


def table_of(run: Run, name: str, part: Part | None) -> pl.LazyFrame | None:
    """The rows of a table that belong to the range, None for all; None where it was not recorded.

    steps: those that run in it; events: those in it; requests: those that were there in it; blocks:
    what was held in one of its steps; preemptions: those in it. Raises SettingsError for an unknown
    table.
    """
    if name == PREEMPTIONS:
        table = preemptions(run.events, run.steps, token_s=recompute_token_s(run.recording))
        return (table if part is None else table.filter(_within("t_s", part))).lazy()
    if name not in NAMES:
        raise SettingsError(f"{name!r}: no such table. Choose from {', '.join(NAMES)}.")
    if name == "requests":  # some may be derived from events
        frame = run.requests.lazy()
    elif name == "blocks" and "blocks" not in run.recording.rows:
        return None
    else:
        frame = run.recording.scan(name)
    return frame if part is None else frame.filter(_belongs(run, name, part))


def _belongs(run: Run, name: str, part: Part) -> pl.Expr:
    start, end = part
    if name == "steps":
        return (pl.col("t_start_s") <= end) & (
            pl.col("t_start_s") + pl.col("duration_s") >= start
        )
    if name == "events":
        return _within("t_s", part)
    if name == "requests":
        gone = pl.col("finish_s").is_not_null() & (pl.col("finish_s") < start)
        return (pl.col("arrival_s") <= end) & ~gone
    steps = run.steps.filter(_belongs(run, "steps", part))["step"]
    first, last = steps.min(), steps.max()
    if first is None:
        return pl.lit(False)
    return (pl.col("first_step") <= last) & (pl.col("last_step") >= first)


def _within(column: str, part: Part) -> pl.Expr:
    return pl.col(column).is_between(*part)


def write_table(
    out: Path, kind: str, runs: Mapping[Side, Run], name: str, part: Part | None
) -> None:
    """One table of all runs as a `.parquet` or `.csv`; of more than one a column `run` says which.

    Raises SettingsError where the table was not recorded.
    """
    frames = []
    for side, run in runs.items():
        frame = table_of(run, name, part)
        if frame is None:
            raise SettingsError(
                f"{run.recording.label} has no table {name}: block ownership is recorded where a run is asked for it (--blocks). "
                f"Choose from {', '.join(n for n in NAMES if n != name)}."
            )
        frames.append(
            frame.select(pl.lit(side).alias("run"), pl.all()) if len(runs) > 1 else frame
        )
    _sink(pl.concat(frames), out, kind)


def _sink(frame: pl.LazyFrame, out: Path, kind: str) -> None:
    """Stream a table into a file. Lists, which CSV cannot hold, become text with blanks between."""
    if kind == ".parquet":
        frame.sink_parquet(out, compression="zstd")
        return
    schema = frame.collect_schema()
    lists = [name for name, type_ in schema.items() if isinstance(type_, pl.List)]
    as_text = [pl.col(name).cast(pl.List(pl.String)).list.join(" ") for name in lists]
    frame.with_columns(as_text).sink_csv(out)


def zip_bytes(runs: Mapping[Side, Run], part: Part | None, kind: str = ".parquet") -> bytes:
    """The zip of `write_zip`, for a page."""
    out = io.BytesIO()
    write_zip(out, runs, part, kind)
    return out.getvalue()


def write_zip(
    out: Path | BinaryIO, runs: Mapping[Side, Run], part: Part | None, kind: str = ".parquet"
) -> None:
    """All tables of all runs in one zip, with what the columns mean and the hashes. kind: of the
    tables, `.parquet` or `.csv`."""
    # Parquet is compressed
    method = zipfile.ZIP_STORED if kind == ".parquet" else zipfile.ZIP_DEFLATED
    said = (
        "of the whole run"
        if part is None
        else f"rows that belong to {part[0]:g} to {part[1]:g} s"
    )
    with (
        zipfile.ZipFile(out, "w", method) as archive,
        tempfile.TemporaryDirectory(prefix="kv-replay-") as folder,
    ):
        archive.writestr("README.txt", _README.format(part=said))
        archive.writestr("columns.json", json.dumps(_columns(), indent=1))
        for side, run in runs.items():
            archive.writestr(f"evidence-{side}.json", as_json(evidence(run.recording)))
            for name in NAMES:
                frame = table_of(run, name, part)
                if frame is None:
                    continue
                file = Path(folder) / f"{side}-{name}{kind}"
                _sink(frame, file, kind)
                archive.write(file, f"{side}/{name}{kind}")
                file.unlink()


def _columns() -> dict[str, dict[str, Any]]:
    return {
        table.name: {
            c.name: {"type": str(c.type), "unit": c.unit, "meaning": c.meaning}
            for c in table.columns
        }
        for table in TABLES
    }
