"""Raw lines -> records: what a server wrote as one line, however it was collected, wrapped or pasted.

Collectors put prefixes before a line (container stamps, Kubernetes CRI, journald, syslog, compose, Ray,
JSON), terminals and pastes break it at a column, and lost line ends glue several to one. A record is what
is left: its text behind all prefixes, the outermost stamp, the process that wrote it, and the lines
that it spans. Lines are read window by window, so memory stays bounded.

It knows how lines look from outside (prefixes, starts of records, columns). It knows no grammar.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

WINDOW_LINES = 4000
WINDOW_CHARS = 8 << 20
MIN_COLUMN = 40
MAX_START = 1024  # characters in which the start of a record shows
MAX_PREFIX = 64  # a longer text before a head is a record (or a progress bar)
MIN_GLUED = 60  # shorter texts hold one record
MAX_PARTS = 64  # lines of one wrapped record

_ESCAPED = re.compile(
    r"(?:\x1b|#033|\^\[|\\x1b|\\u001b|\\033|␛)\[[0-9;?]*[A-Za-z]|\[\d{1,3}(?:;\d{1,3})*m|\x00"
    r"|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)"  # the title of a window, a link
)
_COLOUR = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")
_RFC3339 = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)"
_SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?"
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_LOG_DATE = r"(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d"

# prefix kind -> pattern; groups: stamp, stream, flag, process. Tried in order, again and again.
PREFIXES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "CRI",
        re.compile(rf"(?P<stamp>{_RFC3339}) (?P<stream>stdout|stderr) (?P<flag>[PF]) ?"),
    ),
    (
        "RFC 3339 stamps",
        re.compile(rf"\[?(?P<stamp>{_RFC3339})\]?(?:[\s,\"]+(?={_LEVEL}\b|\()|\s|$)"),
    ),
    (
        "time stamps",
        re.compile(
            r"\[?(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]?[\s,\"|]+"
            rf"(?={_LEVEL} {_LOG_DATE}|\([A-Za-z_][\w:.]*(?: \w+)? ?pid=)"
        ),
    ),
    (
        "syslog",
        re.compile(
            rf"(?:<\d+>)?(?P<stamp>{_SYSLOG}) (?:(?P<unit>[\w.:-]+) )?[\w.@/-]+(?:\([\w-]+\))?(?:\[\d+\])?: ?"
        ),
    ),
    (
        "syslog",
        re.compile(
            rf"<\d+>\d? ?(?P<stamp>{_RFC3339}) (?P<unit>\S+) \S+ \S+ \S+ (?:-|\[.*?\]) ?\ufeff?"
        ),
    ),
    ("journald", re.compile(r"(?P<unit>[\w.-]+) [\w.@/-]+\[\d+\]: ?")),
    ("Ray", re.compile(r"\((?P<process>\w+ pid=\d+, ip=[\w.:]+|[\w:.]+ pid=\d+, [^()]*)\) ?")),
    ("process", re.compile(r"\((?P<process>(?:[A-Za-z_][\w:.]*(?: \w+)? ?)?pid=\d+)\) ?")),
    ("pod", re.compile(r"\[(?P<unit>pod/[^\]\s]+)\] ?")),
    (
        "compose",
        re.compile(
            r"(?!(?:DEBUG|INFO|WARN|WARNING|ERROR)\b)(?P<unit>[A-Za-z][\w.-]{0,60})(?: +\|| *\|)(?: |$)"
        ),
    ),
    ("systemd", re.compile(r"[\w.@-]+\[\d+\]: ")),
    (
        "grep",
        re.compile(
            rf"(?:[\w./-]*[A-Za-z][\w./-]*:)?\d{{1,9}}[:-]\s?(?={_LEVEL}\b|[(\[]|\d{{4}}-\d\d)"
        ),
    ),
    ("quote", re.compile(rf"\s*(?:[>•*-] )?\s*(?={_LEVEL}\b|[(\[]|\d{{4}}-\d\d)(?<=\s)")),
)
_PREFIX_HINT = re.compile(
    r"[\d(<\[>•*\s-]|[A-Z][a-z]{2} [ \d]\d |[A-Za-z][\w.@/-]*(?: *\||\[\d|:\d| [\w.@/-]+\[\d)"
)

# where a record begins inside a line: the log's own head, behind whatever prefix
_OWN_HEAD = (
    rf"{_LEVEL} {_LOG_DATE}"
    rf"|\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{{0,40}}\] ?(?:Decode|Prefill|KV cache pool|LMCache|INFO|WARN|ERROR|server_args)"
    rf"|\[\d\d:\d\d:\d\d[^\]]{{0,40}}\] (?:Decode|Prefill)"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ "
    r"|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[TRT"
)
_PROCESS = r"\([A-Za-z_][\w:.]*(?: \w+)? ?pid=\d+(?:, ip=[\w.:]+)?\) ?"
_START_INSIDE = re.compile(
    rf"(?<![\"'=(\[]){_RFC3339} (?:stdout|stderr) [PF] "
    rf"|(?<![\"'=(\[]){_RFC3339}\s+(?={_LEVEL}\b|{_PROCESS}|{_OWN_HEAD})"
    rf"|(?:{_PROCESS})+(?={_OWN_HEAD}|{_LEVEL}\b)"
    rf"|{_OWN_HEAD}"
)
_INSIDE_WORDS = (
    *("INFO", "WARN", "ERROR", "DEBUG", "CRITICAL", "Decode", "Prefill", "KV cache pool"),
    *("LMCache", "server_args", "stdout ", "stderr ", ".cc:", "[TRT"),
)
_START = re.compile(
    rf"{_LEVEL}\b|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?[\s\]]|\[?(?:\d{{4}}[-/]\d\d[-/]\d\d|\d\d/\d\d/\d{{4}})[T -]\d\d:\d\d"
    rf"|[IWEF]\d{{4}} \d\d:|\[TensorRT-LLM\]|\[rank\d+\]|\[(?:DP|TP|PP)\d+[ \]]|\[(?:INFO|WARN|ERROR)|Traceback \(|(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)(?::|$)"
    r"|Processed prompts:|\s*\d{1,3}%\||\^C|  File \"|\{\"|=====|#+ |vllm:|sglang:|Killed\b"
)
_NAME = re.compile(r"[A-Za-z][\w.-]*(?: [A-Za-z][\w.-]*)?\s*")
# starts of lines that were copied without their heads: a start where the line before has the same words
_WEAK_START = re.compile(
    r"\[?[\w./-]+\.py:\d+\] |Engine \d+: |\d+ Engines Aggregated|Avg prompt thr|Decode batch|Prefill batch|GPU KV cache size|iter = "
)
_NAMED_START = re.compile(rf"[A-Za-z][\w.-]*(?: [A-Za-z][\w.-]*)? (?:{_OWN_HEAD})")
# how whole records end; one line alone that is the longest and ends so was not broken
_WHOLE = re.compile(r"(?:%\.?|\dx|tokens?|reqs|OK|[.)}\]!])\s*$")
_REPEATED = re.compile(r"\s*\[repeated (\d{1,9})x across cluster\]")
_SYSLOG_REPEATED = re.compile(
    r"^(?:last )?message repeated (\d{1,9}) times?(?:: ?\[ ?(.*?)\]?)?$"
)
_JSON_TEXT = ("log", "message", "msg", "MESSAGE", "textPayload", "line", "body")
_JSON_TIME = ("time", "timestamp", "@timestamp", "ts", "_time", "receiveTimestamp")


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that a server wrote. number, num_lines: the lines it stands on; text: without prefixes and
    colours; outer: stamp of the outermost prefix as it is written; process: "EngineCore_DP0 pid=1379"; unit:
    host, pod or service that a collector names;
    copies: how many equal ones a collector says it stands for; inside: it began in mid-line."""

    number: int
    text: str
    num_lines: int = 1
    outer: str | None = None
    process: str = ""
    unit: str = ""
    copies: int = 1
    inside: bool = False


