"""Run by the interpreter that has vLLM: python -m tests.live.stats_drive < cases > answers.

It loads stat loggers as vLLM does, through its entry points, and gives them what vLLM's front end
would: the scheduler's statistics of each step, and iteration statistics that vLLM's own output
processor makes of its outputs. A case a line: name, settings, rows, `out` (empty: no directory is
named) and optionally `environ`, `engines`, `scheduler_cls` (as the flag says), `break` (what goes
wrong). An answer a line, with the truth of each
step: what the scheduler's queues and pool were when the statistics were made.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from typing import Any

from tests.live.drive import set_environment


class FrontEnd:
    """vLLM's output processor and stat loggers, fed from a scheduler; notes the truth of each step."""

    def __init__(self, scheduler: Any, plugins: list[Any], engines: list[int]) -> None:
        from vllm.v1.engine.output_processor import OutputProcessor
        from vllm.v1.metrics.loggers import StatLoggerManager

        self.scheduler = scheduler
        self.manager = StatLoggerManager(
            vllm_config=scheduler.vllm_config,
            engine_idxs=engines,
            custom_stat_loggers=plugins,
            enable_default_loggers=False,
        )
        self.manager.log_engine_initialized()
        self.processor = OutputProcessor(None, log_stats=True)
        self.truth: list[dict[str, Any]] = []
        self._add, self._update = scheduler.add_request, scheduler.update_from_output
        self._finish, self._preempt = scheduler.finish_requests, scheduler._preempt_request
        scheduler.add_request = self.add_request
        scheduler.update_from_output = self.update_from_output
        scheduler.finish_requests = self.finish_requests
        scheduler._preempt_request = self.preempt
        self.preemptions = 0

    def preempt(self, request: Any, timestamp: float) -> None:
        self.preemptions += 1
        self._preempt(request, timestamp)

    def add_request(self, request: Any) -> None:
        from vllm.v1.engine import EngineCoreRequest

        self.processor.add_request(
            EngineCoreRequest(
                request_id=request.request_id,
                prompt_token_ids=list(request.prompt_token_ids),
                mm_features=None,
                sampling_params=request.sampling_params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
                external_req_id=request.request_id,
            ),
            prompt=None,
        )
        self._add(request)

    def finish_requests(self, request_ids: Any, status: Any) -> Any:
        done = self._finish(request_ids, status)
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self.processor.abort_requests(ids, internal=True)
        return done

    def update_from_output(self, output: Any, model_output: Any) -> Any:
        """As vLLM's AsyncLLM takes the outputs of a step."""
        from vllm.v1.metrics.stats import IterationStats

        made = self._update(output, model_output)
        for client in made.values():
            iteration = IterationStats() if client.outputs else None
            self.processor.process_outputs(client.outputs, time.monotonic(), iteration)
            self.processor.update_scheduler_stats(client.scheduler_stats)
            self.manager.record(client.scheduler_stats, iteration, engine_idx=0)
        pool = self.scheduler.kv_cache_manager.block_pool
        self.truth.append(
            {
                "used_blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
                "num_running": len(self.scheduler.running),
                "num_waiting_capacity": len(self.scheduler.waiting),
                "num_deferred": len(self.scheduler.skipped_waiting),
                "generation_tokens": sum(
                    len(o.new_token_ids) for c in made.values() for o in c.outputs
                ),
            }
        )
        return made


class FailingStats:
    """Statistics that raise at every look, as those of another version might."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} here")


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One case; the truth of its steps, and which loggers vLLM loaded."""
    from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories

    from tests.parity.vllm_side.engine import Case
    from tests.parity.vllm_side.settings import settings_from

    set_environment(case["out"], case.get("environ", {}))
    if not case["out"]:
        del os.environ["KV_REPLAY_OUT"]
    plugins = load_stat_logger_plugin_factories()
    runner = Case(settings_from(case["settings"]), case["rows"])
    if "scheduler_cls" in case:
        runner.scheduler.vllm_config.scheduler_config.scheduler_cls = case["scheduler_cls"]
    front = FrontEnd(runner.scheduler, plugins, case.get("engines", [0]))
    loggers = [
        logger
        for adapter in front.manager.stat_loggers
        for logger in getattr(adapter, "per_engine_stat_loggers", {}).values()
    ]
    if case.get("break") == "stats":  # vLLM's own loggers would not live through them
        loggers[0].record(FailingStats(), None)
    totals = runner.run(lambda record: None)
    for logger in loggers:
        logger.close()
    return {
        "loaded": [f"{p.__module__}.{p.__qualname__}" for p in plugins],
        "loggers": len(loggers),
        "preemptions": front.preemptions,
        "truth": front.truth,
        "status": totals.status,
    }


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever vLLM prints is no answer
    logging.disable(logging.INFO)
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer = {"name": case["name"], "error": None, **run(case)}
        except Exception as error:
            answer = {"name": case["name"], "error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        print(json.dumps(answer), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
