"""The recorder in vLLM's own engine core, brought in by the name of its class.

Needs the interpreter with vLLM (see tests/parity); skipped, with the reason, where there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engine.replay import settings_of
from engine.simulator import simulate
from tests.live.vllm_runs import ROOT, need_vllm, only_recording
from traces.recording import open_recording
from traces.replay import workload_of

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Six requests of 50 tokens over a pool for five, the last one aborted after two had finished."""
    out = tmp_path_factory.mktemp("core")
    done = subprocess.run(
        [str(need_vllm()), "-m", "tests.live.core", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    # What vLLM says while it is imported stands before them.
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == 2, done.stderr[-4000:]
    return out, dict(zip(("sync", "async"), answers, strict=True))


@pytest.mark.parametrize(
    ("how", "made"), [("sync", "RecordingScheduler"), ("async", "AsyncRecordingScheduler")]
)
def test_one_flag_gives_the_scheduler_that_vllm_would_choose(
    how: str, made: str, cores: tuple[Path, dict[str, dict[str, Any]]]
) -> None:
    out, answers = cores

    recording = only_recording(out / how)
    ends = dict(recording.requests.select("request_id", "status").rows())
    assert answers[how] == {"class": made, "finished": ["r0", "r1", "r2", "r3", "r4"]}
    assert recording.complete
    assert recording.notes == ()
    assert ends == {**dict.fromkeys(answers[how]["finished"], "finished"), "r5": "aborted"}
    assert recording.steps["num_preempted"].sum() == 1
    assert recording.steps["num_finished"].sum() == 5


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.filterwarnings("ignore:model 'kv-replay-parity")
def test_what_the_engine_core_did_is_replayed(
    how: str, cores: tuple[Path, dict[str, dict[str, Any]]], tmp_path: Path
) -> None:
    recording = only_recording(cores[0] / how)

    simulate(workload_of(recording), settings_of(recording.meta, clock="step"), tmp_path)

    again = open_recording(tmp_path)
    columns = ("step", "kind", "request_id", "tokens", "cause_request_id")
    assert again.events.select(columns).rows() == recording.events.select(columns).rows()
    # the engine core takes one step more, to tell its workers who ended
    busy = recording.steps.filter(pl.col("prefill_tokens") + pl.col("decode_tokens") > 0)
    facts = ("step", "num_running", "used_blocks", "prefill_tokens", "decode_tokens")
    assert again.steps.select(facts).head(busy.height).rows() == busy.select(facts).rows()