@dataclass(slots=True)
class _Row:
    """One physical line with its prefixes taken off. flag: of CRI, "P" for a partial line."""

    number: int
    raw: str
    visible: str
    body: str
    outer: str | None = None
    process: str = ""
    unit: str = ""
    framed: bool = False
    stream: str = ""
    flag: str = ""


@dataclass
class Reading:
    """What was seen of the outside of a source while its records were read."""

    num_lines: int = 0
    prefixes: Counter[str] = field(default_factory=Counter)
    columns: Counter[int] = field(default_factory=Counter)
    wrapped: int = 0
    glued: int = 0
    coloured: int = 0
    partial: int = 0
    quiet: int = 0  # records that were counted and not handed out
    noise: int = 0  # of these, access-log lines and progress bars
    unread: int = 0  # statistics lines that were counted, as there were too many


def read_records(lines: Iterable[tuple[int, str]], seen: Reading) -> Iterator[Record]:
    """Records of numbered lines, in their order; `seen` is filled on the way."""
    window = Window(seen)
    for number, raw in lines:
        window.add(number, raw)
        if window.full:
            yield from window.flush()
    yield from window.end()


@dataclass(frozen=True, slots=True, eq=False)
class Quiet:
    """A kind of line that is a record by itself and says nothing, as quiet.py finds them: what is counted
    of it. raw, visible, body: characters of the line, without colours, and behind prefixes; whole: see _WHOLE;
    framed, flag: as in a row; kinds: prefixes; blank: nothing but these; noise: as in LogReader; unread:
    it would say something, but there is too much of it."""

    raw: int
    visible: int
    body: int
    whole: bool
    framed: bool
    flag: str
    kinds: tuple[str, ...]
    blank: bool
    noise: bool
    unread: bool = False


