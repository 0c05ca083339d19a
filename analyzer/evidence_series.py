"""Samples of evidence as panels of curves on one axis, with silences and the moments that proofs speak of.

It knows which columns belong into one panel, how samples are thinned, where a curve is broken, and which
sample a line belongs to. A gap stays a gap. It draws nothing and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import polars as pl

from analyzer.diagnosis.findings import Diagnosis
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.series import Array, Series, counter_growth
from analyzer.diagnosis.stillness import usual_period
from analyzer.downsample import downsample
from traces.evidence.evidence import NOTICES, Evidence, Line
from traces.evidence.times import EPOCH, parse_stamp

POINTS = 1_500  # of a curve
MAX_TICKS = 600  # of reported events of one kind
MAX_RANKS = 6  # that are drawn unless others are chosen
MARKS_OF_A_PROOF = 6
BREAK_PERIODS = 3.0
SKIP_FRAC = 0.7  # of the axis
AxisKind = Literal["clock", "seconds", "order"]
_DAYS_BEFORE_1970_S = (EPOCH - EPOCH.replace(year=1970)).total_seconds()
EVENTS = (
    "preemption", "retract", "swap_out", "swap_in", "resume", "request_aborted", "request_refused",
    "out_of_blocks", "out_of_host_blocks", "cannot_store", "out_of_memory", "fault", "fatal", "killed",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Curve:
    """x, y: (n,), NaN in y where the curve is broken; of the shown part, where one is shown. rank: None
    for all or unknown; second: beside the panel's main value (host pool, swapped); derived: some values
    were derived; whole_top: the greatest value of the whole axis, None for that of y."""

    label: str
    x: Array
    y: Array
    rank: int | None = None
    second: bool = False
    derived: bool = False
    whole_top: float | None = None

    @property
    def top(self) -> float:
        """The greatest value, also of what is not shown: a zoom leaves the height as it is."""
        return float(np.nanmax(self.y)) if self.whole_top is None else self.whole_top


@dataclass(frozen=True, eq=False)
class Panel:
    """One row of the picture. limit: a line with its label; ticks: kind of event -> x, in the row of events."""

    key: str
    title: str
    unit: str
    curves: Sequence[Curve] = ()
    y_max: float | None = None
    limit: tuple[float, str] | None = None
    note: str = ""
    ticks: Mapping[str, Array] | None = None


@dataclass(frozen=True)
class Moment:
    """A place that something speaks of. number: of the proof, None for the wall and the like."""

    x: float
    label: str
    number: int | None = None


@dataclass(frozen=True, eq=False)
class Drawing:
    """range: the whole axis; part: what is shown of it, None for all; kind: what x counts; base_s: seconds from EPOCH of x = 0 on a clock; has_date: the clock has one;
    silences: (from, to); skips: stretches between sources in which there is nothing at all, left out of the axis; ranks: all there are; shown: those that are drawn; absent: panels that the evidence has nothing of; notes."""

    kind: AxisKind
    base_s: float
    has_date: bool
    range: tuple[float, float]
    panels: Sequence[Panel]
    moments: Sequence[Moment]
    silences: Sequence[tuple[float, float]]
    skips: Sequence[tuple[float, float]]
    ranks: Sequence[int]
    shown: Sequence[int]
    absent: Sequence[str]
    notes: Sequence[str]
    part: tuple[float, float] | None = None

    @property
    def view(self) -> tuple[float, float]:
        """The ends of what is shown."""
        return self.part or self.range


_Values = Callable[[Series], Array]


@dataclass(frozen=True)
class _Spec:
    key: str
    title: str
    unit: str
    column: str
    values: _Values
    second: tuple[str, str, _Values] | None = None  # column, label, values


def _counter(series: Series) -> Array:
    """Preemptions since the first sample: of the counter, resets joined, else of reported numbers."""
    total = series.col("preemptions_total")
    if np.isfinite(total).any():
        known = np.isfinite(total)
        steps = np.diff(total[known], prepend=total[known][0])
        found = np.full(total.shape, np.nan)
        found[known] = np.cumsum(np.where(steps >= 0, steps, total[known]))
        return found
    each = series.col("num_preempted")
    return (
        np.where(np.isfinite(each), np.cumsum(np.nan_to_num(each)), np.nan)
        if np.nansum(each)
        else np.full(each.shape, np.nan)
    )


_SPECS = (
    _Spec(
        "usage",
        "KV pool in use",
        "%",
        "kv_usage_frac",
        lambda s: 100 * s.usage,
        ("host_usage_frac", "host pool", lambda s: 100 * s.col("host_usage_frac")),
    ),
    _Spec("running", "Running", "requests", "num_running", lambda s: s.running),
    _Spec(
        "waiting",
        "Waiting",
        "requests",
        "num_waiting",
        lambda s: s.waiting,
        ("num_swapped", "swapped", lambda s: s.swapped),
    ),
    _Spec(
        "preemptions", "Preemptions since the first sample", "", "preemptions_total", _counter
    ),
    _Spec(
        "generation",
        "Output tokens",
        "tokens/s",
        "generation_tokens_per_s",
        lambda s: s.generation,
    ),
    _Spec("prompt", "Prompt tokens", "tokens/s", "prompt_tokens_per_s", lambda s: s.prompt),
)


def draw_series(
    q: Quantities,
    found: Diagnosis,
    ranks: Sequence[int] | None = None,
    part: tuple[float, float] | None = None,
) -> Drawing | None:
    """What to draw of these samples; None where there are none. ranks: those to draw, None: the fullest;
    part: of the axis, drawn with its own detail, None for all."""
    if q.main is None:
        return None
    kind = _axis_kind(q)
    numbered = [s for s in q.ranks if s.rank is not None]
    all_ranks = [int(s.rank or 0) for s in numbered]
    shown = _chosen(numbered, ranks)
    series = [s for s in q.ranks if s.rank is None or s.rank in shown]
    lines = [part for s in series for part in _told_apart(s, kind)]
    panels = [p for p in (_panel(spec, lines, kind, q) for spec in _SPECS) if p is not None]
    events = _events(q.evidence) if kind != "order" else None
    whole = [*panels, *([events] if events is not None else [])]
    specs = [s for s in _SPECS if any(s.key == p.key for p in panels)]
    absent = [s.title.lower() for s in _SPECS if s not in specs]
    silences = [(g.from_s, g.to_s) for g in q.gaps] if kind != "order" else []
    moments = _moments(q, found, series, kind)
    stamp = parse_stamp(q.evidence.first_time) if q.evidence.first_time else None
    ends, skips = extent(whole, silences, moments)
    part = within(part, ends)
    if part is not None:
        panels = [
            _panel(s, lines, kind, q, part) or p for s, p in zip(specs, panels, strict=True)
        ]
        events = _events(q.evidence, part) if events is not None else None
    if kind != "clock":
        skips = []
    notes = _notes(q, series, kind)
    for start, end in skips:
        notes.append(
            f"{show_span(end - start)} in which there is nothing are left out (double line)."
        )
    if events is not None:
        panels.append(events)
    return Drawing(
        kind,
        stamp.seconds if stamp is not None else 0.0,
        stamp is not None and stamp.form != "time",
        ends,
        panels,
        moments,
        silences,
        skips,
        all_ranks,
        shown,
        absent,
        notes,
        part,
    )


def within(
    part: tuple[float, float] | None, ends: tuple[float, float]
) -> tuple[float, float] | None:
    """The part as far as the axis has it; None for all of it, and where nothing would be left."""
    if part is None:
        return None
    slack = 1e-3 * (ends[1] - ends[0])
    low, high = max(part[0], ends[0]), min(part[1], ends[1])
    is_all = low <= ends[0] + slack and high >= ends[1] - slack
    return None if is_all or not low < high else (low, high)


def from_clock_ms(drawing: Drawing, ms: float) -> float:
    """x of a place on a clock's axis; `clock_ms` the other way round."""
    return ms / 1e3 - drawing.base_s - _DAYS_BEFORE_1970_S


