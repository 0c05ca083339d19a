"""The table of a sweep, read and checked: what varied in it, and the sums that pictures are made of.

It knows the contract (traces/sweep_schema.py) and trusts nothing in a file: whoever wrote it. It runs
nothing and draws nothing (`sweep_figure.py`). A choice of settings that ran with several seeds counts
once, with the median over the seeds and the least and greatest value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from traces.errors import SweepError
from traces.schema import METADATA_KEY as RECORDING_KEY
from traces.sweep_schema import (
    CELL,
    COMPLETED,
    FIGURE,
    KNOWN,
    METADATA_KEY,
    RUN_STATUSES,
    STATUSES,
    SWEEP_VERSION,
    TABLE_FILE,
)

MAX_ROWS = 2_000_000
MAX_BYTES = 2 * 2**30
MAX_LEVELS = 200  # of an axis, on a picture
MAX_TEXT = 80  # characters of a value that are shown
_AGAIN = "python -m engine sweep writes one"


@dataclass(frozen=True)
class SweepTable:
    """A sweep that can be looked at.

    frame: columns of the contract, varied settings among them; axes: columns with more than one value
    ("trace" and settings, in order), by which cells are told apart; fixed: settings with one value;
    figures: columns with a number in them; num_cells: of the whole sweep, None where not known;
    bounds: of the goodput; notes: sentences for the user.
    """

    name: str
    frame: pl.DataFrame
    axes: tuple[str, ...]
    fixed: Mapping[str, Any]
    figures: tuple[str, ...]
    num_cells: int | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ran(self) -> pl.DataFrame:
        """Cells with figures."""
        return self.frame.filter(pl.col("status").is_in(RUN_STATUSES))

    def levels(self, axis: str) -> list[Any]:
        """Values of an axis: numbers upwards, words as they come; None, vLLM's default, first."""
        column = self.frame[axis]
        found = column.unique(maintain_order=True).to_list()
        known = [v for v in found if v is not None]
        if column.dtype.is_numeric() or column.dtype == pl.Boolean:
            known.sort()
        return ([None] if None in found else []) + known


def read_sweep(path: str | Path, name: str | None = None) -> SweepTable:
    """The table in a Parquet file, or in the folder of a sweep. Raises SweepError with the remedy.

    name: what the user called the file. Numbers that are none (NaN, infinite) and negative ones are
    left out with a note.
    """
    path = Path(path)
    label = name or path.name
    if path.is_dir():
        if not (path / TABLE_FILE).is_file():
            raise SweepError(
                label,
                "",
                f"the folder holds no {TABLE_FILE}",
                "Give the --out folder of a sweep.",
            )
        path = path / TABLE_FILE
    frame, metadata = _read(path, label)
    document = _document(metadata, label)
    return make_table(frame, label, document)


def _read(path: Path, label: str) -> tuple[pl.DataFrame, Mapping[str, str]]:
    """Columns and key-value metadata of a Parquet file. Raises SweepError."""
    try:
        with path.open("rb") as handle:
            magic = handle.read(4)
        size = path.stat().st_size
    except OSError as error:
        raise SweepError(
            label, "", f"it cannot be opened ({error.strerror or error})", "Check the path."
        ) from None
    if magic != b"PAR1":
        raise SweepError(
            label,
            "",
            "it is not a Parquet file",
            f"Give the {TABLE_FILE} of a sweep: {_AGAIN}.",
        )
    if size > MAX_BYTES:
        raise SweepError(
            label, "", f"it has {size:,} bytes, too many for the table of a sweep", "Cut it to fewer rows."
        )  # fmt: skip
    try:
        metadata = pl.read_parquet_metadata(path)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
        if rows > MAX_ROWS:
            raise SweepError(
                label, "", f"it has {rows:,} rows, and at most {MAX_ROWS:,} are read", "Cut it to fewer rows."
            )  # fmt: skip
        return pl.read_parquet(path), metadata
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as e:
        said = " ".join(str(e).split())[:200] or type(e).__name__
        raise SweepError(
            label, "", f"its Parquet is damaged ({said})", "Copy it again, or run the sweep's command again: it rewrites the table."
        ) from None  # fmt: skip


