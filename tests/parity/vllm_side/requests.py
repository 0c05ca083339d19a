"""Rows of a trace as vLLM's requests, and the order in which a case brings them.

A row has request_id, prompt_tokens, output_tokens; arrival_step (clock "step") or arrival_time_s
(clock "latency"); optionally priority, prefix_hash_ids with prefix_hash_block tokens each (0 or
absent: the block size), and abort_step or abort_s.
"""

from __future__ import annotations

from typing import Any

from tests.parity.vllm_side.settings import Settings

_SAMPLED = (
    1 << 62
)  # token ids below -_SAMPLED were sampled; other negative ones are a prompt's own


def prompt_ids(index: int, row: dict[str, Any], block_size: int) -> list[int]:
    """Token ids, equal in two prompts exactly as far as their prefix ids are."""
    segment = row.get("prefix_hash_block") or block_size
    length = row["prompt_tokens"]
    tokens: list[int] = []
    for prefix_id in row.get("prefix_hash_ids") or ():
        if len(tokens) >= length:
            break
        first = int(prefix_id) << 32
        tokens.extend(range(first, first + segment))
    del tokens[length:]
    own = -(index + 1) << 32
    tokens.extend(range(own + len(tokens), own + length))
    return tokens


def sampled_token(number: int) -> list[int]:
    """The token that a request samples: one that occurs nowhere else."""
    return [-_SAMPLED - number]


def make_request(index: int, order: int, row: dict[str, Any], s: Settings, hasher: Any) -> Any:
    """The row as a vLLM request. order: its place in order of arrival, which priority ties go by."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id=row["request_id"],
        prompt_token_ids=prompt_ids(index, row, s.block_size),
        sampling_params=SamplingParams(max_tokens=row["output_tokens"], ignore_eos=True),
        pooling_params=None,
        arrival_time=float(order),
        priority=row.get("priority") or 0,
        block_hasher=hasher,
    )


def arrivals(rows: list[dict[str, Any]], s: Settings) -> list[tuple[float, int]]:
    """(time, row) by time; ties keep the order of the file."""
    key = "arrival_time_s" if s.clock == "latency" else "arrival_step"
    return sorted(((row[key], i) for i, row in enumerate(rows)), key=lambda pair: pair[0])


def aborts(rows: list[dict[str, Any]], s: Settings) -> list[tuple[float, str]]:
    """(time, request id) by time, ties by id."""
    key = "abort_s" if s.clock == "latency" else "abort_step"
    return sorted((row[key], row["request_id"]) for row in rows if row.get(key) is not None)
