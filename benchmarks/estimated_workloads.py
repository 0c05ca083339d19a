"""Workloads estimated from sampled telemetry against those that ran: counts, lengths and the fit of the series.

    python benchmarks/estimated_workloads.py [--write]

The worlds of inferred_preemptions.py, each told of as a V1 log; the estimate runs on the same machine and
is told of in the same way. Times are modelled and all is seeded: the same figures anywhere.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import numpy as np  # noqa: E402

from analyzer.estimate import NAMES, Fit, estimate_workload, fit  # noqa: E402
from analyzer.sampled import sampled_evidence  # noqa: E402
from benchmarks.inferred_preemptions import World, worlds  # noqa: E402
from engine.simulator import simulate  # noqa: E402
from traces.errors import NotAWorkloadError  # noqa: E402
from traces.recording import Recording, open_recording  # noqa: E402
from traces.workload import Workload  # noqa: E402

RESULT = "2026-11-30-estimated-workloads.md"


@dataclass(frozen=True)
class Row:
    """One world: estimated over true number of requests, mean prompt and output; the fit; preemptions of
    the true and of the estimated run; refused: why there is no estimate."""

    world: str
    requests: float = 0.0
    prompt: float = 0.0
    output: float = 0.0
    found: Fit | None = None
    preemptions: tuple[int, int] = (0, 0)
    refused: str = ""


def measure(world: World, scratch: Path) -> Row:
    """Run, tell, estimate, run the estimate, compare."""
    simulate(world.workload, world.settings, scratch / "true", overwrite=True)
    with open_recording(scratch / "true") as recording:
        count = int(recording.steps["num_preempted"].sum())
        try:
            estimate = estimate_workload(sampled_evidence(recording, "v1-log"))
        except NotAWorkloadError as error:
            return Row(world.name, refused=error.fault)
    counts: list[int] = []

    def run(workload: Workload, found: Mapping[str, Any]) -> Recording:
        settings = world.settings.with_(kv_tokens=found["kv_tokens"])
        simulate(workload, settings, scratch / "estimated", overwrite=True)
        again = open_recording(scratch / "estimated")
        counts.append(int(again.steps["num_preempted"].sum()))
        return again

    found, true = fit(estimate, run), world.workload.table
    prompt, output = (
        float(np.mean(true[c].to_numpy())) for c in ("prompt_tokens", "output_tokens")
    )
    return Row(
        world.name,
        len(estimate.workload) / len(world.workload),
        estimate.prompt_mean / prompt,
        estimate.output_mean / output,
        found,
        (count, counts[0]),
    )


def report(rows: Sequence[Row]) -> str:
    """The document."""
    done = [r for r in rows if r.found is not None]
    lines = [
        "# Estimated workloads against those that ran",
        "",
        f"{len(rows)} recordings told of as a V1 log (a line each 10 s, the pool stated); {len(done)} carried an estimate. Command:",
        "`python benchmarks/estimated_workloads.py --write`. Estimated over true; then, for each series, the mean that",
        "was simulated over the one that was observed, and the mean distance of single samples (usage: in shares of the",
        "pool; others: over the observed mean). Within 10 s arrivals are not known, so single samples of short requests differ.",
        "",
        "| recording | requests | prompt | output | "
        + " | ".join(f"{n} mean, distance" for n in NAMES)
        + " | preemptions true, estimated |",
        "|" + "---|" * (5 + len(NAMES)),
    ]
    for row in done:
        cells = [f"{x:.2f}" for x in (row.requests, row.prompt, row.output)]
        lines.append(
            f"| {row.world} | {' | '.join(cells)} | "
            + " | ".join(_cell(row.found, n) for n in NAMES if row.found is not None)
            + f" | {row.preemptions[0]}, {row.preemptions[1]} |"
        )
    batches = [r for r in done if "at once" in r.world]
    others = [r for r in done if r not in batches]
    lines += [
        "",
        f"Median distance from the truth, batches: {_off(batches)}; others: {_off(others)}.",
        "",
        *[f"- {r.world}: refused, {r.refused}" for r in rows if r.refused],
        "",
    ]
    return "\n".join(lines)


def _off(rows: Sequence[Row]) -> str:
    return ", ".join(
        f"{what} {100 * np.median([abs(getattr(r, what) - 1) for r in rows]):.1f} %"
        for what in ("requests", "prompt", "output")
        if rows
    )


def _cell(found: Fit | None, name: str) -> str:
    means = found.means[name] if found is not None else None
    error = found.errors[name] if found is not None else None
    if means is None:
        return "—"
    ratio = f"{means[1] / means[0]:.2f}" if means[0] else "0 observed"
    return ratio if error is None else f"{ratio}, {100 * error:.0f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        text = report([measure(world, Path(scratch)) for world in worlds()])
    print(text)
    if arguments.write:
        (ROOT / "benchmarks" / "results" / RESULT).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
