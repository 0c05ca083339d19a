"""`python -m engine run`: what it takes, what it refuses, and what a stopped run leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.__main__ import build_parser, main
from engine.progress import ProgressLines
from engine.simulator import Progress
from tests.gpu import tiny
from traces.recording import open_recording

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "--num-gpu-blocks",
    "60",
    "--block-size",
    "4",
    "--torch-device",
    "cpu",
    "--threads",
    "1",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.llama_dir(tmp_path_factory.mktemp("model"), "llama3")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(
        "request_id,arrival_s,prompt_tokens,output_tokens\na,0,9,5\nb,0,12,7\nc,0.01,4,3\n"
    )
    return path


def refused(capsys: pytest.CaptureFixture[str], *args: Any) -> str:
    """The one sentence with which the command refuses."""
    assert main(["run", *map(str, args)]) == 2
    said = capsys.readouterr().err.strip()
    said = next(line for line in said.splitlines() if not line.startswith("running "))
    assert said.startswith("error: ")
    assert "Traceback" not in said
    return said


def test_a_run_says_what_came_of_it(
    folder: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    code = main(
        ["run", str(trace), "--out", str(out), "--model", str(folder), *SMALL, "--blocks"]
    )

    assert code == 0
    said = capsys.readouterr().out
    assert "completed: 3 requests, " in said
    assert "s measured (preparation " in said
    with open_recording(out) as recording:
        lengths = dict(recording.requests.select("request_id", "output_tokens").iter_rows())
        assert lengths == {"a": 5, "b": 7, "c": 3}
        assert recording.meta["settings"]["kv_cache_dtype"] == "float32"
        assert recording.meta["settings"]["model"] == folder.name
        assert recording.meta["torch"]["attention"] == "gather_sdpa"
        assert str(folder.parent) not in json.dumps(recording.meta)


def test_the_result_can_be_had_as_json(
    folder: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["run", str(trace), "--out", str(tmp_path / "out"), "--model", str(folder)]

    assert main([*args, *SMALL, "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["num_requests"], result["num_unfinished"]) == (
        "completed",
        3,
        0,
    )


def test_text_goes_in_and_comes_out(folder: Path, trace: Path, tmp_path: Path) -> None:
    prompts, outputs = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text('hello world\n\n{"prompt": "hello there"}\n')
    args = ["run", str(trace), "--out", str(tmp_path / "out"), "--model", str(folder), *SMALL]

    assert main([*args, "--prompts", str(prompts), "--outputs", str(outputs)]) == 0

    answers = {a["request_id"]: a for a in map(json.loads, outputs.read_text().splitlines())}
    assert {r: len(a["tokens"]) for r, a in answers.items()} == {"a": 5, "b": 7, "c": 3}
    assert all(isinstance(a["text"], str) for a in answers.values())
    assert {a["finish_reason"] for a in answers.values()} == {"length"}
    assert answers["a"]["tokens"][:3] == answers["c"]["tokens"]  # both ask the first prompt
    with open_recording(tmp_path / "out") as recording:
        lengths = dict(recording.requests.select("request_id", "prompt_tokens").iter_rows())
        assert lengths == {r: a["prompt_tokens"] for r, a in answers.items()}
        assert lengths["a"] == lengths["c"]
        assert recording.meta["torch"]["prompts"] == "text"


def test_an_answer_may_end_at_the_models_end_token(
    folder: Path, trace: Path, tmp_path: Path
) -> None:
    out, outputs = tmp_path / "out", tmp_path / "answers.jsonl"
    args = ["run", str(trace), "--model", str(folder), *SMALL]
    assert main([*args, "--out", str(out), "--outputs", str(outputs)]) == 0
    first = json.loads(outputs.read_text().splitlines()[-1])
    stop = first["tokens"][2]
    ending = tiny.llama_dir(tmp_path / "ends", "llama3", eos_token_id=stop)

    again = [a if a != str(folder) else str(ending) for a in args]
    short = tmp_path / "short.jsonl"
    code = main(
        [*again, "--out", str(out), "--overwrite", "--outputs", str(short), "--stop-at-eos"]
    )

    assert code == 0
    ends = [json.loads(line) for line in short.read_text().splitlines()]
    answers = {a["request_id"]: a["tokens"] for a in ends}
    assert all((a["finish_reason"] == "stop") == (a["tokens"][-1] == stop) for a in ends)
    mine = answers[first["request_id"]]
    assert mine == first["tokens"][: first["tokens"].index(stop) + 1]
    assert all(stop not in tokens[:-1] for tokens in answers.values())


def test_a_run_without_a_model_says_which_models_there_are(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, trace, "--out", tmp_path / "out", *SMALL)

    assert "--model is needed: a Hugging Face directory, a GGUF file, smollm2" in said


def test_what_cannot_be_run_is_refused_before_anything_is_written(
    folder: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run = [trace, "--out", out, "--model", folder]

    no_pool = refused(capsys, *run, "--torch-device", "cpu")
    assert "on a CPU the pool's size has to be given: --num-gpu-blocks N" in no_pool
    assert "runs on one device: leave --tp at 1" in refused(capsys, *run, *SMALL, "--tp", 2)
    assert "dtype 'int8' is not supported" in refused(capsys, *run, *SMALL, "--dtype", "int8")
    assert "no attention backend 'flash'" in refused(
        capsys, *run, *SMALL, "--attention", "flash"
    )
    assert "layout 'rows' is not known" in refused(capsys, *run, *SMALL, "--kv-layout", "rows")
    assert "--threads must lie between 1 and 1,024, not 0" in refused(
        capsys, *run, *SMALL[:-1], 0
    )
    preset = [trace, "--out", out, "--model", "llama-3.1-8b"]
    assert "do not come with the project" in refused(capsys, *preset, *SMALL)
    assert "cannot be read" in refused(capsys, *run, *SMALL, "--prompts", tmp_path / "none.txt")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    assert "it holds no prompt" in refused(capsys, *run, *SMALL, "--prompts", empty)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "fine"}\n{"prompt": 7}\n')
    assert "line 2" in refused(capsys, *run, *SMALL, "--prompts", bad)
    assert not out.exists()


def test_without_a_gpu_cuda_is_refused_with_what_to_do(
    folder: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")

    said = refused(
        capsys, trace, "--out", tmp_path / "out", "--model", folder, "--torch-device", "cuda"
    )

    assert "Choose --torch-device cpu" in said


def test_requests_that_were_refused_or_cut_are_told(
    folder: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, args = tmp_path / "out", ["run", str(trace), "--model", str(folder), *SMALL[4:]]
    args += ["--num-gpu-blocks", "4", "--block-size", "4", "--out", str(out), "--overwrite"]

    assert main(args) == 0
    said = capsys.readouterr().out
    assert "completed: 3 requests (2 refused: the pool holds 12 tokens), " in said
    assert f"What would let them: python -m analyzer diagnose {out}\n" in said

    assert main([*args, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["num_refused"], result["why_refused"]) == (2, "the pool holds 12 tokens")

    few = tmp_path / "few.json"
    few.write_text('{"max_steps": 2}')
    assert main([*args, "--settings", str(few)]) == 0
    said = capsys.readouterr().out
    assert " requests never finished. The run was cut at max_steps.\n" in said


def test_a_run_begins_with_what_runs(
    folder: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["run", str(trace), "--out", str(tmp_path / "out"), "--model", str(folder), *SMALL]

    assert main(args) == 0

    first = capsys.readouterr().err.splitlines()[0]
    assert first == (
        "running tiny-llama3 in float32 on CPU: pool of 236 tokens (60 blocks, 0.00 GiB), attention gather_sdpa, 3 requests"
    )


def test_progress_is_told_every_half_minute() -> None:
    said: list[str] = []
    clock = iter([100.0, 130.4, 159.0, 161.0])
    lines = ProgressLines(40, said.append, lambda: next(clock))

    for done, steps in ((0.0, 9), (0.25, 1_200), (0.5, 2_000), (0.75, 2_100)):
        lines(Progress(done, steps, 0.0))

    assert said == [
        "running: 10 of 40 requests ended, 1,200 steps, 30 s",
        "running: 30 of 40 requests ended, 2,100 steps, 61 s",
    ]


def test_ctrl_c_before_the_first_step_says_that_nothing_is_recorded(
    folder: Path,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.gpu.run.load_model", pressed)
    out = tmp_path / "out"

    assert main(["run", str(trace), "--out", str(out), "--model", str(folder), *SMALL]) == 130

    assert capsys.readouterr().err.strip() == "stopped; nothing was recorded"
    assert not out.exists()


def test_help_explains_every_flag_but_those_of_simulate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = next(a for a in build_parser()._actions if a.dest == "command")
    actions = commands.choices["run"]._actions  # type: ignore[index]

    assert [a.dest for a in actions if not a.help] == []
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    said = capsys.readouterr().out
    assert "a Hugging Face directory (config.json, safetensors," in said
    for flag in ("--tp", "--kv-dtype", "--weight-dtype"):
        assert flag not in said


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_logits_that_are_not_finite_are_told_once(
    temperature: str,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tiny.llama_dir(tmp_path / "model", "llama3")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.v_proj.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors")
    args = ["run", str(trace), "--out", str(tmp_path / "out"), "--model", str(folder), *SMALL]

    assert main([*args, "--temperature", temperature]) == 0

    said = capsys.readouterr().err
    assert said.count("logits are not finite") == 1
    assert "its numbers do not fit float32" in said


def test_a_disk_that_takes_no_answer_is_told_with_the_file(
    folder: Path,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full:
        def write(self, line: bytes) -> int:
            if len(line) < 20:
                raise OSError(28, "No space left on device")
            return len(line) - 10

        def close(self) -> None: ...

    real = Path.open
    monkeypatch.setattr(
        Path, "open", lambda p, *a, **k: Full() if p.name == "full" else real(p, *a, **k)
    )
    out, outputs = tmp_path / "out", tmp_path / "full"

    said = refused(capsys, trace, "--out", out, "--model", folder, *SMALL, "--outputs", outputs)

    assert f"--outputs '{outputs}': request " in said
    assert " could not be written (No space left on device). Make room, or" in said
    with open_recording(out) as recording:
        assert recording.status == "failed"


def test_an_answers_file_is_never_overwritten(
    folder: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = tmp_path / "answers.jsonl"
    outputs.write_text("precious")

    said = refused(
        capsys,
        trace,
        "--out",
        tmp_path / "out",
        "--model",
        folder,
        *SMALL,
        "--outputs",
        outputs,
    )

    assert "Give the name of a new file" in said
    assert outputs.read_text() == "precious"


def long_run(folder: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """A run that would last for minutes, once it has written its first part."""
    trace, out = tmp_path / "long.csv", tmp_path / "out"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,9,90000\n0,9,90000\n0.1,4,3\n")
    code = (
        "import sys, engine.gpu.loop as loop; loop.FLUSH_S = 0.2\n"
        "from engine.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    args = [
        "run",
        str(trace),
        "--out",
        str(out),
        "--model",
        str(folder),
        "--num-gpu-blocks",
        "50000",
    ]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *args, "--torch-device", "cpu", "--max-model-len", "200000"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    until = time.monotonic() + 120
    while len(list(out.glob("steps/*.parquet"))) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.1)
    return process, out


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_stopped_run_closes_its_recording(
    how: signal.Signals, code: int, folder: Path, tmp_path: Path
) -> None:
    process, out = long_run(folder, tmp_path)

    process.send_signal(how)
    error = process.communicate(timeout=60)[1]

    assert process.returncode == code, error
    assert "stopped; what was recorded so far is readable: " in error
    assert f" steps, 2 of 3 requests unfinished, in {out}\n" in error
    with open_recording(out) as recording:
        assert recording.status == "stopped"
        assert recording.requests["status"].to_list().count("unfinished") == 2
        assert recording.steps.height >= 2


def test_a_killed_run_leaves_what_it_had_written(folder: Path, tmp_path: Path) -> None:
    process, out = long_run(folder, tmp_path)

    process.kill()
    process.communicate(timeout=60)

    with open_recording(out) as recording:
        assert recording.steps.height > 0
        assert recording.steps["step"].to_list() == list(range(recording.steps.height))
