"""The GPU check itself: all of it, small, on a CPU; and what it makes of faults, misses and time."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The check's scripts as modules, one thread for torch."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    import gpu_check

    yield gpu_check
    torch.set_num_threads(before)
    for name in [n for n in sys.modules if n.startswith("gpu_check")]:
        del sys.modules[name]


def make_check(modules: Any, out: Path, seconds: float = 60.0) -> Any:
    return modules.Check(torch.device("cpu"), True, out, time.perf_counter() + seconds)


def test_a_quick_check_on_a_cpu_fills_every_section(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = modules.main(
        ["--device", "cpu", "--quick", "--minutes", "30", "--out", str(tmp_path)]
    )

    table = capsys.readouterr().out
    document = json.loads((tmp_path / "results.json").read_text())
    rows = document["rows"]
    assert code == 0, table
    assert [n for n, _, _ in modules.SECTIONS] == list(
        dict.fromkeys(r["section"] for r in rows)
    )
    assert not [r for r in rows if r["verdict"] in ("FAILED", "missed")]
    assert len(list(csv.DictReader((tmp_path / "results.csv").open()))) == len(rows)
    cases = {r["case"]: r["value"] for r in rows}
    assert cases["preemptions, swap"] > 0
    assert cases["recompute of 64 tokens"] > 0
    assert any(c.startswith("gather_sdpa float32") and v < 1e-5 for c, v in cases.items())
    assert (tmp_path / "device.json").exists()
    for row in rows:
        assert row["case"] in table


def test_a_section_that_fails_becomes_a_row_and_the_next_one_runs(
    modules: Any, tmp_path: Path
) -> None:
    check = make_check(modules, tmp_path)

    def broken(check: Any) -> None:
        raise RuntimeError("no kernel image\nmore")

    check.section("first", 30, broken)
    check.section("second", 30, lambda c: c.row("fine", 1.0, verdict="ok"))
    check.facts["minutes"] = 0.0

    assert [(r.section, r.verdict) for r in check.rows] == [
        ("first", "FAILED"),
        ("second", "ok"),
    ]
    assert check.rows[0].note == "RuntimeError: no kernel image (traceback: faults.txt)"
    assert "in broken" in (tmp_path / "faults.txt").read_text()
    assert modules.summary(check) == 1


def test_a_case_that_fails_becomes_a_row_and_the_section_goes_on(
    modules: Any, tmp_path: Path
) -> None:
    check = make_check(modules, tmp_path)

    def section(check: Any) -> None:
        assert check.attempt("one", lambda: 1 / 0) is None
        assert check.attempt("two", lambda: 7) == 7
        check.row("two", 7.0)

    check.section("cases", 30, section)

    assert [(r.case, r.verdict) for r in check.rows] == [("one", "FAILED"), ("two", "")]
    assert check.rows[0].note.startswith("ZeroDivisionError: division by zero")


def test_a_missed_target_and_a_nan_fail_the_check(modules: Any, tmp_path: Path) -> None:
    check = make_check(modules, tmp_path)

    check.held("share", 0.74, "of a copy", least=0.75)
    check.held("more", 0.03, "more", most=0.02, counts=False)
    check.correct("error", float("nan"), "max error", 1e-3)
    check.facts["minutes"] = 0.0

    assert [r.verdict for r in check.rows] == ["missed", "", "FAILED"]
    assert json.loads((tmp_path / "results.json").read_text())["rows"][2]["value"] is None
    assert modules.summary(check) == 1


def test_a_section_out_of_time_keeps_its_rows_and_says_so(modules: Any, tmp_path: Path) -> None:
    check = make_check(modules, tmp_path)

    def slow(check: Any) -> None:
        check.row("first point", 1.0)
        check.need_time(100.0)
        check.row("second point", 2.0)

    check.section("slow", 50, slow)

    assert [(r.case, r.verdict) for r in check.rows] == [("first point", ""), ("", "skipped")]


def test_sections_after_the_end_of_the_check_are_named_as_skipped(
    modules: Any, tmp_path: Path
) -> None:
    check = make_check(modules, tmp_path, seconds=-1.0)

    check.section("late", 30, lambda c: c.row("never"))

    assert [(r.section, r.note) for r in check.rows] == [("late", "the check's time is over")]


def test_what_cannot_be_imported_leaves_its_sections_out_by_name(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.runs, "NEEDS", ("numba", "no_such_package"))
    check = make_check(modules, tmp_path)

    check.section("recordings", 30, modules.runs.recordings)

    assert check.rows[0].verdict == "skipped"
    assert check.rows[0].note.startswith("no_such_package cannot be imported")


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        ({10: 2.0, 100: 3.0}, "at no length from 10 to 100 tokens"),
        ({10: 0.5, 100: 0.9}, "at every length from 10 to 100 tokens"),
        ({10: 2.0, 1000: 0.5}, "from 100 tokens"),
        ({10: 2.0, 1000: 0.5, 100_000: 2.0}, "from 100 tokens, up to 10,000 tokens"),
    ],
)
def test_the_crossover_is_interpolated_between_lengths(
    modules: Any, ratio: dict[int, float], said: str
) -> None:
    assert modules.model.ranges(ratio) == said


def test_without_a_card_the_check_says_so(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")

    assert modules.main(["--out", str(tmp_path)]) == 1
    assert "finds no CUDA device" in capsys.readouterr().out
