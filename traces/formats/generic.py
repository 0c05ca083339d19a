"""Any table with an arrival and two token counts in it: CSV, TSV, JSON, JSON lines, Parquet.

The columns are guessed from their names or given; the guess is reported. The trace columns of the
decision tests (request_id, prompt_tokens, output_tokens, arrival_step or arrival_time_s, priority,
prefix_hash_ids, prefix_hash_block, abort_step) are read by this reader too, name for name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from traces.errors import NotAWorkloadError
from traces.formats.columns import KINDS, NEEDED, checked_mapping, guess
from traces.formats.figures import figures
from traces.formats.json_records import nested_names
from traces.formats.mooncake import fitting_block
from traces.formats.raw import (
    MAX_PREFIX_BLOCK_TOKENS,
    Format,
    RawTrace,
    ReadOptions,
    raw_from_table,
)
from traces.formats.source import Source
from traces.formats.tabular import load
from traces.formats.times import unit_in_name

_OWN_IDS = ("prefix_hash_ids", "prefix_ids")  # may cover only a part of the prompt
NO_KNOWN_FIELD = "no known field"
_FAILED_WORDS = (
    "fail",
    "failed",
    "failure",
    "error",
    "errored",
    "cancelled",
    "canceled",
    "timeout",
    "aborted",
    "false",
)
_NO_ERROR = ("", "0", "false", "none", "null", "ok", "no", "nan", "200", "[]", "{}")


@dataclass
class NoArrivalsError(NotAWorkloadError):
    """Token counts without arrivals. lengths: requests, prompt_tokens, output_tokens, zero_output."""

    lengths: dict[str, Any] | None = None


def sniff(source: Source) -> bool:
    return bool(source.columns)


def read(source: Source, options: ReadOptions) -> RawTrace:
    """The table, by guessed or given columns. Raises NotAWorkloadError when one is not there."""
    source = unwrapped(source)
    columns = guess(source.columns)
    if options.mapping:
        given = checked_mapping(source, options.mapping)
        columns = {r: c for r, c in columns.items() if c not in given.values()} | given
    if source.shape == "json":
        columns = _with_rare_keys(columns)
    stepped = "arrival_step" in columns and "arrival_s" not in (options.mapping or {})
    if stepped and not _says_arrival(columns):
        columns.pop("arrival_s", None)
    _need(source, columns, stepped)
    unit = options.time_unit or (
        unit_in_name(columns["arrival_s"]) if "arrival_s" in columns else None
    )
    loaded = load(source, columns, KINDS, time_unit=unit)
    frame = loaded.frame
    kept = (*NEEDED, "arrival_step") if "arrival_s" not in columns else NEEDED
    unused = [r for r in columns if r not in kept and frame[r].null_count() == frame.height]
    frame = frame.drop(unused)
    columns = {r: c for r, c in columns.items() if r not in unused}
    unknown = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
    notes: list[str] = []
    if "arrival_s" not in columns:
        frame = frame.with_columns(pl.col("arrival_step").cast(pl.Float64).alias("arrival_s"))
        notes.append("Arrivals are step numbers, not times: replay it with the step clock.")
    if "abort_s" in frame.columns:
        frame = frame.with_columns(pl.col("abort_s") - loaded.origin_s)
    frame, block, block_note = _prefix_blocks(source, frame, columns)
    frame = _failures(frame, unknown)
    raw = raw_from_table(
        source,
        f"generic {shape_name(source)}",
        loaded,
        columns=columns,
        prefix_block_tokens=block,
        notes=(*notes, *block_note, *_unit_note(loaded.plan, columns)),
    )
    return raw.with_frame(frame)


def unwrapped(source: Source) -> Source:
    """A JSON object that holds its records under one key, seen as those records."""
    first = source.first
    if source.shape != "json" or source.listed or not isinstance(first, dict):
        return source
    lists = {
        k: v for k, v in first.items() if isinstance(v, list) and v and isinstance(v[0], dict)
    }
    for key, rows in lists.items():
        columns = tuple(nested_names(rows[0]))
        if set(NEEDED) <= set(guess(columns)):
            return replace(source, inside=key, first=rows[0], columns=columns, lines=False)
    return source


def _with_rare_keys(columns: dict[str, str]) -> dict[str, str]:
    """JSON records may lack a key at first: these are looked for in every record, whatever the head says."""
    rare = {
        "priority": "priority",
        "prefix_ids": "prefix_hash_ids",
        "prefix_block_tokens": "prefix_hash_block",
        "abort_step": "abort_step",
    }
    return columns | {
        r: c for r, c in rare.items() if r not in columns and c not in columns.values()
    }


def _says_arrival(columns: dict[str, str]) -> bool:
    return (
        columns.get("arrival_s", "").lower().startswith("arriv")
        and columns["arrival_s"] != columns["arrival_step"]
    )


def has_needed(source: Source) -> bool:
    """Whether every needed column is recognised by its name."""
    return set(NEEDED) <= set(guess(source.columns))


def shape_name(source: Source) -> str:
    """What the user would call the kind of file."""
    if source.shape == "csv":
        return "TSV" if source.delimiter == "\t" else "CSV"
    if source.shape == "json":
        return "JSON lines" if source.lines else "JSON"
    return "Parquet"


def _unit_note(plan: object, columns: dict[str, str]) -> list[str]:
    unit, why = getattr(plan, "unit", ""), getattr(plan, "why", "")
    if not unit or why == "given by the caller":
        return []
    return [f"{columns['arrival_s']} is taken as {unit}: {why}."]


def _need(source: Source, columns: dict[str, str], stepped: bool) -> None:
    missing = [r for r in NEEDED if r not in columns and not (stepped and r == "arrival_s")]
    if not missing:
        return
    has = f"Its columns are {', '.join(c[:40] for c in source.columns[:30])}."
    if missing == ["arrival_s"]:
        raise NoArrivalsError(
            source.name,
            "",
            "it holds token counts but no arrival times",
            f"Add or map a column with arrival times, or make a synthetic workload of these lengths. {has}",
            _lengths(source, columns),
        )
    raise NotAWorkloadError(
        source.name,
        "",
        f"no column was recognised as {', '.join(missing)}",
        f"Map the columns by hand (arrival, prompt tokens, output tokens) if they are there. {has}",
    )


def _lengths(source: Source, columns: dict[str, str]) -> dict[str, Any]:
    """Figures of the token counts of a table that has no arrivals."""
    counts = {r: columns[r] for r in ("prompt_tokens", "output_tokens")}
    frame = load(source, counts, KINDS).frame
    seen = figures(RawTrace("lengths", frame))
    return {
        "requests": seen.requests,
        "prompt_tokens": dict(seen.prompt_tokens),
        "output_tokens": dict(seen.output_tokens),
        "zero_output": seen.zero_output,
    }


def _prefix_blocks(
    source: Source, frame: pl.DataFrame, columns: dict[str, str]
) -> tuple[pl.DataFrame, int | None, list[str]]:
    """The block length of the prefix ids: one for the file, or one a row as segment lengths.

    Ids that fill every prompt by one block length (Mooncake's way) have that length. Else, with 0
    or no column, an id stands for one block of the engine, whatever its block size is; this is
    what prefix_block_tokens None without prefix_tokens means.
    """
    if "prefix_ids" not in frame.columns or frame["prefix_ids"].list.len().sum() == 0:
        frame = frame.drop("prefix_ids", strict=False)
        return frame.drop("prefix_block_tokens", strict=False), None, []
    if "prefix_block_tokens" not in frame.columns:
        block = None if columns.get("prefix_ids") in _OWN_IDS else fitting_block(frame)
        if block is not None:
            said = f"The prefix ids of every row fit blocks of {block} tokens, rounded up."
            return frame, block, [said]
        return frame, None, ["A prefix id is taken as one block of the engine's block size."]
    sizes = frame["prefix_block_tokens"].fill_null(0)
    wild = ((sizes < 0) | (sizes > MAX_PREFIX_BLOCK_TOKENS)).arg_true()
    if len(wild):
        row = int(wild[0])
        raise source.error(
            f"row {row + 1}, column {columns['prefix_block_tokens']}",
            f"{sizes[row]:,} tokens is no length of a prefix block",
            f"Give 1 to {MAX_PREFIX_BLOCK_TOKENS:,} tokens, or 0 for the engine's own block size.",
        )
    frame = frame.drop("prefix_block_tokens")
    named = frame["prefix_ids"].list.len().fill_null(0) > 0
    distinct = sizes.filter(named).unique().to_list()
    if distinct == [0]:
        return frame, None, ["A prefix id is taken as one block of the engine's block size."]
    if len(distinct) == 1:
        return frame, int(distinct[0]), []
    if min(distinct) <= 0:
        row = int(((sizes <= 0) & named).arg_true()[0])
        raise source.error(
            f"row {row + 1}",
            "some rows give the tokens of a prefix block and this one does not",
            "Give the same kind of value in every row.",
        )
    lengths = [
        [int(s)] * n
        for s, n in zip(sizes.to_list(), frame["prefix_ids"].list.len().to_list(), strict=True)
    ]
    column = pl.Series("prefix_tokens", lengths, dtype=pl.List(pl.UInt32))
    return frame.with_columns(column), None, []


def _failures(frame: pl.DataFrame, unknown: pl.Series) -> pl.DataFrame:
    """Rows without any known field, whose status says failure (a word, an HTTP code of 400 and
    above), or that hold an error text, with the reason as `aside`."""
    failed = pl.lit(False)
    if "status" in frame.columns:
        low = pl.col("status").str.strip_chars().str.to_lowercase()
        code = low.cast(pl.Int64, strict=False).is_between(400, 599)
        failed |= (low.is_in(_FAILED_WORDS) | code).fill_null(False)
    if "error" in frame.columns:
        text = pl.col("error").str.strip_chars().str.to_lowercase()
        failed |= text.is_not_null() & ~text.is_in(_NO_ERROR)
    reason = (
        pl.when(unknown)
        .then(pl.lit(NO_KNOWN_FIELD))
        .when(failed)
        .then(pl.lit("failed"))
        .otherwise(pl.lit(None, dtype=pl.String))
    )
    return frame.with_columns(reason.alias("aside")).drop("status", "error", strict=False)


FORMAT = Format("generic", "any table with arrival and token columns", sniff, read)
