"""Runs small enough to draw, shared by the tests of the analyzer."""

from __future__ import annotations

from typing import Any

import polars as pl

from tests.builders import make_events, make_requests, make_steps


def chunked_return() -> dict[str, Any]:
    """Eight steps, ends at 1, 2, 3, 5, 6, 7, 8, 9 s.

    a: tokens at the ends of steps 0 to 4, that is 1, 2, 3, 5, 6 s.
    b: tokens at 2 and 3 s, preempted in step 3 with 6 computed tokens, resumed in step 5 with 2 of
    them found in the prefix cache; the other 4 are recomputed in steps 5 and 6, so that its next
    tokens come at 8 and 9 s.
    """
    steps = make_steps(
        [4, 8, 10, 6, 6, 4, 4, 4],
        duration_s=[1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0],
        num_running=[1, 2, 2, 1, 1, 1, 1, 1],
        num_waiting=[0, 0, 0, 1, 1, 0, 0, 0],
        num_preempted=[0, 0, 0, 1, 0, 0, 0, 0],
        num_resumed=[0, 0, 0, 0, 0, 1, 0, 0],
        prefill_tokens=[4, 4, 0, 0, 0, 0, 0, 0],
        decode_tokens=[0, 1, 2, 1, 1, 0, 1, 1],
        recomputed_tokens=[0, 0, 0, 0, 0, 2, 2, 0],
        cached_tokens=[0, 0, 0, 0, 0, 2, 0, 0],
    )
    events = make_events(
        [
            {"step": 0, "t_s": 0.0, "kind": "arrive", "request_id": "a"},
            {"step": 0, "t_s": 0.0, "kind": "admit", "request_id": "a", "blocks": 1},
            {"step": 1, "t_s": 0.5, "kind": "arrive", "request_id": "b"},
            {"step": 1, "t_s": 1.0, "kind": "admit", "request_id": "b", "blocks": 1},
            {
                "step": 3,
                "t_s": 3.0,
                "kind": "preempt",
                "request_id": "b",
                "mode_asked": "recompute",
                "mode_used": "recompute",
                "tokens": 6,
                "blocks": 2,
                "cost_s": 0.4,
                "recompute_est_s": 0.4,
                "swap_est_s": 0.1,
                "cause_request_id": "a",
            },
            {"step": 4, "t_s": 6.0, "kind": "finish", "request_id": "a", "tokens": 5},
            {"step": 5, "t_s": 6.0, "kind": "resume", "request_id": "b", "tokens": 2},
            {"step": 7, "t_s": 9.0, "kind": "finish", "request_id": "b", "tokens": 4},
        ]
    )
    requests = make_requests(
        [
            {
                "request_id": "a",
                "arrival_s": 0.0,
                "prompt_tokens": 4,
                "output_tokens": 5,
                "first_scheduled_s": 0.0,
                "first_token_s": 1.0,
                "finish_s": 6.0,
                "max_itl_s": 2.0,
            },
            {
                "request_id": "b",
                "arrival_s": 0.5,
                "prompt_tokens": 4,
                "output_tokens": 4,
                "first_scheduled_s": 1.0,
                "first_token_s": 2.0,
                "finish_s": 9.0,
                "num_preemptions": 1,
                "recomputed_tokens": 4,
                "cached_tokens": 2,
                "preempted_s": 3.0,
                "max_itl_s": 5.0,
            },
        ]
    )
    return {"steps": steps, "events": events, "requests": requests}


def frames(world: dict[str, Any]) -> dict[str, pl.DataFrame]:
    """The tables of a world as polars frames."""
    return {name: pl.DataFrame(pl.from_arrow(t)) for name, t in world.items()}
