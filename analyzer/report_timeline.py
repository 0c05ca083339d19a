"""One or two recordings and a stretch of time -> the rows of a report's timeline.

It reads only the columns that are drawn, and thins them: what comes out is of one size for any number
of steps. A line is the mean of each stretch with the range around it where steps are many, so that a
spike stays seen. How rows are drawn is known in `figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from analyzer.align import on_grid
from analyzer.downsample import bucket_sums, downsample
from analyzer.figures import Capacity, Readings, Row, Shade, XAxis
from analyzer.look import Role, Side, three_digits
from analyzer.marks import Areas, Band, Bars, Difference, Line, Look, Mark
from traces.recording import Recording

POINTS = 1_200  # of a line
STRETCHES = 400  # of means and ranges
BUCKETS = 120  # of bars and areas
CURSOR = 400
_TOKENS: dict[Role, str] = {
    "decode": "decode_tokens",
    "prefill": "prefill_tokens",
    "recomputed": "recomputed_tokens",
}
_COLUMNS = (
    "t_start_s",
    "duration_s",
    "used_blocks",
    "cached_free_blocks",
    "num_running",
    "num_waiting",
    "num_swapped",
    "num_preempted",
    "stall_s",
    "host_used_blocks",
    *_TOKENS.values(),
)
ROWS = ("blocks", "delta", "running", "waiting", "step", "preemptions", "tokens", "host")
CARD_ROWS = ("blocks", "preemptions", "waiting")


@dataclass(frozen=True)
class Drawn:
    """A run's steps that touch the shown time. steps: _COLUMNS; end_s: of the whole run."""

    recording: Recording
    steps: pl.DataFrame
    end_s: float

    @cached_property
    def edges(self) -> np.ndarray:
        """Where each of the steps begins, and the last ends. (n + 1,), s."""
        last = self.steps.tail(1)
        end = (last["t_start_s"] + last["duration_s"]).to_numpy()
        return np.concatenate([self.steps["t_start_s"].to_numpy(), end])

    def values(self, column: str) -> np.ndarray:
        return self.steps[column].to_numpy()

    def any(self, column: str) -> bool:
        return bool(self.steps[column].max() or 0)


def read_steps(recording: Recording, shown: tuple[float, float] | None) -> Drawn:
    """The columns that are drawn, of the steps that run in the shown time; all of them for None."""
    steps = recording.scan("steps")
    end = pl.col("t_start_s") + pl.col("duration_s")
    end_s = steps.select(end.max()).collect(engine="streaming").item() or 0.0
    if shown is not None:
        steps = steps.filter((end >= shown[0]) & (pl.col("t_start_s") <= shown[1]))
    return Drawn(recording, steps.select(_COLUMNS).collect().rechunk(), float(end_s))