class Window:
    """Lines that are looked at together: how they were broken shows in many of them.

    Quiet lines are only counted, but the last before a line that may go on with it.
    """

    def __init__(self, seen: Reading) -> None:
        self.seen = seen
        self.rows: list[_Row] = []
        self.num_rows = self.size = 0
        self.partial: dict[str, _Row] = {}
        self.wrap = Wrap()
        self.quiet: Counter[Quiet] = Counter()
        self._last: tuple[int, str, Quiet] | None = None  # a quiet line that is no row yet

    @property
    def full(self) -> bool:
        return self.num_rows >= WINDOW_LINES or self.size > WINDOW_CHARS

    def add(self, number: int, raw: str) -> None:
        """One line."""
        seen = self.seen
        seen.num_lines = max(seen.num_lines, number)
        for part in raw.split("\r") if "\r" in raw else (raw,):
            row = _unprefixed(number, part, seen)
            if row.flag == "P" or (row.flag and row.stream in self.partial):
                whole = _join_partial(row, self.partial, seen)
                if whole is None:
                    continue
                row = whole
            if row.body.strip():
                if self._last is not None:
                    self._settle(needed=not starts(row))
                self.rows.append(row)
                self.num_rows += 1
                self.size += len(row.raw)

    def pass_over(
        self, kinds: Counter[Quiet], last: tuple[int, str, Quiet] | None, number: int
    ) -> None:
        """Quiet lines up to line `number`, by kind; last: the last of them that is not blank."""
        self.seen.num_lines = max(self.seen.num_lines, number)
        if last is not None:
            if self._last is not None:
                self._settle(needed=False)
            kinds[last[2]] -= 1
            self._last = last
            self.num_rows += 1
            self.size += last[2].raw
        self.quiet.update(kinds)
        for kind, num in kinds.items():
            if not kind.blank:
                self.num_rows += num
                self.size += num * kind.raw

    def _settle(self, needed: bool) -> None:
        """Make a row of the last quiet line where the next line may go on with it; else count it."""
        if self._last is None:
            return
        number, text, kind = self._last
        self._last = None
        if needed:
            self.rows.append(_unprefixed(number, text, self.seen))
        else:
            self.quiet[kind] += 1

    def flush(self) -> Iterator[Record]:
        """The records of these lines, but of the last, which goes on to the next window."""
        self._settle(needed=True)
        self.wrap = find_wrap(self.rows, self.quiet) or self.wrap
        groups = _groups(self.rows, self.wrap)
        for group in groups[:-1]:
            yield from _split(group, self.wrap, self.seen)
        self._count()
        self.rows = groups[-1]
        self.num_rows, self.size = len(self.rows), sum(len(r.raw) for r in self.rows)

    def end(self) -> Iterator[Record]:
        """The records that are left."""
        self._settle(needed=True)
        self.rows += list(self.partial.values())
        self.wrap = find_wrap(self.rows, self.quiet) or self.wrap
        for group in _groups(self.rows, self.wrap):
            yield from _split(group, self.wrap, self.seen)
        self._count()

    def _count(self) -> None:
        """Put what the quiet lines of this window were to what was seen."""
        seen = self.seen
        for kind, num in self.quiet.items():
            seen.coloured += num * (kind.visible != kind.raw)
            for prefix in kind.kinds:
                seen.prefixes[prefix] += num
            if kind.unread:
                seen.unread += num
            elif not kind.blank:
                seen.quiet += num
                seen.noise += num * kind.noise
        self.quiet = Counter()


