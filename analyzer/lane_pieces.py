"""From a run's tables to the intervals of its lanes: what happened to each request, piece by piece.

It knows `requests`, the events between admission and end, and the steps that computed lost tokens
again. How the intervals are kept and asked for is known in `lanes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

PHASES = ("queued", "prefill", "decode", "preempted", "recomputing", "swapped", "restoring")
QUEUED, PREFILL, DECODE, PREEMPTED, RECOMPUTING, SWAPPED, RESTORING = range(7)
SUFFERED = (PREEMPTED, RECOMPUTING, SWAPPED, RESTORING)  # what a preemption brings
_BETWEEN = ("preempt", "swap_in", "load", "resume", "refuse")
_PREEMPT, _SWAP_IN, _LOAD, _RESUME, _REFUSE = range(5)
_MANY = np.iinfo(np.int64).max


# ---- requests alone ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """Lanes by arrival with the times of `requests`, NaN for what never came; row, lane as in Lanes."""

    row: np.ndarray
    lane: np.ndarray
    arrival_s: np.ndarray
    scheduled_s: np.ndarray
    token_s: np.ndarray
    end_s: np.ndarray
    is_open: np.ndarray


def end_of_run(steps: pl.DataFrame, requests: pl.DataFrame) -> float:
    """When the last step ended, or the last request where there is no step."""
    ends = [
        _times(steps["t_start_s"].tail(1) + steps["duration_s"].tail(1)),
        _times(requests["finish_s"]),
        _times(requests["arrival_s"]),
    ]
    return max(
        (float(np.nanmax(e)) for e in ends if len(e) and not np.isnan(e).all()), default=0.0
    )


def _times(column: pl.Series) -> np.ndarray:
    """Seconds as floats; null and what is not finite as NaN."""
    found = column.cast(pl.Float64).to_numpy()
    if np.isinf(found).any():
        return np.where(np.isinf(found), np.nan, found)
    return found


def base_of(requests: pl.DataFrame, between: Between, end_of_run_s: float) -> Base:
    arrival, finish = _times(requests["arrival_s"]), _times(requests["finish_s"])
    order = np.argsort(arrival, kind="stable")
    row = order[: len(order) - int(np.isnan(arrival).sum())]  # NaN sorts last
    lane = np.full(requests.height, len(row))
    lane[row] = np.arange(len(row))
    refused = np.full(requests.height, np.nan)
    is_refusal = between.kind == _REFUSE
    refused[between.row[is_refusal]] = between.t_s[is_refusal]
    end = np.where(np.isnan(finish), refused, finish)[row]
    return Base(
        row=row,
        lane=lane,
        arrival_s=arrival[row],
        scheduled_s=_times(requests["first_scheduled_s"])[row],
        token_s=_times(requests["first_token_s"])[row],
        end_s=np.where(np.isnan(end), end_of_run_s, end),
        is_open=np.isnan(end),
    )


@dataclass(frozen=True)
class Pieces:
    """Intervals, those of a lane beside each other and in order. All [k]."""

    lane: np.ndarray
    phase: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    def drawn(self) -> Pieces:
        """Those that have a length."""
        kept = self.stop > self.start
        return Pieces(self.lane[kept], self.phase[kept], self.start[kept], self.stop[kept])


def plain(base: Base, between: Between) -> Pieces:
    """Queued, prefill and decode of the lanes that nothing happened to in between."""
    troubled = np.zeros(len(base.row) + 1, dtype=bool)
    troubled[base.lane[between.row[between.kind != _REFUSE]]] = True
    lanes = np.flatnonzero(~troubled[:-1])
    arrival, end = base.arrival_s[lanes], base.end_s[lanes]
    scheduled = np.where(np.isnan(base.scheduled_s[lanes]), end, base.scheduled_s[lanes])
    token = np.where(np.isnan(base.token_s[lanes]), end, base.token_s[lanes])
    phases = np.full((len(lanes), 3), [QUEUED, PREFILL, DECODE], dtype=np.uint8)
    return Pieces(
        np.repeat(lanes, 3),
        phases.ravel(),
        np.column_stack([arrival, scheduled, token]).ravel(),
        np.column_stack([scheduled, token, end]).ravel(),
    )


def merged(
    parts: list[Pieces], num_lanes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Parts that have no lane in common as one: where each lane begins [lanes + 1], phase, start, stop."""
    sizes = sum(np.bincount(part.lane, minlength=num_lanes) for part in parts)
    first = np.concatenate([[0], np.cumsum(sizes)])
    size = int(first[-1])
    phase, start, stop = np.empty(size, np.uint8), np.empty(size), np.empty(size)
    for part in parts:
        begins = np.cumsum(np.bincount(part.lane, minlength=num_lanes))
        before = np.concatenate([[0], begins[:-1]])
        at = first[part.lane] + np.arange(len(part.lane)) - before[part.lane]
        phase[at], start[at], stop[at] = part.phase, part.start, part.stop
    return first, phase, start, stop


