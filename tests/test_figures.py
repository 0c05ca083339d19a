"""What the timeline says: rows, labels, colours, readings and words."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from analyzer.figures import (
    CONFIG,
    Capacity,
    Readings,
    Row,
    Shade,
    XAxis,
    alt_text,
    for_export,
    shares_below,
    timeline,
)
from analyzer.look import DARK, LIGHT, Side, gib, seconds, three_digits
from analyzer.marks import Areas, Band, Bars, Difference, Line, Mark

NAMES: dict[Side, str] = {"A": "recompute", "B": "swap"}
X = np.array([0.0, 1.0, 2.0])
AXIS = XAxis("Time since the start", "s", (0.0, 3.0), np.array([0.5, 1.5]))


def make_row(*marks: Mark, **changes: object) -> Row:
    """A row of blocks with the given marks, or with one line of A."""
    drawn = marks or (Line("KV blocks · A", X, np.array([1.0, 4.0, 2.0]), "A"),)
    return Row(
        **{
            "key": "blocks",
            "title": "KV blocks in use",
            "unit": "blocks",
            "marks": drawn,
            **changes,
        }
    )  # type: ignore[arg-type]


def traces_named(fig: go.Figure, name: str) -> list[go.Scatter]:
    return [t for t in fig.data if t.name == name]


def test_rows_share_one_x_axis_and_lie_over_each_other() -> None:
    fig = timeline([make_row(), make_row(), make_row()], AXIS, NAMES, LIGHT)

    domains = [fig.layout[name].domain for name in ("yaxis", "yaxis2", "yaxis3")]
    assert all(high > low for low, high in domains)
    assert domains[0][0] > domains[1][1] > domains[1][0] > domains[2][1]
    assert fig.layout.xaxis.anchor == "y3"
    assert {t.xaxis for t in fig.data} == {None, "x2"}
    assert fig.layout.xaxis2.matches == "x"  # labels under the first row


def test_the_cursor_goes_through_all_rows() -> None:
    fig = timeline([make_row(), make_row()], AXIS, NAMES, LIGHT)

    assert fig.layout.hovermode == "x unified"
    assert fig.layout.hoversubplots == "axis"
    assert fig.layout.xaxis.spikemode == "across"


def test_a_is_solid_and_b_is_dashed() -> None:
    marks = (Line("a", X, X, "A"), Line("b", X, X, "B"))

    fig = timeline([make_row(*marks)], AXIS, NAMES, LIGHT)

    a, b = traces_named(fig, "a")[0], traces_named(fig, "b")[0]
    assert (a.line.color, a.line.dash) == ("#0072B2", "solid")
    assert (b.line.color, b.line.dash) == ("#E69F00", "5px,2px")


def test_state_is_drawn_as_steps_in_svg() -> None:
    fig = timeline([make_row()], AXIS, NAMES, LIGHT)

    line = traces_named(fig, "KV blocks · A")[0]
    assert line.type == "scatter"
    assert line.line.shape == "hv"


def test_bars_of_b_are_hatched_and_stand_beside_those_of_a() -> None:
    counts = np.array([3.0, 0.0, 1.0])
    marks = (
        Bars("a", X, 1.0, counts, "A", (0, 2)),
        Bars("b", X, 1.0, counts, "B", (1, 2)),
    )

    fig = timeline([make_row(*marks)], AXIS, NAMES, LIGHT)

    a, b = traces_named(fig, "a")[0], traces_named(fig, "b")[0]
    assert a.marker.pattern.shape is None
    assert b.marker.pattern.shape == "/"
    assert b.marker.pattern.bgcolor == b.marker.color == "#E69F00"
    assert list(a.x) == [0.25, 1.25, 2.25]
    assert list(b.x) == [0.75, 1.75, 2.75]


def test_a_difference_has_the_colour_of_the_side_that_is_higher() -> None:
    fig = timeline([make_row(Difference(X, np.array([2.0, -3.0, 0.0])))], AXIS, NAMES, LIGHT)

    above, below = traces_named(fig, "B − A")
    assert list(above.y) == [2.0, 0.0, 0.0]
    assert list(below.y) == [0.0, -3.0, 0.0]
    assert above.fillcolor == "rgba(230,159,0,0.75)"
    assert below.fillcolor == "rgba(0,114,178,0.75)"


def test_areas_stack_within_their_row_and_side() -> None:
    layers = {"decode": X, "recomputed": X}

    fig = timeline([make_row(), make_row(Areas(X, layers, "B"))], AXIS, NAMES, LIGHT)  # type: ignore[arg-type]

    stacked = [t for t in fig.data if t.stackgroup]
    assert [t.name for t in stacked] == ["decode · B", "recomputed · B"]
    assert {t.stackgroup for t in stacked} == {"y2B"}


def test_the_box_of_the_cursor_has_one_line_a_row_and_nothing_else_answers() -> None:
    blocks = {"A": np.array([1.0, 2.0]), "B": np.array([3.0, 4.0])}
    waiting = {"A": np.array([7.0, 8.0])}
    rows = [
        make_row(readings=Readings("KV blocks", blocks, "blocks")),
        make_row(readings=Readings("Waiting", waiting, "", ",.1f")),
    ]

    fig = timeline(rows, AXIS, NAMES, LIGHT)

    talking = [t for t in fig.data if t.hoverinfo != "skip"]
    assert len(talking) == 1
    assert talking[0].hovertemplate == (
        "<b>KV blocks</b>  A %{customdata[0]:,.0f} · B %{customdata[1]:,.0f} blocks"
        "<br><b>Waiting</b>  A %{customdata[2]:,.1f}<extra></extra>"
    )
    assert talking[0].customdata.tolist() == [[1.0, 3.0, 7.0], [2.0, 4.0, 8.0]]
    assert talking[0].x.tolist() == [0.5, 1.5]


def test_the_box_of_the_cursor_leaves_out_what_is_not_known_there() -> None:
    axis = XAxis("Time since the start", "s", (0.0, 3.0), np.array([0.5, 1.5, 2.5]))
    blocks = {"A": np.array([1.0, np.nan, np.nan]), "B": np.array([3.0, 4.0, np.nan])}

    fig = timeline(
        [make_row(readings=Readings("KV blocks", blocks, "blocks"))], axis, NAMES, LIGHT
    )

    (told,) = (
        t for t in fig.data if t.hoverinfo != "skip"
    )  # two would both answer near an end
    assert told.x.tolist() == [0.5, 1.5]  # at 2.5 nothing is known
    assert list(told.hovertemplate) == [
        "<b>KV blocks</b>  A %{customdata[0]:,.0f} · B %{customdata[1]:,.0f} blocks<extra></extra>",
        "<b>KV blocks</b>  B %{customdata[1]:,.0f} blocks<extra></extra>",
    ]


def test_plotly_finds_no_fault_in_a_timeline() -> None:
    marks: tuple[Mark, ...] = (
        Line("a", X, X, "A"), Areas(X, {"decode": X}, "B"), Bars("b", X, 1.0, X, "C", (2, 3)),
        Difference(X, X), Band("c", X, X, X, "B"),
    )  # fmt: skip
    values = {"A": np.array([1.0, 2.0])}
    axis = XAxis("Steps", "", (0.0, 3.0), np.array([0.5, 1.5]), shades=[Shade(2, 3, "over")])
    rows = [
        make_row(
            *marks,
            y_max=9,
            capacity=[Capacity(8, "pool")],
            readings=Readings("KV blocks", values, "blocks"),
        ),
        Row("preemptions", "Preemptions", "per 1 s", [], empty="no preemption here"),
    ]

    names: dict[Side, str] = {**NAMES, "C": "offload"}
    checked, shown = (
        timeline(rows, axis, names, DARK, checked=c).to_dict() for c in (True, False)
    )

    del checked["layout"]["template"]
    assert holds(
        go.Figure(shown).to_dict(), checked
    )  # Plotly raises where it knows a property not


def holds(whole: object, part: object) -> bool:
    """Whether everything in `part` stands in `whole`."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and holds(whole[name], value) for name, value in part.items())
    if isinstance(part, list | tuple) and isinstance(whole, list | tuple):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return whole == part


