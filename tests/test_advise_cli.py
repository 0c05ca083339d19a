"""`python -m analyzer advise`: a table, JSON, proofs that stay, and a sentence for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analyzer.__main__ import main
from engine.__main__ import main as engine
from engine.simulator import simulate
from tests.engine_builders import make_request, make_settings, make_trace
from traces.errors import SettingsError
from traces.recording import open_recording

ROOT = Path(__file__).parents[1]
# Two requests of 24 + 24 tokens: 3 blocks of 16 each. 5 usable blocks do not hold both to their ends.
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,24,24\n0.01,24,24\n"
MEASURED = ROOT / "traces" / "samples" / "recordings" / "smollm2-recompute"
PRESSED = ("--num-gpu-blocks", "6", "--device", "rtx-4090", "--max-model-len", "64")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "two.csv"
    path.write_text(TRACE)
    return str(path)


def advise(*arguments: str) -> int:
    return main(["advise", *arguments])


def test_json_has_the_documented_names_and_the_proving_recordings_stay(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "proofs"

    code = advise(
        trace, *PRESSED, "--goal", "no-preemption", "--lever", "num_gpu_blocks", "--lever", "max_num_seqs",
        "--out", str(out), "--json",
    )  # fmt: skip

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert set(found) == {
        "goal", "state", "summary", "obstacles", "base", "answers", "pairs", "num_runs", "rule", "notes", "base_of",
        "recordings_kept",
    }  # fmt: skip
    assert (found["goal"], found["state"]) == ("no preemption", "reached")
    assert found["base"]["figures"]["num_preemptions"] >= 1
    by = {a["levers"][0]: a for a in found["answers"]}
    assert by["num_gpu_blocks"]["option"]["changes"] == {"num_gpu_blocks": 7}
    assert by["num_gpu_blocks"]["option"]["flag"] == "--num-gpu-blocks-override 7"
    assert by["max_num_seqs"]["option"]["flag"] == "--max-num-seqs 1"
    proofs = {Path(p) for a in (found["base"], *(a["option"] for a in by.values())) for p in a["recordings"]}  # fmt: skip
    assert {p for p in out.iterdir() if p.is_dir()} == proofs
    with open_recording(by["num_gpu_blocks"]["option"]["recordings"][0]) as recording:
        assert recording.pool_blocks == 6
        assert int(recording.steps["num_preempted"].sum()) == 0


def test_the_table_says_flag_effect_price_and_rule(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = advise(
        trace, *PRESSED, "--goal", "no-preemption", "--lever", "num_gpu_blocks", "--lever", "replicas",
        "--cost-per-gpu-hour", "0.5",
    )  # fmt: skip

    said = capsys.readouterr().out
    assert code == 0
    assert "Goal: no preemption. At the base: " in said
    assert "--num-gpu-blocks-override 7" in said
    assert "1 more GPU; +0.50 an hour" in said
    assert "Ranked: what meets the goal first" in said
    assert "Give --out DIR to keep the recordings" in said
    assert "note: Times are the cost model's" in said


def test_a_goal_that_nothing_reaches_is_exit_code_1_with_what_is_in_the_way(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = advise(trace, *PRESSED, "--goal", "ttft-p99=0.000001", "--lever", "watermark", "--lever", "rate_scale")  # fmt: skip

    said = capsys.readouterr().out
    assert code == 1
    assert "Nothing that was tried reaches it" in said or "brings the base" in said
    assert "in the way: Compute: even at" in said


def test_a_recording_is_asked_about_its_own_requests_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = make_trace(make_request("a", 6, 6), make_request("b", 6, 6, arrival=1))
    simulate(load, make_settings(5), tmp_path / "run")

    code = advise(
        str(tmp_path / "run"),
        "--goal",
        "no-preemption",
        "--lever",
        "num_gpu_blocks",
        "--json",
    )

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["base_of"]["settings"]["block_size"] == 4
    assert found["base_of"]["validation"] is None
    assert found["answers"][0]["option"]["changes"] == {"num_gpu_blocks": 7}


def test_a_measured_recording_comes_with_how_near_the_simulator_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = (str(MEASURED), "--goal", "no-preemption", "--lever", "num_gpu_blocks", "--json")

    code = advise(*asked, "--anyway")

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert "imulator" in found["base_of"]["validation"]
    assert any("of a simulation" in n for n in found["notes"])
    assert found["answers"][0]["verdict"] == "enough"


def test_where_the_simulator_is_far_off_there_is_no_advice_unless_asked_for_anyway(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = advise(str(MEASURED), "--goal", "no-preemption")

    said = capsys.readouterr().err
    assert code == 2
    assert "the simulator is too far from smollm2-recompute" in said
    assert "python -m engine calibrate" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--goal", "fast"), "the goal 'fast' is not known"),
        (("--goal", "ttft-p99=0"), "needs a number of seconds above 0"),
        (("--goal", "ttft-p99=nan"), "needs a number of seconds above 0"),
        (("--goal", "no-preemption", "--lever", "luck"), "luck: no such lever"),
        (("--goal", "no-preemption", "--without", "luck"), "luck: no such lever"),
        (("--goal", "no-preemption", "--max-trials", "0"), "must be at least 1"),
        (("--goal", "no-preemption", "--cost-per-gpu-hour", "cheap"), "is not a price"),
        (("--goal", "no-preemption", "--cost-per-gpu-hour", "=3"), "is not a price"),
        (
            ("--goal", "no-preemption", "--max-requests", "0"),
            "--max-requests must be at least 1",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], said: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = advise(trace, *PRESSED, *arguments)

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err


def test_a_pool_smaller_than_one_request_and_an_empty_trace(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = advise(trace, *PRESSED, "--num-gpu-blocks", "3", "--goal", "no-preemption", "--lever", "watermark")  # fmt: skip
    assert code == 1
    assert "One request is larger than the pool" in capsys.readouterr().out

    empty = tmp_path / "empty.csv"
    empty.write_text("arrival_s,prompt_tokens,output_tokens\n")
    assert advise(str(empty), "--goal", "no-preemption") == 2
    assert capsys.readouterr().err.startswith("error: empty.csv")


def test_a_folder_that_holds_something_is_not_written_into(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")

    code = advise(trace, *PRESSED, "--goal", "no-preemption", "--out", str(tmp_path / "full"))

    assert code == 2
    assert "not empty" in capsys.readouterr().err
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_a_settings_mistake_is_the_engines_own_sentence(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = advise(trace, "--goal", "no-preemption", "--num-gpu-blocks", "1")

    assert code == 2
    assert "num_gpu_blocks 1 leaves no block to use" in capsys.readouterr().err


def test_help_imports_no_compiler_and_no_torch() -> None:
    code = (
        "import sys\nfrom analyzer.__main__ import build_parser\nargv = ['advise', 'x', '--goal', 'no-preemption', '--tp', '2']\nbuild_parser(argv).parse_args(argv)\n"
        "print([m for m in ('numba', 'torch', 'streamlit') if m in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_a_length_that_the_pool_has_no_room_for_is_noted_and_changes_no_result(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 6 blocks, 5 of them usable: vLLM counts all 6, so 96 tokens are the most it starts with.
    base = (trace, "--num-gpu-blocks", "6", "--device", "rtx-4090")
    ask = ("--goal", "no-preemption", "--lever", "num_gpu_blocks", "--json")
    found = {}
    for length in (96, 97):
        advise(*base, "--max-model-len", str(length), *ask)
        found[length] = capsys.readouterr()
    engine(["simulate", *base, "--max-model-len", "97", "--out", str(tmp_path / "a"), "--json"])
    simulated = capsys.readouterr()

    said = (
        "note: vLLM would refuse to start: max_model_len 97 needs 7 KV blocks of 16 tokens, the pool has 5; "
        "set --max-model-len 80 or less\n"
    )
    assert (found[96].err, found[97].err) == ("", said)
    figures = [json.loads(found[n].out)["base"]["figures"] for n in (96, 97)]
    assert figures[0] == figures[1]
    assert said in simulated.err
    assert json.loads(simulated.out)["status"] == "completed"


def test_prices_are_read_by_device() -> None:
    from analyzer.advise_command import costs_of

    settings: Any = make_settings(device="rtx-4090")

    assert costs_of(["2.5", "h200=4"], settings) == {"rtx-4090": 2.5, "h200": 4.0}
    with pytest.raises(SettingsError):
        costs_of(["nan"], settings)
