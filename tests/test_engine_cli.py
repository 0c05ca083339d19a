"""`python -m engine simulate`: flags to a recording, and one clear sentence for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.__main__ import main
from traces.recording import open_recording

ROOT = Path(__file__).parent.parent
ROWS = [
    {"request_id": "a", "prompt_tokens": 7, "output_tokens": 5, "arrival_step": 0},
    {"request_id": "b", "prompt_tokens": 7, "output_tokens": 4, "arrival_step": 0},
    {"request_id": "c", "prompt_tokens": 2, "output_tokens": 1, "arrival_step": 30},
]
SMALL = ["--num-gpu-blocks", "5", "--block-size", "4", "--no-prefix-caching"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    return path


@pytest.fixture
def timed_csv(tmp_path: Path) -> Path:
    path = tmp_path / "timed.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,7,5\n0.5,7,4\n2,3,2\n")
    return path


def run(*flags: str | Path) -> int:
    return main(["simulate", *map(str, flags)])


def test_a_trace_becomes_a_recording(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(trace, "--out", tmp_path / "out", *SMALL, "--clock", "step", "--json")

    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (result["status"], result["num_requests"], result["num_steps"]) == (
        "completed",
        3,
        8,
    )
    assert result["num_preemptions"] == 1
    assert open_recording(tmp_path / "out").requests.height == 3


def test_without_json_it_says_what_happened_and_what_to_do_next(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(trace, "--out", tmp_path / "out", *SMALL, "--clock", "step")

    out = capsys.readouterr().out
    assert "completed: 3 requests, 8 steps, 1 preemptions" in out
    assert "python -m analyzer summary" in out


def test_swap_flags_reach_the_run(trace: Path, tmp_path: Path) -> None:
    code = run(
        trace, "--out", tmp_path / "out", *SMALL, "--clock", "step", "--preemption", "swap",
        "--num-host-blocks", "4", "--copy-path", "loop", "--copy-mode", "async",
    )  # fmt: skip

    recording = open_recording(tmp_path / "out")
    assert code == 0
    assert recording.meta.host_pool_blocks == 4
    assert (recording.meta.settings["copy_path"], recording.meta.settings["copy_mode"]) == (
        "loop",
        "async",
    )
    assert recording.steps["swap_out_bytes"].sum() > 0


def test_cheapest_is_a_mode_of_preemption(trace: Path, tmp_path: Path) -> None:
    code = run(trace, "--out", tmp_path / "out", *SMALL, "--preemption", "cheapest")

    events = open_recording(tmp_path / "out").events.to_dicts()
    victims = [e for e in events if e["kind"] == "preempt"]
    assert code == 0
    assert {e["mode_asked"] for e in victims} == {"cheapest"}
    assert all(e["recompute_est_s"] > 0 and e["swap_est_s"] > 0 for e in victims)


def test_a_window_and_a_rate_change_the_arrivals(timed_csv: Path, tmp_path: Path) -> None:
    run(timed_csv, "--out", tmp_path / "out", *SMALL, "--window", "0.4:", "--rate-scale", "3")

    assert open_recording(tmp_path / "out").requests["arrival_s"].sort().to_list() == [0.0, 0.5]


def test_flags_win_over_the_settings_file(trace: Path, tmp_path: Path) -> None:
    settings = tmp_path / "s.json"
    settings.write_text(json.dumps({"num_blocks": 9, "block_size": 4, "max_num_seqs": 3}))

    run(trace, "--out", tmp_path / "out", "--settings", settings, "--num-gpu-blocks", "6")

    found = open_recording(tmp_path / "out").meta.settings
    assert (found["num_gpu_blocks"], found["block_size"], found["max_num_seqs"]) == (6, 4, 3)


def test_kv_tokens_replace_the_blocks_of_the_settings_file(trace: Path, tmp_path: Path) -> None:
    settings = tmp_path / "s.json"
    settings.write_text(json.dumps({"num_blocks": 9, "block_size": 4}))

    run(trace, "--out", tmp_path / "out", "--settings", settings, "--kv-tokens", "24")

    assert open_recording(tmp_path / "out").meta.pool_blocks == 6


# flags after SMALL and --out -> what the one sentence must hold
MISTAKES = {
    "zero blocks": (["--num-gpu-blocks", "0"], "num_gpu_blocks 0 leaves no block to use"),
    "the null block only": (["--num-gpu-blocks", "1"], "one is vLLM's null block"),
    "negative blocks": (["--num-gpu-blocks", "-4"], "num_gpu_blocks -4"),
    "negative seqs": (["--max-num-seqs", "-1"], "max_num_seqs must be a whole number of at least 1"),
    "zero block size": (["--block-size", "0"], "block_size must be a whole number of at least 1"),
    "negative threshold": (["--long-prefill-token-threshold", "-1"], "long_prefill_token_threshold"),
    "watermark over 1": (["--watermark", "1.5"], "watermark must lie between 0 and 1"),
    "watermark nan": (["--watermark", "nan"], "watermark must lie between 0 and 1"),
    "negative host": (["--host-gib", "-2"], "host_gib must lie between 0"),
    "both pools": (["--kv-tokens", "64"], "num_gpu_blocks and kv_tokens both set the pool"),
    "unknown model": (["--model", "no-such-model"], "no-such-model"),
    "unknown device": (["--device", "no-such-device"], "no-such-device"),
    "unknown cost": (["--cost", "no_such_cost=1"], "no_such_cost"),
    "negative cost": (["--cost", "step_overhead_s=-1"], "step_overhead_s"),
    "odd kv dtype": (["--kv-dtype", "int3"], "int3"),
    "tp that does not divide": (["--tp", "7"], "7"),
    "priority victim under fcfs": (["--victim", "priority"], "needs policy 'priority'"),
    "budget under seqs": (["--max-num-batched-tokens", "4", "--max-num-seqs", "8"], "less than max_num_seqs 8"),
    "window outside": (["--window", "500:600"], "no request arrives between 500 s and 600 s"),
    "rate zero": (["--rate-scale", "0"], "rate scale"),
    "rate nan": (["--rate-scale", "nan"], "rate scale"),
    "no requests": (["--max-requests", "0"], "--max-requests must be at least 1"),
    "settings missing": (["--settings", "no-such.json"], "no-such.json: there is no such file"),
}  # fmt: skip


def one_error(captured: str, wanted: str) -> None:
    lines = [x for x in captured.splitlines() if not x.startswith("warning:")]
    assert len(lines) == 1, captured
    assert lines[0].startswith("error: ")
    assert wanted in lines[0]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    mistake: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, wanted = MISTAKES[mistake]

    code = run(trace, "--out", tmp_path / "out", *SMALL, *flags)

    assert code == 2
    one_error(capsys.readouterr().err, wanted)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--victim", "oldest"], "last, priority, fewest-computed, most-blocks"),
        (["--preemption", "drop"], "recompute, swap"),
        (["--num-gpu-blocks", "many"], "--num-gpu-blocks"),
        (["--window", "morning"], "'morning' is not START:END in seconds"),
        (["--cost", "step_overhead_s"], "is not NAME=NUMBER"),
        (["--map", "arrival"], "is not ROLE=COLUMN"),
        (["--compat", "vllm-0.1"], "vllm-0.26"),
    ],
)
def test_a_flag_that_cannot_be_read_names_its_choices(
    flags: list[str],
    wanted: str,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(trace, "--out", tmp_path / "out", *flags)

    assert stopped.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1].replace("'recompute'", "recompute")
    assert all(word in message.replace("'", "") for word in wanted.replace("'", "").split(", "))


def test_a_trace_that_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(tmp_path / "no-such.csv", "--out", tmp_path / "out", *SMALL)

    assert code == 2
    one_error(capsys.readouterr().err, "no-such.csv")


def test_an_unknown_sample_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run("sample:nothing", "--out", tmp_path / "out", *SMALL)

    assert code == 2
    one_error(capsys.readouterr().err, "nothing")


def test_an_empty_trace_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.csv").write_text("")

    code = run(tmp_path / "empty.csv", "--out", tmp_path / "out", *SMALL)

    assert code == 2
    one_error(capsys.readouterr().err, "empty.csv")


@pytest.mark.parametrize("name", ["sharegpt.json", "vllm-bench-totals.json", "prometheus.json"])
def test_a_file_that_is_no_request_trace_is_refused_with_the_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        ROOT / "tests" / "fixtures" / "formats" / name, "--out", tmp_path / "out", *SMALL
    )

    assert code == 2
    one_error(capsys.readouterr().err, name)


def test_the_step_clock_without_arrival_steps_is_refused(
    timed_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(timed_csv, "--out", tmp_path / "out", *SMALL, "--clock", "step")

    assert code == 2
    one_error(capsys.readouterr().err, "the step clock needs a column arrival_step")


def test_decisions_that_cannot_be_written_are_said(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        trace, "--out", tmp_path / "out", *SMALL, "--decisions", tmp_path / "no" / "log.jsonl"
    )

    assert code == 2
    one_error(capsys.readouterr().err, "cannot write the decisions")


def test_a_second_run_does_not_overwrite_the_first_unasked(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(trace, "--out", tmp_path / "out", *SMALL)
    capsys.readouterr()

    code = run(trace, "--out", tmp_path / "out", *SMALL)

    assert code == 2
    one_error(capsys.readouterr().err, "the directory is not empty")


def test_as_a_process_a_mistake_shows_no_traceback(trace: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine", "simulate", str(trace), "--out", str(tmp_path / "out"), "--num-gpu-blocks", "0"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    one_error(done.stderr, "num_gpu_blocks 0")


def test_overwriting_leaves_a_folder_with_files_of_the_users_alone(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run(trace, "--out", out, *SMALL, "--clock", "step")
    mine = out / "steps" / "mine.csv"
    mine.write_text("kept")

    code = run(trace, "--out", out, *SMALL, "--clock", "step", "--overwrite")

    assert code == 2
    assert mine.read_text() == "kept"
    assert "holds more than a recording" in capsys.readouterr().err


def test_a_run_that_cannot_start_leaves_the_recording_it_was_to_replace(
    trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(trace, "--out", out, *SMALL, "--clock", "step")

    code = run(trace, "--out", out, *SMALL, "--overwrite", "--cost", "knee=1e300")

    assert code == 2
    assert open_recording(out).requests.height == 3


def test_decisions_replace_neither_the_trace_nor_another_file(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trace.read_text()
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")

    codes = [
        run(trace, "--out", tmp_path / "o", *SMALL, "--clock", "step", "--decisions", f)
        for f in (trace, notes)
    ]

    assert codes == [2, 2]
    assert (trace.read_text(), notes.read_text()) == (before, "mine")


def test_a_log_of_decisions_is_written_again(trace: Path, tmp_path: Path) -> None:
    log = tmp_path / "d.jsonl"
    flags = ("--out", tmp_path / "o", *SMALL, "--clock", "step", "--decisions", log)

    codes = [run(trace, *flags), run(trace, *flags, "--overwrite")]

    assert codes == [0, 0]
    assert len(log.read_text().splitlines()) == 8


def test_prompts_over_the_model_length_are_refused_under_compat_too(
    trace: Path, tmp_path: Path
) -> None:
    flags = ("--out", tmp_path / "o", *SMALL, "--max-model-len", "6")

    code = run(trace, *flags, "--clock", "step", "--compat", "vllm-0.26")

    statuses = open_recording(tmp_path / "o").requests.sort("request_id")["status"].to_list()
    assert code == 0
    assert statuses == ["refused", "refused", "finished"]


def test_modelled_times_without_end_stop_the_run_with_a_sentence(
    timed_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(timed_csv, "--out", tmp_path / "o", *SMALL, "--cost", "layer_overhead_s=1e17")

    assert code == 2
    assert "the run would last" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lazy-offload"], "--lazy-offload changes nothing without --preemption offload"),
        (
            ["--preemption", "offload", "--lazy-offload"],
            "--lazy-offload changes nothing with the native connector",
        ),
        (
            ["--preemption", "offload", "--offload-connector", "simple", "--offload-all"],
            "--offload-all changes nothing with the simple connector",
        ),
    ],
)
def test_a_flag_that_changes_nothing_is_said(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "sample:chat", "--out", str(tmp_path / "run"), "--max-requests", "3"]

    assert main([*command, "--kv-tokens", "41408", *flags]) == 0

    assert said in capsys.readouterr().err
