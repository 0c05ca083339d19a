"""Figures that are only shown: built without Plotly's checks, and such that a browser draws them once.

It knows what those checks would have put in place of the template's name, what a browser measures, and
when it draws again what it has drawn; nothing of what is in a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io

Part = Mapping[str, Any]
# The last label of an x axis would widen the margin, and everything be drawn once more; where it has no room
# it is left out. Margins of y axes follow their labels, so that none need be looked at for that.
_ALWAYS: Mapping[str, Part] = {
    "xaxis": {"automargin": False},
    "yaxis": {"ticklabeloverflow": "allow"},
}
_KEPT_DIGITS = 6  # of a long array's span, which is a thousandth of a pixel


class Unchecked(go.Figure):
    """A figure whose parts go to the browser as they are: arrays of numbers as JSON's, since Plotly takes
    each of its own encoding for new numbers."""

    def __init__(self, data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
        super().__init__({"data": data, "layout": layout}, _validate=False)
        self._layout.pop("template", None)  # Plotly's default one

    def to_dict(self) -> dict[str, Any]:
        return {"data": list(self._data), "layout": dict(self._layout)}


def unchecked(data: Iterable[Part], layout: Part) -> go.Figure:
    """A figure of these traces and this layout. layout: its template is a name, or one; its margins have
    room for half a label right of the last tick of its x axes."""
    look = layout["template"]
    defaults = template(look) if isinstance(look, str) else look
    traces = [_trace(trace, defaults["data"]) for trace in data]
    whole = _layout(layout, defaults["layout"])
    # Streamlit's chart gives Plotly a copy of the figure once it is drawn, and Plotly draws that as well unless
    # it is told that the copy holds the same numbers.
    return Unchecked(traces, whole | {"datarevision": _revision(traces)})


def drawn_once(figure: go.Figure) -> go.Figure:
    """The same figure, as `unchecked` would have made it."""
    return unchecked((t.to_plotly_json() for t in figure.data), figure.layout.to_plotly_json())


@cache
def template(name: str) -> dict[str, Any]:
    """The template of that name, as Plotly's checks would put it in its place."""
    found: dict[str, Any] = plotly.io.templates[name].to_plotly_json()
    return found


def measured_once(layout: Part) -> dict[str, Any]:
    """The layout with axes whose labels a browser need not measure to place them."""
    return {
        n: {**_ALWAYS.get(n[:5], {}), **p} if n[:5] in _ALWAYS else p for n, p in layout.items()
    }


# ---- the template's defaults, put where they belong: a template makes a browser draw twice ----------------


def _layout(layout: Part, defaults: Part) -> dict[str, Any]:
    found = measured_once(layout)
    for name, default in defaults.items():
        if name in ("xaxis", "yaxis"):
            for axis in [n for n in found if n.startswith(name)]:
                found[axis] = _under(default, found[axis])
        elif name.endswith("defaults"):  # of each annotation, of each shape
            many = f"{name.removesuffix('defaults')}s"
            if many in found:
                found[many] = [_under(default, one) for one in found[many]]
        else:
            found[name] = _under(default, found[name]) if name in found else default
    del found["template"]
    return found


def _trace(trace: Part, defaults: Part) -> dict[str, Any]:
    (default, *_) = defaults.get(trace["type"], ({},))
    found = _under({k: v for k, v in default.items() if k != "type"}, trace)
    return {name: _short(value) for name, value in found.items()}


def _under(default: Any, given: Any) -> Any:
    """What is given, with the default for what is not."""
    if not isinstance(default, Mapping) or not isinstance(given, Mapping):
        return given
    return {
        **default,
        **{n: _under(default[n], v) if n in default else v for n, v in given.items()},
    }


def _short(value: Any) -> Any:
    """A long array of float64 with no more digits than can be seen, if all of it is of one size."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float64 or value.size < 100:
        return value
    known = value[np.isfinite(value)]
    span = float(np.ptp(known)) if known.size else 0.0
    least = float(np.abs(known[known != 0]).min(initial=np.inf))
    if not 0 < span < 1e4 * least:
        return value
    return np.round(value, max(_KEPT_DIGITS - int(np.floor(np.log10(span))), 0))


# ---- whether two figures hold the same ---------------------------------------------------------------------


def _revision(data: Any) -> str:
    """Names what is in traces."""
    digest = blake2b(digest_size=8)
    _read(data, digest.update)
    return digest.hexdigest()


def _read(part: Any, update: Callable[[bytes], object]) -> None:
    if isinstance(part, np.ndarray) and part.dtype != object:
        update(f"{part.dtype}{part.shape}".encode())
        update(np.ascontiguousarray(part).tobytes())
    elif isinstance(part, Mapping):
        for name, value in part.items():
            update(f"{name}:".encode())
            _read(value, update)
    elif isinstance(part, list | tuple) and part and isinstance(part[0], Mapping | np.ndarray):
        for value in part:
            _read(value, update)
    else:
        update(repr(part).encode())
