"""A part of a run's block map, worked out for so many pixels: raster, hover texts, marks, rows below.

It knows the size of a picture, and puts ownership, states and measures on one axis. It knows no
Plotly and no page. What comes back is as large as the picture, whatever the run's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from analyzer import block_measures
from analyzer.block_colours import ColourBy, lit_up, painted
from analyzer.block_map import Cells, Ownership, ownership_of
from analyzer.block_states import WORDS, CellState, Histories, histories, states_of
from analyzer.host_tier import HostTier, host_tier
from analyzer.look import Side
from analyzer.run import Run

Axis = Literal["time", "step", "progress"]
COLUMNS = 1_200  # pixels of the raster; a screen shows about as many
ROWS = 480
HOST_ROWS = 64
LIT_PX = 3  # least width of what a chosen request held
HOVER = (96, 120)  # blocks and places that have a hover text
MARKS = 160  # most preemption marks
BUCKETS = 120  # of handovers
LONGEST_ID = 28
_SCATTER = ("x", "copies", "most", "pieces", "blocks")
_KIND = pl.col("kind").cast(pl.String)


class BlockRun:
    """A run with ownership, indexed once. blocks: its own table, or that of its replay."""

    def __init__(self, run: Run, blocks: pl.DataFrame) -> None:
        self.steps, self.events = run.steps, run.events
        self.block_size_tokens = run.meta.block_size_tokens or 0
        self.own: Ownership = ownership_of(
            blocks, run.steps, run.requests, run.recording.pool_blocks
        )
        self.told: Histories = histories(
            self.own,
            run.steps,
            run.events,
            run.requests,
            self.block_size_tokens,
            bool(run.meta.settings.get("enable_prefix_caching")),
        )
        self.starts_s = run.steps["t_start_s"].to_numpy()

    @cached_property
    def handover_rows(self) -> np.ndarray:
        return block_measures.handover_rows(self.own)

    @cached_property
    def host(self) -> HostTier | None:
        """Who had blocks in host memory, None where nobody ever had."""
        return host_tier(self.own, self.steps, self.events)

    @cached_property
    def preemptions(self) -> pl.DataFrame:
        """row and request_id of each, in order."""
        found = self.events.filter(_KIND == "preempt").select("step", "request_id")
        rows = np.searchsorted(self.steps["step"].to_numpy(), found["step"].to_numpy(), "left")
        return found.select("request_id", row=pl.Series(rows))

    def request_facts(self, request_id: str) -> RequestFacts | None:
        """What one request did with its blocks; None where it never held any."""
        code = self.own.code(request_id)
        if code is None:
            return None
        mine = self.own.of(code)
        first, last = self.own.first[mine], self.own.last[mine]
        most_row = int(first[np.argmax(_held_at(first, last))])
        most, runs = block_measures.request_runs(self.own, code, most_row)
        numbers = self.steps["step"].to_numpy()
        return RequestFacts(
            most,
            runs,
            int(numbers[first.min()]),
            int(numbers[last.max()]),
            int((self.preemptions["request_id"] == request_id).sum()),
        )


def _held_at(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """[n] how many of the intervals hold in the first row of each."""
    return np.searchsorted(np.sort(first), first, "right") - np.searchsorted(
        np.sort(last), first, "left"
    )


@dataclass(frozen=True)
class RequestFacts:
    """One request's blocks: the most it held at a time, in how many runs they lay then (copies to swap
    it out, neighbours taken together), its first and last step with any, and its preemptions."""

    most_blocks: int
    most_runs: int
    first_step: int
    last_step: int
    num_preemptions: int


@dataclass(frozen=True, eq=False)
class Hover:
    """Texts over the map: x [c], block [r], text [r, c], '' for none; ages [r, c, 2] since when and for
    how long it has been so."""

    x: np.ndarray
    block: np.ndarray
    text: np.ndarray
    ages: np.ndarray


@dataclass(frozen=True, eq=False)
class Marks:
    """Preemptions in stretches of the axis: x, count and a few victims [m]."""

    x: np.ndarray
    count: np.ndarray
    victims: list[str]


@dataclass(frozen=True)
class Lit:
    """The chosen request: its id, cut short, and where on the axis it first and last held a block."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class MapPicture:
    """One run's part. index: [rows, columns] palette indices, lowest block first; shown: part of
    the axis; blocks: first and last block shown, per_row of which one pixel row stands for, of which
    it shows one. host: like index, of host blocks 0 to host_blocks; None where nobody used any."""

    side: Side
    name: str
    index: np.ndarray
    shown: tuple[float, float]
    blocks: tuple[int, int]
    per_row: float
    hover: Hover
    marks: Marks
    num_preemptions: int
    host: np.ndarray | None
    host_blocks: int
    scatter: (
        pl.DataFrame
    )  # x; of a request on average: copies, pieces, blocks; most copies of one
    reuse: pl.DataFrame  # x, width, handovers, hits (blocks)
    states: dict[CellState, float]  # share of the shown cells
    lit: Lit | None
    ages_in_steps: bool