def clock_ms(drawing: Drawing, x: Array) -> Array:
    """x of a clock as milliseconds since 1970, as a picture's date axis takes it."""
    return (np.asarray(x, dtype=np.float64) + drawing.base_s + _DAYS_BEFORE_1970_S) * 1e3


def table_of(drawing: Drawing, evidence: Evidence) -> pl.DataFrame:
    """The drawn points, one row a place, for "Show data"."""
    columns: list[pl.DataFrame] = []
    for panel in drawing.panels:
        for curve in panel.curves:
            name = " · ".join(filter(None, (panel.title, curve.label)))
            frame = pl.DataFrame(
                {"x": curve.x, f"{name} ({panel.unit})" if panel.unit else name: curve.y}
            )
            columns.append(frame.filter(pl.col("x").is_not_nan()).unique("x", keep="last"))
    if not columns:
        return pl.DataFrame()
    table = columns[0]
    for frame in columns[1:]:
        table = table.join(frame, on="x", how="full", coalesce=True)
    table = table.sort("x").fill_nan(None)
    if drawing.kind == "order":
        return table.rename({"x": "sample"})
    when = [evidence.clock(x) for x in table["x"]]
    return table.insert_column(0, pl.Series("time", when)).rename({"x": "seconds"})


# ---- the axis ---------------------------------------------------------------------------------


