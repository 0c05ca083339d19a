"""How long a moved lever takes on the What-if page: both policies simulated again, figures read.

    python benchmarks/what_if_page.py [--write] [--browser] [--requests N ...]

Per workload (the bundled chat sample; the same requests repeated to N, each copy after the one before)
twelve changes that were never asked before, one after the other:

- change: wall and CPU seconds on the server from the change to the figures of both policies, median and
  slowest: what the page does between a moved lever and its cards;
- curve: nine values of the pool and the search for where preemption ends, CPU seconds, once.

--browser adds wall seconds in Chromium, on the sample: from the arrow key on the pool's slider until the
cards show other figures, and from the first visit until the cards are there.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

from analyzer.lever_facts import facts_of  # noqa: E402
from analyzer.levers import LEVERS  # noqa: E402
from analyzer.pages.parts.store import Store  # noqa: E402
from analyzer.pages.parts.what_if_bench import Bench  # noqa: E402
from analyzer.what_if import (  # noqa: E402
    MAX_CLOSER,
    curve_values,
    end_of_preemption,
    halfway,
    next_outward,
)
from engine.config import EngineSettings  # noqa: E402
from engine.trial_facts import machine_facts  # noqa: E402
from engine.trials import Trials  # noqa: E402
from traces import samples  # noqa: E402
from traces.workload import Workload  # noqa: E402

MODES = ("recompute", "swap")
BOUNDS = {"ttft_s": 2.0, "tpot_s": 0.1}
CHANGES: tuple[dict[str, Any], ...] = (
    {"num_gpu_blocks": 2_400}, {"num_gpu_blocks": 3_000}, {"gpu_memory_utilization": 0.95}, {"kv_cache_dtype": "fp8"},
    {"weight_dtype": "fp8"}, {"max_num_seqs": 64}, {"max_num_batched_tokens": 4_096}, {"watermark": 0.05},
    {"enable_prefix_caching": False}, {"victim": "most-blocks"}, {"rate_scale": 0.8}, {"replicas": 2},
)  # fmt: skip


def repeated(workload: Workload, num: int) -> Workload:
    """The requests again and again, each copy after the one before, up to that many."""
    copies = -(-num // len(workload))
    gap_s = workload.span_s * (1 + 1 / len(workload))
    tables = [
        workload.table.with_columns(
            pl.col("arrival_s") + k * gap_s, pl.col("request_id") + f"-{k}"
        )
        for k in range(copies)
    ]
    return replace(workload, table=pl.concat(tables).head(num), name=f"{workload.name} x{copies}")  # fmt: skip


def bench_of(workload: Workload, cache: Path) -> Bench:
    about = samples.info("chat")
    base = EngineSettings(model=about.model, device=about.device, num_gpu_blocks=about.pool_tokens // 16 + 1)  # fmt: skip
    store = Store(cache)
    facts = facts_of(workload, machine_facts(base))
    trials = Trials(workload, base, store.run_dir)
    return Bench("benchmark", workload, base, MODES, facts, store, trials, "")


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and CPU seconds, and what came of it."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def measure(workload: Workload, cache: Path) -> list[str]:
    bench = bench_of(workload, cache)

    def ask(changes: dict[str, Any]) -> dict[str, Any]:
        return {mode: bench.outcome(changes, mode, BOUNDS) for mode in MODES}

    base = ask({})
    walls, cpus = zip(*(timed(lambda c=c: ask(c))[:2] for c in CHANGES), strict=True)
    _, curve_s, num_points = timed(lambda: curve(bench, base))
    steps = base["recompute"].figures["num_steps"]
    return [
        f"{len(workload):,}",
        f"{steps:,}",
        f"{np.median(walls):,.2f} s ({max(walls):,.2f} s)",
        f"{np.median(cpus):,.2f} s ({max(cpus):,.2f} s)",
        f"{curve_s:,.1f} s, {num_points} values",
    ]


def curve(bench: Bench, base: dict[str, Any]) -> int:
    """The page's curve over the pool; returns how many values it took."""
    lever = LEVERS["num_gpu_blocks"]
    ladder = lever.choices(bench.facts)
    now = bench.facts.num_gpu_blocks
    points: dict[str, dict[Any, Any]] = {mode: {now: base[mode]} for mode in MODES}

    def made(value: Any) -> None:
        for mode in MODES:
            if value not in points[mode]:
                points[mode][value] = bench.outcome({lever.name: value}, mode, BOUNDS)

    for value in curve_values(ladder, now, now):
        made(value)
    for _ in range(MAX_CLOSER):
        wanted = set()
        for mode in MODES:
            end = end_of_preemption(points[mode])
            closer = halfway(end, True) if end else next_outward(ladder, points[mode])
            if closer is not None:
                wanted.add(closer)
        if not wanted:
            break
        for value in wanted:
            made(value)
    return len(points[MODES[0]])


