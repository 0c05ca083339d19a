"""Steps a second of vLLM 0.26.0's own scheduler and of ours, on the same load, in one run.

    python benchmarks/scheduler_vs_vllm.py [--vllm-python PYTHON] [--repeat N] [--write]

A steady batch of 64 and of 256 requests (512-token prompts, one output token each a step, blocks of
16, nothing waits), prefix cache off and on, 400 steps. vLLM: schedule() and update_from_output(), CPU
time of the thread, making up the model's output left out. Ours: whole iterations of the loop, that
is scheduler, outputs, cost model and row buffers, CPU time of the process. Both warmed up; median of
the repeats, range beside it. The interpreter with vLLM is KV_REPLAY_VLLM_PYTHON or what `make parity`
installs. `python -m tests.parity.vllm_side bench --scheduler-cls module.Class`, run there, measures
another scheduler class in the same way.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import numpy as np  # noqa: E402
from simulator_speed import columns  # noqa: E402

from engine.config import EngineSettings, resolve  # noqa: E402
from engine.core.loop import Code, run_chunk  # noqa: E402
from engine.core.state import make_state  # noqa: E402
from tests.parity.run import PYTHON_VARIABLE, vllm_python  # noqa: E402

RUNNING = (64, 256)
PROMPT, STEPS, ROOM = 512, 400, 64
OURS_FOR_ONE = 8  # repeats of ours for one of vLLM's: they are short


def theirs(python: Path, repeat: int) -> dict[tuple[int, bool], list[float]]:
    """(running, caching) -> vLLM's steps a CPU second, one a repeat."""
    command = [str(python), "-m", "tests.parity.vllm_side", "bench"]
    command += ["--repeat", str(repeat), "--steps", str(STEPS), "--prompt", str(PROMPT)]
    command += ["--running", *map(str, RUNNING)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    if done.returncode:
        raise RuntimeError(f"vLLM's side failed:\n{done.stderr[-4000:]}")
    rates: dict[tuple[int, bool], list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        row = json.loads(line)
        rates[row["running"], row["prefix_caching"]].append(row["steps_per_cpu_s"])
    return rates


def ours(running: int, caching: bool) -> float:
    """Our steps a CPU second on the same batch."""
    blocks = -(-(PROMPT + STEPS + ROOM) // 16)
    settings = EngineSettings(
        num_gpu_blocks=1 + running * blocks,
        max_num_seqs=running,
        max_num_batched_tokens=max(8192, running),
        enable_prefix_caching=caching,
    )
    resolved = resolve(settings)
    load = columns(np.full(running, PROMPT), np.full(running, STEPS + ROOM))
    state = make_state(load, resolved.rules)
    c = state.c[0]
    prefill = running * PROMPT // settings.max_num_batched_tokens + 1  # type: ignore[operator]
    run_chunk(state, resolved.rules, resolved.cost, prefill + 8)
    c.num_step_rows = c.num_event_rows = 0
    before = time.process_time()
    code = Code(run_chunk(state, resolved.rules, resolved.cost, STEPS))
    spent = time.process_time() - before
    rows = state.step_rows[: c.num_step_rows]
    if code != Code.MORE or len(rows) != STEPS or not (rows["num_scheduled"] == running).all():
        raise RuntimeError(f"not a steady batch of {running} for {STEPS} steps ({code.name})")
    return STEPS / spent


def table(python: Path, repeat: int) -> list[str]:
    """Rows of the comparison."""
    run = theirs(python, repeat)
    text = [
        "| running | prefix cache | vLLM, steps/s | range | ours, steps/s | range | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for running in RUNNING:
        for caching in (False, True):
            ours(running, caching)  # the core compiled, the caches warm
            own = [ours(running, caching) for _ in range(repeat * OURS_FOR_ONE)]
            other = run[running, caching]
            a, b = statistics.median(other), statistics.median(own)
            text.append(
                f"| {running} | {'on' if caching else 'off'} | {a:,.0f} | {min(other):,.0f} - {max(other):,.0f} | "
                f"{b:,.0f} | {min(own):,.0f} - {max(own):,.0f} | {b / a:,.0f} x |"
            )
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vllm-python", type=Path, help="interpreter with vLLM 0.26.0")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    python = args.vllm_python or vllm_python()
    if python is None:
        print(
            f"no interpreter with vLLM: make parity, or set {PYTHON_VARIABLE}.", file=sys.stderr
        )
        return 2
    load_before = os.getloadavg()[0]
    text = [
        "# vLLM 0.26.0's scheduler and ours",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"load {load_before:.1f} at the start; steps per second of CPU time, median of {args.repeat} "
        f"(ours: {args.repeat * OURS_FOR_ONE}) runs of {STEPS} steps.",
        "",
        *table(python, args.repeat),
    ]
    print("\n".join(text))
    if args.write:
        out = ROOT / "benchmarks" / "results" / f"{datetime.date.today()}-scheduler-vs-vllm.md"
        out.write_text("\n".join(text) + "\n")
        print(f"\nwritten: {out.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
