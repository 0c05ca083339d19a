"""One to three recordings -> a report: a self-contained HTML, or a PDF or PNG where a browser is found.

It knows templates and file types. What a report says is in `report_contents` and `report_words`, its
pictures in `report_figures`, and how a browser prints in `browser`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from analyzer import browser, report_tables, report_words
from analyzer.aligned import Aligned
from analyzer.look import Side
from analyzer.output import check_suffix, write_whole
from analyzer.report_contents import Ask, Contents, gather
from analyzer.report_evidence import evidence, made_with
from analyzer.report_figures import (
    REPORT_CONFIG,
    STILL,
    Picture,
    as_json,
    block_map_picture,
    card_picture,
    distribution_pictures,
    timeline_picture,
)
from analyzer.report_setup import set_up
from analyzer.run import Run

SUFFIXES = (".html", ".png", ".pdf")
TEMPLATES = Path(__file__).parent / "templates"
PAPER_PX = 703  # width of A4 within its margins, at 96 px an inch
PAPER_ROWS = (
    ("blocks", "delta", "waiting", "preemptions"),
    ("running", "step", "tokens", "host"),
)
PAPER_MAP_PX = 860
PAPER_HEIGHT_PX = 1_020
FIRST_PX = (360, 600)  # least and most height of the timeline's first part
SECOND_PX = 530
SECOND_OF_THREE_PX = 680  # it has a row more
CARDS_C_PX = 42  # for C's figure and change
CARD_PX = 600  # drawn at twice that
CARD_SCALE = 2
_WORD_COLUMNS = (0, 1, 2)  # of the table of preemptions: victim, evicted for, as


def write_report(
    out: Path, a: Run, b: Run | None = None, ask: Ask | None = None, *, c: Run | None = None
) -> Path:
    """Write the report of A, of B against A, or of B and C against A to `out`, by its suffix; returns it.

    Raises SettingsError for another suffix, an unwritable place, or where PNG and PDF lack a
    browser; CompareError where two must not be compared.
    """
    kind = check_suffix(out, SUFFIXES)
    if kind != ".html":
        browser.find()
    contents = gather(a, b, ask, c=c)
    write_whole(out, make(contents, kind))
    return out


def make(contents: Contents, kind: str) -> bytes:
    """The report as a file of that kind (of SUFFIXES)."""
    if kind == ".pdf":
        return browser.to_pdf(html(contents, paper=True))
    if kind == ".png":
        return browser.to_png(card(contents), CARD_PX, CARD_SCALE)
    return html(contents).encode()


def html(contents: Contents, *, paper: bool = False) -> str:
    """The report as one HTML document that loads nothing. paper: laid out for A4, nothing to click."""
    wide = (PAPER_PX - 30) // 3
    return _render(
        "report.html",
        contents,
        paper=paper,
        config=_in_script(STILL if paper else REPORT_CONFIG),
        css=_asset("report.css"),
        js=_asset("report.js"),
        plotly_js=get_plotlyjs(),
        as_json=as_json,
        timelines=_timelines(contents, paper),
        distributions=distribution_pictures(contents, wide if paper else None),
        timeline_table=report_tables.timeline_table(contents),
        preempted=report_tables.preempted_tables(contents),
        words=_WORD_COLUMNS,
        latencies=report_tables.latency_table(contents),
        figures=report_tables.figures_table(contents),
        limits=report_words.limits(contents),
        block_map=block_map_picture(
            contents, PAPER_PX if paper else None, PAPER_MAP_PX if paper else None
        ),
        evidence={side: evidence(r.recording) for side, r in contents.runs.items()},
        made_with=made_with(),
        permalink=_link(contents.ask.permalink),
        command="",
        clip=report_words.clip,
    )


def _timelines(contents: Contents, paper: bool) -> list[Picture]:
    """One for a screen, two for paper, whose pages are lower."""
    if not paper:
        return [timeline_picture(contents)]
    second = SECOND_PX if contents.third is None else SECOND_OF_THREE_PX
    parts = zip(PAPER_ROWS, (_first_height(contents), second), strict=True)
    return [
        timeline_picture(contents, rows, key=f"timeline-{i}", height=height, width=PAPER_PX)
        for i, (rows, height) in enumerate(parts)
    ]


def _first_height(contents: Contents) -> int:
    """What the head leaves of the first page, by a count of its lines; the most where that is too
    little, since the picture then begins the second page."""
    ask = contents.ask
    head = 205 + 28 * _lines(contents.title, 48)
    head += 39 * (len(report_words.in_short(contents)) > 90)
    head += 30 + 16 * _lines(ask.notes.strip(), 115) if ask.notes.strip() else 0
    head += 19 * _lines(contents.verdict, 84) + 17 * _lines(contents.why, 112)
    head += 6 + 19 * _lines(contents.verdict_c, 84) + CARDS_C_PX if contents.third else 0
    least, most = FIRST_PX
    left = PAPER_HEIGHT_PX - head
    return min(left, most) if left >= least else most


def _lines(text: str, width: int) -> int:
    """Lines that a text takes at so many characters a line."""
    return sum(1 + max(len(line) - 1, 0) // width for line in text.split("\n"))


def preview(contents: Contents) -> tuple[str, str, str]:
    """The report's style sheet, its head, and set-up and preemptions, for a page that draws the
    timeline between them itself."""
    tables = report_tables.preempted_tables(contents)
    return (
        _asset("report.css"),
        _render("preview_head.html", contents),
        _render("preview_rest.html", contents, preempted=tables, words=_WORD_COLUMNS),
    )


def early_preview(aligned: Aligned, part: tuple[float, float] | None) -> tuple[str, str]:
    """The report's style sheet and its set-up, of runs of which nothing is worked out yet."""
    return _asset("report.css"), _environment().get_template("preview_early.html").render(
        names=_clipped(aligned.names),
        compared=len(aligned.runs) > 1,
        set_up=set_up(aligned.runs, part, aligned.ends),
    )