def in_browser(cache: Path, times: int = 10) -> list[str]:
    """Wall seconds in Chromium: first visit, and each press of an arrow key on the pool's slider."""
    from tests.browser.driver import WAIT_MS, browser, running_app, watched_page

    said = "() => document.querySelector('.kv-what-if')?.innerText"
    with running_app(cache) as address, browser() as chromium, watched_page(chromium, 1280, 900, fresh=True) as page:  # fmt: skip
        visits = []
        for _ in range(2):
            started = time.monotonic()
            page.page.goto(f"{address}/what-if")
            page.page.wait_for_function(said, timeout=WAIT_MS)
            visits.append(time.monotonic() - started)
            page.settle()
        waits = []
        for _ in range(times):
            slider = page.page.get_by_role("slider").first
            before = page.page.evaluate(said)
            slider.focus()
            started = time.monotonic()
            slider.press("ArrowRight")
            page.page.wait_for_function(f"(before) => ({said})() !== before", arg=before, timeout=WAIT_MS)  # fmt: skip
            waits.append(time.monotonic() - started)
            page.page.wait_for_timeout(
                1_500
            )  # the curve goes on meanwhile, as it does for a person
    return [f"{visits[0]:,.1f} s", f"{visits[1]:,.1f} s", f"{np.median(waits):,.2f} s ({max(waits):,.2f} s)"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write a dated file of results")
    parser.add_argument("--browser", action="store_true", help="measure it in Chromium too")
    parser.add_argument(
        "--requests", type=int, nargs="*", default=[], metavar="N", help="repeat the sample to N requests as well"
    )  # fmt: skip
    args = parser.parse_args()
    head = ["requests", "steps", "change, wall: median (slowest)", "CPU: median (slowest)", "curve, CPU"]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    sample = samples.load("chat")
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as root:
        for i, num in enumerate([len(sample), *args.requests]):
            workload = sample if num == len(sample) else repeated(sample, num)
            lines.append(f"| {' | '.join(measure(workload, Path(root, str(i))))} |")
            print(lines[-1], flush=True)
        seen = []
        if args.browser:
            seen = ["", "In Chromium, wall seconds, on the sample:", "", "| first visit | later visit | arrow key to new figures: median (slowest) |", "|---|---|---|"]  # fmt: skip
            seen.append(f"| {' | '.join(in_browser(Path(root, 'browser')))} |")
    load = os.getloadavg()[0]
    text = (
        "# The What-if page\n\n"
        f"{datetime.date.today()}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} CPUs, load {load:.1f}, "
        f"`python {' '.join(['benchmarks/what_if_page.py', *sys.argv[1:]])}`; twelve changes each, both policies.\n\n"
        + "\n".join([*lines, *seen])
        + "\n"
    )
    print(text)
    if args.write:
        today = datetime.date.today().isoformat()
        out = Path(__file__).parent / "results" / f"{today}-what-if-page.md"
        out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
