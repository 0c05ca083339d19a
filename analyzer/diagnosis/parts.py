"""Evidence of several servers or runs, told apart by the pools that its sources state.

Sources that state pools of different size are different servers, or one with other settings; so are runs
of a table with pools of their own, and sources with samples of different engines. Notes and flags, which state none, belong to every part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from traces.evidence.evidence import Evidence, Fact
from traces.telemetry import Telemetry

SAME_FRAC = 0.02
ROUTER = "dynamo"  # stands before another engine, and counts what that runs
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)


def split_parts(evidence: Evidence) -> list[Evidence]:
    """The evidence as it is, or one for each server or run that it is of."""
    stated = _stated_pools(evidence.facts)
    groups = _groups(stated)
    if len(groups) < 2:
        groups = _by_engine(evidence) or groups
    tables = _of_other_pools(evidence, stated)
    if len(groups) < 2 and not tables:
        return [evidence]
    parts = [_part(evidence, group, groups) for group in groups] if groups else []
    if tables:
        base = parts or [replace(evidence, sweeps=())]
        # rows of the pools that the sources state stay with them
        parts = [*base, _tables_only(evidence)]
    return parts


def _stated_pools(facts: Sequence[Fact]) -> dict[str, dict[str, float]]:
    """Source -> sizes that it states, the last said."""
    found: dict[str, dict[str, float]] = {}
    for fact in facts:
        good = fact.name in ("pool_blocks", "pool_tokens") and isinstance(
            fact.value, int | float
        )
        if good and not fact.inferred and fact.at is not None:
            found.setdefault(fact.at.source, {})[fact.name] = float(fact.value)  # type: ignore[arg-type]  # a number, looked at in `good`
    return found


def _by_engine(evidence: Evidence) -> list[list[str]]:
    """Sources with samples, those of one engine together; [] where all are of one."""
    if evidence.telemetry is None:
        return []
    sampled = set(evidence.telemetry.samples["source"].unique().to_list())
    found: dict[str, list[str]] = {}
    for report in evidence.sources:
        if report.engine and report.engine != ROUTER and report.name in sampled:
            found.setdefault(report.engine, []).append(report.name)
    return list(found.values()) if len(found) > 1 else []


def _agree(a: dict[str, float], b: dict[str, float]) -> bool:
    """Whether two sources can be of one pool: what both state is the same."""
    both = set(a) & set(b)
    if both:
        return all(abs(a[k] / b[k] - 1) <= SAME_FRAC for k in both if b[k])
    tokens, blocks = (a, b) if "pool_tokens" in a else (b, a)
    size = tokens["pool_tokens"] / blocks["pool_blocks"] if blocks.get("pool_blocks") else 0
    return any(abs(size / usual - 1) <= SAME_FRAC for usual in BLOCK_SIZES)


def _groups(stated: dict[str, dict[str, float]]) -> list[list[str]]:
    """Sources whose pools agree, together."""
    groups: list[list[str]] = []
    for source, sizes in stated.items():
        home = next((g for g in groups if all(_agree(stated[s], sizes) for s in g)), None)
        if home is None:
            groups.append([source])
        else:
            home.append(source)
    return groups


def _of_other_pools(evidence: Evidence, stated: dict[str, dict[str, float]]) -> bool:
    """Whether the tables state pools that no source does, beside sources that state one."""
    pools = [
        float(p) for r in evidence.sweeps if isinstance(p := r.get("pool_tokens"), int | float)
    ]
    known = [s["pool_tokens"] for s in stated.values() if "pool_tokens" in s]
    if not pools or not stated:
        return False
    return not any(abs(p / k - 1) <= SAME_FRAC for p in pools for k in known if k)


def _part(
    evidence: Evidence, group: Sequence[str], groups: Sequence[Sequence[str]]
) -> Evidence:
    others = {s for g in groups if g is not group for s in g}
    label = ", ".join(group)

    def mine(source: str | None) -> bool:
        return source is None or source not in others

    reports = tuple(r for r in evidence.sources if mine(r.name))
    own = next((r for r in reports if r.name in group), None)
    return replace(
        evidence,
        label=label,
        engine=own.engine if own is not None and own.engine else evidence.engine,
        family=own.family if own is not None and own.family else evidence.family,
        telemetry=_samples_of(evidence.telemetry, others, label),
        facts=tuple(
            f for f in evidence.facts if mine(f.at.source if f.at is not None else None)
        ),
        notices=tuple(n for n in evidence.notices if mine(n.at.source)),
        sources=reports,
        sweeps=(),
    )


def _samples_of(telemetry: Telemetry | None, others: set[str], label: str) -> Telemetry | None:
    if telemetry is None:
        return None
    kept = telemetry.samples.filter(
        ~pl.col("source").is_in(list(others)) | pl.col("source").is_null()
    )
    if not kept.height:
        return None
    frames = {**telemetry.frames, "samples": kept.lazy()}
    return replace(
        telemetry, label=label, frames=frames, rows={**telemetry.rows, "samples": kept.height}
    )


def _tables_only(evidence: Evidence) -> Evidence:
    """The tables by themselves: their rows say what they are of."""
    names = [r.name for r in evidence.sources if r.kind == "table"]
    return replace(
        evidence,
        label=", ".join(names) or "table",
        telemetry=None,
        facts=(),
        notices=(),
        sources=tuple(r for r in evidence.sources if r.name in names),
        first_time=None,
        notes=(),
    )
