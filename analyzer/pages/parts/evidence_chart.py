"""Proofs beside the drawn series, raw lines on demand, and the choice of ranks.

A fragment: showing lines or ranks, or a zoom, redraws nothing else. It knows widgets; what is drawn is worked out in
`evidence_series`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial

import numpy as np
import streamlit as st

from analyzer import figures
from analyzer.diagnosis.findings import Proof
from analyzer.diagnosis.traps import find_traps
from analyzer.evidence_figure import alt_text, evidence_figure
from analyzer.evidence_series import (
    MAX_RANKS,
    Drawing,
    clock_ms,
    draw_series,
    from_clock_ms,
    table_of,
    within,
)
from analyzer.pages.parts.evidence_reading import Part, Reading, raw_lines
from analyzer.pages.parts.evidence_state import (
    choose_numbers,
    chosen_numbers,
    set_zoom,
    write_zoom,
    zoom,
)
from analyzer.pages.parts.evidence_verdict import notes_section
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.timeline import theme
from analyzer.pages.parts.zoom import zoom_listener
from traces.evidence.evidence import Line
from traces.telemetry_schema import VALUE_NAMES

MAX_PLACES = 40  # of one proof
ROWS = 400  # of the table under the picture


@st.fragment
def series_section(reading: Reading, index: int) -> None:
    """The picture and the proofs of one part, side by side."""
    part = reading.parts[index]
    with guarded():
        ranks = _rank_choice(part)
        view = f"{reading.key}\0{index}"
        shown = zoom(view)
        drawing = draw_series(part.quantities, part.diagnosis, ranks, shown)
        alone = [len(s) for s in part.quantities.ranks] == [1]
        if drawing is None or not drawing.panels or alone:
            few = "One sample is" if alone else "No samples over time are"
            st.caption(f"{few} in this evidence, so there is nothing to draw.")
            _proofs(reading, index)
            return
        left, right = st.columns([3, 2], gap="medium")
        with left:
            _picture(drawing, part, view)
        with right:
            _proofs(reading, index)


def _rank_choice(part: Part) -> list[int] | None:
    ranks = [int(s.rank) for s in part.quantities.ranks if s.rank is not None]
    if len(ranks) < 2:
        return None
    usage = part.diagnosis.facts.get("usage_last") or {}

    def name(rank: int) -> str:
        share = usage.get(str(rank), usage.get(rank))
        return f"{rank}" if share is None else f"{rank} ({share:.0%})".replace("%", " %")

    chosen = st.pills(
        f"Ranks (usage at the end{'' if len(ranks) <= MAX_RANKS else f'; the {MAX_RANKS} fullest unless others are chosen'})",
        ranks,
        selection_mode="multi",
        default=[r for r in chosen_numbers("ranks") if r in ranks],
        format_func=name,
        key="evidence_ranks",
    )
    choose_numbers("ranks", list(chosen or []))
    return list(chosen or []) or None


def _picture(drawing: Drawing, part: Part, view: str) -> None:
    st.plotly_chart(
        evidence_figure(drawing, theme()),
        theme=None,
        key="evidence_chart",
        config=figures.CONFIG,
        alt=alt_text(drawing),
    )
    zoom_listener(
        "evidence_chart",
        (_to_axis(drawing, drawing.range[0]), _to_axis(drawing, drawing.range[1])),
        view,
        key="zoom",
        on_change=partial(_zoomed, drawing, view),
    )
    write_zoom(drawing.part)
    if drawing.part is not None:
        st.button("Show all", on_click=set_zoom, args=(None, view), key="evidence_show_all")
    said = list(drawing.notes)
    if drawing.absent:
        said.append(f"Not in this evidence: {', '.join(drawing.absent)}.")
    if any(m.number is not None for m in drawing.moments):
        said.append("Numbers above the picture are those of the proofs.")
    said.append(
        "Drag or Ctrl + wheel to zoom, double-click for all. Keys: W S zoom, A D move, 0 all."
    )
    st.caption(plain(" ".join(said)))
    if st.toggle("Show data", key="evidence_data", help="The drawn points as a table."):
        table = table_of(drawing, part.evidence)
        if table.height > ROWS:
            table = table.gather_every(-(-table.height // ROWS))
        st.dataframe(
            table, hide_index=True, height=320, alt="Series of the evidence as a table"
        )


def _to_axis(drawing: Drawing, x: float) -> float:
    """x as the chart's axis counts it."""
    return float(clock_ms(drawing, np.array([x]))[0]) if drawing.kind == "clock" else x


