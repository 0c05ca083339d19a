"""A recording with its tables in memory, and short names for runs that are shown together.

It knows recordings, and nothing of where they came from or of how they are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analyzer.condition import idle_settings
from analyzer.look import Side
from traces.recording import Meta, Recording


class Run:
    """An opened recording with its tables in memory. ref: its reference; stamp: changes with its
    files."""

    def __init__(self, ref: str, recording: Recording, stamp: str = "") -> None:
        self.ref = ref
        self.recording = recording
        self.stamp = stamp
        self._ever: dict[str, bool] = {}

    @property
    def meta(self) -> Meta:
        return self.recording.meta

    @property
    def steps(self) -> pl.DataFrame:
        return self.recording.steps

    @property
    def events(self) -> pl.DataFrame:
        return self.recording.events

    @property
    def requests(self) -> pl.DataFrame:
        return self.recording.requests

    def ever(self, column: str) -> bool:
        """Whether a column of `steps` is ever more than 0."""
        if column not in self._ever:
            self._ever[column] = bool(self.steps[column].max() or 0)
        return self._ever[column]

    @property
    def mode(self) -> str:
        """The preemption mode it was run with, or its file's name where it does not say."""
        return str(self.meta.preemption_mode or self.recording.label)

    @property
    def is_simulated(self) -> bool:
        return self.meta.clock in ("modelled", "step")


def run_names(runs: Mapping[Side, Run]) -> dict[Side, str]:
    """A short name of each run: its mode, and up to two settings in which it differs from the first
    and that do something in both modes."""
    first, *_ = runs.values()
    keys: list[str] = []
    for run in runs.values():
        ours, theirs = first.meta.settings, run.meta.settings
        left_out = {"preemption_mode", *idle_settings(first.meta, run.meta)}
        keys += [
            k
            for k in sorted({*ours, *theirs})
            if k not in (*left_out, *keys) and ours.get(k) != theirs.get(k)
        ]
    more = [f"{len(keys) - 2} more"] if len(keys) > 2 else []
    return {
        side: ", ".join(
            [run.mode, *(f"{k} {run.meta.settings.get(k)}" for k in keys[:2]), *more]
        )
        for side, run in runs.items()
    }
