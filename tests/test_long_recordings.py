"""Long recordings are drawn, worked out and shown as if their tables had been read."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal
from streamlit.testing.v1 import AppTest

from analyzer import align, figures, run_figures, run_files
from analyzer.aligned import Aligned, Alignment, data_table, range_sums
from analyzer.look import LIGHT
from analyzer.marks import Band, Bars, Line
from analyzer.pages.parts import runs, working_out
from analyzer.pages.parts.store import Store
from analyzer.run import Run
from analyzer.run_figures import (
    comparison_of,
    figures_of,
    is_worked_out,
    preemptions_of,
    ttft_of,
)
from analyzer.run_files import RunFiles
from analyzer.timeline_rows import ROWS, timeline_rows
from analyzer.timeline_view import View
from tests.builders import POOL, make_meta, record, write
from tests.long_worlds import NUM_STEPS, finished, keep, tables
from traces import column_groups
from traces.mapped_tables import Keep
from traces.recording import open_recording

ROOT = Path(__file__).parents[1]


# ---- drawn as if they had been read -------------------------------------------------------------


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """One recording, kept and read; columns are looked at in several pieces."""
    monkeypatch.setattr(column_groups, "PIECE", 512)
    monkeypatch.setattr(align, "PIECE", 300)
    path = write(tmp_path / "r", rows_per_part=700, **tables())
    long = Run("long", open_recording(path, keep=keep(tmp_path / "kept")))
    return long, Run("short", open_recording(path))


PARTS = ((0.0, 1.0), (0.2, 0.7), (0.5, 0.51), (0.9, 1.0), (0.5, 0.5005))


@pytest.mark.parametrize("by", ["time", "step", "progress"])
def test_every_row_of_a_long_run_equals_that_of_a_short_one(
    both: tuple[Run, Run], by: Alignment
) -> None:
    for _ in range(2):  # made, then as it was kept
        long, short = (Aligned({"A": run}, by) for run in both)
        np.testing.assert_array_equal(long.edges["A"], short.edges["A"])
        for low, high in PARTS:
            shown = (long.full[1] * low, long.full[1] * high)
            ours, theirs = (timeline_rows(p, shown, list(ROWS)) for p in (long, short))

            drawn = [
                figures.timeline(rows, long.axis(shown), long.names, LIGHT).to_json()
                for rows in (ours, theirs)
            ]
            assert drawn[0] == drawn[1]
            assert range_sums(long, shown) == range_sums(short, shown)
            assert data_table(long, shown).equals(data_table(short, shown))
        both = (Run("again", both[0].recording), both[1])


@pytest.mark.parametrize("by", ["time", "step", "progress"])
def test_means_and_sums_equal_those_of_all_steps(both: tuple[Run, Run], by: Alignment) -> None:
    pair = Aligned({"A": both[0]}, by)
    columns = ("used_blocks", "num_waiting", "duration_s", "num_preempted", "decode_tokens")

    for low, high in PARTS:
        shown = (pair.full[1] * low, pair.full[1] * high)
        found = pair.in_buckets(columns, shown, 50)
        wanted = align.runs_on_grid(
            {"a": (both[1].steps, both[1].requests)},
            by=by,
            columns=columns,
            start=shown[0] / pair.scale,
            end=shown[1] / pair.scale,
            points=50,
        )

        assert found["x_start"].to_list() == wanted["x_start"].to_list()
        for name in columns[:3]:
            np.testing.assert_allclose(
                found[f"a_{name}"], wanted[f"a_{name}"], rtol=1e-6, atol=1e-9
            )
        assert found["a_decode_tokens"].sum() == pytest.approx(wanted["a_decode_tokens"].sum())
        if by != "progress":  # there a percent's rounding may move a step over a bucket's edge
            assert found["a_num_preempted"].to_list() == wanted["a_num_preempted"].to_list()
            assert found["a_decode_tokens"].to_list() == wanted["a_decode_tokens"].to_list()


def full_band(
    starts: np.ndarray, values: np.ndarray, cuts: np.ndarray, end: float
) -> tuple[list[float], list[float]]:
    """Least and greatest value of each stretch, the one that lasts into it included."""
    low, high = [], []
    for a, b in zip(cuts, [*cuts[1:], end], strict=True):
        inside = (starts >= a) & (starts < b)
        holding = max(int((starts <= a).sum()) - 1, 0)
        here = [*values[inside], values[holding]]
        low.append(float(min(here)))
        high.append(float(max(here)))
    return low, high


def test_the_band_and_the_longest_steps_equal_a_look_at_every_step(
    both: tuple[Run, Run],
) -> None:
    pair = Aligned({"A": both[0]}, "time")
    steps = both[1].steps
    starts, used = steps["t_start_s"].to_numpy(), steps["used_blocks"].to_numpy()

    for low, high in PARTS:
        shown = (pair.full[1] * low, pair.full[1] * high)
        view = View(pair, shown, ("blocks",))
        band, longest = view.band("A", "used_blocks", "blocks"), view.longest_steps("A")

        assert isinstance(band, Band)
        assert isinstance(longest, Line)
        wanted = full_band(starts, used, band.x, shown[1])
        assert (band.low.tolist(), band.high.tolist()) == wanted
        inside = steps.filter(pl.col("t_start_s").is_between(*shown))["duration_s"]
        if inside.len():
            assert longest.y.max() == np.float32(inside.max()) * np.float32(1e3)  # type: ignore[arg-type]


def test_preemptions_survive_every_zoom(both: tuple[Run, Run]) -> None:
    pair = Aligned({"A": both[0]}, "time")
    steps = both[1].steps
    when = steps.filter(pl.col("num_preempted") > 0)["t_start_s"].to_list()

    assert len(when) > 5
    for at in when[:5]:
        for share in (1.0, 0.1, 0.01, 0.001):
            width = pair.full[1] * share
            shown = pair.clip((max(0.0, at - width / 2), at + width / 2))
            (row,) = timeline_rows(pair, shown, ["preemptions"])
            num = sum(shown[0] <= t <= shown[1] for t in when)
            assert row.note == f"A {num}"
            bars = [m for m in row.marks if isinstance(m, Bars)]
            assert sum(int(m.y.sum()) for m in bars) == num


def test_four_times_the_steps_are_no_larger_picture(tmp_path: Path) -> None:
    sizes = []
    for num_steps in (2_000, 8_000):
        path = write(tmp_path / str(num_steps), **tables(num_steps))
        run = Run("r", open_recording(path, keep=keep(tmp_path / f"kept-{num_steps}")))
        pair = Aligned({"A": run}, "time")
        rows = timeline_rows(pair, pair.full, list(ROWS))
        figure = figures.timeline(rows, pair.axis(pair.full), pair.names, LIGHT)
        sizes.append(len(figure.to_json()))

    assert sizes[1] < sizes[0] * 1.1


def test_a_run_whose_folder_was_removed_meanwhile_is_still_drawn(tmp_path: Path) -> None:
    path = write(tmp_path / "r", **tables())
    run = Run("r", open_recording(path, keep=keep(tmp_path / "kept")))
    shutil.rmtree(tmp_path / "kept")

    pair = Aligned({"A": run}, "progress")
    rows = timeline_rows(pair, pair.full, list(ROWS))

    assert rows[0].key == "blocks"
    assert run.column("decode_tokens").sum(0, NUM_STEPS) == run.steps["decode_tokens"].sum()


def test_a_run_without_steps_has_no_edges_and_nothing_to_draw(tmp_path: Path) -> None:
    run = Run("r", record(tmp_path / "r"))

    for by in ("time", "step", "progress"):
        pair = Aligned({"A": run}, by)
        rows = timeline_rows(pair, pair.full, ["blocks", "step", "preemptions", "tokens"])
        assert [row.key for row in rows] == ["blocks", "step", "preemptions", "tokens-A"]


# ---- what is worked out -------------------------------------------------------------------------


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[tuple[Run, Run], tuple[Run, Run]]:
    """Two recordings, kept and read."""
    found = []
    for name, mode in (("a", "recompute"), ("b", "swap")):
        meta = make_meta(settings={"num_gpu_blocks": POOL + 1, "preemption_mode": mode})
        path = write(tmp_path / name, meta=meta, **finished())
        kept = open_recording(path, keep=Keep(tmp_path / f"kept-{name}", long_rows=100))
        found.append((Run(name, kept), Run(name, open_recording(path))))
    (a, short_a), (b, short_b) = found
    return (a, b), (short_a, short_b)


def test_a_kept_comparison_equals_one_that_is_worked_out(
    pairs: tuple[tuple[Run, Run], tuple[Run, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (a, b), (short_a, short_b) = pairs
    wanted = comparison_of(short_a, short_b)

    assert not is_worked_out(a, b)
    first = comparison_of(a, b)
    monkeypatch.setattr(run_figures, "compare", lambda *_, **__: pytest.fail("compared again"))
    again = comparison_of(Run("a", a.recording), Run("b", b.recording))

    assert_frame_equal(again.table, first.table, check_exact=True)
    assert (again.a, again.b, again.delta) == (first.a, first.b, first.delta)
    for found in (first, again):  # to the rounding of sums of real numbers
        assert_frame_equal(found.table, wanted.table, rel_tol=1e-12)
        assert found.preempted.equals(wanted.preempted, null_equal=True)
        for name in ("notes", "missing", "estimated"):
            assert getattr(found, name) == getattr(wanted, name)
        assert found.verdict.text == wanted.verdict.text
        assert found.rules.reasons == wanted.rules.reasons
    assert wanted.preempted.height == 1


def test_kept_preemptions_figures_and_times_equal_those_that_are_worked_out(
    pairs: tuple[tuple[Run, Run], tuple[Run, Run]],
) -> None:
    (a, b), (short, _) = pairs

    for _ in range(2):
        assert preemptions_of(a).equals(preemptions_of(short), null_equal=True)
        assert figures_of(a)["num_preemptions"] == figures_of(short)["num_preemptions"]
        assert figures_of(a)["ttft_s"] == figures_of(short)["ttft_s"]
        assert ttft_of(a)[0].tolist() == ttft_of(short)[0].tolist()
        assert ttft_of(a)[1] == ttft_of(short)[1] == NUM_STEPS // 20
    assert is_worked_out(a)
    assert not is_worked_out(a, b)


def test_what_other_code_made_is_not_read(
    pairs: tuple[tuple[Run, Run], tuple[Run, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ((a, _), _) = pairs
    assert a.files is not None
    figures_of(a)
    before = a.files.folder

    monkeypatch.setattr(run_files, "code_digest", lambda: "of other code")
    anew = Run("a", a.recording)
    assert anew.files is not None
    assert not is_worked_out(anew)
    figures_of(anew)

    assert not before.exists()
    assert anew.files.folder.exists()


# ---- the page ---------------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AppTest]:
    """The app with two recordings that count as long."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runs, "LONG_ROWS", 100)
    store = Store(tmp_path / "cache")
    refs = []
    for name, mode in (("a", "recompute"), ("b", "swap")):
        meta = make_meta(settings={"num_gpu_blocks": POOL + 1, "preemption_mode": mode})
        path = write(tmp_path / name, meta=meta, **finished())
        refs.append(f"file:{store.link(path).id}")

    def opened() -> AppTest:
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
        for key, value in zip(("source", "a", "b"), ("Recordings", *refs), strict=True):
            app.query_params[key] = value
        return app.run()

    return opened


