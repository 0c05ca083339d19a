"""Write workloads that calibrate a device well, and the commands that record and fit them.

    python benchmarks/calibration_traces.py DIR [--on cpu|cuda] [--model smollm2-135m-instruct]

Six small traces, drawn from a fixed seed, and `record.sh`, which runs each through the torch engine
and then calibrates (docs/calibration.md says what each is for). It runs nothing itself. The set for a
CPU takes minutes with a small model on one thread; that for CUDA goes to batches of 256 and to prompts
of several thousand tokens.
"""

from __future__ import annotations

import argparse
import csv
import random
import shlex
from dataclasses import dataclass
from pathlib import Path

Row = tuple[float, int, int]


@dataclass(frozen=True)
class Run:
    """A trace (arrival, prompt, output) and the flags it is recorded with."""

    name: str
    rows: list[Row]
    flags: str


@dataclass(frozen=True)
class Size:
    """How large the set is: batches, prompts of four kinds, budgets, and KV tokens ("" as the device has)."""

    batch: int
    step: int  # answers grow by so many tokens from one request to the next
    long_batch: int
    short: tuple[int, int]
    long: tuple[int, int]
    prefill: tuple[int, int]
    budgets: tuple[int, int]  # chunks, whole prompts
    mixed_budget: int
    pool: str


SIZES = {
    "cpu": Size(16, 12, 8, (32, 128), (500, 1300), (64, 900), (256, 1024), 96, "--kv-tokens 20000"),
    "cuda": Size(256, 3, 48, (32, 128), (500, 3000), (1200, 6000), (2048, 8192), 384, ""),
}  # fmt: skip


def runs(size: Size) -> list[Run]:
    """The set, the same for one size every time."""
    r = random.Random(20261130)

    def length(bounds: tuple[int, int]) -> int:
        return round(bounds[0] * (bounds[1] / bounds[0]) ** r.random())

    short = [(0.0, length(size.short), size.step * (k + 1)) for k in range(size.batch)]
    long_ = [(0.0, length(size.long), 2 * size.step * (k + 4)) for k in range(size.long_batch)]
    whole = [(0.0, length(size.prefill), 1) for _ in range(90)]
    chunks = [(0.0, length(size.prefill), 1) for _ in range(45)]
    mixed = [(0.0, length(size.short) * 2, r.randrange(4, 24)) for _ in range(6 * size.batch)]
    swap = [(0.0, length((40, 160)), r.randrange(40, 90)) for _ in range(100)]
    one = "--max-num-seqs 1"  # one prompt a step: lengths vary, nothing decodes beside it
    pool = size.pool
    return [
        Run("falls-short", short, f"{pool} --max-num-seqs {size.batch}"),
        Run("falls-long", long_, f"{pool} --max-num-seqs {size.long_batch}"),
        Run("prefill-whole", whole, f"{pool} {one} --max-num-batched-tokens {size.budgets[1]}"),
        Run("prefill-chunks", chunks, f"{pool} {one} --max-num-batched-tokens {size.budgets[0]}"),
        Run("mixed", mixed, f"{pool} --max-num-seqs {size.batch // 2} --max-num-batched-tokens {size.mixed_budget}"),
        Run("swap", swap, "--kv-tokens 600 --max-num-seqs 12 --preemption swap --host-gib 1 --no-reserve-full-isl"),
    ]  # fmt: skip


def commands(found: list[Run], on: str, model: str) -> list[str]:
    """A shell script that records the traces beside it and calibrates."""
    types = "--torch-device cpu --dtype float32 --threads 1" if on == "cpu" else "--torch-device cuda"  # fmt: skip
    base = " --base-device cpu" if on == "cpu" else ""
    lines = [
        "#!/bin/sh",
        "# Run it where `python -m engine` works, on a quiet machine: sh DIR/record.sh",
        "set -e",
        'here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)',
    ]
    for run in found:
        flags = " ".join(f"{types} --no-prefix-caching {run.flags}".split())
        lines.append(
            f'python -m engine run "$here/{run.name}.csv" --out "$here/{run.name}" --overwrite --model {shlex.quote(model)} {flags}'
        )
    names = " ".join(f'"$here/{run.name}"' for run in found)
    return [
        *lines,
        f'python -m engine calibrate {names} --out "$here/device.json" --overwrite{base}',
    ]


def write(folder: Path, on: str, model: str) -> Path:
    """Write the traces and record.sh into a folder; returns the script's path."""
    folder.mkdir(parents=True, exist_ok=True)
    found = runs(SIZES[on])
    for run in found:
        with (folder / f"{run.name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["arrival_s", "prompt_tokens", "output_tokens"])
            writer.writerows(run.rows)
    script = folder / "record.sh"
    script.write_text("\n".join(commands(found, on, model)) + "\n", encoding="utf-8")
    return script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the traces go")
    parser.add_argument("--on", choices=tuple(SIZES), default="cpu", help="what it is for")
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="name or path for `run`"
    )
    args = parser.parse_args()
    script = write(args.folder, args.on, args.model)
    print(f"{len(runs(SIZES[args.on]))} traces and {script}: run it with sh {script}")


if __name__ == "__main__":
    main()
