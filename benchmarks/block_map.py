"""What drawing the block map costs on the server, from 200 thousand to 10 million intervals.

    python benchmarks/block_map.py [--write]

Made-up ownership, so that a size can be asked for: scattered groups of 40 blocks are handed on from
request to request, each growing into them and letting go of all at once. Per size

- index: sorting intervals and joining pieces, once when a recording is opened on the page;
- picture: raster, states, hover texts, marks, scatter and reuse, for the whole run and for 1 % of it;
- figure: PNG and Plotly's JSON, and its bytes;
- frames: what the player is sent.

CPU seconds, best of three: wall times would measure who else is on the machine.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

from analyzer.block_frames import frames  # noqa: E402
from analyzer.block_map_figure import MapAxis, block_map  # noqa: E402
from analyzer.block_picture import Asked, BlockRun, picture  # noqa: E402
from analyzer.look import LIGHT  # noqa: E402
from analyzer.run import Run  # noqa: E402
from tests.builders import make_meta  # noqa: E402
from traces.recording import open_recording, write_recording  # noqa: E402
from traces.schema import BLOCKS, EVENTS, REQUESTS, STEPS, Table  # noqa: E402

SIZES = [
    (2_500, 50_000, 200_000),
    (20_000, 200_000, 2_000_000),
    (100_000, 1_000_000, 10_000_000),
]
STEP_S = 0.025
TABLE_BLOCKS = 40  # blocks of a request


def made_up(folder: Path, blocks: int, steps: int, intervals: int) -> Path:
    """A recording of that many blocks, steps and intervals."""
    rng = np.random.default_rng(0)
    groups = blocks // TABLE_BLOCKS
    turns = intervals // blocks
    start = np.sort(rng.random((groups, turns)), axis=1) * (steps - 400 * turns)
    start = (start + 400 * np.arange(turns)).astype(np.int64)  # 400 steps apart at least
    end = np.append(start[:, 1:], np.full((groups, 1), steps), axis=1) - rng.integers(
        1, 300, (groups, turns)
    )
    order = np.argsort(end.ravel(), kind="stable")  # as an engine writes them: when they end
    owner = np.argsort(np.argsort(start.ravel(), kind="stable"), kind="stable")[order]
    ids = pl.Series(np.arange(len(owner))).cast(pl.String)
    grown = np.minimum(np.arange(TABLE_BLOCKS) * 2, 90)  # a block every other step
    scattered = rng.permutation(blocks)[: groups * TABLE_BLOCKS].reshape(groups, TABLE_BLOCKS)
    first = (start.ravel()[order, None] + grown).ravel()
    table = {
        "block_id": (1 + scattered[order // turns]).ravel(),
        "request_id": ids[np.repeat(owner, TABLE_BLOCKS)],
        "logical_index": np.tile(np.arange(TABLE_BLOCKS), len(owner)),
        "first_step": first,
        "last_step": np.repeat(end.ravel()[order], TABLE_BLOCKS),
    }
    began = np.sort(start.ravel())
    requests = {
        "request_id": ids,
        "arrival_s": began * STEP_S,
        "prompt_tokens": np.full(len(ids), TABLE_BLOCKS * 12),
        "output_tokens": np.full(len(ids), TABLE_BLOCKS * 4),
        "first_scheduled_s": began * STEP_S,
        "first_token_s": began * STEP_S + 1.0,
        "finish_s": began * STEP_S + 1e9,
        "status": pl.Series(["finished"]).extend_constant("finished", len(ids) - 1),
    }
    victims = np.sort(rng.integers(0, steps, steps // 100))
    many = len(victims) - 1
    events = {
        "step": victims,
        "t_s": victims * STEP_S,
        "kind": pl.Series(["preempt"]).extend_constant("preempt", many),
        "mode_asked": pl.Series(["recompute"]).extend_constant("recompute", many),
        "mode_used": pl.Series(["recompute"]).extend_constant("recompute", many),
        "request_id": ids[rng.integers(0, len(ids), len(victims))],
        "tokens": np.full(len(victims), 500),
    }
    stepped = {
        "step": np.arange(steps),
        "t_start_s": np.arange(steps) * STEP_S,
        "duration_s": np.full(steps, STEP_S),
        "free_blocks": np.full(steps, blocks),
    }
    tables = {
        spec.name: _filled(spec, columns)
        for spec, columns in (
            (STEPS, stepped),
            (EVENTS, events),
            (REQUESTS, requests),
            (BLOCKS, table),
        )
    }
    meta = make_meta(blocks)
    meta["settings"] |= {"enable_prefix_caching": True, "block_size": 16}
    folder.mkdir(parents=True, exist_ok=True)
    return write_recording(folder, tables, meta)


def _filled(spec: Table, columns: dict[str, Any]) -> Any:
    """The table with those columns; the others are 0, or null where that is allowed."""
    frame = pl.DataFrame(columns)
    rest = [
        pl.lit(None if c.nullable else "" if "string" in str(c.type) else 0).alias(c.name)
        for c in spec.columns
        if c.name not in columns
    ]
    return frame.with_columns(rest).select(spec.names).to_arrow().cast(spec.arrow)


def best(work: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """Least CPU seconds of a few tries, and what came back."""
    tries = []
    result = None
    for _ in range(times):
        started = time.process_time()
        result = work()
        tries.append(time.process_time() - started)
    return min(tries), result


def measure(folder: Path, blocks: int, steps: int, intervals: int) -> list[str]:
    recording = open_recording(made_up(folder, blocks, steps, intervals))
    run = Run("", recording)
    table = recording.blocks
    assert table is not None
    assert run.steps.height
    assert run.requests.height
    index_s, mapped = best(lambda: BlockRun(run, table), times=1)
    edges = np.arange(steps + 1) * STEP_S
    end = float(edges[-1])
    row = [f"{blocks:,}", f"{steps:,}", f"{table.height:,}", f"{index_s:,.2f} s"]
    for shown in ((0.0, end), (0.5 * end, 0.51 * end)):
        asked = Asked(shown)
        warm = picture(mapped, edges, asked, "A", "made up")
        drawn_s, _ = best(lambda asked=asked: picture(mapped, edges, asked, "A", "made up"))
        axis = MapAxis("Time since the start", "s", shown)
        figure_s, text = best(
            lambda warm=warm, axis=axis: block_map([warm], axis, "owner", LIGHT).to_json()
        )
        row.append(f"{drawn_s:,.2f} + {figure_s:,.2f} s, {len(text) / 1e6:,.2f} MB")
    frames_s, sent = best(lambda: frames(mapped, edges, (0.0, end)))
    row.append(f"{frames_s:,.2f} s, {sent.num_bytes / 1e6:,.2f} MB")
    row.append(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:,.1f} GiB")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write a dated file of results")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the sizes")
    args = parser.parse_args()
    head = [
        "blocks",
        "steps",
        "intervals",
        "index, once",
        "whole run: picture + figure",
        "1 % of it",
        "frames",
        "memory at most",
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for size in SIZES[: args.sizes]:
        with tempfile.TemporaryDirectory(prefix="kv-replay-") as folder:
            lines.append(f"| {' | '.join(measure(Path(folder), *size))} |")
            print(lines[-1], flush=True)
    text = (
        "# Drawing the block map\n\n"
        f"{datetime.date.today()}, Python {platform.python_version()}, {platform.machine()}, "
        "`python benchmarks/block_map.py --write`; CPU seconds, best of three.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    print(text)
    if args.write:
        out = (
            Path(__file__).parent
            / "results"
            / f"{datetime.date.today().isoformat()}-block-map.md"
        )
        out.write_text(text)


if __name__ == "__main__":
    main()