class Timeline:
    """Runs on one axis of time. shown: the drawn part, s; whole: all of it."""

    def __init__(
        self, recordings: Mapping[Side, Recording], shown: tuple[float, float] | None = None
    ) -> None:
        self.runs = {side: read_steps(r, shown) for side, r in recordings.items()}
        self.whole = (0.0, max([1e-9, *(run.end_s for run in self.runs.values())]))
        self.shown = shown or self.whole
        self.cursor = np.linspace(*self.shown, CURSOR)

    @property
    def axis(self) -> XAxis:
        ends = sorted((run.end_s, side) for side, run in self.runs.items())
        shades = [Shade(ends[0][0], ends[-1][0], f"{ends[0][1]} has ended")]
        return XAxis("Time since the start", "s", self.shown, self.cursor, ",.3f", shades)

    def rows(self, which: tuple[str, ...] = ROWS) -> list[Row]:
        """The chosen rows, those left out that have nothing to say for these runs."""
        return [row for key in ROWS if key in which for row in _BUILD[key](self)]

    @property
    def is_dense(self) -> bool:
        return max(run.steps.height for run in self.runs.values()) > POINTS

    # ---- marks ----------------------------------------------------------------------------

    def line(
        self, side: Side, column: str, label: str, *, look: Look = "main",
        factor: float = 1.0, role: Role | None = None,
    ) -> Line:  # fmt: skip
        """A column as a line, extremes kept."""
        run = self.runs[side]
        start, end = self.shown
        x, y = downsample(
            run.edges[:-1],
            run.values(column),
            start=start,
            end=min(end, run.end_s),
            points=POINTS,
        )
        return Line(f"{label} · {side}", x, (y * factor).astype(np.float32), side, look, role)

    def mean(
        self, side: Side, column: str, label: str, *, look: Look = "main",
        factor: float = 1.0, role: Role | None = None,
    ) -> list[Mark]:  # fmt: skip
        """A column's mean over each stretch of the shown time."""
        grid, y = self.means(side, column)
        keep = np.isfinite(y)
        x, y = grid[:-1][keep], (y[keep] * factor).astype(np.float32)
        return [Line(f"{label} · {side}", x, y, side, look, role)] if len(x) else []

    def means(self, side: Side, column: str) -> tuple[np.ndarray, np.ndarray]:
        """(grid (n + 1,), mean of the column in each of its stretches (n,), NaN where no run is)."""
        run = self.runs[side]
        grid = np.linspace(*self.shown, STRETCHES + 1)
        return grid, on_grid(run.edges, run.values(column).astype(np.float64), grid, True)

    def band(self, side: Side, column: str, label: str) -> list[Mark]:
        """Least and greatest value of a column in each stretch; a step that began before a stretch
        and lasts into it counts in it."""
        run = self.runs[side]
        starts, values = run.edges[:-1], run.values(column)
        cuts = np.linspace(*self.shown, STRETCHES, endpoint=False)
        cuts = cuts[cuts < run.end_s]
        if not len(values) or not len(cuts):
            return []
        first = np.searchsorted(starts, cuts, "left")
        stop = np.append(first[1:], np.searchsorted(starts, self.shown[1], "left"))
        holding = values[np.clip(np.searchsorted(starts, cuts, "right") - 1, 0, None)]
        last = int(stop[-1])
        padded = np.append(values[:last], values[max(last - 1, 0)])  # for a cut at the end
        low, high = (
            np.where(stop > first, reduce(padded, first), holding)
            for reduce in (np.minimum.reduceat, np.maximum.reduceat)
        )
        low, high = np.minimum(low, holding), np.maximum(high, holding)
        return [Band(label, cuts, low, high, side)]

    def lines(self, column: str, label: str, factor: float = 1.0) -> list[Mark]:
        return [self.line(side, column, label, factor=factor) for side in self.runs]

    def sums(self, side: Side, column: str) -> pl.DataFrame:
        run = self.runs[side]
        start, end = self.shown
        return bucket_sums(
            run.edges[:-1], run.values(column), start=start, end=end, buckets=BUCKETS
        )

    # ---- what the cursor's box reads --------------------------------------------------------

    def at_cursor(self, side: Side, column: str, factor: float = 1.0) -> np.ndarray:
        """The column's value in the step that runs at each place of the cursor; NaN where none."""
        run = self.runs[side]
        values = run.values(column)
        row = np.searchsorted(run.edges, self.cursor, "right") - 1
        if not len(values):
            return np.full(len(row), np.nan)
        held = values[np.clip(row, 0, len(values) - 1)].astype(np.float64) * factor
        return np.where((row >= 0) & (row < len(values)), held, np.nan)

    def readings(
        self, name: str, column: str, unit: str, format_: str = ",.0f", factor: float = 1.0
    ) -> Readings:
        values = {str(side): self.at_cursor(side, column, factor) for side in self.runs}
        return Readings(name, values, unit, format_)

    def in_bucket(self, totals: Mapping[Side, np.ndarray]) -> dict[str, np.ndarray]:
        """Sums of buckets at the places of the cursor."""
        start, end = self.shown
        here = ((self.cursor - start) / (end - start) * BUCKETS).astype(np.int64)
        here = np.clip(here, 0, BUCKETS - 1)
        return {str(side): y[here].astype(np.float64) for side, y in totals.items()}


# ---- rows -----------------------------------------------------------------------------------


def _blocks(t: Timeline) -> list[Row]:
    pools = {side: run.recording.pool_blocks for side, run in t.runs.items()}
    grey = [side for side, run in t.runs.items() if run.any("cached_free_blocks")]
    marks: list[Mark] = []
    for side in grey:
        marks += t.mean(side, "cached_free_blocks", "cached", look="faint", role="cached")
    if t.is_dense:
        marks += [mark for side in t.runs for mark in t.band(side, "used_blocks", "KV blocks")]
        for side in t.runs:
            marks += t.mean(side, "used_blocks", "mean KV blocks")
    else:
        marks += t.lines("used_blocks", "KV blocks")
    notes = ["mean and range"] * t.is_dense + ["grey: free, still cached"] * bool(grey)
    if len(set(pools.values())) == 1:
        pool = next(iter(pools.values()))
        capacity = [Capacity(pool, f"pool of {pool:,} blocks, shaded from 98 % full")]
    else:
        capacity = [Capacity(n, f"pool of {side}: {n:,} blocks") for side, n in pools.items()]
    return [
        Row(
            "blocks",
            "KV blocks in use",
            "blocks",
            marks,
            190,
            y_max=max(1, *pools.values()) * 1.12,
            capacity=capacity,
            note=", ".join(notes),
            readings=t.readings("KV blocks", "used_blocks", "blocks"),
        )
    ]


