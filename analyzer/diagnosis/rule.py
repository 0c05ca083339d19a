"""What a rule is: a name, a word, what it needs, a small function, a reason and a source.

To add one: write a function Quantities -> Finding | None in a file of rules/, put a Rule with it into that
file's RULES, and a line into docs/diagnosis.md (a test compares the two). `order` says which verdict comes
first when several rules find something; `overrules` names the words that this finding explains, so that
they are excluded with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from analyzer.diagnosis.findings import WORDS, Finding
from analyzer.diagnosis.quantities import KINDS, Quantities


@dataclass(frozen=True)
class Rule:
    """name: short, unique; word: the verdict; order: smaller comes first; needs: KINDS of evidence without
    which `find` is not asked; find: the finding, or None; exclude: why it is not so, with numbers, or
    None; reason: why the sign means the word; source: thread or source file; overrules: see the module."""

    name: str
    word: str
    order: int
    needs: tuple[str, ...]
    find: Callable[[Quantities], Finding | None]
    reason: str
    source: str
    exclude: Callable[[Quantities], str | None] | None = None
    overrules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.word not in WORDS or not set(self.needs) <= set(KINDS):
            raise KeyError(f"rule {self.name}: unknown word or kind of evidence")
        if not set(self.overrules) <= set(WORDS):
            raise KeyError(f"rule {self.name}: overrules an unknown word")


def percent(share: float | None, digits: int = 1) -> str:
    """0.991 -> '99.1 %'."""
    return "unknown" if share is None else f"{100 * share:.{digits}f} %"


def times(n: int, what: str) -> str:
    """'1 sample', '3 samples'."""
    return f"{n:,} {what}" + ("" if n == 1 else "s")
