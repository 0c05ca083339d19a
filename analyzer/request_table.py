"""Requests of one to three runs beside each other: matched by id, found, sorted, and a part of them.

It knows `requests` of the runs. Ids are text and may be long: they are cut only where they are shown.
Values are gathered a column at a time, so that millions of requests need no second copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from analyzer.latency import request_latency
from analyzer.look import Side
from traces.errors import SettingsError

Which = Literal["A", "B", "C", "B − A", "C − A"]
# Figures of a request: name -> (label, unit).
FIGURES: dict[str, tuple[str, str]] = {
    "ttft_s": ("TTFT", "s"),
    "tpot_s": ("TPOT", "ms"),
    "e2e_s": ("E2E", "s"),
    "queue_s": ("Queueing", "s"),
    "preempted_s": ("Away, preempted", "s"),
    "num_preemptions": ("Preemptions", ""),
    "recomputed_tokens": ("Recomputed", "tokens"),
    "max_itl_s": ("Longest gap", "ms"),
}
ASKED = ("arrival_s", "prompt_tokens", "output_tokens")  # the same in both, as far as they ran
LONGEST_ID = 60
_LATENCY = ("ttft_s", "tpot_s", "e2e_s", "queue_s")


@dataclass(frozen=True, eq=False)
class Paired:
    """Requests of all runs, numbered 0 to n: A's in the order of its table, then what others add.

    ids [n]; rows[side] [n]: the row in that run's `requests`, its height where it has none;
    tables: side -> `requests`.
    """

    ids: pl.Series
    rows: Mapping[Side, np.ndarray]
    tables: Mapping[Side, pl.DataFrame]

    def __len__(self) -> int:
        return len(self.ids)

    def number(self, request_id: str) -> int | None:
        """The request of that id; None where there is none."""
        found = (self.ids == request_id).arg_max()
        return None if found is None or self.ids[found] != request_id else int(found)

    def row(self, side: Side, number: int) -> int | None:
        """Row of a request in a run; None where the run does not have it."""
        at = int(self.rows[side][number])
        return at if at < self.tables[side].height else None

    def values(self, side: Side, name: str) -> np.ndarray:
        """A figure of every request in a run, NaN where there is none. [n]. Raises SettingsError."""
        table = self.tables[side]
        if name in _LATENCY:
            column = request_latency(table)[name]
        elif name in FIGURES or name in ASKED:
            column = table[name]
        else:
            raise SettingsError(f"{name}: no such figure. Choose from {', '.join(FIGURES)}.")
        found = column.cast(pl.Float64).to_numpy()
        return np.append(found, np.nan)[self.rows[side]]

    def figure(self, which: Which, name: str) -> np.ndarray:
        """A figure of every request in a run, or the difference of two; NaN where there is none. [n]."""
        if which in ("A", "B", "C"):
            return self.values(which, name)
        side: Side = "B" if which == "B − A" else "C"
        return self.values(side, name) - self.values("A", name)

    @property
    def columns(self) -> list[Which]:
        """The runs, each but the first followed by its difference from A."""
        found: list[Which] = ["A"]
        if "B" in self.rows:
            found += ["B", "B − A"]
        if "C" in self.rows:
            found += ["C", "C − A"]
        return found

    def part(self, numbers: np.ndarray) -> Paired:
        """These requests alone, in that order, numbered anew."""
        rows: dict[Side, np.ndarray] = {}
        tables: dict[Side, pl.DataFrame] = {}
        for side, table in self.tables.items():
            at = self.rows[side][numbers]
            there = at < table.height
            tables[side] = table[at[there]]
            rows[side] = np.where(there, np.cumsum(there) - 1, int(there.sum()))
        return Paired(self.ids.gather(numbers), rows, tables)


def paired(tables: Mapping[Side, pl.DataFrame]) -> Paired:
    """Requests of all runs, matched by id. tables: side -> `requests`, A first."""
    first, *others = (table["request_id"] for table in tables.values())
    if all(len(ids) == len(first) and (ids == first).all() for ids in others):
        return Paired(first, dict.fromkeys(tables, np.arange(len(first))), tables)
    ids = pl.concat([first, *others]).unique(maintain_order=True)
    rows: dict[Side, np.ndarray] = {}
    for side, table in tables.items():
        at = table.select("request_id").with_row_index("row")
        found = ids.to_frame().join(at, on="request_id", how="left", maintain_order="left")
        rows[side] = found["row"].cast(pl.Int64).fill_null(table.height).to_numpy()
    return Paired(ids, rows, tables)


@dataclass(frozen=True)
class Asked:
    """Which rows: find: a part of the id, "" for all; sort: a figure, or one of ASKED; which: of a
    run, or a difference; descending: the greatest first. Requests without that value come last."""

    find: str = ""
    sort: str = "arrival_s"
    which: Which = "A"
    descending: bool = False


def chosen(pair: Paired, asked: Asked) -> np.ndarray:
    """Numbers of the requests asked for, in order; ties in the order of arrival in the table."""
    numbers = np.arange(len(pair))
    if asked.find:
        numbers = np.flatnonzero(pair.ids.str.contains(asked.find, literal=True).to_numpy())
    value = pair.figure(asked.which, asked.sort)[numbers]
    order = np.argsort(-value if asked.descending else value, kind="stable")  # NaN last
    return numbers[order]


def rows_of(
    pair: Paired, numbers: np.ndarray, longest: int | None = LONGEST_ID
) -> pl.DataFrame:
    """The table of these requests: id (cut to `longest` characters), what was asked, status and
    figures of the runs and their differences.

    Columns: request, arrival_s, prompt_tokens, output_tokens, "status · A" and so on for each run,
    and "NAME · A", "NAME · B", "NAME · B − A" of each of FIGURES.
    """
    part = pair.part(numbers)
    columns = {"request": shortened(part.ids, longest)}
    for name in ASKED:
        columns[name] = pl.Series(_first_known([part.values(s, name) for s in part.rows]))
    columns |= {f"status · {side}": _status(part, side) for side in part.rows}
    for name in FIGURES:
        columns |= {
            f"{name} · {which}": pl.Series(part.figure(which, name)) for which in part.columns
        }
    return pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))


def _first_known(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Of each row the first value that is there."""
    found = columns[0]
    for other in columns[1:]:
        found = np.where(np.isnan(found), other, found)
    return found


def _status(pair: Paired, side: Side) -> pl.Series:
    column = pair.tables[side]["status"].cast(pl.String)
    with_none = pl.concat([column, pl.Series([None], dtype=pl.String)])
    return with_none.gather(pair.rows[side])


def shortened(ids: pl.Series, longest: int | None = LONGEST_ID) -> pl.Series:
    """Ids cut to so many characters, with the length said where one was cut; None: as they are."""
    if longest is None:
        return ids
    length = ids.str.len_chars()
    frame = pl.DataFrame({"id": ids, "n": length})
    return frame.select(
        pl.when(pl.col("n") <= longest)
        .then("id")
        .otherwise(pl.format("{}… ({} characters)", pl.col("id").str.slice(0, longest), "n"))
        .alias("id")
    )["id"]
