"""All rules, in the order in which their verdicts come."""

from __future__ import annotations

from analyzer.diagnosis.rule import Rule
from analyzer.diagnosis.rules import (
    balance,
    capacity,
    faults,
    hung,
    hybrid,
    limits,
    notes,
    oversize,
    paged,
    quiet,
    reserved,
    swapped,
    tables,
    thrash,
)

_FILES = (
    balance,
    capacity,
    faults,
    hung,
    hybrid,
    limits,
    notes,
    oversize,
    paged,
    quiet,
    reserved,
    swapped,
    tables,
    thrash,
)

RULES: tuple[Rule, ...] = tuple(
    sorted((rule for file in _FILES for rule in file.RULES), key=lambda rule: rule.order)
)
