"""Scrapes of metrics, put together: named series with labels in, one row a rank and scrape out.

It knows how series of one rank are combined, what two values of a counter say of the time between them,
which rank a series belongs to, and what histograms say. It knows no file format: prometheus.py,
query_range.py and grafana.py hand it their points.

A counter that falls is a restart: nothing is said of that time. A series that is absent in a scrape is
missing there, not 0. Two servers (label instance, pod or ReplicaId) or models are never added up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from traces.evidence.evidence import Fact, Line, Value
from traces.evidence.files.histograms import Histogram, histogram_facts
from traces.evidence.files.names import Named, Use
from traces.evidence.files.pools import pool_facts
from traces.evidence.meant import is_meant
from traces.telemetry_schema import VALUE_NAMES, telemetry_table

RANK_LABELS = ("dp_rank", "engine", "engine_idx", "engine_index", "attn_dp_rank")
SERVER_LABELS = ("ReplicaId", "pod", "kubernetes_pod_name", "instance", "exported_instance")
MODEL_LABELS = ("model_name", "model", "served_model_name")
MAX_SCRAPES = 100_000
_RANK = re.compile(r"[0-9]{1,6}")
Row = dict[str, Value | list[str] | None]
_WHOLE = {c.name for c in telemetry_table("samples").columns if str(c.type) == "int64"}


@dataclass(frozen=True)
class Key:
    """Whose series it is: server, model and rank, "" or None where no label says."""

    server: str = ""
    model: str = ""
    rank: int | None = None


@dataclass(frozen=True)
class Series:
    """A named series: whose it is, what it is called within a scrape, and what it is good for."""

    named: Named
    labels: Mapping[str, str]
    key: Key
    name: str
    uses: tuple[Use, ...]


@dataclass
class _Slot:
    """The value of one column of one rank in one scrape. values: series -> value, the last counts."""

    use: Use
    values: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        values = self.values.values()
        if self.use.how == "mean":
            return sum(values) / len(values)
        return max(values) if self.use.how == "max" else math.fsum(values)


@dataclass
class Scrape:
    """What was read at one time. line, num_lines: where; slots: key -> column -> value."""

    t_s: float | None = None
    line: int = 0
    last_line: int = 0
    slots: dict[Key, dict[str, _Slot]] = field(default_factory=dict)
    lines: dict[Key, list[int]] = field(default_factory=dict)


@dataclass
class Scrapes:
    """All scrapes of one source. engines: engine -> series that had its names."""

    source: str
    scrapes: list[Scrape] = field(default_factory=list)
    engines: dict[str, int] = field(default_factory=dict)
    facts: dict[tuple[str, Key], tuple[Value, Line]] = field(default_factory=dict)
    configs: dict[Key, tuple[Mapping[str, str], Line]] = field(default_factory=dict)
    histograms: dict[tuple[str, Key], Histogram] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    moved_s: float = 0.0
    _stride: int = 1  # one scrape of so many is kept
    _begun: int = 0
    _last: Scrape | None = None
    _by_time: dict[float, Scrape] = field(default_factory=dict)

    def begin(self, t_s: float | None, line: int) -> Scrape:
        """A new scrape at that time. Of more than MAX_SCRAPES every second is dropped, again and again."""
        if len(self.scrapes) >= MAX_SCRAPES:
            del self.scrapes[1::2]
            self._stride *= 2
            self._by_time = {s.t_s: s for s in self.scrapes if s.t_s is not None}
        self._last = Scrape(t_s, line, line)
        if self._begun % self._stride == 0:
            self.scrapes.append(self._last)
        self._begun += 1
        return self._last

    def at(self, t_s: float, line: int) -> Scrape:
        """The scrape of that time, a new one where there is none."""
        if t_s not in self._by_time:
            self._by_time[t_s] = self.begin(t_s, line)
        return self._by_time[t_s]

    def prepare(self, named: Named, labels: Mapping[str, str]) -> Series:
        """What is known of a series before its value: once for all scrapes that it comes in."""
        self.engines.setdefault(named.engine, 0)
        uses = tuple(
            u for u in named.uses if all(labels.get(k) == v for k, v in u.where.items())
        )
        name = named.base + named.part + repr(sorted(labels.items()))
        return Series(named, labels, _key(labels), name, uses)

    def add(self, scrape: Scrape, series: Series, value: float, number: int, text: str) -> bool:
        """One series' value. False where it says nothing of use. number, text: its line.

        A series that comes again in the same scrape is a copy: its last value counts.
        """
        key = series.key
        for use in series.uses:
            if use.fact == "cache_config":
                self.configs[key] = (series.labels, Line(self.source, number, 1, text[:400]))
            elif use.histogram:
                histogram = self.histograms.get((use.histogram, key))
                if histogram is None:
                    histogram = Histogram(Line(self.source, number, 1, text[:400]))
                    self.histograms[use.histogram, key] = histogram
                bound = series.labels.get("le")
                histogram.add(series.named.part, series.name, bound, value, scrape)
            elif not is_meant(value):
                continue
            elif use.fact:
                at = Line(self.source, number, 1, text[:400])
                self.facts[use.fact, key] = (_number(value), at)
            else:
                _put(scrape, key, use, series.name, value, number)
        if series.uses:
            self.engines[series.named.engine] += 1
        return bool(series.uses)

    def engine(self) -> str | None:
        """The engine that most series speak of; a router in front of it only where it is alone."""
        counts = {k: v for k, v in self.engines.items() if k != "dynamo"} or self.engines
        return max(counts, key=counts.__getitem__) if counts else None

    def finish(self) -> tuple[list[Row], list[Fact]]:
        """Rows of samples (each one rank of one scrape) and facts; `notes` gains what was odd."""
        if self._stride > 1:
            if self._last is not None and self._last is not self.scrapes[-1]:
                self.scrapes.append(self._last)
            self.notes.append(
                f"{self._begun:,} scrapes are in it; one of {self._stride} was kept, and the last."
            )
        ranks = self._ranks()
        self._in_order()
        several = len({r for r in ranks.values() if r is not None}) > 1
        of_fact = ranks if several else dict.fromkeys(ranks)
        facts = [
            Fact(name, value, at, of_fact[key])
            for (name, key), (value, at) in self.facts.items()
        ]
        facts += [Fact("model", name, at, rank) for name, at, rank in self._models(of_fact)]
        facts += pool_facts(self.configs, ranks, self._is_v0(), self.notes)
        for (what, key), histogram in self.histograms.items():
            facts += histogram_facts(what, histogram, of_fact[key])
        pools = {(f.name, f.rank): f.value for f in facts if isinstance(f.value, int | float)}
        rows = list(self._rows(ranks, pools))
        self._note_evictable(ranks)
        return rows, facts

    def _note_evictable(self, ranks: Mapping[Key, int | None]) -> None:
        """SGLang counts cached tokens of nobody apart: they are room for new requests."""
        last = self.scrapes[-1].slots if self.scrapes else {}
        said = [
            f"{slots['evictable_tokens'].value:,.0f}"
            + (f" (rank {ranks[key]})" if ranks[key] is not None else "")
            for key, slots in sorted(last.items(), key=lambda k: ranks[k[0]] or 0)
            if "evictable_tokens" in slots
        ]
        reserved = [s["reserved_tokens"].value for s in last.values() if "reserved_tokens" in s]
        if reserved:
            self.notes.append(
                f"The running batch may take up to {sum(reserved):,.0f} tokens (prompts and what they may "
                "produce): that is reserved, not used."
            )
        if said:
            self.notes.append(f"Tokens that are cached and can be evicted: {', '.join(said)}.")

    def _is_v0(self) -> bool:
        columns = {c for s in self.scrapes for slots in s.slots.values() for c in slots}
        return bool(columns & {"num_swapped", "host_usage_frac"})

    def _keys(self) -> list[Key]:
        keys = [k for s in self.scrapes for k in s.slots]
        keys += [k for _, k in (*self.facts, *self.histograms)]
        return list(dict.fromkeys((*keys, *self.configs)))

    def _ranks(self) -> dict[Key, int | None]:
        """The engine rank of each key; servers and models are numbered where there are several."""
        keys = self._keys()
        servers = sorted({k.server for k in keys if k.server})
        models = sorted({k.model for k in keys if k.model})
        if len(servers) <= 1 and len(models) <= 1:
            plain = {k.rank for k in keys if k.rank is not None}
            only = next(iter(plain)) if len(plain) == 1 else None
            return {k: k.rank if k.rank is not None else only for k in keys}
        whole = [
            k for k in keys if (k.server or len(servers) <= 1) and (k.model or len(models) <= 1)
        ]
        order = sorted(whole, key=lambda k: (k.server, k.model, k.rank or 0))
        number = {k: n for n, k in enumerate(order)}
        what = "servers" if len(servers) > 1 else "models"
        named = ", ".join(f"{n} = {_called(k, models)}" for k, n in list(number.items())[:16])
        self.notes.append(
            f"There are several {what} in it; they are numbered as ranks: {named}."
        )
        return {k: number.get(k) for k in keys}

    def _models(
        self, ranks: Mapping[Key, int | None]
    ) -> Iterable[tuple[str, Line, int | None]]:
        seen: set[str] = set()
        for s in self.scrapes:
            for key, numbers in s.lines.items():
                if key.model and key.model not in seen:
                    seen.add(key.model)
                    yield key.model, Line(self.source, numbers[0]), ranks.get(key)

    def _in_order(self) -> None:
        """Scrapes in the order of their times, the first at 0; `moved_s` is what that took away."""
        times = [s.t_s for s in self.scrapes if s.t_s is not None]
        if times and min(times) < 0:
            self.moved_s = min(times)
            for s in self.scrapes:
                s.t_s = None if s.t_s is None else round(s.t_s - self.moved_s, 6)
        if times == sorted(times):
            return
        if len(times) == len(self.scrapes):
            self.scrapes.sort(key=lambda s: s.t_s or 0.0)
            if not self._by_time:
                self.notes.append(
                    "The scrapes were not in the order of their times; they are now."
                )
            return
        self.notes.append("Times go back and some are missing: the order of the file is kept.")
        for s in self.scrapes:
            s.t_s = None

    def _rows(
        self,
        ranks: Mapping[Key, int | None],
        pools: Mapping[tuple[str, int | None], int | float],
    ) -> Iterable[Row]:
        before: dict[tuple[int | None, str], tuple[float, float | None, int]] = {}
        index: dict[int | None, int] = {}
        last_t: dict[int | None, float | None] = {}
        percent = self._usage_in_percent()
        resets: dict[int | None, int] = {}
        for scrape in self.scrapes:
            for rank, (slots, numbers) in _by_rank(scrape, ranks).items():
                row: Row = {
                    "t_s": scrape.t_s,
                    "engine_rank": rank,
                    "source": self.source,
                    "line": numbers[0],
                    "num_lines": numbers[-1] - numbers[0] + 1,
                }
                inferred: list[str] = []
                old_t = last_t.get(rank)
                if scrape.t_s is not None and old_t is not None:
                    row["interval_s"] = round(scrape.t_s - old_t, 6)
                n = index[rank] = index.get(rank, -1) + 1
                for column, slot in slots.items():
                    _write(row, column, slot.value, percent)
                    if not slot.use.is_counter:
                        continue
                    old = before.get((rank, _counter_name(slot.use)))
                    before[rank, _counter_name(slot.use)] = (slot.value, scrape.t_s, n)
                    if old is not None and slot.value < old[0] - 1e-9 * abs(old[0]):
                        resets[rank] = resets.get(rank, 0) + 1
                    elif old is not None:
                        gained = max(0.0, slot.value - old[0])
                        _write_gain(row, inferred, slot.use, gained, old, n, scrape.t_s)
                last_t[rank] = scrape.t_s
                _derive(row, inferred, slots, rank, pools)
                row["inferred"] = inferred
                yield _kept(row)
        if resets:
            self.notes.append(
                f"Counters fell {sum(resets.values())} times: the server was started again in between; "
                "nothing is derived for that time."
            )

    def _usage_in_percent(self) -> bool:
        usages = (
            slot.value
            for s in self.scrapes
            for slots in s.slots.values()
            for column, slot in slots.items()
            if column in ("kv_usage_frac", "host_usage_frac")
        )
        if max(usages, default=0.0) <= 1.5:
            return False
        self.notes.append("Usages above 1.5 occur: all of them were read as per cent.")
        return True


def _key(labels: Mapping[str, str]) -> Key:
    rank = next((labels[n] for n in RANK_LABELS if _RANK.fullmatch(labels.get(n, ""))), None)
    server = next((labels[n] for n in SERVER_LABELS if labels.get(n)), "")
    model = next((labels[n] for n in MODEL_LABELS if labels.get(n)), "")
    return Key(server, model, int(rank) if rank is not None else None)


def _called(key: Key, models: list[str]) -> str:
    name = key.server or key.model
    if key.server and len(models) > 1:
        name += f" {key.model}"
    return name + (f" rank {key.rank}" if key.rank else "")


def _put(scrape: Scrape, key: Key, use: Use, series: str, value: float, number: int) -> None:
    slots = scrape.slots.setdefault(key, {})
    scrape.lines.setdefault(key, []).append(number)
    scrape.last_line = max(scrape.last_line, number)
    column = use.column or _counter_name(use)
    old = slots.get(column)
    if old is None or use.weight > old.use.weight:
        slots[column] = _Slot(use, {series: value})
    elif use.weight == old.use.weight:
        old.values[series] = value


def _counter_name(use: Use) -> str:
    """What a counter is called while it is collected; no column where only its gain is one."""
    return use.column or f"counter of {use.delta or use.rate}"


def _by_rank(
    scrape: Scrape, ranks: Mapping[Key, int | None]
) -> dict[int | None, tuple[dict[str, _Slot], list[int]]]:
    """The scrape's values by rank, in the order of ranks; keys of one rank are put together."""
    found: dict[int | None, tuple[dict[str, _Slot], list[int]]] = {}
    for key in sorted(scrape.slots, key=lambda k: (ranks[k] is None, ranks[k] or 0)):
        slots, numbers = found.setdefault(ranks[key], ({}, []))
        for column, slot in scrape.slots[key].items():
            slots.setdefault(column, slot)
        numbers.extend(scrape.lines[key])
    for _, numbers in found.values():
        numbers.sort()
    return found


