"""Speed and memory of the simulator (beside vLLM's own scheduler: scheduler_vs_vllm.py).

    python benchmarks/simulator_speed.py [--shared ../shared] [--steps N] [--write]

Two tables. (1) The loop alone: scheduler, cost model and row buffers, about 230 running requests,
prefix cache off and on, ample and scarce pool. (2) Whole processes of `python -m engine simulate`,
recording included: poisson-2000 at 1,200 blocks, and 20,000 requests of the same kind.

CPU time throughout (the machine may be shared); best of the repeats, spread beside it. Each process
is warmed up once before.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import numpy as np  # noqa: E402

from engine.config import EngineSettings, resolve  # noqa: E402
from engine.core.loop import Code, run_chunk  # noqa: E402
from engine.core.state import State, make_state  # noqa: E402

REPEATS = 5


def columns(prompt: np.ndarray, output: np.ndarray) -> dict[str, np.ndarray]:
    """Requests that all arrive at 0 and share nothing, as make_state takes them."""
    n = len(prompt)
    zeros = np.zeros(n, np.int64)
    return {
        "arrival_s": np.zeros(n),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "priority": zeros,
        "abort_s": np.full(n, np.nan),
        "abort_tie": zeros,
        "seg_count": zeros,
        "seg_id": np.zeros(0, np.uint64),
        "seg_len": zeros[:0],
    }


def drive(state: State, resolved: Any, steps: int) -> tuple[float, int, float, int]:
    """CPU seconds, steps, mean running and preemptions of about that many steps."""
    c = state.c[0]
    spent, done, running, preempted = 0.0, 0, 0, 0
    while done < steps:
        before = time.process_time()
        code = Code(run_chunk(state, resolved.rules, resolved.cost, 8_000))
        spent += time.process_time() - before
        rows = state.step_rows[: c.num_step_rows]
        done += len(rows)
        running += int(rows["num_running"].sum())
        preempted += int(rows["num_preempted"].sum())
        c.num_step_rows = c.num_event_rows = 0
        if code not in (Code.MORE, Code.FLUSH):
            break
    return spent, done, running / max(1, done), preempted


def loop_alone(steps: int) -> list[str]:
    """Table of the loop alone."""
    rows = [
        "| prefix cache | pool, blocks | running | preemptions | steps | best µs a step | spread | steps/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for caching in (False, True):
        for blocks in (60_001, 41_001):
            settings = EngineSettings(
                num_gpu_blocks=blocks,
                max_num_seqs=230,
                max_num_batched_tokens=2048,
                enable_prefix_caching=caching,
            )
            resolved = resolve(settings)
            times = []
            for _ in range(REPEATS):
                rng = np.random.default_rng(0)
                n = 230 * (steps // 3_000 + 2)
                state = make_state(
                    columns(rng.integers(200, 1_000, n), rng.integers(2_000, 6_000, n)),
                    resolved.rules,
                )
                run_chunk(state, resolved.rules, resolved.cost, 500)
                state.c[0].num_step_rows = state.c[0].num_event_rows = 0
                spent, done, running, preempted = drive(state, resolved, steps)
                times.append(spent / done * 1e6)
            best = min(times)
            rows.append(
                f"| {'on' if caching else 'off'} | {blocks - 1:,} | {running:.0f} | {preempted:,} | {done:,} | "
                f"{best:.2f} | {best:.2f} - {max(times):.2f} | {1e6 / best:,.0f} |"
            )
    return rows


def process(arguments: list[str]) -> tuple[float, float, int]:
    """CPU seconds, wall seconds and peak MiB of one whole `python -m engine simulate`."""
    code = (
        "import resource, sys, json; from engine.__main__ import main; status = main(sys.argv[1:]); "
        "u = resource.getrusage(resource.RUSAGE_SELF); "
        "print(json.dumps([status, u.ru_utime + u.ru_stime, u.ru_maxrss // 1024]), file=sys.stderr)"
    )
    before = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    wall = time.perf_counter() - before
    status, cpu, mib = json.loads(done.stderr.splitlines()[-1])
    if status != 0:
        raise RuntimeError(done.stderr)
    return cpu, wall, mib


def whole_processes(shared: Path) -> list[str]:
    """Table of whole processes; needs poisson-2000."""
    trace = shared / "traces" / "poisson-2000" / "workload_2000.csv"
    if not trace.exists():
        return [f"Skipped: no {trace.name} under --shared."]
    rows = [
        "| workload | steps | best CPU s | spread | wall s | peak MiB | recording |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        big = Path(scratch) / "poisson-20000.csv"
        _ten_times(trace, big)
        for label, path in (("poisson-2000", trace), ("20,000 of the same kind", big)):
            out = Path(scratch) / "recording"
            arguments = ["simulate", str(path), "--out", str(out), "--overwrite", "--json"]
            arguments += ["--num-gpu-blocks", "1201", "--device", "a100-80"]
            runs = [process(arguments) for _ in range(REPEATS + 1)][1:]
            cpu = [r[0] for r in runs]
            closed = json.loads((out / "closed.json").read_text())
            size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
            rows.append(
                f"| {label} | {closed['rows']['steps']:,} | {min(cpu):.2f} | {min(cpu):.2f} - {max(cpu):.2f} | "
                f"{min(r[1] for r in runs):.2f} | {max(r[2] for r in runs)} | {size / 1e6:.1f} MB |"
            )
    return rows


def _ten_times(trace: Path, out: Path) -> None:
    """Ten copies of the trace, one after the other."""
    head, *lines = trace.read_text().splitlines()
    names = head.split(",")
    at, ident = names.index("arrival_s"), names.index("request_id")
    span = float(lines[-1].split(",")[at]) + 0.25
    with out.open("w") as handle:
        handle.write(head + "\n")
        for copy in range(10):
            for line in lines:
                cells = line.split(",")
                cells[at] = repr(float(cells[at]) + copy * span)
                cells[ident] = f"{copy}-{cells[ident]}"
                handle.write(",".join(cells) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = [
        "# Simulator speed",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f} at the start; best of {REPEATS} after a warm-up.",
        "",
        "## The loop alone",
        "",
        *loop_alone(args.steps),
        "",
        "## Whole process, every step and event in Parquet",
        "",
        *whole_processes(args.shared),
    ]
    print("\n".join(text))
    if args.write:
        out = ROOT / "benchmarks" / "results" / f"{datetime.date.today()}-simulator-speed.md"
        out.write_text("\n".join(text) + "\n")
        print(f"\nwritten: {out.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
