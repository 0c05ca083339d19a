"""Other people's traces, read where they lie, against the figures that were published with them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import traces
from traces.description import describe
from traces.errors import NotAWorkloadError

SHARED = Path(os.environ.get("KV_REPLAY_SHARED") or Path(__file__).parents[2] / "shared")
TRACES = SHARED / "traces"
GOLDEN = SHARED / "oracle" / "golden"
REFERENCE: dict[str, Any] = {}
if (TRACES / "reference.json").is_file():
    REFERENCE = json.loads((TRACES / "reference.json").read_text())

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not REFERENCE, reason="there is no ../shared/traces here"),
]

COUNTS = ("requests", "out_of_order", "duplicate_timestamps", "zero_output")
DETAILS = ("subagents", "subagent_requests", "streaming", "missing_api_time")
ROWS_OF = {"rounds": "requests", "sessions": None, "errors": "failed", "failed": "failed", "failures": "failed", "errored": "failed"}  # fmt: skip


def differences(found: dict[str, Any], reference: dict[str, Any]) -> Iterator[str]:
    """Where a description and the published figures disagree."""
    for key in COUNTS:
        if key in reference and found[key] != reference[key]:
            yield f"{key}: {found[key]} is not {reference[key]}"
    for key in ("first_s", "span_s"):
        if key in reference and not _near(found[key], reference[key], 1.01e-6):
            yield f"{key}: {found[key]} is not {reference[key]}"
    for key in ("prompt_tokens", "output_tokens"):
        for name, value in reference.get(key, {}).items():
            if not _near((found[key] or {}).get(name), value, 6e-4):
                yield f"{key} {name}: {found[key]} is not {value}"
    for key in DETAILS:
        if key in reference and found["details"][key] != reference[key]:
            yield f"{key}: {found['details'][key]} is not {reference[key]}"
    for name, value in reference.get("prefix", {}).items():
        if not _near((found["prefix"] or {}).get(name), value, 6e-5):
            yield f"prefix {name}: {found['prefix']} is not {value}"
    for key, ours in ROWS_OF.items():
        if key not in reference or ours is None:
            continue
        value = (
            found["requests"] if ours == "requests" else (found["dropped"] or {}).get(ours, 0)
        )
        if value != reference[key]:
            yield f"{key}: {value} is not {reference[key]}"


def _near(value: float | None, wanted: float, tolerance: float) -> bool:
    return value is not None and abs(value - wanted) <= tolerance


@pytest.mark.parametrize("name", sorted(REFERENCE) or ["none"])
def test_every_file_has_the_published_figures(name: str) -> None:
    reference = REFERENCE[name]
    if isinstance(reference, list):
        (reference,) = reference

    found = describe(TRACES / name)

    assert list(differences(found, reference)) == []


@pytest.mark.parametrize("name", sorted(REFERENCE) or ["none"])
def test_every_file_opens_as_it_is_described(name: str) -> None:
    found = describe(TRACES / name)

    if found["kind"] == "workload":
        assert len(traces.open_workload(TRACES / name)) == found["replayable"]
    else:
        assert found["kind"] in ("telemetry", "refused")
        with pytest.raises((NotAWorkloadError, traces.errors.WorkloadError)):
            traces.open_workload(TRACES / name)


def test_no_file_there_is_a_riddle() -> None:
    files = [
        p
        for p in TRACES.rglob("*")
        if p.is_file() and p.name not in ("SOURCE.md", "reference.json")
    ]
    known_refusals = {"json", "csv", "jsonl", "txt"}

    unknown = [
        p.name
        for p in files
        if p.suffix.lstrip(".") in known_refusals and describe(p)["format"] == "unknown"
    ]

    assert unknown == []


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="there is no ../shared/oracle here")
def test_decision_traces_are_read_name_for_name() -> None:
    for path in sorted(GOLDEN.glob("*/trace.jsonl")):
        asked = [json.loads(line) for line in path.read_text().splitlines()]
        clock = "arrival_step" if "arrival_step" in asked[0] else "arrival_time_s"
        asked.sort(key=lambda r, c=clock: r[c])  # stable: ties keep the order of the file

        table = traces.open_workload(path).table

        assert table["request_id"].to_list() == [r["request_id"] for r in asked]
        for got, want in zip(table.iter_rows(named=True), asked, strict=True):
            assert got["prompt_tokens"] == want["prompt_tokens"]
            assert got["output_tokens"] == want["output_tokens"]
            assert got["priority"] == want.get("priority", 0)
            assert got["prefix_ids"] == want.get("prefix_hash_ids", [])
            assert got["abort_step"] == want.get("abort_step")
            if clock == "arrival_step":
                assert got["arrival_step"] == want["arrival_step"]
            else:
                assert got["arrival_s"] == pytest.approx(
                    want[clock] - asked[0][clock], abs=1e-12
                )
