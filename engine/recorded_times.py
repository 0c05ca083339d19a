"""Times that a recording holds, given back to the core step by step: clock `measured` in the simulator.

With the durations of its steps and the ends of its asynchronous copies, a run of the torch engine is
decided again exactly as it was. Which requests ran is traces/replay.py's to say.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from engine.core.loop import drains, give, overlaps
from engine.core.state import Kind, Rules, State
from traces.errors import RecordingError
from traces.recording import Recording

_COPIES = {Kind.SWAP_OUT: "swap_out", Kind.SWAP_IN: "swap_in", Kind.LOAD: "load"}


class RecordedTimes:
    """Durations and stalls of a recording's steps, in order, and when its copies had ended.

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
        self._given = 0

    @property
    def exhausted(self) -> bool:
        """Whether every recorded step has been given: the recorded run ended here."""
        return self._given >= len(self._duration)

    def before(self, s: State) -> None:
        """Call before `begin`: give the step whose outputs it will process."""
        if drains(s):
            self._give(s)

    def decided(self, s: State, rules: Rules, ids: np.ndarray) -> None:
        """Call after `begin` decided a step: when its copies end, and how long the due step took."""
        if self._copies:
            self._set_copies(s, ids, bool(rules.copy_async))
        if not overlaps(s, rules):
            self._give(s)

    def _give(self, s: State) -> None:
        if self.exhausted and s.c[0].num_sched == 0:
            give(s, 0.0, 0.0)  # what was unfinished at the end is let go
            return
        if self.exhausted:
            raise RecordingError(
                self._label,
                "table steps",
                f"the run goes on after its {len(self._duration):,} recorded steps, so it was decided otherwise",
                "Replay it with the settings it was made with, or with another --clock.",
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
                t_s, cost_s = self._copies.get(key, (np.inf, 0.0))
                if asynchronous:
                    s.requests[e["request"]].ready_s = t_s + cost_s
                if t_s < np.inf:
                    e["t_s"], e["cost_s"] = t_s, cost_s


def _copy_times(recording: Recording) -> dict[tuple[int, str, str], tuple[float, float]]:
    """(step, kind, request) -> start and length of that copy; those that never ended are left out."""
    kind = pl.col("kind").cast(pl.String)
    copies = recording.events.filter(
        kind.is_in(list(_COPIES.values())), pl.col("cost_s").is_not_null()
    ).select("step", kind, "request_id", "t_s", "cost_s")
    return {
        (step, kind, request): (t, cost) for step, kind, request, t, cost in copies.iter_rows()
    }
