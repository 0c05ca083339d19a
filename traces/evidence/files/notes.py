"""Notes: command lines, YAML, flag lists and sentences of a user, read for stated facts only.

Read in: the config.txt and facts.yaml of reported cases; `vllm serve`, `python -m sglang.launch_server`,
`trtllm-serve`, text-generation-launcher, docker run, docker compose and Kubernetes manifests.

Quirks it knows: flags with "=" or a blank, as list items of a manifest ("- --max-num-seqs" above "- '64'"), as
a JSON list, behind continuation backslashes; keyword arguments of LLM(...) and SamplingParams(...); inline maps
({low: 1, high: 2}); the same setting of several proxies before one engine. Of free text only numbers with
their noun are taken ("120 concurrent", "inputs of about 20k tokens"); nothing is read between the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from traces.evidence.evidence import Fact, Found, Line, SourceReport, Value
from traces.evidence.files.flags import SHORT, Flag, flag_of
from traces.evidence.files.jsons import JsonReading, first_value
from traces.evidence.files.phrases import find_phrases
from traces.evidence.source import Source

MAX_LINES = 5_000
MAX_LINE = 4_000  # nobody types a longer line
_WORD = r"(?:\"[^\"]*\"|'[^']*'|[^\s,;()\[\]{}|&`]+)"
_FLAG = re.compile(rf"(?<![\w-])(--?)([a-zA-Z][\w-]*)(?:(?:\s*=\s*|\s+)(?!-)({_WORD}))?")
_PAIR = re.compile(rf"(?<![\w.-])([A-Za-z_][\w-]*)\s*=\s*(?!=)({_WORD})")
_ENTRY = re.compile(r"^(\s*)(?:-\s+)?[\"']?([A-Za-z_][\w. /-]{0,60}?)[\"']?\s*:(?:\s+(.*))?$")
_MAP = re.compile(r"\{([^{}]*)\}")
# Triton: a model's parameters in config.pbtxt, and what fill_template.py puts there
_PBTXT_KEY = re.compile(r"\bkey:\s*\"(\w+)\"")
_PBTXT_VALUE = re.compile(r"\bstring_value:\s*\"([^\"]*)\"")
_TEMPLATE = re.compile(r"(?<=[\s,])(\w+):([^\s,]+)")
_INNER = re.compile(r"[\"']?([\w.-]+)[\"']?\s*:\s*([^,{}]+)")
_ENGINES = (
    (re.compile(r"\bvllm[ .]serve|\bvllm serve|vllm\.entrypoints|vllm/vllm-openai|\bAsyncLLM|\bLLM\(|\bvllm\b", re.I), "vllm"),
    (re.compile(r"sglang", re.I), "sglang"),
    (re.compile(r"trtllm-serve|tensorrt.?llm|batch_scheduler_policy|capacity_scheduler_policy", re.I), "tensorrt-llm"),
    (re.compile(r"text-generation-(?:launcher|inference|router)|\btgi\b", re.I), "tgi"),
)  # fmt: skip
_MODEL_BEHIND = re.compile(
    r"(?:\bvllm serve|trtllm-serve(?: serve)?|sglang serve)\s+(?!-)(\S+)"
)
_IMAGE = re.compile(r"(?:vllm-openai|sglang|text-generation-inference):v?(\d+\.\d+[\w.]*)")
_VERSION = re.compile(
    r"(?:\b(?:vllm|sglang|tensorrt.?llm|tgi)[ =v@:/-]{1,4}|\bversion[ :=v]{1,3}|\bV[01],\s*v?|\(v?)"
    r"(\d+\.\d+(?:\.\d+)*(?:\.?(?:post|rc|dev|a|b)\d*)?(?:\+\w+)?)(?=[\s,;)\]\"']|$)( dev)?",
    re.IGNORECASE,
)
_LOG = re.compile(
    r"\b(?:INFO|WARNING|ERROR|DEBUG|WARN)\b.*\d\d:\d\d|\d\d:\d\d:\d\d.*\b(?:INFO|WARNING|ERROR|DEBUG|WARN)\b"
    r"|Traceback \(most recent|^\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d.{0,40}(?:batch|requests)",
)
_NAMED = re.compile(
    r"(?:config|facts?|notes?|flags?|args|command|cmd|compose|values|deploy\w*|launch|serve|run|settings|readme)"
    r"[\w.-]*$|\.(?:ya?ml|toml|sh|md|conf|cfg|env)$",
    re.IGNORECASE,
)
_OF_REQUESTS = {
    "prompt_tokens", "output_tokens", "num_requests", "clients", "sequences_per_request", "model", "version",
    "block_size", "request_rate_per_s",
}  # fmt: skip
_RANGE_WORDS = {"low", "high", "min", "max", "from", "to", "p50", "p95", "p99"}


def sniff(head: str, name: str) -> float:
    """High for short texts with flags, settings or statements, low wherever log lines stand."""
    lines = [x for x in head.splitlines() if x.strip()]
    if not lines or len(lines) > MAX_LINES or max(map(len, lines)) > MAX_LINE:
        return 0.0
    if lines[0].lstrip()[:1] in ("{", "[") and '"--' not in head:
        value = first_value(head)
        known = {f.fact for _, f, _ in _settings(value)} - _OF_REQUESTS
        return 0.6 if len(known) >= 2 else 0.0
    if _is_table(lines[:200]):
        return 0.0
    if sum(1 for x in lines if _LOG.search(x)) > 0.05 * len(lines):
        return 0.1
    source = Source.from_text(name or "notes", head[:16_384])
    found = len({f.name for f in _facts(source, 120)[0]})
    named = bool(_NAMED.search(name.rsplit("/", 1)[-1]))
    if not found:
        return 0.3 if named else 0.0
    dense = found >= 2 or len(lines) <= 6
    return min(0.9, (0.55 if dense else 0.35) + (0.25 if named else 0.0) + 0.02 * found)


def _is_table(lines: list[str]) -> bool:
    """Whether most lines have as many separators as the first, three or more."""
    return len(lines) > 2 and any(
        (count := lines[0].count(mark)) >= 2
        and sum(1 for x in lines if x.count(mark) == count) > 0.8 * len(lines)
        for mark in ",;\t|"
    )


def read(source: Source) -> Found:
    """Facts that the notes state, each with its line."""
    facts, reading = _facts(source)
    report = SourceReport(
        source.name,
        "notes",
        "config-only",
        reading.engine,
        reading.num_lines,
        len({f.at.number for f in facts if f.at}),
        len(reading.unread),
        tuple(reading.unread[:5]),
        0.9 if facts else 0.3,
        tuple(reading.notes),
    )
    return Found(report, (), tuple(facts))


@dataclass
class _Reading:
    source: Source
    engine: str | None = None
    num_lines: int = 0
    facts: list[Fact] = field(default_factory=list)
    caps: list[tuple[int, Line]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    key: str = ""  # of a parameter in config.pbtxt whose value has not come yet
    notes: list[str] = field(default_factory=list)

    def put(self, flag: Flag, text: str, at: Line, note: str = "") -> bool:
        value = flag.read(text.strip().strip("'\"`"))
        if value is None:
            return False
        if flag.fact == "client_caps":
            self.caps.append((int(value), at))  # type: ignore[arg-type]
        else:
            self.add(flag.fact, value, at, flag.inferred, note or flag.note)
        return True

    def add(
        self, name: str, value: Value, at: Line, inferred: bool = False, note: str = ""
    ) -> None:
        if not any(f.name == name and f.value == value for f in self.facts):
            self.facts.append(Fact(name, value, at, None, None, inferred, note))


def _facts(source: Source, max_lines: int = MAX_LINES) -> tuple[list[Fact], _Reading]:
    r = _Reading(source)
    parents: list[tuple[int, str]] = []
    if source.head.lstrip()[:1] == "{" and '"--' not in source.head:
        reading = JsonReading(source)
        for number, value in reading.values():
            for name, flag, text in _settings(value):
                r.put(flag, text, source.line(number, f"{name}: {text}"))
        r.num_lines = reading.num_lines
        return r.facts, r
    for number, line in _joined(source):
        r.num_lines = max(r.num_lines, number)
        if number > max_lines:
            break
        if not line.strip() or len(line) > MAX_LINE:
            continue
        before = len(r.facts) + len(r.caps)
        _read_line(r, line, source.line(number, line), parents)
        if len(r.facts) + len(r.caps) == before and not line.lstrip().startswith("#"):
            r.unread.append(line.strip()[:200])
    if r.caps:
        values = tuple(v for v, _ in r.caps)
        r.facts.append(Fact("client_caps", values, r.caps[0][1]))
    return r.facts, r


def _settings(value: Any, depth: int = 6) -> Iterator[tuple[str, Flag, str]]:
    """(name, flag, text) of the known settings in a JSON document: /server_info, a saved configuration."""
    if isinstance(value, list):
        for one in value[:64]:
            yield from _settings(one, depth - 1)
    elif isinstance(value, dict) and depth:
        for name, inner in value.items():
            flag = flag_of(str(name))
            if isinstance(inner, dict | list):
                yield from _settings(inner, depth - 1)
            elif flag is not None and len(str(name)) > 1 and inner is not None:
                yield str(name), flag, str(inner)


def _joined(source: Source) -> Iterator[tuple[int, str]]:
    """Lines; "- --flag" and the list item below it, and a JSON list of arguments, as one command."""
    held: tuple[int, str] | None = None
    for number, line in source.lines():
        if '"--' in line or "'--" in line:
            line = re.sub(r"[\"'],?\s*(?:\]|$)|[\"']\s*,\s*[\"']|\[?[\"'](?=--)", " ", line)
        item = re.match(r"^\s*-\s+(--[\w-]+)\s*$", line)
        if held is not None:
            value = re.match(r"^\s*-\s+([^-\s].*)$", line)
            if value:
                yield held[0], f"{held[1]} {value[1]}"
                held = None
                continue
            yield held
            held = None
        if item:
            held = (number, item[1])
        else:
            yield number, line.removesuffix("\\")
    if held is not None:
        yield held


def _read_line(r: _Reading, line: str, at: Line, parents: list[tuple[int, str]]) -> None:
    for pattern, engine in _ENGINES:
        if r.engine is None and pattern.search(line):
            r.engine = engine
    for found in (_IMAGE.search(line), _VERSION.search(line)):
        if found:
            r.add("version", found[1] + (found[2] or "" if found.lastindex == 2 else ""), at)
            break
    if m := _MODEL_BEHIND.search(line):
        r.add("model", m[1], at)
    text = line
    if _PBTXT_KEY.search(line) or _PBTXT_VALUE.search(line):
        _read_pbtxt(r, line, at)
        return
    if "fill_template" in line:
        text = _take(text, _TEMPLATE, lambda m: _read_pair(r, m[1], m[2], at))
    if entry := _ENTRY.match(text):
        text = _read_entry(r, entry, at, parents)
    text = _read_maps(r, text, at)
    text = _take(text, _FLAG, lambda m: _read_flag(r, m, at))
    text = _take(text, _PAIR, lambda m: _read_pair(r, m[1], m[2], at))
    for phrase in find_phrases(text):
        r.add(phrase.fact, phrase.value, at, phrase.inferred, phrase.note)


def _take(text: str, pattern: re.Pattern[str], read_match) -> str:  # type: ignore[no-untyped-def]
    """The text with what read_match took blanked out, so that nothing is read twice."""
    return pattern.sub(lambda m: " ; " if read_match(m) else m[0], text)


def _read_flag(r: _Reading, m: re.Match[str], at: Line) -> bool:
    name, value = m[2], m[3] or ""
    if m[1] == "-":
        if name not in SHORT:
            return False
        name = SHORT[name]
    flag = flag_of(name, r.engine)
    return flag is not None and (r.put(flag, value, at) or r.put(flag, "", at))


def _read_pair(r: _Reading, name: str, value: str, at: Line) -> bool:
    flag = flag_of(name)
    return flag is not None and r.put(flag, value, at)


def _read_entry(
    r: _Reading, entry: re.Match[str], at: Line, parents: list[tuple[int, str]]
) -> str:
    """Read "key: value" of YAML or of a note; what is left to be read as text comes back."""
    indent, key, value = len(entry[1]), entry[2], (entry[3] or "").split(" #")[0].strip()
    while parents and parents[-1][0] >= indent:
        parents.pop()
    parents.append((indent, key))
    flag = flag_of(key)
    if not value:
        return ""
    if inline := re.fullmatch(_MAP, value):
        pairs = _INNER.findall(inline[1])
        if flag is not None and _read_range(r, flag, pairs, at):
            return ""
        return value
    if flag is not None and r.put(flag, value, at):
        return ""
    parent = next((flag_of(k) for _, k in reversed(parents[:-1])), None)
    if parent is not None and key.lower() in _RANGE_WORDS and _extend(r, parent, value, at):
        return ""
    if flag is not None or "total" in key.lower():
        return value.strip("\"'")  # a total is of all requests, not of one
    return f"{key} {value}".strip("\"'")  # the key may be the noun of a statement


def _read_pbtxt(r: _Reading, line: str, at: Line) -> None:
    if key := _PBTXT_KEY.search(line):
        r.key = key[1]
    if (value := _PBTXT_VALUE.search(line)) and r.key:
        _read_pair(r, r.key, value[1], at)
        r.key = ""


def _read_range(r: _Reading, flag: Flag, pairs: list[tuple[str, str]], at: Line) -> bool:
    """A map below a setting: (low, high), or what was seen one after the other."""
    values = [flag.read(v.strip()) for _, v in pairs]
    numbers = [v for v in values if isinstance(v, int | float)]
    if len(numbers) != len(pairs) or not numbers:
        return False
    words = ", ".join(k for k, _ in pairs)
    whole: Value = tuple(numbers) if len(numbers) > 1 else numbers[0]
    r.add(
        flag.fact,
        whole,
        at,
        flag.inferred,
        "" if set(words.split(", ")) <= _RANGE_WORDS else words,
    )
    return True


def _extend(r: _Reading, flag: Flag, text: str, at: Line) -> bool:
    """low: and high: in lines of their own, below their setting."""
    value = flag.read(text)
    if not isinstance(value, int | float):
        return False
    last = r.facts[-1] if r.facts and r.facts[-1].name == flag.fact else None
    if last is not None and isinstance(last.value, int | float):
        r.facts[-1] = Fact(flag.fact, (last.value, value), last.at)
    else:
        r.add(flag.fact, value, at)
    return True


def _read_maps(r: _Reading, text: str, at: Line) -> str:
    """Inline maps with settings in them; what was read is blanked out."""

    def one(m: re.Match[str]) -> str:
        known = [_read_pair(r, k, v, at) for k, v in _INNER.findall(m[1])]
        return " ; " if any(known) else m[0]

    return _MAP.sub(one, text)
