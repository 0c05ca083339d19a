"""Preemption mode cheapest beside recompute and swap: makespans over a grid of workloads and machines.

    python benchmarks/cheapest_vs_pure.py [--only WORD ...] [--write]

A cell is a workload (the three samples, and closed ones of which all requests arrive at once), a model
on a device, a copy path, blocking or asynchronous copies, and the prefix cache on or off; it runs under
the three modes. Where one pure mode is better than the other by more than 5 %, cheapest has to be within
2 % of the better one; the table lists those cells, and the text counts and sums up all.

Makespans are modelled, so no machine's speed is in them: the same grid gives the same figures anywhere.
--only runs the cells whose name holds every WORD. The whole grid takes about ten minutes.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import numpy as np  # noqa: E402
import polars as pl  # noqa: E402

from engine.config import EngineSettings, resolve  # noqa: E402
from engine.core.loop import Code, run_chunk  # noqa: E402
from engine.core.state import Kind, Mode, make_state  # noqa: E402
from engine.simulator import core_columns  # noqa: E402
from traces import samples  # noqa: E402
from traces.workload import ReadReport, Workload, make_workload  # noqa: E402

MODES = ("recompute", "swap", "cheapest")
CLEARLY, AT_MOST = 0.05, 0.02
MACHINES = (
    ("llama-3.1-8b", "h100-sxm"),
    ("llama-3.1-8b", "b200"),
    ("llama-3.1-8b", "a100-80"),
    ("llama-2-7b", "h100-sxm"),
    ("llama-2-7b", "b200"),
    ("llama-2-7b", "a100-40"),
    ("llama-2-13b", "a100-40"),
    ("qwen3-30b-a3b", "h100-sxm"),
)


def closed(
    num: int, prompt: tuple[int, int], output: tuple[int, int], shared_tokens: int = 0
) -> Workload:
    """Requests that all arrive at 0, lengths uniform, behind one common prefix of shared_tokens."""
    rng = np.random.default_rng(0)
    columns = {
        "request_id": [str(i) for i in range(num)],
        "arrival_s": np.zeros(num),
        "prompt_tokens": rng.integers(*prompt, num),
        "output_tokens": rng.integers(*output, num),
    }
    if shared_tokens:
        columns["prefix_ids"] = pl.Series([[1]] * num, dtype=pl.List(pl.UInt64))
    return make_workload(
        columns,
        name="closed",
        report=ReadReport("closed"),
        prefix_block_tokens=shared_tokens or None,
    )


# Name: workload, pool in tokens, host memory in GiB.
WORKLOADS: dict[str, tuple[Callable[[], Workload], int, float]] = {
    "chat, 4 x its rate": (
        lambda: samples.load("chat").head(800).scale_rate(4.0),
        41_408,
        1000.0,
    ),
    "long-outputs, 8 x its rate": (
        lambda: samples.load("long-outputs").head(300).scale_rate(8.0),
        200_000,
        1000.0,
    ),
    "agents": (lambda: samples.load("agents"), 131_072, 1000.0),
    "200-1000 in, 200-1000 out": (
        lambda: closed(1500, (200, 1000), (200, 1000)),
        90_000,
        1000.0,
    ),
    "the same, host of 1 GiB": (lambda: closed(1500, (200, 1000), (200, 1000)), 90_000, 1.0),
    "30-120 in, 100-500 out": (lambda: closed(2500, (30, 120), (100, 500)), 30_000, 1000.0),
    "500-1500 in, 2000-6000 out": (
        lambda: closed(400, (500, 1500), (2000, 6000)),
        200_000,
        1000.0,
    ),
    "1500-2500 in behind 1024 shared, 200-800 out": (
        lambda: closed(1200, (1500, 2500), (200, 800), 1024),
        150_000,
        1000.0,
    ),
}


@dataclass(frozen=True)
class Run:
    """What a run came to: makespan, victims, and how many of them were swapped."""

    makespan_s: float
    num_preemptions: int
    num_swapped: int


@dataclass(frozen=True)
class Cell:
    """One cell of the grid: its name in four parts, and a run under each of MODES."""

    workload: str
    machine: str
    copies: str
    cache: str
    runs: tuple[Run, Run, Run]

    @property
    def better_by(self) -> float:
        """Share by which the worse pure mode takes longer; positive where swap is better."""
        recompute, swap, _ = self.runs
        low = min(recompute.makespan_s, swap.makespan_s)
        return (recompute.makespan_s - swap.makespan_s) / low

    @property
    def behind(self) -> float:
        """Share by which cheapest takes longer than the better pure mode."""
        recompute, swap, cheapest = self.runs
        return cheapest.makespan_s / min(recompute.makespan_s, swap.makespan_s) - 1.0


def run(workload: Workload, settings: EngineSettings) -> Run:
    """Simulate without recording; the row buffers are counted and emptied between chunks."""
    resolved = resolve(settings, concurrency=workload.concurrency)
    state = make_state(core_columns(workload, settings), resolved.rules)
    c = state.c[0]
    preempted, swapped = 0, 0
    code = Code.MORE
    while code in (Code.MORE, Code.FLUSH):
        code = Code(run_chunk(state, resolved.rules, resolved.cost, 8_000))
        events = state.event_rows[: c.num_event_rows]
        victims = events[events["kind"] == Kind.PREEMPT]
        preempted += len(victims)
        swapped += int((victims["mode_used"] == Mode.SWAP).sum())
        c.num_step_rows = c.num_event_rows = 0
    if code != Code.DONE:
        raise RuntimeError(f"a run under {settings.preemption_mode} ended as {code.name}")
    return Run(float(c.gpu_free_s), preempted, swapped)


def cells(only: list[str]) -> Iterator[Cell]:
    """Every cell whose name holds all words of `only`, run under the three modes."""
    for (name, (make, pool, host)), (model, device) in itertools.product(
        WORKLOADS.items(), MACHINES
    ):
        workload = make()
        for path, how, caching in itertools.product(
            ("coalesced", "loop"), ("blocking", "async"), (True, False)
        ):
            parts = (name, f"{model}, {device}", f"{path}, {how}", "on" if caching else "off")
            if not all(word in " ".join(parts) for word in only):
                continue
            settings = EngineSettings(
                kv_tokens=pool,
                model=model,
                device=device,
                copy_path=path,
                copy_mode=how,
                enable_prefix_caching=caching,
                host_gib=host,
                max_model_len=65_536,
                max_num_seqs=256,
            )
            one, two, three = (run(workload, settings.with_(preemption_mode=m)) for m in MODES)
            cell = Cell(*parts, (one, two, three))
            print(_row(cell), file=sys.stderr, flush=True)
            yield cell


def _row(cell: Cell) -> str:
    recompute, swap, cheapest = cell.runs
    better = "swap" if cell.better_by > 0 else "recompute"
    share = cheapest.num_swapped / cheapest.num_preemptions if cheapest.num_preemptions else 0.0
    return (
        f"| {cell.workload} | {cell.machine} | {cell.copies} | {cell.cache} | {recompute.makespan_s:,.1f} | "
        f"{swap.makespan_s:,.1f} | {cheapest.makespan_s:,.1f} | {better} {abs(cell.better_by):.1%} | "
        f"{cell.behind:+.2%} | {share:.0%} of {cheapest.num_preemptions:,} |"
    )


HEAD = (
    "| workload | machine | copies | prefix cache | recompute s | swap s | cheapest s | better, by | "
    "cheapest against it | swapped |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def report(found: list[Cell], seconds: float) -> list[str]:
    """The result as Markdown: verdict, clear cells, and the cells where cheapest is furthest off."""
    clear = [c for c in found if abs(c.better_by) > CLEARLY]
    late = [c for c in clear if c.behind > AT_MOST]
    ahead = sum(c.behind < -0.0005 for c in found)
    won = sum(c.better_by > 0 for c in clear)
    worst_clear = max((c.behind for c in clear), default=0.0)
    worst = sorted(found, key=lambda c: -c.behind)[:10]
    return [
        "# Cheapest beside the pure modes",
        "",
        f"{datetime.date.today()}, {len(found)} cells, {seconds / 60:.0f} minutes. Makespans are modelled.",
        "",
        f"- One pure mode is better by more than {CLEARLY:.0%} in {len(clear)} cells (swap in {won}, recompute in "
        f"{len(clear) - won}). There, cheapest is at most {worst_clear:.2%} behind the better one; behind by more "
        f"than {AT_MOST:.0%}: {len(late)} cells.",
        f"- Over all cells it is at most {worst[0].behind:.2%} behind, and ahead of both in {ahead}."
        if found
        else "- No cell was run.",
        "- The worse choice costs up to "
        f"{max((abs(c.better_by) for c in found), default=0.0):.0%} of the makespan.",
        "",
        f"## Where one pure mode is better by more than {CLEARLY:.0%}",
        "",
        *HEAD,
        *map(_row, clear),
        "",
        "## The ten cells where cheapest is furthest behind the better pure mode",
        "",
        *HEAD,
        *map(_row, worst),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    started = time.perf_counter()
    found = list(cells(args.only))
    text = report(found, time.perf_counter() - started)
    print("\n".join(text))
    if args.write:
        out = ROOT / "benchmarks" / "results" / f"{datetime.date.today()}-cheapest-vs-pure.md"
        out.write_text("\n".join(text) + "\n")
        print(f"\nwritten: {out.relative_to(ROOT)}")
    return 1 if any(c.behind > AT_MOST and abs(c.better_by) > CLEARLY for c in found) else 0


if __name__ == "__main__":
    sys.exit(main())
