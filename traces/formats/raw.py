"""What a reader hands over, before failed requests are set aside, and what follows from it.

Knows the raw rows of a trace, why a row cannot be replayed, the figures of the file as it lies
there, and how it becomes a Workload. Knows no file format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from traces.formats import times
from traces.formats.cells import id_number, shown, whole_numbers
from traces.formats.source import Source
from traces.formats.tabular import Loaded

MAX_PREFIX_BLOCK_TOKENS = 10_000_000  # a longer block is a damaged number, not a block


@dataclass(frozen=True)
class ReadOptions:
    """What a caller may say about a file. mapping: role -> column; time_unit: s, ms, us or ns;
    stagger_s: distance between the starts of sessions that have no absolute time."""

    mapping: Mapping[str, str] | None = None
    time_unit: str | None = None
    stagger_s: float = 20.0


@dataclass(frozen=True)
class Format:
    """One trace format: cheap test on the head of a file, and its reader."""

    name: str
    title: str
    sniff: Callable[[Source], bool]
    read: Callable[[Source, ReadOptions], RawTrace]


@dataclass(frozen=True)
class RawTrace:
    """Rows as the file has them, in file order.

    frame: arrival_s (relative to origin_s), prompt_tokens, output_tokens, and any WORKLOAD_ROLES;
    `aside` (text or null): why a row cannot be replayed; `nested` (bool): a request inside another
    (a subagent's), replayed but not counted in the file's own figures. details: further figures; epoch_s: for dates,
    origin_s in seconds since 1970.
    """

    format: str
    frame: pl.DataFrame
    origin_s: float = 0.0
    time_unit: str = "s"
    prefix_block_tokens: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    estimated: bool = False
    epoch_s: float | None = None

    def with_frame(self, frame: pl.DataFrame) -> RawTrace:
        return replace(self, frame=frame)

    def with_notes(self, *notes: str) -> RawTrace:
        return replace(self, notes=(*self.notes, *(n for n in notes if n)))


class Rows:
    """Collects records of nested formats one by one, then makes a RawTrace of them.

    Arrivals are numbers in `unit` (integers stay exact) or texts of dates.
    """

    def __init__(self, source: Source, format_name: str, unit: str) -> None:
        self.source, self.format, self.unit = source, format_name, unit
        self.columns: dict[str, list[Any]] = {}
        self.count = 0

    def add(self, place: str, arrival: Any, prompt: Any, output: Any, **extra: Any) -> None:
        """One request. Raises WorkloadError where a count or time is no number."""
        values = {
            "arrival_s": self._time(place, arrival),
            "prompt_tokens": self._number(place, "a number of prompt tokens", prompt),
            "output_tokens": self._number(place, "a number of output tokens", output),
            **extra,
        }
        for role, value in values.items():
            self.columns.setdefault(role, [None] * self.count).append(value)
        self.count += 1
        for cells in self.columns.values():
            if len(cells) < self.count:
                cells.append(None)

    def _number(self, place: str, what: str, value: Any) -> float | int | None:
        if value is None or value == "":
            return None
        if isinstance(value, float) or (type(value) is int and abs(value) < 2**1000):
            return value  # a longer integer is no float, and no count or time either
        for read in (int, float) if isinstance(value, str) else ():
            try:
                return read(value)
            except ValueError:
                continue
        raise self.source.error(
            place, f"{shown(value)} is not {what}", "Correct or remove the record."
        )

    def finite(self, place: str, what: str, value: Any) -> float:
        """A number to reckon with, 0 where there is none. Raises WorkloadError for inf and text."""
        number = self._number(place, what, value) or 0
        if not np.isfinite(float(number)):
            raise self.source.error(
                place, f"{shown(value)} is not {what}", "Correct or remove the record."
            )
        return float(number)

    def _time(self, place: str, value: Any) -> Any:
        if value is None or value == "":
            return None
        if self.unit == times.TEXT_UNIT:
            return str(value)
        number = self._number(place, "a time", value)
        if isinstance(number, float) and np.isnan(number):
            return None
        if number is not None and not abs(number) < 2**63:
            raise self.source.error(
                place, f"{shown(number)} is not a time", "Correct or remove the record."
            )
        return number

    def trace(self, **about: Any) -> RawTrace:
        """The RawTrace. Raises WorkloadError when there is no record."""
        if not self.count:
            raise self.source.error(
                "", "it holds no request", "Check the export and its filters."
            )
        frame: dict[str, pl.Series] = {}
        for role, cells in self.columns.items():
            if role in ("prompt_tokens", "output_tokens"):
                whole = all(v is None or isinstance(v, int) for v in cells)
                if whole and any(v is not None and abs(v) >= 2**62 for v in cells):
                    cells = [None if v is None else float(v) for v in cells]
                    whole = False
                typed = pl.Series(role, cells, dtype=pl.Int64 if whole else pl.Float64)
                frame[role] = whole_numbers(self.source, typed, role)
            elif role == "arrival_s":
                frame[role], origin, epoch = self._arrivals(cells)
            elif role in ("prefix_ids", "prefix_tokens"):
                inner = pl.UInt64 if role == "prefix_ids" else pl.UInt32
                frame[role] = pl.Series(role, [c or [] for c in cells], dtype=pl.List(inner))
            elif role == "nested":
                frame[role] = pl.Series(role, [bool(c) for c in cells])
            elif role in ("priority", "arrival_step", "abort_step"):
                frame[role] = pl.Series(role, cells, dtype=pl.Int64)
            else:
                frame[role] = pl.Series(
                    role, [None if c is None else str(c) for c in cells], dtype=pl.String
                )
        return RawTrace(
            self.format, pl.DataFrame(frame), origin, self.unit, epoch_s=epoch, **about
        )

    def _arrivals(self, cells: list[Any]) -> tuple[pl.Series, float, float | None]:
        if self.unit != times.TEXT_UNIT:
            whole = all(v is None or isinstance(v, int) for v in cells)
            numbers = pl.Series(cells, dtype=pl.Int64 if whole else pl.Float64, strict=False)
            rel, origin = times.relative_numbers(numbers, self.unit)
            return pl.Series("arrival_s", rel).fill_nan(None), origin, None
        text = pl.Series("t", cells, dtype=pl.String)
        ns = text.to_frame().select(times.text_to_ns(pl.col("t"), times.TEXT_FORMATS))["t"]
        bad = (ns.is_null() & text.is_not_null()).arg_true()
        if len(bad):
            row = int(bad[0])
            raise self.source.error(
                f"record {row + 1}",
                f"{text[row][:60]!r} is not a date and time",
                "Correct or remove the record.",
            )
        known = text.drop_nulls()
        rel, epoch = times.relative_ns(ns)
        origin = times.as_written(epoch, len(known) > 0 and times.zoned(known[0]))
        return pl.Series("arrival_s", rel).fill_nan(None), origin, epoch


def raw_from_table(source: Source, format_name: str, loaded: Loaded, **about: Any) -> RawTrace:
    """A RawTrace of columns that `tabular.load` read."""
    plan = loaded.plan
    unit = plan.unit if plan else "s"
    return RawTrace(
        format_name, loaded.frame, loaded.origin_s, unit, epoch_s=loaded.epoch_s, **about
    )


def mix_ids(ids: Sequence[int], scope: str) -> list[int]:
    """Ids that are unique only within `scope`, as ids that are unique everywhere (64 bits)."""
    seed = int.from_bytes(hashlib.blake2b(scope.encode(), digest_size=8).digest(), "little")
    try:
        own = np.asarray(ids, dtype=np.uint64)
    except (OverflowError, ValueError, TypeError):  # negative, longer than 64 bits, or text
        own = np.asarray([id_number(v) for v in ids], dtype=np.uint64)
    x = own + np.uint64(seed)
    # splitmix64's finaliser: a bijection, so two ids of one scope never meet.
    # Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).tolist()
