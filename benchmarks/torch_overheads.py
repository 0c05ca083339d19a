"""What the torch engine spends beside computing: recording, and deciding a step, as shares of the run.

    python benchmarks/torch_overheads.py [--requests 8] [--model smollm2-135m-instruct] [--write]

Runs the first requests of sample:smollm2 on the CPU with one thread, with and without block ownership,
under recompute and swap. Shares of one run, so that a noisy machine hardly matters. Recording is what the
loop spends on rows, ownership and Parquet (RunResult.recording_s); deciding and handing over is what is
left of a step's duration beside device time, stalls and recording.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

from engine.config import EngineSettings  # noqa: E402
from engine.gpu.run import RunOptions, pick_device, run  # noqa: E402
from traces import samples  # noqa: E402
from traces.recording import open_recording  # noqa: E402

RESULTS = Path(__file__).parent / "results"


def measure(model: str, requests: int, mode: str, blocks: bool, out: Path) -> list[str]:
    """One row of the table."""
    settings = EngineSettings(
        model=model,
        device="cpu",
        kv_tokens=512,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        preemption_mode=mode,
        num_host_blocks=128 if mode == "swap" else None,
        clock="measured",
    )
    load = samples.load("smollm2").head(requests).scale_rate(20)
    done = run(load, settings, out, RunOptions(blocks=blocks))
    with open_recording(out) as recording:
        steps = recording.steps
    busy_s = float(steps["duration_s"].sum())
    rest_s = busy_s - float(steps["compute_s"].sum()) - float(steps["stall_s"].sum())
    return [
        mode,
        "yes" if blocks else "no",
        f"{done.num_steps:,}",
        str(done.num_preemptions),
        f"{1e3 * busy_s / done.num_steps:,.1f}",
        f"{100 * done.recording_s / busy_s:.2f} %",
        f"{100 * max(0.0, rest_s - done.recording_s) / busy_s:.2f} %",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="write the table to results/")
    args = parser.parse_args()
    pick_device("cpu", 1)
    rows = [
        ["mode", "ownership", "steps", "preemptions", "ms a step", "recording", "deciding"],
        ["---"] * 7,
    ]
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("recompute", "swap"):
            for blocks in (False, True):
                out = Path(folder) / f"{mode}-{blocks}"
                rows.append(measure(args.model, args.requests, mode, blocks, out))
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    print(table)
    if args.write:
        day = datetime.date.today().isoformat()
        text = (
            f"# What the torch engine spends beside computing\n\n{day}, {args.model} in float32 on one CPU core, "
            f"{args.requests} requests of sample:smollm2 in 32 blocks: "
            f"`python benchmarks/torch_overheads.py --requests {args.requests} --write`\n\n{table}\n"
        )
        (RESULTS / f"{day}-torch-overheads.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
