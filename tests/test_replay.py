"""A recording holds its workload: running it again gives the same decisions."""

from __future__ import annotations

import warnings
from pathlib import Path

import polars as pl
import pytest

from engine.__main__ import main
from engine.config import EngineSettings
from engine.replay import compare, settings_of
from engine.simulator import simulate
from tests.engine_builders import SECONDS, make_request, make_settings, make_trace
from traces.errors import SettingsError
from traces.recording import Recording, open_recording
from traces.recording_meta import Meta
from traces.replay import MORE_TOKENS, workload_of

# Two that do not fit together to their ends, one that is aborted, one with a shared prefix.
TRACE = make_trace(
    make_request("a", 6, 6, prefix=[7]),
    make_request("b", 6, 6, arrival=1, prefix=[7]),
    make_request("c", 3, 20, arrival=2, abort=6, priority=2),
    make_request("d", 5, 2, arrival=30),
    prefix_block_tokens=4,
)


def run(folder: Path, **changes: object) -> Recording:
    simulate(TRACE, make_settings(5, enable_prefix_caching=True, **changes), folder)
    return open_recording(folder)


def decisions(recording: Recording) -> tuple[list[object], list[object]]:
    steps = recording.steps.drop("t_start_s", "duration_s")
    return steps.rows(), recording.events.drop("t_s").rows()  # type: ignore[return-value]


def test_the_workload_of_a_recording_has_what_was_asked(tmp_path: Path) -> None:
    workload = workload_of(run(tmp_path))

    table = workload.table
    assert table["request_id"].to_list() == ["a", "b", "c", "d"]
    assert table["prompt_tokens"].to_list() == [6, 6, 3, 5]
    assert table["output_tokens"].to_list()[:2] == [6, 6]
    assert table["output_tokens"][2] > MORE_TOKENS  # it was cut short: it must not end before
    assert table["arrival_step"].to_list() == [0, 1, 2, 30]
    assert table["abort_step"].to_list() == [None, None, 6, None]
    assert table["priority"].to_list() == [0, 0, 2, 0]
    assert table["prefix_ids"].to_list() == [[7], [7], [], []]
    assert workload.prefix_block_tokens == 4
    assert "1 requests were aborted, unfinished or refused on the way" in " ".join(
        workload.report.notes
    )


@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_decides_the_same_again(asynchronous: bool, tmp_path: Path) -> None:
    first = run(tmp_path / "a", async_scheduling=asynchronous)

    simulate(workload_of(first), settings_of(first.meta), tmp_path / "b")

    again = open_recording(tmp_path / "b")
    assert first.steps["num_preempted"].sum() > 0
    assert decisions(again) == decisions(first)


def test_unfinished_requests_are_aborted_where_the_recording_ends(tmp_path: Path) -> None:
    first = run(tmp_path / "a", max_steps=4)

    workload = workload_of(first)

    assert first.requests["status"].to_list().count("unfinished") == 4
    assert workload.table["request_id"].to_list() == ["a", "b", "c"]  # d had not arrived
    assert workload.table["abort_step"].to_list() == [4, 4, 4]


def test_requests_that_a_killed_writer_never_wrote_are_replayed_by_their_arrivals(
    tmp_path: Path,
) -> None:
    run(tmp_path)
    (tmp_path / "closed.json").unlink()
    (tmp_path / "requests" / "part-00000.parquet").unlink()

    workload = workload_of(open_recording(tmp_path))

    assert workload.table["prompt_tokens"].to_list() == [6, 6, 3, 5]
    assert workload.table["output_tokens"].to_list()[:2] == [6, 6]


def test_settings_come_back_from_metadata(tmp_path: Path) -> None:
    settings = make_settings(
        5, watermark=0.1, policy="priority", long_prefill_token_threshold=3
    )
    simulate(TRACE, settings, tmp_path)

    assert settings_of(open_recording(tmp_path).meta) == settings


def test_vllms_faults_are_replayed_with_a_recording_from_vllm() -> None:
    meta = Meta({"executor": "vllm", "vllm_baseline": "0.26.0", "settings": {"block_size": 32}})

    assert settings_of(meta) == EngineSettings(block_size=32, compat="vllm-0.26")
    assert settings_of(meta, compat=None) == EngineSettings(block_size=32)


def test_a_newer_vllm_gets_no_old_faults() -> None:
    meta = Meta({"executor": "vllm", "vllm_baseline": "0.33.0", "settings": {}})

    assert settings_of(meta).compat is None


def test_a_model_that_is_not_known_is_replaced_and_said() -> None:
    meta = Meta({"settings": {"model": "acme/secret-7b"}})

    with pytest.warns(UserWarning, match="model 'acme/secret-7b' is not known here"):
        settings = settings_of(meta)

    assert settings.model == EngineSettings().model


def test_the_servers_device_is_taken_where_it_is_known() -> None:
    server = {"executor": "vllm", "settings": {}}

    known = settings_of(Meta({**server, "device": {"name": "NVIDIA H100 PCIe"}}))
    with pytest.warns(UserWarning, match="device 'Acme X1' is not known here"):
        unknown = settings_of(Meta({**server, "device": {"name": "Acme X1"}}))

    assert known.device == "NVIDIA H100 PCIe"
    assert unknown.device == EngineSettings().device