# ---- what happened in between -------------------------------------------------------------------


@dataclass(frozen=True)
class Between:
    """Events between admission and end, in the order in which they were decided: row of `requests`, kind (index
    into _BETWEEN), t_s, step, tokens, cost_s (0 where unknown), is_swap."""

    row: np.ndarray
    kind: np.ndarray
    t_s: np.ndarray
    step: np.ndarray
    tokens: np.ndarray
    cost_s: np.ndarray
    is_swap: np.ndarray

    def of(self, which: np.ndarray) -> Between:
        """Some of them, in that order."""
        return Between(**{name: column[which] for name, column in vars(self).items()})


def between_of(events: pl.DataFrame, requests: pl.DataFrame) -> tuple[Between, int]:
    """These events, and how many had to be left out."""
    codes = {kind: i for i, kind in enumerate(_BETWEEN)}
    wanted = events.filter(pl.col("kind").is_in(_BETWEEN))
    rows = requests.select("request_id").with_row_index("row")
    found = (
        wanted.select(
            "request_id",
            "t_s",
            "step",
            "tokens",
            kind=pl.col("kind").cast(pl.String).replace_strict(codes, return_dtype=pl.UInt8),
            cost_s=pl.col("cost_s").fill_null(0.0).fill_nan(0.0),
            is_swap=(pl.col("mode_used").cast(pl.String) == "swap").fill_null(False),
        )
        .join(rows, on="request_id", how="inner", maintain_order="left")
        .filter(pl.col("t_s").is_finite())
        .drop("request_id")
    )
    columns: Mapping[str, Any] = {c: found[c].to_numpy() for c in found.columns}
    return Between(**columns), wanted.height - found.height


def troubled(base: Base, between: Between, steps: pl.DataFrame) -> Pieces:
    """Lanes that were preempted or loaded something: away, back again, and what they ran between.

    Each lane has four places at its head, each preemption two and each resumption four, in the
    order of events; those that stay empty have no length.
    """
    listed = np.flatnonzero(
        (between.kind != _REFUSE) & (base.lane[between.row] < len(base.row))
    )
    e = between.of(listed[np.argsort(base.lane[between.row[listed]], kind="stable")])
    lane = base.lane[e.row]
    is_head = np.diff(lane, prepend=-1) != 0
    size = np.select([e.kind == _PREEMPT, e.kind == _RESUME], [2, 4], 0) + 4 * is_head
    stop = np.cumsum(size)
    total = int(stop[-1]) if len(stop) else 0
    out = Pieces(
        np.repeat(lane, size), np.zeros(total, np.uint8), np.zeros(total), np.zeros(total)
    )
    begin = stop - size + 4 * is_head
    story = _story(e, lane, base.end_s[lane])
    heads = np.flatnonzero(is_head)
    _fill(out, begin[heads] - 4, _until_first(base, e, story, lane, heads))
    _fill(out, begin[e.kind == _PREEMPT], _away(e, story))
    _fill(out, begin[e.kind == _RESUME], _back(e, story, base.token_s[lane], steps))
    return out


