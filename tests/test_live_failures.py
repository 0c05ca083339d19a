"""The recorder in vLLM where something is wrong, and what it must never write.

Needs the interpreter with vLLM (see tests/parity); skipped, with the reason, where there is none.
All cases are run by one process, for vLLM takes long to import.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from engine.live.rows import STEP_COLUMNS
from engine.replay import settings_of
from engine.simulator import simulate
from tests.live.vllm_runs import drive, golden_case, need_vllm, only_recording
from traces.recording import Recording, open_recording
from traces.replay import workload_of

pytestmark = pytest.mark.parity

GOLDEN = Path(__file__).parent / "golden"
SECRET = 0x5EC2E7  # prefix id, from which the driver makes token ids
BARE = "vllm.v1.core.sched.scheduler.Scheduler"
UNRECORDED = {"KV_REPLAY_UNSUPPORTED": "run-unrecorded"}


class Runs(NamedTuple):
    """What came of the cases: folder of recordings by name, answers, and what was said."""

    out: Path
    answers: dict[str, dict[str, Any]]
    said: dict[str, str]

    def recording(self, name: str) -> Recording:
        return only_recording(self.out / name)


def make_case(out: Path, name: str, *, of: str = "fcfs_cache", **more: Any) -> dict[str, Any]:
    """A golden case under another name; more: keys of the driver's case."""
    return {**golden_case(GOLDEN / of, out / more.pop("into", name)), "name": name, **more}


def marked_case(out: Path) -> dict[str, Any]:
    """Four requests whose ids and tokens can be looked for."""
    case = make_case(out, "marked", environ={"KV_REPLAY_HASH_IDS": "1"})
    case["rows"] = case["rows"][:4]
    for row in case["rows"]:
        row["request_id"] = f"customer-{row['request_id']}"
        row["prefix_hash_ids"] = [SECRET]
    return case


def offload_case(out: Path, name: str = "offload", **more: Any) -> dict[str, Any]:
    """CPU offload, whose loads take two steps; the driver's own records are kept."""
    case = make_case(out, name, steps=str(out / f"{name}.jsonl"), **more)
    case["settings"] |= {
        "offload": "native",
        "cpu_blocks": 256,
        "offload_prompt_only": False,
        "load_steps": 2,
    }
    return case


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    need_vllm()
    out = tmp_path_factory.mktemp("runs")
    (out / "file").write_text("in the way")
    cases = [
        make_case(out, "first", into="restart"),
        make_case(out, "second", into="restart"),
        make_case(out, "typo", environ={"KV_REPLAY_PART_STEPS": "many"}),
        make_case(out, "unwritable", into="file/out"),
        marked_case(out),
        make_case(out, "no prefixes", environ={"KV_REPLAY_PREFIX_IDS": "0"}),
        make_case(out, "blocks", environ={"KV_REPLAY_BLOCKS": "1"}),
        offload_case(out),
        offload_case(out, "offload without recorder", scheduler=BARE),
        make_case(out, "refused", broken="interface"),
        make_case(out, "unrecorded", of="max_num_seqs", broken="interface", environ=UNRECORDED),
        make_case(out, "faulty", broken="tap"),
        make_case(out, "killed", kill_at=300, environ={"KV_REPLAY_FLUSH_S": "0.05"}),
    ]
    answers, said = drive(cases)
    assert [a["name"] for a in answers] == [c["name"] for c in cases[:-1]], said[-4000:]
    texts = dict(part.split("\n", 1) for part in said.split("--- ")[1:])
    return Runs(out, {a["name"]: a for a in answers}, texts)


def all_requests(name: str) -> set[str]:
    lines = (GOLDEN / name / "trace.jsonl").read_text().splitlines()
    return {json.loads(line)["request_id"] for line in lines if line.strip()}


def test_another_scheduler_interface_is_refused(runs: Runs) -> None:
    said = runs.answers["refused"]["error"]

    assert "UnsupportedVllmError: vLLM 0.26.0" in said
    assert (
        "Scheduler._preempt_request(request, timestamp) was expected and _preempt_request(victim) found"
        in said
    )
    assert "KV_REPLAY_UNSUPPORTED=run-unrecorded" in said
    assert not (runs.out / "refused").exists()


def test_another_interface_is_served_unrecorded_only_when_asked_for(runs: Runs) -> None:
    answer = runs.answers["unrecorded"]  # a case without preemptions: the damage does not show

    assert answer["error"] is None
    assert answer["class"] == "Scheduler"
    assert set(answer["finished"]) == all_requests("max_num_seqs")
    assert "KV Replay does not record. vLLM 0.26.0" in runs.said["unrecorded"]
    assert not (runs.out / "unrecorded").exists()


