"""Small pairs of recordings for the tests of reports and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from analyzer.run import Run
from tests.builders import make_meta, write
from tests.worlds import chunked_return
from traces.recording import open_recording

MARKUP = "<script>alert(1)</script><b>&amp;\"'`{{7*7}}"


def settings(mode: str) -> dict[str, Any]:
    return {"num_gpu_blocks": 11, "block_size": 4, "policy": "fcfs", "preemption_mode": mode}


def renamed(world: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The world with a request called otherwise, everywhere."""
    found = {}
    for name, table in world.items():
        for column in ("request_id", "cause_request_id"):
            if column in table.column_names:
                ids = [new if v == old else v for v in table[column].to_pylist()]
                at = table.column_names.index(column)
                table = table.set_column(at, table.schema.field(at), pa.array(ids, pa.string()))
        found[name] = table
    return found


def pair_paths(folder: Path, victim: str = "b", **meta: Any) -> tuple[Path, Path]:
    """Folders of two recordings of `chunked_return`, A under recompute and B under swap by their
    settings, in which request "b" is called `victim`. meta: replaces entries of the metadata."""
    world = renamed(chunked_return(), "b", victim)
    return tuple(  # type: ignore[return-value]  # two modes, two folders
        write(folder / mode, **world, meta=make_meta(settings=settings(mode), **meta))
        for mode in ("recompute", "swap")
    )


def triple_paths(folder: Path, **meta: Any) -> tuple[Path, Path, Path]:
    """Folders of three recordings of `chunked_return`: recompute, swap and cheapest by their settings."""
    world = chunked_return()
    a, b, c = (
        write(folder / mode, **world, meta=make_meta(settings=settings(mode), **meta))
        for mode in ("recompute", "swap", "cheapest")
    )
    return a, b, c


def pair(folder: Path, victim: str = "b", **meta: Any) -> tuple[Run, Run]:
    """These recordings, opened."""
    a, b = pair_paths(folder, victim, **meta)
    return Run("", open_recording(a)), Run("", open_recording(b))
