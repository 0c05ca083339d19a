"""What the stat-logger plugin costs: CPU time a step and bytes a step.

    python benchmarks/stat_logger_cost.py [--steps N] [--repeat R] [--write]

It gives the plugin's tap (engine/live/samples.py) statistics with the fields of vLLM 0.26.0's, of 64
and 256 running requests that each produce a token a step, with a request ending every fourth step,
and times three things apart: the call itself, which the API server's thread makes; turning rows into
columns and writing a full part, which the writer's thread does. vLLM is not needed. With --write the
table is saved as a dated Markdown file in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import pyarrow as pa  # noqa: E402

from engine.live.samples import SampleTap, StatsWriter  # noqa: E402
from engine.live.settings import LiveSettings  # noqa: E402
from traces.telemetry_schema import telemetry_metadata  # noqa: E402

POOL = 10_239


def steps_of(running: int, steps: int) -> list[tuple[Any, Any]]:
    """Statistics of so many steps, seeded."""
    draw = random.Random(running)
    return [_step(draw, running, number) for number in range(steps)]


def _step(draw: random.Random, running: int, number: int) -> tuple[Any, Any]:
    lookups = SimpleNamespace(
        requests=1, queries=512, hits=128, preempted_requests=0, preempted_queries=0, preempted_hits=0
    )  # fmt: skip
    scheduler = SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=draw.randint(0, 30),
        num_skipped_waiting_reqs=0,
        kv_cache_usage=draw.randint(9_000, POOL) / POOL,
        iteration_details=None,
        prefix_cache_stats=lookups,
        connector_prefix_cache_stats=None,
        kv_connector_stats=None,
    )
    ended = SimpleNamespace(
        request_id=f"cmpl-{number}",
        finish_reason="stop",
        e2e_latency=draw.random() * 20,
        num_prompt_tokens=512,
        num_generation_tokens=draw.randint(1, 400),
        max_tokens_param=400,
        queued_time=draw.random(),
        prefill_time=draw.random(),
        decode_time=draw.random() * 15,
        num_cached_tokens=128,
    )
    iteration = SimpleNamespace(
        num_generation_tokens=running,
        prompt_token_stats=SimpleNamespace(
            total=512, computed=384, local_cache_hit=128, external_kv_transfer=0
        ),
        num_preempted_reqs=int(draw.random() < 0.02),
        finished_requests=[ended] if number % 4 == 0 else [],
        time_to_first_tokens_iter=[draw.random()],
        inter_token_latencies_iter=[0.02 + draw.random() / 100 for _ in range(running)],
    )
    return scheduler, iteration


def measure(stats: list[tuple[Any, Any]]) -> tuple[float, float, float]:
    """Microseconds a step in the call, microseconds a step in the writer, bytes a step on disk."""
    meta = telemetry_metadata(engine={}, recorded_by="benchmark", sampling="steps")
    with tempfile.TemporaryDirectory() as folder:
        writer = StatsWriter(LiveSettings(out=Path(folder)), meta, 0, "bench", time.time())
        tap = SampleTap(writer.inbox, 0, POOL, connected=False)
        begin = time.process_time()
        for number, (scheduler, iteration) in enumerate(stats):
            tap.record(scheduler, iteration, number * 0.02, 0.0)
        called = time.process_time()
        writer._drain()
        writer._flush(True)
        written = time.process_time()
        size = sum(p.stat().st_size for p in Path(folder).rglob("*.parquet"))
    count = len(stats)
    return (called - begin) / count * 1e6, (written - called) / count * 1e6, size / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=16_000, help="steps of a run (16,000)")
    parser.add_argument("--repeat", type=int, default=5, help="runs; the best is shown (5)")
    parser.add_argument("--write", action="store_true", help="save in benchmarks/results/")
    arguments = parser.parse_args()
    lines = [
        "# Cost of the stat-logger plugin",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, pyarrow {pa.__version__}, load {os.getloadavg()[0]:.1f}; {arguments.steps:,} steps, seeded, best of {arguments.repeat} after a warm-up, CPU time.",
        "",
        "| running | µs a step in the call | spread | µs a step in the writer's thread | spread | bytes a step |",
        "|---|---|---|---|---|---|",
    ]
    for running in (64, 256):
        stats = steps_of(running, arguments.steps)
        measure(stats[:1_000])
        runs = [measure(stats) for _ in range(arguments.repeat)]
        call, write = sorted(r[0] for r in runs), sorted(r[1] for r in runs)
        lines.append(
            f"| {running} | {call[0]:.1f} | {call[0]:.1f} - {call[-1]:.1f} | {write[0]:.1f} | {write[0]:.1f} - {write[-1]:.1f} | {runs[0][2]:.0f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        name = f"{datetime.date.today()}-stat-logger-cost.md"
        (ROOT / "benchmarks" / "results" / name).write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