_Stretch = tuple[np.ndarray | int, np.ndarray, np.ndarray]  # phase, start, stop


def _fill(out: Pieces, at: np.ndarray, stretches: Sequence[_Stretch]) -> None:
    """Write stretches beside each other from these places on."""
    for i, (phase, start, stop) in enumerate(stretches):
        out.phase[at + i], out.start[at + i], out.stop[at + i] = phase, start, stop


@dataclass(frozen=True)
class _Story:
    """What comes next for each event, all [k]: until_s when it is preempted or ends; back the next
    resumption, k for none, away_until_s when that, or another end, comes; copy_from_s, copied_until_s
    of the copies from the host that serve a resumption (inf, -inf for none); opener: the preemption
    before it, k for none."""

    until_s: np.ndarray
    away_until_s: np.ndarray
    back: np.ndarray
    copy_from_s: np.ndarray
    copied_until_s: np.ndarray
    opener: np.ndarray
    next_preempt: np.ndarray


def _story(e: Between, lane: np.ndarray, end_s: np.ndarray) -> _Story:
    k = len(lane)
    back = _following(e.kind == _RESUME, lane)
    t_of = np.append(e.t_s, np.inf)  # of no event: never
    next_preempt = _following(e.kind == _PREEMPT, lane)
    until = np.minimum(t_of[next_preempt], end_s)
    copy_from, copied_until = np.full(k + 1, np.inf), np.full(k + 1, -np.inf)
    is_copy = (e.kind == _SWAP_IN) | (e.kind == _LOAD)
    np.minimum.at(copy_from, back[is_copy], e.t_s[is_copy])
    np.maximum.at(copied_until, back[is_copy], (e.t_s + e.cost_s)[is_copy])
    copy_from[k], copied_until[k] = np.inf, -np.inf
    return _Story(
        until_s=until,
        away_until_s=np.minimum(t_of[back], until),
        back=back,
        copy_from_s=copy_from,
        copied_until_s=copied_until[:k],
        opener=_preceding(e.kind == _PREEMPT, lane),
        next_preempt=next_preempt,
    )


def _until_first(
    base: Base, e: Between, story: _Story, lane: np.ndarray, heads: np.ndarray
) -> list[_Stretch]:
    """Queued, a load before admission, and the first run, up to the first preemption."""
    lanes = lane[heads]
    end, scheduled = base.end_s[lanes], base.scheduled_s[lanes]
    scheduled = np.where(np.isnan(scheduled), end, scheduled)
    is_load = (e.kind[heads] == _LOAD) | (e.kind[heads] == _SWAP_IN)
    loaded = np.where(is_load, np.minimum(e.t_s[heads], scheduled), scheduled)
    loaded = np.maximum(loaded, np.minimum(base.arrival_s[lanes], scheduled))
    left = np.where(
        e.kind[heads] == _PREEMPT, np.minimum(e.t_s[heads], end), story.until_s[heads]
    )
    return [
        (QUEUED, base.arrival_s[lanes], loaded),
        (RESTORING, loaded, scheduled),
        *_run(scheduled, left, base.token_s[lanes]),
    ]


def _away(e: Between, story: _Story) -> list[_Stretch]:
    """Of each preemption: away, and the end of that in which its KV was on its way back."""
    mask = e.kind == _PREEMPT
    gone, until = e.t_s[mask], story.away_until_s[mask]
    copied_from = np.clip(story.copy_from_s[story.back[mask]], gone, np.maximum(gone, until))
    return [
        (np.where(e.is_swap[mask], SWAPPED, PREEMPTED), gone, np.minimum(copied_from, until)),
        (RESTORING, copied_from, until),
    ]


