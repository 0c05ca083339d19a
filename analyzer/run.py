"""An opened recording with its tables, and short names for runs that are shown together.

It knows recordings, and nothing of where they came from or of how they are drawn. Of a long one, whose
tables are kept in files, what is worked out of its columns is kept beside them (`run_files`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from analyzer.align import axis_edges, axis_pieces
from analyzer.column import Area, Column, Groups, area_of_groups
from analyzer.condition import idle_settings
from analyzer.look import Side
from analyzer.run_files import RunFiles
from traces.recording import Meta, Recording


class Run:
    """An opened recording. ref: its reference; stamp: changes with its files. Tables of a long one are
    not in memory."""

    def __init__(self, ref: str, recording: Recording, stamp: str = "") -> None:
        self.ref = ref
        self.recording = recording
        self.stamp = stamp
        mapped = recording.mapped
        self.files = None if mapped is None else RunFiles(mapped.folder)
        self._columns: dict[str, Column] = {}
        self._areas: dict[tuple[str, str, int], Area] = {}

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

    @property
    def is_long(self) -> bool:
        """Whether its tables are kept in files: what looks at all of it takes seconds."""
        return self.files is not None

    def column(self, name: str) -> Column:
        """A column of `steps` that answers for any stretch of steps; for columns without nulls."""
        if name not in self._columns:
            values = self.steps[name].to_numpy()
            self._columns[name] = Column(values, self._groups(name, values))
        return self._columns[name]

    def _groups(self, name: str, values: np.ndarray) -> Groups | None:
        """Of a column of a long run; None for a short one, of which they are made at once."""
        if self.files is None or self.recording.mapped is None:
            return None
        found = self.recording.mapped.groups(name)
        if found is not None:
            return found
        made = self.files.arrays(f"groups-{name}", lambda: Groups.of(values).arrays)
        return Groups(*made)

    def edges(self, by: str, total_tokens: int = 0, scale: float = 1.0) -> np.ndarray:
        """`axis_edges` of this run, times `scale`: [steps + 1]."""
        if self.files is None:
            return axis_edges(self.steps, self.requests, by, total_tokens) * scale
        if by == "time" and scale == 1.0 and self.recording.mapped is not None:
            return self.recording.mapped.edges_s()
        return self.files.numbers(
            f"edges-{_axis_name(by, total_tokens)}",
            lambda: (
                p * scale for p in axis_pieces(self.steps, self.requests, by, total_tokens)
            ),
        )

    def area(self, name: str, edges: np.ndarray, by: str, total_tokens: int = 0) -> Area:
        """A column of `steps` over the axis. edges: as from `edges` under the same names."""
        key = (name, by, total_tokens)
        if key not in self._areas:
            column = self.column(name)
            if self.files is None:
                upto = area_of_groups(column.values, edges)
            else:
                (upto,) = self.files.arrays(
                    f"area-{name}-{_axis_name(by, total_tokens)}",
                    lambda: (area_of_groups(column.values, edges),),
                )
            self._areas[key] = Area(column, edges, upto)
        return self._areas[key]

    def ever(self, column: str) -> bool:
        """Whether a column of `steps` is ever more than 0."""
        return self.column(column).greatest > 0

    @property
    def mode(self) -> str:
        """The preemption mode it was run with, or its file's name where it does not say."""
        return str(self.meta.preemption_mode or self.recording.label)

    @property
    def is_simulated(self) -> bool:
        return self.meta.clock in ("modelled", "step")


def _axis_name(by: str, total_tokens: int) -> str:
    return f"{by}-{total_tokens}" if by == "progress" else by


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
