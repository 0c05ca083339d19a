"""One log -> samples, facts and notices: records by record through the grammars, on one clock.

Copies that several tensor-parallel ranks print of one event count once; lines that tell an event again are put to
it; a line that adds values to the sample of the same second joins it. Memory is bounded: samples are columns,
notices beyond a limit are counted, the oldest and the latest kept.

It knows how hits are put together. What lines mean is in grammars/, what they look like in records.py.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from traces.evidence.evidence import Fact, Line, Notice, SourceReport
from traces.evidence.grammars import GRAMMARS, Hit
from traces.evidence.grammars.requests import without_prompts
from traces.evidence.heads import Head, read_head
from traces.evidence.meant import is_rank
from traces.evidence.pool_estimates import PoolEstimates
from traces.evidence.quiet import MAX_READ, ONE_OF, read_blocks
from traces.evidence.records import Reading, Record
from traces.evidence.servers import Apart, Servers
from traces.evidence.source import MAX_LINE_TEXT, Source
from traces.evidence.thinning import MAX_SAMPLES, SampleColumns
from traces.evidence.times import Clocks, Time

MAX_KEPT = 2_500  # notices of one kind: so many first ones and so many last ones
MAX_EXAMPLES = 5
MAX_LEFT_OVER = 200
EXAMPLE_CHARS = 160
SAME_EVENT_S = 2.0
SAME_SAMPLE_S = 1.0
MAX_FACTS = 5_000
MAX_METRIC_LINES = 20_000  # lines of a metrics dump between a log's

_METRIC = re.compile(
    r"(?:# (?:HELP|TYPE) )?(?:vllm|sglang|tgi|trtllm|lmcache|nv)[:_]\w+(?:\{[^}]*\})? (?:\S+)"
    r"|\W{0,4}\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*\W{0,4}$"
)
_ACCESS = re.compile(r" HTTP/\d\.")  # in a line of uvicorn's access log
_DIGITS = str.maketrans("123456789", "000000000")
_ENGINE_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "tgi": "TGI",
    "vllm.rs": "vllm.rs",
}


@dataclass
class _Kept:
    """A notice on the way: its time is still on a clock of its own."""

    kind: str
    at: Line
    time: Time | None
    rank: int | None
    count: int | None
    values: dict[str, Any]
    order: int
    server: tuple[str, str] = ("", "")
    told: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class LogFound:
    """What a log said; as evidence.Found, with samples as a frame.

    samples: columns of telemetry_schema.SAMPLES that have values, and t_s; lines: rows of LINES; families:
    how many records each family had; engines: the same for engines; offset_s: UTC offset of the clock;
    derived: column -> how its inferred values were derived; left_over: (line, text) of some records that no
    grammar knows; metrics: those of a metrics dump, with loose time lines.
    """

    report: SourceReport
    samples: pl.DataFrame
    lines: pl.DataFrame
    facts: tuple[Fact, ...]
    notices: tuple[Notice, ...]
    first_time: str | None
    offset_s: float | None
    engines: Mapping[str, int]
    families: Mapping[str, int]
    derived: Mapping[str, str]
    left_over: tuple[tuple[int, str], ...] = ()
    metrics: tuple[tuple[int, str], ...] = ()


def read_log(source: Source) -> LogFound:
    """Read one source as a log. Nothing that was recognised is an empty LogFound, not an error."""
    reader = LogReader(source)
    for record in read_blocks(
        source.blocks(), reader.seen, reader.judge, reader.hungry, reader.sated
    ):
        reader.take(record)
    return reader.finish()


class LogReader:
    """Takes records one by one; `finish` puts their hits on one clock."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.seen = Reading()
        self.clocks = Clocks()
        self.tests = [(needle, g) for g in GRAMMARS for needle in g.needles]
        self.shapes = {needle.translate(_DIGITS) for needle, _ in self.tests}
        self.engines: Counter[str] = Counter()
        self.families: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.clock_hits: Counter[str] = Counter()
        self.recognised = self.skipped = self.noise = self.copies = self.left_out = (
            self.repeated
        ) = 0
        self.examples: list[str] = []
        self.left_over: list[tuple[int, str]] = []
        self.metrics: list[tuple[int, str]] = []
        self.facts: list[tuple[Fact, Time | None]] = []
        self.fact_servers: list[tuple[str, str]] = []
        self.latest: dict[tuple[str, int | None, str], Fact] = {}
        self.servers = Servers()
        self.first: dict[str, list[_Kept]] = {}
        self.last: dict[str, deque[_Kept]] = {}
        self.order = 0
        self.dropped: dict[str, _Kept] = {}
        self.samples = SampleColumns(MAX_SAMPLES)
        self.clock_ids: dict[str, int] = {}
        self.recent: dict[tuple[Any, ...], tuple[float | None, set[str], Any]] = {}
        self.estimates = PoolEstimates()
        self.derived: dict[str, str] = {}
        self.paused: dict[int | None, tuple[int, int | None]] = {}

    def take(self, record: Record) -> None:
        """Read one record."""
        text = record.text
        if text.startswith("INFO: ") and _ACCESS.search(text):
            self.skipped += 1
            self.noise += 1
            return
        for needle, grammar in self.tests:
            if needle in text and (hit := grammar.read(text)) is not None:
                self._hit(hit, record)
                return
        self.skipped += 1
        if len(self.metrics) < MAX_METRIC_LINES and _METRIC.match(text):
            self.metrics.append((record.number, text))
            return
        if _is_noise(text):
            self.noise += 1
        elif self.hungry():
            shown = without_prompts(text)[:EXAMPLE_CHARS].strip()
            if len(self.examples) < MAX_EXAMPLES and shown:
                self.examples.append(shown)
            if len(self.left_over) < MAX_LEFT_OVER:
                self.left_over.append((record.number, without_prompts(text)[:4000]))

    def hungry(self) -> bool:
        """Whether records that no grammar knows are still kept."""
        return len(self.examples) < MAX_EXAMPLES or len(self.left_over) < MAX_LEFT_OVER

    def sated(self, text: str | None) -> bool:
        """Whether so many samples were read that not all have to be; of a record: whether it is nothing but
        a sample with no count of its own time."""
        if text is None:
            return self.samples.num >= MAX_READ
        for needle, grammar in self.tests:
            if needle in text and (hit := grammar.read(text)) is not None:
                return bool(hit.sample) and not (
                    hit.facts
                    or grammar.notice
                    or grammar.joins
                    or "num_preempted" in hit.sample
                )
        return False

    def judge(self, text: str) -> bool | None:
        """What `take` makes of this record and of all that differ in digits only: None where it may be of
        use, else whether it is noise. It agrees with `take`."""
        if text.startswith("INFO: ") and _ACCESS.search(text):
            return True
        shape = text.translate(_DIGITS)
        if any(needle in shape for needle in self.shapes) or _METRIC.match(text):
            return None
        return _is_noise(text)

    def _hit(self, hit: Hit, record: Record) -> None:
        head = read_head(record.text, record.process)
        time = self.clocks.read(record.outer, head.stamp)
        said = hit.sample.get("engine_rank", head.dp)
        if not is_rank(said):
            del hit.sample["engine_rank"]
        rank = said if isinstance(said, int) and is_rank(said) else None
        self.recognised += 1
        grammar = hit.grammar
        if self._is_copy(hit, head, rank, time):
            return
        self.hits[grammar.name] += 1
        self.repeated += record.copies > 1 and bool(hit.sample)
        if grammar.engine:
            self.engines[grammar.engine] += 1
        family = (
            grammar.family_of(record.text, record.process)
            if grammar.family_of
            else grammar.family
        )
        if family:
            self.families[family] += 1
        if hit.sample:
            self._sample(hit, record, rank, time)
        if hit.facts or hit.derived_facts:
            self._take_facts(hit, record, rank, time)
        for kind in filter(None, (grammar.notice, grammar.also)):
            self._notice(kind, hit, record, rank, time)

    def _is_copy(self, hit: Hit, head: Head, rank: int | None, time: Time | None) -> bool:
        """Whether another tensor-parallel rank has printed this already."""
        if head.tp is None:
            return False
        said = (
            *sorted(hit.sample.items()),
            *sorted(hit.values.items()),
            *sorted(hit.facts.items()),
        )
        key = (hit.grammar.name, rank, hit.count, said)
        now = time.seconds if time else None
        before = self.recent.get(key)
        if before is not None:
            since, ranks, values = before
            near = since is None or now is None or abs(now - since) <= SAME_EVENT_S
            if near and head.tp not in ranks:
                ranks.add(head.tp)
                self.copies += 1
                if values is not None:
                    values["copies"] = len(ranks)
                return True
        if len(self.recent) > 4096:
            self.recent.clear()
        self.recent[key] = (now, {head.tp}, hit.values if hit.grammar.notice else None)
        return False

    # --- samples ---

    def _sample(self, hit: Hit, record: Record, rank: int | None, time: Time | None) -> None:
        row: dict[str, Any] = dict(hit.sample)
        if hit.derived is not None:
            row.update(hit.derived.values)
            row["inferred"] = list(hit.derived.values)
            self.derived.update(dict.fromkeys(hit.derived.values, hit.derived.note))
        if "num_ranks" not in row:
            row["engine_rank"] = rank
        row["_server"] = self.servers.take(record, rank)
        self._count_pauses(hit, row, rank)
        self.estimates.take(hit.grammar.name, record.text, hit.sample)
        if time is not None:
            self.clock_hits[time.clock] += 1
            row["_clock"] = self.clock_ids.setdefault(time.clock, len(self.clock_ids))
            row["_s"] = time.seconds
        self.samples.add_line(record.number, self._text(record))
        if hit.grammar.joins and self._join(row, record):
            return
        row["line"], row["num_lines"] = record.number, record.num_lines
        self.samples.add(row)

    def _count_pauses(self, hit: Hit, row: dict[str, Any], rank: int | None) -> None:
        """A rise of the requests that are paused now is that many preemptions, at least."""
        paused = hit.extra.get("paused")
        if not isinstance(paused, int):
            return
        step = row.get("step")
        before, last = self.paused.get(rank, (paused, None))
        self.paused[rank] = (paused, step)
        next_step = last is not None and step == last + 1
        if paused > before or (next_step and paused <= before):
            row["num_preempted"] = max(0, paused - before)
            row.setdefault("inferred", []).append("num_preempted")
            self.derived["num_preempted"] = (
                "rise of the paused requests since the line before; none known where steps are left out"
            )

    def _join(self, row: dict[str, Any], record: Record) -> bool:
        """Put the values to the sample before, where it has none of them and is of the same second."""
        if not self.samples.rows:
            return False
        before = self.samples.rows[-1]
        values = {
            k for k in row if k not in ("_s", "_clock", "_server", "inferred", "engine_rank")
        }
        same_clock = before.get("_clock") == row.get("_clock")
        same_clock &= before["_server"] == row["_server"]
        near = abs(before.get("_s", 0.0) - row.get("_s", 0.0)) <= SAME_SAMPLE_S
        if values & set(before) or not (same_clock and near):
            return False
        inferred = before.get("inferred", []) + row.get("inferred", [])
        before.update({k: row[k] for k in values})
        before["num_lines"] = record.number + record.num_lines - before["line"]
        if inferred:
            before["inferred"] = inferred
        return True

    # --- facts and notices ---

    def _take_facts(
        self, hit: Hit, record: Record, rank: int | None, time: Time | None
    ) -> None:
        at, server = self._line(record), (record.unit, record.process)
        said = [(n, v, False, "") for n, v in hit.facts.items()]
        if hit.derived_facts is not None:
            note = hit.derived_facts.note
            said += [(n, v, True, note) for n, v in hit.derived_facts.values.items()]
        for name, value, inferred, note in said:
            key = (name, rank, server[0])
            latest = self.latest.get(key)
            if latest is not None and latest.value == value and latest.inferred == inferred:
                continue
            if len(self.facts) < MAX_FACTS:
                fact = Fact(name, value, at, rank, None, inferred, note)
                self.facts.append((fact, time))
                self.fact_servers.append(server)
                self.latest[key] = fact

    def _notice(
        self, kind: str, hit: Hit, record: Record, rank: int | None, time: Time | None
    ) -> None:
        if time is not None:
            self.clock_hits[time.clock] += 0
        values = hit.values if kind == hit.grammar.notice else dict(hit.values)
        if record.process:
            values.setdefault("process", record.process)
        if hit.grammar.merges and self._merge(kind, hit, values, time):
            return
        at = self._line(record)
        server = (record.unit, record.process)
        self._keep(
            _Kept(kind, at, time, rank, hit.count, values, 0, server, {hit.grammar.name})
        )
        if record.copies > 1:
            more = {k: v for k, v in values.items() if k == "process"}
            self._keep(
                _Kept(
                    "repeated",
                    at,
                    time,
                    rank,
                    record.copies - 1,
                    {"of": kind, **more},
                    0,
                    server,
                )
            )

    def _merge(self, kind: str, hit: Hit, values: dict[str, Any], time: Time | None) -> bool:
        """Whether this tells again of a notice of the last seconds; what it adds is put there."""
        kept = [*self.first.get(kind, [])[-32:], *list(self.last.get(kind, ()))[-32:]]
        for before in reversed(kept):
            if hit.grammar.name in before.told:
                continue
            if time and before.time and abs(time.seconds - before.time.seconds) > SAME_EVENT_S:
                return False
            shared = (values.keys() & before.values.keys()) - {"process", "what"}
            if all(values[k] == before.values[k] for k in shared) or _swapped(before, values):
                before.values.update(values)
                before.told.add(hit.grammar.name)
                return True
        return False

    def _keep(self, notice: _Kept) -> None:
        notice.order = self.order = self.order + 1
        first = self.first.setdefault(notice.kind, [])
        if len(first) < MAX_KEPT:
            first.append(notice)
            return
        last = self.last.setdefault(notice.kind, deque(maxlen=MAX_KEPT))
        if len(last) == MAX_KEPT:
            self.left_out += 1
            self._drop(last[0])
        last.append(notice)

    def _drop(self, notice: _Kept) -> None:
        """Keep the number of a notice that is dropped, where it is not a counter: one stands for all."""
        if notice.kind not in ("retract", "swap_out", "swap_in", "preemption"):
            return
        if notice.kind == "preemption" and notice.count is not None:
            return
        one = self.dropped.get(notice.kind)
        if one is None:
            one = self.dropped[notice.kind] = replace(notice, count=None, values={"events": 0})
        if notice.kind == "retract":
            one.count = (one.count or 0) + (notice.count or 1)
        one.values["events"] += 1

    def _text(self, record: Record) -> str:
        """The record as it stood in the source, prompts left out."""
        parts = [
            record.outer or "",
            f"({record.process})" if record.process else "",
            record.text,
        ]
        return without_prompts(" ".join(p for p in parts if p))[:MAX_LINE_TEXT]

    def _line(self, record: Record) -> Line:
        return Line(self.source.name, record.number, record.num_lines, self._text(record))

    # --- the end ---

    def finish(self) -> LogFound:
        """Everything on one clock."""
        self.skipped += self.seen.quiet
        self.noise += self.seen.noise
        frame, lines = self.samples.finish()
        names = {v: k for k, v in self.clock_ids.items()}
        notices = sorted(
            (
                n
                for kept in (self.first, self.last, {"": list(self.dropped.values())})
                for ns in kept.values()
                for n in ns
            ),
            key=lambda n: n.order,
        )
        counts = Counter({c: n for c, n in self.clock_hits.items() if n})
        if not counts:
            counts = Counter(n.time.clock for n in notices if n.time)
            counts = counts or Counter(t.clock for _, t in self.facts if t)
        main = self.clocks.main(counts)
        notes = self._notes()
        zero = 0.0
        if frame.height:
            frame = self._timed(frame, main, names)
        if main is not None:
            zero = self._zero(frame, notices, main)
        apart = self.servers.apart()
        if apart and frame.height:
            frame = _ranked(frame, apart)
            notes.append(apart.note)
        if "t_s" in frame.columns:
            frame = frame.with_columns((pl.col("t_s") - zero).round(6))
            frame, disorder = in_order(frame)
            if disorder:
                notes.append(
                    f"{disorder} samples stood out of the order of their times and were put in order"
                )
        self.estimates.finish(self.facts, self.source)
        notes += self._clock_notes(main)
        return LogFound(
            self._report(notes),
            frame.drop("_s", "_clock", "_server", strict=False),
            lines,
            tuple(
                replace(
                    f,
                    t_s=self._t_s(t, main, zero),
                    rank=apart.rank(of, f.rank) if apart else f.rank,
                )
                for (f, t), of in zip(
                    self.facts,
                    [
                        *self.fact_servers,
                        *[("", "")] * (len(self.facts) - len(self.fact_servers)),
                    ],
                    strict=True,
                )
            ),
            tuple(
                Notice(
                    n.kind,
                    n.at,
                    self._t_s(n.time, main, zero),
                    apart.rank(n.server, n.rank) if apart else n.rank,
                    n.count,
                    n.values,
                )
                for n in notices
            ),
            None if main is None else self.clocks.write(main, zero),
            None if main is None else self.clocks.offset_s(main),
            dict(self.engines),
            dict(self.families),
            dict(self.derived),
            tuple(self.left_over),
            tuple(self.metrics),
        )

    def _timed(
        self, frame: pl.DataFrame, main: str | None, names: dict[int, str]
    ) -> pl.DataFrame:
        if main is None or "_s" not in frame.columns:
            return frame
        away = {i: self.clocks.distance_s(name, main) for i, name in names.items()}
        return frame.with_columns(
            (
                pl.col("_s") + pl.col("_clock").replace_strict(away, return_dtype=pl.Float64)
            ).alias("t_s")
        )

    def _zero(self, frame: pl.DataFrame, notices: list[_Kept], main: str) -> float:
        """The whole second of the first sample, or else of the first notice or fact."""
        if "t_s" in frame.columns and frame["t_s"].count():
            return math.floor(float(frame["t_s"].min()))  # type: ignore[arg-type]
        for times in ([n.time for n in notices], [t for _, t in self.facts]):
            found = [s for t in times if (s := self._t_s(t, main, 0.0)) is not None]
            if found:
                return math.floor(min(found))
        return 0.0

    def _t_s(self, time: Time | None, main: str | None, zero: float) -> float | None:
        if time is None or main is None:
            return None
        away = self.clocks.distance_s(time.clock, main)
        return None if away is None else round(time.seconds + away - zero, 6)

    def _report(self, notes: list[str]) -> SourceReport:
        engine = max(self.engines, key=lambda e: self.engines[e], default=None)
        known = sum(self.engines.values())
        share = self.engines[engine] / known if engine else 0.0
        if self.source.damage:
            notes.append(self.source.damage)
        notes += self.source.left_out
        return SourceReport(
            self.source.name,
            "log",
            family_name(self.families),
            engine,
            self.seen.num_lines,
            self.recognised,
            self.skipped,
            tuple(self.examples),
            round(share * (1 if known >= 3 else 0.8), 3),
            tuple(notes),
        )

    def _notes(self) -> list[str]:
        notes, seen = [], self.seen
        kinds = ", ".join(k for k in seen.prefixes if k not in ("process",))
        if kinds:
            notes.append(f"Prefixes were taken off: {kinds}")
        if seen.wrapped:
            column = seen.columns.most_common(1)[0][0]
            notes.append(f"{seen.wrapped} records were broken at column {column} and joined")
        if seen.partial:
            notes.append(f"{seen.partial} partial lines were joined")
        if seen.glued:
            notes.append(f"{seen.glued} lines held several records and were split")
        if seen.coloured:
            notes.append("Colour codes were removed")
        if self.copies:
            notes.append(
                f"{self.copies} lines repeat what another tensor-parallel rank printed, and count once"
            )
        if self.repeated:
            notes.append(
                f"{self.repeated} statistics lines stand for several that the collector left out"
            )
        if self.samples.note():
            notes.append(self.samples.note())
        if seen.unread:
            notes.append(
                f"Of the statistics lines behind the first {MAX_READ:,} one of {ONE_OF} was read; {seen.unread:,} "
                "lines were only counted"
            )
        if self.left_out:
            notes.append(
                f"{self.left_out} notices between the first and the last were not kept"
            )
        if self.noise:
            notes.append(f"{self.noise} of the skipped are access-log lines or progress bars")
        if len(self.engines) > 1:
            found = ", ".join(
                f"{_ENGINE_NAMES.get(e, e)} ({n})"
                for e, n in Counter(self.engines).most_common()
            )
            notes.append(f"Lines of several engines are in one source: {found}")
        return notes

    def _clock_notes(self, main: str | None) -> list[str]:
        if main is None:
            return ["No line has a time; the order of the lines stands for it"]
        notes = []
        if (other := self.clocks.own_offset_s(main)) is not None:
            hours = other[1] / 3600
            word = "ahead of" if hours > 0 else "behind"
            notes.append(
                f"Lines carry two clocks: the log's own is {abs(hours):g} h {word} the collector's, which is used"
            )
        form = self.clocks.clocks[main].form
        if form == "time":
            notes.append(
                "The log has times of day only; a time that falls back is taken for midnight"
            )
        lost = [c for c in self.clocks.seen if self.clocks.distance_s(c, main) is None]
        if lost:
            notes.append(
                "Some lines have another clock whose distance is not known: they have no time"
            )
        if self.clocks.clocks[main].backward:
            notes.append("Times go back in places")
        return notes


