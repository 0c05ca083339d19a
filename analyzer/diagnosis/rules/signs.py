"""Signs that several rules look for: a queue before room, the wall ahead, silence, errors that end an engine."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from analyzer.diagnosis.findings import Proof
from analyzer.diagnosis.quantities import Quantities
from traces.evidence.evidence import Line, Notice

STEADY_FRAC = 0.6  # share of the samples with prompts from which they flow without a break
MIN_FLOW_FRAC = 0.3  # below it prompts are rare
ROOM_FRAC = 0.9  # below it there is room for those that wait
TRACEBACK_LINES = 60
FREE_FRAC = 0.9  # below it the pool had room all the time
MOSTLY = 0.8  # share of the lines that are prompt batches while the queue is being admitted
MIN_QUEUED_FRAC = (
    0.25  # a queue that is over, in fewer of the samples, is no state of the server
)
MIN_SLOTS = 4  # fewer that never move are no limit but a trickle


USUAL_LIMITS = (64, 128, 256, 512, 1024)  # defaults of max_num_seqs and its kin


OTHER_CAUSES = (
    "NOT_KV",
    "NO_PRESSURE_YET",
    "SLOT_LIMIT",
    "PREFILL_BOUND",
    "HOL_CAPACITY",
    "CAPACITY_QUEUE",
)


CALM = ("NO_PRESSURE_YET", "NOT_KV")


@dataclass(frozen=True)
class Waiters:
    """Samples with a queue although there is room. at: their indices; usage, running, waiting: medians there;
    most_running: of all samples; share: of the samples; prompts: prompt tokens a second there; generation: output tokens a second,
    median; prefilling: share of the last of them that are batches of prompts (SGLang prints a line for each)."""

    at: np.ndarray
    usage: float
    running: float
    waiting: float
    most_running: int
    share: float
    prompts: np.ndarray
    generation: float | None
    prefilling: float = 0.0
    deferred: float = 0.0


def waiters(q: Quantities) -> Waiters | None:
    """A queue before a pool with room, for at least half of the samples that have a queue; or None."""
    series = q.main
    if series is None or q.summed:
        return None
    at = series.valid(series.usage, series.waiting)
    queued = at[series.waiting[at] > 0]
    if not len(queued):
        return None
    room = queued[series.usage[queued] < ROOM_FRAC]
    if 2 * len(room) < len(queued) or len(full_tail(q)):
        return None
    if queued[-1] != at[-1] and len(queued) < MIN_QUEUED_FRAC * len(at):
        return None  # a queue that came and went
    running = series.running[room]
    deferred = np.nan_to_num(series.col("num_deferred")[room])
    if np.median(series.waiting[room] - deferred) <= 0:
        return None

    def median(values: np.ndarray) -> float | None:
        known = values[np.isfinite(values)]
        return float(np.median(known)) if len(known) else None

    return Waiters(
        room,
        float(np.median(series.usage[room])),
        median(running) or 0.0,
        float(np.median(series.waiting[room])),
        int(np.nanmax(series.running)) if np.isfinite(series.running).any() else 0,
        len(room) / max(len(at), 1),
        series.prompt[room],
        median(series.generation[room]),
        _prefilling(q, room),
        float(np.median(deferred)),
    )


def _prefilling(q: Quantities, at: np.ndarray) -> float:
    """Share of the last samples of `at` that are batches of prompts."""
    if q.main is None:
        return 0.0
    last = at[-max(3, len(at) // 4) :]
    return float((np.nan_to_num(q.main.col("context_tokens")[last]) > 0).mean())


def full_tail(q: Quantities) -> np.ndarray:
    """Samples with a queue since the pool filled up and stayed full to the end; none where it did not, or where
    a single one of many is full."""
    series = q.main
    if series is None:
        return np.array([], dtype=int)
    at = series.valid(series.usage, series.waiting)
    queued = at[series.waiting[at] > 0]
    if not len(queued) or queued[-1] != at[-1]:
        return queued[:0]
    below = np.flatnonzero(series.usage[queued] < ROOM_FRAC)
    tail = queued[below[-1] + 1 :] if len(below) else queued
    return tail if len(tail) >= 2 or 5 * len(tail) >= len(queued) else queued[:0]


def at_slot_limit(q: Quantities, queue: Waiters) -> int | None:
    """The limit on running requests that binds: as stated, or Running that never moves while a queue waits."""
    limit = q.number("max_num_seqs")
    if q.is_v0 and limit and q.lengths.sequences > 1:
        limit //= q.lengths.sequences
    if limit:
        taken = queue.running + queue.deferred  # who is deferred has a slot
        full = queue.most_running >= limit or queue.deferred > 0
        return int(limit) if full and taken >= 0.95 * limit else None
    series = q.main
    if series is None:
        return None
    running = series.running[queue.at]
    flat = len(running) >= 3 and np.ptp(running) == 0 and running[0] == queue.most_running
    flat = flat and queue.most_running >= MIN_SLOTS
    if q.engine == "sglang":
        flat = _refilled(q, queue) or (flat and _is_round(queue.most_running))
    if queue.most_running in USUAL_LIMITS and len(running):
        return queue.most_running if (running == queue.most_running).mean() >= 0.5 else None
    if flat and not prompts_bind(queue):
        return queue.most_running
    return None


def _is_round(limit: int) -> bool:
    """Whether people would set such a limit. SGLang's own reservation stops at any number, and a batch in which
    nobody finishes stands still as well."""
    return limit % 8 == 0 or limit % 10 == 0


def _refilled(q: Quantities, queue: Waiters) -> bool:
    """SGLang prints admissions: whether those that leave are replaced up to the same number each time."""
    series = q.main
    if series is None or queue.most_running < MIN_SLOTS:
        return False
    new = np.nan_to_num(series.col("num_context_requests")[queue.at])
    total = series.running[queue.at] + new
    decode = np.flatnonzero(new == 0)
    refills = np.flatnonzero(new > 0)
    refills = refills[refills > decode[0]] if len(decode) else refills[:0]
    at_top = total[decode] == queue.most_running
    return bool(
        len(decode) >= 2
        and at_top.all()
        and len(refills)
        and (total[refills] == queue.most_running).all()
    )


def prompts_bind(queue: Waiters) -> bool:
    """Whether prompt tokens flow at a rate that takes the machine: steady, and well above what is generated; or
    nearly all lines are batches of prompts that are admitted one after the other. A prompt is counted when it
    ends, so long ones come in some samples and not in others, and the mean is taken."""
    if queue.prefilling >= MOSTLY:
        return True
    flow = queue.prompts[np.isfinite(queue.prompts)]
    if not len(flow) or (flow > 0).mean() < MIN_FLOW_FRAC:
        return False
    steady = (flow > 0).mean() >= STEADY_FRAC
    rate = float(np.median(flow) if steady else flow.mean())
    return rate >= max((2 if steady else 10) * (queue.generation or 0.0), 200.0)


def near_wall(q: Quantities, last: int) -> bool:
    """Whether the pool was full, or would be within three usual periods after that sample."""
    series = q.main
    if series is None:
        return False
    if series.usage[last] >= 0.985:
        return True
    if q.wall is None or q.wall.observed is not None or not q.period_s:
        return False
    return (
        series.usage[last] >= 0.7 and q.wall.low_s - float(series.t_s[last]) <= 3 * q.period_s
    )


def silence_proof(q: Quantities) -> tuple[Proof, ...]:
    found = []
    for gap in q.gaps[-1:]:
        until = (
            f" until {gap.ended_by.kind.replace('_', ' ')} at {q.clock(gap.to_s)}"
            if gap.ended_by
            else ""
        )
        lines = q.main.lines(gap.before) if q.main is not None else ()
        found.append(
            Proof(
                f"No statistics for {gap.length_s:.0f} s after {q.clock(gap.from_s)}{until}, usually every "
                f"{q.period_s:.0f} s: a gap, not to be joined by a line",
                {"gap_s": round(gap.length_s), "usual_s": q.period_s},
                (*lines, *((gap.ended_by.at,) if gap.ended_by else ())),
            )
        )
    if q.fact("idle_device") is not None:
        found.append(
            Proof("The device was seen idle after the last line", {}, q.lines("idle_device"))
        )
    return tuple(found)


_SEVERE = re.compile(r"illegal|assert|cuda|nccl|hccl|broadcast|timed out|timeout|dead", re.I)
HANGS = re.compile(r"timed out|timeout|broadcast block|watchdog|heartbeat|unresponsive", re.I)


def what_it_says(notice: Notice) -> str:
    return str(notice.values.get("what", notice.at.text))


def ending_faults(q: Quantities) -> list[Notice]:
    """Errors that ended the engine: not of the host pool, and none after which it still generates."""
    said = [
        n
        for n in q.evidence.all_notices("fatal", "fault")
        if "swap" not in what_it_says(n).lower()
    ]
    series = q.main
    if series is None:
        ends = [
            *q.evidence.all_notices("preemption", "swap_out"),
            *(n for n in said if n.kind == "fatal"),
        ]
        return [
            n
            for n in said
            if n.kind == "fatal"
            or _SEVERE.search(what_it_says(n))
            or any(_soon_after(n, end) for end in ends)
        ]
    made = series.valid(series.generation)
    made = made[series.generation[made] > 0]
    if not len(made):
        return said
    last, at = series.t_s[made[-1]], series.line(int(made[-1]))
    return [
        n
        for n in said
        if (n.t_s >= last - 1.0 if n.t_s is not None and np.isfinite(last) else _after(n, at))
    ]


def _soon_after(notice: Notice, end: Notice) -> bool:
    """Whether an error stands within the lines of one traceback after something that ends an engine or tries it."""
    same = notice.at.source == end.at.source
    return same and 0 <= notice.at.number - end.at.number <= TRACEBACK_LINES


def _after(notice: Notice, at: Line) -> bool:
    return notice.at.source != at.source or notice.at.number >= at.number