def quiet_kind(raw: str, judge: Callable[[str], bool | None]) -> Quiet | None:
    """What is to be counted of a line that is a record by itself and that nobody wants, else None.

    judge: of its text, see quiet.py. It uses nothing of a digit but that it is one.
    """
    outside = Reading()
    row = _unprefixed(0, raw, outside)
    blank = not row.body.strip()
    if row.flag == "P" or (not blank and not (starts(row) and _cuts(row.body) == [0])):
        return None
    noise = False if blank else judge(row.body)
    if noise is None or "epeated " in row.body:
        return None
    return Quiet(
        len(raw),
        len(row.visible),
        len(row.body),
        bool(_WHOLE.search(row.body)),
        row.framed,
        row.flag,
        tuple(outside.prefixes.elements()),
        blank,
        noise,
    )


def clean(text: str) -> str:
    """The text without colour codes and zeros."""
    if "\x1b" in text or "\x00" in text or "#033" in text or "^[[" in text:
        return _ESCAPED.sub("", text)
    return _ESCAPED.sub("", text) if _COLOUR.search(text) else text


def _unprefixed(number: int, raw: str, seen: Reading) -> _Row:
    visible = clean(raw)
    if len(visible) != len(raw):
        seen.coloured += 1
    row = _Row(number, raw, visible, visible)
    return _without_prefixes(row, seen)


def _without_prefixes(row: _Row, seen: Reading | None) -> _Row:
    """Take every known prefix off row.body, one after another."""
    if row.body.startswith("{"):
        _unwrap_json(row, seen)
    for _ in range(8):
        body = row.body
        if not _PREFIX_HINT.match(body):
            break
        for kind, pattern in PREFIXES:
            match = pattern.match(body)
            if match is None or (kind == "journald" and row.outer is None):
                continue
            _take(row, kind, match)
            if seen is not None:
                seen.prefixes[kind] += 1
            break
        else:
            break
    return row


def _take(row: _Row, kind: str, match: re.Match[str]) -> None:
    groups = match.groupdict()
    row.body = row.body[match.end() :]
    row.outer = row.outer or groups.get("stamp")
    row.process = groups.get("process") or row.process
    row.unit = row.unit or groups.get("unit") or ""
    row.stream = groups.get("stream") or row.stream
    row.flag = groups.get("flag") or row.flag
    row.framed = row.framed or kind not in ("process", "quote", "grep")


def _unwrap_json(row: _Row, seen: Reading | None) -> None:
    """A line that a collector put into a JSON object: its text and time."""
    if not any(f'"{k}"' in row.body for k in _JSON_TEXT):
        return
    try:
        found = json.loads(row.body)
    except (ValueError, RecursionError):
        return
    text = next((found[k] for k in _JSON_TEXT if isinstance(found.get(k), str)), None)
    if text is None:
        return
    time = next((found[k] for k in _JSON_TIME if isinstance(found.get(k), str)), None)
    row.body, row.framed = clean(text.rstrip("\n")), True
    row.outer = row.outer or time
    if "stream" in found and not text.endswith("\n"):
        row.stream, row.flag = str(found["stream"]), "P"
    elif "stream" in found:
        row.stream, row.flag = str(found["stream"]), "F"
    if seen is not None:
        seen.prefixes["JSON"] += 1


