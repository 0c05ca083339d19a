"""What recording costs vLLM's scheduler: the bare one and the recording one, step about.

    python benchmarks/recording_overhead.py [--vllm-python PYTHON] [--steps N] [--write]

Both schedulers run in one process of the interpreter that has vLLM, on the same load, step about, so
that a busy machine meets both alike. CPU time per step, of

- the bare scheduler's schedule() + update_from_output(), median;
- the recorder on the scheduler's thread: every call of its code is timed (the clock's own cost
  included), and what it adds to vLLM's free queue is measured apart, call by call;
- the recorder's writer thread, which runs beside and writes Parquet without the interpreter's lock;
- for a check, step k of one less step k of the other: noisy on a busy machine.

Overhead = both threads of the recorder / bare. Loads: every running request decodes one token a step
and the pool holds all; the same with a pool for 75 % of it, so that requests are preempted and come
back. Making up the model's output is not timed. A step takes the scheduler alone some milliseconds
here and a served model some tens: there the writer's fixed work is spread over fewer steps, and is a
smaller share of the time.
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
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

PROMPT = 512
SETUPS = [  # running, pool as a share of what the batch would need, asynchronous
    (64, 1.0, False),
    (256, 1.0, False),
    (256, 1.0, True),
    (64, 0.75, False),
    (256, 0.75, False),
]
RECORDING = "engine.live.vllm.RecordingScheduler"


class Load:
    """A scheduler under a batch that never ends: whoever finishes is followed by another."""

    def __init__(
        self, running: int, share: float, asynchronous: bool, steps: int, cls: str | None
    ) -> None:
        from tests.parity.vllm_side.settings import Settings, block_hasher, make_scheduler

        tokens = PROMPT + steps + 64
        blocks = int(running * -(-tokens // 16) * share)
        self.settings = Settings(
            num_blocks=1 + blocks,
            max_num_seqs=running,
            max_num_batched_tokens=8192,
            async_scheduling=asynchronous,
        )
        self.output = steps + 48
        self.scheduler = make_scheduler(self.settings, cls)
        self._hasher = block_hasher(self.settings)
        self._in_flight: list[Any] = []
        self._sampled = 0
        self.preemptions = 0
        for i in range(running):
            self._add(i)
        while self.scheduler.waiting and not self.preemptions and self.step()[1] > 0:
            if len(self.scheduler.running) >= int(running * share):
                break
        for _ in range(16):
            self.step()

    def _add(self, number: int) -> None:
        from tests.parity.vllm_side.requests import make_request

        row = {
            "request_id": f"r{number}",
            "prompt_tokens": PROMPT,
            "output_tokens": self.output,
        }
        self.scheduler.add_request(
            make_request(number, number, row, self.settings, self._hasher)
        )

    def step(self) -> tuple[float, int]:
        """Thread CPU seconds of schedule() and update_from_output(), and tokens scheduled."""
        from vllm.v1.outputs import ModelRunnerOutput

        from tests.parity.vllm_side.requests import sampled_token

        scheduler = self.scheduler
        before = time.thread_time()
        output = scheduler.schedule()
        spent = time.thread_time() - before
        chunks = {
            i for i in output.num_scheduled_tokens if scheduler.requests[i].is_prefill_chunk
        }
        self._in_flight.append((output, chunks))
        if not (self.settings.async_scheduling and len(self._in_flight) < 2):
            oldest, chunks = self._in_flight.pop(0)
            ids = list(oldest.num_scheduled_tokens)
            tokens: list[list[int]] = []
            for i in ids:
                self._sampled += 1
                tokens.append([] if i in chunks else sampled_token(self._sampled))
            made = ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={r: k for k, r in enumerate(ids)},
                sampled_token_ids=tokens,
            )
            before = time.thread_time()
            scheduler.update_from_output(oldest, made)
            spent += time.thread_time() - before
        return spent, output.total_num_scheduled_tokens


class Stopwatch:
    """CPU seconds of the recorder's calls on the scheduler's thread."""

    CALLS = ("arrived", "looked_up", "preempting", "scheduled", "processed", "freeing", "ended")

    def __init__(self, scheduler: Any) -> None:
        self.spent_s = 0.0
        self.queue_calls = 0
        tap = scheduler._kv_replay
        for name in self.CALLS:
            setattr(tap, name, self._timed(getattr(tap, name)))
        self._queue = scheduler.kv_cache_manager.block_pool.free_block_queue
        self._noted = self._queue.popleft_n
        self._queue.popleft_n = self._counted

    def _timed(self, inner: Any) -> Any:
        def timed(*args: Any) -> Any:
            before = time.thread_time()
            result = inner(*args)
            self.spent_s += time.thread_time() - before
            return result

        return timed

    def _counted(self, n: int) -> Any:
        self.queue_calls += 1
        return self._noted(n)

    def queue_call_s(self, calls: int = 50_000) -> float:
        """What the recorder adds to one call of the free queue: it, less vLLM's own."""
        own = type(self._queue).popleft_n

        def loop(function: Any, *first: Any) -> float:
            before = time.thread_time()
            for _ in range(calls):
                function(*first, 0)
            return time.thread_time() - before

        return max(0.0, loop(self._noted) - loop(own, self._queue)) / calls


