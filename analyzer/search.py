"""Finding the rung of a ladder that suffices, with as few runs as can be, and the rung below that does not.

It knows rungs by their place and runs by their outcome; what suffices is asked of a function. A
search looks ever further from the base, then halves the way between what failed and what
sufficed. Scheduling has anomalies (one block more can cause a preemption), so neighbours are run
too, and a search says whether it met one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzer.outcome import Outcome, Simulate
from traces.errors import SettingsError, WorkloadError

FINE = 512  # the first look along a long ladder goes this part of its length
LONG = 16  # rungs; a longer ladder's neighbourhood is run too
NEAR = 20  # it reaches a twentieth of the way on both sides
AROUND = 2  # smaller ones that suffice after all are followed so often
REFINED = 4  # runs around the best, where none sufficed


class Stopped(Exception):
    """The runs that were allowed are used up, or somebody cancelled."""


@dataclass
class Runs:
    """Runs of changes to one base, each made once. simulate: as in `outcome.py`, SettingsError for what
    cannot run; most: runs allowed; told: called with the number made and the changes before each.

    num_run: made so far. Raises Stopped before a run too many, or where cancelled says so.
    """

    simulate: Simulate
    most: int
    told: Callable[[int, Mapping[str, Any]], None] | None = None
    cancelled: Callable[[], bool] | None = None
    num_run: int = 0
    _known: dict[str, Outcome] = field(default_factory=dict)

    def __call__(self, changes: Mapping[str, Any]) -> Outcome:
        key = repr(sorted(changes.items()))
        if key not in self._known:
            if self.num_run >= self.most or (self.cancelled and self.cancelled()):
                raise Stopped
            if self.told is not None:
                self.told(self.num_run, changes)
            self.num_run += 1
            self._known[key] = self._run(changes)
        return self._known[key]

    def outcomes(self) -> list[Outcome]:
        """All that were run, first to last."""
        return list(self._known.values())

    def _run(self, changes: Mapping[str, Any]) -> Outcome:
        try:
            return self.simulate(changes)
        except (SettingsError, WorkloadError) as error:
            return Outcome(dict(changes), {}, (), str(error))


@dataclass(frozen=True)
class Found:
    """What a search found. place: of the rung that suffices, None: none does; below: outcome of the next
    smaller rung, which does not, None where that is the base; tried: place -> outcome, in order of
    places; is_monotone: none of those tried beyond failed, and none before sufficed; settled: place from
    which on all that were tried suffice, None where the last one fails."""

    place: int | None
    below: Outcome | None
    tried: Mapping[int, Outcome]
    is_monotone: bool
    settled: int | None = None

    @property
    def outcome(self) -> Outcome | None:
        return None if self.place is None else self.tried[self.place]


class _Ladder:
    """Rungs that are run when they are first asked for."""

    def __init__(
        self, values: Sequence[Any], run: Callable[[Any], Outcome], suffices: Callable[[Outcome], bool]
    ) -> None:  # fmt: skip
        self.values = values
        self.run = run
        self.suffices = suffices
        self.tried: dict[int, Outcome] = {}

    def __len__(self) -> int:
        return len(self.values)

    def ok(self, place: int) -> bool:
        """Whether that rung suffices; the base, place -1, does not."""
        if place < 0:
            return False
        if place not in self.tried:
            self.tried[place] = self.run(self.values[place])
        return self.suffices(self.tried[place])

    def found(self, place: int | None) -> Found:
        tried = dict(sorted(self.tried.items()))
        passed = [self.suffices(o) for o in tried.values()]
        below = None if place is None else tried.get(place - 1)
        settled = None if place is None else _settle(self, place)
        tried = dict(sorted(self.tried.items()))
        return Found(place, below, tried, passed == sorted(passed), settled)


def look_along(length: int) -> list[int]:
    """Places of a first look, ever further from the base, the last rung included."""
    if length == 0:
        return []
    place = length // FINE
    places = []
    while place < length - 1:
        places.append(place)
        place = 2 * place + 1
    return [*places, length - 1]


def smallest_that(
    values: Sequence[Any],
    run: Callable[[Any], Outcome],
    suffices: Callable[[Outcome], bool],
    *,
    distance: Callable[[Outcome], float],
    far_first: bool = False,
) -> Found:
    """The first rung that suffices while the one before does not.

    run: value -> its outcome; distance: how far an outcome is from sufficing; far_first: the last rung
    is known to be the best, so that where it fails all fail. Raises what `run` raises.
    """
    ladder = _Ladder(values, run, suffices)
    if not len(ladder) or (
        far_first
        and not ladder.ok(len(ladder) - 1)
        and not ladder.tried[len(ladder) - 1].refused
    ):
        return ladder.found(None)
    failed = -1
    for place in look_along(len(ladder)):
        if ladder.ok(place):
            return ladder.found(_narrow(ladder, failed, place))
        failed = place
    return ladder.found(_refine(ladder, distance))


def largest_that(
    values: Sequence[Any], run: Callable[[Any], Outcome], suffices: Callable[[Outcome], bool]
) -> Found:
    """The last rung up to which all that were tried suffice, where the base does; the next fails.

    place None: the first fails already. `below` is the outcome of the next rung, which fails, None
    where the ladder ends before.
    """
    ladder = _Ladder(values, run, suffices)
    passed, failed = -1, len(ladder)
    for place in look_along(len(ladder)):
        if not ladder.ok(place):
            failed = place
            break
        passed = place
    while failed - passed > 1:
        middle = (passed + failed) // 2
        passed, failed = (middle, failed) if ladder.ok(middle) else (passed, middle)
    tried = dict(sorted(ladder.tried.items()))
    held = [ladder.suffices(o) for o in tried.values()]
    is_monotone = held == sorted(held, reverse=True)
    return Found(passed if passed >= 0 else None, tried.get(failed), tried, is_monotone)


def best_of(
    values: Sequence[Any],
    run: Callable[[Any], Outcome],
    score: Callable[[Outcome], float],
    *,
    noise_frac: float = 0.0,
) -> Found:
    """The first rung whose score is the highest but for noise, among a look along the ladder and around
    the best. `below`: None."""
    ladder = _Ladder(values, run, lambda _: True)
    for place in look_along(len(ladder)):
        ladder.ok(place)
    for _ in range(REFINED):
        middle = _between(ladder.tried, len(ladder), lambda o: -score(o))
        if middle is None:
            break
        ladder.ok(middle)
    tried = dict(sorted(ladder.tried.items()))
    most = max((score(o) for o in tried.values()), default=0.0)
    first = next(
        (p for p, o in tried.items() if score(o) >= most - noise_frac * abs(most)), None
    )
    return Found(first, None, tried, True)


def _narrow(ladder: _Ladder, failed: int, passed: int) -> int:
    """The place at which failing turns into sufficing, its neighbourhood looked at."""
    passed = _halve(ladder, failed, passed)
    for _ in range(AROUND):
        smaller = _look_around(ladder, passed)
        if smaller is None:
            break
        passed = _halve(ladder, _last_failed(ladder, smaller), smaller)
    return passed


def _halve(ladder: _Ladder, failed: int, passed: int) -> int:
    """The first place that suffices between one that fails and one that suffices; the one before fails."""
    while passed - failed > 1:
        middle = (failed + passed) // 2
        failed, passed = (failed, middle) if ladder.ok(middle) else (middle, passed)
    return passed


def _settle(ladder: _Ladder, place: int) -> int | None:
    """The place from which on all that were tried suffice, the one before run and failing."""
    for _ in range(2):  # narrowing down may meet another that fails
        failed = _last_failed(ladder, len(ladder))
        if failed < place:
            return place
        passed = min((p for p in ladder.tried if p > failed), default=None)
        if passed is None:
            return None
        _halve(ladder, failed, passed)
    failed = _last_failed(ladder, len(ladder))
    return min((p for p in ladder.tried if p > failed), default=None)


def _last_failed(ladder: _Ladder, place: int) -> int:
    """The nearest rung before that one which failed; the base where there is none."""
    missed = (p for p, o in ladder.tried.items() if p < place and not ladder.suffices(o))
    return max(missed, default=-1)


def _look_around(ladder: _Ladder, place: int) -> int | None:
    """Run rungs on both sides of the one found; the smaller one that suffices, None if none does."""
    if len(ladder) <= LONG:
        return None
    away = max(2, (place + 1) // NEAR)
    for beyond in (place + 1, place + away):
        if beyond < len(ladder):
            ladder.ok(beyond)
    before = place - away
    return before if before >= 0 and ladder.ok(before) else None


def _refine(ladder: _Ladder, distance: Callable[[Outcome], float]) -> int | None:
    """Look between the rungs around the nearest miss: what suffices may be a stretch in the middle."""
    for _ in range(REFINED):
        middle = _between(ladder.tried, len(ladder), distance)
        if middle is None:
            return None
        if ladder.ok(middle):
            return _narrow(ladder, _last_failed(ladder, middle), middle)
    return None


def _between(
    tried: Mapping[int, Outcome], length: int, distance: Callable[[Outcome], float]
) -> int | None:
    """The middle of the wider gap beside the nearest rung; None where there is no gap."""
    if not tried:
        return None
    near = min(tried, key=lambda p: (distance(tried[p]), p))
    before = max((p for p in tried if p < near), default=-1)
    after = min((p for p in tried if p > near), default=length)
    wide = max((near - before, before, near), (after - near, near, after))
    return (wide[1] + wide[2]) // 2 if wide[0] > 1 else None
