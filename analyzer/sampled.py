"""A recording as a production server would have told of it: log lines and scrapes, in text.

It knows what vLLM prints and when (the V1 line every 10 s, V0's every 5 s with the warnings of the first
preemption and each 50th after it, scrapes of /metrics, lines of each iteration), so that the readers of
evidence and the diagnosis can be held against a run of which everything is known. It leaves out what
vLLM leaves out: who was evicted, recomputed tokens, and in V1's log the preemptions themselves.

Source: vLLM 0.26.0, v1/metrics/loggers.py, v1/core/sched/scheduler.py; 0.6.4, engine/metrics.py,
core/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from analyzer.lifecycles import away_intervals
from traces.evidence.evidence import Evidence
from traces.evidence.reading import read_sources
from traces.evidence.source import Source
from traces.recording import Recording

V1_EVERY_S, V0_EVERY_S, SCRAPE_EVERY_S = 10.0, 5.0, 15.0
V0_WARNS_EVERY = 50
_START = datetime(2026, 3, 4, 10, 0, 0)
_LABELS = 'engine="0",model_name="model"'


@dataclass(frozen=True, eq=False)
class Run:
    """What happened, step by step, in the order of time. ends_s [n]: ends of steps; generated,
    prompt_tokens, cached_tokens [n + 1]: sums up to each end, from 0; running, waiting, swapped, used,
    host_used [n]: as they are once the step's outputs were processed; preempted_s: when each victim was
    taken; reported_s: when V1's counter tells of it."""

    ends_s: np.ndarray
    generated: np.ndarray
    prompt_tokens: np.ndarray
    cached_tokens: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    swapped: np.ndarray
    used: np.ndarray
    host_used: np.ndarray
    preempted_s: np.ndarray
    reported_s: np.ndarray
    pool_blocks: int
    host_blocks: int
    block_size: int

    def times(self, every_s: float) -> np.ndarray:
        """The clock's ticks, up to the first at which the run is over."""
        last = float(self.ends_s[-1]) if len(self.ends_s) else 0.0
        return every_s * np.arange(1, int(np.ceil(last / every_s)) + 1)

    def at(self, t_s: float) -> int:
        """How many steps had ended by then."""
        return int(np.searchsorted(self.ends_s, t_s, side="right"))

    def usage(self, steps: int) -> float:
        """Share of the pool in use once so many steps had ended."""
        return float(self.used[steps - 1]) / self.pool_blocks if steps else 0.0

    def state(self, values: np.ndarray, steps: int) -> int:
        """A queue's length once so many steps had ended."""
        return int(values[steps - 1]) if steps else 0


def follow(recording: Recording) -> Run:
    """What a server's statistics rest on, from the tables of a recording.

    A victim's preemption is reported with its next output token; that is taken to come at the end of
    the step that resumes it, though a return computed in chunks takes some steps more. One that never
    ran again is never reported.
    """
    steps, events, requests = recording.steps, recording.events, recording.requests
    ends = np.maximum.accumulate((steps["t_start_s"] + steps["duration_s"]).to_numpy())
    kind = pl.col("kind").cast(pl.String)
    left = events.filter(kind.is_in(["finish", "abort"])).select("step", "blocks")
    gone = left.group_by("step").agg(num=pl.len(), blocks=pl.col("blocks").sum())
    after = steps.select("step").join(gone, on="step", how="left", maintain_order="left")
    freed = after["blocks"].fill_null(0).to_numpy()
    first = requests.drop_nulls("first_token_s")
    found = (
        events.filter(kind == "admit")
        .group_by("request_id")
        .agg(cached=pl.col("tokens").first())
    )
    first = first.join(found, on="request_id", how="left").with_columns(
        pl.col("cached").fill_null(0)
    )
    row = np.searchsorted(ends, first["first_token_s"].to_numpy() - 1e-9)
    size = len(ends)

    def summed(values: np.ndarray) -> np.ndarray:
        counts = np.bincount(row, weights=values, minlength=size)[:size]
        return np.concatenate(([0.0], np.cumsum(counts)))

    firsts = np.concatenate(([0.0], np.cumsum(np.bincount(row, minlength=size)[:size])))
    decoded = np.concatenate(([0], np.cumsum(steps["decode_tokens"].to_numpy())))
    away = away_intervals(events)
    back = np.searchsorted(
        steps["step"].to_numpy(), away["resume_step"].drop_nulls().to_numpy()
    )
    return Run(
        ends,
        decoded + firsts,
        summed(first["prompt_tokens"].to_numpy() - first["cached"].to_numpy()),
        summed(first["cached"].to_numpy()),
        (steps["num_running"] - steps["num_finished"]).to_numpy(),
        steps["num_waiting"].to_numpy(),
        steps["num_swapped"].to_numpy(),
        np.maximum(steps["used_blocks"].to_numpy() - freed, 0),
        steps["host_used_blocks"].to_numpy(),
        np.sort(away["preempt_s"].to_numpy()),
        np.sort(ends[np.minimum(back, size - 1)]) if size else np.empty(0),
        recording.pool_blocks,
        recording.meta.host_pool_blocks or 0,
        int(recording.meta.settings.get("block_size") or 16),
    )


