"""Sweeps: specs and what is wrong with them, cells and their names, resuming, retries, dead processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from engine.__main__ import main
from engine.sweep import plan, run_sweep
from engine.sweep_command import FIGURES
from engine.sweep_spec import parse_grid, parse_seeds, parse_value, read_spec
from engine.sweep_traces import TraceSpec, open_trace, shaped
from engine.sweep_workers import Processes
from tests import sweep_faults
from tests.sweep_builders import (
    NOT_COMPARED,
    Inline,
    run_inline,
    small_sweep,
    table,
    write_trace,
)
from traces import samples
from traces.errors import SettingsError, WorkloadError
from traces.recording import open_recording
from traces.sweep_schema import METADATA_KEY

ROOT = Path(__file__).parent.parent
TWO_BY_TWO = ("num_gpu_blocks=5,9", "preemption=recompute,swap")


@pytest.fixture(autouse=True)
def no_main_to_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A started process runs the main module again, and a page under test leaves its script there."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))


def spec_file(folder: Path, text: str) -> Path:
    write_trace(folder)
    path = folder / "spec.toml"
    path.write_text(text)
    return path


SPEC = """
seeds = [0, 1]
traces = ["trace.jsonl"]
[settings]
block_size = 4
clock = "step"
[grid]
num_gpu_blocks = [5, 9]
[[zip]]
max_num_seqs = [2, 4]
max_num_batched_tokens = [16, 32]
[bounds]
ttft_s = 2
"""


# ---- specs -----------------------------------------------------------------------------------------


def test_a_file_says_traces_settings_grids_groups_seeds_and_bounds(tmp_path: Path) -> None:
    spec = read_spec(spec_file(tmp_path, SPEC))

    assert [t.name for t in spec.traces] == ["trace.jsonl"]
    assert spec.varied == ("num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens")
    assert [dict(c.values) for c in spec.choices()] == [
        {"num_gpu_blocks": 5, "max_num_seqs": 2, "max_num_batched_tokens": 16},
        {"num_gpu_blocks": 5, "max_num_seqs": 4, "max_num_batched_tokens": 32},
        {"num_gpu_blocks": 9, "max_num_seqs": 2, "max_num_batched_tokens": 16},
        {"num_gpu_blocks": 9, "max_num_seqs": 4, "max_num_batched_tokens": 32},
    ]
    assert spec.bounds == {"ttft_s": 2.0}


def test_another_seed_of_a_trace_that_draws_nothing_is_no_other_cell(tmp_path: Path) -> None:
    spec = read_spec(spec_file(tmp_path, SPEC))
    drawn = read_spec(spec_file(tmp_path, SPEC.replace('"trace.jsonl"', '"sample:smollm2"')))

    assert (spec.num_cells, drawn.num_cells) == (4, 8)
    assert drawn.say_count() == "1 trace x 4 settings x 2 seeds = 8 cells"


def test_the_file_in_the_documentation_is_a_sweep(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")

    spec = read_spec(spec_file(tmp_path, text.split("```toml\n")[1].split("```")[0]))

    assert spec.say_count() == "2 traces x 8 settings x 3 seeds = 48 cells"
    assert len(open_trace(spec.traces[1], 0)) == 300


BAD_SPECS = {
    "no toml": ("a = = 1", "spec.toml: not TOML: Invalid value (at line 1, column 5)"),
    "unknown section": ('gird = {}\ntraces = ["trace.jsonl"]', "unknown key 'gird'. Did you mean grid?"),
    "unknown setting": ('traces = ["trace.jsonl"]\n[grid]\nkv_token = [1]', "[grid]: unknown setting 'kv_token'. Did you mean kv_tokens? Known are arrivals,"),
    "unknown fixed setting": ('traces = ["trace.jsonl"]\n[settings]\nblok_size = 1', "[settings]: unknown setting 'blok_size'. Did you mean block_size?"),
    "empty grid": ('traces = ["trace.jsonl"]\n[grid]\nkv_tokens = []', "[grid] kv_tokens: the list is empty, so there is no cell to run"),
    "a value alone": ('traces = ["trace.jsonl"]\n[grid]\nkv_tokens = 5', "[grid] kv_tokens must be a list of values, not 5"),
    "same value twice": ('traces = ["trace.jsonl"]\n[grid]\nkv_tokens = [64, 32, 64]', "[grid] kv_tokens: 64 is given twice"),
    "unequal group": ('traces = ["trace.jsonl"]\n[[zip]]\nkv_tokens = [64]\nblock_size = [4, 8]', "[[zip]] 1: lists that go together must be equally long, and kv_tokens has 1, block_size has 2"),
    "varied twice": ('traces = ["trace.jsonl"]\n[grid]\nkv_tokens = [64]\n[[zip]]\nkv_tokens = [64]', "kv_tokens is varied twice"),
    "varied and fixed": ('traces = ["trace.jsonl"]\n[grid]\nkv_tokens = [64]\n[settings]\nkv_tokens = 3', "kv_tokens is varied, and fixed at 3 too"),
    "no trace": ("[grid]\nkv_tokens = [64]", "no trace is given"),
    "trace of both kinds": ('[traces]\nx = {path = "a", synthetic = {}}', "[traces] x: give either path or synthetic"),
    "unknown key of a trace": ('[traces]\nx = {pth = "a"}', "[traces] x: unknown key 'pth'. Did you mean path?"),
    "same trace twice": ('traces = ["trace.jsonl", "trace.jsonl"]', "two traces are called 'trace.jsonl'"),
    "seed below 0": ('traces = ["trace.jsonl"]\nseeds = [-1]', "seeds: -1 is not a whole number"),
    "seed twice": ('traces = ["trace.jsonl"]\nseeds = [3, 3]', "seeds: 3 is given twice"),
    "seed as a setting": ('traces = ["trace.jsonl"]\n[grid]\nseed = [1, 2]', "'seed' is not varied like a setting. Give seeds"),
    "unknown bound": ('traces = ["trace.jsonl"]\n[bounds]\nttft = 1', "[bounds]: unknown bound 'ttft'. Did you mean ttft_s?"),
    "measured clock": ('traces = ["trace.jsonl"]\n[settings]\nclock = "measured"', "clock measured takes its times from one recording"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), BAD_SPECS.values(), ids=BAD_SPECS)
def test_what_is_wrong_with_a_spec_is_said(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_spec(spec_file(tmp_path, text))

    assert str(caught.value).startswith("spec.toml: ")
    assert wanted in str(caught.value)


def test_flags_take_numbers_switches_lists_and_names_of_flags() -> None:
    assert [parse_value(v) for v in ("64", "0.9", "true", "none", "5/0.05/0.1", "swap")] == [
        64, 0.9, True, None, (5.0, 0.05, 0.1), "swap",
    ]  # fmt: skip
    assert parse_grid("--preemption=swap").names == ("preemption_mode",)
    assert parse_grid("max-num-seqs+max-num-batched-tokens=2+16,4+32").rows == (
        (2, 16),
        (4, 32),
    )
    assert parse_seeds("3-5") == parse_seeds("3,4,5") == (3, 4, 5)


def test_a_sweep_in_which_nothing_could_run_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    spec = small_sweep(tmp_path, "max_num_seqs=8,16", "max_num_batched_tokens=4,6")

    with pytest.raises(
        SettingsError, match=r"none of the cells looked at could run: .*vLLM refuses"
    ):
        run_inline(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- traces ----------------------------------------------------------------------------------------


def test_seed_0_of_a_sample_is_the_sample_and_another_draws_others_of_its_kind() -> None:
    spec = TraceSpec("x", ("sample:smollm2",))

    first, second = open_trace(spec, 0), open_trace(spec, 1)

    assert first.digest == samples.load("smollm2").digest
    assert second.digest != first.digest
    assert len(second) == 48


def test_made_up_requests_are_drawn_by_the_seed() -> None:
    spec = TraceSpec("x", synthetic={"num_requests": 5, "rate_per_s": 2, "prompt": 40, "output": {"low": 3, "high": 3}})  # fmt: skip

    drawn = open_trace(spec, 7)

    assert drawn.table["prompt_tokens"].to_list() == [40] * 5
    assert drawn.table["output_tokens"].to_list() == [3] * 5
    assert drawn.digest != open_trace(spec, 8).digest


@pytest.mark.parametrize(
    ("synthetic", "wanted"),
    [
        ({"num_request": 5}, "'num_request' is no parameter of synthetic requests. Known are"),
        ({"num_requests": 5, "prompt": 3, "output": 3}, "give either rate_per_s, or concurrency"),
        ({"num_requests": 5, "rate_per_s": 1, "output": 3}, "synthetic requests need prompt"),
        ({"num_requests": 5, "rate_per_s": 1, "prompt": {"lo": 1}, "output": 3}, "prompt must be a number of tokens"),
    ],
)  # fmt: skip
def test_made_up_requests_say_what_is_wrong(synthetic: dict[str, object], wanted: str) -> None:
    with pytest.raises(SettingsError, match=wanted):
        open_trace(TraceSpec("x", synthetic=synthetic), 0)


def test_the_requests_of_a_recording_are_a_trace(tmp_path: Path) -> None:
    trace = write_trace(tmp_path)
    main(["simulate", str(trace), "--out", str(tmp_path / "run"), "--clock", "step"])

    found = open_trace(TraceSpec("x", (str(tmp_path / "run"),)), 0)

    assert found.table["prompt_tokens"].to_list() == [7, 7, 2]


def test_poisson_arrivals_keep_order_and_rate_and_change_with_the_seed() -> None:
    base = samples.load("chat")

    drawn = shaped(base, {"arrivals": "poisson"}, 3)

    assert drawn.table["prompt_tokens"].to_list() == base.table["prompt_tokens"].to_list()
    assert drawn.span_s == pytest.approx(base.span_s, rel=0.1)
    assert drawn.digest != shaped(base, {"arrivals": "poisson"}, 4).digest


def test_a_window_outside_the_trace_refuses_its_cells_and_no_others(tmp_path: Path) -> None:
    spec = small_sweep(tmp_path, "window=0:,500:600")

    run_inline(spec, tmp_path / "out")

    rows = table(tmp_path / "out")
    assert rows["status"].to_list() == ["completed", "refused"]
    assert "no request arrives between 500 s and 600 s" in rows["error"][1]


def test_requests_of_one_rate_have_no_poisson_arrivals(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="they have no rate to draw arrivals at"):
        shaped(samples.load("chat").head(1), {"arrivals": "poisson"}, 0)


# ---- what comes of it ------------------------------------------------------------------------------


def test_the_table_has_a_row_a_cell_with_settings_and_figures(tmp_path: Path) -> None:
    run_inline(small_sweep(tmp_path, *TWO_BY_TWO, bounds={"ttft_s": 100.0}), tmp_path / "out")

    rows = table(tmp_path / "out")
    assert rows.select("num_gpu_blocks", "preemption_mode", "num_preemptions", "num_steps", "pool_blocks").rows() == [
        (5, "recompute", 1, 8, 4),
        (5, "swap", 1, 8, 4),
        (9, "recompute", 0, 6, 8),
        (9, "swap", 0, 6, 8),
    ]  # fmt: skip
    assert rows["status"].to_list() == ["completed"] * 4
    assert rows["peak_used_frac"].to_list() == [1.0, 1.0, 0.75, 0.75]
    assert rows["goodput_frac"].to_list() == [1.0] * 4
    document = json.loads(
        pl.read_parquet_metadata(tmp_path / "out" / "sweep.parquet")[METADATA_KEY]
    )
    assert (document["num_cells"], document["varied"]) == (
        4,
        ["num_gpu_blocks", "preemption_mode"],
    )


def test_a_cell_says_what_simulate_and_summary_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from analyzer.summary import summarize

    out = ["--out", str(tmp_path / "one"), "--kv-tokens", "512", "--device", "cpu", "--model", "smollm2-135m"]  # fmt: skip
    main(["simulate", "sample:smollm2", *out, "--preemption", "swap"])
    main(["sweep", "sample:smollm2", "--out", str(tmp_path / "many"), "--set", "kv_tokens=512", "--set", "device=cpu",
          "--set", "model=smollm2-135m", "--grid", "preemption=swap", "--jobs", "1"])  # fmt: skip

    alone = summarize(open_recording(tmp_path / "one"))
    row = table(tmp_path / "many").row(0, named=True)
    assert row["num_preemptions"] == alone["num_preemptions"] > 0
    assert row["output_tokens_per_s"] == alone["output_tokens_per_s"]
    assert row["ttft_p99_s"] == alone["ttft_s"]["p99"]
    assert row["itl_p50_s"] == alone["itl_s"]["p50"]
    assert "1 cell: 1 run" in capsys.readouterr().out


def test_settings_that_cannot_be_are_recorded_as_refused_and_not_tried_again(
    tmp_path: Path,
) -> None:
    spec = small_sweep(tmp_path, "max_num_seqs=2,8", "max_num_batched_tokens=4,16")

    result, executor = run_inline(spec, tmp_path / "out")
    again, second = run_inline(spec, tmp_path / "out")

    rows = table(tmp_path / "out")
    assert rows["status"].to_list() == ["completed", "completed", "refused", "completed"]
    assert "max_num_batched_tokens 4 is less than max_num_seqs 8" in rows["error"][2]
    assert rows["num_steps"][2] is None
    assert (result.num_refused, len(executor.given), len(second.given)) == (1, 4, 0)
    assert again.num_before == 4


def test_kept_recordings_open_and_are_named_in_the_table(tmp_path: Path) -> None:
    spec = small_sweep(tmp_path, "num_gpu_blocks=5,9")

    run_inline(spec, tmp_path / "out", keep=True)

    folders = [tmp_path / "out" / r for r in table(tmp_path / "out")["recording"]]
    assert [open_recording(f).pool_blocks for f in folders] == [4, 8]
    assert sorted(p.name for p in (tmp_path / "out" / "recordings").iterdir()) == sorted(
        f.name for f in folders
    )


# ---- names, and going on ---------------------------------------------------------------------------


def test_a_cell_is_named_by_what_makes_it(tmp_path: Path) -> None:
    def names(*grid: str, **more: object) -> list[str]:
        return [cell for cell, _ in plan(small_sweep(tmp_path, *grid, **more))]

    both = names("num_gpu_blocks=5,9")

    assert names("num_gpu_blocks=9,5") == both[::-1]
    assert names("num_gpu_blocks=9") == both[1:]
    assert not set(names("num_gpu_blocks=5,9", bounds={"ttft_s": 1.0})) & set(both)
    assert not set(names("num_gpu_blocks=5,9", "rate_scale=2")) & set(both)
    write_trace(tmp_path, "other.jsonl")
    assert all(len(name) == 32 for name in both)


def test_two_names_for_the_same_requests_are_refused(tmp_path: Path) -> None:
    write_trace(tmp_path, "copy.jsonl")
    path = spec_file(
        tmp_path, 'traces = ["trace.jsonl", "copy.jsonl"]\n[grid]\nblock_size = [8]'
    )

    with pytest.raises(
        SettingsError, match=r"'trace\.jsonl' and 'copy\.jsonl' hold the same requests"
    ):
        plan(read_spec(path))


def test_finished_cells_are_not_run_again_and_failed_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sweep_faults.COUNT, str(tmp_path))
    spec = small_sweep(tmp_path, *TWO_BY_TWO)
    said: list[str] = []

    first, executor = run_inline(
        spec, tmp_path / "out", figures=f"{sweep_faults.HERE}:fails_with_swap", say=said.append
    )
    rows = table(tmp_path / "out")
    second, later = run_inline(spec, tmp_path / "out")

    assert rows["status"].to_list() == ["completed", "failed", "completed", "failed"]
    assert rows["error"].to_list() == [None, "OSError: the disk is on fire"] * 2
    assert rows["attempts"].to_list() == [1, 3, 1, 3]
    assert len(executor.given) == 2 + 2 * 3
    assert any(
        "failed after 3 tries" in line and "the disk is on fire" in line for line in said
    )
    assert first.num_failed == 2
    assert first.failures[0][0].endswith("num_gpu_blocks 5, preemption_mode swap, seed 0")
    assert (second.num_before, second.num_run, second.num_failed) == (2, 2, 0)
    assert [t.settings["preemption_mode"] for t in later.given] == ["swap", "swap"]
    assert table(tmp_path / "out")["status"].to_list() == ["completed"] * 4


def test_a_line_cut_off_by_a_killed_process_costs_its_cell_alone(tmp_path: Path) -> None:
    spec = small_sweep(tmp_path, *TWO_BY_TWO)
    run_inline(spec, tmp_path / "out")
    journal = tmp_path / "out" / "cells.jsonl"
    before = table(tmp_path / "out")
    journal.write_bytes(journal.read_bytes()[:-25])

    result, executor = run_inline(spec, tmp_path / "out")

    assert (result.num_before, len(executor.given)) == (3, 1)
    assert table(tmp_path / "out").drop(NOT_COMPARED).equals(before.drop(NOT_COMPARED))


def test_a_directory_with_another_sweep_is_left_alone_unless_extended(tmp_path: Path) -> None:
    run_inline(small_sweep(tmp_path, "num_gpu_blocks=5,9"), tmp_path / "out")
    wider = small_sweep(tmp_path, "num_gpu_blocks=5,9,12")

    with pytest.raises(SettingsError, match=r"holds another sweep \(its axes is another\)"):
        run_inline(wider, tmp_path / "out")
    result, executor = run_inline(wider, tmp_path / "out", extend=True)

    assert (result.num_before, len(executor.given)) == (2, 1)
    assert table(tmp_path / "out")["pool_blocks"].to_list() == [4, 8, 11]


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")

    with pytest.raises(SettingsError, match=r"holds 'thesis\.tex' and no sweep"):
        run_inline(small_sweep(tmp_path, "num_gpu_blocks=5"), tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_where_nothing_can_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    executor = Inline()

    with pytest.raises(SettingsError, match="a file of that name exists"):
        run_inline(small_sweep(tmp_path, "num_gpu_blocks=5"), tmp_path / "file", executor)
    with pytest.raises(SettingsError, match="cannot write there"):
        run_inline(small_sweep(tmp_path, "num_gpu_blocks=5"), Path("/proc/nowhere"), executor)
    assert executor.given == []


def test_two_processes_do_not_write_one_sweep(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    spec = small_sweep(tmp_path, "num_gpu_blocks=5")
    run_inline(spec, tmp_path / "out")

    with (tmp_path / "out" / ".lock").open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(SettingsError, match="another process is writing this sweep"):
            run_inline(spec, tmp_path / "out")


# ---- processes -------------------------------------------------------------------------------------


def test_processes_give_what_this_process_gives(tmp_path: Path) -> None:
    spec = small_sweep(tmp_path, *TWO_BY_TWO)
    run_inline(spec, tmp_path / "inline")

    run_sweep(spec, tmp_path / "out", lambda _: Processes(2), figures=FIGURES)

    assert (
        table(tmp_path / "out")
        .drop(NOT_COMPARED)
        .equals(table(tmp_path / "inline").drop(NOT_COMPARED))
    )


def test_a_killed_process_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sweep_faults.COUNT, str(tmp_path))
    spec = small_sweep(tmp_path, *TWO_BY_TWO)
    run_inline(spec, tmp_path / "inline")

    result = run_sweep(
        spec, tmp_path / "out", lambda _: Processes(2),
        figures=f"{sweep_faults.HERE}:kills_its_process_once",
    )  # fmt: skip

    rows = table(tmp_path / "out")
    assert rows.drop(NOT_COMPARED).equals(table(tmp_path / "inline").drop(NOT_COMPARED))
    assert sorted(rows["attempts"].to_list()) == [1, 1, 1, 2]
    assert sweep_faults.counted(tmp_path) == 5
    assert result.num_failed == 0


def test_a_cell_that_kills_every_process_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sweep_faults.COUNT, str(tmp_path))

    result = run_sweep(
        small_sweep(tmp_path, "num_gpu_blocks=5"), tmp_path / "out", lambda _: Processes(1),
        figures=f"{sweep_faults.HERE}:kills_its_process_always", retries=1,
    )  # fmt: skip

    rows = table(tmp_path / "out")
    assert (result.num_failed, sweep_faults.counted(tmp_path)) == (1, 2)
    assert rows["status"].to_list() == ["failed"]
    assert rows["error"][0].startswith("its process was ended by SIGKILL")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_leaves_what_ended_readable_and_goes_on_from_there(
    tmp_path: Path, number: int, code: int
) -> None:
    command = [
        sys.executable, "-m", "engine", "sweep", str(write_trace(tmp_path)), "--out", str(tmp_path / "out"),
        "--set", "block_size=4", "--set", "clock=step", "--grid", "num_gpu_blocks=5-", "--jobs", "1",
    ]  # fmt: skip
    values = ",".join(str(n) for n in range(5, 65))
    command[command.index("num_gpu_blocks=5-")] = f"num_gpu_blocks={values}"
    journal = tmp_path / "out" / "cells.jsonl"

    running = subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in the background, a shell has SIGINT ignored for all below it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        journal.exists() and journal.read_bytes().count(b"\n") > 3
    ):
        time.sleep(0.02)
    running.send_signal(number)
    said = running.communicate(timeout=60)[1]

    ended = table(tmp_path / "out").height
    assert running.returncode == code
    assert "stopped; cells that ended are in" in said
    assert 3 < ended < 60
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout)
    assert (result["num_before"], result["num_run"]) == (ended, 60 - ended)
    assert table(tmp_path / "out")["pool_blocks"].to_list() == list(range(4, 64))


# ---- the command -----------------------------------------------------------------------------------

MISTAKES = {
    "nothing": ([], "nothing to sweep: give SPEC.toml, or traces and --grid"),
    "no grid": (["{trace}"], "--grid is missing"),
    "empty grid": (["{trace}", "--grid", "kv_tokens="], "the list is empty"),
    "no equals": (["{trace}", "--grid", "kv_tokens"], "is not NAME=VALUE,VALUE"),
    "no such trace": (["{trace}x", "--grid", "block_size=8"], "there is no such file"),
    "no such sample": (["sample:nope", "--grid", "block_size=8"], "there is no sample 'nope'"),
    "no jobs": (["{trace}", "--grid", "block_size=8", "--jobs", "0"], "--jobs must be at least 1"),
    "a million": (["sample:chat", "--grid", "block_size=8,16", "--grid", "watermark=0,0.1,0.2,0.3,0.4", "--seeds", "0-99999"],
                  "1 trace x 10 settings x 100,000 seeds = 1,000,000 cells, more than the 10,000 that are run without asking"),
    "jobs and ray": (["{trace}", "--grid", "block_size=8", "--jobs", "2", "--ray", "auto"], "--jobs is for processes on this machine"),
    "odd bound": (["{trace}", "--grid", "block_size=8", "--bound", "ttft=2"], "--bound: unknown bound 'ttft'. Did you mean ttft_s?"),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "wanted"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], wanted: str
) -> None:
    trace = write_trace(tmp_path)

    code = main(
        ["sweep", *(f.format(trace=trace) for f in flags), "--out", str(tmp_path / "out")]
    )

    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert wanted in lines[0]
    assert not (tmp_path / "out").exists()


def test_a_sweep_without_ray_does_not_import_it(tmp_path: Path) -> None:
    code = (
        "import sys; from engine.__main__ import main; "
        "status = main(sys.argv[1:]); print('ray' in sys.modules, status)"
    )
    flags = ["sweep", str(write_trace(tmp_path)), "--out", str(tmp_path / "out"), "--grid", "num_gpu_blocks=9",
             "--set", "clock=step", "--jobs", "1"]  # fmt: skip

    done = subprocess.run(
        [sys.executable, "-c", code, *flags], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert done.stdout.splitlines()[-1] == "False 0", done.stderr
