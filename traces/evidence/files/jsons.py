"""JSON values of a source, each with its line: one document, a list, objects in a row, or one a line.

It knows that a file may be cut off (what is whole is read), that single lines may be damaged, and that a line
may begin with a log prefix. JSON lines are streamed; a list or a pretty-printed document is parsed in memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from traces.evidence.source import Source

MAX_JSON_LINE = 1 << 26


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


# NaN, Infinity and 1e999 are no numbers: they are read as null
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None)


@dataclass
class JsonReading:
    """The values of a source. num_lines, skipped: as far as they were read; notes: sentences."""

    source: Source
    num_lines: int = 0
    num_skipped: int = 0
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def values(self) -> Iterator[tuple[int, Any]]:
        """(line number, value); the elements of a list one by one."""
        start = self.source.head.lstrip()[:1]
        if start in ("[", "{") and not _one_a_line(self.source.head):
            yield from self._document()
            return
        for number, line in self.source.lines(MAX_JSON_LINE):
            self.num_lines = number
            brace = 0 if line.lstrip()[:1] == "[" and start == "[" else line.find("{")
            if brace < 0:
                if line.strip():
                    self._skip(line)
                continue
            try:
                yield number, _DECODER.decode(line[brace:])
            except (ValueError, RecursionError):
                try:
                    yield number, _DECODER.raw_decode(line, brace)[0]
                except (ValueError, RecursionError):
                    self._skip(line)

    def _skip(self, line: str) -> None:
        self.num_skipped += 1
        if len(self.skipped) < 5:
            self.skipped.append(line.strip()[:200])

    def _document(self) -> Iterator[tuple[int, Any]]:
        text = self.source.text()
        self.num_lines = text.count("\n") + (not text.endswith("\n"))
        at, line, counted, listed = 0, 1, 0, False
        while True:
            while at < len(text) and (text[at].isspace() or text[at] in ",]"):
                at += 1
            if not listed and at < len(text) and text[at] == "[":
                listed, at = True, at + 1
                continue
            if at >= len(text):
                return
            line += text.count("\n", counted, at)
            counted = at
            try:
                value, at = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError):
                self.notes.append(
                    f"The JSON is damaged or cut off at line {line}; what is whole before it was read."
                )
                self._skip(text[at : at + 200])
                return
            yield line, value


def _one_a_line(head: str) -> bool:
    """Whether the first line is a whole value (of a list: and others follow), or an object too long to tell."""
    first, _, rest = head.lstrip().partition("\n")
    try:
        _DECODER.decode(first)
    except (ValueError, RecursionError):
        return not rest and len(head) > 60_000 and first[:1] == "{"
    return first[:1] == "{" or bool(rest.strip())


def first_value(head: str) -> Any:
    """The first JSON object of a head, also inside a list or behind a prefix; None: no JSON."""
    text = head.lstrip()
    brace = text.find("{")
    if brace < 0 or (brace > 0 and text[0] not in "[" and brace > 200):
        return None
    try:
        return _DECODER.raw_decode(text, brace)[0]
    except (ValueError, RecursionError):
        return None