def _join_partial(row: _Row, partial: dict[str, _Row], seen: Reading) -> _Row | None:
    """Put a partial line to the one before of its stream; the whole line once it has ended."""
    before = partial.pop(row.stream, None)
    if before is not None:
        seen.partial += 1
        row = replace(
            before,
            body=(before.body + row.body)[: 1 << 20],
            raw=f"{before.raw}\n{row.raw}",
            visible=before.visible + row.body,
            flag=row.flag,
        )
    if row.flag == "P":
        partial[row.stream] = row
        return None
    return _without_prefixes(row, None)


# --- lines that were broken at a column ---


@dataclass(frozen=True)
class Wrap:
    """How the lines of a window were broken. column: None: they were not; of: which text is as long as it
    ("raw", "visible", "body": behind collectors' prefixes); words: between words, not at the column."""

    column: int | None = None
    of: str = "visible"
    words: bool = False

    def joins(self, row: _Row, after: _Row) -> bool:
        """Whether `after` goes on where `row` was broken."""
        if self.column is None or starts(after) or (after.framed and self.of != "body"):
            return False
        if self.of == "body" and not after.framed:
            return False
        again = _WEAK_START.match(after.body)
        if again is not None and again[0][:6] in row.body:
            return False
        length = len(getattr(row, self.of))
        if self.words:
            word = after.body.split(" ", 1)[0]
            return length <= self.column < length + 1 + len(word)
        return self.column - 1 <= length <= self.column

    def glue(self, row: _Row) -> str:
        """What was between a broken line and the next: a blank that was cut off, or nothing."""
        length = len(getattr(row, self.of))
        return " " if self.words or length == (self.column or 0) - 1 else ""


def starts(row: _Row) -> bool:
    """Whether a line looks like the start of a record."""
    body = row.body[:MAX_START]
    return bool(row.process or _START.match(body) or _NAMED_START.match(body))


def find_wrap(rows: list[_Row], quiet: Mapping[Quiet, int]) -> Wrap | None:
    """How these lines were broken, None where nothing says so. quiet: lines between them.

    A break at a column leaves the longest lines equally long, each before a line that starts no record.
    """
    loose = [i for i in range(len(rows) - 1) if not starts(rows[i + 1])]
    if not loose:
        return None
    others = {kind: n for kind, n in quiet.items() if not kind.blank}
    framed = sum(r.framed for r in rows) + sum(n for k, n in others.items() if k.framed)
    best: tuple[int, Wrap] | None = None
    for of in ("visible", "raw", "body"):
        if (of == "body") and not framed * 2 > len(rows) + sum(others.values()):
            continue
        found = _break_at(rows, of, loose, others)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best[1] if best else None


def _break_at(
    rows: list[_Row], of: str, loose: list[int], quiet: Mapping[Quiet, int]
) -> tuple[int, Wrap] | None:
    lengths = [len(getattr(r, of)) for r in rows]
    column = max(max(lengths), max((getattr(kind, of) for kind in quiet), default=0))
    if column < MIN_COLUMN:
        return None
    exact, words = Wrap(column, of), Wrap(column, of, words=True)
    by_column = sum(
        lengths[i] >= column - 1 and exact.joins(rows[i], rows[i + 1]) for i in loose
    )
    by_word = sum(words.joins(rows[i], rows[i + 1]) for i in loose)
    even = by_word * 5 >= 4 * len(loose) and by_word >= 2 and column <= 240
    if even and by_column * 5 < 4 * by_word:  # a break at the column is one between words too
        return by_word, words
    ends = sum(n == column for n in lengths[:-1])
    ends += sum(n for kind, n in quiet.items() if getattr(kind, of) == column)
    if of == "body" and (by_column < 2 or by_column * 2 < ends):
        return None  # lines with stamps of their own are mostly whole
    if by_column == 1:
        full = (i for i, n in enumerate(lengths[:-1]) if n >= column - 1)
        others = all(kind.whole for kind in quiet if getattr(kind, of) >= column - 1)
        if others and all(_WHOLE.search(rows[i].body) for i in full):
            return None
    explained = by_column >= 2 and by_column == len(loose)
    if explained or (by_column and by_column * 3 >= ends):
        return by_column, exact
    return None


