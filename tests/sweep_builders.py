"""Small sweeps for tests: a trace of three requests, its grids, and an executor without processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from engine.sweep import SweepResult, run_sweep
from engine.sweep_cell import CellTask, Outcome, run_cell
from engine.sweep_command import FIGURES
from engine.sweep_spec import SweepSpec, make_spec, parse_grid, trace_of

ROWS = [
    {"request_id": "a", "prompt_tokens": 7, "output_tokens": 5, "arrival_step": 0},
    {"request_id": "b", "prompt_tokens": 7, "output_tokens": 4, "arrival_step": 0},
    {"request_id": "c", "prompt_tokens": 2, "output_tokens": 1, "arrival_step": 30},
]
# Blocks of 4 tokens; steps as the clock.
SMALL: dict[str, Any] = {"block_size": 4, "enable_prefix_caching": False, "clock": "step"}
NOT_COMPARED = ("attempts", "wall_s")  # how a cell was run, not what came of it


class Inline:
    """An executor that runs a cell when it is given."""

    where = "this process"

    def __init__(self) -> None:
        self.given: list[CellTask] = []
        self._ended: list[tuple[CellTask, Outcome]] = []

    @property
    def num_running(self) -> int:
        return len(self._ended)

    def has_room(self) -> bool:
        return not self._ended

    def submit(self, task: CellTask) -> None:
        self.given.append(task)
        self._ended.append((task, run_cell(task)))

    def wait(self, timeout_s: float) -> list[tuple[CellTask, Outcome]]:
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        pass


def write_trace(folder: Path, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    return path


def small_sweep(
    folder: Path, *grid: str, seeds: tuple[int, ...] = (0,), **more: Any
) -> SweepSpec:
    """The three requests under each choice of `grid`, in pools of 4 usable blocks unless that varies."""
    axes = [parse_grid(g) for g in grid]
    varied = {name for axis in axes for name in axis.names}
    fixed = {k: v for k, v in {"num_gpu_blocks": 5, **SMALL}.items() if k not in varied}
    return make_spec([trace_of(str(write_trace(folder)))], axes, seeds, fixed, **more)


def run_inline(
    spec: SweepSpec,
    out: Path,
    executor: Inline | None = None,
    figures: str = FIGURES,
    **how: Any,
) -> tuple[SweepResult, Inline]:
    """Run a sweep in this process."""
    chosen = executor or Inline()
    return run_sweep(spec, out, lambda _: chosen, figures=figures, **how), chosen


def table(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "sweep.parquet")