def _back(
    e: Between, story: _Story, token_s: np.ndarray, steps: pl.DataFrame
) -> list[_Stretch]:
    """Of each resumption: waiting for a copy, computing again what was lost, and running."""
    mask = e.kind == _RESUME
    came, until, token = e.t_s[mask], story.until_s[mask], token_s[mask]
    last = np.maximum(came, until)
    started = np.clip(story.copied_until_s[mask], came, last)
    again = np.clip(_recomputed_until(e, story, steps), started, last)
    again = np.where(token > started, np.minimum(again, token), again)
    return [
        (RESTORING, came, started),
        (RECOMPUTING, started, again),
        *_run(again, until, token),
    ]


def _run(start: np.ndarray, stop: np.ndarray, token: np.ndarray) -> list[_Stretch]:
    """A running stretch, cut at the first token into prefill and decode."""
    cut = np.clip(np.where(np.isnan(token), np.inf, token), start, np.maximum(start, stop))
    cut = np.minimum(cut, stop)
    return [(PREFILL, np.minimum(start, cut), cut), (DECODE, cut, stop)]


def _following(mask: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """For each event the next later one of the same lane where `mask` holds; len(mask) for none."""
    n = len(mask)
    found = np.minimum.accumulate(np.where(mask, np.arange(n), n)[::-1])[::-1]
    found = np.append(found[1:], n)
    ours = np.append(lane, -1)
    return np.where(ours[found] == lane, found, n)


def _preceding(mask: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """For each event the last earlier one of the same lane where `mask` holds; len(mask) for none."""
    n = len(mask)
    found = np.maximum.accumulate(np.where(mask, np.arange(n), -1))
    found = np.concatenate([[-1], found[:-1]])
    ours = np.append(lane, -1)
    return np.where((found >= 0) & (ours[found] == lane), found, n)


def _recomputed_until(e: Between, story: _Story, steps: pl.DataFrame) -> np.ndarray:
    """When the tokens lost before each resumption had been computed again; its own time for none.

    Lost tokens are laid over the recomputed tokens of the steps from the resumption on, first come
    first served. A request that is preempted again before that has computed only part of them.
    """
    resumed = np.flatnonzero(e.kind == _RESUME)
    out = e.t_s[resumed].copy()
    again = steps["recomputed_tokens"].to_numpy().astype(np.float64)
    work = _lost_tokens(e, story, resumed)
    which = np.flatnonzero(work > 0)
    which = which[np.argsort(e.step[resumed][which], kind="stable")]
    if not len(which) or not again.any():
        return out
    upto = np.cumsum(again)
    step = np.searchsorted(steps["step"].to_numpy(), e.step[resumed][which])
    earliest = np.concatenate([[0.0], upto])[step]
    done = np.cumsum(work[which])
    ends = done + np.maximum.accumulate(earliest - (done - work[which]))
    last = np.minimum(np.searchsorted(upto, ends - 0.5), len(upto) - 1)
    out[which] = (steps["t_start_s"] + steps["duration_s"]).to_numpy()[last]
    return out


def _lost_tokens(e: Between, story: _Story, resumed: np.ndarray) -> np.ndarray:
    """Tokens that each resumption has to compute again before it goes on, as far as it got."""
    opener = story.opener[resumed]
    lost = np.append(np.where(e.is_swap, 0, e.tokens), 0)[opener]
    loads = np.cumsum(np.where(e.kind == _LOAD, e.tokens, 0))
    loads = np.append(loads, loads[-1] if len(loads) else 0)
    kept = e.tokens[resumed] + loads[resumed] - loads[opener]
    # computed when it was preempted again, so no more than that
    reached = np.append(e.tokens, _MANY)[story.next_preempt[resumed]]
    return np.asarray(np.maximum(np.minimum(lost, reached) - kept, 0), dtype=np.float64)