def _groups(rows: list[_Row], wrap: Wrap) -> list[list[_Row]]:
    """Rows, those of one record together."""
    groups: list[list[_Row]] = []
    for row in rows:
        if groups and len(groups[-1]) < MAX_PARTS and wrap.joins(groups[-1][-1], row):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


# --- records that share a line ---


def _split(group: list[_Row], wrap: Wrap, seen: Reading) -> Iterator[Record]:
    """The records of a group of lines that belong together."""
    first = group[0]
    if len(group) == 1:
        text, ends = first.body, [len(first.body)]
        last = first.number + first.raw.count("\n")
    else:
        text, ends = _joined(group, wrap)
        last = group[-1].number
        seen.wrapped += 1
        seen.columns[wrap.column or 0] += 1
    cuts = _cuts(text)
    if len(cuts) == 1:
        yield _record(first, text, first.number, last - first.number + 1, first.outer, False)
        return
    seen.glued += 1
    unit = first.unit
    for begin, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
        row = replace(first, body=text[begin:end])
        if not begin and _is_prefix(row):
            seen.prefixes["unknown"] += 1
            unit = unit or (row.body.strip() if _NAME.fullmatch(row.body) else "")
            continue
        if begin:
            row = replace(row, outer=None, process="", unit=unit, framed=False)
            row = _without_prefixes(row, None)
        start = group[_part(ends, begin)].number
        stop = group[_part(ends, max(end - 1, begin))].number
        yield _record(
            row, row.body, start, stop - start + 1, row.outer or first.outer, begin > 0
        )


def _is_prefix(row: _Row) -> bool:
    """Whether what stands before the first head in a line is a prefix of a kind not known."""
    text = row.body
    return len(text) <= MAX_PREFIX and not starts(row) and not _WEAK_START.match(text)


def _joined(group: list[_Row], wrap: Wrap) -> tuple[str, list[int]]:
    """The text of a broken record, and where each of its lines ends in it."""
    text, ends = "", []
    for i, row in enumerate(group):
        if i == 0:
            part = row.raw if wrap.of == "raw" else row.body
        else:
            part = row.raw if wrap.of == "raw" else row.body if row.framed else row.visible
        text += part + (wrap.glue(row) if i + 1 < len(group) else "")
        ends.append(len(text))
    if wrap.of != "raw":
        return text, ends
    cleaned = _without_prefixes(replace(group[0], body=clean(text)), None).body
    lost = len(text) - len(cleaned)
    return cleaned, [max(0, e - lost) for e in ends]


def _part(ends: list[int], at: int) -> int:
    return next((i for i, e in enumerate(ends) if at < e), len(ends) - 1)


def _cuts(text: str) -> list[int]:
    """Where the records of a text begin."""
    if len(text) < MIN_GLUED:
        return [0]
    for word in _INSIDE_WORDS:
        if text.find(word, 1) > 0:
            break
    else:
        return [0]
    cuts, after = [0], 0
    for match in _START_INSIDE.finditer(text):
        if match.start() > after:  # else it goes on with the prefix before it
            cuts.append(match.start())
        after = match.end()
    return cuts


def _record(
    row: _Row, text: str, number: int, num_lines: int, outer: str | None, inside: bool
) -> Record:
    copies = 1
    if "epeated " in text:
        if match := _REPEATED.search(text):
            copies, text = int(match[1]), text[: match.start()] + text[match.end() :]
        elif match := _SYSLOG_REPEATED.match(text):
            copies, text = int(match[1]), match[2] or ""
    return Record(number, text, num_lines, outer, row.process, row.unit, copies, inside)