def _stamp(t_s: float) -> str:
    return (_START + timedelta(seconds=t_s)).strftime("%m-%d %H:%M:%S")


def v1_log(recording: Recording, *, pool: bool = True, every_s: float = V1_EVERY_S) -> str:
    """The log of a V1 server. pool: with the start-up line that states the pool."""
    run = follow(recording)
    lines = []
    if pool:
        tokens = (run.pool_blocks + 1) * run.block_size
        lines.append(
            f"INFO {_stamp(-60)} [kv_cache_utils.py:1087] GPU KV cache size: {tokens:,} tokens"
        )
    before = 0
    for t in run.times(every_s):
        n = run.at(t)
        prompt = (run.prompt_tokens[n] - run.prompt_tokens[before]) / every_s
        generated = (run.generated[n] - run.generated[before]) / every_s
        hits = float(run.cached_tokens[n])
        asked = hits + float(run.prompt_tokens[n])
        lines.append(
            f"INFO {_stamp(t)} [loggers.py:310] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
            f"Avg generation throughput: {generated:.1f} tokens/s, Running: {run.state(run.running, n)} reqs, "
            f"Waiting: {run.state(run.waiting, n) + run.state(run.swapped, n)} reqs, "
            f"GPU KV cache usage: {100 * run.usage(n):.1f}%, "
            f"Prefix cache hit rate: {100 * hits / asked if asked else 0.0:.1f}%"
        )
        before = n
    return "\n".join(lines) + "\n"


def v0_log(recording: Recording, *, pool: bool = True, every_s: float = V0_EVERY_S) -> str:
    """The log of a V0 server, with a warning for the first preemption and each 50th after it."""
    run = follow(recording)
    swaps = str(recording.meta.settings.get("preemption_mode")) == "swap"
    mode = "SWAP" if swaps else "RECOMPUTE"
    lines: list[tuple[float, str]] = []
    if pool:
        lines.append(
            (
                -60.0,
                f"INFO {_stamp(-60)} gpu_executor.py:113] # GPU blocks: {run.pool_blocks}, "
                f"# CPU blocks: {run.host_blocks}",
            )
        )
    for nth in range(0, len(run.preempted_s), V0_WARNS_EVERY):
        t = float(run.preempted_s[nth])
        lines.append(
            (
                t,
                f"WARNING {_stamp(t)} scheduler.py:1481] Sequence group {nth} is preempted by PreemptionMode.{mode} "
                "mode because there is not enough KV cache space. This can affect the end-to-end performance. "
                "Increase gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. "
                f"total_num_cumulative_preemption={nth + 1}",
            )
        )
    before = 0
    for t in run.times(every_s):
        n = run.at(t)
        prompt = (run.prompt_tokens[n] - run.prompt_tokens[before]) / every_s
        generated = (run.generated[n] - run.generated[before]) / every_s
        host = run.state(run.host_used, n) / run.host_blocks if run.host_blocks else 0.0
        lines.append(
            (
                float(t),
                f"INFO {_stamp(t)} metrics.py:449] Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation "
                f"throughput: {generated:.1f} tokens/s, Running: {run.state(run.running, n)} reqs, Swapped: "
                f"{run.state(run.swapped, n)} reqs, Pending: {run.state(run.waiting, n)} reqs, GPU KV cache usage: "
                f"{100 * run.usage(n):.1f}%, CPU KV cache usage: {100 * host:.1f}%.",
            )
        )
        before = n
    return "\n".join(text for _, text in sorted(lines, key=lambda line: line[0])) + "\n"