@dataclass(frozen=True)
class Asked:
    """What to draw. shown: part of the axis; blocks: first and last, None for all; lit: the request
    to light up; columns, rows: pixels."""

    shown: tuple[float, float]
    by: ColourBy = "owner"
    blocks: tuple[int, int] | None = None
    lit: str | None = None
    columns: int = COLUMNS
    rows: int = ROWS


def rows_at(edges: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Row of the step that runs at each place of the axis; -1 where none does.

    edges: [steps + 1] where each step begins and the last one ends.
    """
    row = np.searchsorted(edges, x, "right") - 1
    return np.where((row >= 0) & (row < len(edges) - 1), row, -1)


def picture(
    run: BlockRun, edges: np.ndarray, asked: Asked, side: Side, name: str, axis: Axis = "time"
) -> MapPicture:
    """The part of a run's map that was asked for."""
    own = run.own
    low, high = _block_range(own, asked.blocks)
    rows = min(asked.rows, high - low + 1)
    blocks = _middles(low, high, rows)
    x = _centres(asked.shown, asked.columns)
    cells = own.at(blocks, rows_at(edges, x))
    states = states_of(cells, run.told)
    index = painted(cells, states, asked.by, None if axis == "step" else run.starts_s)
    code = own.code(asked.lit) if asked.lit is not None else None
    host, host_blocks = _host(run, edges, x, code)
    if code is not None:
        index = lit_up(index, _lit_cells(run, code, edges, asked, (low, high), rows))
    first, stop = _span(edges, asked.shown)
    marks = _marks(run, edges, asked.shown, first, stop)
    return MapPicture(
        side,
        name,
        index,
        asked.shown,
        (low, high),
        (high - low + 1) / rows,
        _hover(run, edges, asked.shown, (low, high), axis),
        marks,
        int(marks.count.sum()),
        host,
        host_blocks,
        _scatter(run, edges, asked.shown),
        _reuse(run, edges, asked.shown, first, stop),
        _shares(states, cells),
        None if code is None else _lit(run, code, edges),
        axis == "step",
    )


def _lit(run: BlockRun, code: int, edges: np.ndarray) -> Lit:
    mine = run.own.of(code)
    first, last = int(run.own.first[mine].min()), int(run.own.last[mine].max())
    return Lit(str(short(run.own.ids[[code]])[0]), float(edges[first]), float(edges[last + 1]))


def _block_range(own: Ownership, asked: tuple[int, int] | None) -> tuple[int, int]:
    most = max(own.num_blocks, 1)
    if asked is None:
        return 1, most
    low, high = max(1, min(asked)), min(most, max(asked))
    return (low, high) if high >= low else (1, most)


def _middles(low: int, high: int, rows: int) -> np.ndarray:
    """The block that each of the pixel rows shows."""
    return low + ((np.arange(rows) + 0.5) * (high - low + 1) / rows).astype(np.int64)


def _centres(shown: tuple[float, float], n: int) -> np.ndarray:
    return shown[0] + (np.arange(n) + 0.5) * (shown[1] - shown[0]) / n


def _span(edges: np.ndarray, shown: tuple[float, float]) -> tuple[int, int]:
    """Rows of the steps that begin in the shown part: [first, stop)."""
    starts = edges[:-1]
    return int(np.searchsorted(starts, shown[0], "left")), int(
        np.searchsorted(starts, shown[1], "right")
    )


def _lit_cells(
    run: BlockRun,
    code: int,
    edges: np.ndarray,
    asked: Asked,
    blocks: tuple[int, int],
    rows: int,
) -> np.ndarray:
    """[rows, columns] whether the request held any block of that pixel in it: none is lost, and in a
    picture of many columns none is thinner than LIT_PX."""
    own = run.own
    mine = own.of(code)
    mine = mine[(own.block[mine] >= blocks[0]) & (own.block[mine] <= blocks[1])]
    start, end = asked.shown
    scale = asked.columns / (end - start)
    left = (edges[own.first[mine]] - start) * scale
    right = (edges[own.last[mine] + 1] - start) * scale
    inside = (right > 0) & (left < asked.columns)
    wide = LIT_PX if asked.columns >= COLUMNS else 1
    left = np.clip(np.floor(left[inside]), 0, asked.columns - wide).astype(np.int64)
    right = np.clip(np.ceil(right[inside]), left + wide, asked.columns).astype(np.int64)
    y = (own.block[mine][inside].astype(np.int64) - blocks[0]) * rows
    y //= blocks[1] - blocks[0] + 1
    change = np.zeros((rows, asked.columns + 1), np.int32)
    np.add.at(change, (y, left), 1)
    np.add.at(change, (y, right), -1)
    return np.cumsum(change, axis=1)[:, :-1] > 0


def _host(
    run: BlockRun, edges: np.ndarray, x: np.ndarray, code: int | None
) -> tuple[np.ndarray | None, int]:
    """Raster of the host tier and the blocks that its height stands for."""
    if run.host is None:
        return None, 0
    index, blocks = run.host.raster(rows_at(edges, x), HOST_ROWS, lit=code)
    return index, blocks


def _hover(
    run: BlockRun,
    edges: np.ndarray,
    shown: tuple[float, float],
    blocks: tuple[int, int],
    axis: Axis,
) -> Hover:
    n = min(HOVER[0], blocks[1] - blocks[0] + 1)
    at = _middles(*blocks, n)
    x = _centres(shown, HOVER[1])
    cells = run.own.at(at, rows_at(edges, x))
    return Hover(x, at, cell_texts(run, cells), cell_ages(run, cells, axis))


def cell_texts(run: BlockRun, cells: Cells) -> np.ndarray:
    """[b, t] who holds each cell and in which state it is, '' where no step is.

    Ids are cut at LONGEST_ID characters, and Plotly's markup in them is made harmless.
    """
    own = cells.ownership
    if not len(own):
        return np.full(cells.latest.shape, WORDS[CellState.UNUSED], object)
    latest = cells.latest.ravel()
    frame = pl.DataFrame(
        {
            "id": short(own.ids)[own.owner[latest]],
            "state": pl.Series(list(WORDS.values()))[states_of(cells, run.told).ravel()],
            "index": own.logical[latest],
            "held": cells.held.ravel(),
            "ever": latest >= 0,
            "there": np.broadcast_to(cells.rows >= 0, cells.latest.shape).ravel(),
        }
    )
    text = (
        pl.when(~pl.col("there"))
        .then(pl.lit(""))
        .when("held")
        .then(pl.format("request {}, its block {}, {}", "id", "index", "state"))
        .when("ever")
        .then(pl.format("{}, last of request {}", "state", "id"))
        .otherwise(pl.lit(WORDS[CellState.UNUSED]))
    )
    return frame.select(text.alias("t"))["t"].to_numpy().reshape(cells.latest.shape)


def cell_ages(run: BlockRun, cells: Cells, axis: Axis) -> np.ndarray:
    """[b, t, 2] since when each cell is as it is and for how long: in seconds, on the axis of steps as
    a step number and steps. float32."""
    own = cells.ownership
    if not len(own):
        return np.zeros((*cells.latest.shape, 2), np.float32)
    latest = cells.latest
    since = np.where(cells.held, own.first[latest], own.last[latest] + 1)
    since = np.where(latest >= 0, np.clip(since, 0, max(own.num_steps - 1, 0)), 0)
    now = np.maximum(cells.rows, 0)[None, :]
    if axis == "step":
        numbers = run.steps["step"].to_numpy()
        return np.stack([numbers[since], now - since], axis=2).astype(np.float32)
    at = run.starts_s
    return np.stack([at[since], at[now] - at[since]], axis=2).astype(np.float32)


def short(ids: pl.Series) -> pl.Series:
    """Ids without what Plotly reads as markup, cut to LONGEST_ID characters."""
    return ids.str.slice(0, LONGEST_ID).str.replace_all("[<>&%{}]", "·")


def _marks(
    run: BlockRun, edges: np.ndarray, shown: tuple[float, float], first: int, stop: int
) -> Marks:
    found = run.preemptions.filter(pl.col("row").is_between(first, stop - 1))
    if found.is_empty():
        return Marks(np.empty(0), np.empty(0, np.int64), [])
    x = edges[found["row"].to_numpy()]
    width = (shown[1] - shown[0]) / MARKS
    told = (
        found.with_columns(
            x=pl.Series(x),
            bucket=pl.Series(np.floor((x - shown[0]) / width).astype(np.int64)),
            request_id=short(found["request_id"]),
        )
        .group_by("bucket", maintain_order=True)
        .agg(
            pl.col("x").first(),
            count=pl.len(),
            victims=pl.col("request_id").unique(maintain_order=True).head(4).str.join(", "),
        )
    )
    return Marks(
        told["x"].to_numpy(),
        told["count"].to_numpy().astype(np.int64),
        told["victims"].to_list(),
    )


def _scatter(run: BlockRun, edges: np.ndarray, shown: tuple[float, float]) -> pl.DataFrame:
    rows = rows_at(edges, np.array(shown))
    last = rows[1] if rows[1] >= 0 else len(edges) - 2
    first = max(int(rows[0]), 0)
    if last < first:
        return pl.DataFrame(schema=dict.fromkeys(_SCATTER, pl.Float64))
    told = block_measures.runs_at(run.own, block_measures.looks(run.own, first, int(last)))
    some = pl.col("num_requests").clip(1)
    return told.select(
        x=pl.Series(edges[told["row"].to_numpy()]),
        copies=pl.col("num_runs") / some,
        most=pl.col("max_runs"),
        pieces=pl.col("num_islands") / some,
        blocks=pl.col("num_blocks") / some,
    )


def _reuse(
    run: BlockRun, edges: np.ndarray, shown: tuple[float, float], first: int, stop: int
) -> pl.DataFrame:
    bounds = np.linspace(*shown, BUCKETS + 1)
    cuts = np.clip(np.searchsorted(edges[:-1], bounds, "left"), first, stop)
    cuts[-1] = stop
    return pl.DataFrame(
        {
            "x": bounds[:-1],
            "width": np.diff(bounds),
            "handovers": block_measures.in_buckets(run.handover_rows, cuts),
            "hits": block_measures.hit_blocks(run.steps, cuts, run.block_size_tokens),
        }
    )


def _shares(states: np.ndarray, cells: Cells) -> dict[CellState, float]:
    there = states[:, cells.rows >= 0]
    counts = np.bincount(there.ravel(), minlength=len(CellState))
    return {s: float(counts[s]) / max(there.size, 1) for s in CellState}