def _axis_kind(q: Quantities) -> AxisKind:
    timed = any(s.timed for s in q.ranks)
    if not timed:
        return "order"
    stamp = parse_stamp(q.evidence.first_time) if q.evidence.first_time else None
    return "clock" if stamp is not None else "seconds"


def _x(series: Series, kind: AxisKind) -> Array:
    return np.arange(len(series), dtype=np.float64) if kind == "order" else series.t_s


def extent(
    panels: Sequence[Panel], silences: Sequence[tuple[float, float]], moments: Sequence[Moment]
) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """Ends of the axis, and long stretches in which there is nothing, not even a silence that tells."""
    all_x = [c.x for p in panels for c in p.curves]
    all_x += [xs for p in panels if p.ticks for xs in p.ticks.values()]
    all_x += [np.array([*pair]) for pair in silences]
    all_x.append(np.array([m.x for m in moments], dtype=np.float64))
    x = np.unique(np.concatenate(all_x))
    x = x[np.isfinite(x)]
    if not len(x):
        return (0.0, 1.0), []
    whole = float(x[-1] - x[0])
    pad = 0.015 * whole or 0.5
    skips = []
    for i in np.flatnonzero(np.diff(x) > SKIP_FRAC * whole) if whole else ():
        start, end = float(x[i]), float(x[i + 1])
        if not any(a <= start and end <= b for a, b in silences):
            inner = 0.1 * (whole - (end - start)) or 0.01 * whole
            skips.append((start + inner, end - inner))
    if skips:
        pad = 0.02 * (whole - sum(b - a for a, b in skips))
    return (float(x[0]) - pad, float(x[-1]) + pad), skips


