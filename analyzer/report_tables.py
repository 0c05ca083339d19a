"""The tables of a report as text: cards, figures, latencies, preemptions, the timeline's means.

It knows labels, units and which columns a table has. Every figure and judgement was made elsewhere;
nothing here is markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzer.aligned import data_table
from analyzer.compare import Comparison, estimated_figures, flat_figures
from analyzer.delta_words import say_change, say_interval, say_judged
from analyzer.look import Side, seconds
from analyzer.measured import is_cost_estimated
from analyzer.report_contents import Contents
from analyzer.report_words import clip
from analyzer.stats import SUMMARY_KEYS
from analyzer.words import label, percent, show, show_change, show_delta, show_figure

CARDS = {
    "duration_s": "Duration",
    "ttft_s p99": "TTFT p99",
    "e2e_s p99": "E2E p99",
    "num_preemptions": "Preemptions",
    "preemption_cost_s": "Preemption cost",
    "full_steps_frac": "Steps ≥ 98 % full",
}
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
STRETCHES = 40  # of the timeline as a table
MOST_ID = 36  # characters of a request id
Tone = str  # "good", "bad" or "even"
_TONES: Mapping[str, Tone] = {"better": "good", "worse": "bad"}


@dataclass(frozen=True)
class Change:
    """How a figure moved from A to another run, and whether that is good."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Card:
    """A figure of each side, and its change from A for each other side."""

    title: str
    values: Mapping[Side, str]
    changes: Mapping[Side, Change]


def cards(contents: Contents) -> list[Card]:
    """The six figures that say most."""
    rows = _by_metric(contents)
    found = []
    for metric, title in CARDS.items():
        values = {side: figure(contents, side, metric) for side in contents.names}
        changes = {
            side: Change(say_change(of[metric]), _tone(of[metric])) for side, of in rows.items()
        }
        found.append(Card(title, values, changes))
    return found


def _tone(row: Mapping[str, Any]) -> Tone:
    return _TONES.get(row["verdict"] or "", "even")


def figure(contents: Contents, side: Side, metric: str) -> str:
    """A figure of a side in words, with how it is known where that is not plain."""
    estimated = estimated_figures(contents.runs[side].recording)
    value = flat_figures(dict(contents.figures[side]))[metric]
    return show_figure(metric, value, contents.missing[side], estimated)


def _by_metric(contents: Contents) -> dict[Side, dict[str, dict[str, Any]]]:
    """Side that is held against A -> figure -> its row of the comparison."""
    sides: dict[Side, Comparison | None] = {"B": contents.found, "C": contents.third}
    return {
        side: {row["metric"]: row for row in found.table.iter_rows(named=True)}
        for side, found in sides.items()
        if found is not None
    }


@dataclass(frozen=True)
class Line:
    """A line of a table. tones: place of a cell -> its tone, of those that are good or bad."""

    cells: Sequence[str]
    tones: Mapping[int, Tone] = field(default_factory=dict)


def figures_table(contents: Contents) -> tuple[list[str], list[Line]]:
    """All figures: header and lines; with differences and judgement where there are two runs, and
    those of C beside them where there are three."""
    if contents.found is None:
        names = flat_figures(dict(contents.figures["A"]))
        return ["Figure", "Value"], [Line([label(m), figure(contents, "A", m)]) for m in names]
    header = ["Figure", "A", "B", "B − A", "Change", "95 % interval of B − A", "B is"]
    header += ["C", "Change", "C is"] if contents.third is not None else []
    by_side = _by_metric(contents)
    return header, [
        _figure_line(contents, metric, row, by_side.get("C", {}).get(metric))
        for metric, row in by_side["B"].items()
    ]


def _figure_line(
    contents: Contents, metric: str, row: Mapping[str, Any], third: Mapping[str, Any] | None
) -> Line:
    cells = [
        label(metric),
        figure(contents, "A", metric),
        figure(contents, "B", metric),
        show_delta(metric, row["delta"]),
        _changed(row),
        say_interval(row),
        say_judged(row),
    ]
    tones = {len(cells) - 1: _tone(row)}
    if third is not None:
        cells += [figure(contents, "C", metric), _changed(third), say_judged(third)]
        tones[len(cells) - 1] = _tone(third)
    return Line(cells, tones)


def _changed(row: Mapping[str, Any]) -> str:
    return show_change(row["delta_frac"], coarse=row["verdict"] not in _TONES)


