"""What the Requests page costs the server at millions of requests, and what it sends.

    python benchmarks/requests_page.py [--requests N] [--write]

Two runs are made up (seed 0): requests come at 100 a second, queue, prefill and decode; one preemption
for two requests, by recompute in A and by swap in B; so N requests make about 4.3 N events. Timed in
CPU seconds of one process, since a busy machine stretches wall time: what is done once per recording,
then each picture at the whole run and at a thousandth of it, then the table. Sizes are those of the
figure's JSON. Nothing is drawn: a browser adds its own time (benchmarks of the page drive one).
"""

from __future__ import annotations

import argparse
import datetime
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import numpy as np  # noqa: E402
import polars as pl  # noqa: E402

from analyzer.distributions import curve  # noqa: E402
from analyzer.goodput import goodput_of  # noqa: E402
from analyzer.lanes import Lanes, build_lanes  # noqa: E402
from analyzer.lanes_figure import (  # noqa: E402
    CountRow,
    LaneRow,
    Row,
    SkyRow,
    StripRow,
    lanes_figure,
)
from analyzer.lanes_picture import (  # noqa: E402
    COUNT_COLUMNS,
    bars,
    skyline,
    strips,
    worth_a_look,
)
from analyzer.look import LIGHT, Side  # noqa: E402
from analyzer.request_table import Asked, chosen, paired, rows_of  # noqa: E402
from traces.recording_laws import polars_type  # noqa: E402
from traces.schema import EVENTS, REQUESTS, STEPS, Table  # noqa: E402

RATE = 100.0  # requests a second
STEP_S = 0.025
TOKENS = 200  # lost by each preemption
RESULT = "2026-11-30-requests-page.md"
Tables = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]
T = TypeVar("T")


# ---- made-up runs -------------------------------------------------------------------------------


