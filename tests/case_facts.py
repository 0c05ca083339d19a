"""The fact block of a case's expected.md, read without a YAML library (its subset of YAML only)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def read_expected(folder: Path) -> dict[str, Any]:
    """Names -> values; nested blocks and flow mappings are dictionaries, flow lists are lists."""
    text = (folder / "expected.md").read_text(encoding="utf-8")
    block = text.split("```yaml", 1)[1].split("```", 1)[0]
    rows = [
        (len(line) - len(line.lstrip()), line.strip())
        for line in map(_uncommented, block.split("\n"))
        if line.strip()
    ]
    return _mapping(rows, 0)[0]


def _uncommented(line: str) -> str:
    quoted = False
    for i, letter in enumerate(line):
        quoted ^= letter == '"'
        if letter == "#" and not quoted and (i == 0 or line[i - 1] == " "):
            return line[:i]
    return line


def _mapping(rows: list[tuple[int, str]], start: int) -> tuple[dict[str, Any], int]:
    indent, found, i = rows[start][0], {}, start
    while i < len(rows) and rows[i][0] >= indent:
        key, _, rest = rows[i][1].partition(":")
        if rest.strip():
            found[key.strip()] = value(rest.strip())
            i += 1
        else:
            found[key.strip()], i = _mapping(rows, i + 1)
    return found, i


def value(text: str) -> Any:
    """One value: a number, a word, a text in quotes, a flow list or mapping."""
    parsed, rest = _flow(text)
    return parsed if not rest.strip() else text


def _flow(text: str) -> tuple[Any, str]:
    text = text.lstrip()
    if text[:1] == '"':
        end = text.index('"', 1)
        return text[1:end], text[end + 1 :]
    if text[:1] == "[":
        return _items(text[1:], "]")
    if text[:1] == "{":
        pairs, rest = _items(text[1:], "}", keys=True)
        return dict(pairs), rest
    plain = re.match(r"[^,\]}]*", text)
    word = (plain[0] if plain else "").strip()
    return _scalar(word), text[len(plain[0]) if plain else 0 :]


def _items(text: str, end: str, keys: bool = False) -> tuple[list[Any], str]:
    items: list[Any] = []
    while text.strip():
        text = text.lstrip(" ,")
        if text[:1] == end:
            return items, text[1:]
        if keys:
            key, _, text = text.partition(":")
            item, text = _flow(text)
            items.append((str(key.strip()), item))
        else:
            item, text = _flow(text)
            items.append(item)
    return items, text


def _scalar(word: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
