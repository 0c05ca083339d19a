"""Run by the interpreter that has vLLM: python -m tests.live.core OUT

vLLM's own engine core, as a server's process has it, over an executor without a model: every request
samples one token a step. The recorder gets in as an operator would bring it: by the name of its class
in the configuration. Once synchronously, below OUT/sync, and once asynchronously. Prints a JSON line
each: the class that vLLM made, and the ids that finished.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from concurrent.futures import Future
from typing import Any

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import torch  # vLLM's side: the cache's element type is a torch type
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

from tests.parity.vllm_side.settings import _model_directory

BLOCKS = 24
REQUESTS = 6
MOST_STEPS = 5_000


class NoModel(Executor):
    """An executor whose model answers at once with the next number."""

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def _init_executor(self) -> None:
        self._output: Any = None
        self._known: dict[str, int] = {}  # request -> tokens still to compute before it samples
        self._sampled = 0

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        spec = FullAttentionSpec(
            block_size=16, num_kv_heads=1, head_size=16, dtype=torch.float16
        )
        if method == "get_kv_cache_spec":
            return [{"layer": spec}]
        if method == "determine_available_memory":
            return [spec.page_size_bytes * BLOCKS]
        return []

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        self._output = scheduler_output
        done: Future[Any] = Future()
        done.set_result(None if scheduler_output.total_num_scheduled_tokens else self._answer())
        return done if non_block else done.result()

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        done: Future[Any] = Future()
        done.set_result(self._answer())
        return done if non_block else done.result()

    def _answer(self) -> ModelRunnerOutput:
        output = self._output
        for new in output.scheduled_new_reqs:
            known = new.prefill_token_ids or new.prompt_token_ids
            self._known[new.req_id] = len(known) - new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for request in cached.resumed_req_ids:
            place = cached.req_ids.index(request)
            known = len(cached.all_token_ids[request])
            self._known[request] = known - cached.num_computed_tokens[place]
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for request, tokens in output.num_scheduled_tokens.items():
            self._known[request] -= tokens
            self._sampled += 1
            sampled.append([self._sampled % 1000] if self._known[request] <= 0 else [])
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=sampled,
        )

    def check_health(self) -> None:
        return None


def make_core(asynchronous: bool) -> EngineCore:
    config = VllmConfig(
        model_config=ModelConfig(
            model=_model_directory().name,
            skip_tokenizer_init=True,
            dtype="float16",
            max_model_len=256,
            seed=0,
        ),
        cache_config=CacheConfig(block_size=16),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_model_len=256,
            is_encoder_decoder=False,
            scheduler_cls="engine.live.vllm.RecordingScheduler",
            async_scheduling=asynchronous,
        ),
        parallel_config=ParallelConfig(distributed_executor_backend=NoModel),
        device_config=DeviceConfig(device="cpu"),
    )
    config.scheduler_config.async_scheduling = asynchronous
    return EngineCore(config, NoModel, log_stats=True)


def run(asynchronous: bool) -> dict[str, Any]:
    """Six requests over a pool for fewer, one aborted on the way."""
    core = make_core(asynchronous)
    made = type(core.scheduler).__name__
    for number in range(REQUESTS):
        request = EngineCoreRequest(
            request_id=f"r{number}",
            prompt_token_ids=list(range(40 + number)),
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=50, ignore_eos=True),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        core.add_request(*core.preprocess_add_request(request))
    finished: list[str] = []
    for _ in range(MOST_STEPS):
        outputs, _ = core.step_fn()
        before = len(finished)
        for o in (outputs or {}).values():
            finished += [item.request_id for item in o.outputs if item.finished]
        if before < 2 <= len(finished):
            core.abort_requests(["r5"])
        if len(finished) == REQUESTS - 1 and not core.scheduler.has_requests():
            break
    with contextlib.suppress(RuntimeError):  # at its very end it looks for an accelerator
        core.shutdown()
    return {"class": made, "finished": finished}


def main(out: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    for how in ("sync", "async"):
        os.environ["KV_REPLAY_OUT"] = f"{out}/{how}"
        print(json.dumps(run(how == "async")), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
