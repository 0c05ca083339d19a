"""How many preemptions there were: known, an inferred range, or unknown; and what they cost in tokens.

It knows how each engine reports them: V0 prints every 50th, one line a process; V1 prints none, and its
counter comes late; SGLang prints one line a TP rank. The absence of a line is never read as zero where
the engine would not print one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from analyzer.diagnosis.findings import INFERRED, KNOWN, UNKNOWN
from analyzer.diagnosis.hidden import find_hidden
from analyzer.diagnosis.pool import Pool
from analyzer.diagnosis.series import Series, counter_growth
from traces.evidence.evidence import Evidence, Line, Notice

V0_EVERY = 50  # vLLM V0 scheduler: `if num_cumulative_preemption % 50 == 0: logger.warning`


@dataclass(frozen=True)
class Preemptions:
    """low, high: bounds, None where there is none; equal: a count. first_s, last_s: on the samples' clock.
    per_s: (low, high). logged: events in the log, copies merged. recomputed_low, recomputed_high: tokens
    whose KV was computed again. by_rank: count for each rank. busiest: bounds of
    the process with most. processes: how many reported, at least and at most. steps: engine steps that preempted, where
    samples are steps. since_start: the count is the server's since its start, not of these samples."""

    low: int | None = None
    high: int | None = None
    kind: str = UNKNOWN
    how: str = "nothing here counts preemptions"
    first_s: float | None = None
    last_s: float | None = None
    per_s: tuple[float, float] | None = None
    logged: int = 0
    recomputed_low: int | None = None
    recomputed_high: int | None = None
    recomputed_kind: str = UNKNOWN
    by_rank: dict[int, int] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    busiest: tuple[int, int] | None = None
    processes: tuple[int, int] | None = None
    since_start: bool = False
    lines: tuple[Line, ...] = ()

    @property
    def value(self) -> int | None:
        """The count where it is one number."""
        return self.low if self.low == self.high else None

    @property
    def some(self) -> bool:
        """Whether there was at least one."""
        return bool(self.low)

    def text(self) -> str:
        """'101 to 150', 'at least 3', '0', 'unknown'."""
        if self.kind == UNKNOWN or self.low is None:
            return "unknown"
        if self.high is None:
            return f"at least {self.low:,}"
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


def count_preemptions(
    evidence: Evidence, ranks: Sequence[Series], pool: Pool, is_v0: bool
) -> Preemptions:
    """The best count that the evidence carries, the sources in the order of their exactness."""
    stepwise = any(s.per_step for s in ranks)
    found = (
        (_by_column(ranks) if stepwise else None)
        or _by_counter(ranks)
        or _by_column(ranks)
        or _by_retractions(evidence)
        or _by_swaps(evidence)
        or _by_warnings(evidence, ranks)
        or _by_swapped(ranks)
        or _by_fact(evidence)
        or _by_table(evidence)
        or _by_iterations(ranks, pool)
        or _by_signature(evidence, ranks, pool)
        or _by_resumes(evidence)
        or _none_seen(evidence, ranks, is_v0)
    )
    return _with_resumes(found, evidence)


def _by_counter(ranks: Sequence[Series]) -> Preemptions | None:
    by_rank: dict[int, int] = {}
    first = last = None
    lines: list[Line] = []
    single, resets = True, 0
    for series in ranks:
        total = series.col("preemptions_total")
        at = series.valid(total)
        if not len(at):
            continue
        if len(at) > 1:
            grown, again = counter_growth(total)
            single, resets = False, resets + again
            by_rank[series.rank or 0] = by_rank.get(series.rank or 0, 0) + round(grown)
            moved = at[1:][np.diff(total[at]) != 0]
            if len(moved) and np.isfinite(series.t_s[moved]).all():
                first = min(first if first is not None else np.inf, float(series.t_s[moved[0]]))
                last = max(last if last is not None else -np.inf, float(series.t_s[moved[-1]]))
        else:
            by_rank[series.rank or 0] = by_rank.get(series.rank or 0, 0) + round(
                float(total[at[0]])
            )
        lines += series.lines(int(at[0]), int(at[-1]))
    if not by_rank:
        return None
    count = sum(by_rank.values())
    how = (
        "one scrape of the counter: since the start of the server"
        if single
        else "the counter's growth, rank by rank" + (f", {resets} resets" if resets else "")
    )
    return Preemptions(
        count,
        count,
        KNOWN,
        how,
        first,
        last,
        _counter_rate(ranks, single),
        by_rank=by_rank,
        since_start=single,
        lines=tuple(dict.fromkeys(lines)),
    )


