"""How long a fleet takes to open as lines, and how much memory: 64 ranks, and 1,024 links to them.

    PYTHONPATH=. python benchmarks/fleet_open.py [--members 64] [--steps 50000] [--out benchmarks/results/NAME.md]

Each rank is written once (steps, and a request for every 20 of them) and then read as the Fleet page reads
it: nine columns of `steps`, thinned while they are read. Each measurement is a process of its own, so that
its peak memory is its own; the least of three runs is given, and the spread.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from traces.recording import write_recording
from traces.schema import EVENTS, REQUESTS, SCHEMA_VERSION, STEPS, Table

ROOT = Path(__file__).resolve().parent.parent
POOL = 4_000
REPEATS = 3


def main() -> int:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--links", type=int, default=1_024)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(_read(Path(arguments.read))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        whole, many = root / "fleet", root / "many"
        for rank in range(arguments.members):
            _write(whole / f"rank-{rank:04d}", arguments.steps, rank)
        many.mkdir()
        for rank in range(arguments.links):
            target = whole / f"rank-{rank % arguments.members:04d}"
            (many / f"rank-{rank:04d}").symlink_to(target, target_is_directory=True)
        num_bytes = sum(p.stat().st_size for p in whole.rglob("*") if p.is_file())
        rows = [
            _measured(f"{arguments.members} ranks", whole),
            _measured(f"{arguments.links:,} ranks (links to them)", many),
        ]
        shutil.rmtree(many)
    text = _report(arguments, num_bytes, rows)
    print(text)
    if arguments.out:
        arguments.out.write_text(text, "utf-8")
    return 0


def _write(root: Path, num_steps: int, seed: int) -> None:
    """A rank whose pool fills and empties like a wave, with a preemption now and then."""
    rng = np.random.default_rng(seed)
    duration_s = rng.exponential(0.03, num_steps)
    start_s = np.append(0.0, np.cumsum(duration_s)[:-1])
    wave = 0.5 + 0.5 * np.sin(start_s / 97 + seed)
    used = np.clip(wave * POOL + rng.normal(0, 60, num_steps), 0, POOL).astype(np.int32)
    running = (used // 60).astype(np.int32)
    steps = {
        "step": np.arange(num_steps),
        "t_start_s": start_s,
        "duration_s": duration_s,
        "num_running": running,
        "num_waiting": np.where(used > 0.97 * POOL, 12, 0).astype(np.int32),
        "num_preempted": ((used == POOL) & (rng.random(num_steps) < 0.1)).astype(np.int32),
        "decode_tokens": running,
        "used_blocks": used,
        "free_blocks": (POOL - used).astype(np.int32),
    }
    num_requests = num_steps // 20
    requests = {
        "request_id": [f"{seed}-{i}" for i in range(num_requests)],
        "arrival_s": np.sort(rng.uniform(0, start_s[-1], num_requests)),
        "prompt_tokens": rng.integers(50, 4_000, num_requests),
        "status": ["unfinished"] * num_requests,
    }
    tables = {"steps": _table(STEPS, steps), "events": _table(EVENTS, {}), "requests": _table(REQUESTS, requests)}  # fmt: skip
    meta = {
        "schema_version": SCHEMA_VERSION, "executor": "simulator", "clock": "modelled", "pool_blocks": POOL,
        "settings": {"num_gpu_blocks": POOL + 1, "block_size": 16, "max_num_seqs": 256}, "block_bytes": 1,
        "workload": {"name": "wave"}, "seed": seed, "software": {},
    }  # fmt: skip
    root.mkdir(parents=True)
    write_recording(root, tables, meta)


def _table(spec: Table, columns: dict[str, object]) -> pa.Table:
    rows = max((len(v) for v in columns.values()), default=0)  # type: ignore[arg-type]
    arrays = []
    for c in spec.columns:
        empty = None if c.nullable else ("" if pa.types.is_string(c.type) else 0)
        arrays.append(pa.array(columns.get(c.name, [empty] * rows), type=c.type))
    return pa.table(arrays, schema=spec.arrow)


def _read(path: Path) -> dict[str, float]:
    """Open the fleet as the page does; seconds and peak memory of this process."""
    from analyzer.fleet_balance import balance
    from analyzer.fleet_series import read_fleet, read_part
    from traces.fleet import open_fleet

    before = _peak_mib()
    started = time.perf_counter()
    fleet = open_fleet(path)
    opened = time.perf_counter()
    series = read_fleet(fleet)
    read = time.perf_counter()
    balance(series)
    balanced = time.perf_counter()
    grid = series.grid
    middle = (grid.start_s + grid.end_s) / 2
    read_part(series, middle, middle + 10, range(min(64, len(series.ranks))))
    return {
        "open_s": opened - started,
        "read_s": read - opened,
        "balance_s": balanced - read,
        "part_s": time.perf_counter() - balanced,
        "series_mib": sum(v.nbytes for v in series.values.values()) / 2**20,
        "idle_mib": before,
        "peak_mib": _peak_mib(),
        "buckets": grid.num_buckets,
    }


def _peak_mib() -> float:
    """Most memory that this process held. From /proc, since what getrusage says counts from the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _measured(name: str, path: Path) -> tuple[str, list[dict[str, float]]]:
    command = [sys.executable, str(Path(__file__).resolve()), "--read", str(path)]
    found = []
    for _ in range(REPEATS):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return name, found


def _report(
    arguments: argparse.Namespace,
    num_bytes: int,
    rows: list[tuple[str, list[dict[str, float]]]],
) -> str:
    lines = [
        "# Opening a fleet as lines",
        "",
        f"{datetime.date.today().isoformat()}, {platform.machine()}, Python {platform.python_version()}, polars {pl.__version__}, "
        f"numpy {np.__version__}. `python benchmarks/fleet_open.py --members {arguments.members} --steps {arguments.steps}`",
        "",
        f"{arguments.members} recordings of {arguments.steps:,} steps and {arguments.steps // 20:,} requests each, {num_bytes / 2**20:,.0f} MiB together; "
        f"{REPEATS} processes each, the least and the largest time. The machine was shared.",
        "",
        "| fleet | metadata (s) | lines (s) | balance (s) | 10 s of 64 ranks again (s) | lines in memory (MiB) | peak of the process (MiB), of it before reading | buckets a rank |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in rows:
        cells = [_span(found, k) for k in ("open_s", "read_s", "balance_s", "part_s")]
        peak, idle = max(f["peak_mib"] for f in found), max(f["idle_mib"] for f in found)
        lines.append(
            f"| {name} | {' | '.join(cells)} | {found[0]['series_mib']:,.1f} | {peak:,.0f}, {idle:,.0f} | {found[0]['buckets']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def _span(found: list[dict[str, float]], key: str) -> str:
    values = sorted(f[key] for f in found)
    return f"{values[0]:.2f} to {values[-1]:.2f}"


if __name__ == "__main__":
    sys.exit(main())