def test_capacity_is_a_line_a_band_and_a_label() -> None:
    row = make_row(capacity=[Capacity(2048, "pool of 2,048 blocks")])

    fig = timeline([row], AXIS, NAMES, LIGHT)

    band, line = fig.layout.shapes
    assert (band.y0, band.y1) == (pytest.approx(2007.04), 2048)
    assert (line.y0, line.y1) == (2048, 2048)
    assert "pool of 2,048 blocks" in [a.text for a in fig.layout.annotations]


def test_a_row_says_its_title_its_unit_and_its_note_above_it() -> None:
    fig = timeline([make_row(note="shaded from 98 % full")], AXIS, NAMES, LIGHT)

    title = fig.layout.annotations[0]
    assert "<b>KV blocks in use</b>" in title.text
    assert "blocks · shaded from 98 % full" in title.text
    assert (title.x, title.yanchor) == (0, "bottom")


def test_an_empty_row_says_why_it_is_empty() -> None:
    row = Row("preemptions", "Preemptions", "per 1 s", [], empty="no preemption here")

    fig = timeline([row], AXIS, NAMES, LIGHT)

    assert "no preemption here" in [a.text for a in fig.layout.annotations]
    assert fig.layout.yaxis.showticklabels is False


def test_the_time_after_the_shorter_run_is_set_apart() -> None:
    axis = XAxis("Time", "s", (0.0, 10.0), shades=[Shade(6.0, 10.0, "A has ended")])

    fig = timeline([make_row()], axis, NAMES, LIGHT)

    assert [(s.x0, s.x1) for s in fig.layout.shapes] == [(6.0, 10.0)]
    label = next(a for a in fig.layout.annotations if a.text == "A has ended")
    # not where the pool's size is written
    assert (label.yref, label.y, label.yanchor) == ("y domain", 0, "bottom")


