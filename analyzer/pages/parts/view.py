"""Two runs and a part of an axis -> the rows of the aligned timeline, and sums over that part.

It knows which columns go into which row and how many points a screen can show. How runs are laid
on one axis is known in `align`, how they are thinned in `downsample`, how a row is drawn in
`figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from analyzer.align import align, axis_edges
from analyzer.downsample import bucket_sums, downsample
from analyzer.figures import Capacity, Readings, Row, Shade, XAxis
from analyzer.look import Role, Side, three_digits
from analyzer.marks import Areas, Band, Bars, Difference, Line, Look, Mark
from analyzer.pages.parts.runs import Run, run_names
from analyzer.words import NOT_RECORDED

Alignment = Literal["time", "step", "progress"]
ALIGNMENTS: dict[Alignment, str] = {"time": "Time", "step": "Step", "progress": "Progress"}
ROWS: dict[str, str] = {
    "blocks": "Blocks",
    "delta": "B − A",
    "running": "Running",
    "waiting": "Waiting",
    "step": "Step time",
    "preemptions": "Preemptions",
    "tokens": "Tokens",
    "host": "Host",
}
POINTS = 900  # of a line: least and greatest value of every second or third pixel
BUCKETS = 150  # of bars and areas
CURSOR = 400  # places at which the cursor has readings
_AXES: dict[Alignment, tuple[str, str, str, float, str]] = {
    "time": ("Time since the start", "s", ",.3f", 1.0, "s"),
    "step": ("Scheduler step", "", ",.0f", 1.0, "step"),
    "progress": ("Output tokens produced, of all", "%", ",.2f", 100.0, "%"),
}


class Aligned:
    """Two runs on one axis. edges: side -> where each step begins and the last ends, in the axis'
    units; full: the whole axis; names: side -> run's name."""

    def __init__(self, a: Run, b: Run, by: Alignment) -> None:
        self.runs: dict[Side, Run] = {"A": a, "B": b}
        self.by = by
        self.title, self.unit, self.hover, self.scale, self.per = _AXES[by]
        total = max(int(r.requests["output_tokens"].sum()) for r in (a, b))
        self.edges: dict[Side, np.ndarray] = {
            side: axis_edges(run.steps, run.requests, by, total) * self.scale
            for side, run in self.runs.items()
        }

    @property
    def names(self) -> dict[Side, str]:
        return run_names(self.runs["A"], self.runs["B"])

    @cached_property
    def ends(self) -> dict[Side, float]:
        return {side: float(e[-1]) if len(e) else 0.0 for side, e in self.edges.items()}

    @property
    def full(self) -> tuple[float, float]:
        return 0.0, max(max(self.ends.values()), 1e-9)

    def clip(self, shown: tuple[float, float] | None) -> tuple[float, float]:
        """The asked part of the axis as far as it exists; all of it for None or an empty part."""
        low, high = self.full
        if shown is None:
            return self.full
        start, end = max(low, min(shown)), min(high, max(shown))
        return (start, end) if end > start else self.full

    def axis(self, shown: tuple[float, float]) -> XAxis:
        """The x axis, with the time after the shorter run set apart."""
        first, last = sorted(self.ends, key=lambda s: self.ends[s])
        shades = [Shade(self.ends[first], self.ends[last], f"{first} has ended")]
        return XAxis(
            self.title, self.unit, shown, np.linspace(*shown, CURSOR), self.hover, shades
        )

    def in_buckets(
        self, columns: Sequence[str], shown: tuple[float, float], points: int
    ) -> pl.DataFrame:
        """Columns of both runs on a common grid, as from `align`: means of levels, sums of counts.

        x_start and x_end are in `align`'s units: times `scale` for the axis' own.
        """
        a, b = (self._tables(side, shown) for side in ("A", "B"))
        low, high = (v / self.scale for v in shown)
        return align(a, b, by=self.by, columns=columns, start=low, end=high, points=points)

    def span(self, side: Side, shown: tuple[float, float]) -> tuple[int, int]:
        """Rows of the steps that touch the shown part, and one more on either side: [first, stop)."""
        first, stop = _inside(self.edges[side][:-1], shown)
        return max(0, first - 2), stop + 1

    def _tables(
        self, side: Side, shown: tuple[float, float]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """A run's steps and requests for `align`; by progress a step's place needs all before it."""
        run = self.runs[side]
        if self.by == "progress":
            return run.steps, run.requests
        first, stop = self.span(side, shown)
        return run.steps.slice(first, stop - first), run.requests


def timeline_rows(pair: Aligned, shown: tuple[float, float], which: Sequence[str]) -> list[Row]:
    """The chosen rows over the shown part of the axis, thinned to what a screen can show."""
    view = _View(pair, shown, which)
    return [row for key in ROWS if key in which for row in _BUILD[key](view)]


@dataclass(frozen=True)
class RangeSums:
    """What happened in one run within the shown part of the axis; None: it was not recorded."""

    num_steps: int
    num_preemptions: int
    recomputed_tokens: int
    restored_tokens: int
    stall_s: float | None


def range_sums(pair: Aligned, shown: tuple[float, float]) -> dict[Side, RangeSums]:
    """Sums over the steps that begin in the shown part of the axis."""
    found: dict[Side, RangeSums] = {}
    for side, run in pair.runs.items():
        first, stop = _inside(pair.edges[side][:-1], shown)
        part = run.steps.slice(first, stop - first)
        found[side] = RangeSums(
            part.height,
            int(part["num_preempted"].sum()),
            int(part["recomputed_tokens"].sum()),
            int(part["restored_tokens"].sum()),
            None if "steps.stall_s" in run.meta.not_recorded else float(part["stall_s"].sum()),
        )
    return found


def steps_shown(pair: Aligned, side: Side, shown: tuple[float, float]) -> tuple[int, int]:
    """First and last step (last included) of a run that begin in the shown part; (0, -1) if none."""
    first, stop = _inside(pair.edges[side][:-1], shown)
    steps = pair.runs[side].steps["step"]
    return (int(steps[first]), int(steps[stop - 1])) if stop > first else (0, -1)


def _inside(starts: np.ndarray, shown: tuple[float, float]) -> tuple[int, int]:
    first, stop = (
        np.searchsorted(starts, shown[0], "left"),
        np.searchsorted(starts, shown[1], "right"),
    )
    return int(first), int(stop)


class _View:
    """Both runs' columns over the shown part, as lines, bars, areas and readings."""

    def __init__(self, pair: Aligned, shown: tuple[float, float], which: Sequence[str]) -> None:
        self.pair = pair
        self.which = which
        self.shown = shown
        self.cursor = np.linspace(*shown, CURSOR)
        self.holding = {side: self._holding(side) for side in pair.runs}

    def _holding(self, side: Side) -> np.ndarray:
        """Row of the step that runs at each place of the cursor; -1 where none does."""
        edges = self.pair.edges[side]
        row = np.searchsorted(edges, self.cursor, "right") - 1
        return np.where(row < len(edges) - 1, row, -1)

    def values(self, side: Side, column: str) -> np.ndarray:
        return self.pair.runs[side].steps[column].to_numpy()

    def any(self, side: Side, column: str) -> bool:
        """Whether the column is ever more than 0 in this run."""
        return self.pair.runs[side].ever(column)

    def line(
        self,
        side: Side,
        column: str,
        label: str,
        *,
        look: Look = "main",
        factor: float = 1.0,
        role: Role | None = None,
    ) -> Line:
        """A column as a line, extremes kept."""
        start, end = self.shown
        y = self.values(side, column)
        x, y = downsample(
            self.pair.edges[side][:-1],
            y,
            start=start,
            end=min(end, self.pair.ends[side]),
            points=POINTS,
        )
        return Line(f"{label} · {side}", x, (y * factor).astype(np.float32), side, look, role)

    def lines(self, column: str, label: str, factor: float = 1.0) -> list[Mark]:
        return [self.line(side, column, label, factor=factor) for side in self.pair.runs]

    def at_cursor(self, side: Side, column: str, factor: float = 1.0) -> np.ndarray:
        """The column's value in the step at each place of the cursor; NaN where no step is."""
        row = self.holding[side]
        values = self.values(side, column)
        if not len(values):
            return np.full(len(row), np.nan)
        return np.where(row >= 0, values[row].astype(np.float64) * factor, np.nan)

    def readings(
        self, name: str, column: str, unit: str, format_: str = ",.0f", factor: float = 1.0
    ) -> Readings:
        values = {str(side): self.at_cursor(side, column, factor) for side in self.pair.runs}
        return Readings(name, values, unit, format_)

    def sums(self, side: Side, column: str) -> pl.DataFrame:
        start, end = self.shown
        first, stop = self.pair.span(side, self.shown)
        return bucket_sums(
            self.pair.edges[side][:-1][first:stop],
            self.values(side, column)[first:stop],
            start=start,
            end=end,
            buckets=BUCKETS,
        )

    def in_buckets(self, columns: Sequence[str], points: int) -> pl.DataFrame:
        return self.pair.in_buckets(columns, self.shown, points)

    def num_steps(self, side: Side) -> int:
        """Steps that begin in the shown part."""
        first, stop = _inside(self.pair.edges[side][:-1], self.shown)
        return stop - first

    @property
    def is_dense(self) -> bool:
        """Whether the shown part has more steps than a line can have points."""
        return max(self.num_steps(side) for side in self.pair.runs) > POINTS

    def mean(
        self, column: str, label: str, *, look: Look = "main", factor: float = 1.0,
        role: Role | None = None,
    ) -> list[Mark]:  # fmt: skip
        """A column's mean over each stretch of the shown part, a line per side."""
        table = self.in_buckets([column], points=BUCKETS * 2)
        x = table["x_start"].to_numpy() * self.pair.scale
        marks: list[Mark] = []
        for side in self.pair.runs:
            y = table[f"{side.lower()}_{column}"].to_numpy() * factor
            keep = np.isfinite(y)
            if keep.any():
                said = f"{label} · {side}"
                marks.append(Line(said, x[keep], y[keep].astype(np.float32), side, look, role))
        return marks

    def band(self, side: Side, column: str, label: str) -> Band:
        """Least and greatest value of a column in each stretch of the shown part; a step that
        began before a stretch and lasts into it counts in it."""
        starts = self.pair.edges[side][:-1]
        cuts_x = np.linspace(*self.shown, BUCKETS * 2, endpoint=False)
        cuts_x = cuts_x[cuts_x < self.pair.ends[side]]
        values = self.values(side, column)
        if not len(values) or not len(cuts_x):
            return Band(label, np.empty(0), np.empty(0), np.empty(0), side)
        first = np.searchsorted(starts, cuts_x, "left")
        stop = np.append(first[1:], np.searchsorted(starts, self.shown[1], "left"))
        holding = values[np.clip(np.searchsorted(starts, cuts_x, "right") - 1, 0, None)]
        end = int(stop[-1])
        padded = np.append(values[:end], values[max(end - 1, 0)])  # a row for a cut at the end
        low, high = (
            np.where(stop > first, reduce(padded, first), holding)
            for reduce in (np.minimum.reduceat, np.maximum.reduceat)
        )
        return Band(label, cuts_x, np.minimum(low, holding), np.maximum(high, holding), side)

    def longest_steps(self, side: Side) -> Line:
        """The longest step of each stretch of the shown part, faint."""
        starts = self.pair.edges[side][:-1]
        first, stop = _inside(starts, self.shown)
        cuts = np.unique(np.linspace(first, stop, BUCKETS, endpoint=False).astype(np.int64))
        longest = (
            np.maximum.reduceat(self.values(side, "duration_s")[:stop], cuts)
            if stop > first
            else np.empty(0)
        )
        return Line(
            f"longest step · {side}",
            starts[cuts[: len(longest)]],
            longest.astype(np.float32) * 1e3,
            side,
            "faint",
        )

    def bucket_of_cursor(self, starts: np.ndarray) -> np.ndarray:
        return np.clip(np.searchsorted(starts, self.cursor, "right") - 1, 0, len(starts) - 1)


def _blocks(view: _View) -> list[Row]:
    pools = {side: run.recording.pool_blocks for side, run in view.pair.runs.items()}
    grey = [s for s in pools if view.any(s, "cached_free_blocks")]
    note = "grey: cached" if grey else ""
    cached: list[Mark]
    if view.is_dense:
        bands = [view.band(s, "used_blocks", "KV blocks") for s in pools]
        marks: list[Mark] = [*bands, *view.mean("used_blocks", "mean KV blocks")]
        cached = (
            view.mean("cached_free_blocks", "cached", look="faint", role="cached")
            if grey
            else []
        )
        note = ", ".join(filter(None, ("mean and range", note)))
    else:
        marks = view.lines("used_blocks", "KV blocks")
        cached = [
            view.line(s, "cached_free_blocks", "cached", look="faint", role="cached")
            for s in grey
        ]
    readings = view.readings("KV blocks", "used_blocks", "blocks")
    if "delta" in view.which:
        said = {**readings.values, "B − A": readings.values["B"] - readings.values["A"]}
        readings = Readings("KV blocks", said, "")
    if len(set(pools.values())) == 1:
        capacity = [
            Capacity(pools["A"], f"pool of {pools['A']:,} blocks, shaded from 98 % full")
        ]
    else:
        capacity = [Capacity(n, f"pool of {side}: {n:,} blocks") for side, n in pools.items()]
    return [
        Row(
            "blocks",
            "KV blocks in use",
            "blocks",
            [*cached, *marks],
            190,
            y_max=max(pools.values()) * 1.12,
            capacity=capacity,
            note=note,
            readings=readings,
        )
    ]


def _delta(view: _View) -> list[Row]:
    table = view.in_buckets(["used_blocks"], points=600)
    known = table.drop_nulls("delta_used_blocks")
    starts = known["x_start"].to_numpy() * view.pair.scale
    y = known["delta_used_blocks"].to_numpy().astype(np.float32)
    marks: list[Mark] = [Difference(starts, y)] if y.any() else []
    both = view.at_cursor("B", "used_blocks") - view.at_cursor("A", "used_blocks")
    return [
        Row(
            "delta",
            "Difference B − A",
            "blocks",
            marks,
            78,
            note="orange: B holds more",
            empty="no difference here" if len(y) else "the runs do not overlap here",
            readings=None
            if "blocks" in view.which  # its line says the difference too
            else Readings("Difference", {"B − A": both}, "blocks", "+,.0f"),
        )
    ]


def _running(view: _View) -> list[Row]:
    readings = view.readings("Running", "num_running", "")
    return [
        Row(
            "running",
            "Running",
            "requests",
            view.lines("num_running", "running"),
            readings=readings,
        )
    ]


def _waiting(view: _View) -> list[Row]:
    words = {
        s: "loading" if r.mode == "offload" else "swapped out"
        for s, r in view.pair.runs.items()
    }
    swapped: list[Mark] = [
        view.line(s, "num_swapped", words[s], look="dotted", role="swap")
        for s in view.pair.runs
        if view.any(s, "num_swapped")
    ]
    readings = view.readings("Waiting", "num_waiting", "")
    if swapped:
        sides = [s for s in view.pair.runs if view.any(s, "num_swapped")]
        more = {f"{words[s].split()[0]} {s}": view.at_cursor(s, "num_swapped") for s in sides}
        readings = Readings("Waiting", {**readings.values, **more}, "")
    said = sorted({words[s] for s in view.pair.runs if view.any(s, "num_swapped")})
    note = f"dotted: {' or '.join(said)}" if said else ""
    return [
        Row(
            "waiting",
            "Waiting",
            "requests",
            [*view.lines("num_waiting", "waiting"), *swapped],
            note=note,
            readings=readings,
        )
    ]


def _step_time(view: _View) -> list[Row]:
    """Every step where they fit; else the mean of each stretch, with its longest step faint."""
    sides = list(view.pair.runs)
    marks: list[Mark]
    notes = []
    if view.is_dense:
        means = view.mean("duration_s", "mean step time", factor=1e3)
        marks = [*(view.longest_steps(side) for side in sides), *means]
        notes.append("faint: longest")
    else:
        marks = view.lines("duration_s", "step time", 1e3)
    stalled = [s for s in sides if view.any(s, "stall_s")]
    marks += [
        view.line(s, "stall_s", "stalled", look="dotted", factor=1e3, role="stall")
        for s in stalled
    ]
    if stalled:
        notes.append("dotted: stalled")
    readings = view.readings("Step time", "duration_s", "ms", ",.1f", 1e3)
    return [Row("step", "Step time", "ms", marks, 96, note=", ".join(notes), readings=readings)]


def _preemptions(view: _View) -> list[Row]:
    tables = {side: view.sums(side, "num_preempted") for side in view.pair.runs}
    starts = tables["A"]["start"].to_numpy()
    width = float(tables["A"]["end"][0] - tables["A"]["start"][0])
    totals = {side: t["total"].to_numpy().astype(np.float64) for side, t in tables.items()}
    marks: list[Mark] = [
        Bars(f"preemptions · {s}", starts, width, y, s) for s, y in totals.items() if y.any()
    ]
    here = view.bucket_of_cursor(starts)
    said = {str(side): y[here] for side, y in totals.items()}
    return [
        Row(
            "preemptions",
            "Preemptions",
            f"per {three_digits(width)} {view.pair.per}",
            marks,
            78,
            note=", ".join(f"{side} {int(y.sum()):,}" for side, y in totals.items()),
            empty="no preemption here",
            readings=Readings("Preemptions", said, ""),
        )
    ]


_TOKENS: dict[Role, str] = {
    "decode": "decode_tokens",
    "prefill": "prefill_tokens",
    "recomputed": "recomputed_tokens",
}


def _tokens(view: _View) -> list[Row]:
    """Computed tokens over the width of a bucket: a rate by time, a mean by step."""
    table = view.in_buckets(list(_TOKENS.values()), points=BUCKETS)
    x = table["x_start"].to_numpy() * view.pair.scale
    width = (view.shown[1] - view.shown[0]) / BUCKETS
    here = view.bucket_of_cursor(x)
    layers: dict[Side, dict[Role, np.ndarray]] = {
        side: {
            role: table[f"{side.lower()}_{column}"].fill_null(0.0).to_numpy() / width
            for role, column in _TOKENS.items()
        }
        for side in view.pair.runs
    }
    top = max(float(np.sum(list(found.values()), axis=0).max()) for found in layers.values())
    unit = f"per {view.pair.per}"
    all_of = {str(s): np.sum(list(f.values()), axis=0)[here] for s, f in layers.items()}
    again = {str(s): f["recomputed"][here] for s, f in layers.items()}
    said: dict[Side, Readings] = {
        "A": Readings("Tokens", all_of, unit),
        "B": Readings("Recomputed", again, unit),
    }
    return [
        Row(
            f"tokens-{side}",
            f"Tokens in {side}",
            unit,
            [Areas(x, {role: y.astype(np.float32) for role, y in found.items()}, side)],
            68,
            y_max=top * 1.05 or 1.0,
            note="green prefill, red recomputed",
            readings=said[side],
        )
        for side, found in layers.items()
    ]


def _host(view: _View) -> list[Row]:
    """Host blocks and the link, where a run has copied KV to the host."""
    sides = [s for s in view.pair.runs if view.any(s, "host_used_blocks")]
    if not sides:
        return []
    used = {str(s): view.at_cursor(s, "host_used_blocks") for s in sides}
    busy: dict[Side, np.ndarray] = {}
    for side in sides:
        moving = (
            view.sums(side, "link_out_busy_s")["total"]
            + view.sums(side, "link_in_busy_s")["total"]
        )
        length = view.sums(side, "duration_s")["total"].to_numpy()
        busy[side] = (
            np.divide(moving.to_numpy(), length, out=np.zeros(BUCKETS), where=length > 0) * 100
        )
    starts = view.sums(sides[0], "duration_s")["start"].to_numpy()
    here = view.bucket_of_cursor(starts)
    share = {str(s): y[here] for s, y in busy.items()}
    host = [view.line(s, "host_used_blocks", "host blocks") for s in sides]
    blind = [
        s for s, r in view.pair.runs.items() if "steps.host_used_blocks" in r.meta.not_recorded
    ]
    note = f"{NOT_RECORDED} in {' and '.join(blind)}" if blind else ""
    link = [Line(f"link busy · {s}", starts, y.astype(np.float32), s) for s, y in busy.items()]
    return [
        Row(
            "host",
            "Host blocks in use",
            "blocks",
            host,
            68,
            note=note,
            readings=Readings("Host blocks", used, ""),
        ),
        Row(
            "link",
            "Link to host busy",
            "% of the time",
            link,
            60,
            note=note,
            readings=Readings("Link busy", share, "%", ",.1f"),
        ),
    ]


_BUILD: dict[str, Callable[[_View], list[Row]]] = {
    "blocks": _blocks,
    "delta": _delta,
    "running": _running,
    "waiting": _waiting,
    "step": _step_time,
    "preemptions": _preemptions,
    "tokens": _tokens,
    "host": _host,
}
