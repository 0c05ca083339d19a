"""Golden cases run by vLLM's own scheduler under the recorder: what is recorded, and replayed.

Needs the interpreter with vLLM (see tests/parity); skipped, with the reason, where there is none.
"""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engine.replay import settings_of
from engine.simulator import simulate
from tests.engine_builders import read_steps
from tests.live.vllm_runs import (
    drive,
    events_of,
    events_of_golden,
    golden_case,
    need_vllm,
    only_recording,
    steps_of_golden,
)
from traces.recording import Recording, open_recording
from traces.replay import workload_of

pytestmark = pytest.mark.parity

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(  # CPU offload: test_live_failures.py; its waiting queue splits otherwise
    p.name
    for p in GOLDEN.iterdir()
    if p.is_dir() and not json.loads((p / "settings.json").read_text()).get("offload")
)

STEP_FACTS = (
    "step", "num_running", "num_waiting", "num_swapped", "num_admitted", "num_resumed", "num_preempted",
    "num_finished", "prefill_tokens", "decode_tokens", "recomputed_tokens", "cached_tokens", "used_blocks",
    "fenced_blocks", "cached_free_blocks", "free_blocks", "restored_tokens",
)  # fmt: skip
EVENT_FACTS = (
    "step",
    "kind",
    "request_id",
    "mode_asked",
    "mode_used",
    "tokens",
    "cause_request_id",
)
REQUEST_FACTS = (
    "request_id", "prompt_tokens", "priority", "num_preemptions", "recomputed_tokens", "cached_tokens",
    "restored_tokens", "arrival_step",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of each golden case, made by one process of vLLM's interpreter."""
    need_vllm()
    out = tmp_path_factory.mktemp("runs")
    answers, said = drive(golden_case(GOLDEN / c, out / c) for c in CASES)
    assert [a["name"] for a in answers] == CASES, said[-4000:]
    assert [a for a in answers if a["error"]] == [], said[-4000:]
    return out


def golden_records(case: str) -> list[dict[str, Any]]:
    return read_steps(GOLDEN / case / "steps.jsonl.gz")


def prompts(case: str) -> dict[str, int]:
    lines = (GOLDEN / case / "trace.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return {r["request_id"]: r["prompt_tokens"] for r in rows}


def facts(recording: Recording) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in recording.steps.select(STEP_FACTS).to_dicts()}


@pytest.mark.parametrize("case", CASES)
def test_a_recording_says_what_vllm_decided(case: str, runs: Path) -> None:
    recording = only_recording(runs / case)

    want = steps_of_golden(golden_records(case), prompts(case))
    got = {r["step"]: r for r in recording.steps.select(list(want[0])).to_dicts()}
    skipped = int(recording.meta["writer"]["skipped_idle_steps"])
    assert [w for w in want if got.get(w["step"], w) != w] == []
    assert len(got) + skipped == len(want)  # steps of a stuck engine are counted, not written
    assert events_of(recording) == events_of_golden(golden_records(case))


@pytest.mark.parametrize("case", CASES)
def test_its_replay_in_the_simulator_decides_the_same_again(
    case: str, runs: Path, tmp_path: Path
) -> None:
    recording = only_recording(runs / case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the test's model is no preset
        settings = settings_of(recording.meta, clock="step")

    simulate(workload_of(recording), settings, tmp_path / "again")

    again = open_recording(tmp_path / "again")
    theirs = facts(again)
    assert [r for r in facts(recording).values() if theirs.get(r["step"]) != r] == []
    events = recording.events.select(EVENT_FACTS)
    assert events.rows() == again.events.select(EVENT_FACTS).head(events.height).rows()
    rest = again.events.slice(events.height)["kind"].cast(pl.String)
    assert set(rest) <= {"abort"}  # what had not finished when the recording ended
    requests = recording.requests.select(REQUEST_FACTS).sort("request_id")
    assert requests.rows() == again.requests.select(REQUEST_FACTS).sort("request_id").rows()


@pytest.mark.parametrize("case", CASES)
def test_the_longest_gap_between_tokens_is_that_between_its_steps(
    case: str, runs: Path
) -> None:
    recording = only_recording(runs / case)

    ends = dict(
        recording.steps.select("step", end=pl.col("t_start_s") + pl.col("duration_s")).rows()
    )
    prompt, reached = prompts(case), dict[str, int]()
    tokens: dict[str, list[float]] = {}
    passed_over: set[str] = set()
    for number, record in enumerate(golden_records(case)):
        passed_over |= set(record["running"]) - {s[0] for s in record["scheduled"]}
        for request, n, start in record["scheduled"]:
            end = (
                start + n
            )  # it samples where all known tokens are computed: further than before
            if end >= prompt[request] and end > reached.get(request, 0):
                reached[request] = end
                tokens.setdefault(request, []).append(ends[number])
    done = recording.requests.filter(
        (pl.col("status").cast(pl.String) == "finished") & (pl.col("output_tokens") > 1)
    )
    for request, count, gap in done.select("request_id", "output_tokens", "max_itl_s").rows():
        times = tokens[request]
        assert len(times) == count
        if gap is None:  # not known, and said so
            assert request in passed_over
            continue
        assert gap == pytest.approx(max(b - a for a, b in itertools.pairwise(times)), abs=1e-9)


def test_metadata_say_how_vllm_was_set_and_what_it_cannot_show(runs: Path) -> None:
    meta = only_recording(runs / "watermark").meta

    document = json.loads((GOLDEN / "watermark" / "settings.json").read_text())
    assert meta.executor == "vllm"
    assert meta.clock == "measured"
    assert meta.software["vllm"].startswith("0.26.0")
    assert meta.settings["watermark"] == document["watermark"] > 0
    assert meta.settings["num_gpu_blocks"] == document["num_blocks"]
    assert meta.pool_blocks == document["num_blocks"] - 1
    # K and V of 1 head of 16 values of 2 bytes, in 1 layer, for 16 tokens
    assert meta.block_bytes == 1_024
    assert "steps.stall_s" in meta.not_recorded
    assert "events.cause_request_id" not in meta.not_recorded
    assert "steps.cached_free_blocks" not in meta.not_recorded


def test_one_class_is_both_of_vllms_schedulers(runs: Path) -> None:
    assert only_recording(runs / "async").meta.settings["async_scheduling"] is True
    assert only_recording(runs / "fcfs_cache").meta.settings["async_scheduling"] is False


@pytest.mark.parametrize("case", ["fcfs_cache", "async", "aborts", "priority"])
def test_times_of_steps_and_requests_are_in_order(case: str, runs: Path) -> None:
    recording = only_recording(runs / case)

    steps, requests = recording.steps, recording.requests
    end = steps["t_start_s"] + steps["duration_s"]
    assert (steps["duration_s"] > 0).all()
    assert (steps["t_start_s"][1:] >= end[:-1] - 1e-9).all()  # steps do not overlap
    got_tokens = requests.filter(pl.col("output_tokens") > 0)
    assert got_tokens["first_token_s"].null_count() == 0
    assert (got_tokens["first_token_s"] <= got_tokens["finish_s"]).all()
    assert recording.complete