def _delta(t: Timeline) -> list[Row]:
    if len(t.runs) < 2:
        return []
    grid, a = t.means("A", "used_blocks")
    y = t.means("B", "used_blocks")[1] - a
    keep = np.isfinite(y)
    known = y[keep].astype(np.float32)
    both = t.at_cursor("B", "used_blocks") - t.at_cursor("A", "used_blocks")
    return [
        Row(
            "delta",
            "Difference B − A",
            "blocks",
            [Difference(grid[:-1][keep], known)] if known.any() else [],
            70,
            note="orange: B holds more, blue: A",
            empty="no difference here" if len(known) else "the runs do not overlap here",
            readings=Readings("Difference", {"B − A": both}, "blocks", "+,.0f"),
        )
    ]


def _running(t: Timeline) -> list[Row]:
    said = t.readings("Running", "num_running", "")
    return [
        Row("running", "Running", "requests", t.lines("num_running", "running"), readings=said)
    ]


def _waiting(t: Timeline) -> list[Row]:
    away = [side for side, run in t.runs.items() if run.any("num_swapped")]
    marks = t.lines("num_waiting", "waiting")
    marks += [
        t.line(side, "num_swapped", "with KV on the host", look="dotted", role="swap")
        for side in away
    ]
    note = "dotted: swapped out, or loading" if away else ""
    said = t.readings("Waiting", "num_waiting", "")
    return [Row("waiting", "Waiting", "requests", marks, note=note, readings=said)]


def _step_time(t: Timeline) -> list[Row]:
    """The mean of each stretch where steps are many, with its range; stalls dotted."""
    marks: list[Mark] = []
    if t.is_dense:
        for side in t.runs:
            marks += t.mean(side, "duration_s", "mean step time", factor=1e3)
        notes = ["mean"]
    else:
        marks += t.lines("duration_s", "step time", 1e3)
        notes = []
    stalled = [side for side, run in t.runs.items() if run.any("stall_s")]
    for side in stalled:
        marks += t.mean(side, "stall_s", "mean stall", look="dotted", factor=1e3, role="stall")
    notes += ["dotted: of it stalled for copies"] * bool(stalled)
    said = t.readings("Step time", "duration_s", "ms", ",.1f", 1e3)
    return [Row("step", "Step time", "ms", marks, note=", ".join(notes), readings=said)]


def _preemptions(t: Timeline) -> list[Row]:
    tables = {side: t.sums(side, "num_preempted") for side in t.runs}
    one = next(iter(tables.values()))
    width = float(one["end"][0] - one["start"][0])
    totals = {side: table["total"].to_numpy() for side, table in tables.items()}
    marks: list[Mark] = [
        Bars(f"preemptions · {s}", one["start"].to_numpy(), width, y.astype(np.float64), s)
        for s, y in totals.items()
        if y.any()
    ]
    return [
        Row(
            "preemptions",
            "Preemptions",
            f"per {three_digits(width)} s",
            marks,
            78,
            note=", ".join(f"{side} {int(y.sum()):,}" for side, y in totals.items()),
            empty="no preemption here",
            readings=Readings("Preemptions", t.in_bucket(totals), ""),
        )
    ]


def _tokens(t: Timeline) -> list[Row]:
    """Computed tokens a second, in layers, a row a side on one scale."""
    width = (t.shown[1] - t.shown[0]) / BUCKETS
    layers: dict[Side, dict[Role, np.ndarray]] = {
        side: {
            role: t.sums(side, column)["total"].to_numpy() / width
            for role, column in _TOKENS.items()
        }
        for side in t.runs
    }
    x = np.linspace(*t.shown, BUCKETS, endpoint=False)
    top = max(float(np.sum(list(found.values()), axis=0).max()) for found in layers.values())
    return [
        Row(
            f"tokens-{side}",
            f"Tokens in {side}" if len(layers) > 1 else "Tokens",
            "per s",
            [Areas(x, {role: y.astype(np.float32) for role, y in found.items()}, side)],
            64,
            y_max=top * 1.05 or 1.0,
            note="grey decode, green prefill, red recomputed",
            readings=Readings(
                f"Tokens in {side}",
                {
                    role: next(iter(t.in_bucket({side: y}).values()))
                    for role, y in found.items()
                },
                "per s",
            ),
        )
        for side, found in layers.items()
    ]


def _host(t: Timeline) -> list[Row]:
    """Host blocks, where a run has copied KV there."""
    sides = [side for side, run in t.runs.items() if run.any("host_used_blocks")]
    if not sides:
        return []
    values = {str(side): t.at_cursor(side, "host_used_blocks") for side in sides}
    marks: list[Mark] = [t.line(side, "host_used_blocks", "host blocks") for side in sides]
    said = Readings("Host blocks", values, "")
    return [Row("host", "Host blocks in use", "blocks", marks, 64, readings=said)]


_BUILD: dict[str, Callable[[Timeline], list[Row]]] = {
    "blocks": _blocks,
    "delta": _delta,
    "running": _running,
    "waiting": _waiting,
    "step": _step_time,
    "preemptions": _preemptions,
    "tokens": _tokens,
    "host": _host,
}