def scrapes(recording: Recording, *, pool: bool = True, every_s: float = SCRAPE_EVERY_S) -> str:
    """Scrapes of a V1 server's /metrics with the time before each; the first is of the idle server."""
    run = follow(recording)
    lines: list[str] = []
    for t in np.concatenate(([0.0], run.times(every_s))):
        n = run.at(t) if t else 0
        values = {
            "num_requests_running": run.state(run.running, n),
            "num_requests_waiting": run.state(run.waiting, n) + run.state(run.swapped, n),
            "kv_cache_usage_perc": run.usage(n),
            "num_preemptions_total": int(np.searchsorted(run.reported_s, t, side="right")),
            "prompt_tokens_total": run.prompt_tokens[n] + run.cached_tokens[n],
            "generation_tokens_total": run.generated[n],
        }
        lines.append((_START + timedelta(seconds=float(t))).strftime("%Y-%m-%d %H:%M:%S"))
        if pool:
            lines.append(
                f'vllm:cache_config_info{{block_size="{run.block_size}",engine="0",'
                f'num_gpu_blocks="{run.pool_blocks + 1}"}} 1.0'
            )
        lines += [f"vllm:{k}{{{_LABELS}}} {float(v)}" for k, v in values.items()]
    return "\n".join(lines) + "\n"


def iterations(recording: Recording, *, pool: bool = True) -> str:
    """Lines of `--enable-logging-iteration-details`, one a step with work.

    A resumed request counts as a generation request with many tokens, as with the V1 runner. One whose
    return takes several steps is not counted in those before the last, which recordings do not tell.
    """
    run = follow(recording)
    lines = []
    if pool:
        tokens = (run.pool_blocks + 1) * run.block_size
        lines.append(
            f"INFO {_stamp(-60)} [kv_cache_utils.py:1087] GPU KV cache size: {tokens:,} tokens"
        )
    columns = ("step", "duration_s", "prefill_tokens", "decode_tokens", "recomputed_tokens")
    new = _in_prefill(recording, run.ends_s)
    for n, row in enumerate(recording.steps.select(columns).iter_rows(named=True), start=1):
        tokens = row["prefill_tokens"] + row["decode_tokens"] + row["recomputed_tokens"]
        if not tokens:
            continue
        context = max(int(new[n - 1]), 1) if row["prefill_tokens"] else 0
        decode = max(row["decode_tokens"], 1 if row["recomputed_tokens"] else 0)
        lines.append(
            f"INFO {_stamp(float(run.ends_s[n - 1]))} [loggers.py:182] Engine 000: Iteration({row['step']}): "
            f"{context} context requests, {row['prefill_tokens']} context tokens, {decode} generation requests, "
            f"{row['decode_tokens'] + row['recomputed_tokens']} generation tokens, iteration elapsed time: "
            f"{1000 * row['duration_s']:.2f} ms, GPU KV cache usage: {100 * run.usage(n):.1f}%"
        )
    return "\n".join(lines) + "\n"


def _in_prefill(recording: Recording, ends_s: np.ndarray) -> np.ndarray:
    """How many requests were between their first step and their first token, for each step [n]."""
    began = recording.requests.drop_nulls(["first_scheduled_s", "first_token_s"])
    first = np.searchsorted(ends_s, began["first_scheduled_s"].to_numpy(), side="right")
    last = np.searchsorted(ends_s, began["first_token_s"].to_numpy() - 1e-9)
    size = len(ends_s) + 1
    change = (
        np.bincount(first, minlength=size) - np.bincount(last + 1, minlength=size + 1)[:size]
    )
    return np.cumsum(change)[:-1]


KINDS: dict[str, Callable[..., str]] = {
    "v1-log": v1_log,
    "v0-log": v0_log,
    "metrics": scrapes,
    "v1-iterations": iterations,
}


def sampled_evidence(recording: Recording, kind: str, *, pool: bool = True) -> Evidence:
    """What the readers make of the recording as `kind` would tell of it. Raises KeyError.

    kind: one of KINDS; pool: whether the evidence states the pool's size.
    """
    name = "metrics.txt" if kind == "metrics" else "server.log"
    return read_sources([Source.from_text(name, KINDS[kind](recording, pool=pool))])