def _zoomed(drawing: Drawing, view: str) -> None:
    """Show the part that the chart reports, with its own detail; what it reports of something else is late."""
    report = st.session_state["zoom"].range or {}
    if report.get("view") != view:
        return
    start, end = report.get("range") or (None, None)
    if start is None or end is None:
        set_zoom(None, view)
        return
    low, high = float(start), float(end)
    if drawing.kind == "clock":
        low, high = from_clock_ms(drawing, low), from_clock_ms(drawing, high)
    set_zoom(within((low, high), drawing.range), view)


def _proofs(reading: Reading, index: int) -> None:
    part = reading.parts[index]
    with st.container(key="evidence_proofs"):
        st.markdown("**Proofs**")
        if not part.diagnosis.proofs:
            st.caption("Nothing here proves anything: see what is missing.")
        for number, proof in enumerate(part.diagnosis.proofs, start=1):
            with st.container(key=f"evidence_proof_{number}"):
                st.html(
                    f'<p class="kv-d" style="font-size:0.92rem"><span class="kv-num">{number}</span>{html.escape(proof.sentence)}</p>'
                )
                if proof.lines:
                    _lines(reading, part, proof, number)
        traps = find_traps(part.quantities)
        if traps:
            st.markdown("**Traps of this engine**")
            notes_section(traps, "Traps")


def _lines(reading: Reading, part: Part, proof: Proof, number: int) -> None:
    """A switch that shows the lines that a proof was read from."""
    if st.toggle(_where(proof.lines), key=f"evidence_lines_{number}"):
        places = list(proof.lines[:MAX_PLACES])
        empty = [at for at in places if not at.text]
        again = raw_lines(reading, empty) if empty else {}
        rows = "".join(
            _row(at, again.get(at, []), part, len(reading.files) > 1) for at in places
        )
        if len(proof.lines) > MAX_PLACES:
            rows += f"<i>and {len(proof.lines) - MAX_PLACES:,} more places</i>\n"
        st.html(f'<pre class="kv-raw">{rows}</pre>')


def _where(lines: Sequence[Line]) -> str:
    """'Lines 23, 24 and 28 of server.log'."""
    found: dict[str, list[tuple[int, int]]] = {}
    for at in lines:
        found.setdefault(at.source, []).append((at.number, at.num_lines))
    said = []
    for source, numbers in found.items():
        shown = [f"{n:,}" + (f" to {n + k - 1:,}" if k > 1 else "") for n, k in numbers[:4]]
        more = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
        if source == "samples":
            said.append(
                f"{'samples' if len(numbers) > 1 else 'sample'} {', '.join(shown)}{more}"
            )
        else:
            said.append(f"{plain(source)}: {', '.join(shown)}{more}")
    text = "; ".join(said)
    return f"Lines · {text}"


def _row(at: Line, again: Sequence[tuple[int, str]], part: Part, named: bool) -> str:
    """A place with its lines: kept text, lines that were read again, or the sample's values."""
    where = f"{at.source}:" if named and at.source != "samples" else ""
    if at.text:
        return f"<i>{html.escape(where)}{at.number:,}</i>  {html.escape(at.text)}\n"
    if again:
        more = (
            f"<i>… {at.num_lines - len(again):,} more lines</i>\n"
            if at.num_lines > len(again)
            else ""
        )
        return (
            "".join(f"<i>{html.escape(where)}{n:,}</i>  {html.escape(t)}\n" for n, t in again)
            + more
        )
    return f"<i>{html.escape(where)}{at.number:,}</i>  {html.escape(_values(at, part))}\n"


def _values(at: Line, part: Part) -> str:
    """What the sample of a recording or of telemetry holds, where no line can be shown."""
    for series in part.quantities.ranks:
        frame = series.frame
        if at.source == "samples" and at.number <= frame.height:
            row = frame.row(at.number - 1, named=True)
            said = [f"t {row['t_s']:,.3f} s" if row["t_s"] is not None else ""]
            said += [
                f"{n} {row[n]:,.5g}" for n in VALUE_NAMES if isinstance(row[n], int | float)
            ]
            return ", ".join(filter(None, said))
    return "this line is not kept"
