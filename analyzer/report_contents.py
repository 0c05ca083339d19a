"""What a report of one or two recordings says: figures and sentences, no markup and no picture.

It collects what the other modules compute and asks each once. It knows what a report holds and in
which order; how it looks is in `report_figures` and the templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from analyzer.aligned import Aligned
from analyzer.compare import Comparison, compare
from analyzer.condition import describe_condition
from analyzer.look import Side, seconds
from analyzer.measured import copy_bytes_per_s, recompute_token_s
from analyzer.preemptions import preemptions
from analyzer.report_setup import Setup, set_up
from analyzer.run import Run, run_names
from analyzer.spending import describe_spending
from analyzer.summary import missing_figures, summarize
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
    """The costliest preemptions of a side in the reported time. table: as from `preemptions`, with
    `other`, how often the other run preempted the same request (null where it is not in it);
    num_all: how many there were."""

    table: pl.DataFrame
    num_all: int


@dataclass(frozen=True)
class Contents:
    """Everything a report says. names: side -> what it is called; found: None for one recording;
    figures: side -> as from `summarize`; shown: the reported part of the time, s."""

    ask: Ask
    runs: Mapping[Side, Run]
    names: Mapping[Side, str]
    figures: Mapping[Side, Mapping[str, Any]]
    found: Comparison | None
    verdict: str
    why: str
    set_up: tuple[Setup, ...]
    preempted: Mapping[Side, Preempted]
    aligned: Aligned = field(repr=False)
    shown: tuple[float, float]

    @property
    def title(self) -> str:
        if self.ask.title.strip():
            return self.ask.title.strip()
        runs = " against ".join(f"{side} {name}" for side, name in self.names.items())
        return runs if self.found else self.runs["A"].recording.label[:MOST_TITLE]

    @property
    def is_part(self) -> bool:
        return self.ask.shown is not None

    @cached_property
    def missing(self) -> Mapping[Side, frozenset[str]]:
        return {side: missing_figures(run.meta) for side, run in self.runs.items()}


def gather(
    a: Run, b: Run | None = None, ask: Ask | None = None, found: Comparison | None = None
) -> Contents:
    """What a report of A, or of B against A, says. found: their comparison, where it is known.

    Raises CompareError where the two must not be compared, SettingsError for a range in which
    neither run is.
    """
    ask = ask or Ask()
    runs: dict[Side, Run] = {"A": a} if b is None else {"A": a, "B": b}
    part = check_range(ask.shown)
    if b is not None and found is None:
        found = compare(a.recording, b.recording, seed=ask.seed, anyway=ask.anyway)
    aligned = Aligned(runs, "time")
    check_within(part, aligned.full[1])
    figures: dict[Side, Mapping[str, Any]]
    if found is None:
        figures = {"A": summarize(a.recording)}
        verdict = describe_run(a.recording, figures["A"])
        why = describe_spending("It", a.recording, figures["A"])
    else:
        figures = {"A": found.a, "B": found.b}
        verdict, why = found.verdict.text, found.verdict.why
    return Contents(
        ask,
        runs,
        run_names(runs),
        figures,
        found,
        verdict,
        why,
        tuple(set_up(runs, part, aligned.ends)),
        {side: _preempted(side, runs, part) for side in runs},
        aligned,
        aligned.clip(part),
    )


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
    """The costliest preemptions of a side within the reported time."""
    run = runs[side]
    table = preemptions(run.events, run.steps, token_s=recompute_token_s(run.recording))
    if part is not None:
        table = table.filter(pl.col("t_s").is_between(*part))
    top = table.sort(
        pl.col("direct_cost_s").fill_null(-1.0),
        "t_s",
        "request_id",
        descending=[True, False, False],
    ).head(TOP)
    other = next((r for s, r in runs.items() if s != side), None)
    if other is None:
        return Preempted(top.with_columns(other=pl.lit(None, pl.Int32)), table.height)
    theirs = other.requests.select("request_id", other="num_preemptions")
    return Preempted(
        top.join(theirs, on="request_id", how="left", maintain_order="left"), table.height
    )
