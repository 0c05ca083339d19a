"""What a grammar is: one kind of log line as data, and how its values are read.

A grammar names an engine and a family, a needle that its lines hold (tested first, as it costs little), an optional
pattern that they must match, and the fields to read: each is searched for by itself, so that unknown
fields between known ones, and lines that were cut, do no harm. To add one: write it down in the file of
its engine, with its source and an example line.

    Grammar("v1-preempted", "vllm", "v1-engine", "Preempting request", source="scheduler.py",
            notice="preemption", values={"request": word(r"request (\\S+)")}, examples=(...,))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from traces.evidence.meant import is_meant

Value = int | float | str | bool
Read = Callable[[re.Match[str]], Value | None]
_SCALE = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Field:
    """One value of a line: the pattern that is searched for, what its group means, and words without
    which the pattern need not be tried (for patterns that begin with no fixed text)."""

    pattern: str
    read: Read
    holds: str = ""

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def find(self, text: str) -> Value | None:
        """The value in that line, None where it is not there."""
        if self.holds and self.holds not in text:
            return None
        match = self.compiled.search(text)
        return None if match is None else self.read(match)


def number_of(text: str) -> float | None:
    """The number that a group holds; None where it is absurd, or digits and dots without sense."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if is_meant(value) else None


def integer(pattern: str, holds: str = "") -> Field:
    """A whole number, commas of thousands allowed; None where it is absurd."""

    def read(m: re.Match[str]) -> int | None:
        value = number_of(m[1])
        return None if value is None else int(value)

    return Field(pattern, read, holds)


def number(pattern: str, scale: float = 1.0) -> Field:
    """A number times scale; None where it is absurd."""

    def read(m: re.Match[str]) -> float | None:
        value = number_of(m[1])
        return None if value is None else value * scale

    return Field(pattern, read)


def percent(pattern: str) -> Field:
    """A percentage, as a share; None where it is absurd."""

    def read(m: re.Match[str]) -> float | None:
        value = number_of(m[1])
        return None if value is None else round(value / 100, 8)

    return Field(pattern, read)


def word(pattern: str) -> Field:
    """Text."""
    return Field(pattern, lambda m: m[1])


def lower(pattern: str) -> Field:
    """Text in small letters."""
    return Field(pattern, lambda m: m[1].lower())


def switch(pattern: str) -> Field:
    """True or False."""
    return Field(pattern, lambda m: m[1] in ("True", "true", "1", "on"))


def constant(pattern: str, value: Value) -> Field:
    """A value that the line implies."""
    return Field(pattern, lambda m: value)


def size(pattern: str, unit: str = "") -> Field:
    """Bytes: a number and, in the pattern's second group or as `unit`, "GiB", "GB" and the like.

    "GB" is taken for 10**9 only where `unit` says "GB!": engines mostly write GB and mean GiB.
    """

    def read(m: re.Match[str]) -> int | None:
        said = unit or m[2]
        scale = _SCALE if said.endswith("!") else _BINARY
        value = number_of(m[1])
        if value is None:
            return None
        value *= scale[said[:1] if said[:1] in scale else ""]
        return round(value) if is_meant(value) else None

    return Field(pattern, read)


@dataclass(frozen=True)
class Derived:
    """What follows from a line: column or fact -> value, and how."""

    values: Mapping[str, Value]
    note: str


@dataclass(frozen=True)
class Grammar:
    """One kind of line; see the module.

    also: a second notice of another kind;
    name; engine (None: any); family ("": says nothing of it); needle (one, or several of which one is enough), pattern: what a line of it holds; sample,
    facts, values: column, fact or word -> field; notice: its kind; count: of the notice; derive: what
    follows from the values of `sample` and `extra` (fields that are no columns); derive_facts: the same for facts;
    joins: its values belong to the sample before, where that has none of them and is of the same second;
    merges: within two seconds it tells the same event again as a notice of its kind; source: thread or file of the
    engine; family_of: a more exact family from line and process.
    """

    name: str
    engine: str | None
    family: str
    needle: str | tuple[str, ...]
    source: str
    pattern: str = ""
    sample: Mapping[str, Field] = field(default_factory=dict)
    extra: Mapping[str, Field] = field(default_factory=dict)
    facts: Mapping[str, Field] = field(default_factory=dict)
    notice: str = ""
    also: str = ""
    values: Mapping[str, Field] = field(default_factory=dict)
    count: Field | None = None
    derive: Callable[[Mapping[str, Value]], Derived | None] | None = None
    derive_facts: Callable[[Mapping[str, Value]], Derived | None] | None = None
    family_of: Callable[[str, str], str] | None = None
    joins: bool = False
    merges: bool = False
    examples: tuple[str, ...] = ()

    @cached_property
    def needles(self) -> tuple[str, ...]:
        """What a line of it may hold: one of these."""
        return (self.needle,) if isinstance(self.needle, str) else self.needle

    @cached_property
    def compiled(self) -> re.Pattern[str] | None:
        return re.compile(self.pattern) if self.pattern else None

    def matches(self, text: str) -> bool:
        """Whether a line is one of these."""
        for needle in self.needles:
            if needle in text:
                return self.compiled is None or self.compiled.search(text) is not None
        return False

    def read(self, text: str) -> Hit | None:
        """What the line says, or None where it says nothing that can be used."""
        if not self.matches(text):
            return None
        sample = _found(self.sample, text)
        facts = _found(self.facts, text)
        extra = _found(self.extra, text)
        columns = [c for c in sample if c not in _KEYS]
        if self.sample and not columns and not facts and not self.notice:
            return None
        hit = Hit(self, sample if columns else {}, facts, _found(self.values, text), extra)
        hit.count = None if self.count is None else _whole(self.count.find(text))
        if self.derive is not None and columns:
            hit.derived = self.derive({**sample, **extra})
        if self.derive_facts is not None:
            hit.derived_facts = self.derive_facts({**sample, **extra, **facts})
        return hit


_KEYS = ("engine_rank", "num_ranks", "step", "interval_s")


@dataclass
class Hit:
    """What one line said, by the grammar that it follows."""

    grammar: Grammar
    sample: dict[str, Value]
    facts: dict[str, Value]
    values: dict[str, Value]
    extra: dict[str, Value] = field(default_factory=dict)
    count: int | None = None
    derived: Derived | None = None
    derived_facts: Derived | None = None


def _found(fields: Mapping[str, Field], text: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, f in fields.items():  # as Field.find, written out: it runs a dozen times a line
        if f.holds and f.holds not in text:
            continue
        match = f.compiled.search(text)
        if match is not None and (value := f.read(match)) is not None:
            found[name] = value
    return found


def _whole(value: Value | None) -> int | None:
    return value if isinstance(value, int) else None
