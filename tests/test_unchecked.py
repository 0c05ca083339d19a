"""Figures that a browser draws once look as the template says, and are named by what they hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest

from analyzer.unchecked import drawn_once, unchecked

LINE = {"type": "scatter", "mode": "lines", "x": np.array([0.0, 1.0]), "y": [1.0, None]}
LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "xaxis": {"range": [0, 1], "title": {"text": "Time"}},
    "yaxis": {"gridcolor": "#123456"},
    "yaxis2": {},
    "annotations": [{"text": "here", "arrowwidth": 7}],
}


def sent(*traces: dict[str, Any], **layout: Any) -> dict[str, Any]:
    """The figure as the browser gets it."""
    found: dict[str, Any] = json.loads(
        plotly.io.to_json(
            unchecked(traces or [LINE], LAYOUT | layout).to_dict(), validate=False
        )
    )
    return found


def test_what_a_template_gives_stands_where_nothing_else_is_said() -> None:
    layout = sent()["layout"]

    assert "template" not in layout  # a copy of one makes Plotly draw everything again
    assert layout["yaxis"]["gridcolor"] == "#123456"
    assert layout["yaxis2"]["gridcolor"] == "#EBF0F8"
    assert layout["xaxis"]["title"] == {"text": "Time", "standoff": 15}
    assert layout["annotations"] == [
        {"text": "here", "arrowwidth": 7, "arrowcolor": "#2a3f5f", "arrowhead": 0}
    ]


def test_x_axes_leave_the_margins_and_y_axes_follow_their_labels() -> None:
    layout = sent()["layout"]

    assert (layout["xaxis"]["automargin"], layout["yaxis"]["automargin"]) == (False, True)


def test_numbers_go_as_json_does_and_what_is_not_known_as_null() -> None:
    (line,) = sent(LINE | {"y": np.array([np.nan, 2.5], np.float32)})["data"]

    assert (line["x"], line["y"]) == ([0.0, 1.0], [None, 2.5])


def test_a_long_array_has_the_digits_that_can_be_seen_and_small_numbers_all_of_theirs() -> None:
    times = 40_000 + np.arange(200) / 3
    costs = np.geomspace(1e-7, 100, 200)

    (line,) = sent(LINE | {"x": times, "y": costs})["data"]

    assert line["x"][1] == 40_000.33333
    assert line["y"] == costs.tolist()


@pytest.mark.parametrize(
    "change", [{"y": [1.0, 3.0]}, {"x": np.array([0.0, 2.0])}, {"name": "B"}]
)
def test_the_same_traces_have_the_same_name_and_others_another(change: dict[str, Any]) -> None:
    first, again = sent()["layout"], sent(range=[0, 2])["layout"]

    assert first["datarevision"] == again["datarevision"]
    assert sent(LINE | change)["layout"]["datarevision"] != first["datarevision"]


def test_plotly_finds_no_fault_in_what_the_template_gave() -> None:
    bars = {"type": "bar", "x": [1], "y": [2], "marker": {"pattern": {"shape": "/"}}}
    found = unchecked([LINE, bars], LAYOUT)

    drawn = go.Figure(found.to_dict()).to_dict()["data"][1]["marker"]

    assert drawn["pattern"]["shape"] == "/"
    assert drawn["line"]["color"] == "white"
    assert found.data[1].y[0] == 2


def test_a_checked_figure_is_sent_the_same_way() -> None:
    checked = go.Figure({"data": [LINE], "layout": LAYOUT})

    found = json.loads(plotly.io.to_json(drawn_once(checked).to_dict(), validate=False))
    (line,) = found["data"]

    assert (line["x"], line["y"]) == ([0.0, 1.0], [1.0, None])
    assert "template" not in found["layout"]
    assert found["layout"]["xaxis"] == sent()["layout"]["xaxis"]
    assert found["layout"]["annotations"] == sent()["layout"]["annotations"]


def test_what_is_set_later_is_sent() -> None:
    found = unchecked([LINE], LAYOUT).update_layout(height=210)

    assert found.to_dict()["layout"]["height"] == 210
