"""The tables of a report as text: cards, figures, latencies, preemptions, method and limits.

It knows labels, units and how long a foreign text may be. Every figure and judgement was made
elsewhere; nothing here is markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.aligned import data_table
from analyzer.judging import TOLERANCE_FRAC
from analyzer.look import Side, seconds, three_digits
from analyzer.measured import is_cost_estimated
from analyzer.report_contents import Contents
from analyzer.report_setup import Setup
from analyzer.stats import SUMMARY_KEYS
from analyzer.words import (
    label,
    percent,
    show,
    show_change,
    show_delta,
    show_figure,
    show_verdict,
)

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
MOST_TEXT = 120  # of any other foreign text
_UNIT = re.compile(r"(\d) (%|s|ms|µs|[KMG]i?B(?:/s)?|B)(?![\w])")
Tone = str  # "good", "bad" or "even"
_TONES: Mapping[str, Tone] = {"better": "good", "worse": "bad"}


def clip(text: object, most: int = MOST_TEXT) -> str:
    """Foreign text on one line, cut where it is longer than anybody reads."""
    start = str(text)[: most * 4]  # an id may have megabytes
    line = " ".join(start.split())
    cut = len(line) > most or len(str(text)) > len(start)
    return f"{line[: most - 1]}…" if cut else line


@dataclass(frozen=True)
class Card:
    """A figure of each side, the change from A to B, and whether that is good. change "" for one run."""

    title: str
    values: Mapping[Side, str]
    change: str
    tone: Tone


def cards(contents: Contents) -> list[Card]:
    """The six figures that say most."""
    rows = _by_metric(contents)
    found = []
    for metric, title in CARDS.items():
        values = {side: figure(contents, side, metric) for side in contents.names}
        row = rows.get(metric)
        tone = _TONES.get(row["verdict"] or "", "even") if row else "even"
        found.append(Card(title, values, change(row) if row else "", tone))
    return found


def figure(contents: Contents, side: Side, metric: str) -> str:
    """A figure of a side in words, with how it is known where that is not plain."""
    estimated = (
        contents.found.estimated.get(side, frozenset()) if contents.found else frozenset()
    )
    if not contents.found and is_cost_estimated(contents.runs[side].recording):
        estimated = frozenset({"preemption_cost_s"})
    return show_figure(
        metric, _value(contents.figures[side], metric), contents.missing[side], estimated
    )


def _value(figures: Mapping[str, Any], metric: str) -> float | None:
    name, _, which = metric.partition(" ")
    value = figures[name]
    return value[which] if which else value


def _by_metric(contents: Contents) -> dict[str, dict[str, Any]]:
    if contents.found is None:
        return {}
    return {row["metric"]: row for row in contents.found.table.iter_rows(named=True)}


def change(row: Mapping[str, Any]) -> str:
    """'▼ 10.0 % better', 'no difference'; in points where the figure is a share."""
    delta, word = row["delta"], show_verdict(row["verdict"], row["reason"])
    if delta is None:
        return "not comparable"
    if word == "no difference" or not delta:
        return "no difference"
    arrow = "▲" if delta > 0 else "▼"
    if row["metric"].endswith("_frac"):
        return f"{arrow} {three_digits(abs(delta) * 100)} points {word}".strip()
    if row["delta_frac"] is None:
        return f"{arrow} from 0 {word}".strip()
    return f"{arrow} {percent(abs(row['delta_frac']))} {word}".strip()


@dataclass(frozen=True)
class Line:
    """A line of a table. tone: of its last cell."""

    cells: Sequence[str]
    tone: Tone = "even"


def figures_table(contents: Contents) -> tuple[list[str], list[Line]]:
    """All figures: header and lines; with differences and judgement where there are two runs."""
    if contents.found is None:
        names = [
            f"{name} {key}" if isinstance(value, dict) else name
            for name, value in contents.figures["A"].items()
            for key in (SUMMARY_KEYS if isinstance(value, dict) else ("",))
        ]
        return ["Figure", "Value"], [Line([label(m), figure(contents, "A", m)]) for m in names]
    header = ["Figure", "A", "B", "B − A", "Change", "95 % interval of B − A", "B is"]
    lines = []
    for row in contents.found.table.iter_rows(named=True):
        metric, verdict = row["metric"], row["verdict"]
        judged = show_verdict(verdict, row["reason"])
        if row["delta"] and verdict in _TONES:
            judged = f"{'▲' if row['delta'] > 0 else '▼'} {judged}"
        interval = (
            f"{show(metric, row['low'])} to {show(metric, row['high'])}"
            if row["low"] is not None
            else ""
        )
        cells = [
            label(metric),
            figure(contents, "A", metric),
            figure(contents, "B", metric),
            show_delta(metric, row["delta"]),
            show_change(row["delta_frac"], coarse=verdict not in _TONES),
            interval,
            judged,
        ]
        lines.append(Line(cells, _TONES.get(verdict or "", "even")))
    return header, lines


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
    others: Side = "B" if side == "A" else "A"
    rows = own.table.to_dicts()
    header = ["Victim", "Evicted for", "As", "When", "Step", "Free", "Blocks", "Tokens"]
    header += ["Again", "Cost", "Away", "Others lost"]
    header += [f"In {others}"] if contents.found else []
    unknown = all(row["direct_cost_s"] is None for row in rows)
    order = "the first" if unknown else "the costliest"
    of = (
        f"{order} {len(rows):,} of {own.num_all:,}"
        if len(rows) < own.num_all
        else f"all {own.num_all:,}"
    )
    guessed = " Costs are the engine's estimates." if is_cost_estimated(run) else ""
    caption = f"{name}: {of} preemptions{' in the range' if contents.is_part else ''}.{guessed}"
    return PreemptedTable(
        side, caption, header, [_preemption(r, bool(contents.found)) for r in rows]
    )


def _preemption(row: Mapping[str, Any], has_other: bool) -> Line:
    own = row["cause_request_id"] == row["request_id"]
    cause = row["cause_request_id"]
    asked, used = str(row["mode_asked"]), str(row["mode_used"])
    cells = [
        clip(row["request_id"], MOST_ID),
        "its own need" if own else "—" if cause is None else clip(cause, MOST_ID),
        used if asked in (used, "None") else f"{used} (asked: {asked})",
        seconds(row["t_s"]),
        f"{row['step']:,}",
        f"{row['free_blocks_before']:,}",
        f"{row['blocks']:,}",
        f"{row['tokens']:,}",
        "—" if row["recomputed_tokens"] is None else f"{row['recomputed_tokens']:,}",
        seconds(row["direct_cost_s"]),
        seconds(row["away_s"]) if row["away_s"] is not None else "never came back",
        seconds(row["induced_s"]),
    ]
    if has_other:
        times = row["other"]
        cells.append(
            "not in it" if times is None else "not preempted" if not times else f"{times:,} ×"
        )
    return Line(cells)


def _none(contents: Contents, side: Side) -> str:
    if contents.is_part and contents.figures[side]["num_preemptions"]:
        return "no preemption in the reported range."
    peak = contents.figures[side]["peak_used_frac"]
    pool = contents.runs[side].recording.pool_blocks
    return f"no preemption; peak use {percent(peak or 0.0)} of {pool:,} blocks."


# ---- method and limits --------------------------------------------------------------------------


def limits(contents: Contents) -> list[str]:
    """How the figures were made and what they cannot say, a sentence or two each."""
    said = [*_clocks(contents), *_judging(contents)]
    if contents.is_part:
        start, end = contents.shown
        said.append(
            f"Timeline and preemptions are of {three_digits(start)} to {three_digits(end)} s; sentence, cards, "
            "latencies and figures are of whole runs."
        )
    said.append(
        "TTFT: arrival to first output token. ITL: gap between neighbouring output tokens. TPOT: (E2E − TTFT) / (tokens − 1), "
        "one a request. E2E: arrival to last token. All over finished requests, percentiles linear."
    )
    said.append(
        "Cost of a preemption: what its mode did cost alone, tokens computed again or copies both ways. Away: until the victim "
        "ran again. Others lost: request-seconds by which other running requests were delayed; queueing that follows is in neither."
    )
    for side, names in contents.missing.items():
        if names:
            said.append(f"Not recorded in {side}: {', '.join(sorted(map(label, names)))}.")
    notes = contents.found.notes if contents.found else contents.runs["A"].recording.notes
    said += [clip(note, 400) for note in notes if not note.startswith("preemption_mode:")]
    for side, run in contents.runs.items():
        listed = run.meta.workload.get("notes")
        if isinstance(listed, list) and side == "A":
            said += [f"Workload: {clip(note, 400)}" for note in listed[:5]]
    return said


def _clocks(contents: Contents) -> list[str]:
    runs = contents.runs.values()
    said = []
    if any(r.meta.clock == "modelled" for r in runs):
        said.append(
            "Times are modelled from the model's shape and the device's preset. Decisions (who is admitted, preempted, finished at "
            "which step) follow vLLM's V1 scheduler, which preempts by recompute, and by offload with a connector: swap and "
            "cheapest are ours."
        )
    if any(r.meta.clock == "measured" for r in runs):
        said.append("Times are measured by the engine's clock, one run of each side.")
    return said


def _judging(contents: Contents) -> list[str]:
    if contents.found is None:
        return []
    rules = contents.found.rules
    unknown = "of run-to-run noise" if rules.noise_frac else "of the model's error"
    wider = f", widened by {percent(rules.noise_frac)} of A," if rules.noise_frac else ""
    return [
        "Intervals are a paired block bootstrap over requests: what another draw of such requests could have given, and nothing "
        f"{unknown}. No difference: the interval{wider} holds zero, or times differ by less than {percent(rules.time_frac)}, "
        f"other figures by less than {percent(TOLERANCE_FRAC)}."
    ]


def timeline_table(contents: Contents) -> tuple[list[str], list[Line]]:
    """The timeline as a table: means of blocks, running and waiting, sums of preemptions."""
    table = data_table(contents.aligned, contents.shown, STRETCHES)
    header = table.columns
    if len(contents.names) == 1:
        header = [name.removesuffix(" · A") for name in header]
    return header, [Line([_number(v) for v in row]) for row in table.iter_rows()]


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:,.1f}".removesuffix(".0")


def in_short(contents: Contents) -> str:
    """What a reader of a screenshot asks for first, on one line."""
    rows = {row.label: row for row in contents.set_up}
    run = list(contents.runs.values())[-1]
    size = run.meta.block_size_tokens
    pools = {r.recording.pool_blocks for r in contents.runs.values()}
    pool = " and ".join(f"{n:,}" for n in sorted(pools)) + " blocks"
    parts = [f"{run.requests.height:,} requests", f"{pool} of {size} tokens" if size else pool]
    for name in ("Model", "Device"):
        said = rows[name].same
        if said and said != "not stated":
            parts.append(said.split(",")[0])
    clocks = {r.meta.clock for r in contents.runs.values()}
    if len(clocks) == 1 and (clock := clocks.pop()) in ("modelled", "measured"):
        parts.append(f"{clock} time")
    return " · ".join(clip(part, 60) for part in parts)


def range_words(contents: Contents) -> str:
    """'100 to 130 s of 775 s'."""
    start, end = contents.shown
    return f"{three_digits(start)} to {three_digits(end)} s of {three_digits(contents.aligned.full[1])} s"


def card_setup(contents: Contents) -> list[tuple[str, str]]:
    """The set-up in as few lines as a card has room for: what all share, then what differs."""
    rows = {row.label: row for row in contents.set_up}
    terms = {
        "Settings": _unbroken(_together(rows["Not vLLM's defaults"], "\n")),
        "Pool": _together(rows["KV pool"], "; "),
        "Load": f"{_together(rows['Requests'], '; ')}; {_shown(contents)}",
        "Lengths": _together(rows["Lengths"], ";\n", "; "),
    }
    return [(term, clip_lines(text)) for term, text in terms.items()]


def engine_line(contents: Contents) -> str:
    """Who ran it, in which version, on one line."""
    row = next(row for row in contents.set_up if row.label == "Engine")
    return clip(_together(row, "; ").replace("\n", "; "), 90)


def _together(row: Setup, apart: str, joint: str = ", ") -> str:
    """The parts that all sides share on one line, then a line for each side that has more."""
    parts = {side: text.split(apart) for side, text in row.values.items()}
    first = next(iter(parts.values()))
    common = [p for p in first if all(p in own for own in parts.values())]
    lines = [joint.join(common)] if common else []
    for side, own in parts.items():
        left = [p for p in own if p not in common]
        lines += [f"{side}: {joint.join(left)}"] if left else []
    return "\n".join(lines)


def _unbroken(flags: str) -> str:
    """Flags of a picture, where no line may end at a hyphen within one."""
    return flags.replace("-", "\u2011")


def _shown(contents: Contents) -> str:
    if contents.is_part:
        return f"shown {range_words(contents)}"
    return f"shown 0 to {three_digits(contents.shown[1])} s, all of it"


def tidy(text: str) -> str:
    """A sentence for display: real arrows, and no line break between a number and its unit."""
    return _UNIT.sub("\\1\u00a0\\2", text.replace(" -> ", "\u00a0→\u00a0"))


def clip_lines(text: str, most: int = 220) -> str:
    return "\n".join(clip(line, most) for line in text.split("\n"))
