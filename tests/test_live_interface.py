"""What the live recorder asks of a vLLM before it starts, on classes made up for it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine.live.interface import Interface, find, look, refusal
from tests.live.vllm_runs import need_vllm

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("numba", "polars", "streamlit", "plotly")


class Scheduler:
    def __init__(self) -> None:
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.skipped_waiting: list[Any] = []
        self.requests: dict[str, Any] = {}
        self.kv_cache_manager = self.connector = None
        self.deferred_frees: list[Any] = []

    def schedule(self) -> None:
        request = preempted_req = None
        self._preempt_request(preempted_req or request, 0.0)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> None: ...
    def _preempt_request(self, request: Any, timestamp: float, more: bool = False) -> None: ...
    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> None: ...
    def add_request(self, request: Any) -> None: ...
    def finish_requests(self, request_ids: Any, finished_status: Any) -> None: ...
    def get_request_counts(self) -> None: ...
    def shutdown(self) -> None: ...


class AsyncScheduler(Scheduler):
    pass


@dataclass
class Output:
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_new_reqs: list[Any]
    scheduled_cached_reqs: Any


@dataclass
class Cached:
    resumed_req_ids: set[str]


class Request:
    def __init__(self) -> None:
        self.request_id = self.status = ""
        self.num_prompt_tokens = self.num_computed_tokens = self.priority = 0
        self.block_hashes: list[bytes] = []


class Manager:
    def __init__(self) -> None:
        self.block_pool = None

    def get_computed_blocks(self, request: Any) -> None: ...
    def get_blocks(self, request_id: str) -> None: ...


class Queue:
    def __init__(self) -> None:
        self.num_free_blocks = 0

    def get_all_free_blocks(self) -> None: ...
    def prepend_n(self, blocks: Any) -> None: ...
    def append_n(self, blocks: Any) -> None: ...
    def popleft_n(self, n: int) -> None: ...
    def popleft(self) -> None: ...


class Pool:
    def __init__(self) -> None:
        self.num_gpu_blocks = 0
        self.free_block_queue = Queue()

    def free_blocks(self, blocks: Any) -> None:
        self.free_block_queue.prepend_n(blocks)
        self.free_block_queue.append_n(blocks)


EXPECTED = Interface(
    "9.9", Scheduler, AsyncScheduler, Output, Cached, Request, Manager, Pool, Queue
)


def test_the_expected_interface_lacks_nothing() -> None:
    found = look(EXPECTED)

    assert found.lacks == ()
    assert found.blind == ()


class NoPreempt(Scheduler):
    _preempt_request = None  # type: ignore[assignment]


class OtherUpdate(Scheduler):
    def update_from_output(self, outputs: Any) -> None: ...  # type: ignore[override]


class OtherAsync:
    pass


@dataclass
class OtherOutput:
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    requests: list[Any]
    scheduled_cached_reqs: Any


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"scheduler": NoPreempt, "async_scheduler": NoPreempt},
            "NoPreempt._preempt_request(request, timestamp) is not there",
        ),
        (
            {"scheduler": OtherUpdate, "async_scheduler": OtherUpdate},
            "update_from_output(scheduler_output, model_runner_output) was expected and update_from_output(outputs) found",
        ),
        ({"async_scheduler": OtherAsync}, "OtherAsync is no subclass of Scheduler"),
        ({"output": OtherOutput}, "OtherOutput has no field scheduled_new_reqs"),
        ({"request": OtherAsync}, "OtherAsync.num_computed_tokens is not there"),
    ],
)
def test_a_part_that_is_not_there_is_named(change: dict[str, type], fault: str) -> None:
    vllm = replace(EXPECTED, **change)  # type: ignore[arg-type]

    found = look(vllm)

    assert fault in "; ".join(found.lacks)
    said = str(refusal(vllm, found))
    assert said.startswith("vLLM 9.9: its scheduler is not the one")
    assert "vLLM 0.26.0" in said
    assert "KV_REPLAY_UNSUPPORTED=run-unrecorded" in said


class OldPool(Pool):
    def free_blocks(self, blocks: Any) -> None:
        self.free_block_queue.append_n(blocks)


class OtherNames(Scheduler):
    def schedule(self) -> None:
        victim = None
        self._preempt_request(victim, 0.0)


def test_what_only_cannot_be_seen_is_listed_and_no_reason_to_refuse() -> None:
    found = look(
        replace(EXPECTED, block_pool=OldPool, scheduler=OtherNames, async_scheduler=OtherNames)
    )

    assert found.lacks == ()
    assert found.blind == ("steps.cached_free_blocks", "events.cause_request_id")


def imported(python: str, statement: str) -> str:
    code = f"{statement}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("module", ["interface", "metadata", "settings", "tap", "writer"])
def test_the_recorder_imports_neither_compiler_nor_page(module: str) -> None:
    assert imported(sys.executable, f"import engine.live.{module}") == "[]"


@pytest.mark.parity
def test_in_vllm_it_imports_neither_compiler_nor_page_of_ours() -> None:
    python = str(need_vllm())

    # vLLM itself imports numba with speculative decoding only
    assert imported(python, "import engine.live.vllm") == "[]"


def test_a_class_that_a_vllm_does_not_have_is_named() -> None:
    absent = find("json", "NoSuchScheduler")

    found = look(replace(EXPECTED, async_scheduler=absent))

    assert found.lacks == ("the class NoSuchScheduler is not there",)
    assert find("no_such_module", "Scheduler").__name__ == "Scheduler"
