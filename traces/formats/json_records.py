"""JSON documents, JSON lines and JSON objects in a row, as one stream of records.

Knows where a record stands, what is wrong with a line, and names of nested keys. Knows no trace
format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from traces.errors import WorkloadError
from traces.formats.source import HEAD_BYTES, Source, reading


def inspect_json(source: Source) -> Source | None:
    """The first record of a JSON document, JSON lines or JSON objects in a row; None: no JSON."""
    text = source.head
    start = len(text) - len(text.lstrip())
    listed = text[start] == "["
    if listed:
        start += 1
    whole = len(text.encode(source.encoding)) < HEAD_BYTES
    try:
        value, end = _decode(text, start)
    except json.JSONDecodeError as e:
        if (
            whole
            and not listed
            and "\n" not in text.strip()
            and not text.lstrip().startswith('{"')
        ):
            return None
        if whole:
            if listed and text[start:].strip() in ("]", ""):
                raise source.error(
                    "", "the list is empty", "Check the export and its filters."
                ) from e
            raise _bad_json(source, text, e) from e
        text = source.text()
        try:
            value, end = _decode(text, start)
        except json.JSONDecodeError as e2:
            raise _bad_json(source, text, e2) from e2
    columns = tuple(nested_names(value)) if isinstance(value, dict) else ()
    line = "\n" not in text[start:end].strip() and not listed
    if line and columns:
        columns = tuple(dict.fromkeys((*columns, *_later_keys(text[end:]))))
    return replace(
        source, shape="json", first=value, columns=columns, lines=line, listed=listed
    )


def _later_keys(rest: str) -> Iterator[str]:
    """Keys of the whole lines that the head still holds: optional keys may be absent at first."""
    import orjson

    for line in rest.splitlines()[:500]:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue  # blank, or cut off by the end of the head; reading the rows says if damaged
        if isinstance(value, dict):
            yield from nested_names(value)


def nested_names(record: dict[str, Any], prefix: str = "", depth: int = 3) -> Iterator[str]:
    """The keys of a record, those of nested objects with dots."""
    for key, value in record.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict) and depth > 1:
            yield from nested_names(value, f"{prefix}{key}.", depth - 1)


def nested_value(record: dict[str, Any], name: str) -> Any:
    """The value behind a key or a dotted name; None where it is missing."""
    if name in record or "." not in name:
        return record.get(name)
    head, _, rest = name.partition(".")
    inner = record.get(head)
    return nested_value(inner, rest) if isinstance(inner, dict) else None


_DECODER = json.JSONDecoder()


def _decode(text: str, start: int) -> tuple[Any, int]:
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, start) from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python turns no text of more than 4,300 digits into a number
        raise json.JSONDecodeError("a number has thousands of digits", text, start) from None


def _bad_json(source: Source, text: str, e: json.JSONDecodeError) -> WorkloadError:
    at_end = e.pos >= len(text.rstrip()) - 1 or e.msg.startswith("Unterminated")
    fault = "the JSON is cut off" if at_end else f"it is not valid JSON ({e.msg})"
    return source.error(
        f"line {e.lineno}", fault, "Copy or export it again, or correct that line."
    )


def records(source: Source) -> Iterator[tuple[str, Any]]:
    """Each JSON record with its place ("line 3", "record 3"), in file order; blank lines skipped.

    A list yields its elements. JSON objects one after another (also over several lines) yield one
    each. Integers keep 64 bits. Raises WorkloadError with the line of the first fault.
    """
    if source.lines:
        yield from _line_records(source)
    else:
        yield from _document_records(source)


def _line_records(source: Source) -> Iterator[tuple[str, Any]]:
    with source.open_text() as f, reading(source):
        for number, line in enumerate(f, 1):
            stripped = line.strip().lstrip("\ufeff")
            for value in parse_line(source, stripped, number) if stripped else ():
                yield f"line {number}", value


def parse_line(source: Source, line: str, number: int) -> list[Any]:
    """The JSON values of one line: one, or several written without a line end between them.

    Raises WorkloadError naming the line.
    """
    import orjson

    try:
        return [orjson.loads(line)]
    except orjson.JSONDecodeError:
        pass  # NaN, or integers beyond 64 bits: Python's parser takes them, the readers judge them
    values, at = [], 0
    try:
        while at < len(line):
            value, at = _decode(line, at)
            values.append(value)
            while at < len(line) and line[at].isspace():
                at += 1
        return values
    except json.JSONDecodeError as e:
        cut = e.pos >= len(line) - 1 or e.msg.startswith("Unterminated")
        fault = "the line is cut off" if cut else f"the line is not valid JSON ({e})"
        raise source.error(
            f"line {number}", fault, "Copy or export the file again, or remove the line."
        ) from e


def _document_records(source: Source) -> Iterator[tuple[str, Any]]:
    text = source.text()
    number, at = 0, len(text) - len(text.lstrip())
    if source.listed:
        at += 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] == "]":
            if source.listed and at >= len(text):
                raise source.error(
                    f"record {number + 1}",
                    "the JSON list is cut off",
                    "Copy or export it again.",
                )
            if text[at + 1 :].strip():
                raise source.error(
                    f"after record {number}",
                    "the JSON list has ended and more text follows",
                    "Give one list, or one record a line.",
                )
            return
        try:
            value, at = _decode(text, at)
        except json.JSONDecodeError as e:
            raise _bad_json(source, text, e) from e
        number += 1
        if source.inside and isinstance(value, dict):
            for i, one in enumerate(value.get(source.inside) or [], 1):
                yield f"{source.inside} {i}", one
        else:
            yield f"record {number}", value