def test_a_setting_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="block_size"), warnings.catch_warnings():
        settings_of(Meta({"settings": {"block_size": 0}}))


def test_the_command_line_replays_a_recording_and_changes_what_flags_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(tmp_path / "a")

    same = main(["replay", str(tmp_path / "a"), "--out", str(tmp_path / "b")])
    roomy = main(
        ["replay", str(tmp_path / "a"), "--out", str(tmp_path / "c"), "--num-gpu-blocks", "40"]
    )

    assert (same, roomy) == (0, 0)
    assert decisions(open_recording(tmp_path / "b")) == decisions(first)
    assert open_recording(tmp_path / "c").steps["num_preempted"].sum() == 0
    assert "requests were aborted, unfinished or refused on the way" in capsys.readouterr().out


def test_replaying_what_is_no_recording_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")

    code = main(["replay", str(tmp_path / "a.csv"), "--out", str(tmp_path / "b")])

    assert code == 2
    assert capsys.readouterr().err.startswith("error: a.csv: the file is neither a folder")
    assert not (tmp_path / "b").exists()


def test_a_pool_given_in_tokens_is_replayed_in_blocks() -> None:
    meta = Meta({"settings": {"num_gpu_blocks": 9, "kv_tokens": 128, "block_size": 16}})

    assert settings_of(meta).num_gpu_blocks == 9
    assert settings_of(meta, kv_tokens=64).num_gpu_blocks is None


def test_a_model_that_is_no_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="model must be a name"):
        settings_of(Meta({"settings": {"num_gpu_blocks": 9, "model": {"layers": 3}}}))


def test_a_request_that_outgrew_the_pool_outgrows_it_again(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("request_id,arrival_s,prompt_tokens,output_tokens\na,0,34,60\nb,0,7,5\n")
    args = ["--num-gpu-blocks", "5", "--no-reserve-full-isl", "--max-model-len", "4096"]
    assert main(["simulate", str(trace), "--out", str(tmp_path / "a"), *args]) == 0

    assert main(["replay", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0

    with open_recording(tmp_path / "a") as a, open_recording(tmp_path / "b") as b:
        assert a.requests["status"].to_list() == ["finished", "refused"]
        assert a.steps.equals(b.steps)
        assert a.requests["output_tokens"].to_list() == b.requests["output_tokens"].to_list()


def test_aborts_of_one_step_keep_their_order(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("a", 4, 9),
        make_request("r10", 4, 9, abort=1.2),
        make_request("r2", 4, 9, abort=1.4),
    )
    settings = make_settings(20, clock="modelled", cost_overrides=SECONDS)
    simulate(trace, settings, tmp_path / "a")
    first = open_recording(tmp_path / "a")

    simulate(workload_of(first), settings_of(first.meta), tmp_path / "b")

    again = open_recording(tmp_path / "b")
    aborts = first.events.filter(first.events["kind"].cast(str) == "abort")
    assert aborts["request_id"].to_list() == ["r10", "r2"]
    assert aborts["step"].n_unique() == 1
    assert again.events.equals(first.events)


@pytest.mark.parametrize("inside", ["", "more"])
def test_a_recording_is_not_replayed_onto_itself(
    inside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a")
    out = tmp_path / "a" / inside

    code = main(["replay", str(tmp_path / "a"), "--out", str(out), "--overwrite"])

    assert code == 2
    assert "is the recording that is replayed, or lies in it" in capsys.readouterr().err
    assert open_recording(tmp_path / "a").complete


def test_a_replay_is_held_against_its_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(tmp_path / "a")
    args = ["replay", str(tmp_path / "a"), "--check"]

    assert main(args) == 0
    n, e = first.steps.height, first.events.height
    assert f"{n} of {n} steps, {e} events, 4 requests equal" in capsys.readouterr().out

    assert main([*args, "--num-gpu-blocks", "40"]) == 1
    said = capsys.readouterr().out
    assert (
        "different: table steps, row 1 (step 0), free_blocks: 3 in the recording, 37 in" in said
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_block_intervals_are_joined_where_a_part_was_written(tmp_path: Path) -> None:
    simulate(TRACE, make_settings(5), tmp_path / "a", blocks=True)
    first, other = open_recording(tmp_path / "a"), open_recording(tmp_path / "a")
    blocks = first.blocks
    assert blocks is not None
    long = blocks.filter(pl.col("last_step") > pl.col("first_step"))
    cut = [
        blocks.filter(pl.col("last_step") == pl.col("first_step")),
        long.with_columns(last_step="first_step"),
        long.with_columns(first_step=pl.col("first_step") + 1),
    ]
    assert long.height > 0

    other.__dict__["blocks"] = pl.concat(cut)
    assert compare(first, other).difference is None
    other.__dict__["blocks"] = pl.concat(cut[:2])
    assert "table blocks" in str(compare(first, other).difference)


def test_a_difference_names_both_sides(tmp_path: Path) -> None:
    first, other = run(tmp_path / "a"), open_recording(tmp_path / "a")
    other.__dict__["events"] = first.events[:-1]

    said = str(compare(first, other))

    n = first.events.height
    assert f"table events: {n} rows in the recording, {n - 1} in the replay" in said
    assert "the first that only the recording has: step 31, kind finish, request_id d" in said