def _write(row: Row, column: str, value: float, percent: bool) -> None:
    if percent and column in ("kv_usage_frac", "host_usage_frac"):
        value /= 100.0
    if (
        value < 0 or column not in VALUE_NAMES
    ):  # V0 says -1 for a hit rate that it does not have
        return
    row[column] = round(value) if column in _WHOLE else value


def _write_gain(
    row: Row,
    inferred: list[str],
    use: Use,
    gained: float,
    old: tuple[float, float | None, int],
    n: int,
    t_s: float | None,
) -> None:
    """What a counter gained, where the value before is of the scrape just before."""
    if use.delta and old[2] == n - 1:
        row[use.delta] = round(gained) if use.delta in _WHOLE else gained
        inferred.append(use.delta)
    if use.rate and use.rate not in row and t_s is not None and old[1] is not None:
        seconds = t_s - old[1]
        if seconds > 0:
            row[use.rate] = gained / seconds
            inferred.append(use.rate)


def _derive(
    row: Row,
    inferred: list[str],
    slots: Mapping[str, _Slot],
    rank: int | None,
    pools: Mapping[tuple[str, int | None], int | float],
) -> None:
    """Values that follow from others of the scrape."""

    def has(name: str) -> float | None:
        return slots[name].value if name in slots else None

    def put(column: str, value: float | None) -> None:
        if value is not None and row.get(column) is None and value >= 0:
            row[column] = round(value) if column in _WHOLE else value
            inferred.append(column)

    def pool(name: str) -> float | None:
        return pools.get((name, rank), pools.get((name, None)))

    used, tokens = has("used_tokens"), pool("pool_tokens")
    put("kv_usage_frac", used / tokens if used is not None and tokens else None)
    free, blocks = has("free_blocks"), pool("pool_blocks")
    if free is not None and blocks:
        counted = has("used_blocks")
        if counted is not None and counted > blocks - free:
            row["used_blocks"] = None  # it counts the host pool too (older TensorRT-LLM)
        put("used_blocks", blocks - free)
    known = row.get("used_blocks")
    if isinstance(known, int) and blocks:
        put("kv_usage_frac", known / blocks)
    total = has("host_total_tokens")
    put("host_usage_frac", (has("host_used_tokens") or 0.0) / total if total else None)
    active, running = has("active_requests"), has("num_running")
    if active is not None and running is not None:
        put("num_waiting", max(0.0, active - running))
    prealloc, queued = has("prealloc_requests"), row.get("num_waiting")
    if prealloc and isinstance(queued, int):  # a decode server's queue before its pool
        row["num_waiting"] = queued + round(prealloc)
        inferred.append("num_waiting")
    capacity = has("num_waiting_capacity")
    put(
        "num_waiting", capacity + (has("num_deferred") or 0.0) if capacity is not None else None
    )
    _put_hit_rate(put, has)


def _put_hit_rate(
    put: Callable[[str, float | None], None], has: Callable[[str], float | None]
) -> None:
    """Share of prompt tokens found; of the tokens by source, since the queries count failed attempts."""
    cached, external, computed = (
        has(f"counter of {c}")
        for c in ("prompt_cached_tokens", "prompt_external_tokens", "prompt_computed_tokens")
    )
    hits = (cached or 0.0) + (external or 0.0)
    if computed is not None and hits + computed > 0:
        put("prefix_hit_frac", hits / (hits + computed))
        return
    asked, found = has("prefix_query_tokens_total"), has("prefix_hit_tokens_total")
    if asked and found is not None:
        put("prefix_hit_frac", found / asked)


def _kept(row: Row) -> Row:
    """The row without what is not there."""
    return {k: v for k, v in row.items() if v is not None}


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value
