"""The Diagnose page: from a pasted log or a metrics dump to a verdict, its proofs and the next step.

It reads downward: give, read, judge, draw. Rules and quantities are known in `analyzer.diagnosis`.
"""

from __future__ import annotations

import streamlit as st

from analyzer.diagnosis.traps import find_traps
from analyzer.pages.parts import evidence_state, shell
from analyzer.pages.parts.evidence_chart import series_section
from analyzer.pages.parts.evidence_inputs import current, inputs_section, reading_section
from analyzer.pages.parts.evidence_reading import Reading
from analyzer.pages.parts.evidence_simulate import simulate_section
from analyzer.pages.parts.evidence_verdict import (
    fact_cards,
    heading,
    next_step_card,
    notes_section,
    page_title,
    reasons_section,
    style,
    verdict_card,
)
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.timeline import theme


def page() -> None:
    """Draw the page."""
    style(theme())
    evidence_state.follow_url()
    with guarded():
        reading_section()
    evidence_state.write_url()
    reading = None
    with guarded():
        reading = current()
    if reading is None:
        page_title("Is the KV cache to blame?")
        st.caption("Paste what you have; the verdict comes first, with its proofs.")
        inputs_section(False)
        _recordings()
        return
    with guarded():
        _result(reading)


def link(side: str) -> None:
    """A link from a page with a pair to the diagnosis of one of its runs."""
    evidence_state.expect_link()
    shell.link_to("diagnose", f"Diagnose {side}", ":material/stethoscope:", side=side)


def _recordings() -> None:
    """The runs on the other pages can be diagnosed too."""
    with st.container(horizontal=True, vertical_alignment="center", key="evidence_sides"):
        st.markdown("**Or diagnose a recording shown on Compare:**", width="content")
        for side in ("A", "B"):
            st.button(
                f"Run {side}", key=f"evidence_side_{side}", on_click=evidence_state.ask,
                args=(evidence_state.side_ref(side),),
            )  # fmt: skip


def _result(reading: Reading) -> None:
    found = reading.diagnosis
    index = _part_choice(reading)
    part = reading.parts[index]
    heading(reading, part.diagnosis, part.evidence)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        verdict_card(part.diagnosis)
        fact_cards(part.diagnosis.facts)
    with right:
        next_step_card(part.diagnosis)
    traps = {trap for p in reading.parts for trap in find_traps(p.quantities)}
    notes_section([n for n in found.notes if n not in traps], "Notices")
    series_section(reading, index)
    reasons_section(part.diagnosis, part.evidence.sources)
    if part.evidence.family != "recording":  # its requests are known: Compare replays them
        simulate_section(reading, index)
    inputs_section(True)
    _recordings()


def _part_choice(reading: Reading) -> int:
    """Which server or run is shown, where the evidence is of several."""
    if len(reading.parts) == 1:
        return 0
    names = [f"{p.evidence.label}: {p.diagnosis.verdict.word}" for p in reading.parts]
    worst = next(
        (i for i, p in enumerate(reading.parts) if p.diagnosis.verdict.word == reading.diagnosis.verdict.word), 0
    )  # fmt: skip
    chosen = st.segmented_control(
        "The sources are of several servers or runs, each judged by itself",
        list(range(len(names))),
        format_func=lambda i: plain(names[i]),
        default=next(
            (i for i in evidence_state.chosen_numbers("part") if i < len(names)), worst
        ),
        required=True,
        key=f"evidence_part_{reading.key[:8]}",
    )
    index = int(chosen if chosen is not None else worst)
    evidence_state.choose_numbers("part", [] if index == worst else [index])
    return index