def show_span(length_s: float) -> str:
    """'5 h 3 min', '12 min', '40 s'."""
    if length_s < 120:
        return f"{length_s:,.0f} s"
    hours, minutes = divmod(round(length_s / 60), 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min"


def _chosen(numbered: Sequence[Series], ranks: Sequence[int] | None) -> list[int]:
    there = [int(s.rank or 0) for s in numbered]
    if ranks:
        kept = [r for r in there if r in ranks]
        if kept:
            return kept

    def weight(series: Series) -> float:
        usage = series.usage[np.isfinite(series.usage)]
        return float(usage.max()) if len(usage) else -1.0

    fullest = sorted(numbered, key=weight, reverse=True)[:MAX_RANKS]
    return sorted(int(s.rank or 0) for s in fullest)


# ---- curves -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    series: Series
    name: str


def _told_apart(series: Series, kind: AxisKind) -> list[_Part]:
    """The series, or one for each of its sources where their samples lie in each other's time."""
    rank = "" if series.rank is None else f"rank {series.rank}"
    sources = [s for s in series.frame["source"].unique(maintain_order=True).to_list() if s]
    parts = [
        Series(series.rank, series.frame.filter(pl.col("source") == s), series.texts)
        for s in sources
    ]
    if len(parts) < 2 or min(map(len, parts)) < 3 or len(parts) > MAX_RANKS:
        return [_Part(series, rank)]
    if kind != "order":
        spans = sorted((float(np.nanmin(p.t_s)), float(np.nanmax(p.t_s))) for p in parts)
        if all(a[1] <= b[0] for a, b in pairwise(spans)):
            return [_Part(series, rank)]
    return [
        _Part(p, f"{s} {rank}".strip()) for p, s in zip(parts, map(str, sources), strict=True)
    ]


def _panel(
    spec: _Spec,
    parts: Sequence[_Part],
    kind: AxisKind,
    q: Quantities,
    view: tuple[float, float] | None = None,
) -> Panel | None:
    curves: list[Curve] = []
    for part in parts:
        curve = _curve(part, spec.column, part.name, spec.values(part.series), kind, view)
        if curve is not None:
            curves.append(curve)
        if spec.second is None:
            continue
        column, label, values = spec.second
        extra = values(part.series)
        if np.nansum(extra) > 0:
            name = f"{label} {part.name}".strip()
            more = _curve(part, column, name, extra, kind, view, second=True)
            if more is not None:
                curves.append(more)
    if not curves:
        return None
    y_max, limit = _bounds(spec, curves, q)
    derived = " · derived" if any(c.derived for c in curves) else ""
    return Panel(spec.key, spec.title, spec.unit, curves, y_max, limit, derived)


def _bounds(
    spec: _Spec, curves: Sequence[Curve], q: Quantities
) -> tuple[float | None, tuple[float, str] | None]:
    top = max(c.top for c in curves)
    if spec.key == "usage":
        return max(104.0, top * 1.02), (100.0, "full")
    limit = q.number("max_num_seqs") if spec.key == "running" else None
    if limit is not None and top >= 0.4 * limit:
        return limit * 1.15, (limit, f"max_num_seqs {limit:,.0f}")
    return None, None


def _curve(
    part: _Part,
    column: str,
    label: str,
    values: Array,
    kind: AxisKind,
    view: tuple[float, float] | None = None,
    second: bool = False,
) -> Curve | None:
    """Known values alone, broken where time passed without any, thinned stretch by stretch. view: the
    part of the axis that is wanted, with the nearest value on either side; None for all."""
    x = _x(part.series, kind)
    good = np.isfinite(values) & np.isfinite(x)
    if not good.any():
        return None
    x, y = x[good], values[good].astype(np.float64)
    usual = usual_period(part.series) if kind != "order" else None
    gaps = np.diff(x)
    own = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
    period = max(usual or 0.0, own)
    cuts = (
        np.flatnonzero(gaps > max(BREAK_PERIODS * period, period + 2.0)) + 1
        if period and kind != "order"
        else np.empty(0, dtype=np.int64)
    )
    xs, ys = [], []
    pieces = list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))
    if view is not None:
        pieces = [p for p in (_cut(*piece, view) for piece in pieces) if p is not None]
    num = sum(len(piece) for piece, _ in pieces)
    for piece_x, piece_y in pieces[:POINTS]:
        points = max(8, int(POINTS * len(piece_x) / num))
        thin_x, thin_y = downsample(piece_x, piece_y, points=points)
        xs += [thin_x, thin_x[-1:]]
        ys += [thin_y, np.array([np.nan])]
    inferred = part.series.frame["inferred"]
    derived = column in part.series.frame.columns and bool(
        inferred.list.contains(column).fill_null(False).any()
    )
    return Curve(
        label,
        np.concatenate(xs)[:-1] if xs else np.empty(0),
        np.concatenate(ys)[:-1] if ys else np.empty(0),
        part.series.rank,
        second,
        derived,
        float(y.max()),
    )


def _cut(x: Array, y: Array, view: tuple[float, float]) -> tuple[Array, Array] | None:
    """A stretch as far as it is in view, and one value more on either side, since lines join values;
    None where it lies outside."""
    if x[-1] < view[0] or x[0] > view[1]:
        return None
    first = max(int(np.searchsorted(x, view[0], "left")) - 1, 0)
    last = int(np.searchsorted(x, view[1], "right")) + 1
    return x[first:last], y[first:last]


