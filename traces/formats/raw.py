"""What a reader hands over, before failed requests are set aside, and what follows from it.

Knows the raw rows of a trace, why a row cannot be replayed, the figures of the file as it lies
there, and how it becomes a Workload. Knows no file format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import polars as pl

from traces.errors import WorkloadError
from traces.formats import times
from traces.formats.source import Source
from traces.formats.tabular import Loaded, whole_numbers
from traces.workload import MAX_TOKENS, ReadReport, Workload, make_workload, token_summary

NO_TIME = "no arrival time"
NO_COUNTS = "no token counts"
ZERO_OUTPUT = "zero output tokens"
EMPTY_PROMPT = "empty prompt"
MAX_PREFIX_IDS = (
    20_000_000  # above, the figures of sharing would cost more than reading the file
)
MAX_SPAN_S = 3.2e9  # a century
UNKNOWN = -1  # how several logs write "not reported"

WORKLOAD_ROLES = (
    "request_id",
    "prompt_tokens",
    "output_tokens",
    "priority",
    "prefix_ids",
    "prefix_tokens",
    "session_id",
    "arrival_step",
    "abort_step",
    "abort_s",
)


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
    (a subagent's), replayed but not counted in the file's own figures. details: further figures.
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
            "prompt_tokens": self._number(place, "prompt tokens", prompt),
            "output_tokens": self._number(place, "output tokens", output),
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
        if isinstance(value, bool) or not isinstance(value, int | float):
            try:
                return int(value)
            except (TypeError, ValueError):
                pass
            try:
                return float(value)
            except (TypeError, ValueError):
                raise self.source.error(
                    place,
                    f"{str(value)[:60]!r} is not a number of {what}",
                    "Correct or remove the record.",
                ) from None
        return value

    def _time(self, place: str, value: Any) -> Any:
        if value is None or value == "":
            return None
        if self.unit == times.TEXT_UNIT:
            return str(value)
        number = self._number(place, "a time", value)
        if isinstance(number, float) and not np.isfinite(number):
            raise self.source.error(
                place, f"{number} is not a time", "Correct or remove the record."
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
                frame[role], origin = self._arrivals(cells)
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
        return RawTrace(self.format, pl.DataFrame(frame), origin, self.unit, **about)

    def _arrivals(self, cells: list[Any]) -> tuple[pl.Series, float]:
        if self.unit != times.TEXT_UNIT:
            whole = all(v is None or isinstance(v, int) for v in cells)
            numbers = pl.Series(cells, dtype=pl.Int64 if whole else pl.Float64, strict=False)
            rel, origin = times.relative_numbers(numbers, self.unit)
            return pl.Series("arrival_s", rel).fill_nan(None), origin
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
        rel, origin = times.relative_ns(ns, len(known) > 0 and times.zoned(known[0]))
        return pl.Series("arrival_s", rel).fill_nan(None), origin


def raw_from_table(source: Source, format_name: str, loaded: Loaded, **about: Any) -> RawTrace:
    """A RawTrace of columns that `tabular.load` read."""
    plan = loaded.plan
    unit = plan.unit if plan else "s"
    return RawTrace(format_name, loaded.frame, loaded.origin_s, unit, **about)


def aside_reasons(source_name: str, raw: RawTrace) -> pl.Series:
    """For each row the reason why it cannot be replayed, or null. Raises for absurd counts."""
    frame = raw.frame
    for role, what in (("prompt_tokens", "prompt"), ("output_tokens", "output")):
        _refuse_absurd(source_name, frame[role], role, what)
    _refuse_absurd_span(source_name, frame["arrival_s"])
    said = pl.col("aside") if "aside" in frame.columns else pl.lit(None, dtype=pl.String)
    prompt, output = pl.col("prompt_tokens"), pl.col("output_tokens")
    unknown = prompt.is_null() | output.is_null() | (prompt == UNKNOWN) | (output == UNKNOWN)
    reason = (
        pl.when(said.is_not_null())
        .then(said)
        .when(unknown)
        .then(pl.lit(NO_COUNTS))
        .when(pl.col("arrival_s").is_null())
        .then(pl.lit(NO_TIME))
        .when(output == 0)
        .then(pl.lit(ZERO_OUTPUT))
        .when(prompt == 0)
        .then(pl.lit(EMPTY_PROMPT))
        .otherwise(pl.lit(None, dtype=pl.String))
    )
    return frame.select(reason.alias("aside"))["aside"]


def _refuse_absurd(name: str, column: pl.Series, role: str, what: str) -> None:
    for bad, fault in (
        (column < UNKNOWN, f"a negative number of {what} tokens"),
        (column > MAX_TOKENS, f"more than {MAX_TOKENS:,} {what} tokens in one request"),
    ):
        rows = bad.fill_null(False).arg_true()
        if len(rows):
            row = int(rows[0])
            raise WorkloadError(
                name,
                f"row {row + 1}, {role}",
                f"{column[row]:,} is {fault}",
                "Check which column holds the count and its unit, or correct the row.",
            )


def _refuse_absurd_span(name: str, arrivals: pl.Series) -> None:
    far = (arrivals.abs() > MAX_SPAN_S).fill_null(False).arg_true()
    if len(far):
        row = int(far[0])
        raise WorkloadError(
            name,
            f"row {row + 1}, arrival_s",
            f"it is {arrivals[row] / 31_557_600:,.0f} years from the first row",
            "Check the unit of the times (--time-unit), or correct the row.",
        )


def counted(raw: RawTrace) -> pl.DataFrame:
    """The rows that the file's own figures are of: with both counts, not nested in another."""
    keep = pl.col("prompt_tokens").is_not_null() & pl.col("output_tokens").is_not_null()
    keep &= (pl.col("prompt_tokens") >= 0) & (pl.col("output_tokens") >= 0)
    if "nested" in raw.frame.columns:
        keep &= ~pl.col("nested")
    roles = [
        c
        for c in ("arrival_s", "prompt_tokens", "output_tokens", "prefix_ids", "prefix_tokens")
        if c in raw.frame.columns
    ]
    return raw.frame.filter(keep).select(roles)