def _counter_rate(ranks: Sequence[Series], single: bool) -> tuple[float, float] | None:
    """The highest rate over one interval of one rank."""
    best = 0.0
    for series in ranks if not single else ():
        total = series.col("preemptions_total")
        at = series.valid(total, series.t_s)
        if len(at) > 1:
            gaps = np.diff(series.t_s[at])
            grown = np.maximum(np.diff(total[at]), 0)
            if (gaps > 0).any():
                best = max(best, float((grown[gaps > 0] / gaps[gaps > 0]).max()))
    return (best, best) if best else None


def _by_column(ranks: Sequence[Series]) -> Preemptions | None:
    counted = [(s, s.col("num_preempted")) for s in ranks if s.has("num_preempted")]
    if not counted:
        return None
    by_rank = {s.rank or 0: int(np.nansum(c)) for s, c in counted}
    count = sum(by_rank.values())
    series, column = counted[0]
    hit = np.flatnonzero(np.nan_to_num(column) > 0)
    times = series.t_s[hit]
    steps = series.col("step")[hit] if series.per_step else np.array([])
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    rate = (count - 1) / span if span > 0 and np.isfinite(span) else None
    recomputed = [
        int(np.nansum(s.col("recomputed_tokens")))
        for s, _ in counted
        if s.has("recomputed_tokens")
    ]
    return Preemptions(
        count,
        count,
        KNOWN,
        "each sample counts them",
        float(times[0]) if len(times) and np.isfinite(times[0]) else None,
        float(times[-1]) if len(times) and np.isfinite(times[-1]) else None,
        (rate, rate) if rate else None,
        recomputed_low=sum(recomputed) if recomputed else None,
        recomputed_high=sum(recomputed) if recomputed else None,
        recomputed_kind=KNOWN if recomputed else UNKNOWN,
        by_rank=by_rank,
        steps=tuple(int(s) for s in steps if np.isfinite(s)),
        lines=series.lines(*hit[:3]),
    )


def merge_copies(notices: Sequence[Notice]) -> list[Notice]:
    """Events without the copies that other TP ranks print: the same values within a second."""
    kept: list[Notice] = []
    last: dict[Hashable, float | None] = {}
    for notice in notices:
        told = [
            (k, v)
            for k, v in notice.values.items()
            if k not in ("tp_rank", "process", "copies")
        ]
        key = (tuple(sorted(told)), notice.count, notice.rank)
        before = last.get(key, -np.inf)
        close = before is None or notice.t_s is None or abs(notice.t_s - before) <= 1.0
        if told and key in last and close:
            continue
        last[key] = notice.t_s
        kept.append(notice)
    return kept


def _by_retractions(evidence: Evidence) -> Preemptions | None:
    events = merge_copies(evidence.all_notices("retract"))
    if not events:
        return None
    count = sum(e.count or 1 for e in events)
    copies = len(evidence.all_notices("retract")) - len(events)
    copies += sum(
        int(c) - 1 for e in events if isinstance(c := e.values.get("copies", 1), int | float)
    )
    num = _events(events)
    how = f"{num:,} retractions" + (
        f", {copies} copies by other TP ranks left out" if copies else ""
    )
    return replace(_from_events(events, count, how), logged=num)


def _events(notices: Sequence[Notice]) -> int:
    """How many events these tell of: one may stand for many that were not kept."""
    return sum(
        int(n) if isinstance(n := e.values.get("events", 1), int | float) else 1
        for e in notices
    )


def _by_swaps(evidence: Evidence) -> Preemptions | None:
    events = merge_copies(evidence.all_notices("swap_out"))
    warned = evidence.all_notices("preemption")
    if not events or warned:
        return None
    tokens = 0
    num = _events(events)
    found = _from_events(events, num, f"{num:,} swaps out")
    return replace(found, recomputed_low=tokens, recomputed_high=tokens, recomputed_kind=KNOWN)


