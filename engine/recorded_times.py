"""Times that a recording holds, given back to the core step by step: clock `measured` in the simulator.

With the durations of its steps and the ends of its asynchronous copies, a run of the torch engine is
decided again exactly as it was, and where it was stopped from outside, the replay ends too. Which
requests ran is traces/replay.py's to say.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from engine.core.loop import drains, give, overlaps
from engine.core.state import Kind, Rules, State
from traces.errors import RecordingError
from traces.recording import Recording

_OWN_ENDS = (
    "completed",
    "stalled",
    "livelock",
    "max_steps",
)  # what the core comes to by itself
_DECISIONS = ("admit", "preempt", "swap_out", "swap_in", "load", "resume", "abort")
_COPIES = {Kind.SWAP_OUT: "swap_out", Kind.SWAP_IN: "swap_in", Kind.LOAD: "load"}


class RecordedTimes:
    """Durations and stalls of a recording's steps, in order, and when its copies had ended.

    status: how the recorded run ended; differs: whether a RecordingError came because this run is
    decided otherwise.

    Raises: RecordingError where the recording's times were not measured, or its first steps are missing.
    """

    def __init__(self, recording: Recording) -> None:
        if recording.meta.clock != "measured" or recording.meta.executor != "torch":
            raise RecordingError(
                recording.label,
                "",
                f"its times are {recording.meta.clock or 'of an unknown clock'}, by {recording.meta.executor or 'an unknown executor'}, and clock measured needs those of the torch engine",
                "Give a recording of `python -m engine run`, or another --clock.",
            )
        self._label = recording.label
        rows = recording.steps.select(
            "step", "duration_s", "stall_s", "link_out_busy_s", "link_in_busy_s"
        )
        if rows.height and rows["step"][0] != 0:
            raise RecordingError(
                recording.label,
                "table steps",
                f"it begins with step {rows['step'][0]}: what was decided before is not known",
                "Give a recording that holds the run from its start.",
            )
        self._duration, self._stall, self._busy_out, self._busy_in = (
            rows[name].to_numpy() for name in rows.columns[1:]
        )
        self._copies = _copy_times(recording)
        self._last_step = int(rows["step"][-1]) if rows.height else -1
        self._last_decided = _last_decided(recording)
        self._given = 0
        self._from_outside = recording.status not in _OWN_ENDS
        self.status = recording.status if recording.complete else "stopped"
        self.differs = False

    @property
    def exhausted(self) -> bool:
        """Whether every recorded step has been given."""
        return self._given >= len(self._duration)

    def ended(self, s: State) -> bool:
        """Whether the recorded run was stopped from outside, and this one has come as far."""
        return self._from_outside and self.exhausted and s.c[0].step > self._last_decided

    def check_end(self) -> None:
        """Call when the run ends by itself. Raises RecordingError where recorded steps are left over."""
        if not self.exhausted:
            raise self._otherwise(
                "table steps",
                f"the run ends after {self._given:,} of the {len(self._duration):,} recorded steps, so it was decided otherwise",
            )

    def before(self, s: State) -> None:
        """Call before `begin`: give the step whose outputs it will process."""
        if drains(s):
            self._give(s)

    def decided(self, s: State, rules: Rules, ids: np.ndarray) -> None:
        """Call after `begin` decided a step: when its copies end, and how long the due step took."""
        self._set_copies(s, ids, bool(rules.copy_async))
        if not overlaps(s, rules):
            self._give(s)

    def _otherwise(self, place: str, fault: str) -> RecordingError:
        self.differs = True
        return RecordingError(
            self._label,
            place,
            fault,
            "Replay it with the settings it was made with, or with another --clock.",
        )

    def _give(self, s: State) -> None:
        if self.exhausted:
            raise self._otherwise(
                "table steps",
                f"the run goes on after its {len(self._duration):,} recorded steps, so it was decided otherwise",
            )
        i = self._given
        row = s.flight_row[s.c[0].oldest_in_flight]
        row.link_out_busy_s, row.link_in_busy_s = self._busy_out[i], self._busy_in[i]
        give(s, float(self._duration[i]), float(self._stall[i]))
        self._given += 1

    def _set_copies(self, s: State, ids: np.ndarray, asynchronous: bool) -> None:
        step = int(s.c[0].step)
        for e in reversed(s.event_rows.view(np.ndarray)[: s.c[0].num_event_rows]):
            if e["step"] != step:
                break
            if e["kind"] in _COPIES:
                key = (step, _COPIES[Kind(e["kind"])], str(ids[e["request"]]))
                t_s, cost_s = self._copy(key)
                if asynchronous:
                    s.requests[e["request"]].ready_s = t_s + cost_s
                if t_s < np.inf:
                    e["t_s"], e["cost_s"] = t_s, cost_s

    def _copy(self, key: tuple[int, str, str]) -> tuple[float, float]:
        """Start and length of a copy; infinity where the recorded run ended first."""
        step, kind, request = key
        found = self._copies.get(key)
        if found is not None:
            return found
        if step <= self._last_step:
            raise self._otherwise(
                "table events",
                f"there is no time for the copy of request {request} in step {step} ({kind})",
            )
        return np.inf, 0.0


def _last_decided(recording: Recording) -> int:
    """The last step of which a decision is recorded; it may have been in flight at the end."""
    decided = recording.events.filter(pl.col("kind").cast(pl.String).is_in(_DECISIONS))
    last = decided["step"].max()
    return -1 if last is None else int(last)  # type: ignore[arg-type]


def _copy_times(recording: Recording) -> dict[tuple[int, str, str], tuple[float, float]]:
    """(step, kind, request) -> start and length of that copy.

    A copy without a length has not ended: the run was over before, or its request was aborted.
    """
    kind = pl.col("kind").cast(pl.String)
    copies = recording.events.filter(kind.is_in(list(_COPIES.values()))).select(
        "step", kind, "request_id", "t_s", "cost_s"
    )
    if recording.status == "completed":
        copies = _without_faults(recording, copies)
    return {
        (step, kind, request): (np.inf, 0.0) if cost is None else (t, cost)
        for step, kind, request, t, cost in copies.iter_rows()
    }


def _without_faults(recording: Recording, copies: pl.DataFrame) -> pl.DataFrame:
    """`copies` less those that must have ended and have no length."""
    finished = recording.requests.filter(pl.col("status").cast(pl.String) == "finished")
    return copies.filter(
        pl.col("cost_s").is_not_null()
        | ~pl.col("request_id").is_in(finished["request_id"].implode())
    )
