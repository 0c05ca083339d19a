"""What is shown of very long runs is worked out in a process of its own, and read from what it kept."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from analyzer import run_figures, work_out
from analyzer.look import Side
from analyzer.run import Run
from analyzer.run_figures import comparison_of, is_worked_out, preemptions_of, ttft_of
from analyzer.work_out import TOGETHER, is_for_apart, work_out_apart
from tests.builders import POOL, make_meta, write
from tests.long_worlds import finished, tables
from traces.errors import CompareError
from traces.mapped_tables import Keep
from traces.recording import open_recording


def kept_run(folder: Path, name: str, mode: str, given: dict[str, Any], **meta: Any) -> Run:
    settings = {"num_gpu_blocks": POOL + 1, "preemption_mode": mode}
    path = write(folder / name, meta=make_meta(settings=settings, **meta), **given)
    recording = open_recording(path, keep=Keep(folder / f"kept-{name}", long_rows=100))
    return Run(name, recording, "1")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Side, Run]:
    monkeypatch.setattr(work_out, "APART_STEPS", 4_000)
    return {
        "A": kept_run(tmp_path, "a", "recompute", finished()),
        "B": kept_run(tmp_path, "b", "swap", finished()),
    }


def test_another_process_works_out_what_this_one_reads(
    runs: dict[Side, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = [Run(r.ref, open_recording(r.recording.root), r.stamp) for r in runs.values()]
    wanted = comparison_of(*short)
    said: list[tuple[str, float, str]] = []
    assert is_for_apart(runs)
    assert not is_worked_out(*runs.values())

    assert work_out_apart(runs, lambda *what: said.append(what), lambda: False)

    for name in ("summarize", "compare", "told", "request_latency"):
        monkeypatch.setattr(run_figures, name, lambda *_, **__: pytest.fail("worked out here"))
    assert is_worked_out(*runs.values())
    found = comparison_of(*runs.values())
    assert found.verdict.text == wanted.verdict.text
    assert_frame_equal(found.table, wanted.table, rel_tol=1e-12)
    assert preemptions_of(runs["A"]).height == finished()["events"].num_rows
    assert ttft_of(runs["B"])[1] == 100
    assert said[:2] == [
        ("A", 0.0, "times to first token"),
        ("A", 1 / 3, "what each preemption cost"),
    ]
    assert ("B", 1.0, "done") in said
    assert said[-1][0] == TOGETHER


def test_what_another_process_refuses_is_raised_here(
    runs: dict[Side, Run], tmp_path: Path
) -> None:
    other = {"name": "other", "digest": "e" * 32}
    runs["B"] = kept_run(tmp_path, "c", "swap", tables(2_400, seed=5), workload=other)

    with pytest.raises(CompareError, match="a and c come from different workloads"):
        work_out_apart(runs, lambda *_: None, lambda: False)


def test_a_process_that_is_cancelled_is_ended(
    runs: dict[Side, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping = (sys.executable, "-c", "import time; time.sleep(60)")
    monkeypatch.setattr(work_out, "_COMMAND", sleeping)
    started = time.monotonic()

    assert not work_out_apart(runs, lambda *_: None, lambda: True)

    assert time.monotonic() - started < 50


def test_a_process_that_ends_by_itself_is_told_with_its_last_words(
    runs: dict[Side, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = (sys.executable, "-c", "import sys; sys.exit('out of memory')")
    monkeypatch.setattr(work_out, "_COMMAND", ending)

    with pytest.raises(RuntimeError, match="ended with 1: out of memory"):
        work_out_apart(runs, lambda *_: None, lambda: False)


def test_runs_that_are_not_that_long_or_are_gone_stay_here(
    runs: dict[Side, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Run("a", open_recording(runs["A"].recording.root))
    assert not is_for_apart({**runs, "C": short})
    monkeypatch.setattr(work_out, "APART_STEPS", 4_001)
    assert not is_for_apart(runs)
    monkeypatch.setattr(work_out, "APART_STEPS", 0)
    assert is_for_apart(runs)
    (tmp_path / "kept-a").rename(tmp_path / "gone")
    assert not is_for_apart(runs)
