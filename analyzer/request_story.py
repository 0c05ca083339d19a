"""One request in every run: its events in words, and its numbers beside each other.

It knows `events` and `requests`, and what preemptions cost; no page and no picture. Names of other
requests are cut here, and made harmless where they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from analyzer.latency import request_latency
from analyzer.look import Side, gib, seconds
from analyzer.measured import recompute_token_s
from analyzer.preemptions import preemption_cost
from analyzer.request_table import LONGEST_ID, Paired, shortened
from analyzer.run import Run
from analyzer.words import NOT_RECORDED, show, show_delta

MOST_EVENTS = 1_000
_TIMES = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
# Figure -> its label and the column of `requests` that it rests on.
NUMBERS = {
    "ttft_s": ("TTFT", "first_token_s"),
    "tpot_s": ("TPOT", "finish_s"),
    "e2e_s": ("E2E", "finish_s"),
    "queue_s": ("Queueing", "first_scheduled_s"),
    "preempted_s": ("Away, preempted", "preempted_s"),
    "num_preemptions": ("Preemptions", "num_preemptions"),
    "recomputed_tokens": ("Tokens recomputed", "recomputed_tokens"),
    "restored_tokens": ("Tokens restored", "restored_tokens"),
    "swapped_bytes": ("Copied to and from the host", "swapped_bytes"),
    "max_itl_s": ("Longest gap between tokens", "max_itl_s"),
    "prompt_tokens": ("Prompt tokens", "prompt_tokens"),
    "output_tokens": ("Output tokens", "output_tokens"),
}
COST = "preemption_cost_s"
_SAID = {
    "arrive": "arrived",
    "admit": "admitted",
    "preempt": "preempted",
    "swap_out": "copy to the host began",
    "swap_in": "copy from the host began",
    "load": "load from the host cache began",
    "resume": "runs again",
    "finish": "finished",
    "abort": "aborted",
    "refuse": "refused",
}


def events_of(run: Run, request_id: str) -> pl.DataFrame:
    """All events of a request in order, or the first MOST_EVENTS, with `said`: what happened."""
    own = run.events.filter(pl.col("request_id") == request_id).head(MOST_EVENTS)
    return own.with_columns(
        kind=pl.col("kind").cast(pl.String),
        mode_used=pl.col("mode_used").cast(pl.String),
        cause=shortened(own["cause_request_id"], LONGEST_ID),
        said=pl.Series([_said(e) for e in own.iter_rows(named=True)], dtype=pl.String),
    )


def preemptions_cost_s(run: Run, request_id: str) -> float | None:
    """What the preemptions of a request cost directly; None where that is not known."""
    unseen = run.meta.not_recorded
    if "events.tokens" in unseen or run.meta.clock == "step":
        return None  # a step of that clock is as long as every other
    own = run.events.filter(pl.col("request_id") == request_id).with_columns(
        pl.lit(None, dtype=pl.Float64).alias(column)
        for column in ("cost_s", "recompute_est_s")
        if f"events.{column}" in unseen
    )
    return preemption_cost(own, recompute_token_s(run.recording))


def _said(event: Mapping[str, Any]) -> str:
    """'preempted by recompute: 1,069 tokens, 67 blocks, needed by 812, cost 124 ms'."""
    kind = str(event["kind"])
    said = _SAID.get(kind, kind)
    more = []
    if kind == "preempt":
        said += f" by {event['mode_used']}" if event["mode_used"] else ""
        cause = event["cause_request_id"]
        if cause is not None:
            more.append(
                "needed a block itself"
                if cause == event["request_id"]
                else f"for {str(cause)[:LONGEST_ID]}"
            )
        more.append(f"{event['free_blocks_before']:,} blocks free")
    if event["tokens"]:
        more.append(
            {
                "arrive": f"prompt of {event['tokens']:,} tokens",
                "admit": f"{event['tokens']:,} tokens found in the prefix cache",
                "resume": f"{event['tokens']:,} tokens found in the prefix cache",
                "finish": f"{event['tokens']:,} output tokens",
            }.get(kind, f"{event['tokens']:,} tokens")
        )
    if event["blocks"] and kind != "finish":
        more.append(f"{event['blocks']:,} blocks")
    if event["bytes"]:
        more.append(gib(event["bytes"]))
    if event["cost_s"] is not None and kind != "preempt":
        more.append(f"{seconds(event['cost_s'])} on the link")
    if event["reason"]:
        more.append(str(event["reason"])[:300])
    return f"{said}: {', '.join(more)}" if more else said


def numbers(
    runs: Mapping[Side, Run],
    pair: Paired,
    number: int,
    costs: Mapping[Side, float | None],
) -> pl.DataFrame:
    """The request's figures in words: figure, a column a run, and how each differs from A.

    costs: side -> what its preemptions cost directly, None where that is not known.
    """
    rows: dict[Side, dict[str, Any]] = {}
    for side, run in runs.items():
        at = pair.row(side, number)
        if at is None:
            continue
        one = run.requests.slice(at, 1)
        latency = request_latency(one).select(_TIMES)
        rows[side] = {
            **one.row(0, named=True),
            **latency.row(0, named=True),
            COST: costs.get(side),
        }
    labels = {name: label for name, (label, _) in NUMBERS.items()} | {COST: "Preemptions cost"}
    table: dict[str, list[str]] = {"figure": ["Status", *labels.values()]}
    for side in runs:
        values = rows.get(side)
        table[side] = [str(values["status"]) if values else "not in this run"]
        table[side] += [_shown(runs[side], values, name) for name in labels]
        if side != "A" and "A" in rows:
            table[f"{side} − A"] = ["", *(_change(rows["A"], values, name) for name in labels)]
    wanted = [i for i, name in enumerate(("", *labels)) if not name or _says(rows, name)]
    return pl.DataFrame(table)[wanted]


def _says(rows: Mapping[Side, Mapping[str, Any]], name: str) -> bool:
    """Whether a figure is more than 0 or unknown in some run; times always are told."""
    return name in _TIMES or any(values.get(name) for values in rows.values())


def _shown(run: Run, values: Mapping[str, Any] | None, name: str) -> str:
    if values is None:
        return "—"
    column = NUMBERS[name][1] if name in NUMBERS else ""
    if f"requests.{column}" in run.meta.not_recorded:
        return NOT_RECORDED
    return show(name, values[name])


def _change(a: Mapping[str, Any], other: Mapping[str, Any] | None, name: str) -> str:
    if other is None or a[name] is None or other[name] is None:
        return "—"
    return show_delta(name, other[name] - a[name])
