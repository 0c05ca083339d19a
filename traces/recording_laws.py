"""The checks that a recording's rows must pass: columns, types, nulls, enums, laws.

Rows come in batches and are looked at once, so memory does not grow with the recording. It knows
the contract and says where a row breaks it; it opens no file and repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

from traces.errors import RecordingError
from traces.schema import EVENT_KINDS, MODES, STATUSES, Column, Table

TIME_TOLERANCE_S = 1e-6  # rounding of sums of step durations
ENUMS: dict[str, tuple[str, ...]] = {
    "kind": EVENT_KINDS,
    "mode_asked": MODES,
    "mode_used": MODES,
    "status": STATUSES,
}
MOST: dict[str, int] = dict.fromkeys(  # of one request or one step; more is a damaged number
    (
        *(
            "prompt_tokens",
            "output_tokens",
            "duration_s",
            "stall_s",
            "preempted_s",
            "max_itl_s",
        ),
        # since the start of the run: seconds since 1970 are more
        *("t_start_s", "t_s", "arrival_s", "first_scheduled_s", "first_token_s", "finish_s"),
    ),
    10**9,
)
MOST_SEGMENT = 2**31  # tokens of one prefix segment
_IDS_AT_ONCE = 100_000  # are looked up, which takes some 60 bytes for each
_REWRITE = "Record the run again, or mend the tool that wrote this file."


@dataclass(frozen=True)
class Place:
    """Where a batch of rows comes from: part file, recording, table, rows before it in the part."""

    part: str
    label: str
    table: str
    row_offset: int = 0

    def error(
        self, column: str, row: int | None, fault: str, remedy: str = _REWRITE
    ) -> RecordingError:
        """A RecordingError at that column and row (0-based in the batch) of the part."""
        where = f"recording {self.label}, table {self.table}"
        if row is not None:
            where += f", row {self.row_offset + row + 1}"
        if column:
            where += f", column {column}"
        return RecordingError(self.part, where, fault, remedy)


def polars_type(column: Column) -> Any:
    """The polars type in which a column is handed out; text of a closed set as an Enum."""
    if column.name in ENUMS:
        return pl.Enum(ENUMS[column.name])
    return _PLAIN[column.type]


_PLAIN = {
    pa.int32(): pl.Int32,
    pa.int64(): pl.Int64,
    pa.float64(): pl.Float64,
    pa.string(): pl.String,
    pa.list_(pa.uint64()): pl.List(pl.UInt64),
    pa.list_(pa.int64()): pl.List(pl.Int64),
}


def _is_text(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return _is_text(type_.value_type)
    return (
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(expected):  # the name of the items differs between writers
        listed = pa.types.is_list(found) or pa.types.is_large_list(found)
        return listed and found.value_type == expected.value_type
    return found == expected or (_is_text(expected) and _is_text(found))


def later_columns(found: pa.Schema, spec: Table, version: str) -> list[Column]:
    """Columns that a part of an older version does not have, as they came later."""
    return [c for c in spec.columns if c.since > version and c.name not in found.names]


def fill_later(column: Column) -> pl.Expr:
    """What a column reads as in a recording that is older than it."""
    return pl.lit(None if column.nullable else 0, polars_type(column)).alias(column.name)


def check_columns(found: pa.Schema, spec: Table, place: Place, version: str) -> list[str]:
    """Names of columns that the contract does not know. Raises for missing ones and wrong types.

    version: the schema version of the part.
    """
    later = {c.name for c in later_columns(found, spec, version)}
    missing = [n for n in spec.names if n not in found.names and n not in later]
    if missing:
        raise place.error(
            missing[0],
            None,
            f"the column is missing; found {', '.join(found.names) or 'none'}",
            f"This table needs {', '.join(spec.names)}. {_REWRITE}",
        )
    for column in spec.columns:
        if column.name in later:
            continue
        type_ = found.field(column.name).type
        if not _same_type(type_, column.type):
            raise place.error(
                column.name, None, f"the type is {type_} and should be {column.type}"
            )
    return [n for n in found.names if n not in spec.names]


def first_true(mask: pl.Series) -> int | None:
    """Index of the first true value, a null counting as false."""
    index = mask.fill_null(False).arg_max()
    return int(index) if index is not None and mask[index] else None


def check_values(frame: pl.DataFrame, spec: Table, place: Place) -> None:
    """Raise at the first null, unknown enum value, non-finite number or negative count or time."""
    for column in spec.columns:
        values = frame[column.name]
        if not column.nullable and values.null_count():
            raise place.error(column.name, first_true(values.is_null()), "the value is null")
        if column.name in ENUMS:
            text = values.cast(pl.String)
            row = first_true(~text.is_in(ENUMS[column.name]))
            if row is not None:
                raise place.error(
                    column.name,
                    row,
                    f"{text[row]!r} is not one of {', '.join(ENUMS[column.name])}",
                )
        elif values.dtype.is_float():
            row = first_true(~values.is_finite())
            if row is not None:
                raise place.error(column.name, row, f"{values[row]!r} is not a finite number")
        if values.dtype.is_numeric() and column.name != "priority":
            row = first_true(values < 0)
            if row is not None:
                raise place.error(column.name, row, f"{values[row]!r} is less than 0")
        if values.dtype == pl.List(pl.Int64):
            row = first_true((values.list.min() < 0) | (values.list.max() > MOST_SEGMENT))
            if row is not None:
                raise place.error(
                    column.name,
                    row,
                    f"a segment of {values[row].min()} to {values[row].max()} tokens cannot be",
                )
        most = MOST.get(column.name)
        row = first_true(values > most) if most is not None else None
        if row is not None:
            raise place.error(
                column.name, row, f"{values[row]!r} is more than {most:,} {column.unit}"
            )


@dataclass
class StepLaws:
    """Laws of `steps` over all batches; remembers the last row seen. pool: blocks, None if unknown."""

    pool: int | None
    last_step: int | None = None
    last_start_s: float = 0.0

    def check(self, frame: pl.DataFrame, place: Place) -> None:
        """Raise RecordingError at the first row that breaks a law."""
        if frame.is_empty():
            return
        step, start = frame["step"], frame["t_start_s"]
        before_step = step.shift(1, fill_value=-1 if self.last_step is None else self.last_step)
        before_s = start.shift(1, fill_value=self.last_start_s)
        row = first_true(step <= before_step)
        if row is not None:
            raise place.error(
                "step",
                row,
                f"step {step[row]} follows step {before_step[row]}: steps must increase",
            )
        row = first_true(start < before_s)
        if row is not None:
            raise place.error(
                "t_start_s",
                row,
                f"step {step[row]} starts at {start[row]!r} s, before {before_s[row]!r} s: the clock went back",
            )
        self._check_blocks(frame, place)
        self.last_step, self.last_start_s = int(step[-1]), float(start[-1])

    def join(self, first: pl.DataFrame, following: StepLaws, place: Place) -> None:
        """Go on with what was found of the following rows, which begin with `first` (one row). Raises
        RecordingError where that row does not follow the last one."""
        self.check(first, place)
        self.last_step, self.last_start_s = following.last_step, following.last_start_s

    def _check_blocks(self, frame: pl.DataFrame, place: Place) -> None:
        used, free = frame["used_blocks"], frame["free_blocks"]
        if self.pool is None:
            self.pool = int(used[0]) + int(free[0])
        row = first_true(used + free != self.pool)
        if row is not None:
            raise place.error(
                "used_blocks",
                row,
                f"at step {frame['step'][row]}, {used[row]} used + {free[row]} free = {used[row] + free[row]} blocks, but the pool has {self.pool}",
            )
        for part, whole in (
            ("cached_free_blocks", "free_blocks"),
            ("fenced_blocks", "used_blocks"),
        ):
            row = first_true(frame[part] > frame[whole])
            if row is not None:
                raise place.error(
                    part,
                    row,
                    f"at step {frame['step'][row]}, {part} is {frame[part][row]} and {whole} only {frame[whole][row]}",
                )


@dataclass
class EventLaws:
    """Laws of `events` over all batches. seen: request ids, gathered batch by batch."""

    last_step: int = 0
    seen: list[pl.Series] = field(default_factory=list)

    def check(self, frame: pl.DataFrame, place: Place) -> None:
        """Raise RecordingError at the first row that breaks a law."""
        if frame.is_empty():
            return
        step = frame["step"]
        before = step.shift(1, fill_value=self.last_step)
        row = first_true(step < before)
        if row is not None:
            raise place.error(
                "step",
                row,
                f"step {step[row]} follows step {before[row]}: steps of events must not decrease",
            )
        preempt = frame["kind"].cast(pl.String) == "preempt"
        row = first_true(preempt & frame["mode_used"].is_null())
        if row is not None:
            raise place.error("mode_used", row, "a preemption must say which mode was used")
        row = first_true(frame["mode_used"].cast(pl.String) == "cheapest")
        if row is not None:
            raise place.error(
                "mode_used", row, "'cheapest' is a way to choose, not a mode that was used"
            )
        self.last_step = int(step[-1])
        self.seen.append(frame["request_id"].unique())

    def join(self, first: pl.DataFrame, following: EventLaws, place: Place) -> None:
        """As `StepLaws.join`."""
        self.check(first, place)
        self.last_step = following.last_step
        self.seen += following.seen

    def check_known(self, request_ids: pl.Series, place: Place) -> None:
        """Raise where an event names a request that the requests table does not hold."""
        unknown = self._unknown(request_ids)
        if len(unknown):
            shown = ", ".join(repr(v) for v in unknown.sort().head(3).to_list())
            raise place.error(
                "request_id",
                None,
                f"events name {len(unknown):,} requests that the requests table does not hold, such as {shown}",
            )

    def count_unknown(self, request_ids: pl.Series) -> int:
        """Requests that events name and the requests table does not hold."""
        return len(self._unknown(request_ids))

    def _unknown(self, request_ids: pl.Series) -> pl.Series:
        if not self.seen:
            return pl.Series("request_id", [], dtype=pl.String)
        named = pl.concat(self.seen)
        parts = _num_parts(named)  # equal ids have equal hashes
        of_named, of_ids = (_part_of(ids, parts) for ids in (named, request_ids))
        unknown = []
        for part in range(parts):
            some, ids = named.filter(of_named == part), request_ids.filter(of_ids == part)
            unknown.append(some.filter(~some.is_in(ids.implode())).unique())
        return pl.concat(unknown)


@dataclass
class RequestLaws:
    """Laws of `requests` over all batches. ids: gathered batch by batch."""

    ids: list[pl.Series] = field(default_factory=list)

    def check(self, frame: pl.DataFrame, place: Place) -> None:
        """Raise RecordingError at the first row that breaks a law."""
        for earlier, later in later_pairs():
            row = first_true(frame[later] < frame[earlier] - TIME_TOLERANCE_S)
            if row is not None:
                raise place.error(
                    later,
                    row,
                    f"{later} is {frame[later][row]!r} s, before {earlier} at {frame[earlier][row]!r} s",
                )
        done = frame["status"].cast(pl.String) == "finished"
        row = first_true(
            done & (frame["finish_s"].is_null() | frame["first_token_s"].is_null())
        )
        if row is not None:
            raise place.error(
                "finish_s", row, "the request finished but lacks finish_s or first_token_s"
            )
        self.ids.append(frame["request_id"])

    def join(self, first: pl.DataFrame, following: RequestLaws, place: Place) -> None:
        """As `StepLaws.join`."""
        self.ids += following.ids

    def check_unique(self, place: Place) -> pl.Series:
        """All request ids. Raises where one occurs twice."""
        ids = pl.concat(self.ids) if self.ids else pl.Series("request_id", [], dtype=pl.String)
        ids = ids.cast(pl.String)
        if not _all_distinct(ids):
            row = first_true(~ids.is_first_distinct())
            assert row is not None
            raise place.error("request_id", None, f"the id {ids[row]!r} occurs more than once")
        return ids


def _num_parts(ids: pl.Series) -> int:
    return min(1 + len(ids) // _IDS_AT_ONCE, 2**16)


def _part_of(ids: pl.Series, parts: int) -> pl.Series:
    return (ids.hash() % parts).cast(pl.UInt16)


def _all_distinct(ids: pl.Series) -> bool:
    parts = _num_parts(ids)
    of_ids = _part_of(ids, parts)
    some = (ids.filter(of_ids == part) for part in range(parts))
    return all(of_part.n_unique() == len(of_part) for of_part in some)


_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")


def later_pairs() -> Iterator[tuple[str, str]]:
    """Times of a request of which the second must not come before the first."""
    for i, earlier in enumerate(_TIMES):
        for later in _TIMES[i + 1 :]:
            yield earlier, later
