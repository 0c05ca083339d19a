"""The Report page: title and notes, a preview, and files to share.

It reads downward: what the user says, what can be downloaded, the preview. Of long runs the timeline
and the set-up come first, and the rest when the job beside the page has worked it out. What a report
holds is known in `analyzer.report`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlencode, urlsplit, urlunsplit

import streamlit as st

from analyzer import browser
from analyzer.aligned import Aligned
from analyzer.look import LIGHT, three_digits
from analyzer.pages.parts import shell, state
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.working_out import worked_out
from analyzer.range_data import zip_bytes
from analyzer.report import early_preview, html, make, preview
from analyzer.report_contents import (
    MOST_NOTES,
    MOST_TITLE,
    Ask,
    Contents,
    check_within,
    gather,
)
from analyzer.report_figures import REPORT_CONFIG, Picture, early_picture, timeline_picture
from analyzer.unchecked import drawn_once

MOST_ROWS = 4_000_000  # steps and events that the page packs; more is for the command line
MADE = "report_made"  # (what it was made of, bytes) of the last PNG and PDF, by suffix
FILE_TYPES = {".png": "image/png", ".pdf": "application/pdf"}
PRINTED = {".png": ("PNG", "for a chat"), ".pdf": ("PDF", "for paper")}

Part = tuple[float, float]


def page() -> None:
    """Draw the page."""
    shell.draw(_body, "Report")


def _body(opened: Opened) -> None:
    """Inputs, downloads, preview."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        ask = _ask(opened)
    with right:
        ready = worked_out(opened.key, opened.runs)
    if not ready:
        _meanwhile(opened, ask.shown)
        return
    shown = _gathered(opened.key, ask.shown, opened)
    contents = replace(shown, ask=ask)
    with right:
        _downloads(opened, contents)
    _preview(contents, _timeline(opened.key, ask.shown, shown))


@st.cache_resource(max_entries=4, show_spinner="Collecting the report")
def _gathered(key: str, part: Part | None, _opened: Opened) -> Contents:
    """What the report says, but for title and notes; worked out once per content and range."""
    b = _opened.runs.get("B")
    found = None if b is None else _opened.found
    third = _opened.found_third
    return gather(_opened.a, b, Ask(shown=part), found, c=_opened.c, third=third)


@st.cache_resource(max_entries=4, show_spinner=False)
def _timeline(key: str, part: Part | None, _contents: Contents) -> Picture:
    """The timeline, which title and notes do not change."""
    return _drawn_once(timeline_picture(_contents))


# ---- what the user says ---------------------------------------------------------------------------


def _ask(opened: Opened) -> Ask:
    """Title, notes and range. The link is what the page's own URL says."""
    title = st.text_input(
        "Title",
        key="report_title",
        max_chars=MOST_TITLE,
        placeholder="What the runs are",
        bind="query-params",
    )
    notes = st.text_area(
        "Notes",
        key="report_notes",
        max_chars=MOST_NOTES,
        height=110,
        placeholder="What the reader should know: why this run, what was found, what to do. Plain text.",
    )
    part = _part()
    return Ask(title or "", notes or "", part, _permalink(opened, title or "", part))


def _part() -> Part | None:
    """The range that Compare shows, if the user wants only that."""
    shown = state.asked_range()
    part = _part_of(shown, str(st.session_state.get("by") or "time"))
    if part is None:
        st.caption(
            "Of the whole runs. Zoom in on Compare to report a part of the time."
            if shown is None
            else "Of the whole runs: a report's range is one of time, and Compare is aligned otherwise."
        )
        return None
    only = st.toggle(
        f"Only {three_digits(part[0])} to {three_digits(part[1])} s, as shown on Compare",
        value=True,
        key="report_part",
        bind="query-params",
        help="Timeline, preemptions, block map and exported data are of that time; the verdict and all figures stay those of whole runs.",
    )
    return part if only else None


def _part_of(shown: Part | None, by: str) -> Part | None:
    """The shown range, where it is one of time."""
    return shown if by == "time" else None


def _permalink(opened: Opened, title: str, part: Part | None) -> str:
    """The address that opens this report again, on this server."""
    here = urlsplit(st.context.url or "")
    if here.scheme not in ("http", "https"):
        return ""
    query = urlencode(_said_in_link(opened, title, part))
    return urlunsplit((here.scheme, here.netloc, here.path, query, ""))


def _said_in_link(opened: Opened, title: str, part: Part | None) -> dict[str, str]:
    said = {
        "a": opened.pair.a,
        "b": opened.pair.b,
        "c": opened.pair.c,
        "t": f"{part[0]:.6g}-{part[1]:.6g}" if part else "",
        "report_title": title,
    }
    return {name: value for name, value in said.items() if value}


# ---- files ----------------------------------------------------------------------------------------


def _downloads(opened: Opened, contents: Contents) -> None:
    name = _file_name(contents)
    st.download_button(
        "HTML, interactive, opens offline",
        data=_with_evidence(contents),
        file_name=f"{name}.html",
        mime="text/html",
        key="report_html",
        type="primary",
        icon=":material/html:",
        on_click="ignore",
        width="stretch",
    )
    _printed(opened, contents, name)
    with st.container(horizontal=True, gap="small", key="report_data"):
        _data_downloads(contents, name)
    if contents.ask.permalink:
        st.caption("Link to this report, where this server is reached:")
        st.code(contents.ask.permalink, language=None, wrap_lines=True)


