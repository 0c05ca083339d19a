"""Files and pastes -> one Evidence: each source to its reader, all of them on one clock.

    evidence = read_evidence(["server.log", "metrics.prom"], pasted="vllm serve ... --max-num-seqs 64")

Readers of whole sources (files/) are asked first how sure they are; what none of them claims is read as a log. It
knows how sources are put together, and no format.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl

from traces.errors import EvidenceError
from traces.evidence.evidence import Evidence, Fact, Found, Line, Notice, SourceReport
from traces.evidence.files import READERS
from traces.evidence.grammars import GRAMMARS, SILENT
from traces.evidence.log_reader import in_order, read_log
from traces.evidence.meant import (
    MAX_MEANT,
    facts_that_are_meant,
    notice_that_is_meant,
    rows_that_are_meant,
)
from traces.evidence.other_software import whose
from traces.evidence.records import Reading, read_records
from traces.evidence.source import ReadingCancelled, Source
from traces.evidence.times import EPOCH, SOME_YEAR, Stamp, parse_stamp, shift
from traces.telemetry import Telemetry, make_telemetry
from traces.telemetry_laws import MAX_FRAC, polars_schema
from traces.telemetry_schema import LINES, SAMPLES, VALUE_NAMES, telemetry_metadata

SURE = 0.5  # a reader that is less sure does not get the source
CERTAIN = 0.9  # below, lines of a log in the head speak against a reader of whole sources
MAY_STAND_BETWEEN = (
    "notes",
    "prometheus",
    "bench",
)  # readers of lines that are pasted among a log's
WITH_REMARKS = (
    "prometheus",
    "bench",
)  # readers that pass over flags and remarks beside their lines
MANY_LOG_LINES = 3  # from here on a table stands in a log, not a line of a log in a table
DAY_S = 86_400.0
_HEAD_OF_TABLE = re.compile(r"[A-Za-z_][\w ./%()-]*(?:,\s*[A-Za-z_][\w ./%()-]*)+")
_METRIC = re.compile(r"#|[a-z_]+:?\w*(?:\{|\s+[\d.]+)")
# lines of flags and remarks of people that stand among a log's lines and say what it does not
# what a report says that bears on every answer
_TELL = re.compile(
    r"^Lines of several engines|samples were read; of|^Of the statistics lines|is longer than \d+ MiB|cut off"
)
_FLAGS = re.compile(
    r"(?:^|\s)--[a-z][\w-]+|\bLLM\(|SamplingParams\(|^client\b"
    r"|(?i:\b(?:device|[gn]pu|sm)[ -]+(?:utili[sz]ation|usage|use|util|load)\b|利用率)[^,;\d]{0,20}(?<![\d.])0(?:\.0)?\s?%"
    r"|(?i:\b\d+ (?:parallel|concurrent|simultaneous)\b)|(?i:\b\d[\d,]*k? (?:prompt|input|output|generated) tokens\b)"
    r"|(?i:\b(?:prompts?|inputs?) of (?:about |~)?\d[\d,]*k? tokens\b)"
    r"|(?i:\bblock[ _-]size \d+\b)",
    re.M,
)


@dataclass
class _Watcher:
    """How far the reading of all sources is. Some readers look at a source twice: what is said never falls."""

    total: int
    progress: Callable[[int, int], None] | None
    cancelled: Callable[[], bool] | None
    before: int = 0
    done: int = 0
    said_at: float = 0.0

    def look(self, of_this: int) -> None:
        """Tell and ask, at most every 0.1 s. Raises ReadingCancelled."""
        now = time.monotonic()
        self.done = min(max(self.done, self.before + of_this), self.total)
        if now - self.said_at >= 0.1:
            self.said_at = now
            self._tell()

    def end(self, size: int) -> None:
        """A source has been read."""
        self.before += size
        self.done = max(self.done, self.before)
        self._tell()

    def _tell(self) -> None:
        if self.cancelled is not None and self.cancelled():
            raise ReadingCancelled("the reading was stopped before its end")
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass(frozen=True)
class Part:
    """What one source gave, whoever read it."""

    report: SourceReport
    samples: pl.DataFrame
    lines: pl.DataFrame
    facts: tuple[Fact, ...] = ()
    notices: tuple[Notice, ...] = ()
    sweeps: tuple[Mapping[str, Any], ...] = ()
    first_time: str | None = None
    offset_s: float | None = None
    engines: Mapping[str, int] | None = None
    derived: Mapping[str, str] | None = None


def read_evidence(
    paths: Sequence[str | Path],
    *,
    pasted: str | None = None,
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Evidence:
    """All that these files and this paste say of a server.

    names: what to call the files, one each, by default their own names. progress: called often (some ten
    times a second at most, and at the end) with the bytes of all sources that were read and their sum, as they
    lie on disk; never falling. cancelled: asked as often; where it says True, ReadingCancelled (a
    KVReplayError of source.py) is raised. A source that cannot be read is
    noted where others can; raises EvidenceError where none can, or where nothing was given.
    """
    opened: list[Source] = []
    faults: list[EvidenceError] = []
    for i, path in enumerate(paths):
        try:
            opened.append(Source.from_path(path, names[i] if names else None))
        except EvidenceError as e:
            faults.append(e)
    if pasted is not None:
        try:
            opened.append(Source.from_text("paste", pasted))
        except EvidenceError as e:
            faults.append(e)
    return _evidence(opened, faults, progress, cancelled)


def read_sources(
    sources: Sequence[Source],
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Evidence:
    """All that these sources say of a server; progress, cancelled: as in `read_evidence`. Raises EvidenceError
    where none can be read."""
    return _evidence(list(sources), [], progress, cancelled)


def _evidence(
    sources: list[Source],
    faults: list[EvidenceError],
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Evidence:
    parts: list[Part] = []
    watcher = _Watcher(sum(s.size for s in sources), progress, cancelled)
    for source in _named_apart(sources):
        if progress is not None or cancelled is not None:
            source.watch = watcher.look
        try:
            parts += _read(source)
        except EvidenceError as e:
            faults.append(e)
        watcher.end(source.size)
    if not parts:
        if faults:
            raise faults[0]
        remedy = "Give a log, metrics or a table, or paste some lines."
        raise EvidenceError("evidence", "", "nothing was given", remedy)
    return _together(parts, [str(e) for e in faults])


def _named_apart(sources: list[Source]) -> list[Source]:
    """The sources, those of one name told apart by a number."""
    seen: Counter[str] = Counter()
    for source in sources:
        seen[source.name] += 1
        if seen[source.name] > 1:
            source.name = f"{source.name} ({seen[source.name]})"
    return sources


# --- one source ---


def _read(source: Source) -> list[Part]:
    reader, sure = _reader(source)
    if reader is not None:
        kind = reader.__name__.rsplit(".", 1)[-1]
        log_lines = _log_lines(source)
        mixes = kind in MAY_STAND_BETWEEN or (kind == "tables" and log_lines >= MANY_LOG_LINES)
        if not log_lines or (sure >= CERTAIN and not mixes):
            whole: Found = reader.read(source)
            if not log_lines or whole.samples or whole.facts or whole.sweeps or whole.notices:
                beside = _remarks(source) if kind in WITH_REMARKS else []
                table = _rows_of_table(_lines_of_head(source)) if kind == "notes" else []
                return [
                    _from_found(whole),
                    *_between(source, "notes", "flags", beside),
                    *_between(source, "tables", "table", table),
                ]
    found = read_log(source)
    part = Part(
        found.report,
        found.samples.with_columns(pl.lit(source.name).alias("source"))
        if found.samples.height
        else found.samples,
        found.lines.with_columns(pl.lit(source.name).alias("source")),
        found.facts,
        found.notices,
        (),
        found.first_time,
        found.offset_s,
        found.engines,
        found.derived,
    )
    flags = [(n, t) for n, t in found.left_over if _FLAGS.search(t)]
    return [
        part,
        *_between(source, "notes", "flags", flags),
        *_between(source, "prometheus", "metrics", list(found.metrics)),
        *_between(source, "bench", "bench", _printed_results(found.left_over)),
        *_between(source, "tables", "table", _rows_of_table(found.left_over)),
    ]


def _rows_of_table(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The first table of comma-separated values among the lines: a head of names, and rows of as many cells."""
    for i, (_, head) in enumerate(lines):
        num = head.count(",")
        if num < 2 or not _HEAD_OF_TABLE.fullmatch(head.strip()):
            continue
        after = lines[i + 1 :]
        end = next((k for k, (_, t) in enumerate(after) if t.count(",") != num), len(after))
        rows = list(after[:end])
        if rows and all(any(c.isdigit() for c in t) for _, t in rows):
            return [lines[i], *rows]
    return []


