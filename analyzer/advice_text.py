"""Advice as a terminal shows it: a line for each lever in a table, then what each rests on, in sentences.

It computes nothing; JSON is `Advice.as_json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analyzer.advice_parts import ENOUGH, HARDLY, HELPS, ROOM, Advice, Answer
from analyzer.advice_words import label_of, show_changes
from analyzer.goals import figure, say_standing
from analyzer.outcome import Outcome
from analyzer.words import show

_COLUMNS = ("num_preemptions", "recomputed_frac", "output_tokens_per_s", "ttft_s p99", "tpot_s p99", "e2e_s p99")  # fmt: skip


def print_advice(
    advice: Advice, about: str, validation: str, notes: Iterable[str], out: Path | None
) -> None:
    """Print all of it. about: the base in a line; validation: how near the simulator is to it, "" for
    nothing; notes: what limits the base; out: where the recordings are kept, None: nowhere."""
    print(about)
    print(f"Goal: {advice.goal}. At the base: {say_standing(advice.goal, advice.base)}.")
    if validation:
        print(f"Simulator against the recording: {validation}")
    print(f"\n{advice.summary}")
    for sentence in advice.obstacles:
        print(f"  in the way: {sentence}")
    print()
    _print_table(advice)
    for answer in (*advice.answers, *advice.pairs):
        if answer.option is not None:
            print("\n".join(as_text(answer, out is not None)))
    print(f"\n{advice.rule}")
    print(f"{advice.num_runs:,} simulations.", end=" ")
    print(
        f"The recordings that prove this, the base's {advice.base.recordings[0].name}, are in {out}."
        if out
        else "Give --out DIR to keep the recordings that prove this."
    )
    for note in dict.fromkeys((*notes, *advice.notes)):
        print(f"note: {note}")


def _print_table(advice: Advice) -> None:
    """A line for each lever: verdict, flag, figures, price."""
    more = ("goodput_rps",) if figure(advice.base.figures, "goodput_rps") is not None else ()
    table = Table(title=None, box=None, pad_edge=False)
    for name in ("", "Lever", "Flag, or value"):
        table.add_column(name, overflow="fold")
    heads = ("Preempt.", "Recomp.", "Tokens/s", "TTFT p99", "TPOT p99", "E2E p99", "Good/s")
    for name in heads[: len(_COLUMNS) + len(more)]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Price", overflow="fold", max_width=60)

    def figures(outcome: Outcome | None) -> list[str]:
        known = outcome.figures if outcome is not None else {}
        return [show(m, figure(known, m)) for m in (*_COLUMNS, *more)]

    table.add_row("base", "", "", *figures(advice.base), "")
    for answer in (*advice.answers, *advice.pairs):
        option = answer.option
        price = "; ".join(option.price.sentences()) or "the flag alone" if option else ""
        reason = price if option else answer.sentence
        table.add_row(
            answer.verdict,
            label_of(answer.levers),
            _flag_or_value(answer),
            *figures(option.outcome if option else None),
            reason,
        )
    console = Console(markup=False, highlight=False)
    console.width = 200
    console.print(table)


def _flag_or_value(answer: Answer) -> str:
    if answer.option is None:
        return ""
    return answer.option.flag or f"({show_changes(answer.option.changes)})"


def as_text(answer: Answer, with_proofs: bool) -> list[str]:
    """What an answer rests on, in lines: the sentence, what has to be known beside the flag, proofs."""
    lines = [f"{label_of(answer.levers)}: {answer.sentence}"]
    option = answer.option
    if option is None:
        return lines
    if option.notes and answer.verdict in (ENOUGH, ROOM, HELPS, HARDLY):
        lines.append(f"    note: {'; '.join(option.notes)}")
    if with_proofs:
        shown = (option.outcome, answer.below, answer.happens)
        names = [path.name for outcome in shown if outcome for path in outcome.recordings]
        lines.append(f"    proof: {' '.join(dict.fromkeys(names))}")
    return lines