@dataclass(frozen=True)
class Figures:
    """What a file holds before anything is set aside: the figures of `describe`."""

    requests: int
    first_s: float | None
    span_s: float | None
    out_of_order: int
    duplicate_timestamps: int
    prompt_tokens: Mapping[str, float]
    output_tokens: Mapping[str, float]
    zero_output: int


def figures(raw: RawTrace) -> Figures:
    """Figures over the rows that have both token counts, in file order."""
    rows = counted(raw)
    t = (
        rows["arrival_s"].drop_nulls().to_numpy()
        if "arrival_s" in rows.columns
        else np.empty(0)
    )
    prompt, output = rows["prompt_tokens"].to_numpy(), rows["output_tokens"].to_numpy()
    return Figures(
        requests=rows.height,
        first_s=float(raw.origin_s + t[0]) if len(t) else None,
        span_s=float(t.max() - t.min()) if len(t) else None,
        out_of_order=int((np.diff(t) < 0).sum()),
        duplicate_timestamps=len(t) - int(pl.Series(t).n_unique()) if len(t) else 0,
        prompt_tokens=token_summary(prompt),
        output_tokens=token_summary(output),
        zero_output=int((output == 0).sum()),
    )


def dropped(reasons: pl.Series) -> dict[str, int]:
    """Reason -> rows set aside, most frequent first."""
    counts = reasons.drop_nulls().value_counts(sort=True)
    return {str(r): int(n) for r, n in counts.iter_rows()}


def nothing_left(records: int, reasons: Mapping[str, int]) -> tuple[str, str]:
    """(fault, remedy) for a trace of which nothing can be replayed."""
    said = ", ".join(f"{n:,} {r}" for r, n in reasons.items())
    fault = f"none of its {records:,} records can be replayed ({said})"
    return fault, "Give a trace with requests that produced output."


def to_workload(
    raw: RawTrace, name: str, window_s: tuple[float, float | None] | None = None
) -> Workload:
    """The Workload of the rows that can be replayed. Raises WorkloadError when none is left.

    window_s: only arrivals in [start, end) seconds after the first, so that a part of a very large
    trace costs only its own memory.
    """
    reasons = aside_reasons(name, raw)
    seen = figures(raw)
    keep = reasons.is_null()
    if not keep.any():
        raise WorkloadError(name, "", *nothing_left(raw.frame.height, dropped(reasons)))
    rows = raw.frame.filter(keep)
    if window_s is not None:
        rows = _windowed(rows, name, window_s)
    if "request_id" in rows.columns:
        rows, note = _unique_ids(rows)
        raw = raw.with_notes(note)
    report = ReadReport(
        format=raw.format,
        rows_read=raw.frame.height,
        dropped=dropped(reasons),
        out_of_order=seen.out_of_order,
        duplicate_timestamps=seen.duplicate_timestamps,
        first_s=seen.first_s,
        time_unit=raw.time_unit,
        columns=raw.columns,
        notes=(*raw.notes, *_order_note(seen)),
    )
    columns = {r: rows[r] for r in ("arrival_s", *WORKLOAD_ROLES) if r in rows.columns}
    return make_workload(
        columns,
        name=name,
        report=report,
        prefix_block_tokens=raw.prefix_block_tokens,
        estimated=raw.estimated,
    )