def latency_table(contents: Contents) -> tuple[list[str], list[Line]]:
    """p50, p90 and p99 of each latency, a column a side and quantile."""
    keys = [key for key in SUMMARY_KEYS if key != "mean"]
    many = len(contents.names) > 1
    header = ["Latency", *(f"{k} {s}" if many else k for k in keys for s in contents.names)]
    lines = [
        Line(
            [
                label(metric),
                *(
                    show(metric, contents.figures[side][metric][key])
                    for key in keys
                    for side in contents.names
                ),
            ]
        )
        for metric in LATENCIES
    ]
    return header, lines


# ---- preemptions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreemptedTable:
    """The costliest preemptions of a side as text; good_news instead where there is none."""

    side: Side
    caption: str
    header: Sequence[str]
    lines: Sequence[Line]
    good_news: str = ""


def preempted_tables(contents: Contents) -> list[PreemptedTable]:
    """A table a side."""
    return [_preempted_table(contents, side) for side in contents.names]


def _preempted_table(contents: Contents, side: Side) -> PreemptedTable:
    own, run = contents.preempted[side], contents.runs[side].recording
    name = f"{side} ({contents.names[side]})" if contents.found else contents.names[side]
    if "num_preemptions" in contents.missing[side]:
        return PreemptedTable(side, name, (), (), f"{name}: preemptions were not recorded.")
    if not own.num_all:
        return PreemptedTable(side, name, (), (), f"{name}: {_none(contents, side)}")
    others = [other for other in contents.names if other != side]
    rows = own.table.to_dicts()
    header = ["Victim", "Evicted for", "As", "When", "Step", "Free", "Blocks", "Tokens"]
    header += ["Again", "Cost", "Away", "Others lost"]
    header += [f"In {other}" for other in others]
    unknown = all(row["direct_cost_s"] is None for row in rows)
    order = "the first" if unknown else "the costliest"
    if own.num_all == 1:
        of = "its only preemption"
    elif len(rows) == own.num_all:
        of = f"all {own.num_all:,} preemptions"
    else:
        of = f"{order} {len(rows):,} of {own.num_all:,} preemptions"
    guessed = " Costs are the engine's estimates." if is_cost_estimated(run) else ""
    caption = f"{name}: {of}{' in the range' if contents.is_part else ''}.{guessed}"
    return PreemptedTable(side, caption, header, [_preemption(r, others) for r in rows])


def _preemption(row: Mapping[str, Any], others: Sequence[Side]) -> Line:
    own = row["cause_request_id"] == row["request_id"]
    cause = row["cause_request_id"]
    cells = [
        clip(row["request_id"], MOST_ID),
        "its own need" if own else "—" if cause is None else clip(cause, MOST_ID),
        _mode(row),
        seconds(row["t_s"]),
        f"{row['step']:,}",
        *(
            _count(row[c])
            for c in ("free_blocks_before", "blocks", "tokens", "recomputed_tokens")
        ),
        seconds(row["direct_cost_s"]),
        seconds(row["away_s"]) if row["away_s"] is not None else "never came back",
        seconds(row["induced_s"]),
    ]
    for other in others:
        times = row[f"in_{other}"]
        cells.append(
            "not in it" if times is None else "not preempted" if not times else f"{times:,} ×"
        )
    return Line(cells)


def _mode(row: Mapping[str, Any]) -> str:
    asked, used = row["mode_asked"], row["mode_used"]
    if used is None:
        return "—"
    return str(used) if asked in (used, None) else f"{used} (asked: {asked})"


def _count(value: int | None) -> str:
    return "—" if value is None else f"{value:,}"


def _none(contents: Contents, side: Side) -> str:
    if contents.is_part and contents.figures[side]["num_preemptions"]:
        return "no preemption in the reported range."
    peak = contents.figures[side]["peak_used_frac"]
    pool = contents.runs[side].recording.pool_blocks
    return f"no preemption; peak use {percent(peak or 0.0)} of {pool:,} blocks."


# ---- the timeline -----------------------------------------------------------------------------------


def timeline_table(contents: Contents) -> tuple[list[str], list[Line]]:
    """The timeline as a table: means of blocks, running and waiting, sums of preemptions."""
    table = data_table(contents.aligned, contents.shown, STRETCHES)
    header = table.columns
    if len(contents.names) == 1:
        header = [name.removesuffix(" · A") for name in header]
    return header, [Line([_number(v) for v in row]) for row in table.iter_rows()]


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:,.1f}".removesuffix(".0")
