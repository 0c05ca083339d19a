"""Preemptions over a run as rows of a timeline: how many, what they cost, whom they held up, cascades.

It knows told tables and the marks of `figures`; it draws nothing, and a value that is not known makes
no bar: the row then says of which run it was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from analyzer.figures import Readings, Row, XAxis
from analyzer.look import Side
from analyzer.marks import Bars
from analyzer.preemption_totals import BUCKETS, over_time

_ROWS = (
    ("num", "Preemptions", "per bucket", ",.0f", ""),
    ("direct_s", "Direct cost", "s per bucket", ",.3f", "s"),
    ("induced_s", "Delay of others", "request-seconds per bucket", ",.2f", "req·s"),
    ("cascade", "Largest cascade", "preemptions at most 4 steps apart", ",.0f", ""),
)


def rows_over_time(
    tables: Mapping[Side, pl.DataFrame], end_s: float, in_steps: bool = False
) -> tuple[list[Row], XAxis, dict[Side, pl.DataFrame]]:
    """Rows, their x axis, and the buckets of each run. tables: side -> as from `told`; end_s: of the
    longest run; in_steps: the clock counts steps, so that nothing is in seconds."""
    buckets = {side: over_time(table, end_s) for side, table in tables.items()}
    width = max(end_s, 1e-9) / BUCKETS
    starts = np.linspace(0.0, width * BUCKETS, BUCKETS + 1)[:-1]
    rows = [
        _row(key, title, unit, number, short, buckets, starts, width)
        for key, title, unit, number, short in _ROWS
        if not (in_steps and key == "direct_s")
        and not (key == "cascade" and not any(b["cascade"].sum() for b in buckets.values()))
    ]
    title, unit = ("Steps since the start", "") if in_steps else ("Time since the start", "s")
    return rows, XAxis(title, unit, (0.0, width * BUCKETS), starts + width / 2), buckets


def _row(
    key: str,
    title: str,
    unit: str,
    number: str,
    short: str,
    buckets: Mapping[Side, pl.DataFrame],
    starts: np.ndarray,
    width: float,
) -> Row:
    marks: list[Bars] = []
    values: dict[str, np.ndarray] = {}  # by side
    unknown: list[Side] = []
    for side, table in buckets.items():
        y = table[key].cast(pl.Float64).to_numpy()
        if np.isnan(y).any():
            unknown.append(side)
        if np.isnan(y).all() or (np.isnan(y).any() and not np.nansum(y)):
            continue
        place = (list(buckets).index(side), len(buckets))
        marks.append(Bars(f"{title} · {side}", starts, width, y, side, place))
        values[side] = y
    return Row(
        key=key,
        title=title,
        unit=unit,
        marks=marks,
        height_px=62,
        note=_note(unknown),
        empty="not recorded",
        readings=Readings(title, values, short, number) if values else None,
    )


def _note(sides: Sequence[Side]) -> str:
    return f"not recorded in {' and '.join(sides)}" if sides else ""


def as_table(buckets: Mapping[Side, pl.DataFrame]) -> pl.DataFrame:
    """The buckets of all runs beside each other, those in which nothing happened left out."""
    first = next(iter(buckets.values()))
    names = {"num": "preemptions", "direct_s": "direct cost (s)", "induced_s": "others (req·s)", "cascade": "largest cascade"}  # fmt: skip
    table = first.select(
        pl.col("start_s").round(2).alias("from (s)"), pl.col("end_s").round(2).alias("to (s)")
    ).hstack(
        [
            own[key].round(3).alias(f"{said} · {side}") if own[key].dtype == pl.Float64 else own[key].alias(f"{said} · {side}")
            for key, said in names.items()
            for side, own in buckets.items()
        ]
    )  # fmt: skip
    happened = pl.any_horizontal(pl.col(f"preemptions · {side}") > 0 for side in buckets)
    return table.filter(happened)