def _by_swapped(ranks: Sequence[Series]) -> Preemptions | None:
    """Requests that statistics count as swapped: each was preempted at least once."""
    low = 0
    lines: list[Line] = []
    for series in ranks:
        swapped = series.swapped
        at = series.valid(swapped)
        if not len(at) or not swapped[at].max() > 0:
            continue
        grown = np.maximum(np.diff(swapped[at], prepend=0.0), 0.0)
        low += int(grown.sum())
        lines += series.lines(int(at[np.argmax(swapped[at])]))
    if not low:
        return None
    return Preemptions(
        low,
        None,
        KNOWN,
        "requests that statistics count as swapped; who came back between two lines is not seen",
        recomputed_low=0,
        recomputed_high=0,
        recomputed_kind=KNOWN,
        lines=tuple(dict.fromkeys(lines)),
    )


def _from_events(events: Sequence[Notice], count: int, how: str) -> Preemptions:
    times = [e.t_s for e in events if e.t_s is not None]
    span = times[-1] - times[0] if len(times) > 1 else 0.0
    rate = (count - 1) / span if span > 0 and count > 1 else None
    return Preemptions(
        count,
        count,
        KNOWN,
        how,
        times[0] if times else None,
        times[-1] if times else None,
        (rate, rate) if rate else None,
        logged=len(events),
        lines=tuple(dict.fromkeys(e.at for e in events))[:6],
    )


def _process(notice: Notice) -> Hashable:
    """Whose counter it is: a process where the line names one, else the rank."""
    named = tuple(
        str(notice.values[k]) for k in ("host", "ip", "pid", "process") if k in notice.values
    )
    return named or (notice.rank,)


def _by_warnings(evidence: Evidence, ranks: Sequence[Series]) -> Preemptions | None:
    warned = evidence.all_notices("preemption")
    if not warned:
        return None
    groups: dict[Hashable, list[Notice]] = defaultdict(list)
    for notice in warned:
        groups[_process(notice)].append(notice)
    counts = {k: [n.count for n in g if n.count is not None] for k, g in groups.items()}
    if not any(counts.values()):
        num = _events(warned)
        return _from_events(warned, num, f"{num:,} lines report one each")
    every = (
        V0_EVERY if all((c - 1) % V0_EVERY == 0 for cs in counts.values() for c in cs) else 1
    )
    copies = sum(n.count or 0 for n in _repeats_of_warnings(evidence, warned))
    last = {k: _counted(cs) for k, cs in counts.items() if cs}
    low = sum(last.values()) + copies
    high = low + (every - 1) * (len(last) + copies)
    busiest = max(last.values())
    rate, lines = _warning_rate(groups, every, evidence, ranks)
    times = [n.t_s for n in warned if n.t_s is not None]
    how = (
        f"the counters that {len(warned)} lines print, every {every}th"
        if every > 1
        else f"the counters that {len(warned)} lines print"
    )
    if len(last) > 1 or copies:
        how += f", {len(last)} processes" + (
            f" and {copies} copies that a collector left out" if copies else ""
        )
    return Preemptions(
        low,
        high,
        KNOWN,
        how,
        times[0] if times else None,
        times[-1] if times else None,
        rate,
        logged=len(warned) + copies,
        busiest=(busiest, busiest + every - 1),
        processes=(len(last), len(last) + copies) if len(last) > 1 or copies else None,
        lines=lines,
    )


def _counted(counts: Sequence[int]) -> int:
    """The total of one counter that may have been reset by a restart."""
    total = last = 0
    for count in counts:
        if count < last:
            total += last
        last = count
    return total + last


def _repeats_of_warnings(evidence: Evidence, warned: Sequence[Notice]) -> list[Notice]:
    """Notices of copies left out that stand at the line of a warning; one copy of a counter of 1 is 1."""
    where = {(n.at.source, n.at.number) for n in warned}
    repeats = [
        n for n in evidence.all_notices("repeated") if (n.at.source, n.at.number) in where
    ]
    return [n for n in repeats if n.values.get("of", "preemption") == "preemption"]