def said(app: AppTest) -> str:
    kinds = ("markdown", "caption", "info", "error")
    return "\n".join(str(e.value) for kind in kinds for e in app.get(kind))


def test_the_timeline_of_long_runs_comes_before_what_takes_time(
    page: Callable[[], AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    true = run_figures.summarize
    monkeypatch.setattr(run_figures, "summarize", lambda r: gate.wait(60) and true(r))

    app = page()

    assert not app.exception
    assert not app.error
    (figure,) = [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]
    assert "KV blocks in use" in json.dumps(figure)
    assert "Working out verdict, figures and preemptions." in said(app)

    gate.set()
    for _ in range(100):
        app.run()
        if len(app.get("plotly_chart")) == 2:
            break
        time.sleep(0.1)

    assert "Working out" not in said(app)
    assert "Preemptions in the shown range" in [e.value for e in app.subheader]
    assert "no difference" in said(app)

    monkeypatch.setattr(run_figures, "summarize", lambda _: pytest.fail("worked out again"))
    again = page()
    assert len(again.get("plotly_chart")) == 2


def test_nothing_is_worked_out_before_the_timeline_is_there(
    page: Callable[[], AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    true, true_work = figures.timeline, working_out.work_out
    monkeypatch.setattr(working_out, "is_for_apart", lambda _: False)

    def drawn(*given: Any, **options: Any) -> Any:
        order.append("timeline")
        return true(*given, **options)

    def worked_out(*given: Any) -> bool:
        order.append("work")
        return true_work(*given)

    monkeypatch.setattr(figures, "timeline", drawn)
    monkeypatch.setattr(working_out, "work_out", worked_out)

    app = page()

    assert not app.exception
    assert order[:2] == ["timeline", "work"]


def test_what_no_disk_takes_is_shown_all_the_same(
    page: Callable[[], AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFiles, "_write", lambda *_: False)

    app = page()
    for _ in range(100):
        if len(app.get("plotly_chart")) == 2:
            break
        time.sleep(0.1)
        app.run()

    assert not app.exception
    assert "Working out" not in said(app)
    assert len(app.get("plotly_chart")) == 2


def test_working_out_can_be_stopped_and_taken_up_again(
    page: Callable[[], AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    true = run_figures.summarize
    monkeypatch.setattr(run_figures, "summarize", lambda r: gate.wait(60) and true(r))
    app = page()

    app.button(key="cancel_working_out").click().run()
    assert "were not worked out" in said(app)
    assert len(app.get("plotly_chart")) == 1

    gate.set()
    app.button(key="work_out").click().run()
    for _ in range(100):
        app.run()
        if len(app.get("plotly_chart")) == 2:
            break
        time.sleep(0.1)
    assert "no difference" in said(app)


@pytest.mark.parametrize(("every_s", "num_drawn"), [(0.0, range(3, 99)), (60.0, range(1, 2))])
def test_the_bar_of_a_first_opening_is_not_drawn_more_often_than_it_can_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, num_drawn: range
) -> None:
    drawn: list[str] = []

    class Bar:
        def progress(self, done_frac: float, text: str) -> None:
            drawn.append(text)

        def empty(self) -> None:
            pass

    monkeypatch.setattr(runs.st, "progress", lambda *_, **__: Bar())
    monkeypatch.setattr(runs, "LONG_ROWS", 100)
    monkeypatch.setattr(runs, "BAR_EVERY_S", every_s)
    path = write(tmp_path / "r", rows_per_part=500, **finished())

    runs._check_large(path, "r", tmp_path / "kept")

    assert len(drawn) in num_drawn
    assert "Checking every row of r, once" in drawn[0]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], int]:
    """Breaks or mends the last event of the second recording, which counts as large; gives its row."""
    monkeypatch.setattr(runs, "LARGE_BYTES", 10)
    part = tmp_path / "b" / "events" / "part-00000.parquet"

    def write_it(is_broken: bool) -> int:
        found = pq.read_table(part)
        steps = found["step"].to_pylist()
        steps[-1] = 0 if is_broken else steps[-2]
        column = pa.array(steps, pa.int64())
        pq.write_table(found.set_column(0, found.schema.field("step"), column), part)
        return len(steps)

    return write_it


def test_a_broken_long_recording_says_where_on_the_page(
    page: Callable[[], AppTest], broken: Callable[[bool], int], tmp_path: Path
) -> None:
    row = broken(True)

    app = page()

    assert f"table events, row {row}, column step" in app.error[0].value.replace("\\", "")
    kept = tmp_path / "cache" / "tables"
    assert [p.name for p in kept.iterdir() if p.name.startswith(".")] == []


def test_a_fault_is_told_again_without_another_look_until_the_files_change(
    page: Callable[[], AppTest],
    broken: Callable[[bool], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(True)
    app = page()
    looks = []
    true = runs.open_recording
    monkeypatch.setattr(
        runs, "open_recording", lambda *given: looks.append(given[1]) or true(*given)
    )

    said_first = app.error[0].value
    app.run()
    assert app.error[0].value == said_first
    assert "b" not in looks

    broken(False)
    app.run()
    assert not app.error
    assert "b" in looks