def test_a_shade_outside_the_shown_range_is_not_drawn() -> None:
    axis = XAxis("Time", "s", (0.0, 5.0), shades=[Shade(6.0, 10.0, "A has ended")])

    fig = timeline([make_row()], axis, NAMES, LIGHT)

    assert len(fig.layout.shapes) == 0


@pytest.mark.parametrize(
    ("top", "unit", "expected"),
    [(40.0, "requests", ",d"), (2.0, "%", ",~r"), (250_000.0, "tokens per s", ".3~s")],
)
def test_ticks_fit_the_size_of_the_values(top: float, unit: str, expected: str) -> None:
    row = make_row(Line("a", X, np.array([0.0, top, 0.0]), "A"), unit=unit)

    fig = timeline([row], AXIS, NAMES, LIGHT)

    assert fig.layout.yaxis.tickformat == expected


def test_arrays_travel_as_typed_arrays() -> None:
    y = np.arange(3, dtype=np.float32)

    document = json.loads(
        timeline([make_row(Line("a", X, y, "A"))], AXIS, NAMES, LIGHT).to_json()
    )

    line = next(t for t in document["data"] if t["name"] == "a")
    assert line["y"]["dtype"] == "f4"


def test_the_template_is_named_because_streamlit_changes_the_default() -> None:
    light, dark = (timeline([make_row()], AXIS, NAMES, t) for t in (LIGHT, DARK))

    assert light.layout.template.layout.plot_bgcolor == "white"
    assert dark.layout.font.color == "#fafafa"


def test_an_export_is_always_on_white() -> None:
    fig = for_export(timeline([make_row()], AXIS, NAMES, DARK))

    assert (fig.layout.paper_bgcolor, fig.layout.plot_bgcolor) == ("#ffffff", "#ffffff")
    assert fig.layout.width == 1200


def test_the_alternative_text_carries_the_numbers() -> None:
    bars = Bars("preemptions · B", X, 1.0, np.array([2.0, 0.0, 5.0]), "B")
    rows = [
        make_row(capacity=[Capacity(10, "pool of 10 blocks")]),
        Row("preemptions", "Preemptions", "per 1 s", [bars]),
    ]

    text = alt_text(rows, AXIS, NAMES)

    assert text == (
        "Timeline of run A (recompute) and run B (swap) over time since the start, 0 to 3 s. "
        "KV blocks in use (blocks): KV blocks · A: 1 to 4; pool of 10 blocks. "
        "Preemptions (per 1 s): preemptions · B: 7 in all, at most 5 per bucket."
    )


def test_no_button_uploads_the_chart() -> None:
    assert "sendDataToCloud" in CONFIG["modeBarButtonsToRemove"]
    assert CONFIG["displaylogo"] is False


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (0.0, "0 s"),
        (0.0000042, "4.20 µs"),
        (0.01234, "12.3 ms"),
        (0.99996, "1.00 s"),
        (15.44, "15.4 s"),
        (318.4, "318 s"),
        (12345.0, "12,345 s"),
        (-0.0121, "-12.1 ms"),
    ],
)
def test_times_are_said_in_the_unit_that_fits(value: float | None, expected: str) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "—"), (0, "0 B"), (512 * 2**20, "512 MiB"), (3.42 * 2**30, "3.42 GiB")],
)
def test_bytes_are_said_in_binary_units(value: float | None, expected: str) -> None:
    assert gib(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (0.1234, "0.123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (999.7, "1,000"),
        (12345, "12,345"),
        (1e14, "100,000,000,000,000"),
        (7.753e302, "7.75e+302"),
        (-2.5e15, "-2.50e+15"),
    ],
)
def test_numbers_keep_about_three_digits(value: float, expected: str) -> None:
    assert three_digits(value) == expected


def test_the_cursor_has_a_halo_of_the_ground_and_not_of_white() -> None:
    fig = timeline([make_row()], AXIS, NAMES, DARK)

    assert fig.layout.plot_bgcolor == DARK.ground


def test_markup_in_a_runs_name_stays_text() -> None:
    fig = timeline([make_row()], AXIS, {"A": "<a href='x'>swap</a>"}, LIGHT)

    assert fig.data[0].name == "A · &lt;a href=&#x27;x&#x27;&gt;swap&lt;/a&gt;"


def test_shares_below_count_every_request_and_leave_out_what_has_no_logarithm() -> None:
    samples = {"A": np.array([0.0, 1.0, 2.0, 4.0]), "B": np.array([3.0])}

    fig = shares_below(samples, "TTFT at most", NAMES, LIGHT)

    a, b = fig.data
    assert (list(a.x), list(a.y)) == ([1.0, 2.0, 4.0], [50.0, 75.0, 100.0])
    assert (list(b.x), list(b.y)) == ([3.0], [100.0])
    assert fig.layout.xaxis.type == "log"
    assert (a.line.dash, b.line.dash) == ("solid", "5px,2px")