def _windowed(
    rows: pl.DataFrame, name: str, window_s: tuple[float, float | None]
) -> pl.DataFrame:
    start, end = window_s
    since = pl.col("arrival_s") - pl.col("arrival_s").min()
    keep = since >= start if end is None else (since >= start) & (since < end)
    cut = rows.filter(keep)
    if cut.is_empty():
        span = float(np.ptp(rows["arrival_s"].to_numpy()))
        until = "the end" if end is None else f"{end:g} s"
        raise WorkloadError(
            name,
            "",
            f"no request arrives between {start:g} s and {until}",
            f"The trace spans 0 to {span:g} s: choose a window inside it.",
        )
    return cut


def _order_note(seen: Figures) -> Iterable[str]:
    if seen.out_of_order:
        yield f"{seen.out_of_order:,} rows stood before an earlier arrival: sorted by arrival, ties kept in file order."


def _unique_ids(rows: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Ids made unique (missing ones numbered, repeated ones given a suffix), and a note if so."""
    ids = rows["request_id"].cast(pl.String)
    if ids.null_count() == 0 and ids.n_unique() == len(ids):
        return rows, ""
    number = pl.int_range(pl.len()).cast(pl.String)
    filled = pl.coalesce(pl.col("request_id").cast(pl.String), pl.lit("row-") + number)
    rows = rows.with_columns(filled.alias("request_id"))
    repeat = pl.int_range(pl.len()).over("request_id")
    fresh = (
        pl.when(repeat == 0)
        .then("request_id")
        .otherwise(pl.col("request_id") + pl.lit("#") + (repeat + 1).cast(pl.String))
    )
    rows = rows.with_columns(fresh.alias("request_id"))
    if rows["request_id"].n_unique() < rows.height:
        rows = rows.with_columns(
            (pl.col("request_id") + pl.lit("@") + number).alias("request_id")
        )
    return rows, "Request ids were missing or repeated: they were made unique with a suffix."


def mix_ids(ids: Sequence[int], scope: str) -> list[int]:
    """Ids that are unique only within `scope`, as ids that are unique everywhere (64 bits)."""
    seed = int.from_bytes(hashlib.blake2b(scope.encode(), digest_size=8).digest(), "little")
    x = np.asarray(ids, dtype=np.uint64) + np.uint64(seed)
    # splitmix64's finaliser: a bijection, so two ids of one scope never meet.
    # Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).tolist()


def prefix_figures(raw: RawTrace) -> dict[str, float] | None:
    """Prefix sharing of the counted rows: blocks, distinct ones, and the share of prompt tokens
    that an endless cache would have held. None where there are no prefix ids, or too many of them.

    Ids of fixed blocks name everything up to their end; ids of segments are chained here.
    """
    if "prefix_ids" not in raw.frame.columns:
        return None
    rows = counted(raw)
    ids = rows["prefix_ids"].fill_null([]).to_list()
    if not any(ids) or sum(map(len, ids)) > MAX_PREFIX_IDS:
        return None
    lengths = rows["prefix_tokens"].to_list() if "prefix_tokens" in rows.columns else None
    block = raw.prefix_block_tokens
    if block is None and lengths is None:
        return None
    seen: set[int] = set()
    hit = total = 0
    for row, (chain, prompt) in enumerate(
        zip(ids, rows["prompt_tokens"].to_list(), strict=True)
    ):
        linked = chain if block else list(accumulate(chain, lambda a, b: hash((a, b))))
        n = next((i for i, h in enumerate(linked) if h not in seen), len(linked))
        covered = n * block if block else sum(lengths[row][:n])  # type: ignore[index]
        hit += min(covered, prompt)
        total += prompt
        seen.update(linked)
    out = {"hash_blocks": sum(map(len, ids)), "distinct_blocks": len(seen)}
    return {
        "block_size": block or 0,
        **out,
        "ideal_prefix_hit_token_ratio": hit / total if total else 0.0,
    }
