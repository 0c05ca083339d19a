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
from typing import Any

from tests.parity.vllm_side.requests import make_request, sampled_token
from tests.parity.vllm_side.settings import Settings, block_hasher, make_scheduler

WARM_UP = 8
_ROOM = 64  # output tokens beyond the measured ones


def bench_settings(args: argparse.Namespace) -> Settings:
    """A pool that holds the whole batch to its end."""
    blocks = -(-(args.prompt + args.steps + _ROOM) // 16)
    return Settings(
        num_blocks=1 + args.running * blocks,
        max_num_seqs=args.running,
        max_num_batched_tokens=max(8192, args.running),
        enable_prefix_caching=not args.no_prefix_caching,
        async_scheduling=args.async_scheduling,
    )


class Batch:
    """A scheduler with a steady batch, one step at a time."""

    def __init__(self, args: argparse.Namespace) -> None:
        s = bench_settings(args)
        self.scheduler = make_scheduler(s, args.scheduler_cls)
        hasher = block_hasher(s)
        for i in range(args.running):
            row = {
                "request_id": f"r{i}",
                "prompt_tokens": args.prompt,
                "output_tokens": args.steps + _ROOM,
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


def bench_lines(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line of figures a repeat."""
    for _ in range(args.repeat):
        batch = Batch(args)
        gc.collect()
        spent = [batch.step() for _ in range(args.steps)]
        running = len(batch.scheduler.running)
        if running != args.running:
            raise RuntimeError(f"{running} requests ran, not {args.running}")
        schedule, update = (sum(column) for column in zip(*spent, strict=True))
        whole = sorted(a + b for a, b in spent)
        yield {
            "scheduler": type(batch.scheduler).__name__,
            "running": args.running,
            "prefix_caching": not args.no_prefix_caching,
            "async_scheduling": args.async_scheduling,
            "steps": args.steps,
            "prompt_tokens": args.prompt,
            "schedule_cpu_s": schedule / args.steps,
            "update_cpu_s": update / args.steps,
            "step_cpu_s_p50": whole[len(whole) // 2],
            "step_cpu_s_p99": whole[int(len(whole) * 0.99)],
            "steps_per_cpu_s": args.steps / (schedule + update),
        }