def _remarks(source: Source) -> list[tuple[int, str]]:
    """Lines of flags, and what people wrote, in the head of a source that is of metrics or results."""
    return [
        (n, t) for n, t in _lines_of_head(source) if not _METRIC.match(t) and _FLAGS.search(t)
    ]


def _lines_of_head(source: Source) -> list[tuple[int, str]]:
    return list(enumerate(source.head.split("\n")[:400], start=1))


def _printed_results(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines from the title of a printed benchmark result on; none without one."""
    first = next((i for i, (_, t) in enumerate(lines) if "Benchmark Result ===" in t), None)
    return [] if first is None else list(lines[first:])


def _reader(source: Source) -> tuple[ModuleType | None, float]:
    scores = [(reader.sniff(source.head, source.name), -i) for i, reader in enumerate(READERS)]
    if not scores:
        return None, 0.0
    sure, place = max(scores)
    return (READERS[-place], sure) if sure >= SURE else (None, sure)


def _log_lines(source: Source) -> int:
    """How many lines of the head a log grammar of some engine reads."""
    lines = enumerate(source.head.split("\n")[:400], start=1)
    engine = [g for g in GRAMMARS if g.engine is not None]
    return sum(
        any(g.matches(record.text) for g in engine) for record in read_records(lines, Reading())
    )


def _between(
    source: Source, reader: str, what: str, lines: list[tuple[int, str]]
) -> list[Part]:
    """What lines of another kind say that stand between the lines of a log."""
    module = next((r for r in READERS if r.__name__.rsplit(".", 1)[-1] == reader), None)
    if module is None or not lines:
        return []
    part = Source.from_text(source.name, "\n".join(t for _, t in lines))
    found: Found = module.read(part)
    if not found.facts and not found.samples and not found.sweeps:
        return []

    def number(n: int) -> int:
        return lines[n - 1][0] if 1 <= n <= len(lines) else n

    def there(at: Line | None) -> Line | None:
        return None if at is None else replace(at, number=number(at.number))

    report = replace(found.report, name=f"{source.name} ({what})", num_lines=len(lines))
    rows = [
        {k: number(v) if k == "line" and isinstance(v, int) else v for k, v in row.items()}
        for row in found.samples
    ]
    facts = tuple(replace(f, at=there(f.at)) for f in found.facts)
    return [_from_found(replace(found, report=report, facts=facts, samples=tuple(rows)))]


def _from_found(found: Found) -> Part:
    rows, lost = rows_that_are_meant(found.samples)
    facts, more = facts_that_are_meant(found.facts)
    names = {name for row in rows for name in row}
    schema = {n: t for n, t in polars_schema(SAMPLES).items() if n in names}
    frame = pl.DataFrame(rows, schema=schema) if rows else pl.DataFrame()
    if rows and "source" not in names:
        frame = frame.with_columns(pl.lit(found.report.name).alias("source"))
    inferred = [row.get("inferred") for row in rows]
    derived = {str(n): "" for names in inferred if isinstance(names, list) for n in names}
    report = found.report
    if lost + more:
        said = f"{lost + more:,} numbers that no server can mean (endless, or above 10^15) were left out"
        report = replace(report, notes=(*report.notes, said))
    engines = {report.engine: max(1, report.recognised)} if report.engine else {}
    return Part(
        report,
        frame,
        pl.DataFrame(),
        facts,
        tuple(n for n in found.notices if notice_that_is_meant(n)),
        tuple(rows_that_are_meant(found.sweeps)[0]),
        found.first_time,
        found.offset_s,
        engines,
        derived,
    )


# --- all sources ---


def _together(parts: list[Part], notes: list[str]) -> Evidence:
    main = max(parts, key=lambda p: (p.samples.height, len(p.notices), p.report.recognised))
    base = main if main.first_time else next((p for p in parts if p.first_time), main)
    away: list[float] = []
    for part in parts:
        seconds, note = _distance_s(part, base)
        away.append(seconds)
        if note and note not in notes:
            notes.append(note)
    zero = _zero(parts, away)
    first_time = None if base.first_time is None else shift(base.first_time, zero)
    moved = [_moved(p, s - zero) for p, s in zip(parts, away, strict=True)]
    engines: Counter[str] = Counter()
    for part in parts:
        engines.update(part.engines or {})
    engine = max(engines, key=lambda e: engines[e], default=None)
    notes += _notes(parts, engines)
    facts = tuple(f for p in moved for f in p.facts)
    family = max(
        parts, key=lambda p: (bool(p.report.family), p.samples.height, p.report.recognised)
    ).report.family
    label = ", ".join(
        p.report.name
        for p in parts
        if not p.report.name.endswith(("(flags)", "(metrics)", "(bench)", "(table)"))
    )
    evidence = Evidence(
        label,
        engine,
        family,
        None,
        facts,
        tuple(n for p in moved for n in p.notices),
        tuple(p.report for p in parts),
        first_time,
        tuple(row for p in parts for row in p.sweeps),
        tuple(notes),
    )
    return replace(evidence, telemetry=_telemetry(evidence, moved))


def _zero(parts: list[Part], away: list[float]) -> float:
    """The earliest sample of all sources on the base's clock, whole seconds; 0 where none has a time."""
    found: list[float] = []
    for part, seconds in zip(parts, away, strict=True):
        times = part.samples["t_s"].drop_nulls() if "t_s" in part.samples.columns else ()
        if len(times):
            found.append(min(times) + seconds)
    return math.floor(min(found) + 1e-6) if found else 0.0


def _distance_s(part: Part, base: Part) -> tuple[float, str]:
    """Seconds to add to a source's times to have them on the base's clock, and what was assumed."""
    a = parse_stamp(part.first_time) if part.first_time else None
    b = parse_stamp(base.first_time) if base.first_time else None
    if part is base or a is None or b is None:
        return 0.0, ""
    zones = (_offset(a, part), _offset(b, base))
    if zones[0] is not None and zones[1] is not None:
        return (a.seconds - zones[0]) - (b.seconds - zones[1]), ""
    note = ""
    if zones[0] is not None or zones[1] is not None:
        note = (
            f"{part.report.name} and {base.report.name} may have clocks of different zones; "
            "they are taken for the same"
        )
    if "time" in (a.form, b.form):
        away = (a.seconds - b.seconds) % DAY_S
        return away - DAY_S if away > DAY_S / 2 else away, note
    if {a.form, b.form} & {"monthday", "syslog", "glog"}:
        return _in_some_year(a) - _in_some_year(b), note
    return a.seconds - b.seconds, note


def _offset(stamp: Stamp, part: Part) -> float | None:
    return stamp.offset_s if stamp.offset_s is not None else part.offset_s


def _in_some_year(stamp: Stamp) -> float:
    at = EPOCH + timedelta(seconds=stamp.seconds)
    if (at.month, at.day) == (2, 29):
        at += timedelta(days=1)
    return (at.replace(year=SOME_YEAR) - EPOCH).total_seconds()


def _moved(part: Part, by: float) -> Part:
    """The part with its times on the common clock."""
    if not by:
        return part
    frame = part.samples
    if "t_s" in frame.columns:
        frame = frame.with_columns((pl.col("t_s") + by).round(6))
    return replace(
        part,
        samples=frame,
        facts=tuple(replace(f, t_s=None if f.t_s is None else f.t_s + by) for f in part.facts),
        notices=tuple(
            replace(n, t_s=None if n.t_s is None else n.t_s + by) for n in part.notices
        ),
    )


def _notes(parts: list[Part], engines: Counter[str]) -> list[str]:
    notes = []
    of = {p.report.name: p.report.engine for p in parts if p.report.engine}
    if len(set(of.values())) > 1:
        said = "; ".join(f"{name}: {engine}" for name, engine in of.items())
        notes.append(f"The sources are of different engines ({said})")
    for part in parts:
        notes += [f"{part.report.name}: {n}" for n in part.report.notes if _TELL.search(n)]
        if not part.report.recognised:
            software = whose(part.report.skipped_examples)
            looks = f"it looks like {software}" if software else "it may be of other software"
            notes.append(
                f"{part.report.name}: none of its {part.report.num_lines} lines is known; {looks}"
            )
    return notes


# --- telemetry ---


def _telemetry(evidence: Evidence, parts: list[Part]) -> Telemetry | None:
    """The samples of all sources as one Telemetry; None where there are none."""
    frames = [p.samples for p in parts if p.samples.height]
    if not frames:
        return None
    frame = pl.concat(frames, how="diagonal_relaxed")
    if "inferred" in frame.columns:
        frame = frame.with_columns(pl.col("inferred").fill_null([]))
    if "num_ranks" in frame.columns:
        frame = frame.with_columns(pl.col("num_ranks").fill_null(1))
    frame = _within_bounds(frame)
    if "t_s" in frame.columns:
        frame, _ = in_order(frame)
        frame = frame.with_columns(pl.col("t_s").clip(lower_bound=0.0))
    lines = [p.lines for p in parts if p.lines.height]
    kept = pl.concat(lines) if lines else pl.DataFrame(schema=polars_schema(LINES))
    kept = kept.select(*(c.name for c in LINES.columns)).unique(maintain_order=True)
    meta = _metadata(evidence, parts, frame)
    return make_telemetry(evidence.label, frame, meta, lines=kept)


def _within_bounds(frame: pl.DataFrame) -> pl.DataFrame:
    """Samples without values that no table may hold: negative, endless, or no share; nor are these inferred."""
    numeric = [
        c
        for c in frame.columns
        if c in VALUE_NAMES and c != "engine_rank" and frame.schema[c].is_numeric()
    ]
    good = frame.with_columns(
        pl.when(pl.col(c).is_between(0, MAX_FRAC if c.endswith("_frac") else MAX_MEANT)).then(
            pl.col(c)
        )
        for c in numeric
    )
    lost = [c for c in numeric if good[c].null_count() > frame[c].null_count()]
    if not lost or "inferred" not in good.columns:
        return good
    named = [
        [n for n in row["inferred"] or [] if n not in lost or row[n] is not None]
        for row in good.select("inferred", *lost).iter_rows(named=True)
    ]
    return good.with_columns(pl.Series("inferred", named, dtype=pl.List(pl.String)))


def _metadata(evidence: Evidence, parts: list[Part], frame: pl.DataFrame) -> dict[str, Any]:
    derived = {
        name: note or "derived from other values of the source"
        for p in parts
        for name, note in (p.derived or {}).items()
    }
    version, model = evidence.fact("version"), evidence.fact("model")
    pool, block = evidence.fact("pool_blocks"), evidence.fact("block_size")
    family = evidence.family.split(" + ")[0]
    steps = "step" in frame.columns and frame["step"].count() == frame.height
    logs = all(p.report.kind == "log" for p in parts if p.samples.height)
    return telemetry_metadata(
        engine={"name": evidence.engine, "version": version.value if version else None},
        recorded_by="reader of evidence",
        sampling="steps" if steps else "periodic" if logs else "scrapes",
        missing=SILENT.get(family, {}),
        inferred=derived,
        start_unix_s=None,
        ranks=None,
        model=model.value if model else None,
        block_size=block.value if block else None,
        pool_blocks=pool.value if pool else None,
    )
