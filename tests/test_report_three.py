"""Reports of three runs, and of long ones whose figures are kept."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analyzer import report_contents, run_figures
from analyzer.__main__ import main
from analyzer.report import card, html
from analyzer.report_contents import Ask, Contents, _costliest, _of_third, gather
from analyzer.report_evidence import evidence
from analyzer.report_setup import Setup
from analyzer.report_tables import cards, figures_table, preempted_tables
from analyzer.report_words import _together, card_setup
from analyzer.run import Run
from analyzer.verdict import Verdict
from tests.report_builders import pair_paths, triple_paths
from tests.test_report import own_part, words_of
from traces.errors import SettingsError
from traces.mapped_tables import Keep
from traces.recording import open_recording


@pytest.fixture
def three(tmp_path: Path) -> Contents:
    a, b, c = (Run(p.name, open_recording(p)) for p in triple_paths(tmp_path))
    return gather(a, b, c=c)


# ---- three runs -----------------------------------------------------------------------------------


def test_a_report_of_three_runs_holds_the_third_everywhere(three: Contents) -> None:
    words = words_of(html(three))

    assert "A recompute against B swap and C cheapest" in words
    assert words.count("C cheapest") == 4  # title twice, swatch, head of the set-up
    assert (
        "Under the same conditions, there is no difference between A (recompute) and C (cheapest)"
        in words
    )
    assert "C preempts once" in words
    assert "preemption_mode cheapest (default recompute)" in words
    assert "C (cheapest): its only preemption." in words
    assert evidence(three.runs["C"].recording).digest in words
    assert "Six figures of runs B and C against run A" in html(three)


def test_each_card_has_the_third_runs_figure_and_its_change_from_a(three: Contents) -> None:
    duration, *_ = cards(three)

    assert duration.title == "Duration"
    assert dict(duration.values) == {"A": "9.00 s", "B": "9.00 s", "C": "9.00 s"}
    assert {side: c.text for side, c in duration.changes.items()} == {
        "B": "no difference",
        "C": "no difference",
    }


def test_the_table_of_figures_ends_with_the_third_run(three: Contents) -> None:
    header, lines = figures_table(three)

    assert header[-3:] == ["C", "Change", "C is"]
    duration = next(line for line in lines if line.cells[0] == "Duration")
    assert duration.cells[-3:] == ["9.00 s", "0 %", "no difference"]
    assert {len(line.cells) for line in lines} == {10}


def test_a_preemption_says_what_became_of_the_request_in_both_others(three: Contents) -> None:
    a, b, c = preempted_tables(three)

    assert a.header[-2:] == ["In B", "In C"]
    assert b.header[-2:] == ["In A", "In C"]
    assert c.header[-2:] == ["In A", "In B"]
    assert a.lines[0].cells[-2:] == ["1 ×", "1 ×"]


def test_the_card_of_three_names_all_sides_and_all_recordings(three: Contents) -> None:
    document = own_part(card(three))

    words = words_of(document)
    assert "Duration B 9.00 s A 9.00 s no difference C 9.00 s no difference" in words
    digests = [evidence(run.recording).digest[:8] for run in three.runs.values()]
    assert f"recordings {' / '.join(digests)}" in words
    assert 'class="paper three"' in document
    assert "swatch c" in document


def test_set_up_says_once_what_two_of_three_share() -> None:
    row = Setup(
        "Pool", {"A": "8 blocks", "B": "8 blocks; host 4", "C": "8 blocks; host 4; more"}
    )

    assert _together(row, "; ") == "8 blocks\nC: more\nB, C: host 4"


def test_the_cards_set_up_of_three_modes_is_short(three: Contents) -> None:
    said = dict(card_setup(three))

    assert said["Settings"].split("\n")[1:3] == [
        "B: preemption_mode swap (default recompute)",
        "C: preemption_mode cheapest (default recompute)",
    ]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("10 blocks", "Under the same conditions, C (swap) finishes 5 % sooner."),
        ("20 blocks", "At 20 blocks, in modelled time, C (swap) finishes 5 % sooner."),
    ],
)
def test_a_condition_is_said_once(condition: str, said: str) -> None:
    def verdict(at: str) -> Verdict:
        text = f"At {at}, in modelled time, B (swap) finishes 5 % sooner."
        return Verdict(text, "", "B", at, ())

    assert _of_third(verdict("10 blocks"), verdict(condition)) == said


def test_three_folders_on_the_command_line_make_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    a, b, c = triple_paths(tmp_path)
    out = tmp_path / "r.html"

    assert main(["report", str(a), str(b), str(c), "--out", str(out)]) == 0

    assert "A recompute against B swap and C cheapest" in words_of(out.read_text("utf-8"))
    assert list((tmp_path / "cache" / "tables").iterdir()) == []


def test_the_third_folder_is_not_written_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    a, b, c = triple_paths(tmp_path)

    assert main(["report", str(a), str(b), str(c), "--out", str(c / "r.html")]) == 2
    assert "that is only read" in capsys.readouterr().err


def test_where_there_is_no_cache_folder_the_command_works_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "file"))
    a, _ = pair_paths(tmp_path)

    assert main(["report", str(a), "--out", str(tmp_path / "r.html")]) == 0


# ---- long runs ------------------------------------------------------------------------------------


def test_a_report_of_kept_runs_works_nothing_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = triple_paths(tmp_path)
    short = html(gather(*(Run(p.name, open_recording(p)) for p in paths[:2])))

    def opened() -> list[Run]:
        return [
            Run(p.name, open_recording(p, keep=Keep(tmp_path / f"kept-{p.name}", long_rows=1)))
            for p in paths
        ]

    a, b, c = opened()
    assert a.is_long
    first, alone = html(gather(a, b, c=c)), html(gather(a))
    assert words_of(html(gather(a, b))) == words_of(short)

    def again(*_: object, **__: object) -> None:
        pytest.fail("worked out again")

    for name in ("summarize", "told", "compare"):
        monkeypatch.setattr(run_figures, name, again)
    for name in ("describe_run", "describe_spending"):
        monkeypatch.setattr(report_contents, name, again)
    a, b, c = opened()

    assert html(gather(a, b, c=c)) == first
    assert html(gather(a)) == alone


def test_another_seed_is_not_answered_from_what_is_kept(tmp_path: Path) -> None:
    a, b, _ = (
        Run(p.name, open_recording(p, keep=Keep(tmp_path / f"kept-{p.name}", long_rows=1)))
        for p in triple_paths(tmp_path)
    )

    gather(a, b, Ask(seed=1))

    assert a.files is not None
    assert list(a.files.folder.glob("against-*")) == []


def listed(costs: list[float | None]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows and table of preemptions of those costs, a second apart, of requests "r00", "r01"..."""
    num = len(costs)
    table = pl.DataFrame(
        {
            "t_s": np.arange(num, dtype=np.float64),
            "request_id": [f"r{i:02}" for i in range(num)],
            "direct_cost_s": pl.Series(costs, dtype=pl.Float64),
        }
    )
    return table.select("t_s", "direct_cost_s").with_row_index("row"), table


