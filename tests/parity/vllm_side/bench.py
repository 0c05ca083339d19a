"""How long vLLM's own scheduler takes for a step: schedule() and update_from_output(), CPU time.

A steady batch: every request decodes one token a step, none waits. Making up the model's output is
not timed; hashing blocks that fill and building SchedulerStats (log_stats) are. With --scheduler-cls
the same is measured for another class, so that what a subclass adds can be told.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.parity.vllm_side.requests import make_request, sampled_token
from tests.parity.vllm_side.settings import Settings, block_hasher, make_scheduler

WARM_UP = 8
_ROOM = 64  # output tokens beyond the measured ones


@dataclass(frozen=True)
class Load:
    """A steady batch: how many requests run, their prompts, for how many steps."""

    running: int
    prefix_caching: bool
    async_scheduling: bool
    prompt: int
    steps: int

    def settings(self) -> Settings:
        """A pool that holds the whole batch to its end."""
        blocks = -(-(self.prompt + self.steps + _ROOM) // 16)
        return Settings(
            num_blocks=1 + self.running * blocks,
            max_num_seqs=self.running,
            max_num_batched_tokens=max(8192, self.running),
            enable_prefix_caching=self.prefix_caching,
            async_scheduling=self.async_scheduling,
        )


class Batch:
    """A scheduler with a steady batch, one step at a time."""

    def __init__(self, load: Load, class_name: str | None) -> None:
        s = load.settings()
        self.scheduler = make_scheduler(s, class_name)
        hasher = block_hasher(s)
        for i in range(load.running):
            row = {
                "request_id": f"r{i}",
                "prompt_tokens": load.prompt,
                "output_tokens": load.steps + _ROOM,
            }
            self.scheduler.add_request(make_request(i, i, row, s, hasher))
        self._sampled = 0
        while self.scheduler.waiting:
            self.step()
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> tuple[float, float]:
        """CPU seconds of schedule() and of update_from_output()."""
        from vllm.v1.outputs import ModelRunnerOutput

        scheduler = self.scheduler
        start = time.thread_time()
        output = scheduler.schedule()
        scheduled = time.thread_time()
        ids = list(output.num_scheduled_tokens)
        tokens: list[list[int]] = []
        for i in ids:
            self._sampled += 1
            chunk = scheduler.requests[i].is_prefill_chunk
            tokens.append([] if chunk else sampled_token(self._sampled))
        model_output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=tokens,
        )
        made = time.thread_time()
        scheduler.update_from_output(output, model_output)
        return scheduled - start, time.thread_time() - made


def measure(load: Load, class_name: str | None = None) -> dict[str, Any]:
    """Mean CPU seconds of a step, and steps a CPU second, over one batch's steady steps."""
    batch = Batch(load, class_name)
    gc.collect()
    spent = [batch.step() for _ in range(load.steps)]
    if (running := len(batch.scheduler.running)) != load.running:
        raise RuntimeError(f"{running} requests ran, not {load.running}")
    schedule, update = (sum(column) for column in zip(*spent, strict=True))
    whole = sorted(a + b for a, b in spent)
    return vars(load) | {
        "scheduler": type(batch.scheduler).__name__,
        "schedule_cpu_s": schedule / load.steps,
        "update_cpu_s": update / load.steps,
        "step_cpu_s_p50": whole[len(whole) // 2],
        "step_cpu_s_p99": whole[int(len(whole) * 0.99)],
        "steps_per_cpu_s": load.steps / (schedule + update),
    }


def bench_lines(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line of figures a repeat of each load; the loads take turns, so that all share the hour."""
    caching = {"on": [True], "off": [False], "both": [False, True]}[args.prefix_caching]
    for _ in range(args.repeat):
        for running in args.running:
            for cached in caching:
                load = Load(running, cached, args.async_scheduling, args.prompt, args.steps)
                yield measure(load, args.scheduler_cls)
