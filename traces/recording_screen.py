"""One look at a batch of rows that tells whether it keeps every law: most do.

Where the answer is no, `recording_laws` looks again and says which row breaks which law. It restates
those laws as extremes and sums of columns, never decides what a law is, and may say no to a sound
batch, never yes to another one. A yes goes on with the state of the laws, as their own check would.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache

import numpy as np
import polars as pl
import pyarrow as pa

from traces.column_groups import Stretch
from traces.recording_laws import (
    MOST,
    MOST_SEGMENT,
    TIME_TOLERANCE_S,
    EventLaws,
    RequestLaws,
    StepLaws,
    later_pairs,
    polars_type,
)
from traces.schema import STEPS, Table
from traces.table_writer import Numbers

_NEGATIVE = ("priority",)  # may be less than 0


def numbers_of(batch: pa.RecordBatch, at: int = 0, group_size: int = 0) -> dict[str, Numbers]:
    """The columns of a batch of `steps` that it has, at least one row, as numbers. at: its first row in
    the table; group_size: of the groups of columns without nulls, 0 where nobody asks for them."""
    return {name: _numbers(batch.column(name), at, group_size) for name in batch.schema.names}


def _numbers(column: pa.Array, at: int, group_size: int) -> Numbers:
    """Its buffer as it is: `to_numpy` would load pandas, 0.4 s."""
    kind = column.type.to_pandas_dtype()
    if column.null_count == len(column):
        return _nothing(len(column), kind)
    start, stop = column.offset, column.offset + len(column)
    bits, data = column.buffers()
    values = np.frombuffer(data, kind)[start:stop]
    if not column.null_count:
        return Numbers(
            values, stretch=Stretch.of(values, at, group_size) if group_size else None
        )
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little")
    valid = valid[start:].view(np.bool_)
    return Numbers(np.where(valid, values, values.dtype.type(0)), valid)


@lru_cache(maxsize=16)
def _nothing(num: int, kind: type[np.generic]) -> Numbers:
    values, valid = np.zeros(num, kind), np.zeros(num, np.bool_)
    values.flags.writeable = valid.flags.writeable = False
    return Numbers(values, valid, is_nothing=True)


def steps_hold(columns: Mapping[str, Numbers], laws: StepLaws) -> bool:
    """Whether these rows of `steps`, at least one, keep all laws."""
    for column in STEPS.columns:
        found = columns.get(column.name)
        if found is None:
            continue
        if found.valid is not None and not column.nullable:
            return False
        most = MOST.get(column.name, np.inf)
        # the greatest of all is below infinity where the column is of reals; NaN compares as false
        if not (found.least >= 0 and found.greatest <= min(most, _GREATEST)):
            return False
    return _steps_follow(columns, laws)


_GREATEST = float(np.finfo(np.float64).max)


def _steps_follow(columns: Mapping[str, Numbers], laws: StepLaws) -> bool:
    step, start = (columns[name].values for name in ("step", "t_start_s"))
    before = -1 if laws.last_step is None else laws.last_step
    if not (step[0] > before and start[0] >= laws.last_start_s):
        return False
    if not ((step[1:] > step[:-1]).all() and (start[1:] >= start[:-1]).all()):
        return False
    if not _blocks_add_up(columns, laws):
        return False
    laws.last_step, laws.last_start_s = int(step[-1]), float(start[-1])
    return True


def _blocks_add_up(columns: Mapping[str, Numbers], laws: StepLaws) -> bool:
    used, fenced, cached, free = (
        columns[f"{name}_blocks"].values for name in ("used", "fenced", "cached_free", "free")
    )
    if laws.pool is None:
        laws.pool = int(used[0]) + int(free[0])
    return bool(
        (used + free == laws.pool).all() and (cached <= free).all() and (fenced <= used).all()
    )


def typed(frame: pl.DataFrame, spec: Table) -> pl.DataFrame:
    """The frame in the contract's types; text that no closed set holds becomes null."""
    return frame.select(pl.col(c.name).cast(polars_type(c), strict=False) for c in spec.columns)


def frame_holds(
    frame: pl.DataFrame, in_types: pl.DataFrame, spec: Table, laws: object | None
) -> bool:
    """Whether these rows, at least one, keep all laws. in_types: as from `typed`."""
    for column in spec.columns:
        nulls = in_types[column.name].null_count()
        if nulls and (not column.nullable or nulls != frame[column.name].null_count()):
            return False
    if not all(in_types.select(_sound(spec)).row(0)):
        return False
    if isinstance(laws, EventLaws):
        return _events_follow(in_types, laws)
    if isinstance(laws, RequestLaws):
        if not all(in_types.select(_REQUESTS_HOLD).row(0)):
            return False
        laws.ids.append(in_types["request_id"])
    return True


@cache
def _sound(spec: Table) -> list[pl.Expr]:
    """Of each column of the table, whether its values are what such a column may hold."""
    found: list[pl.Expr] = [pl.lit(True)]
    for column in spec.columns:
        type_, values = polars_type(column), pl.col(column.name)
        if type_ == pl.List(pl.Int64):
            values = values.list.explode(keep_nulls=False)
            found.append(_none(values.min() < 0) & _none(values.max() > MOST_SEGMENT))
        elif type_.is_numeric():
            if type_.is_float():
                found.append(values.is_finite().all(ignore_nulls=True))
            if column.name not in _NEGATIVE:
                found.append(_none(values.min() < 0))
            if column.name in MOST:
                found.append(_none(values.max() > MOST[column.name]))
    return [expr.alias(str(i)) for i, expr in enumerate(found)]


def _none(broken: pl.Expr) -> pl.Expr:
    return ~broken.fill_null(False)


_EVENTS_HOLD = [
    (pl.col("step").diff() >= 0).all(ignore_nulls=True).alias("step"),
    ~((pl.col("kind") == "preempt") & pl.col("mode_used").is_null()).any().alias("mode"),
    _none((pl.col("mode_used") == "cheapest").any()).alias("cheapest"),
]


def _events_follow(frame: pl.DataFrame, laws: EventLaws) -> bool:
    if frame["step"][0] < laws.last_step or not all(frame.select(_EVENTS_HOLD).row(0)):
        return False
    laws.last_step = int(frame["step"][-1])
    laws.seen.append(frame["request_id"].unique())
    return True


_REQUESTS_HOLD = [
    *(
        (pl.col(later) >= pl.col(earlier) - TIME_TOLERANCE_S)
        .all(ignore_nulls=True)
        .alias(f"{earlier} {later}")
        for earlier, later in later_pairs()
    ),
    ~(
        (pl.col("status") == "finished")
        & (pl.col("finish_s").is_null() | pl.col("first_token_s").is_null())
    )
    .any()
    .alias("finished"),
]