def _document(metadata: Mapping[str, str], label: str) -> Mapping[str, Any]:
    """What the writer said of the sweep; nothing where another program rewrote the file."""
    key = RECORDING_KEY.decode() if isinstance(RECORDING_KEY, bytes) else RECORDING_KEY
    if key in metadata:
        raise SweepError(
            label, "", "it is a part of a recording, not the table of a sweep", "Open the recording's folder on Compare."
        )  # fmt: skip
    if METADATA_KEY not in metadata:
        return {}
    try:
        document = json.loads(metadata[METADATA_KEY])
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    version = str(document.get("version", ""))
    if version.split(".")[0] != SWEEP_VERSION.split(".")[0]:
        raise SweepError(
            label, "", f"it follows version {version[:20] or 'unknown'} of the contract of sweeps, and this program reads {SWEEP_VERSION}",
            "Run the sweep again with this version, or open it with the version that wrote it.",
        )  # fmt: skip
    return document


# ---- checks ------------------------------------------------------------------------------------------


def make_table(
    frame: pl.DataFrame, label: str, document: Mapping[str, Any] | None = None
) -> SweepTable:
    """A checked SweepTable of columns that anybody may have written. Raises SweepError."""
    document = document or {}
    notes: list[str] = []
    _check_columns(frame, label)
    frame = _typed(frame, label, notes)
    settings = [c for c in frame.columns if c not in KNOWN]
    frame = _once(frame, settings, notes)
    varied = [c for c in ("trace", *settings) if frame[c].n_unique() > 1]
    fixed = {c: frame[c][0] for c in settings if c not in varied and frame[c][0] is not None}
    sweep = document.get("sweep")
    sweep = sweep if isinstance(sweep, dict) else {}
    said = sweep.get("settings")
    fixed = {**(said if isinstance(said, dict) else {}), **fixed}
    planned = document.get("num_cells")
    planned = planned if isinstance(planned, int) else None
    if planned is not None and planned > frame.height:
        notes.append(
            f"The sweep is not finished: {frame.height:,} of {planned:,} cells have ended. Its command goes on."
        )
    bounds = sweep.get("bounds")
    return SweepTable(
        str(sweep.get("name") or label)[:MAX_TEXT],
        frame,
        tuple(varied),
        fixed,
        tuple(n for n in FIGURE if frame[n].count()),
        planned,
        {str(k): float(v) for k, v in bounds.items() if _is_number(v)} if isinstance(bounds, dict) else {},
        tuple(notes),
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_columns(frame: pl.DataFrame, label: str) -> None:
    for name in ("status", "trace"):
        if name not in frame.columns:
            raise SweepError(
                label, f"column {name}", "it is missing, so this is no table of a sweep", f"Give the {TABLE_FILE} of a sweep: {_AGAIN}."
            )  # fmt: skip
    if not set(FIGURE) & set(frame.columns):
        raise SweepError(
            label, "", "no column holds a figure of a run", f"Known are {', '.join(list(FIGURE)[:6])} and others: {_AGAIN}."
        )  # fmt: skip
    if frame.is_empty():
        raise SweepError(label, "", "it holds no cell", "Run the sweep's command to the end.")


def _typed(frame: pl.DataFrame, label: str, notes: list[str]) -> pl.DataFrame:
    """All columns of the contract with their types; foreign settings as numbers, switches or text."""
    columns: list[pl.Series] = []
    for name, dtype in CELL.items():
        columns.append(_cast(frame, name, dtype, label))
    bad = columns[list(CELL).index("status")]
    wrong = (~bad.is_in(STATUSES)).fill_null(True).arg_true()
    if len(wrong):
        row = int(wrong[0])
        raise SweepError(
            label, f"row {row + 1:,}, column status", f"{str(bad[row])[:MAX_TEXT]!r} is none of {', '.join(STATUSES)}", "Correct the row, or write the table again."
        )  # fmt: skip
    for name in frame.columns:
        if name not in KNOWN and (found := _setting(frame[name], notes)) is not None:
            columns.append(found)
    columns += [_figure(frame, name, label, notes) for name in FIGURE]
    return pl.DataFrame(columns)


def _cast(frame: pl.DataFrame, name: str, dtype: Any, label: str) -> pl.Series:
    if name not in frame.columns:
        fill: dict[str, Any] = {"seed": 0, "attempts": 1}
        return pl.Series(name, [fill.get(name)] * frame.height, dtype=dtype)
    column = frame[name]
    try:
        if dtype == pl.Int64 and column.dtype == pl.String:
            raise ValueError
        return column.cast(dtype, strict=True)
    except (pl.exceptions.PolarsError, ValueError):
        raise SweepError(
            label, f"column {name}", f"it holds {column.dtype}, not {dtype}", "Write the table again."
        ) from None  # fmt: skip


def _setting(column: pl.Series, notes: list[str]) -> pl.Series | None:
    """A varied setting's column; None for what cannot tell cells apart."""
    dtype = column.dtype
    if dtype.is_float():
        column = column.fill_nan(None)
    if dtype.is_numeric() or dtype in (pl.Boolean, pl.String):
        return column
    if dtype in (pl.Categorical, pl.Enum) or dtype.is_temporal():
        return column.cast(pl.String)
    if column.null_count() < len(column):
        notes.append(f"Column {column.name[:MAX_TEXT]} holds {dtype}, and is left out.")
    return None


def _figure(frame: pl.DataFrame, name: str, label: str, notes: list[str]) -> pl.Series:
    """A figure's column, without what is no number."""
    dtype = FIGURE[name].dtype
    if name not in frame.columns or frame[name].dtype == pl.Null:
        return pl.Series(name, [None] * frame.height, dtype=dtype)
    column = frame[name]
    if not column.dtype.is_numeric():
        raise SweepError(
            label, f"column {name}", f"it holds {column.dtype}, not numbers", "Write the table again."
        )  # fmt: skip
    values = column.cast(pl.Float64)
    absurd = (~values.is_finite() | (values < 0)).fill_null(False)
    if absurd.any():
        notes.append(
            f"{int(absurd.sum()):,} values of {name} are negative or no finite numbers, and are left out."
        )
        values = pl.select(pl.when(~absurd).then(values)).to_series().alias(name)
    return values.cast(dtype, strict=False) if dtype == pl.Int64 else values


def _once(frame: pl.DataFrame, settings: Sequence[str], notes: list[str]) -> pl.DataFrame:
    """Each cell once: the first of rows with one trace, one choice of settings and one seed."""
    kept = frame.unique(["trace", "seed", *settings], keep="first", maintain_order=True)
    if kept.height < frame.height:
        notes.append(
            f"{frame.height - kept.height:,} rows repeat another row's trace, settings and seed, and are left out."
        )
    return kept


# ---- what pictures are made of ----------------------------------------------------------------------


def held_at(table: SweepTable, held: Mapping[str, Any]) -> pl.DataFrame:
    """Cells with these values. held: axis -> value, None for vLLM's default."""
    keep = [pl.col(axis).eq_missing(pl.lit(value, table.frame[axis].dtype)) for axis, value in held.items()]  # fmt: skip
    return table.frame.filter(*keep) if keep else table.frame


@dataclass(frozen=True)
class Heat:
    """A figure over two axes. values [ny][nx]: medians over seeds, None where nothing ran; words: why
    not ("refused", "failed", "not run"), "" where something did; num_seeds: most of one field."""

    x: tuple[Any, ...]
    y: tuple[Any, ...]
    values: tuple[tuple[float | None, ...], ...]
    words: tuple[tuple[str, ...], ...]
    num_seeds: int


def heat(table: SweepTable, x: str, y: str, figure: str, held: Mapping[str, Any]) -> Heat:
    """`figure` over the axes x and y, the others held at a value."""
    cells = held_at(table, held)
    grouped = cells.group_by(x, y).agg(
        value=pl.col(figure).median(),
        num=pl.col(figure).count(),
        status=pl.col("status").unique(maintain_order=True),
    )
    found = {(row[x], row[y]): row for row in grouped.iter_rows(named=True)}
    xs, ys = table.levels(x)[:MAX_LEVELS], table.levels(y)[:MAX_LEVELS]
    return Heat(
        tuple(xs),
        tuple(ys),
        tuple(tuple((found.get((a, b)) or {}).get("value") for a in xs) for b in ys),
        tuple(tuple(_why_not(found.get((a, b))) for a in xs) for b in ys),
        max((row["num"] for row in found.values()), default=0),
    )


def _why_not(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "not run"
    if row["value"] is not None:
        return ""
    others = [s for s in row["status"] if s != COMPLETED]
    return others[0] if others else "no value"


@dataclass(frozen=True)
class Front:
    """Throughput against a latency, a row a choice of settings. table: the axes that vary here,
    throughput and latency (medians over seeds), each with its _low and _high, num_seeds, on_front: no
    other choice is better in one and as good in the other; axes: which vary here."""

    table: pl.DataFrame
    axes: tuple[str, ...]
    throughput: str
    latency: str


def front(table: SweepTable, throughput: str, latency: str, held: Mapping[str, Any]) -> Front:
    """Choices of settings by throughput (more is better) and latency (less is)."""
    cells = held_at(table, held)
    axes = tuple(a for a in table.axes if a not in held)
    keys = axes or ("trace",)
    spread = [
        expr
        for name, column in (("throughput", throughput), ("latency", latency))
        for expr in (
            pl.col(column).median().alias(name),
            pl.col(column).min().alias(f"{name}_low"),
            pl.col(column).max().alias(f"{name}_high"),
        )
    ]
    points = (
        cells.drop_nulls([throughput, latency])
        .group_by(*keys, maintain_order=True)
        .agg(*spread, num_seeds=pl.len())
        .sort("latency", pl.col("throughput") * -1, maintain_order=True)
    )
    best = pl.col("throughput").cum_max().shift(1)
    on_front = points.select(
        (best.is_null() | (pl.col("throughput") > best)).alias("on_front")
    ).to_series()
    return Front(points.with_columns(on_front), axes, throughput, latency)


@dataclass(frozen=True)
class Curve:
    """One line over an axis. level: value of the line's own axis; table: columns x, median, low, high,
    num_seeds, x upwards."""

    level: Any
    table: pl.DataFrame


def curves(
    table: SweepTable, x: str, line: str | None, figure: str, held: Mapping[str, Any]
) -> tuple[Curve, ...]:
    """`figure` over the axis x, a line for each value of the axis `line`, or one line where it is None."""
    cells = held_at(table, held).drop_nulls([figure])
    places = {value: i for i, value in enumerate(table.levels(x))}
    found = []
    for level in table.levels(line) if line else [None]:
        own = held_at(table, {**held, line: level}).drop_nulls([figure]) if line else cells
        if own.is_empty():
            continue
        summed = own.group_by(pl.col(x).alias("x")).agg(
            median=pl.col(figure).median(),
            low=pl.col(figure).min(),
            high=pl.col(figure).max(),
            num_seeds=pl.len(),
        )
        order = pl.Series("place", [places[v] for v in summed["x"].to_list()], dtype=pl.Int64)
        found.append(Curve(level, summed.with_columns(order).sort("place").drop("place")))
    return tuple(found)


def not_run(table: SweepTable) -> pl.DataFrame:
    """Cells that were refused or failed: trace, axes, seed, status, error."""
    bad = table.frame.filter(~pl.col("status").is_in(RUN_STATUSES))
    axes = [a for a in table.axes if a != "trace"]
    return bad.select("trace", *axes, "seed", "status", "error")
