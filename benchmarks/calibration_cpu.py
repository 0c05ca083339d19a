"""Calibrate the CPU this runs on, and predict workloads that the calibration has not seen.

    python benchmarks/calibration_cpu.py [--runs DIR] [--threads 1] [--clock wall|cpu] [--write]

Records SmolLM2-135M (fp32, real tokens) with the torch engine under eight seeded workloads, fits a
device to five of them, and predicts every step of the other three from the device file; then simulates
those three with it and compares whole runs. The same three are predicted with the preset `cpu` for
comparison. Recordings in --runs are made only where they are missing. With --write the table goes to
a dated Markdown file in benchmarks/results/, the device file beside it.

--clock cpu times steps by the CPU seconds of the process instead of the wall, for a machine that other
programs use at the same time: what they take of the cores is then no part of a step. All requests of
these workloads are there from the start, so that the run never waits for a clock that would stand still.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import numpy as np  # noqa: E402
import scipy  # noqa: E402

from engine.calibrate import Calibration, calibrate  # noqa: E402
from engine.calibrate_errors import Errors, relative_errors, summary  # noqa: E402
from engine.calibrate_samples import KINDS, read_source  # noqa: E402
from engine.devices import DeviceSpec, load_device  # noqa: E402
from traces.recording import open_recording  # noqa: E402

ATTEMPTS = 3
MODEL = "smollm2-135m-instruct"
# The engine's command line with the process's CPU clock in the place of the wall's.
_ON_CPU_CLOCK = (
    "import sys, time; time.perf_counter = time.process_time; "
    "from engine.__main__ import main; sys.exit(main())"
)
Row = tuple[float, int, int]


@dataclass(frozen=True)
class Load:
    """A workload of the benchmark: requests (arrival, prompt, output) and flags of the engine."""

    name: str
    rows: list[Row]
    flags: list[str] = field(default_factory=list)
    for_fit: bool = True


def _log_uniform(r: random.Random, low: int, high: int) -> int:
    return round(low * (high / low) ** r.random())


def loads() -> list[Load]:
    """Five workloads to fit and three to predict; all drawn from fixed seeds."""
    r = random.Random(20261129)
    short = [(0.0, _log_uniform(r, 32, 128), 8 * (k + 1)) for k in range(16)]
    long_ = [(0.0, _log_uniform(r, 500, 1300), 10 * (k + 1)) for k in range(7)]
    prefill = [(0.0, _log_uniform(r, 32, 700), 1) for _ in range(60)]
    mixed = [(0.0, _log_uniform(r, 40, 250), r.randrange(6, 24)) for _ in range(26)]
    swap = [(0.0, _log_uniform(r, 40, 160), r.randrange(40, 90)) for _ in range(14)]
    more = random.Random(20261130)  # requests that keep the pool of the swap run full
    swap += [(0.0, _log_uniform(more, 30, 120), more.randrange(30, 60)) for _ in range(26)]
    chat = [(0.0, _log_uniform(r, 60, 400), r.randrange(15, 50)) for _ in range(18)]
    documents = [(0.0, _log_uniform(r, 900, 1700), r.randrange(25, 60)) for _ in range(4)]
    burst = [(0.0, _log_uniform(r, 80, 220), r.randrange(30, 60)) for _ in range(12)]
    return [
        Load("batch-falls-short", short, ["--max-num-batched-tokens", "512"]),
        Load("batch-falls-long", long_, ["--max-num-batched-tokens", "512"]),
        Load("prefill", prefill, ["--max-num-batched-tokens", "256", "--max-num-seqs", "1"]),
        Load("mixed", mixed, ["--max-num-batched-tokens", "128", "--max-num-seqs", "8"]),
        Load("swap", swap, ["--max-num-batched-tokens", "256", "--max-num-seqs", "12", "--num-gpu-blocks", "30", "--no-reserve-full-isl", "--preemption", "swap"]),
        Load("chat", chat, ["--max-num-batched-tokens", "256", "--max-num-seqs", "8"], False),
        Load("documents", documents, ["--max-num-batched-tokens", "512", "--max-num-seqs", "3"], False),
        Load("burst", burst, ["--max-num-batched-tokens", "192", "--max-num-seqs", "12"], False),
    ]  # fmt: skip


def reference_s() -> float:
    """CPU seconds of a fixed piece of work: 80 matrices of 576 x 1536 times one and times 64 rows."""
    random_ = np.random.default_rng(0)
    matrices = [random_.standard_normal((576, 1536), np.float32) for _ in range(80)]
    rows = [random_.standard_normal((n, 576), np.float32) for n in (1, 64)]
    started = time.process_time()
    for x in rows:
        for m in matrices:
            x @ m
    return time.process_time() - started


def record(load: Load, folder: Path, args: argparse.Namespace) -> Path:
    """The recording of a workload, made now if it is not there, again while the machine is disturbed.

    Disturbed: the reference work before or after took over 1.5 times the least that any run saw.
    """
    out, note = folder / load.name, folder / f"{load.name}.reference.json"
    for attempt in range(ATTEMPTS):
        if (out / "closed.json").is_file():
            break
        before = reference_s()
        _record(load, folder, out, args)
        note.write_text(json.dumps([before, reference_s()]))
        if max(references(folder)[load.name]) <= 1.5 * least_reference(folder):
            break
        print(
            f"  the machine was disturbed: {note.read_text()} s of reference work", flush=True
        )
        if attempt < ATTEMPTS - 1:
            (out / "closed.json").unlink()
    return out


def references(folder: Path) -> dict[str, list[float]]:
    """Reference seconds before and after each recording."""
    return {
        load.name: json.loads(note.read_text())
        for load in loads()
        if (note := folder / f"{load.name}.reference.json").is_file()
    }


def least_reference(folder: Path) -> float:
    return min(min(pair) for pair in references(folder).values())


def _record(load: Load, folder: Path, out: Path, args: argparse.Namespace) -> None:
    trace = write_trace(load, folder)
    program = ["-m", "engine"] if args.clock == "wall" else ["-c", _ON_CPU_CLOCK]
    command = [
        sys.executable, *program, "run", str(trace), "--out", str(out), "--overwrite",
        "--model", MODEL, "--torch-device", "cpu", "--dtype", "float32", "--threads", str(args.threads),
        "--device", "cpu", "--max-model-len", "2048", "--no-prefix-caching", *_pool(load), *load.flags,
    ]  # fmt: skip
    print(f"recording {load.name} ...", flush=True)
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def write_trace(load: Load, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{load.name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s", "prompt_tokens", "output_tokens"])
        writer.writerows(load.rows)
    return path


def _pool(load: Load) -> list[str]:
    return [] if "--num-gpu-blocks" in load.flags else ["--num-gpu-blocks", "1200"]


def _row(label: str, e: Errors | None) -> str:
    if e is None:
        return f"| {label} | 0 | | | | |"
    return f"| {label} | {e.num_steps:,} | {e.median:.1%} | {e.mean:.1%} | {e.p95:.1%} | {e.bias:+.1%} |"


def predicted(device: DeviceSpec, paths: list[Path], which: str) -> list[str]:
    """Rows of errors of each workload, by kind of step, and of all together."""
    rows, everything = [], []
    for path in paths:
        source = read_source(path)
        error, kind = relative_errors(device, source), source.steps.kind
        everything.append(error)
        rows.append(_row(f"{path.name}, {which}", summary(error)))
        for k, name in enumerate(KINDS):
            if (kind == k).any():
                rows.append(_row(f"&nbsp;&nbsp;{name}", summary(error[kind == k])))
    return [*rows, _row(f"**all, {which}**", summary(np.concatenate(everything)))]


def whole_run(path: Path, load: Load, device: Path, folder: Path) -> str:
    """Measured and simulated length of a run, and its mean seconds a step."""
    out = folder / f"{load.name}-simulated"
    command = [
        sys.executable, "-m", "engine", "simulate", str(write_trace(load, folder)), "--out", str(out),
        "--overwrite", "--model", "smollm2-135m", "--kv-dtype", "float32", "--weight-dtype", "float32",
        "--device", str(device), "--max-model-len", "2048", "--no-prefix-caching", *_pool(load), *load.flags,
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    ends, steps = [], []
    for p in (path, out):
        with open_recording(p) as r:
            last = r.steps.tail(1)
            ends.append(float(last["t_start_s"][0] + last["duration_s"][0]))
            steps.append(r.steps.height)
    return f"| {load.name} | {ends[0]:.1f} | {ends[1]:.1f} | {ends[1] / ends[0] - 1:+.1%} | {steps[0]:,} | {steps[1]:,} |"


def report(c: Calibration, folder: Path, args: argparse.Namespace, device: Path) -> list[str]:
    """The page of results."""
    by_name = {load.name: load for load in loads()}
    fitted = [folder / n for n, load in by_name.items() if load.for_fit]
    unseen = [folder / n for n, load in by_name.items() if not load.for_fit]
    head = "| workload | steps | median | mean | p95 | bias |\n|---|---|---|---|---|---|"
    threads = args.threads
    seconds = "CPU seconds of the process" if args.clock == "cpu" else "wall seconds"
    torch = c.sources[0].software.get("torch", "?")
    return [
        "# A CPU calibrated by its own recordings, and workloads that the fit has not seen",
        "",
        f"{datetime.date.today().isoformat()}. `python benchmarks/calibration_cpu.py --clock {args.clock} --write`; SmolLM2-135M-Instruct, fp32, "
        f"{threads} thread{'s' if threads > 1 else ''} of {_cpu()} ({os.cpu_count()} CPUs, shared with other programs); Python {platform.python_version()}, "
        f"torch {torch}, numpy {np.__version__}, scipy {scipy.__version__}. Workloads drawn from seed 20261129, one run each; "
        "the first 20 steps of a run and steps beside copies are left out.",
        "",
        f"Times are {seconds}. Errors are of predicted step times, |predicted / measured - 1|; bias is the signed median.",
        "",
        "## Not used in the fit",
        "",
        head,
        *predicted(c.device, unseen, "calibrated"),
        *predicted(load_device("cpu"), unseen, "preset cpu")[-1:],
        "",
        "## Used in the fit",
        "",
        head,
        *predicted(c.device, fitted, "calibrated"),
        *[_row(f"{f.left_out}, predicted from the other four", f.errors) for f in c.folds],
        "",
        "## The machine while it was recorded",
        "",
        "A fixed piece of matrix work before and after each recording, seconds of CPU; recordings beyond 1.5 times the least are made again: "
        + ", ".join(f"{n} {a:.2f} and {b:.2f}" for n, (a, b) in references(folder).items())
        + ".",
        "",
        "## Whole runs, simulated with the device file",
        "",
        "| workload | measured, s | simulated, s | error | steps | simulated |\n|---|---|---|---|---|---|",
        *[whole_run(p, by_name[p.name], device, folder) for p in unseen],
        "",
        "## The calibration",
        "",
        "```",
        *c.lines(),
        "```",
    ]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "a CPU"
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "a CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=Path, help="folder that keeps recordings")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for torch")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="what seconds are"
    )
    parser.add_argument("--write", action="store_true", help="save a dated page of results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.runs or Path(scratch)
        paths = {load.name: record(load, folder, args) for load in loads()}
        c = calibrate(
            [paths[load.name] for load in loads() if load.for_fit],
            base_device="cpu",
            name="cpu-calibrated",
        )
        device = c.write(folder / "cpu-calibrated.json", overwrite=True)
        lines = report(c, folder, args, device)
        print("\n".join(lines))
        if args.write:
            out = ROOT / "benchmarks" / "results"
            stem = f"{datetime.date.today().isoformat()}-calibration-cpu"
            (out / f"{stem}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
            c.write(out / f"{stem}.json", overwrite=True)
            print(f"\nwritten: benchmarks/results/{stem}.md and .json")


if __name__ == "__main__":
    main()