def family_name(families: Mapping[str, int]) -> str:
    """The families of a source in one name: that of most records, start-up families only where alone."""
    running = {f: n for f, n in families.items() if not f.endswith("-startup")}
    if not running:
        return max(families, key=lambda f: families[f], default="")
    main = [f for f in running if f not in ("rust tracing", "lmcache")]
    more = [f for f in running if f in ("rust tracing", "lmcache")]
    main.sort(key=lambda f: (-running[f], f))
    head = main[:1] or more[:1]
    return " + ".join([*head, *(f for f in more if f not in head)])


def _ranked(frame: pl.DataFrame, apart: Apart) -> pl.DataFrame:
    """Samples with ranks that tell the servers of one log apart."""
    first = pl.col("_server").replace_strict(apart.first_ranks, return_dtype=pl.Int32)
    if "engine_rank" not in frame.columns:
        frame = frame.with_columns(pl.lit(None, pl.Int32).alias("engine_rank"))
    return frame.with_columns((first + pl.col("engine_rank").fill_null(0)).alias("engine_rank"))


def in_order(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The rows in the order of their times, and how many stood elsewhere; rows without a time stay
    behind the row before them."""
    at = frame["t_s"]
    disorder = int((at.drop_nulls().diff() < -1e-9).sum())
    if not disorder:
        return frame, 0
    order = frame.with_columns(
        pl.col("t_s").forward_fill().fill_null(-math.inf).alias("_order")
    )
    return order.sort("_order", maintain_order=True).drop("_order"), disorder


def _is_noise(text: str) -> bool:
    """Whether a record is an access-log line or a progress bar."""
    return "HTTP/" in text or "%|" in text or "it/s" in text


def _swapped(before: _Kept, values: Mapping[str, Any]) -> bool:
    """Whether the first line printed request and blocks in swapped order (older vllm.rs); mends it."""
    blocks, request = values.get("blocks"), before.values.get("request")
    if before.kind not in ("swap_out", "swap_in") or "request" in values:
        return False
    if blocks is None or str(blocks) != request:
        return False
    before.values["request"] = str(before.values.get("blocks"))
    return True