def _warning_rate(
    groups: dict[Hashable, list[Notice]],
    every: int,
    evidence: Evidence,
    ranks: Sequence[Series],
) -> tuple[tuple[float, float] | None, tuple[Line, ...]]:
    """Lowest and highest rate between two printed counters of the busiest process; their lines."""
    group = max(groups.values(), key=lambda g: max((n.count or 0) for n in g))
    lines = tuple(dict.fromkeys(n.at for n in group))[:6]
    pairs = [
        ((b.count or 0) - (a.count or 0), b.t_s - a.t_s)
        for a, b in pairwise(group)
        if a.t_s is not None
        and b.t_s is not None
        and b.t_s > a.t_s
        and (b.count or 0) > (a.count or 0)
    ]
    if not pairs:
        return None, lines
    rates = [n / s for n, s in pairs]
    return (min(rates), max(rates)), lines


def _by_fact(evidence: Evidence) -> Preemptions | None:
    stated = evidence.fact("preemptions")
    if stated is None:
        return None
    lines = (stated.at,) if stated.at is not None else ()
    if isinstance(stated.value, tuple):
        ends = [int(v) for v in stated.value if isinstance(v, int | float)]
        if len(ends) < 2:
            return None
        grown, how = (
            max(ends[-1] - ends[0], 0),
            f"the counter went from {ends[0]} to {ends[-1]}",
        )
        return Preemptions(
            grown, grown, KNOWN, f"{how}, as stated {stated.note}".rstrip(), lines=lines
        )
    if not isinstance(stated.value, int | float):
        return None
    return Preemptions(int(stated.value), int(stated.value), KNOWN, "as stated", lines=lines)


def _by_table(evidence: Evidence) -> Preemptions | None:
    """The sum over the runs of a table."""
    counts = [
        int(c) for r in evidence.sweeps if isinstance(c := r.get("preemptions"), int | float)
    ]
    if not counts:
        return None
    how = f"the sum over {len(counts)} runs of a table, as stated"
    return Preemptions(sum(counts), sum(counts), KNOWN, how)


def _by_iterations(ranks: Sequence[Series], pool: Pool) -> Preemptions | None:
    """From lines a step: requests of the step fall by k at the wall and usage drops: k victims."""
    series = next((s for s in ranks if s.per_step and s.has("num_decode_requests")), None)
    if series is None or not series.has("kv_usage_frac"):
        return None
    step, u = series.col("step"), series.usage
    context, decode = series.col("num_context_requests"), series.col("num_decode_requests")
    context = np.nan_to_num(context)
    lost = -np.diff(decode + context)
    hits: list[int] = []
    count, exact, dark, unsure, unseen = 0, True, 0, 0, 0
    for before, now in pairwise(range(len(series))):
        gone = lost[before]
        # a step wants a block for each request at most; the share is printed to a tenth of a per cent
        room = decode[before] / pool.usable_blocks + 6e-4 if pool.usable_blocks else 0.006
        if gone >= 1 and step[now] - step[before] > 1:
            dark += 1  # who left between two lines, and why, is not seen
        if not u[before] >= 1 - room or not u[now] < u[before]:
            continue
        if not np.isfinite(gone):  # one of both lines does not say how many ran
            dark += 1
            continue
        if gone < 1:
            unseen += bool(context[now] > context[before])  # who comes may hide who goes
            continue
        exact &= step[now] - step[before] == 1
        # one that ends in the step before leaves now, and usage may fall by one that ends in this step
        ends = now < len(lost) and lost[now] >= 1 and not u[now] >= 1 - room
        unsure += int(gone) if ends or context[before] or context[now] else 0
        hits.append(now)
        count += int(gone)
    if not hits:
        return None
    low, high = _resumed_tokens(series, hits[0], count)
    exact = exact and not (dark or unsure or unseen)
    start, end = _time(series, hits[0]), _time(series, hits[-1])
    span = (end or 0.0) - (start or 0.0)
    rate = (count - 1) / span if span > 0 else None
    how = "steps at the wall whose requests fell while usage dropped by a victim's blocks"
    if dark:
        how += f"; requests fell unseen in {dark} gaps between the lines"
    if unsure:
        how += (
            f"; in {unsure} of them it may be one that ended, as others ended or came beside it"
        )
    if unseen:
        how += f"; in {unseen} more an admission may hide a victim"
    return Preemptions(
        count - unsure,
        None if dark else count + unseen,
        KNOWN if exact else INFERRED,
        how,
        start,
        end,
        (rate, rate) if rate else None,
        recomputed_low=low,
        recomputed_high=high,
        recomputed_kind=KNOWN if low == high else INFERRED,
        steps=tuple(int(step[i]) for i in hits),
        lines=series.lines(*hits[:3]),
    )