def _with_evidence(contents: Contents) -> Callable[[], bytes]:
    """Makes the HTML when it is asked for, hashes of the recordings included."""
    return lambda: html(contents).encode()


def _printed(opened: Opened, contents: Contents, name: str) -> None:
    """PNG and PDF: made on a press, since a browser takes seconds; then offered."""
    if not browser.is_there():
        st.caption(plain(browser.HOW_TO_GET))
        return
    made_of = (opened.key, contents.ask)
    made = st.session_state.setdefault(MADE, {})
    with st.container(horizontal=True, gap="small", key="report_print"):
        pressed = [
            kind
            for kind, (short, use) in PRINTED.items()
            if st.button(f"Make {short}, {use}", key=f"make_{short.lower()}")
        ]
    for kind in pressed:
        with guarded(), st.spinner(f"A browser draws the {PRINTED[kind][0]}"):
            made[kind] = (made_of, make(contents, kind))
    for kind, (short, _) in PRINTED.items():
        of, data = made.get(kind, (None, b""))
        if of == made_of:
            st.download_button(
                f"Download {short} ({len(data) / 1e6:.1f} MB)",
                data=data,
                file_name=f"{name}{kind}",
                mime=FILE_TYPES[kind],
                key=f"report_{short.lower()}",
                on_click="ignore",
                icon=":material/download:",
                width="stretch",
            )


def _data_downloads(contents: Contents, name: str) -> None:
    """Perfetto trace and tables, made when they are asked for."""
    rows = sum(run.steps.height + run.events.height for run in contents.runs.values())
    if rows > MOST_ROWS:
        st.caption(
            f"Trace and tables of {rows:,} rows are for the command line: python -m analyzer export DIR --out FILE.zip "
            "(or .perfetto-trace, .parquet, .csv), with --range FROM:TO for a part."
        )
        return
    st.download_button(
        "Perfetto trace",
        data=lambda: _trace(contents),
        file_name=f"{name}.perfetto-trace",
        mime="application/octet-stream",
        key="report_perfetto",
        help="Requests as tracks, counters, preemptions. Open it at ui.perfetto.dev, which reads it in your browser.",
        on_click="ignore",
    )
    for kind, word in ((".parquet", "Parquet"), (".csv", "CSV")):
        st.download_button(
            word,
            data=_tables(contents, kind),
            file_name=f"{name}-{word.lower()}.zip",
            mime="application/zip",
            key=f"report_{word.lower()}",
            help=f"The data as {word} in a zip: steps, events, requests, preemptions with costs, and block ownership where it was recorded.",
            on_click="ignore",
        )


def _trace(contents: Contents) -> bytes:
    from analyzer.perfetto_export import write_trace  # 0.2 s that no other page needs

    file = io.BytesIO()
    write_trace(file, contents.runs, contents.ask.shown)
    return file.getvalue()


def _tables(contents: Contents, kind: str) -> Callable[[], bytes]:
    return lambda: zip_bytes(contents.runs, contents.ask.shown, kind)


def _file_name(contents: Contents) -> str:
    """'kv-replay-a-recompute-against-b-swap': letters and digits of the title, of any script."""
    words = "".join(c if c.isalnum() else " " for c in contents.title.lower()).split()
    return "-".join(["kv-replay", *words])[:80].rstrip("-")


# ---- preview --------------------------------------------------------------------------------------


def _preview(contents: Contents, timeline: Picture) -> None:
    """The report's head, timeline, set-up and preemptions as they will be, light in any theme."""
    st.header("Preview", anchor=False)
    css, head, rest = preview(contents)
    st.html(f"<style>{css}</style>")
    with st.container(key="report_preview", border=True, gap=None):
        st.html(head)
        _chart(timeline)
        st.html(rest)
        st.html(
            f"<p style='color:{LIGHT.muted};background:#fff;margin:0;padding:0 1.6rem 1rem;font-size:0.85rem'>"
            "In the files follow latencies, block map, all figures, method and limits, and hashes.</p>"
        )


def _meanwhile(opened: Opened, part: Part | None) -> None:
    """What is known of long runs at once: timeline and set-up, as they will be."""
    st.header("Preview", anchor=False)
    aligned = Aligned(opened.runs, "time")
    check_within(part, aligned.full[1])
    css, rest = early_preview(aligned, part)
    st.html(f"<style>{css}</style>")
    with st.container(key="report_preview", border=True, gap=None):
        _chart(_early(opened.key, part, aligned))
        st.html(rest)
    st.caption("Verdict, figures, preemptions and files follow when they are worked out.")


@st.cache_resource(max_entries=4, show_spinner=False)
def _early(key: str, part: Part | None, _aligned: Aligned) -> Picture:
    return _drawn_once(early_picture(_aligned, _aligned.clip(part)))


def _drawn_once(picture: Picture) -> Picture:
    return replace(picture, figure=drawn_once(picture.figure))


def _chart(timeline: Picture) -> None:
    st.plotly_chart(
        timeline.figure,
        theme=None,
        key="report_timeline",
        config=REPORT_CONFIG,
        alt=timeline.alt,
    )