def writer_cpu_s() -> float:
    """CPU seconds so far of the recorder's writer threads."""
    spent = 0.0
    for thread in threading.enumerate():
        if thread.name == "kv-replay-writer" and thread.ident is not None:
            spent += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return spent


def measure(running: int, share: float, asynchronous: bool, steps: int) -> dict[str, Any]:
    """One setup, in this process: CPU seconds of each step of both."""
    import gc

    loads = [Load(running, share, asynchronous, steps, cls) for cls in (None, RECORDING)]
    gc.collect()
    gc.freeze()
    watch = Stopwatch(loads[1].scheduler)
    spent: tuple[list[float], list[float]] = ([], [])
    writer_s = writer_cpu_s()
    for number in range(steps):
        order = (0, 1) if number % 2 else (1, 0)  # whoever goes first pays for the cold cache
        for which in order:
            spent[which].append(loads[which].step()[0])
    time.sleep(0.6)  # the writer takes what is left
    writer_s = (writer_cpu_s() - writer_s) / steps
    own_s = (watch.spent_s + watch.queue_calls * watch.queue_call_s()) / steps
    victims = sum(r.num_preemptions for r in loads[1].scheduler.requests.values())
    loads[1].scheduler.shutdown()
    return {
        "running": running,
        "pool_share": share,
        "asynchronous": asynchronous,
        "bare_s": spent[0],
        "recording_s": spent[1],
        "own_s": own_s,
        "writer_s": writer_s,
        "preemptions": victims,
        "steps": steps,
    }


def inside(args: argparse.Namespace) -> None:
    """In vLLM's interpreter: a JSON line a setup."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    import logging

    import vllm

    logging.disable(logging.WARNING)
    print(
        json.dumps({"vllm": vllm.__version__, "python": platform.python_version()}),
        file=answers,
    )
    for running, share, asynchronous in SETUPS:
        with tempfile.TemporaryDirectory() as out:
            os.environ["KV_REPLAY_OUT"] = out
            figures = measure(running, share, asynchronous, args.steps)
            size = sum(p.stat().st_size for p in Path(out).rglob("*.parquet"))
        print(json.dumps({**figures, "bytes": size}), file=answers)


def row(f: dict[str, Any]) -> str:
    """A line of the table."""
    bare = statistics.median(f["bare_s"])
    pairs = zip(f["bare_s"], f["recording_s"], strict=True)
    low, added, high = statistics.quantiles([r - b for b, r in pairs], n=4)
    share = (f["own_s"] + f["writer_s"]) / bare
    load = "decode" if f["pool_share"] == 1.0 else f"decode, pool for {f['pool_share']:.0%}"
    load += ", asynchronous" if f["asynchronous"] else ""
    return (
        f"| {f['running']} | {load} | {f['preemptions']} | {f['steps']} | {bare * 1e6:,.0f} "
        f"| {f['own_s'] * 1e6:,.1f} | {f['writer_s'] * 1e6:,.1f} | {share:.2%} "
        f"| {added * 1e6:,.0f} ({low * 1e6:,.0f} to {high * 1e6:,.0f}) | {f['bytes'] / f['steps']:,.0f} |"
    )


HEAD = [
    "| running | load | preemptions | steps | bare, µs a step | recorder on the scheduler's thread, µs | its writer's thread, µs | overhead | difference of step pairs, µs (quartiles) | bytes a step on disk |",
    "|---|---|---|---|---|---|---|---|---|",
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-python", help="interpreter with vLLM (KV_REPLAY_VLLM_PYTHON)")
    parser.add_argument("--steps", type=int, default=800, help="steps of each scheduler")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args)
        return 0
    python = (
        args.vllm_python or os.environ.get("KV_REPLAY_VLLM_PYTHON") or ".venv-vllm/bin/python"
    )
    if not Path(python).exists():
        print(f"{python} does not exist: give --vllm-python, or run make parity first.")
        return 2
    command = [python, str(Path(__file__)), "--inside"]
    command += ["--steps", str(args.steps)]
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | quiet,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(lines) != 1 + len(SETUPS):
        print(f"the run in {python} failed with code {done.returncode}; see above.")
        return 1
    report = [
        "# What recording costs vLLM's scheduler",
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}; vLLM {lines[0]['vllm']}, Python {lines[0]['python']}, "
        f"{os.cpu_count()} cores ({platform.machine()}), shared with others; {args.steps} steps of each scheduler, "
        f"prompts of {PROMPT} tokens, prefix caching on, log_stats on. By: python benchmarks/recording_overhead.py.",
        "CPU time, medians. Overhead = both threads / bare.",
        "",
        *HEAD,
        *(row(f) for f in lines[1:]),
    ]
    text = "\n".join(report) + "\n"
    print(text)
    if args.write:
        name = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}-recording-overhead.md"
        (ROOT / "benchmarks" / "results" / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
