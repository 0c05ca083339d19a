"""Decisions against vLLM 0.26.0's own scheduler, step by step.

`golden/<case>/` holds a trace, settings and what vLLM's V1 scheduler decided for them (made by the
project with vLLM's package on a CPU; meta.json says with which version). A case is equal when every
step has the same running and waiting order, tokens, admissions with cached tokens, victims in
order, new block ids, block counts before and after the outputs, finished and aborted ids.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineSettings, settings_from_file
from tests.engine_builders import compact, decision_records, first_difference, read_steps
from traces.open import open_workload
from traces.recording import open_recording

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parent.parent
CASES = sorted(p.name for p in GOLDEN.iterdir() if p.is_dir())
# Cases that show a known fault of 0.26.0, which is mended unless compat is set.
FAULTS = {
    c for c in CASES if json.loads((GOLDEN / c / "meta.json").read_text()).get("fault", False)
}
COMPAT = "vllm-0.26"


def meta_of(case: str) -> dict[str, Any]:
    return json.loads((GOLDEN / case / "meta.json").read_text())


def run_case(
    case: str, folder: Path, settings: EngineSettings
) -> tuple[str, list[dict[str, Any]]]:
    return decision_records(open_workload(GOLDEN / case / "trace.jsonl"), settings, folder)


def command(case: str, *flags: str) -> str:
    """What a person types to see this case's decisions."""
    at = f"tests/golden/{case}"
    clock = (
        "latency"
        if settings_from_file(ROOT / at / "settings.json").clock == "latency"
        else "step"
    )
    return (
        f"python -m engine simulate {at}/trace.jsonl --settings {at}/settings.json --clock {clock} "
        f"--out out --overwrite --decisions decisions.jsonl {' '.join(flags)}".rstrip()
    )


def assert_equal(case: str, status: str, ours: list[dict[str, Any]], *flags: str) -> None:
    difference = first_difference(ours, read_steps(GOLDEN / case / "steps.jsonl.gz"))
    again = f"see it with: {command(case, *flags)}"
    assert difference is None, f"{case}, {difference}\n{again}"
    assert status == meta_of(case)["status"], f"{case} ended as {status}. {again}"
    assert len(ours) == meta_of(case)["num_steps"], again


@pytest.mark.parametrize("case", CASES)
def test_every_decision_equals_that_of_vllm(case: str, tmp_path: Path) -> None:
    settings = settings_from_file(GOLDEN / case / "settings.json").with_(compat=COMPAT)

    status, ours = run_case(case, tmp_path, settings)

    assert_equal(case, status, ours, "--compat", COMPAT)


@pytest.mark.parametrize("case", sorted(set(CASES) - FAULTS))
def test_without_a_known_fault_the_default_decides_as_vllm_does(
    case: str, tmp_path: Path
) -> None:
    status, ours = run_case(case, tmp_path, settings_from_file(GOLDEN / case / "settings.json"))

    assert_equal(case, status, ours)


# request -> (prompt blocks of 16 tokens that it needs, what makes it impossible); 20 blocks are usable
REFUSED = {
    "null_block_off_by_one": ("edge", "needs 21 blocks (335 tokens, 16 per block)"),
    "outgrows_pool": ("grow", "has grown to need 21 blocks (321 tokens, 16 per block)"),
    "oversize_prompt_livelock": ("huge", "needs 25 blocks (400 tokens, 16 per block)"),
    "oversize_prompt_no_reserve": ("huge", "needs 25 blocks (400 tokens, 16 per block)"),
    "oversize_prompt_stall": ("huge", "needs 25 blocks (400 tokens, 16 per block)"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_waits_for_ever_in_vllm_is_refused_with_the_reason(
    case: str, tmp_path: Path
) -> None:
    refused, reason = REFUSED[case]

    status, _ = run_case(case, tmp_path, settings_from_file(GOLDEN / case / "settings.json"))

    recording = open_recording(tmp_path / "recording")
    ends = dict(recording.requests.select("request_id", "status").iter_rows())
    events = recording.events.filter(recording.events["kind"].cast(str) == "refuse")
    assert meta_of(case)["status"] in ("stalled", "livelock")
    assert status == "completed"
    assert ends.pop(refused) == "refused"
    assert set(ends.values()) <= {"finished"}
    assert events["request_id"].to_list() == [refused]
    assert reason in events["reason"][0]
    assert "the pool has 20" in events["reason"][0]


def test_a_cancelled_step_leaves_no_phantom_blocks(tmp_path: Path) -> None:
    case = "priority_phantom_hit"
    settings = settings_from_file(GOLDEN / case / "settings.json")

    _, theirs = run_case(case, tmp_path / "a", settings.with_(compat=COMPAT))
    status, ours = run_case(case, tmp_path / "b", settings)

    # (id, kind, cached tokens, tokens): 192 tokens of "low" were computed, 48 more only planned; chunks are of 64.
    assert [a for r in theirs for a in r["admitted"] if a[1] == "resumed"] == [
        ["low", "resumed", 240, 32]
    ]
    assert [a for r in ours for a in r["admitted"] if a[1] == "resumed"] == [
        ["low", "resumed", 192, 64]
    ]
    assert status == "completed"


@pytest.mark.parametrize("case", ["fcfs_cache", "async", "latency_clock", "aborts"])
def test_the_command_line_writes_the_same_decisions(case: str, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    words = command(case).split()
    words[words.index("--out") + 1] = str(tmp_path / "out")
    words[words.index("--decisions") + 1] = str(log)

    done = subprocess.run(
        [sys.executable, *words[1:], "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    ours = [compact(json.loads(line)) for line in log.read_text().splitlines()]
    assert_equal(case, json.loads(done.stdout)["status"], ours)
    assert open_recording(tmp_path / "out").status == "completed"
