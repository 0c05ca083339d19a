"""Bad input on the command line: one sentence, exit code 2, and nothing that was recorded is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from analyzer.__main__ import main as analyze
from engine.__main__ import main as engine
from tests.builders import make_meta, make_requests, make_steps, write
from tests.fleet_builders import rank
from traces import samples
from traces.recording import open_recording

SAMPLES = Path(samples.__file__).parent / "recordings"
ONE = {"request_id": "a", "prompt_tokens": 8, "first_token_s": 1.0, "finish_s": 2.0}


def said(capsys: pytest.CaptureFixture[str], code: int) -> str:
    """The only line of standard error of a command that a user can mend."""
    assert code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert len(lines[0]) < 800
    return lines[0]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write(tmp_path / "run", make_steps([1, 2, 3]), requests=make_requests([{**ONE}]))


# ---- a sweep's file and flags ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a=" + "[" * 5000 + "]" * 5000, "without end"),
        ("seeds=[" + "9" * 5000 + "]", "thousands of digits"),
        ('traces=["~nobody-of-that-name/x"]', "cannot be looked for"),
        ('traces=["a\\u0000b"]', "cannot be looked for"),
        ("[traces]\na={path=[]}", "is an empty list"),
        ("[traces]\na={synthetic={}}", "synthetic must be a table such as"),
        ('traces=["sample:chat"]\n[grid]\nkv_tokens=[[1,[2]]]', "is no value of a setting"),
        ('traces=["sample:chat"]\n[grid]\nkv_tokens=[[{a=1}]]', "is no value of a setting"),
        ('traces=["sample:chat"]\nseeds=[9223372036854775808]', "one is too large"),
    ],
)
def test_a_sweep_file_that_cannot_be_says_so_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    spec = tmp_path / "s.toml"
    spec.write_text(text)

    line = said(capsys, engine(["sweep", str(spec), "--out", str(tmp_path / "out")]))

    assert "s.toml" in line
    assert sentence in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "seeds", ["0-99999999999", "0-100000", "0-" + "9" * 5000, "9223372036854775808"]
)
def test_more_seeds_than_anybody_wants_are_refused_before_they_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: str
) -> None:
    given = ["sweep", "sample:chat", "--grid", "kv_tokens=24000", "--seeds", seeds]

    line = said(capsys, engine([*given, "--out", str(tmp_path / "out")]))

    assert "100,000" in line or "9,223,372,036,854,775,807" in line


# ---- what would write over a recording -------------------------------------------------------------


@pytest.mark.parametrize("command", ["export", "report"])
def test_no_export_or_report_replaces_the_recording_that_it_reads(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    part = recording / "steps" / "part-00000.parquet"
    before = part.read_bytes()
    packed = Path(shutil.make_archive(str(tmp_path / "run"), "zip", recording))
    inside = part if command == "export" else recording / "r.html"
    packed_before = packed.read_bytes()

    line = said(capsys, analyze([command, str(recording), "--out", str(inside)]))
    assert "only read" in line
    if command == "export":
        assert "only read" in said(
            capsys, analyze([command, str(packed), "--out", str(packed)])
        )

    assert part.read_bytes() == before
    assert packed.read_bytes() == packed_before
    with open_recording(recording) as found:
        assert found.steps.height == 3


def test_simulated_fleets_are_not_kept_among_the_ranks_that_they_are_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet"
    rank(fleet / "r0", [1, 2], prompts=[4])
    rank(fleet / "r1", [1, 2], prompts=[4])

    line = said(capsys, analyze(["route", str(fleet), "--out", str(fleet / "kept")]))

    assert "only read" in line
    assert sorted(p.name for p in fleet.iterdir()) == ["r0", "r1"]


@pytest.mark.parametrize("name", ["file", "file/below", "a\0b", "x" * 300])
@pytest.mark.parametrize("command", ["route", "advise"])
def test_a_folder_that_cannot_be_made_is_said(
    tmp_path: Path,
    recording: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
) -> None:
    (tmp_path / "file").write_text("mine")
    for which in ("r0", "r1"):
        rank(tmp_path / "fleet" / which, [1, 2], prompts=[4])
    given = {
        "route": ["route", str(tmp_path / "fleet")],
        "advise": ["advise", "sample:chat", "--goal", "no-preemption"],
    }[command]

    line = said(capsys, analyze([*given, "--out", f"{tmp_path}/{name}"]))

    assert "no folder can be made there" in line
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["a\0b.zip", "x" * 300 + ".zip"])
def test_a_name_that_no_file_can_have_is_said(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    line = said(capsys, analyze(["export", str(recording), "--out", f"{tmp_path}/{name}"]))

    assert "cannot be written" in line or "is no name of a file" in line


# ---- what the system or the user interrupts --------------------------------------------------------


def test_a_path_that_the_system_refuses_ends_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said(capsys, analyze(["crossover", "--device", "x" * 5000]))


def test_ctrl_c_is_no_traceback(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("analyzer.__main__._summary", interrupted)

    assert analyze(["summary", str(recording)]) == 130
    assert capsys.readouterr().err.startswith("stopped")


# ---- ranks with absurd times -----------------------------------------------------------------------

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "columns",
    [
        {"duration_s": [1.0, INF, 1.0], "t_start_s": [0.0, 1.0, 2.0]},
        {"duration_s": [1.0, 1.0, INF], "t_start_s": [0.0, 1.0, 2.0]},
        {"t_start_s": [0.0, NAN, 2.0]},
        {"t_start_s": [NAN, 1.0, 2.0]},
        {"t_start_s": [0.0, 1.0, 1.7e308], "duration_s": [1.0, 1.0, 1.7e308]},
    ],
)
def test_a_rank_whose_times_are_not_finite_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: dict[str, list[float]]
) -> None:
    rank(tmp_path / "r0", [1, 2, 3], prompts=[4])
    rank(tmp_path / "r1", [1, 2, 3], prompts=[4], **columns)

    assert analyze(["summary", str(tmp_path)]) == 0

    out = capsys.readouterr().out
    assert "r1 was left out" in out


def test_a_rank_of_text_where_times_should_be_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(SAMPLES / "smollm2-swap", tmp_path / "r0")
    shutil.copytree(SAMPLES / "smollm2-recompute", tmp_path / "r1")
    part = tmp_path / "r1" / "steps" / "part-00000.parquet"
    table = pq.read_table(part)
    text = pa.table({n: [str(v) for v in table[n].to_pylist()] for n in table.column_names})
    pq.write_table(text.replace_schema_metadata(table.schema.metadata), part)

    assert analyze(["summary", str(tmp_path)]) == 0

    assert "r1 was left out" in capsys.readouterr().out


def test_ctrl_c_before_a_command_began_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(argv: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("analyzer.__main__.build_parser", interrupted)

    assert analyze(["summary", "run"]) == 130
    assert capsys.readouterr().err.startswith("stopped")


def test_a_name_of_thousands_of_characters_leaves_the_fault_readable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = said(capsys, analyze(["summary", "x" * 5000]))

    assert "it cannot be opened" in line


def test_a_run_that_took_no_time_is_not_said_to_be_a_share_faster(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = write(tmp_path / "empty")

    assert analyze(["compare", str(empty), str(recording)]) == 0

    assert "B (run) finishes later (0 -> 3.00 s)" in capsys.readouterr().out


# ---- the folder of a sweep ---------------------------------------------------------------------------

SWEEP = ["sweep", "sample:chat", "--grid", "kv_tokens=24000", "--jobs", "1"]


@pytest.mark.parametrize("name", ["sweep.parquet", "cells.jsonl", "sweep.json"])
def test_a_directory_where_a_sweep_keeps_a_file_is_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "out" / "sweep.json").touch() if name != "sweep.json" else None

    line = said(capsys, engine([*SWEEP, "--out", str(tmp_path / "out")]))

    assert f"{name} is a directory" in line


def test_a_sweep_out_that_no_folder_can_be_called_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(capsys, engine([*SWEEP, "--out", str(tmp_path / ("x" * 300))]))

    assert "cannot write there" in line


@pytest.mark.parametrize("text", ['{"sweep": "x"}', '{"sweep": [1], "engine": {}}', "[1]"])
def test_a_sweep_json_of_something_else_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.json").write_text(text)

    line = said(capsys, engine([*SWEEP, "--out", str(tmp_path / "out")]))

    assert "another sweep" in line or "is damaged" in line
    assert (tmp_path / "out" / "sweep.json").read_text() == text


def test_a_device_that_there_is_not_is_no_other_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = write(
        tmp_path / "run",
        make_steps([1, 2, 3]),
        requests=make_requests([{**ONE, "output_tokens": 2, "first_scheduled_s": 0.0}]),
        meta=make_meta(clock="measured", executor="torch"),
    )

    line = said(capsys, analyze(["validate", str(made), "--device", "h10-sxm"]))

    assert "the device 'h10-sxm' is not known" in line


def test_a_row_of_another_age_of_the_world_is_told_in_few_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n3.15576e107,5,5\n")

    line = said(capsys, analyze(["advise", str(trace), "--goal", "no-preemption"]))

    assert "row 2, arrival_s: it is 1e+100 years from the first row" in line


def test_an_empty_address_of_ray_is_no_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["sweep", "sample:chat", "--grid", "kv_tokens=24000", "--ray", ""]

    assert engine([*given, "--out", str(tmp_path / "out")]) == 2

    assert "--ray '' is no address" in capsys.readouterr().err


def test_a_price_of_a_device_that_there_is_not_is_refused_not_forgotten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["advise", "sample:chat", "--goal", "no-preemption", "--max-requests", "5"]

    line = said(capsys, analyze([*given, "--cost-per-gpu-hour", "h10=2.5"]))

    assert "the device 'h10' is not known" in line