def _time(series: Series, index: int) -> float | None:
    return float(series.t_s[index]) if np.isfinite(series.t_s[index]) else None


def _resumed_tokens(series: Series, first: int, victims: int) -> tuple[int, int]:
    """Tokens computed again after the first preemption. A context request is a victim that comes back
    (they stand first in the queue) as long as victims are out; its newest token is not recomputed. A
    generation request with many tokens is one as well (V1 runner)."""
    requests = np.nan_to_num(series.col("num_context_requests"))[first:]
    tokens = np.nan_to_num(series.col("context_tokens"))[first:]
    extra = np.nan_to_num(series.col("decode_tokens") - series.col("num_decode_requests"))[
        first:
    ]
    back, total = 0, 0
    for n, t, more in zip(requests, tokens, extra, strict=True):
        if n > 0 and back < victims:
            back += int(n)
            total += int(t - n)
        if more > 8:
            total += int(more)
    return total, total


def _by_signature(
    evidence: Evidence, ranks: Sequence[Series], pool: Pool
) -> Preemptions | None:
    """From what periodic samples cannot hide: prefill that no line counts, usage that falls though nobody
    left, Running that falls by what Waiting rises."""
    for series in ranks:
        hidden = find_hidden(series, pool, _budget(evidence))
        if hidden is None:
            continue
        return Preemptions(
            hidden.low,
            hidden.high,
            INFERRED,
            hidden.how,
            hidden.first_s,
            hidden.last_s,
            hidden.per_s,
            recomputed_low=hidden.recomputed_low,
            recomputed_high=hidden.recomputed_high,
            recomputed_kind=INFERRED if hidden.recomputed_low is not None else UNKNOWN,
            lines=hidden.lines,
        )
    return None


def _budget(evidence: Evidence) -> float | None:
    fact = evidence.fact("max_num_batched_tokens")
    return (
        float(fact.value) if fact is not None and isinstance(fact.value, int | float) else None
    )


def _by_resumes(evidence: Evidence) -> Preemptions | None:
    resumed = evidence.all_notices("resume")
    if not resumed:
        return None
    requests = {str(n.values.get("request", n.at.number)) for n in resumed}
    lines = tuple(n.at for n in resumed)
    how = f"{len(requests)} preempted requests came back; those that did not are not seen"
    times = [n.t_s for n in resumed if n.t_s is not None]
    return Preemptions(
        len(requests), None, INFERRED, how, times[0] if times else None, logged=0, lines=lines
    )


def _none_seen(evidence: Evidence, ranks: Sequence[Series], is_v0: bool) -> Preemptions:
    if is_v0 and "metrics" in evidence.family and ranks:
        how = "V0 prints the first and then every 50th, and no such line is here"
        started = evidence.fact("pool_blocks") is not None
        return Preemptions(
            0, 0 if started else V0_EVERY - 1, KNOWN if started else INFERRED, how
        )
    if evidence.engine == "vllm" and ranks and not is_v0:
        how = "vLLM V1 prints no preemption in its log, so their absence says nothing"
        return Preemptions(how=how)
    return Preemptions()


def _with_resumes(found: Preemptions, evidence: Evidence) -> Preemptions:
    """Add what lines of resumption say of recomputed tokens."""
    if found.recomputed_low is not None:
        return found
    said = [
        n.values["recomputed_tokens"]
        for n in evidence.all_notices("resume")
        if "recomputed_tokens" in n.values
    ]
    numbers = [int(v) for v in said if isinstance(v, int | float)]
    if not numbers:
        return found
    total = sum(numbers)
    return replace(found, recomputed_low=total, recomputed_high=total, recomputed_kind=KNOWN)
