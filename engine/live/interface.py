"""Whether a vLLM has the scheduler that the live recorder was written for, and what it lacks.

It looks at classes, signatures and the names that their code uses, not at version numbers: a fork or
a backport counts by what it is. It was written against vLLM 0.26.0.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from traces.errors import KVReplayError

WRITTEN_FOR = "0.26.0"


class UnsupportedVllmError(KVReplayError):
    """A vLLM whose scheduler is not the one that the recorder knows."""


class Absent:
    """Stands where a vLLM has no class of the name that the recorder knows."""


def find(module: str, name: str) -> Any:
    """The class of that name, or a stand-in that `look` reports."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return type(name, (Absent,), {})


@dataclass(frozen=True)
class Interface:
    """The vLLM classes that the recorder looks at, as they are found."""

    version: str
    scheduler: type
    async_scheduler: type
    output: type
    cached_request_data: type
    request: type
    kv_cache_manager: type
    block_pool: type
    free_queue: type


@dataclass(frozen=True)
class Findings:
    """lacks: sentences about what recording needs and is not there; blind: "table.column" that
    cannot be seen because an optional part is not there."""

    lacks: tuple[str, ...]
    blind: tuple[str, ...]


# class -> method -> parameters, by name, that the recorder or vLLM's own callers pass
_METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "scheduler": {
        "schedule": (),
        "update_from_output": ("scheduler_output", "model_runner_output"),
        "_preempt_request": ("request", "timestamp"),
        "_free_request": ("request",),
        "add_request": ("request",),
        "finish_requests": ("request_ids", "finished_status"),
        "get_request_counts": (),
        "shutdown": (),
    },
    "kv_cache_manager": {"get_computed_blocks": ("request",), "get_blocks": ("request_id",)},
    "free_queue": {"get_all_free_blocks": ()},
}
# class -> attributes that its constructor sets
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "scheduler": ("running", "waiting", "requests", "kv_cache_manager", "connector"),
    "request": ("request_id", "num_prompt_tokens", "num_computed_tokens", "priority", "status", "block_hashes"),
    "kv_cache_manager": ("block_pool",),
    "block_pool": ("num_gpu_blocks", "free_block_queue"),
    "free_queue": ("num_free_blocks",),
}  # fmt: skip
_FIELDS: dict[str, tuple[str, ...]] = {
    "output": (
        "num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_new_reqs", "scheduled_cached_reqs",
    ),
    "cached_request_data": ("resumed_req_ids",),
}  # fmt: skip


def look(vllm: Interface) -> Findings:
    """Compare what is there with what the recorder needs."""
    absent = {
        f.name: kind.__name__
        for f in fields(vllm)
        if isinstance(kind := getattr(vllm, f.name), type) and issubclass(kind, Absent)
    }
    if absent:
        return Findings(tuple(f"the class {name} is not there" for name in absent.values()), ())
    lacks: list[str] = []
    for name, methods in _METHODS.items():
        for method, parameters in methods.items():
            lacks += _method_faults(getattr(vllm, name), method, parameters)
    for name, attributes in _ATTRIBUTES.items():
        kind = getattr(vllm, name)
        known = _names_used(kind)
        lacks += [f"{kind.__name__}.{a} is not there" for a in attributes if a not in known]
    for name, needed in _FIELDS.items():
        kind = getattr(vllm, name)
        there = getattr(kind, "__annotations__", {})
        lacks += [f"{kind.__name__} has no field {f}" for f in needed if f not in there]
    if not issubclass(vllm.async_scheduler, vllm.scheduler):
        lacks.append(
            f"{vllm.async_scheduler.__name__} is no subclass of {vllm.scheduler.__name__}"
        )
    return Findings(tuple(lacks), tuple(_blind_spots(vllm)))


def refusal(vllm: Interface, findings: Findings) -> UnsupportedVllmError:
    """The error that says what was expected, what was found, and what to do."""
    shown = "; ".join(findings.lacks[:6])
    more = f"; and {len(findings.lacks) - 6} more" if len(findings.lacks) > 6 else ""
    return UnsupportedVllmError(
        f"vLLM {vllm.version}: its scheduler is not the one that KV Replay's recorder was written for "
        f"(vLLM {WRITTEN_FOR}): {shown}{more}. Serve without --scheduler-cls, use a KV Replay that knows this "
        "version, or set KV_REPLAY_UNSUPPORTED=run-unrecorded to serve without a recording."
    )


def splits_free_blocks(vllm: Interface) -> bool:
    """Whether freed blocks without a hash go to the front of the free queue, as CachedFree counts."""
    needed = ("prepend_n", "append_n", "popleft_n", "popleft")
    frees = _code_names(getattr(vllm.block_pool, "free_blocks", None))
    return (
        all(hasattr(vllm.free_queue, n) for n in needed) and {"prepend_n", "append_n"} <= frees
    )


def names_cause(vllm: Interface) -> bool:
    """Whether schedule() has the request it serves in a local variable `request`."""
    code = getattr(vllm.scheduler.__dict__.get("schedule"), "__code__", None)
    if code is None:
        return False
    return {"request", "preempted_req"} <= {*code.co_varnames, *code.co_cellvars}


def _blind_spots(vllm: Interface) -> Iterable[str]:
    if not splits_free_blocks(vllm):
        yield "steps.cached_free_blocks"
    if not names_cause(vllm):
        yield "events.cause_request_id"
    names = _names_used(vllm.scheduler)
    if "deferred_frees" not in names:
        yield "steps.fenced_blocks"
    if not names & {"skipped_waiting", "deferred_waiting"}:
        yield "steps.num_swapped"


def _method_faults(kind: type, method: str, parameters: tuple[str, ...]) -> list[str]:
    function = getattr(kind, method, None)
    wanted = f"{kind.__name__}.{method}({', '.join(parameters)})"
    if not callable(function):
        return [f"{wanted} is not there"]
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return [f"{wanted} cannot be looked at"]
    names = [n for n in found if n != "self"]
    if tuple(names[: len(parameters)]) != parameters:
        return [f"{wanted} was expected and {method}({', '.join(names)}) found"]
    return []


def _names_used(kind: type) -> set[str]:
    """Attributes that a class or its constructor mentions, bases included."""
    names: set[str] = set()
    for base in kind.__mro__[:-1]:
        names |= set(vars(base)) | set(getattr(base, "__annotations__", {}))
        names |= _code_names(vars(base).get("__init__"))
    return names


def _code_names(function: Any) -> set[str]:
    code = getattr(function, "__code__", None)
    return set() if code is None else set(code.co_names)
