"""What a sweep costs beside the runs in it: cells a second against a plain loop, on 1 and 2 processes.

    python benchmarks/sweep_overhead.py [--cells N] [--write]

The same cells of the sample chat (2,000 requests each, recording and figures included), three ways: a
loop over `run_cell` in one process, nothing written down; a sweep on one process; a sweep on two. Wall
and CPU time of each, from the start of the command to its end for the sweeps, so that starting processes
counts; the loop is timed without its imports and after a first cell. Medians of the repeats, interleaved,
with their spread; the load of the machine beside them: on a busy one only CPU time means something. A
second table has tiny cells (50 requests), where what is around them shows most.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
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


def loop(spec: SweepSpec) -> tuple[float, float]:
    """(wall, CPU) seconds for all cells one after the other, in this process."""
    tasks = []
    for cell, choice in plan(spec):
        settings, shape = split_values({**spec.settings, **choice.values})
        tasks.append(
            CellTask(cell, choice.trace.key, choice.seed, settings, shape, {}, FIGURES)
        )
    run_cell(tasks[0])
    started, spent = time.perf_counter(), time.process_time()
    for task in tasks:
        outcome = run_cell(task)
        assert outcome.status == "completed", outcome.error
    return time.perf_counter() - started, time.process_time() - spent


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sweep(spec: SweepSpec, jobs: int) -> tuple[float, float]:
    """(wall, CPU) seconds of the whole command on so many processes, theirs included."""
    values = ",".join(str(row[0]) for row in spec.axes[0].rows)
    fixed = [f for k, v in spec.settings.items() for f in ("--set", f"{k}={v}")]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "engine", "sweep", "sample:chat", "--out", f"{out}/s", *fixed,
                   "--grid", f"kv_tokens={values}", "--jobs", str(jobs)]  # fmt: skip
        started, spent = time.perf_counter(), _children_s()
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        return time.perf_counter() - started, _children_s() - spent


def compare(num_cells: int, max_requests: int) -> list[str]:
    """Table of the three ways."""
    spec = spec_of(num_cells, max_requests)
    ways = {
        "plain loop": lambda: loop(spec),
        "sweep, 1 process": lambda: sweep(spec, 1),
        "sweep, 2 processes": lambda: sweep(spec, 2),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            times[name].append(way())
    rows = [
        f"{num_cells:,} cells of {max_requests:,} requests:",
        "",
        "| way | wall s, median | spread | cells/s | against the loop | CPU s, median | CPU of the loop's |",
        "|---|---|---|---|---|---|---|",
    ]
    walls = {name: statistics.median(w for w, _ in found) for name, found in times.items()}
    cpus = {name: statistics.median(c for _, c in found) for name, found in times.items()}
    for name, found in times.items():
        spread = f"{min(w for w, _ in found):.2f} - {max(w for w, _ in found):.2f}"
        rows.append(
            f"| {name} | {walls[name]:.2f} | {spread} | {num_cells / walls[name]:.2f} | {walls['plain loop'] / walls[name]:.2f} x "
            f"| {cpus[name]:.2f} | {cpus[name] / cpus['plain loop']:.2f} x |"
        )
    loop_s, one_s, two_s = cpus.values()
    start = (
        f"Beside the cells the command and its process took {one_s - loop_s:.1f} CPU s, the second process {two_s - one_s:.1f} more: "
        "what starting them costs, whatever the number of cells."
    )
    return [*rows, "", start, ""]


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