def _events(evidence: Evidence, view: tuple[float, float] | None = None) -> Panel | None:
    """Reported events by kind, where they have a time; view: of that part alone, every kind kept."""
    ticks: dict[str, Array] = {}
    for kind in EVENTS:
        times = [n.t_s for n in evidence.notices if n.kind == kind and n.t_s is not None]
        if times:
            at = np.unique(np.array(times, dtype=np.float64))
            if view is not None:
                at = at[(at >= view[0]) & (at <= view[1])]
            keep = np.unique(np.linspace(0, len(at) - 1, min(len(at), MAX_TICKS)).astype(int))
            ticks[kind] = at[keep]
    if not ticks:
        return None
    said = ", ".join(f"{k.replace('_', ' ')} {len(evidence.all_notices(k)):,}" for k in ticks)
    return Panel("events", "Reported events", "", note=said, ticks=ticks)


def event_meaning(kind: str) -> str:
    """What an event of that kind is, in a few words."""
    return NOTICES[kind].partition(";")[0]


# ---- moments ----------------------------------------------------------------------------------


def _moments(
    q: Quantities, found: Diagnosis, series: Sequence[Series], kind: AxisKind
) -> list[Moment]:
    moments: list[Moment] = []
    for number, proof in enumerate(found.proofs, start=1):
        places = {x for at in proof.lines if (x := _place(q, series, at, kind)) is not None}
        moments += [Moment(x, str(number), number) for x in sorted(places)[:MARKS_OF_A_PROOF]]
    if kind != "order" and q.wall is not None and np.isfinite(q.wall.at_s):
        end = max((float(np.nanmax(s.t_s)) for s in q.ranks if s.timed), default=0.0)
        start = min((float(np.nanmin(s.t_s)) for s in q.ranks if s.timed), default=0.0)
        if q.wall.at_s <= end + 0.5 * (end - start):
            forecast = q.wall.at_s > end
            moments.append(Moment(q.wall.at_s, "full (forecast)" if forecast else "full"))
    return moments


def _place(q: Quantities, series: Sequence[Series], at: Line, kind: AxisKind) -> float | None:
    """Where on the axis a line lies: the sample that it is or lies in, else a notice with a time."""
    for s in series:
        frame = s.frame
        if at.source == "samples" and frame["source"].null_count() == frame.height:
            index = at.number - 1 if at.number <= frame.height else None
        else:
            line, spans = frame["line"], frame["num_lines"].fill_null(1)
            mine = (
                (frame["source"].cast(pl.String) == at.source)
                & (line <= at.number)
                & (at.number < line + spans)
            )
            hits = mine.fill_null(False).arg_true()
            index = int(hits[0]) if len(hits) else None
        if index is not None:
            x = float(_x(s, kind)[index])
            return x if np.isfinite(x) else None
    if kind == "order":
        return None
    times = [
        n.t_s
        for n in q.evidence.notices
        if n.t_s is not None and n.at.number == at.number and n.at.source == at.source
    ]
    return float(times[0]) if times else None


def _notes(q: Quantities, series: Sequence[Series], kind: AxisKind) -> list[str]:
    notes: list[str] = []
    if kind == "order":
        notes.append("The source gives no times: samples are drawn in their order.")
    else:
        untimed = sum(int((~np.isfinite(s.t_s)).sum()) for s in series)
        if untimed:
            notes.append(f"{untimed:,} samples have no time and are not drawn.")
    resets = sum(counter_growth(s.col("preemptions_total"))[1] for s in series)
    if resets:
        word = "restart" if resets == 1 else "restarts"
        notes.append(
            f"The preemption counter fell {resets} times: {word} of the server, joined."
        )
    if kind != "order" and q.gaps:
        longest = max(g.length_s for g in q.gaps)
        notes.append(
            f"Grey: no samples for longer than usual ({len(q.gaps)} times, at most {longest:,.0f} s)."
        )
    return notes
