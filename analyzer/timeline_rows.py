"""One to three runs and a part of their axis -> the rows of the aligned timeline.

It knows which columns go into which row, and the rows' words. How a row is drawn is known in
`figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from analyzer.aligned import Aligned
from analyzer.figures import Capacity, Readings, Row
from analyzer.look import Role, Side, three_digits
from analyzer.marks import Areas, Bars, Difference, Line, Look, Mark
from analyzer.timeline_view import BUCKETS, View
from analyzer.words import NOT_RECORDED

ROWS: dict[str, str] = {
    "blocks": "Blocks",
    "delta": "B − A",
    "running": "Running",
    "waiting": "Waiting",
    "step": "Step time",
    "preemptions": "Preemptions",
    "tokens": "Tokens",
    "host": "Host",
}


def timeline_rows(pair: Aligned, shown: tuple[float, float], which: Sequence[str]) -> list[Row]:
    """The chosen rows in their order over the shown part of the axis, thinned to what a screen can
    show. which: keys of ROWS. Raises KeyError for another one."""
    view = View(pair, shown, which)
    return [row for key in dict.fromkeys(which) for row in _BUILD[key](view)]


def _blocks(view: View) -> list[Row]:
    pools = {side: run.recording.pool_blocks for side, run in view.pair.runs.items()}
    grey = [s for s in pools if view.any(s, "cached_free_blocks")]
    note = "grey: cached" if grey else ""
    cached: list[Mark]
    if view.is_dense:
        bands = [view.band(s, "used_blocks", "KV blocks") for s in pools]
        marks: list[Mark] = [*bands, *view.mean("used_blocks", "mean KV blocks")]
        cached = (
            view.mean("cached_free_blocks", "cached", look="faint", role="cached")
            if grey
            else []
        )
        note = ", ".join(filter(None, ("mean and range", note)))
    else:
        marks = view.lines("used_blocks", "KV blocks")
        cached = [
            view.line(s, "cached_free_blocks", "cached", look="faint", role="cached")
            for s in grey
        ]
    readings = view.readings("KV blocks", "used_blocks", "blocks")
    if "delta" in view.which and len(pools) > 1:
        said = {**readings.values, "B − A": readings.values["B"] - readings.values["A"]}
        readings = Readings("KV blocks", said, "")
    if len(set(pools.values())) == 1:
        (size,) = set(pools.values())
        capacity = [Capacity(size, f"pool of {size:,} blocks, shaded from 98 % full")]
    else:
        capacity = [Capacity(n, f"pool of {side}: {n:,} blocks") for side, n in pools.items()]
    return [
        Row(
            "blocks",
            "KV blocks in use",
            "blocks",
            [*cached, *marks],
            190,
            y_max=max(pools.values()) * 1.12,
            capacity=capacity,
            note=note,
            readings=readings,
        )
    ]


def _delta(view: View) -> list[Row]:
    if "B" not in view.pair.runs:
        return []
    table = view.in_buckets(["used_blocks"], points=600)
    known = table.drop_nulls(["a_used_blocks", "b_used_blocks"])
    starts = known["x_start"].to_numpy() * view.pair.scale
    y = (known["b_used_blocks"] - known["a_used_blocks"]).to_numpy().astype(np.float32)
    marks: list[Mark] = [Difference(starts, y)] if y.any() else []
    both = view.at_cursor("B", "used_blocks") - view.at_cursor("A", "used_blocks")
    return [
        Row(
            "delta",
            "Difference B − A",
            "blocks",
            marks,
            78,
            note="orange: B holds more",
            empty="no difference here" if len(y) else "the runs do not overlap here",
            readings=None
            if "blocks" in view.which  # its line says the difference too
            else Readings("Difference", {"B − A": both}, "blocks", "+,.0f"),
        )
    ]


def _running(view: View) -> list[Row]:
    readings = view.readings("Running", "num_running", "")
    return [
        Row(
            "running",
            "Running",
            "requests",
            view.lines("num_running", "running"),
            readings=readings,
        )
    ]


def _waiting(view: View) -> list[Row]:
    words = {
        s: "loading" if r.mode == "offload" else "swapped out"
        for s, r in view.pair.runs.items()
    }
    swapped: list[Mark] = [
        view.line(s, "num_swapped", words[s], look="dotted", role="swap")
        for s in view.pair.runs
        if view.any(s, "num_swapped")
    ]
    readings = view.readings("Waiting", "num_waiting", "")
    if swapped:
        sides = [s for s in view.pair.runs if view.any(s, "num_swapped")]
        more = {f"{words[s].split()[0]} {s}": view.at_cursor(s, "num_swapped") for s in sides}
        readings = Readings("Waiting", {**readings.values, **more}, "")
    said = sorted({words[s] for s in view.pair.runs if view.any(s, "num_swapped")})
    note = f"dotted: {' or '.join(said)}" if said else ""
    return [
        Row(
            "waiting",
            "Waiting",
            "requests",
            [*view.lines("num_waiting", "waiting"), *swapped],
            note=note,
            readings=readings,
        )
    ]


def _step_time(view: View) -> list[Row]:
    """Every step where they fit; else the mean of each stretch, with its longest step faint."""
    sides = list(view.pair.runs)
    marks: list[Mark]
    notes = []
    if view.is_dense:
        means = view.mean("duration_s", "mean step time", factor=1e3)
        marks = [*(view.longest_steps(side) for side in sides), *means]
        notes.append("faint: longest")
    else:
        marks = view.lines("duration_s", "step time", 1e3)
    stalled = [s for s in sides if view.any(s, "stall_s")]
    marks += [
        view.line(s, "stall_s", "stalled", look="dotted", factor=1e3, role="stall")
        for s in stalled
    ]
    if stalled:
        notes.append("dotted: stalled")
    readings = view.readings("Step time", "duration_s", "ms", ",.1f", 1e3)
    return [Row("step", "Step time", "ms", marks, 96, note=", ".join(notes), readings=readings)]


def _preemptions(view: View) -> list[Row]:
    tables = {side: view.sums(side, "num_preempted") for side in view.pair.runs}
    first, *_ = tables.values()
    starts = first["start"].to_numpy()
    width = float(first["end"][0] - first["start"][0])
    totals = {side: t["total"].to_numpy().astype(np.float64) for side, t in tables.items()}
    marks: list[Mark] = [
        Bars(f"preemptions · {s}", starts, width, y, s, (i, len(totals)))
        for i, (s, y) in enumerate(totals.items())
        if y.any()
    ]
    here = view.bucket_of_cursor(starts)
    said = {str(side): y[here] for side, y in totals.items()}
    return [
        Row(
            "preemptions",
            "Preemptions",
            f"per {three_digits(width)} {view.pair.per}",
            marks,
            78,
            note=", ".join(f"{side} {int(y.sum()):,}" for side, y in totals.items()),
            empty="no preemption here",
            readings=Readings("Preemptions", said, ""),
        )
    ]


_TOKENS: dict[Role, str] = {
    "decode": "decode_tokens",
    "prefill": "prefill_tokens",
    "recomputed": "recomputed_tokens",
}


def _tokens(view: View) -> list[Row]:
    """Computed tokens over the width of a bucket: a rate by time, a mean by step."""
    table = view.in_buckets(list(_TOKENS.values()), points=BUCKETS)
    x = table["x_start"].to_numpy() * view.pair.scale
    width = (view.shown[1] - view.shown[0]) / BUCKETS
    here = view.bucket_of_cursor(x)
    layers: dict[Side, dict[Role, np.ndarray]] = {
        side: {
            role: table[f"{side.lower()}_{column}"].fill_null(0.0).to_numpy() / width
            for role, column in _TOKENS.items()
        }
        for side in view.pair.runs
    }
    top = max(float(np.sum(list(found.values()), axis=0).max()) for found in layers.values())
    unit = f"per {view.pair.per}"
    all_of = {str(s): np.sum(list(f.values()), axis=0)[here] for s, f in layers.items()}
    again = {str(s): f["recomputed"][here] for s, f in layers.items()}
    lines = [Readings("Tokens", all_of, unit), Readings("Recomputed", again, unit)]
    if len(layers) == 1:  # one row, one line in the cursor's box: its two parts
        (side,) = all_of
        both = {"all": all_of[side], "recomputed": again[side]}
        lines = [Readings("Tokens", both, unit)]
    said = dict(zip(layers, lines, strict=False))
    return [
        Row(
            f"tokens-{side}",
            f"Tokens in {side}",
            unit,
            [Areas(x, {role: y.astype(np.float32) for role, y in found.items()}, side)],
            68,
            y_max=top * 1.05 or 1.0,
            note="green prefill, red recomputed",
            readings=said.get(side),
        )
        for side, found in layers.items()
    ]


_WAYS: dict[str, Look] = {"out": "main", "in": "dotted"}


def _host(view: View) -> list[Row]:
    """Host blocks and the link, where a run has copied KV to the host."""
    sides = [s for s in view.pair.runs if view.any(s, "host_used_blocks")]
    if not sides:
        return []
    used = {str(s): view.at_cursor(s, "host_used_blocks") for s in sides}
    starts = view.sums(sides[0], "duration_s")["start"].to_numpy()
    here = view.bucket_of_cursor(starts)
    link: list[Mark] = []
    share: dict[str, np.ndarray] = {}
    for side in sides:
        for way, look in _WAYS.items():
            y = _busy_frac(view, side, f"link_{way}_busy_s") * 100
            link.append(Line(f"link {way} · {side}", starts, y.astype(np.float32), side, look))
            share[f"{side} {way}"] = y[here]
    host = [view.line(s, "host_used_blocks", "host blocks") for s in sides]
    blind = [
        s for s, r in view.pair.runs.items() if "steps.host_used_blocks" in r.meta.not_recorded
    ]
    note = f"{NOT_RECORDED} in {' and '.join(blind)}" if blind else ""
    return [
        Row(
            "host",
            "Host blocks in use",
            "blocks",
            host,
            68,
            note=note,
            readings=Readings("Host blocks", used, ""),
        ),
        Row(
            "link",
            "Link to host busy",
            "% of the time",
            link,
            60,
            note=", ".join(filter(None, ("dotted: back to the GPU", note))),
            readings=Readings("Link busy", share, "%", ",.1f"),
        ),
    ]


def _busy_frac(view: View, side: Side, column: str) -> np.ndarray:
    """Share of each bucket's time that the link was busy one way. (BUCKETS,)."""
    moving, length = (view.sums(side, c)["total"].to_numpy() for c in (column, "duration_s"))
    return np.divide(moving, length, out=np.zeros(len(length)), where=length > 0)


_BUILD: dict[str, Callable[[View], list[Row]]] = {
    "blocks": _blocks,
    "delta": _delta,
    "running": _running,
    "waiting": _waiting,
    "step": _step_time,
    "preemptions": _preemptions,
    "tokens": _tokens,
    "host": _host,
}
