"""All rules, in the order in which their verdicts come."""

from __future__ import annotations

from analyzer.diagnosis.rule import Rule
from analyzer.diagnosis.rules import capacity, limits, quiet, stopped, tables

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (*stopped.RULES, *limits.RULES, *capacity.RULES, *quiet.RULES, *tables.RULES),
        key=lambda rule: rule.order,
    )
)
