"""The table of a sweep: reading what anybody may have written, sums over seeds, fronts, and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.look import DARK, LIGHT
from analyzer.sweep_figure import (
    alt_curves,
    alt_heat,
    alt_pareto,
    curve_chart,
    figure_value,
    heat_map,
    level_label,
    pareto,
    setting_label,
)
from analyzer.sweep_table import (
    SweepTable,
    curves,
    front,
    heat,
    make_table,
    not_run,
    read_sweep,
)
from tests.builders import make_meta, make_requests, make_steps, write
from traces.errors import SweepError
from traces.sweep_schema import METADATA_KEY


def rows(*cells: tuple[Any, ...]) -> pl.DataFrame:
    """(kv_tokens, preemption_mode, seed, status, throughput, TTFT p99, preemptions) a row."""
    names = ("kv_tokens", "preemption_mode", "seed", "status", "output_tokens_per_s", "ttft_p99_s", "num_preemptions")  # fmt: skip
    frame = pl.DataFrame([dict(zip(names, c, strict=True)) for c in cells])
    return frame.with_columns(trace=pl.lit("chat"), error=pl.when(pl.col("status") == "refused").then(pl.lit("too small")))  # fmt: skip


def world() -> SweepTable:
    """Two pools, two modes, three seeds; swap in the small pool was refused."""
    return make_table(
        rows(
            (1000, "recompute", 0, "completed", 10.0, 4.0, 5),
            (1000, "recompute", 1, "completed", 12.0, 6.0, 6),
            (1000, "recompute", 2, "completed", 30.0, 9.0, 7),
            (1000, "swap", 0, "refused", None, None, None),
            (1000, "swap", 1, "refused", None, None, None),
            (1000, "swap", 2, "refused", None, None, None),
            (2000, "recompute", 0, "completed", 20.0, 2.0, 0),
            (2000, "recompute", 1, "completed", 21.0, 3.0, 0),
            (2000, "recompute", 2, "completed", 22.0, 5.0, 1),
            (2000, "swap", 0, "completed", 19.0, 3.5, 0),
            (2000, "swap", 1, "completed", 19.0, 3.5, 0),
            (2000, "swap", 2, "failed", None, None, None),
        ),
        "world",
    )


# ---- reading -----------------------------------------------------------------------------------------


def save(frame: pl.DataFrame, folder: Path, document: Any = None) -> Path:
    path = folder / "sweep.parquet"
    metadata = None if document is None else {METADATA_KEY: json.dumps(document)}
    frame.write_parquet(path, metadata=metadata)
    return path


def test_what_varied_and_what_has_figures_is_found(tmp_path: Path) -> None:
    path = save(world().frame, tmp_path, {"version": "1.0", "num_cells": 20, "sweep": {"name": "mine", "settings": {"device": "rtx-4090"}, "bounds": {"ttft_s": 2}}})  # fmt: skip

    table = read_sweep(tmp_path)

    assert table.name == "mine"
    assert table.axes == ("kv_tokens", "preemption_mode")
    assert table.figures == ("num_preemptions", "output_tokens_per_s", "ttft_p99_s")
    assert table.levels("kv_tokens") == [1000, 2000]
    assert table.fixed == {"device": "rtx-4090"}
    assert table.bounds == {"ttft_s": 2.0}
    assert table.notes == ("The sweep is not finished: 12 of 20 cells have ended. Its command goes on.",)  # fmt: skip
    assert read_sweep(path).axes == table.axes


def test_a_table_that_another_program_rewrote_is_read_without_its_metadata(
    tmp_path: Path,
) -> None:
    table = read_sweep(save(world().frame.select("trace", "status", "kv_tokens", "num_preemptions"), tmp_path), "x.parquet")  # fmt: skip

    assert table.name == "x.parquet"
    assert table.axes == ("kv_tokens",)
    assert "10 rows repeat another row's" in table.notes[-1]


def test_numbers_that_are_none_are_left_out_and_told(tmp_path: Path) -> None:
    frame = rows(
        (1000, "swap", 0, "completed", float("nan"), 1.0, 1),
        (2000, "swap", 0, "completed", float("inf"), -1.0, 1),
        (3000, "swap", 0, "completed", 5.0, 2.0, 1),
    )

    table = read_sweep(save(frame, tmp_path))

    assert table.frame["output_tokens_per_s"].to_list() == [None, None, 5.0]
    assert table.frame["ttft_p99_s"].to_list() == [1.0, None, 2.0]
    assert table.notes == (
        "2 values of output_tokens_per_s are negative or no finite numbers, and are left out.",
        "1 values of ttft_p99_s are negative or no finite numbers, and are left out.",
    )


ONE = rows((1000, "swap", 0, "completed", 5.0, 2.0, 1))
BROKEN = {
    "no status": (ONE.drop("status"), "column status: it is missing, so this is no table of a sweep"),
    "no trace": (ONE.drop("trace"), "column trace: it is missing"),
    "no figure": (ONE.select("trace", "status", "kv_tokens"), "no column holds a figure of a run"),
    "no row": (ONE.clear(), "it holds no cell"),
    "odd status": (ONE.with_columns(status=pl.lit("<b>ok</b>")), "row 1, column status: '<b>ok</b>' is none of completed, stalled"),
    "text for numbers": (ONE.with_columns(ttft_p99_s=pl.lit("fast")), "column ttft_p99_s: it holds String, not numbers"),
    "text for seeds": (ONE.with_columns(seed=pl.lit("0")), "column seed: it holds String, not Int64"),
}  # fmt: skip


@pytest.mark.parametrize(("frame", "wanted"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_with_a_table_is_said(
    tmp_path: Path, frame: pl.DataFrame, wanted: str
) -> None:
    with pytest.raises(SweepError) as caught:
        read_sweep(save(frame, tmp_path))

    assert str(caught.value).startswith("sweep.parquet")
    assert wanted in str(caught.value)


def test_files_that_are_something_else_are_said(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("INFO")
    whole = save(ONE, tmp_path).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").mkdir()
    recording = write(tmp_path / "run", meta=make_meta(), steps=make_steps([1, 2]), requests=make_requests([]))  # fmt: skip
    part = next(recording.rglob("part-*.parquet"))

    for path, wanted in (
        (tmp_path / "log.txt", "it is not a Parquet file"),
        (tmp_path / "cut.parquet", "its Parquet is damaged"),
        (tmp_path / "empty", "the folder holds no sweep.parquet"),
        (tmp_path / "gone", "it cannot be opened (No such file or directory)"),
        (part, "it is a part of a recording, not the table of a sweep. Open the recording"),
        (save(ONE, tmp_path, {"version": "9.1"}), "it follows version 9.1 of the contract of sweeps"),
    ):  # fmt: skip
        with pytest.raises(SweepError) as caught:
            read_sweep(path)
        assert wanted in str(caught.value)


def test_columns_that_cannot_tell_cells_apart_are_left_out(tmp_path: Path) -> None:
    table = read_sweep(save(ONE.with_columns(odd=pl.lit([1, 2], dtype=pl.List(pl.Int64))), tmp_path))  # fmt: skip

    assert "odd" not in table.frame.columns
    assert table.notes == ("Column odd holds List(Int64), and is left out.",)


# ---- sums --------------------------------------------------------------------------------------------


def test_a_map_holds_medians_over_seeds_and_says_where_nothing_ran() -> None:
    found = heat(world(), "kv_tokens", "preemption_mode", "ttft_p99_s", {})

    assert (found.x, found.y) == ((1000, 2000), ("recompute", "swap"))
    assert found.values == ((6.0, 3.0), (None, 3.5))
    assert found.words == (("", ""), ("refused", ""))
    assert found.num_seeds == 3


def test_a_curve_has_median_least_and_greatest_of_its_seeds() -> None:
    recompute, swap = curves(world(), "kv_tokens", "preemption_mode", "output_tokens_per_s", {})

    assert recompute.table.rows() == [(1000, 12.0, 10.0, 30.0, 3), (2000, 21.0, 20.0, 22.0, 3)]
    assert (swap.level, swap.table.rows()) == ("swap", [(2000, 19.0, 19.0, 19.0, 2)])


def test_the_front_leaves_out_what_another_choice_beats_in_both() -> None:
    table = make_table(
        rows(
            (1, "recompute", 0, "completed", 10.0, 1.0, 0),  # on it: least latency
            (2, "recompute", 0, "completed", 20.0, 2.0, 0),  # on it
            (3, "recompute", 0, "completed", 20.0, 3.0, 0),  # no more throughput, more latency
            (4, "recompute", 0, "completed", 15.0, 2.5, 0),  # beaten in both
            (5, "recompute", 0, "completed", 30.0, 9.0, 0),  # on it: most throughput
        ),
        "x",
    )

    found = front(table, "output_tokens_per_s", "ttft_p99_s", {})

    assert found.table.filter("on_front")["kv_tokens"].to_list() == [1, 2, 5]
    assert found.table.height == 5


def test_held_axes_pick_their_cells_and_default_is_a_value_too() -> None:
    table = make_table(
        rows((None, "swap", 0, "completed", 1.0, 1.0, 1), (5, "swap", 0, "completed", 2.0, 1.0, 1)), "x"
    )  # fmt: skip

    at_default = front(table, "output_tokens_per_s", "ttft_p99_s", {"kv_tokens": None})

    assert table.levels("kv_tokens") == [None, 5]
    assert at_default.table["throughput"].to_list() == [1.0]


def test_cells_without_figures_are_listed_with_their_reason() -> None:
    bad = not_run(world())

    assert bad["status"].to_list() == ["refused", "refused", "refused", "failed"]
    assert bad["error"][0] == "too small"


# ---- pictures ----------------------------------------------------------------------------------------


def test_a_map_writes_its_values_and_why_not() -> None:
    found = heat(world(), "kv_tokens", "preemption_mode", "ttft_p99_s", {})

    drawn = heat_map(found, "kv_tokens", "preemption_mode", "ttft_p99_s", LIGHT)

    assert [list(row) for row in drawn.data[0].text] == [["6.00 s", "3.00 s"], ["", "3.50 s"]]
    assert drawn.data[0].reversescale is True  # less is better, and light
    assert [a.text for a in drawn.layout.annotations] == ["refused"]
    assert drawn.layout.xaxis.ticktext == ("1,000", "2,000")
    assert alt_heat(found, "kv_tokens", "preemption_mode", "ttft_p99_s") == (
        "TTFT p99 over KV pool (tokens) (2 values) and Preemption (2 values), medians over up to 3 seeds. "
        "Least 3.00 s at 2,000 and recompute. Greatest 6.00 s at 1,000 and recompute."
    )


def test_times_that_differ_thirtyfold_are_coloured_by_their_logarithm() -> None:
    table = make_table(
        rows(*((p, m, 0, "completed", 1.0, t, 0) for p, m, t in ((1, "a", 1.0), (2, "a", 10.0), (1, "b", 100.0), (2, "b", 1000.0)))), "x"
    )  # fmt: skip

    drawn = heat_map(heat(table, "kv_tokens", "preemption_mode", "ttft_p99_s", {}), "kv_tokens", "preemption_mode", "ttft_p99_s", LIGHT)  # fmt: skip

    assert [list(row) for row in drawn.data[0].z] == [[0.0, 1.0], [2.0, 3.0]]
    assert list(drawn.data[0].colorbar.ticktext)[::2] == [
        "1.00 s",
        "10.0 s",
        "100 s",
        "1,000 s",
    ]
    assert drawn.data[0].text[1][1] == "1,000 s"


def test_a_curve_has_a_band_and_a_line_for_each_level() -> None:
    lines = curves(world(), "kv_tokens", "preemption_mode", "output_tokens_per_s", {})

    drawn = curve_chart(lines, "kv_tokens", "preemption_mode", "output_tokens_per_s", DARK)

    low, high, line = drawn.data[:3]
    assert (list(low.y), list(high.y), list(line.y)) == ([10, 20], [30, 22], [12, 21])
    assert [t.name for t in drawn.data if t.showlegend] == ["recompute", "swap"]
    assert line.text[0] == "recompute: 1,000: median 12.0 /s, 10.0 /s to 30.0 /s over 3 seeds"
    assert "Preemption swap: 19.0 /s at 2,000" in alt_curves(lines, "kv_tokens", "preemption_mode", "output_tokens_per_s")  # fmt: skip


def test_the_front_is_drawn_apart_with_the_spread_over_seeds() -> None:
    found = front(world(), "output_tokens_per_s", "ttft_p99_s", {})

    drawn = pareto(found, LIGHT)

    rest, best = drawn.data
    assert list(best.x) == [21.0]
    assert list(rest.x) == [19.0, 12.0]
    assert list(best.error_y.array) == [2.0]
    assert list(best.error_y.arrayminus) == [1.0]
    assert "On the front, 1: KV pool (tokens) 2,000, Preemption recompute: 21.0 /s, 3.00 s" in alt_pareto(found)  # fmt: skip


def test_names_from_a_file_are_never_markup() -> None:
    frame = rows((1, "<img src=x>", 0, "completed", 1.0, 1.0, 1), (2, "<img src=x>", 0, "completed", 2.0, 1.0, 1), (1, "b", 0, "completed", 2.0, 1.0, 1))  # fmt: skip
    table = make_table(frame, "x")

    drawn = curve_chart(curves(table, "kv_tokens", "preemption_mode", "num_preemptions", {}), "kv_tokens", "preemption_mode", "num_preemptions", LIGHT)  # fmt: skip
    mapped = heat_map(heat(table, "kv_tokens", "preemption_mode", "num_preemptions", {}), "kv_tokens", "preemption_mode", "num_preemptions", LIGHT)  # fmt: skip

    assert "<img" not in drawn.to_json()
    assert "<img" not in mapped.to_json()


def test_values_are_written_with_units() -> None:
    assert figure_value("recomputed_frac", 0.0135) == "1.35 %"
    assert figure_value("ttft_p99_s", 0.0123) == "12.3 ms"
    assert figure_value("output_tokens_per_s", 559.6) == "560 /s"
    assert figure_value("num_preemptions", 1234) == "1,234"
    assert figure_value("num_preemptions", None) == "—"
    assert [level_label(v) for v in (None, True, 41408, 0.92, "swap")] == ["default", "on", "41,408", "0.92", "swap"]  # fmt: skip
    assert setting_label("max_num_seqs") == "Max num seqs"
