"""The tables of docs/diagnosis.md, made from the rules and traps: `python -m analyzer.diagnosis.describe`.

It prints what stands below the line `<!-- made by ... -->` of that page; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.diagnosis.findings import WORDS
from analyzer.diagnosis.rules import RULES
from analyzer.diagnosis.traps import TRAPS

MARK = "<!-- made by python -m analyzer.diagnosis.describe -->"


def as_markdown() -> str:
    """Words, rules in their order, and traps, as tables."""
    rules = [
        (
            str(r.order),
            f"`{r.name}`",
            r.word,
            ", ".join(r.needs) or "anything",
            r.reason,
            r.source,
            ", ".join(r.overrules) or "nothing",
        )
        for r in RULES
    ]
    traps = [(f"`{t.name}`", ", ".join(t.engines) or "any", t.note, t.source) for t in TRAPS]
    return "\n".join(
        [
            MARK,
            "",
            "## Words",
            "",
            *_table(("word", "meaning"), list(WORDS.items())),
            "",
            "## Rules",
            "",
            *_table(
                (
                    "order",
                    "rule",
                    "verdict",
                    "needs",
                    "why the sign means it",
                    "source",
                    "overrules",
                ),
                rules,
            ),
            "",
            "## Traps",
            "",
            *_table(("trap", "engines", "what the user is told", "source"), traps),
            "",
        ]
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in cells]


if __name__ == "__main__":
    print(as_markdown(), end="")