def card(contents: Contents) -> str:
    """The report as one card of CARD_PX for a chat: verdict, figures, timeline, set-up."""
    proofs = [evidence(r.recording) for r in contents.runs.values()]
    return _render(
        "card.html",
        contents,
        config=_in_script(STILL),
        css=_asset("card.css"),
        js=_asset("report.js"),
        plotly_js=get_plotlyjs(),
        as_json=as_json,
        timeline=card_picture(contents, CARD_PX - 34),
        card_setup=report_words.card_setup(contents),
        hashes="recording"
        + "s" * (len(proofs) > 1)
        + " "
        + " / ".join(p.digest[:8] for p in proofs),
        engine=report_words.engine_line(contents),
    )


def _render(template: str, contents: Contents, **more: Any) -> str:
    return (
        _environment()
        .get_template(template)
        .render(
            title=contents.title,
            notes=contents.ask.notes.strip(),
            names=_clipped(contents.names),
            compared=contents.found is not None,
            three=contents.third is not None,
            in_short=report_words.in_short(contents),
            range=report_words.range_words(contents) if contents.is_part else "",
            verdict=report_words.tidy(contents.verdict),
            verdict_c=report_words.tidy(contents.verdict_c),
            why=report_words.tidy(contents.why),
            cards=report_tables.cards(contents),
            set_up=contents.set_up,
            **more,
        )
    )


def _clipped(names: Mapping[Side, str]) -> dict[Side, str]:
    return {side: report_words.clip(name, 80) for side, name in names.items()}


def _link(text: str) -> str:
    """The permalink, if it is one that a browser may follow; else nothing."""
    return text if urlsplit(text).scheme in ("http", "https") else ""


def _in_script(config: Mapping[str, Any]) -> str:
    return json.dumps(config).replace("<", "\\u003c")


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
