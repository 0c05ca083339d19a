"""What changed from A to another run, in words: a row of `Comparison.table` for a card or a table.

It knows arrows, units and the word of a judgement. Who is better is said in `judging.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from analyzer.judging import TOLERANCE_FRAC, Rules
from analyzer.look import three_digits
from analyzer.words import percent, show, show_verdict

_SIDE_B = re.compile(r"\bB\b")


def as_third(sentence: str) -> str:
    """What is said of B against A, said of the run in place C."""
    return _SIDE_B.sub("C", sentence)


def say_change(row: Mapping[str, Any]) -> str:
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


def say_judged(row: Mapping[str, Any]) -> str:
    """'▼ better': the arrow says where the figure went, the word what that means."""
    word = show_verdict(row["verdict"], row["reason"])
    if not row["delta"] or not row["verdict"] or word == "no difference":
        return word
    return f"{'▲' if row['delta'] > 0 else '▼'} {word}"


def say_interval(row: Mapping[str, Any]) -> str:
    """'−604 ms to −96.7 ms', '' where there is none."""
    if row["low"] is None:
        return ""
    return f"{show(row['metric'], row['low'])} to {show(row['metric'], row['high'])}"


def say_how_judged(rules: Rules) -> str:
    """What the intervals hold, and from what difference on there is a verdict."""
    unknown = "of run-to-run noise" if rules.noise_frac else "of the model's error"
    wider = f", widened by {percent(rules.noise_frac)} of A," if rules.noise_frac else ""
    return (
        f"Intervals: paired block bootstrap over requests; they say what another draw of such requests could have given, and nothing {unknown}. "
        f"No difference: the interval{wider} holds zero, or times differ by less than {percent(rules.time_frac)}, other figures by less than {percent(TOLERANCE_FRAC)}."
    )
