"""A run small enough to draw, with preemptions of every kind, for the tests of the Preemptions page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.run import Run
from tests.builders import make_events, make_meta, make_requests, make_steps, write
from traces.recording import open_recording

# who is evicted when: (step, victim, aggressor, back at step or None, tokens, free blocks)
Evicted = tuple[int, str, str | None, int | None, int, int]
THREE: tuple[Evicted, ...] = (
    (3, "b", "a", 5, 6, 0),
    (4, "c", "c", 8, 4, 2),
    (7, "b", "a", 9, 8, 0),
)


def run_of(
    folder: Path,
    mode: str = "recompute",
    evicted: tuple[Evicted, ...] = THREE,
    costs: bool = True,
    **meta: Any,
) -> Run:
    """Twelve steps of one second with three requests, of which some are evicted.

    Recompute costs 0.1 s a lost token, none is found again, and 2 tokens are computed again a step.
    Swap costs 0.25 s each way, for which the engine stands still.
    """
    again = [0] * 12
    events: list[dict[str, Any]] = []
    everybody = sorted({"a", "b", "c", *(e[1] for e in evicted)})
    for who in everybody:
        events += [
            {"step": 0, "kind": "arrive", "request_id": who},
            {"step": 0, "kind": "admit", "request_id": who, "blocks": 1},
        ]
    for step, who, cause, back, tokens, free in evicted:
        events += _gone(mode, step, who, cause, tokens, free, costs)
        if back is not None:
            events += _back(mode, back, who)
            if mode != "swap":
                for i in range(tokens // 2):
                    again[min(back + i, 11)] += 2
    swaps = mode == "swap"
    moved = [0] * 12
    for step, _, _, back, _, _ in evicted if swaps else ():
        for at in (step, back):
            if at is not None:
                moved[at] += 512
    steps = make_steps(
        [8, 9, 10, 9, 9, 10, 10, 8, 9, 10, 10, 6],
        num_running=[3, 3, 3, 2, 1, 2, 2, 1, 2, 3, 3, 3],
        decode_tokens=[3, 3, 3, 2, 1, 2, 2, 1, 2, 3, 3, 3],
        recomputed_tokens=again,
        swap_out_bytes=moved,
        stall_s=[m / 2048 for m in moved],
        num_preempted=[sum(e[0] == i for e in evicted) for i in range(12)],
    )
    requests = make_requests(
        [
            {"request_id": who, "arrival_s": 0.0, "first_scheduled_s": 0.0, "first_token_s": 1.0, "finish_s": 12.0,
             "prompt_tokens": 4, "output_tokens": 8, "num_preemptions": sum(e[1] == who for e in evicted), "max_itl_s": 3.0}
            for who in everybody
        ]
    )  # fmt: skip
    settings = {
        "num_gpu_blocks": 11,
        "block_size": 4,
        "policy": "fcfs",
        "preemption_mode": mode,
    }
    made = make_meta(**{"settings": settings, **meta})
    path = write(folder, steps, make_events(sorted(events, key=_order)), requests, meta=made)
    return Run(f"file:{folder.name}", open_recording(path, folder.name), folder.name)


def _order(event: Mapping[str, Any]) -> tuple[int, int]:
    """Within a step: who is evicted, then copies, then who comes back."""
    rank = {"arrive": 0, "admit": 1, "preempt": 2, "swap_out": 3, "swap_in": 4, "resume": 5}
    return event["step"], rank[event["kind"]]


def _gone(
    mode: str, step: int, who: str, cause: str | None, tokens: int, free: int, costs: bool
) -> list[dict[str, Any]]:
    swaps = mode == "swap"
    told = {"recompute_est_s": 0.2 * tokens, "swap_est_s": 0.5} if costs else {}
    event = {
        "step": step, "kind": "preempt", "request_id": who, "mode_asked": mode, "mode_used": mode, "blocks": 2,
        "tokens": tokens, "bytes": 512 if swaps else 0, "cause_request_id": cause, "free_blocks_before": free, **told,
        **({"cost_s": 0.5 if swaps else 0.1 * tokens} if costs else {}),
    }  # fmt: skip
    copy = {"step": step, "kind": "swap_out", "request_id": who, "bytes": 512, "cost_s": 0.25 if costs else None}  # fmt: skip
    return [event, copy] if swaps else [event]


def _back(mode: str, step: int, who: str) -> list[dict[str, Any]]:
    resume: dict[str, Any] = {"step": step, "kind": "resume", "request_id": who}
    copy: dict[str, Any] = {**resume, "kind": "swap_in", "bytes": 512, "cost_s": 0.25}
    return [copy, resume] if mode == "swap" else [resume]