def test_a_fault_in_the_recorder_reaches_no_request(runs: Runs) -> None:
    answer, said = runs.answers["faulty"], runs.said["faulty"]

    recording = runs.recording("faulty")
    assert answer["error"] is None
    assert set(answer["finished"]) == all_requests("fcfs_cache")
    assert answer["num_steps"] == 357
    assert said.count("KV Replay's recorder failed and has stopped; serving goes on.") == 1
    assert "made up" in said
    assert recording.status == "unclosed"
    assert recording.steps["step"].to_list() == list(range(10))
    assert "The recorder failed and stopped before the server did" in " ".join(recording.notes)


def test_settings_that_cannot_be_are_refused_at_start(runs: Runs) -> None:
    assert "KV_REPLAY_PART_STEPS must be a number" in runs.answers["typo"]["error"]


def test_a_directory_that_cannot_be_written_stops_no_request(runs: Runs) -> None:
    answer = runs.answers["unwritable"]

    assert answer["error"] is None
    assert set(answer["finished"]) == all_requests("fcfs_cache")
    assert runs.said["unwritable"].count("KV Replay cannot write to") == 1
    assert (runs.out / "file").read_text() == "in the way"


def test_a_restart_with_the_same_directory_keeps_the_earlier_recording(runs: Runs) -> None:
    recordings = [open_recording(p) for p in sorted((runs.out / "restart").iterdir())]

    assert [r.rows["steps"] for r in recordings] == [357, 357]
    assert all(r.complete for r in recordings)


def test_a_killed_server_leaves_a_recording_that_opens(runs: Runs) -> None:
    recording = runs.recording("killed")

    steps = recording.steps["step"].to_list()
    assert recording.status == "unclosed"
    assert steps == list(range(len(steps)))
    assert len(steps) >= 1


def test_neither_prompts_nor_tokens_nor_hashed_ids_are_in_any_byte(runs: Runs) -> None:
    (folder,) = (runs.out / "marked").iterdir()
    stored = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
    values = b"".join(uncompressed(folder))

    assert runs.answers["marked"]["error"] is None
    for text in (b"customer", b"r001"):
        assert text not in stored
        assert text not in values
    # the driver's token ids are SECRET << 32 and the next 15
    assert not any(((SECRET << 32) + k).to_bytes(8, "little") in values for k in range(16))
    assert SECRET not in open_recording(folder).requests["prefix_ids"].explode().to_list()


def uncompressed(folder: Path) -> list[bytes]:
    """Every table of a recording as the bytes of its values."""
    recording = open_recording(folder)
    frames = [recording.steps, recording.events, recording.requests]
    return [f.write_ipc(None, compression="uncompressed").getvalue() for f in frames]


def test_prefix_ids_can_be_left_out(runs: Runs) -> None:
    recording = runs.recording("no prefixes")

    assert recording.requests["prefix_ids"].null_count() == recording.requests.height
    assert "requests.prefix_ids" in recording.meta.not_recorded


def test_block_ownership_is_sampled_when_asked_for(runs: Runs) -> None:
    recording = runs.recording("blocks")

    blocks = recording.blocks
    assert blocks is not None
    for step, used in recording.steps.select("step", "used_blocks").rows()[::20]:
        held = blocks.filter((pl.col("first_step") <= step) & (pl.col("last_step") >= step))
        assert held["block_id"].n_unique() == used


def test_a_restored_request_shows_its_load_and_what_came_back(runs: Runs) -> None:
    recording = runs.recording("offload")

    loads = recording.events.filter(pl.col("kind").cast(pl.String) == "load")
    assert recording.meta.preemption_mode == "offload"
    assert recording.meta.host_pool_blocks == 256
    assert loads.height == 7
    assert loads["tokens"].sum() == 448
    assert recording.steps["restored_tokens"].sum() == 448
    assert recording.steps["recomputed_tokens"].sum() == 33
    assert recording.steps["num_swapped"].max() == 2
    assert recording.requests["restored_tokens"].sum() == 448


def test_the_recorder_changes_no_decision_with_a_connector(runs: Runs) -> None:
    recorded, bare = (
        (runs.out / f"{name}.jsonl").read_text()
        for name in ("offload", "offload without recorder")
    )

    assert recorded == bare
    assert recorded.count("\n") == 362


@pytest.mark.filterwarnings("ignore:(model|device) ")
def test_a_run_with_restored_requests_is_replayed(runs: Runs, tmp_path: Path) -> None:
    recording = runs.recording("offload")

    settings = settings_of(recording.meta, clock="step", load_steps=2)
    simulate(workload_of(recording), settings, tmp_path)

    again = open_recording(tmp_path)
    events = ("step", "kind", "request_id", "mode_used", "tokens", "cause_request_id")
    assert settings.num_host_blocks == 256
    assert again.events.select(events).rows() == recording.events.select(events).rows()
    facts = [c for c in STEP_COLUMNS if not c.endswith("_s")]
    assert again.steps.select(facts).rows() == recording.steps.select(facts).rows()
