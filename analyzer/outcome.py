"""What a trial came to: the figures of its recordings, one a replica, as those of one run.

It knows how figures of replicas add up. Simulating is handed in as a function (`Simulate`); what a
figure of one recording means is known in `summary.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from analyzer.goodput import goodput_of
from analyzer.latency import latency_summary, request_latency
from analyzer.summary import summarize
from traces.recording import Recording, open_recording

_ADDED = (
    "computed_tokens", "num_requests", "num_finished", "num_refused", "num_unfinished", "num_steps", "num_preemptions",
    "num_preempted_requests", "preemption_cost_s", "recomputed_tokens", "prefix_cached_tokens", "restored_tokens", "swap_out_bytes",
    "swap_in_bytes", "stall_s",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A change and what came of it.

    changes: lever -> value; figures: as `summarize` names them, of all replicas together, with
    computed_tokens, num_unfinished, max_running (of one replica), status (of the first replica that did not
    complete), num_gpu_blocks (of each), goodput_rps (where bounds were given); recordings: where the proof lies; refused: why it cannot
    run, "" where it did.
    """

    changes: Mapping[str, Any]
    figures: Mapping[str, Any]
    recordings: tuple[Path, ...]
    refused: str = ""


Simulate = Callable[[Mapping[str, Any]], Outcome]


def outcome_of(
    changes: Mapping[str, Any],
    recordings: Sequence[Path],
    num_gpu_blocks: int,
    bounds: Mapping[str, float] | None = None,
) -> Outcome:
    """Read a trial's recordings. bounds: as `goodput_of` takes them. Raises RecordingError."""
    figures: list[dict[str, Any]] = []
    tables: list[pl.DataFrame] = []
    for path in recordings:
        with open_recording(path) as recording:
            figures.append(_figures(recording))
            tables.append(recording.requests)
    requests = pl.concat(tables)
    together = figures[0] if len(figures) == 1 else _together(figures, requests)
    together["num_gpu_blocks"] = num_gpu_blocks
    if bounds is not None:
        found = goodput_of(requests, bounds, together["duration_s"])
        together["goodput_rps"] = found.requests_per_s
    return Outcome(dict(changes), together, tuple(recordings))


def _figures(recording: Recording) -> dict[str, Any]:
    """Those of `summarize`, and what is asked of a trial besides."""
    unfinished = recording.requests["status"].cast(pl.String) == "unfinished"
    return {
        **summarize(recording),
        "computed_tokens": _computed(recording),
        "num_unfinished": int(unfinished.sum()),
        "max_running": recording.scan("steps")
        .select(pl.col("num_running").max())
        .collect()
        .item(),
        "status": recording.status,
    }


def _together(figures: Sequence[Mapping[str, Any]], requests: pl.DataFrame) -> dict[str, Any]:
    """Figures of several replicas as one: sums, the longest duration, latencies of all requests.

    full_steps_frac is over all replicas' steps; gaps between tokens are not known together.
    """
    added = {name: _sum([f[name] for f in figures]) for name in _ADDED}
    duration_s = max(f["duration_s"] for f in figures)
    return {
        **added,
        "status": next((f["status"] for f in figures if f["status"] != "completed"), "completed"),
        "duration_s": duration_s,
        "recomputed_frac": _share(added["recomputed_tokens"], added["computed_tokens"]),
        "max_running": max((f["max_running"] or 0 for f in figures), default=None),
        "peak_used_frac": max((f["peak_used_frac"] or 0.0 for f in figures), default=None),
        "full_steps_frac": sum((f["full_steps_frac"] or 0.0) * f["num_steps"] for f in figures)
        / max(1, added["num_steps"]),
        "output_tokens_per_s": int(requests["output_tokens"].sum()) / duration_s if duration_s else None,
        **latency_summary(request_latency(requests)),
        "itl_s": None,
    }  # fmt: skip


def _computed(recording: Recording) -> int:
    """Prompt, output and lost tokens that were computed."""
    columns = ("prefill_tokens", "decode_tokens", "recomputed_tokens")
    sums = recording.scan("steps").select(pl.col(c).cast(pl.Int64).sum() for c in columns)
    return int(sum(sums.collect().row(0)))


def _share(part: int | None, whole: int) -> float | None:
    return part / whole if part is not None and whole else None


def _sum(values: Sequence[Any]) -> Any:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
