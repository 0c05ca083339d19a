"""Requests of two runs beside each other: matched by id, found, sorted, and a page of them.

It knows `requests` of both runs. Ids are text and may be long: they are cut only where they are shown.
Values are gathered a column at a time, so that millions of requests need no second copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from analyzer.latency import request_latency
from analyzer.look import Side
from traces.errors import SettingsError

Which = Literal["A", "B", "delta"]
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
    """Requests of A and B, numbered 0 to n: A's in the order of its table, then those only B has.

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

    def delta(self, name: str) -> np.ndarray:
        """B less A of a figure, NaN where one of them has none. [n]."""
        return self.values("B", name) - self.values("A", name)

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


def paired(a: pl.DataFrame, b: pl.DataFrame) -> Paired:
    """Requests of both runs, matched by id. a, b: their `requests`."""
    left, right = a["request_id"], b["request_id"]
    if len(left) == len(right) and (left == right).all():
        rows: dict[Side, np.ndarray] = {"A": np.arange(len(left)), "B": np.arange(len(left))}
        return Paired(left, rows, {"A": a, "B": b})
    ours = a.select("request_id").with_row_index("in_a")
    theirs = b.select("request_id").with_row_index("in_b")
    both = ours.join(theirs, on="request_id", how="left", maintain_order="left")
    only_b = theirs.join(ours, on="request_id", how="anti", maintain_order="left")
    in_b = np.concatenate(
        [both["in_b"].fill_null(b.height).to_numpy(), only_b["in_b"].to_numpy()]
    )
    in_a = np.concatenate([np.arange(a.height), np.full(only_b.height, a.height)])
    ids = pl.concat([left, only_b["request_id"]])
    return Paired(ids, {"A": in_a, "B": in_b.astype(np.int64)}, {"A": a, "B": b})


@dataclass(frozen=True)
class Asked:
    """Which rows: find: a part of the id, "" for all; sort: a figure, or one of ASKED; which: of A,
    of B, or B less A; descending: the greatest first. Requests without that value come last."""

    find: str = ""
    sort: str = "arrival_s"
    which: Which = "A"
    descending: bool = False


def chosen(pair: Paired, asked: Asked) -> np.ndarray:
    """Numbers of the requests asked for, in order; ties in the order of arrival in the table."""
    numbers = np.arange(len(pair))
    if asked.find:
        numbers = np.flatnonzero(pair.ids.str.contains(asked.find, literal=True).to_numpy())
    if asked.which == "delta":
        value = pair.delta(asked.sort)[numbers]
    else:
        value = pair.values(asked.which, asked.sort)[numbers]
    order = np.argsort(-value if asked.descending else value, kind="stable")  # NaN last
    return numbers[order]


def rows_of(
    pair: Paired, numbers: np.ndarray, longest: int | None = LONGEST_ID
) -> pl.DataFrame:
    """The table of these requests: id (cut to `longest` characters), what was asked, status and
    figures of A and B and their difference. Columns: request, arrival_s, prompt_tokens,
    output_tokens, status · A, status · B, and NAME · A, NAME · B, NAME · Δ of each of FIGURES."""
    part = pair.part(numbers)
    asked = {name: _either(part.values("A", name), part.values("B", name)) for name in ASKED}
    figures: dict[str, np.ndarray] = {}
    for name in FIGURES:
        a, b = part.values("A", name), part.values("B", name)
        figures |= {f"{name} · A": a, f"{name} · B": b, f"{name} · Δ": b - a}
    return pl.DataFrame(
        {
            "request": shortened(part.ids, longest),
            **{name: pl.Series(v).fill_nan(None) for name, v in asked.items()},
            "status · A": _status(part, "A"),
            "status · B": _status(part, "B"),
            **{name: pl.Series(v).fill_nan(None) for name, v in figures.items()},
        }
    )


def _either(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(a), b, a)


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
