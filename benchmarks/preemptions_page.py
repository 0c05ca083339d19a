"""What the Preemptions page costs on the server, from 10 thousand to a million preemptions a run.

    python benchmarks/preemptions_page.py [--write] [--browser]

Made-up runs: a preemption every other step on average, of one request after the other, each back
within 60 steps. Per size, for a pair of such runs

- told: costs, delays and cascades of every preemption of one run, once when the page is opened;
- lanes: swim lanes of one run, once;
- list: rows of both runs in order, by time, by cost, and for a search, once for each;
- one: what choosing another preemption costs: its place, page, story, lanes around it, the other run;
- totals: sums, the other mode, repeats, top requests, over time, once;
- sent: bytes of the figure around one, the page of the list and the figures of the totals.

CPU seconds: wall times would measure who else is on the machine. --browser adds wall times in Chromium:
until the picture around the first one is drawn on a server that has told them once, from a press on
Next to the next card, and from choosing an order to the sorted list.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

from analyzer.figures import timeline  # noqa: E402
from analyzer.lanes import build_lanes  # noqa: E402
from analyzer.look import LIGHT, Side  # noqa: E402
from analyzer.preemption_around import around  # noqa: E402
from analyzer.preemption_figure import lanes_around  # noqa: E402
from analyzer.preemption_over_time import rows_over_time  # noqa: E402
from analyzer.preemption_rows import Listed, place_in, told  # noqa: E402
from analyzer.preemption_story import same_request, tell  # noqa: E402
from analyzer.preemption_totals import (  # noqa: E402
    largest_cascades,
    otherwise,
    repeats,
    sums,
    top,
)
from analyzer.preemption_totals_figure import otherwise_bars, repeats_bars  # noqa: E402
from analyzer.run import Run  # noqa: E402
from tests.builders import make_meta  # noqa: E402
from traces.recording import open_recording, write_recording  # noqa: E402
from traces.schema import EVENTS, REQUESTS, STEPS, Table  # noqa: E402

SIZES = (10_000, 100_000, 1_000_000)
STEP_S = 0.025
POOL = 2_588
BOTH: tuple[Side, ...] = ("A", "B")


def made_up(folder: Path, num: int, seed: int) -> Path:
    """A recording of that many preemptions in twice as many steps, of a fifth as many requests."""
    rng = np.random.default_rng(seed)
    num_steps, num_requests = 2 * num + 100, num // 5
    gone = np.sort(rng.integers(10, 2 * num, num))
    back = np.minimum(gone + rng.integers(1, 60, num), num_steps - 1)
    names = pl.Series(np.arange(num_requests)).cast(pl.String)
    who = np.arange(num) % num_requests
    tokens = rng.integers(100, 2_000, num)
    step = np.concatenate([gone, back])
    order = np.argsort(step, kind="stable")
    is_gone = order < num
    cause = names[((np.concatenate([who, who]) + 7) % num_requests)[order]]
    price = np.concatenate([tokens, tokens])[order] * 1.1e-4

    def where_gone(values: Any) -> Any:
        return pl.Series(values).scatter(np.flatnonzero(~is_gone), None)

    events = {
        "step": step[order],
        "t_s": step[order] * STEP_S,
        "kind": np.where(is_gone, "preempt", "resume"),
        "request_id": names[np.concatenate([who, who])[order]],
        "mode_asked": where_gone(np.full(2 * num, "recompute")),
        "mode_used": where_gone(np.full(2 * num, "recompute")),
        "blocks": np.full(2 * num, 60),
        "tokens": np.where(is_gone, np.concatenate([tokens, tokens // 4])[order], 50),
        "cost_s": where_gone(price),
        "recompute_est_s": where_gone(price * 0.9),
        "swap_est_s": where_gone(price * 0.2),
        "cause_request_id": where_gone(cause),
    }
    began = np.sort(rng.random(num_requests)) * 0.2
    requests = {
        "request_id": names,
        "arrival_s": began,
        "prompt_tokens": np.full(num_requests, 400),
        "output_tokens": np.full(num_requests, 600),
        "first_scheduled_s": began,
        "first_token_s": began + 0.05,
        "finish_s": np.full(num_requests, num_steps * STEP_S),
        "status": np.full(num_requests, "finished"),
    }
    used = rng.integers(POOL - 200, POOL + 1, num_steps)
    steps = {
        "step": np.arange(num_steps),
        "t_start_s": np.arange(num_steps) * STEP_S,
        "duration_s": np.full(num_steps, STEP_S),
        "num_running": np.full(num_steps, 30),
        "num_preempted": np.bincount(gone, minlength=num_steps),
        "decode_tokens": np.full(num_steps, 30),
        "recomputed_tokens": np.full(num_steps, int(tokens.sum()) // num_steps + 1),
        "used_blocks": used,
        "free_blocks": POOL - used,
    }
    tables = {
        spec.name: _filled(spec, columns)
        for spec, columns in ((STEPS, steps), (EVENTS, events), (REQUESTS, requests))
    }
    folder.mkdir(parents=True, exist_ok=True)
    return write_recording(folder, tables, make_meta(POOL))


def _filled(spec: Table, columns: dict[str, Any]) -> Any:
    """The table with those columns; the others are 0, or null where that is allowed."""
    frame = pl.DataFrame(columns)
    rest = [
        pl.lit(None if c.nullable else "" if "string" in str(c.type) else 0).alias(c.name)
        for c in spec.columns
        if c.name not in columns
    ]
    return frame.with_columns(rest).select(spec.names).to_arrow().cast(spec.arrow)


def cpu(work: Callable[[], Any], times: int = 1) -> tuple[float, Any]:
    """Least CPU seconds of a few tries, and what came back."""
    tries, result = [], None
    for _ in range(times):
        started = time.process_time()
        result = work()
        tries.append(time.process_time() - started)
    return min(tries), result


def measure(folders: tuple[Path, Path], num: int) -> list[str]:
    """One row of the table."""
    runs: dict[Side, Run] = {}
    for side, folder in zip(BOTH, folders, strict=True):
        runs[side] = Run(f"file:{side}", open_recording(folder))
        assert runs[side].events.height
        assert runs[side].steps.height
        assert runs[side].requests.height
    told_s, a = cpu(lambda: told(runs["A"]))
    tables: dict[Side, pl.DataFrame] = {"A": a, "B": told(runs["B"])}
    lanes_s, lanes = cpu(
        lambda: build_lanes(runs["A"].events, runs["A"].steps, runs["A"].requests)
    )
    listed = Listed(tables)
    by_time_s, rows = cpu(lambda: listed.rows(BOTH))
    by_cost_s, _ = cpu(lambda: listed.rows(BOTH, order="cost"))
    search_s, _ = cpu(lambda: listed.rows(BOTH, search="123"))

    def one() -> Any:
        at = int(rows[len(rows) // 2])
        found = listed.find(listed.event(at))
        assert found == at
        place = place_in(rows, at)
        assert place is not None
        page = listed.page(rows, place // 100, 100)
        row = listed.table.row(at, named=True)
        own = tables[row["side"]]
        cascade = own.filter(pl.col("cascade_id") == row["cascade_id"])
        run = runs[row["side"]]
        tell(run, row, cascade)
        near = around(row, lanes, run.requests, run.steps, cascade, POOL)
        same_request(runs, tables, row["request_id"])
        return page, lanes_around(near, "A", LIGHT).to_json()

    one_s, (page, figure) = cpu(one, times=3)
    end_s = 2 * num * STEP_S

    def totals() -> int:
        for table in tables.values():
            sums(table)
        other = {side: otherwise(t) for side, t in tables.items()}
        largest_cascades(tables)
        top(tables, "victims")
        top(tables, "aggressors")
        drawn, axis, _ = rows_over_time(tables, end_s)
        figures = (
            timeline(drawn, axis, {"A": "recompute", "B": "swap"}, LIGHT),
            otherwise_bars(other, LIGHT),
            repeats_bars(repeats(tables), LIGHT),
        )
        return sum(len(f.to_json()) for f in figures)

    totals_s, drawn_bytes = cpu(totals)
    sent = (len(figure), int(page.estimated_size()), drawn_bytes)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [
        f"{num:,}",
        f"{told_s:,.2f} s",
        f"{lanes_s:,.2f} s",
        f"{by_time_s:,.2f} / {by_cost_s:,.2f} / {search_s:,.2f} s",
        f"{one_s:,.3f} s",
        f"{totals_s:,.2f} s",
        " + ".join(f"{b / 1e3:,.0f}" for b in sent) + " kB",
        f"{memory:,.1f} GiB",
    ]


def in_browser(folders: tuple[Path, Path], num: int, cache: Path) -> list[str]:
    """Wall seconds in Chromium: the first picture, the next preemption, another order."""
    from analyzer.pages.parts.store import Store
    from tests.browser.driver import browser, running_app, watched_page

    store = Store(cache)
    a, b = (f"file:{store.link(f).id}" for f in folders)
    drawn = "() => document.querySelector('.st-key-around_chart .js-plotly-plot .xaxislayer-above text')"
    title = "() => document.querySelector('.st-key-story h2').innerText"
    with running_app(cache) as address, browser() as chromium:
        url = f"{address}/preemptions?source=Recordings&a={a}&b={b}"
        found = [f"{num:,}"]
        for _ in range(2):  # the first visit works everything out
            with watched_page(chromium, 1280, 800, fresh=True) as page:
                started = time.monotonic()
                page.page.goto(url)
                page.page.wait_for_function(drawn, timeout=600_000)
                found.append(f"{time.monotonic() - started:,.1f} s")
                page.settle()
                waits = []
                for _ in range(5):
                    before = page.page.evaluate(title)
                    started = time.monotonic()
                    page.page.keyboard.press("ArrowRight")
                    changed = f"(before) => ({title})() !== before"
                    page.page.wait_for_function(changed, arg=before, timeout=60_000)
                    waits.append(time.monotonic() - started)
                    page.settle()
                before = page.page.evaluate(title)
                page.page.get_by_role("combobox", name="Order").click()
                started = time.monotonic()
                page.page.get_by_role("option", name="Costliest first").click()
                page.page.wait_for_function(changed, arg=before, timeout=60_000)
                sort_s = time.monotonic() - started
        return [*found, f"{np.median(waits):,.2f} s", f"{sort_s:,.2f} s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write a dated file of results")
    parser.add_argument(
        "--browser", action="store_true", help="measure the page in Chromium too"
    )
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the sizes")
    args = parser.parse_args()
    server = ["preemptions a run", "told, once", "lanes, once", "list: time / cost / search", "one more", "totals, once", "sent: around + list + totals", "memory at most"]  # fmt: skip
    seen = ["preemptions a run", "first visit", "later visits", "next one", "another order"]
    lines, watched = ([f"| {' | '.join(h)} |", "|" + "---|" * len(h)] for h in (server, seen))
    for num in SIZES[: args.sizes]:
        with tempfile.TemporaryDirectory(prefix="kv-replay-") as root:
            folders = (made_up(Path(root, "a"), num, 0), made_up(Path(root, "b"), num, 1))
            lines.append(f"| {' | '.join(measure(folders, num))} |")
            print(lines[-1], flush=True)
            if args.browser:
                watched.append(
                    f"| {' | '.join(in_browser(folders, num, Path(root, 'cache')))} |"
                )
                print(watched[-1], flush=True)
    flags = " ".join(f"--{f}" for f in ("write", "browser") if getattr(args, f))
    text = (
        "# The Preemptions page\n\n"
        f"{datetime.date.today()}, Python {platform.python_version()}, {platform.machine()}, "
        f"`python benchmarks/preemptions_page.py {flags}`; CPU seconds on the server.\n\n"
        + "\n".join(lines)
        + ("\n\nIn Chromium, wall seconds:\n\n" + "\n".join(watched) if args.browser else "")
        + "\n"
    )
    print(text)
    if args.write:
        today = datetime.date.today().isoformat()
        out = Path(__file__).parent / "results" / f"{today}-preemptions-page.md"
        out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