def made_up(num: int, mode: str) -> Tables:
    """events, steps and requests of a run."""
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(1 / RATE, num))
    scheduled = arrival + rng.exponential(2.0, num) * (1 + np.sin(arrival / 2000))
    token = scheduled + 0.1 + rng.exponential(0.2, num)
    output = rng.integers(1, 600, num)
    finish = token + 0.02 * output
    victim = np.sort(rng.integers(0, num, num // 2))
    nth = np.arange(len(victim)) - np.searchsorted(victim, victim)
    share = (nth + rng.random(len(victim))) / (np.bincount(victim, minlength=num)[victim] + 1)
    gone = token[victim] + (finish - token)[victim] * share
    back = gone + (finish - token)[victim] * 0.01
    kinds = [
        ("arrive", np.arange(num), arrival),
        ("admit", np.arange(num), scheduled),
        ("finish", np.arange(num), finish),
        ("preempt", victim, gone),
        ("resume", victim, back),
    ]
    if mode == "swap":
        kinds += [("swap_out", victim, gone), ("swap_in", victim, back - 1e-4)]
    num_steps = int(finish.max() / STEP_S) + 1
    ids = pl.select(pl.format("request-{}", pl.Series(np.arange(num)))).to_series()
    again = np.bincount((back / STEP_S).astype(np.int64), minlength=num_steps) * TOKENS
    steps = _filled(
        STEPS,
        num_steps,
        step=np.arange(num_steps),
        t_start_s=np.arange(num_steps) * STEP_S,
        duration_s=np.full(num_steps, STEP_S),
        decode_tokens=np.full(num_steps, 200),
        recomputed_tokens=again if mode == "recompute" else np.zeros(num_steps, np.int64),
    )
    requests = _filled(
        REQUESTS,
        num,
        request_id=ids,
        arrival_s=arrival,
        prompt_tokens=np.full(num, 500),
        output_tokens=output,
        first_scheduled_s=scheduled,
        first_token_s=token,
        finish_s=finish,
        num_preemptions=np.bincount(victim, minlength=num),
        preempted_s=np.bincount(victim, weights=back - gone, minlength=num),
        status=pl.repeat("finished", num, eager=True),
    )
    return _events(kinds, ids, mode, num_steps), steps, requests


def _events(
    kinds: list[tuple[str, np.ndarray, np.ndarray]], ids: pl.Series, mode: str, num_steps: int
) -> pl.DataFrame:
    names = [kind for kind, _, _ in kinds]
    code = np.repeat(np.arange(len(kinds)), [len(rows) for _, rows, _ in kinds])
    rows = np.concatenate([rows for _, rows, _ in kinds])
    t_s = np.concatenate([t for _, _, t in kinds])
    order = np.lexsort((code, t_s))
    kind = pl.Series(names).gather(code[order])
    frame = _filled(
        EVENTS,
        len(order),
        step=np.minimum((t_s[order] / STEP_S).astype(np.int64), num_steps - 1),
        t_s=t_s[order],
        kind=kind,
        request_id=ids.gather(rows[order]),
        tokens=np.full(len(order), TOKENS),
    )
    is_victim = pl.col("kind").cast(pl.String) == "preempt"
    return frame.with_columns(
        mode_used=pl.when(is_victim).then(pl.lit(mode)).cast(frame.schema["mode_used"]),
        tokens=pl.when(pl.col("kind").cast(pl.String) == "resume").then(0).otherwise("tokens"),
    )


def _filled(table: Table, height: int, **given: Any) -> pl.DataFrame:
    """A table of the contract: given columns, and null or 0 elsewhere."""
    columns = []
    for column in table.columns:
        type_ = polars_type(column)
        if column.name in given:
            columns.append(pl.Series(column.name, given[column.name]).cast(type_))
        else:
            fill = None if column.nullable or type_ == pl.String else 0
            columns.append(pl.repeat(fill, height, dtype=type_, eager=True).alias(column.name))
    return pl.DataFrame(columns)


# ---- what is timed ------------------------------------------------------------------------------


class Clock:
    """Rows of the report, as they are measured."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, str]] = []

    def time(
        self, what: str, run: Callable[[], T], note: Callable[[T], str] | None = None
    ) -> T:
        started = time.process_time()
        found = run()
        took = time.process_time() - started
        self.rows.append((what, took, note(found) if note else ""))
        print(f"{what:52s} {took:8.3f} s  {self.rows[-1][2]}", flush=True)
        return found

    def table(self) -> str:
        lines = ["| what | CPU s | |", "| --- | ---: | --- |"]
        return "\n".join([*lines, *(f"| {w} | {s:.3f} | {n} |" for w, s, n in self.rows)])


def measure(num: int) -> Clock:
    """Everything that the page does, on made-up runs of so many requests."""
    clock = Clock()
    tables: dict[Side, Tables] = {"A": made_up(num, "recompute"), "B": made_up(num, "swap")}
    print({s: [t.height for t in x] for s, x in tables.items()})
    lanes: dict[Side, Lanes] = {}
    for side, (events, steps, requests) in tables.items():
        lanes[side] = clock.time(
            f"once: lanes of {side}",
            lambda e=events, s=steps, r=requests: build_lanes(e, s, r),  # type: ignore[misc]
            lambda x: f"{len(x.phase):,} intervals",
        )
    pair = clock.time(
        "once: requests of both runs matched",
        lambda: paired({s: t[2] for s, t in tables.items()}),
    )
    end = max(x.end_of_run_s for x in lanes.values())
    for name, shown in (("whole run", (0.0, end)), ("a thousandth", (end * 0.5, end * 0.501))):
        _pictures(clock, name, shown, lanes, tables, pair)
    _numbers(clock, tables, pair)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")
    return clock


def _pictures(
    clock: Clock,
    name: str,
    shown: tuple[float, float],
    lanes: dict[Side, Lanes],
    tables: dict[Side, Tables],
    pair: Any,
) -> None:
    rows: list[Row] = []
    for side, x in lanes.items():
        found = clock.time(
            f"{name}: strips of {side}",
            lambda x=x: strips(x, shown),  # type: ignore[misc]
            lambda s: f"{len(s.lanes):,} requests",
        )
        rows += [
            CountRow(side, "run", found.counts(COUNT_COLUMNS), 500.0),
            StripRow(side, "run", found),
        ]
    for side, x in lanes.items():
        sky = clock.time(f"{name}: skyline of {side}", lambda x=x: skyline(x, shown))  # type: ignore[misc]
        ids = tables[side][2]["request_id"].gather(x.row[sky.lanes]).to_list()
        rows.append(SkyRow(side, "run", sky, ids))
    same = {s: np.append(x.lane, x.num_lanes)[pair.rows[s]] for s, x in lanes.items()}
    numbers, why = clock.time(
        f"{name}: which lanes in detail",
        lambda: worth_a_look(lanes, same, shown, 24),
        lambda found: found[1],
    )
    names = pair.ids.gather(numbers).to_list()
    for side, x in lanes.items():
        rows.append(LaneRow(side, "run", names, bars(x, same[side][numbers], shown), why))
    clock.time(
        f"{name}: all rows as a figure",
        lambda: len(lanes_figure(rows, shown, LIGHT).to_json()),
        lambda size: f"{size / 1e3:,.0f} kB",
    )


def _numbers(clock: Clock, tables: dict[Side, Tables], pair: Any) -> None:
    events, steps, requests = tables["A"]
    for metric in ("ttft_s", "e2e_s", "itl_s"):
        clock.time(
            f"once: distribution of {metric} in A",
            lambda m=metric: curve(m, requests, events, steps),  # type: ignore[misc]
            lambda found: f"{len(found.x_s):,} points of {found.num:,}",
        )
    clock.time(
        "goodput of A", lambda: goodput_of(requests, {"ttft_s": 2.0, "tpot_s": 0.1}, 1e4)
    )
    asked = Asked(sort="e2e_s", which="B − A", descending=True)
    numbers = clock.time("table: sorted by B − A", lambda: chosen(pair, asked))
    clock.time("table: found by a part of the id", lambda: chosen(pair, Asked(find="-77")))
    clock.time("table: a page of 200 rows", lambda: rows_of(pair, numbers[:200]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--write", action="store_true", help=f"write results/{RESULT}")
    given = parser.parse_args()
    clock = measure(given.requests)
    if given.write:
        head = (
            f"# The Requests page on the server, {datetime.date.today():%Y-%m-%d}\n\n"
            f"`python benchmarks/requests_page.py --requests {given.requests}` on {platform.machine()}, "
            f"Python {platform.python_version()}, polars {pl.__version__}, numpy {np.__version__}; "
            f"{given.requests:,} requests a run, seed 0, one pass, nothing warmed up; CPU seconds of the process.\n\n"
        )
        path = ROOT / "benchmarks" / "results" / RESULT
        path.write_text(f"{head}{clock.table()}\n", "utf-8")


if __name__ == "__main__":
    main()
