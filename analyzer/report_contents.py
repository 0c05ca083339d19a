"""What a report of one to three recordings says: figures and sentences, no markup and no picture.

It collects what the other modules compute and asks each once; of long recordings it reads what is
kept. It knows what a report holds and in which order; how it looks is in `report_figures` and the
templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from analyzer.aligned import Aligned
from analyzer.compare import Comparison, compare
from analyzer.condition import describe_condition
from analyzer.delta_words import as_third
from analyzer.look import Side, seconds
from analyzer.measured import copy_bytes_per_s
from analyzer.report_setup import Setup, set_up
from analyzer.run import Run, run_names
from analyzer.run_figures import comparison_of, figures_of, preemptions_of
from analyzer.spending import describe_spending
from analyzer.summary import missing_figures
from analyzer.verdict import Verdict
from analyzer.words import percent, show
from traces.errors import SettingsError
from traces.recording import Recording

TOP = 8  # preemptions listed of each side
MOST_TITLE = 200
MOST_NOTES = 20_000


@dataclass(frozen=True)
class Ask:
    """What the user says of a report. title, notes: plain text; shown: part of the time, s since the
    start; permalink: address of the page that shows the same; seed, anyway: as for `compare`."""

    title: str = ""
    notes: str = ""
    shown: tuple[float, float] | None = None
    permalink: str = ""
    seed: int = 0
    anyway: bool = False

    def __post_init__(self) -> None:
        for name, text, most in (
            ("title", self.title, MOST_TITLE),
            ("notes", self.notes, MOST_NOTES),
        ):
            if len(text) > most:
                raise SettingsError(
                    f"the {name} of a report may have {most:,} characters, not {len(text):,}."
                )


@dataclass(frozen=True)
class Preempted:
    """The costliest preemptions of a side in the reported time. table: as from `told`, with a column
    `in_B` for each other side, how often that run preempted the same request (null where it is not in
    it); num_all: how many there were."""

    table: pl.DataFrame
    num_all: int


@dataclass(frozen=True)
class Contents:
    """Everything a report says. names: side -> what it is called; found: B against A, None for one
    recording; third: C against A, None where there is no third; verdict: of B, or on the one; verdict_c:
    of C, "" for none; figures: side -> as from `summarize`; shown: the reported part of the time, s."""

    ask: Ask
    runs: Mapping[Side, Run]
    names: Mapping[Side, str]
    figures: Mapping[Side, Mapping[str, Any]]
    found: Comparison | None
    third: Comparison | None
    verdict: str
    verdict_c: str
    why: str
    set_up: tuple[Setup, ...]
    preempted: Mapping[Side, Preempted]
    aligned: Aligned = field(repr=False)
    shown: tuple[float, float]

    @property
    def title(self) -> str:
        if self.ask.title.strip():
            return self.ask.title.strip()
        if self.found is None:
            return self.runs["A"].recording.label[:MOST_TITLE]
        first, *others = (f"{side} {name}" for side, name in self.names.items())
        return f"{first} against {' and '.join(others)}"

    @property
    def is_part(self) -> bool:
        return self.ask.shown is not None

    @cached_property
    def missing(self) -> Mapping[Side, frozenset[str]]:
        return {side: missing_figures(run.meta) for side, run in self.runs.items()}


def gather(
    a: Run,
    b: Run | None = None,
    ask: Ask | None = None,
    found: Comparison | None = None,
    *,
    c: Run | None = None,
    third: Comparison | None = None,
) -> Contents:
    """What a report of A, of B against A, or of B and C against A says. found, third: their
    comparisons with A, where they are known.

    Raises CompareError where two must not be compared, SettingsError for a range in which no run is.
    """
    ask = ask or Ask()
    runs: dict[Side, Run] = {"A": a}
    if b is not None:
        runs["B"] = b
    if c is not None:
        runs["C"] = c
    part = check_range(ask.shown)
    if b is not None and found is None:
        found = _compared(a, b, ask)
    if c is not None and third is None:
        third = _compared(a, c, ask)
    aligned = Aligned(runs, "time")
    check_within(part, aligned.full[1])
    figures: dict[Side, Mapping[str, Any]] = {"A": found.a if found else figures_of(a)}
    figures |= {side: f.b for side, f in _by_side(found, third).items()}
    if found is None:
        verdict, why = _alone(a, figures["A"])
    else:
        verdict, why = found.verdict.text, found.verdict.why
    return Contents(
        ask,
        runs,
        run_names(runs),
        figures,
        found,
        third,
        verdict,
        "" if found is None or third is None else _of_third(found.verdict, third.verdict),
        why if c is None else f"{why} {_spent('C', c, figures['C'])}".strip(),
        tuple(set_up(runs, part, aligned.ends)),
        {side: _preempted(side, runs, part) for side in runs},
        aligned,
        aligned.clip(part),
    )


def _of_third(found: Verdict, third: Verdict) -> str:
    """The sentence on C. Where it holds under what holds for B, that is not said again."""
    text = as_third(third.text)
    for clock in (", in modelled time", ", in measured time", ""):
        condition = f"At {third.condition}{clock}, "
        if condition in text and condition in found.text:
            return text.replace(condition, "Under the same conditions, ", 1)
    return text


def _by_side(found: Comparison | None, third: Comparison | None) -> dict[Side, Comparison]:
    sides: dict[Side, Comparison | None] = {"B": found, "C": third}
    return {side: f for side, f in sides.items() if f is not None}


def _compared(a: Run, b: Run, ask: Ask) -> Comparison:
    """B against A, kept where it is what everybody asks for. Raises CompareError."""
    if ask.seed == 0 and not ask.anyway:
        return comparison_of(a, b)
    known = {id(run.recording): figures_of(run) for run in (a, b)}
    return compare(
        a.recording,
        b.recording,
        seed=ask.seed,
        anyway=ask.anyway,
        summary=lambda recording: known[id(recording)],
    )


def _alone(a: Run, figures: Mapping[str, Any]) -> tuple[str, str]:
    """A sentence or two on one recording, and what it spent on preemptions."""
    verdict = _kept(a, "described", lambda: describe_run(a.recording, figures))
    return verdict, _spent("It", a, figures)


def _spent(who: str, run: Run, figures: Mapping[str, Any]) -> str:
    return _kept(run, f"spending-{who}", lambda: describe_spending(who, run.recording, figures))


def _kept(run: Run, name: str, make: Callable[[], str]) -> str:
    """A sentence that looks at all events; of a long run it is kept."""
    return make() if run.files is None else str(run.files.document(name, make))


def check_range(shown: tuple[float, float] | None) -> tuple[float, float] | None:
    """The range itself. Raises SettingsError where it is none."""
    if shown is None:
        return None
    start, end = shown
    if not 0 <= start < end < float("inf"):
        raise SettingsError(
            f"a range runs from an earlier to a later second, such as 100:130; {start:g}:{end:g} does not."
        )
    return start, end


def check_within(part: tuple[float, float] | None, end_s: float) -> None:
    """Raise SettingsError where a range begins after the runs have ended."""
    if part is not None and part[0] >= end_s:
        raise SettingsError(
            f"the range begins at {part[0]:g} s, and the last step ends at {end_s:,.3f} s. Give a range before that."
        )


def parse_range(text: str | None) -> tuple[float, float] | None:
    """'100:130' -> (100.0, 130.0), None for None. Raises SettingsError for anything else."""
    if text is None:
        return None
    start, colon, end = text.partition(":")
    try:
        found = float(start), float(end)
    except ValueError:
        colon = ""
    if not colon:
        raise SettingsError(
            f"{text[:60]!r} is no range. Give seconds since the start as FROM:TO, such as 100:130."
        )
    return check_range(found)


def describe_run(run: Recording, figures: Mapping[str, Any]) -> str:
    """One sentence or two about a single recording: under what, how it ended, how full the pool was."""
    condition = describe_condition(
        run.meta,
        run.meta,
        run.pool_blocks,
        run.pool_blocks,
        copies=bool(figures["num_preemptions"]),
        rates=(copy_bytes_per_s(run),) * 2,
    )
    clock = run.meta.clock
    timed = f", in {clock} time" if clock in ("modelled", "measured") else ""
    mode = run.meta.preemption_mode or "the run"
    done, asked = figures["num_finished"], figures["num_requests"]
    unit = " steps" if clock == "step" else ""
    length = f"{figures['duration_s']:,.0f}{unit}" if unit else seconds(figures["duration_s"])
    said = f"At {condition}{timed}, {mode} finishes {done:,} of {asked:,} requests in {length}"
    tails = [
        f"{label} p99 {show(key, figures[key]['p99'])}"
        for key, label in (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("e2e_s", "E2E"))
        if figures[key]["p99"] is not None and not unit
    ]
    said += f", with {', '.join(tails)}." if tails else "."
    return f"{said} {_pressure(run, figures)}"


def _pressure(run: Recording, figures: Mapping[str, Any]) -> str:
    """How full the pool was, and what came of it."""
    peak, full = figures["peak_used_frac"], figures["full_steps_frac"]
    if peak is None:
        return "It has no step."
    num = figures["num_preemptions"]
    if num == 0:
        return f"No preemption; peak use {percent(peak)} of {run.pool_blocks:,} blocks."
    filled = f"The pool is at least 98 % full in {percent(full)} of the steps"
    if num is None:
        return f"{filled}; preemptions were not recorded."
    victims = figures["num_preempted_requests"]
    of = f" of {victims:,} request{'' if victims == 1 else 's'}" if victims else ""
    return f"{filled}, with {num:,} preemption{'' if num == 1 else 's'}{of}."


def _preempted(
    side: Side, runs: Mapping[Side, Run], part: tuple[float, float] | None
) -> Preempted:
    """The costliest preemptions of a side within the reported time. Of all of them only times and
    costs are looked at."""
    table = preemptions_of(runs[side])
    rows = table.lazy().select("t_s", "direct_cost_s").with_row_index("row")
    if part is not None:
        rows = rows.filter(pl.col("t_s").is_between(*part))
    kept = rows.collect()
    top = _costliest(kept, table)
    for other, run in runs.items():
        if other != side:
            ids = top["request_id"].to_list()
            theirs = run.requests.lazy().filter(pl.col("request_id").is_in(ids))
            times = theirs.select("request_id", pl.col("num_preemptions").alias(f"in_{other}"))
            top = top.join(times.collect(), on="request_id", how="left", maintain_order="left")
    return Preempted(top, kept.height)


def _costliest(rows: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The TOP of these rows of the table: costliest first, those of unknown cost last, then by time
    and request id. rows: row, t_s, direct_cost_s."""
    rows = rows.with_columns(pl.col("direct_cost_s").fill_null(-1.0)).sort(
        "direct_cost_s", "t_s", descending=[True, False]
    )
    if rows.height > TOP:  # and whatever ties with the last of them
        cost_s, t_s = rows.select("direct_cost_s", "t_s").row(TOP - 1)
        same = (pl.col("direct_cost_s") == cost_s) & (pl.col("t_s") <= t_s)
        rows = rows.filter((pl.col("direct_cost_s") > cost_s) | same)
    return (
        table[rows["row"]]
        .sort(
            pl.col("direct_cost_s").fill_null(-1.0),
            "t_s",
            "request_id",
            descending=[True, False, False],
        )
        .head(TOP)
    )
