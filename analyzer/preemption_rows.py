"""The preemptions of one or two runs as one list: what each run could tell, filtered, ordered, paged.

It knows tables as from `preemptions`, and which of their columns rest on what was not recorded; what
it cannot tell is null, never 0. It keeps row numbers, not copies, so that a list of millions costs
little. It does not know how a preemption is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from analyzer.look import Side
from analyzer.measured import recompute_token_s
from analyzer.preemptions import preemptions, recompute_steps
from analyzer.run import Run
from traces.recording import Meta

LONGEST_IN_URL = 120
Order = Literal["time", "cost", "others", "away", "tokens"]
ORDERS: dict[Order, str] = {
    "time": "Oldest first",
    "cost": "Costliest first",
    "others": "Most delay of others",
    "away": "Longest away",
    "tokens": "Most recomputed",
}
_BY: dict[Order, str] = {
    "time": "t_s",
    "cost": "direct_cost_s",
    "others": "induced_s",
    "away": "away_s",
    "tokens": "recomputed_tokens",
}
_COSTS = ("direct_cost_s", "uncached_cost_s")
# events' columns that `preemptions` reads as unknown where they are null
_NULL_IS_READ = ("cost_s", "recompute_est_s", "swap_est_s", "cause_request_id")
# what was not recorded -> the columns of a told table that say nothing then
_RESTS_ON: dict[str, tuple[str, ...]] = {
    "events.free_blocks_before": ("free_blocks_before",),
    "events.blocks": ("blocks",),
    "events.bytes": ("bytes",),
    "events.mode_asked": ("mode_asked",),
    "events.mode_used": ("mode_used",),
    "events.tokens": ("tokens", "found_tokens", "recomputed_tokens", *_COSTS, "induced_s"),
    "steps.recomputed_tokens": ("induced_s", "again_first_step", "again_last_step"),
    "steps.duration_s": ("induced_s", "stalled_s"),
    "steps.num_running": ("induced_s",),
}
# what only swaps rest on
_SWAPS_REST_ON: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("steps.stall_s", "steps.swap_out_bytes", "steps.swap_in_bytes", "events.bytes"),
    ("induced_s", "stalled_s"),
)


@dataclass(frozen=True)
class EventKey:
    """Which preemption: of which run, at which step, of which request."""

    side: Side
    step: int
    request_id: str

    @property
    def text(self) -> str:
        """'A-480-53', as the URL holds it; `parse_event` reads it. Of a long id it holds a digest."""
        name = self.request_id
        if len(name) > LONGEST_IN_URL:
            name = f"~{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
        return f"{self.side}-{self.step}-{name}"


def parse_event(text: str) -> EventKey | None:
    """'A-480-53' -> its parts; None for anything else. A request id may hold dashes itself."""
    side, _, rest = text.partition("-")
    step, dash, request_id = rest.partition("-")
    if side not in ("A", "B", "C") or not dash or not (step.isascii() and step.isdigit()):
        return None
    return EventKey(side, int(step[:18]), request_id)  # type: ignore[arg-type]  # checked above


def told(run: Run) -> pl.DataFrame:
    """The run's preemptions with nulls for whatever it could not tell.

    Columns of `preemptions`, and again_first_step, again_last_step: the steps in which the lost
    tokens were computed again.
    """
    meta = run.meta
    events = run.events.with_columns(
        pl.lit(None, dtype=run.events.schema[c]).alias(c)
        for c in _NULL_IS_READ
        if f"events.{c}" in meta.not_recorded
    )
    table = preemptions(events, run.steps, token_s=recompute_token_s(run.recording))
    return _without_unknown(table.hstack(recompute_steps(table, run.steps)), meta)


def _without_unknown(table: pl.DataFrame, meta: Meta) -> pl.DataFrame:
    """The table with nulls where what a column rests on was not recorded, or counts no seconds."""
    unseen = meta.not_recorded
    silent = {c for column in unseen for c in _RESTS_ON.get(column, ())}
    if meta.clock == "step":  # a step's length is 1 there, and costs are of no machine
        silent |= {*_COSTS, "recompute_est_s", "swap_est_s"}
    swaps = {c for column in unseen for c in _SWAPS_REST_ON.get(column, ())} - silent
    by_tokens = (pl.col("mode_used").cast(pl.String) != "swap").fill_null(False)
    return table.with_columns(
        *(pl.lit(None, dtype=table.schema[c]).alias(c) for c in sorted(silent)),
        *(pl.when(by_tokens).then(pl.col(c)).alias(c) for c in sorted(swaps)),
    )


class Listed:
    """The preemptions of all runs in one list. tables: side -> as from `told`, A first."""

    def __init__(self, tables: Mapping[Side, pl.DataFrame]) -> None:
        self.tables = dict(tables)
        self.table = pl.concat(
            [t.with_columns(pl.lit(side).alias("side")) for side, t in tables.items()],
            rechunk=False,
        )

    def rows(
        self,
        sides: tuple[Side, ...],
        search: str = "",
        order: Order = "time",
        within_s: tuple[float, float] | None = None,
        exact: bool = False,
    ) -> np.ndarray:
        """Row numbers of `table` that fit, in order: (n,) uint32. Ties: by time, A before B.

        search: part of the victim's or the aggressor's id, letter case ignored (exact: the whole
        id); within_s: times of the preemption. Orders but time begin with the greatest; what is not
        known comes last.
        """
        columns = ["side", "t_s", _BY[order], "request_id", "cause_request_id"]
        frame = self.table.lazy().select(list(dict.fromkeys(columns))).with_row_index("row")
        frame = frame.filter(pl.col("side").is_in(list(sides)))
        if search:
            frame = frame.filter(_matches(search, exact))
        if within_s is not None:
            frame = frame.filter(pl.col("t_s").is_between(*within_s))
        by = ["t_s"] if order == "time" else [_BY[order], "t_s"]
        found = frame.sort(
            by, descending=[c != "t_s" for c in by], nulls_last=True, maintain_order=True
        )
        return found.select("row").collect()["row"].to_numpy()

    def page(self, rows: np.ndarray, nth: int, size: int) -> pl.DataFrame:
        """The nth page of these rows, from 0."""
        return self.table[rows[nth * size : (nth + 1) * size]]

    def find(self, key: EventKey) -> int | None:
        """Row number of a preemption; None where the run has no such one."""
        beside = (
            self.table.lazy()
            .with_row_index("row")
            .filter((pl.col("step") == key.step) & (pl.col("side") == key.side))
            .select("row", "request_id")
            .collect()
        )
        for row, request_id in beside.rows():  # the victims of one step
            if EventKey(key.side, key.step, request_id).text == key.text:
                return int(row)
        return None

    def event(self, row: int) -> EventKey:
        """Which preemption a row number of `table` stands for."""
        side, step, request_id = self.table.select("side", "step", "request_id").row(row)
        return EventKey(side, int(step), str(request_id))


def place_in(rows: np.ndarray, row: int | None) -> int | None:
    """Where in these rows a row number is; None where it is not among them."""
    if row is None:
        return None
    hits = np.flatnonzero(rows == row)
    return int(hits[0]) if len(hits) else None


def _matches(search: str, exact: bool) -> pl.Expr:
    ids = (pl.col("request_id"), pl.col("cause_request_id"))
    if exact:
        victim, cause = (c == search for c in ids)
    else:
        low = search.lower()
        victim, cause = (c.str.to_lowercase().str.contains(low, literal=True) for c in ids)
    return victim | cause.fill_null(False)
