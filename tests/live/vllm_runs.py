"""Runs of vLLM's scheduler under the recorder, from the project's side.

It starts the interpreter that has vLLM (as tests/parity finds it) with `tests.live.drive`, and says
what a recording holds in the words of the golden step records, so that the two can be compared.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.parity.run import ROOT, vllm_python
from traces.recording import Recording, open_recording

NO_VLLM = (
    "no interpreter with vLLM: make parity installs one, or KV_REPLAY_VLLM_PYTHON names one"
)


def need_vllm() -> Path:
    """The interpreter that has vLLM; where there is none the test is skipped, with the reason, or
    fails where KV_REPLAY_REQUIRE_PARITY asks for it."""
    python = vllm_python()
    if python is None and os.environ.get("KV_REPLAY_REQUIRE_PARITY"):
        pytest.fail(NO_VLLM)
    if python is None:
        pytest.skip(NO_VLLM)
    return python


def drive(
    cases: Iterable[Mapping[str, Any]],
    *,
    module: str = "tests.live.drive",
    environ: Mapping[str, str] | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """Answers of the driver, in order, and what its process said on standard error.

    module: the driver; environ: more of its environment (test_stat_logger_vllm.py needs both).
    """
    done = subprocess.run(
        [str(need_vllm()), "-m", module],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"} | dict(environ or {}),
        input="".join(json.dumps(c) + "\n" for c in cases),
        capture_output=True,
        text=True,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def golden_case(folder: Path, out: Path) -> dict[str, Any]:
    """A golden case as the driver takes it, recorded below `out`."""
    lines = (folder / "trace.jsonl").read_text().splitlines()
    return {
        "name": folder.name,
        "settings": json.loads((folder / "settings.json").read_text()),
        "rows": [json.loads(line) for line in lines if line.strip()],
        "out": str(out),
    }


def only_recording(out: Path) -> Recording:
    """The recording of the only run below `out`."""
    (folder,) = out.iterdir()
    return open_recording(folder)


def steps_of_golden(
    records: Iterable[Mapping[str, Any]], prompts: Mapping[str, int]
) -> list[dict[str, int]]:
    """What the steps table of a recording must hold, out of compact step records.

    prompts: request -> prompt tokens; with what each had computed before, they tell prefill, decode
    and recomputed tokens apart. Steps count from 0, as vLLM is called.
    """
    rows = []
    computed: dict[str, int] = {}
    for number, record in enumerate(records):
        prefill = decode = recomputed = 0
        for request, n, start in record["scheduled"]:
            had = computed.get(request, 0)
            again = max(0, min(start + n, had) - start)
            own = max(0, min(start + n, prompts[request]) - start - again)
            computed[request] = max(had, start + n)
            prefill, decode = prefill + own, decode + n - own - again
            recomputed += again
        kinds = [a[1] for a in record["admitted"]]
        used, free, _, cached_free = record["blocks"]
        rows.append(
            {
                "step": number,
                "num_running": len(record["running"]),
                "num_waiting": len(record["waiting"]),
                "num_admitted": kinds.count("new"),
                "num_resumed": kinds.count("resumed"),
                "num_preempted": len(record["preempted"]),
                "prefill_tokens": prefill,
                "decode_tokens": decode,
                "recomputed_tokens": recomputed,
                "cached_tokens": sum(a[2] for a in record["admitted"]),
                "used_blocks": used,
                "cached_free_blocks": cached_free,
                "free_blocks": free,
            }
        )
    return rows


def events_of_golden(records: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    """Admissions, preemptions and ends in order: (step, request, what it found, lost or held)."""
    found: dict[str, list[tuple[Any, ...]]] = {
        k: [] for k in ("admit", "resume", "preempt", "finish", "abort")
    }
    for number, record in enumerate(records):
        for request, kind, cached, _ in record["admitted"]:
            found["admit" if kind == "new" else "resume"].append((number, request, cached))
        for request, lost, held in record["preempted"]:
            found["preempt"].append((number, request, lost, held))
        found["finish"] += [(number, request) for request in record["finished"]]
        found["abort"] += [(number, request) for request in record["aborted"]]
    return found


_SHOWN = {
    "admit": ("tokens",),
    "resume": ("tokens",),
    "preempt": ("tokens", "blocks"),
    "finish": (),
    "abort": (),
}


def events_of(recording: Recording) -> dict[str, list[tuple[Any, ...]]]:
    """The same out of a recording."""
    events = recording.events.with_columns(kind=pl.col("kind").cast(pl.String))
    return {
        kind: events.filter(pl.col("kind") == kind)
        .select("step", "request_id", *columns)
        .rows()
        for kind, columns in _SHOWN.items()
    }
