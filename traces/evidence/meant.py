"""Which numbers can be meant: finite ones, and no count above what any server reaches.

Text holds anything: NaN, infinities, 1e308, thousands of digits. Readers ask here before they make a
count of a number, and what came through by sums and products is looked at once more where sources are
put together. A number that cannot be meant is missing, never 0 and never a limit. It knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from traces.evidence.evidence import Fact, Notice

MAX_MEANT = 1e15  # tokens of a server in 30 years, and a petabyte
MAX_RANK = 1_000_000


def is_meant(value: float) -> bool:
    """Whether a server can mean that number; False for NaN."""
    return -MAX_MEANT <= value <= MAX_MEANT


def whole(value: object) -> int | None:
    """The count that a value of JSON is; None for what is none: negative, NaN, endless, text, a switch."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_meant(value):
        return None
    return round(value) if value >= 0 else None


def is_rank(value: object) -> bool:
    """Whether that is a rank, a number of ranks, or nothing."""
    return value is None or (isinstance(value, int) and 0 <= value <= MAX_RANK)


def rows_that_are_meant(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], int]:
    """Rows of samples without numbers that cannot be meant, and how many of these there were."""
    kept: list[dict[str, Any]] = []
    lost = 0
    for row in rows:
        bad = [k for k, v in row.items() if isinstance(v, int | float) and not is_meant(v)]
        bad += [
            k for k in ("engine_rank", "num_ranks") if k not in bad and not is_rank(row.get(k))
        ]
        found = dict(row)
        if bad:
            lost += len(bad)
            for name in bad:
                del found[name]
            derived = found.get("inferred")
            if isinstance(derived, list):
                found["inferred"] = [n for n in derived if n not in bad]
        kept.append(found)
    return kept, lost


def facts_that_are_meant(facts: Sequence[Fact]) -> tuple[tuple[Fact, ...], int]:
    """Facts without those whose number cannot be meant, and how many of these there were."""
    kept = tuple(f for f in facts if _all_meant(f.value))
    return kept, len(facts) - len(kept)


def notice_that_is_meant(notice: Notice) -> bool:
    """Whether all numbers of a notice can be meant."""
    return _all_meant(notice.count) and all(_all_meant(v) for v in notice.values.values())


def _all_meant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_all_meant(v) for v in value)
    return not isinstance(value, int | float) or is_meant(value)
