"""What a sweep costs beside the runs in it: cells a second against a plain loop, on 1 and 2 processes.

    python benchmarks/sweep_overhead.py [--cells N] [--write]

The same cells of the sample chat (2,000 requests each, recording and figures included), three ways: a
loop over `run_cell` in one process, nothing written down; a sweep on one process; a sweep on two. Wall
time of each, from the start of the command to its end for the sweeps, so that starting processes counts;
the loop is timed without its imports and after a first cell. Medians of the repeats, interleaved, with
their spread; the load of the machine beside them. A second table has tiny cells (50 requests), where
what is around them shows most.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

from engine.sweep import plan  # noqa: E402
from engine.sweep_cell import CellTask, run_cell  # noqa: E402
from engine.sweep_command import FIGURES  # noqa: E402
from engine.sweep_spec import (  # noqa: E402
    SweepSpec,
    make_spec,
    parse_grid,
    split_values,
    trace_of,
)

REPEATS = 3
SETTINGS = {"device": "rtx-4090", "max_model_len": 16384}


def spec_of(num_cells: int, max_requests: int) -> SweepSpec:
    """So many pools, from 30,000 tokens on."""
    pools = ",".join(str(30_000 + 500 * i) for i in range(num_cells))
    return make_spec(
        [trace_of("sample:chat")],
        [parse_grid(f"kv_tokens={pools}")],
        settings={**SETTINGS, "max_requests": max_requests},
    )


def loop(spec: SweepSpec) -> float:
    """Seconds for all cells one after the other, in this process."""
    tasks = []
    for cell, choice in plan(spec):
        settings, shape = split_values({**spec.settings, **choice.values})
        tasks.append(
            CellTask(cell, choice.trace.key, choice.seed, settings, shape, {}, FIGURES)
        )
    run_cell(tasks[0])
    started = time.perf_counter()
    for task in tasks:
        outcome = run_cell(task)
        assert outcome.status == "completed", outcome.error
    return time.perf_counter() - started


def sweep(spec: SweepSpec, jobs: int) -> float:
    """Seconds of the whole command on so many processes."""
    values = ",".join(str(row[0]) for row in spec.axes[0].rows)
    fixed = [f for k, v in spec.settings.items() for f in ("--set", f"{k}={v}")]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "engine", "sweep", "sample:chat", "--out", f"{out}/s", *fixed,
                   "--grid", f"kv_tokens={values}", "--jobs", str(jobs)]  # fmt: skip
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        return time.perf_counter() - started


def compare(num_cells: int, max_requests: int) -> list[str]:
    """Table of the three ways."""
    spec = spec_of(num_cells, max_requests)
    ways = {
        "plain loop": lambda: loop(spec),
        "sweep, 1 process": lambda: sweep(spec, 1),
        "sweep, 2 processes": lambda: sweep(spec, 2),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            times[name].append(way())
    base = statistics.median(times["plain loop"])
    rows = [
        f"{num_cells:,} cells of {max_requests:,} requests:",
        "",
        "| way | seconds, median | spread | cells/s | against the loop |",
        "|---|---|---|---|---|",
    ]
    for name, found in times.items():
        median = statistics.median(found)
        rows.append(
            f"| {name} | {median:.2f} | {min(found):.2f} - {max(found):.2f} | {num_cells / median:.2f} | {base / median:.2f} x |"
        )
    return [*rows, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--write", action="store_true", help="into benchmarks/results")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    lines = [
        "# Sweeps against a plain loop",
        "",
        "`python benchmarks/sweep_overhead.py`",
        "",
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"load of the machine {before:.1f} before",
        "",
        *compare(args.cells, 2_000),
        *compare(args.cells, 50),
    ]
    lines.append(f"Load after: {os.getloadavg()[0]:.1f}.")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.write:
        path = ROOT / "benchmarks" / "results" / f"{datetime.date.today()}-sweep-overhead.md"
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