def test_the_costliest_come_first_and_those_of_unknown_cost_last() -> None:
    costs = [1.0, None, 3.0, 2.0, None, 5.0, 4.0, 6.0, 7.0]

    found = _costliest(*listed(costs))

    assert found["request_id"].to_list() == ["r08", "r07", "r05", "r06", "r02", "r03", "r00", "r01"]  # fmt: skip


def test_of_many_equal_costs_the_first_are_listed() -> None:
    rows, table = listed([1.0] * 40)
    shuffled = rows.sample(fraction=1.0, shuffle=True, seed=3)

    found = _costliest(shuffled, table)

    assert found["request_id"].to_list() == [f"r{i:02}" for i in range(8)]


def test_of_one_moment_and_cost_ids_decide() -> None:
    rows, table = listed([1.0] * 12)
    table = table.with_columns(t_s=pl.lit(0.5), request_id=table["request_id"].reverse())
    rows = rows.with_columns(t_s=pl.lit(0.5))

    assert _costliest(rows, table)["request_id"].to_list() == [f"r{i:02}" for i in range(8)]


def test_what_was_not_recorded_of_a_preemption_is_a_dash(tmp_path: Path) -> None:
    unseen = ["events.free_blocks_before", "events.blocks", "events.mode_asked"]
    a, _ = pair_paths(tmp_path, not_recorded=unseen)

    (table,) = preempted_tables(gather(Run("a", open_recording(a))))

    cells = dict(zip(table.header, table.lines[0].cells, strict=True))
    assert (cells["Free"], cells["Blocks"], cells["As"]) == ("—", "—", "recompute")


def test_a_range_outside_three_runs_is_refused(three: Contents) -> None:
    a, b, c = three.runs.values()

    with pytest.raises(SettingsError, match=re.escape("begins at 9 s")):
        gather(a, b, Ask(shown=(9.0, 12.0)), c=c)
