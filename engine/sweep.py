"""A sweep: cells are given to whoever runs them, what ends is written down at once, faults are tried again.

It knows cells, attempts and progress. Who runs them is an Executor: processes here (`sweep_workers.py`),
or tasks of a Ray cluster (`sweep_ray.py`). One process alone writes the folder, and a cell is named by
what makes it: whatever is killed, a cell that ended is never run again and never written twice.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
import zipfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from engine.config import EngineSettings, resolve
from engine.sweep_cell import CellTask, Outcome, cell_id
from engine.sweep_folder import (
    RECORDINGS,
    Journal,
    SweepFolder,
    is_done,
    open_folder,
    write_table,
)
from engine.sweep_spec import Choice, SweepSpec, split_values
from engine.sweep_traces import check_shape, open_trace
from traces.errors import SettingsError
from traces.sweep_schema import FAILED, REFUSED

LINE_S = 5.0
TABLE_S = 60.0  # the table is written so often while cells run
WAIT_S = 1.0
CHECKED_CELLS = 64
RETRIES = 2


class Executor(Protocol):
    """Runs cells somewhere. where: in words; submit while has_room; wait gives what has ended."""

    @property
    def where(self) -> str: ...

    @property
    def num_running(self) -> int: ...

    def has_room(self) -> bool: ...

    def submit(self, task: CellTask) -> None: ...

    def wait(self, timeout_s: float) -> list[tuple[CellTask, Outcome]]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class SweepResult:
    """What a sweep came to. num_before: cells of an earlier start; num_run: of this one; failures: cell
    and reason of those that failed, at most MAX_NAMED."""

    table: Path
    num_cells: int
    num_before: int
    num_run: int
    num_refused: int
    num_failed: int
    wall_s: float
    failures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


MAX_NAMED = 10


def plan(spec: SweepSpec) -> tuple[tuple[str, Choice], ...]:
    """Cells with their names, in the order of the table. Opens each trace once for each seed that draws it.

    Raises: what opening a trace raises; SettingsError where two cells are the same, or where none of
    the settings looked at could run.
    """
    check_settings(spec)
    digests: dict[tuple[str, int], str] = {}
    seen: dict[str, Choice] = {}
    for choice in spec.choices():
        seed = choice.seed if choice.trace.is_drawn else 0
        digest = digests.get((choice.trace.name, seed))
        if digest is None:
            digest = open_trace(choice.trace, seed).digest
            digests[choice.trace.name, seed] = digest
        name = cell_id(choice, spec.settings, spec.bounds, digest)
        if name in seen:
            raise SettingsError(_twice(seen[name], choice))
        seen[name] = choice
    return tuple(seen.items())


def _twice(first: Choice, second: Choice) -> str:
    if first.trace.name != second.trace.name:
        return f"the traces {first.trace.name!r} and {second.trace.name!r} hold the same requests. Leave one out."
    return f"{_say(first)} and {_say(second)} are the same cell. Leave one out."


def _say(choice: Choice) -> str:
    """'trace chat, kv_tokens 24000, seed 0'."""
    values = "".join(f", {k} {v}" for k, v in choice.values.items())
    return f"trace {choice.trace.name}{values}, seed {choice.seed}"


def check_settings(spec: SweepSpec) -> None:
    """Raise the first cell's SettingsError where none of some cells, spread over all, could run.

    A few bad combinations are recorded as refused; where all are bad, the spec is.
    """
    rows = spec.num_settings
    looked = {i * (rows - 1) // max(CHECKED_CELLS - 1, 1) for i in range(CHECKED_CELLS)}
    first: SettingsError | None = None
    for index in sorted(looked):
        settings, shape = split_values({**spec.settings, **_values_at(spec, index)})
        try:
            check_shape(shape)
            resolve(EngineSettings(**settings))
            return
        except SettingsError as error:
            first = first or error
    if first is not None:
        raise SettingsError(f"none of the cells looked at could run: {first}")


def _values_at(spec: SweepSpec, index: int) -> dict[str, Any]:
    """The index-th choice of settings, without those before it."""
    values: dict[str, Any] = {}
    for axis in reversed(spec.axes):
        index, place = divmod(index, len(axis.rows))
        values |= dict(zip(axis.names, axis.rows[place], strict=True))
    return values


def run_sweep(
    spec: SweepSpec,
    out: str | Path,
    make_executor: Callable[[SweepSpec], Executor],
    *,
    figures: str,
    keep: bool = False,
    retries: int = RETRIES,
    extend: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> SweepResult:
    """Run the cells that have not ended yet and write the table; returns what came of it.

    make_executor: called when there is something to run; figures: as in `CellTask`; keep: keep each
    recording; retries: more tries of a cell that fails; say: takes lines of progress.
    Raises SettingsError before anything runs. Ctrl-C writes the table of what has ended.
    """
    started = time.perf_counter()
    planned = plan(spec)
    with open_folder(out, spec, extend=extend) as folder:
        for note in folder.notes:
            say(f"note: {note}")
        before = {
            cell
            for cell, _ in planned
            if is_done(folder.ended.get(cell))
            and (not keep or _was_kept(folder, folder.ended[cell]))
        }
        waiting = [(c, choice) for c, choice in planned if c not in before]
        say(_begin_words(spec, len(planned), len(before)))
        journal = Journal(folder)
        try:
            if waiting:
                tasks = [_task(spec, folder, c, choice, figures, keep) for c, choice in waiting]
                _Loop(
                    make_executor(spec), journal, folder, retries, len(planned), len(before), say,
                    lambda: write_table(folder, spec, planned, journal.ended),
                ).run(tasks)  # fmt: skip
        finally:
            journal.close()
            write_table(folder, spec, planned, journal.ended)
        ended = [journal.ended[c] for c, _ in planned if c in journal.ended]
        failed = [
            (c, ch) for c, ch in planned if journal.ended.get(c, {}).get("status") == FAILED
        ]
        return SweepResult(
            folder.table,
            len(planned),
            len(before),
            len(waiting),
            sum(r["status"] == REFUSED for r in ended),
            len(failed),
            time.perf_counter() - started,
            tuple((_say(ch), str(journal.ended[c]["error"])) for c, ch in failed[:MAX_NAMED]),
            folder.notes,
        )


def _was_kept(folder: SweepFolder, row: dict[str, Any]) -> bool:
    kept = row.get("recording")
    return row["status"] == REFUSED or bool(kept and (folder.path / kept).is_dir())


def _begin_words(spec: SweepSpec, num: int, before: int) -> str:
    said = spec.say_count()
    if idle := [t.name for t in spec.traces if len(spec.seeds_of(t)) < len(spec.seeds)]:
        said += f'\nnote: another seed changes nothing in {", ".join(idle)}: seed {spec.seeds[0]} alone is run. arrivals = "poisson" or spread_ticks = true would draw its arrivals'
    if before:
        said += f"\n{before:,} of {num:,} cells ended before and are not run again"
    return said


def _task(
    spec: SweepSpec, folder: SweepFolder, cell: str, choice: Choice, figures: str, keep: bool
) -> CellTask:
    settings, shape = split_values({**spec.settings, **choice.values})
    return CellTask(
        cell,
        choice.trace.key,
        choice.seed,
        settings,
        shape,
        spec.bounds,
        figures,
        str(folder.recording_of(cell).resolve()) if keep else "",
    )


class _Loop:
    """Gives tasks out, takes what ended, tries again, and says how far it is."""

    def __init__(
        self,
        executor: Executor,
        journal: Journal,
        folder: SweepFolder,
        retries: int,
        num_cells: int,
        num_before: int,
        say: Callable[[str], None],
        save: Callable[[], object],
    ) -> None:
        self._executor = executor
        self._journal = journal
        self._folder = folder
        self._retries = retries
        self._num_cells = num_cells
        self._num_before = num_before
        self._say = say
        self._save = save
        self._num_ended = self._num_refused = self._num_failed = 0
        self._began_s = self._said_s = self._saved_s = time.monotonic()

    def run(self, tasks: Sequence[CellTask]) -> None:
        """Until every task has ended."""
        # Cells of one draw of one trace follow each other, so that a worker opens it once.
        queue = deque(sorted(tasks, key=lambda t: (t.trace, t.seed)))
        try:
            while queue or self._executor.num_running:
                while queue and self._executor.has_room():
                    self._executor.submit(queue.popleft())
                for task, outcome in self._executor.wait(WAIT_S):
                    if outcome.again and task.attempt <= self._retries:
                        queue.append(_again(task))
                    else:
                        self._end(task, outcome)
                self._progress()
        finally:
            self._executor.close()

    def _end(self, task: CellTask, outcome: Outcome) -> None:
        kept = None
        if task.keep and outcome.status not in (FAILED, REFUSED):
            if outcome.recording is not None:
                _unpack(outcome.recording, Path(task.keep))
            kept = f"{RECORDINGS}/{task.cell}"
        self._num_ended += 1
        self._num_refused += outcome.status == REFUSED
        self._num_failed += outcome.status == FAILED
        self._journal.add(
            {
                "cell": task.cell,
                "status": outcome.status,
                "error": outcome.error,
                "attempts": task.attempt,
                "wall_s": round(outcome.wall_s, 4),
                "recording": kept,
                **outcome.figures,
            }
        )
        if outcome.status == FAILED:
            tries = "1 try" if task.attempt == 1 else f"{task.attempt} tries"
            self._say(f"failed after {tries}: cell {task.cell[:8]}: {outcome.error}")

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._saved_s >= TABLE_S:
            self._save()
            self._saved_s = time.monotonic()
        if now - self._said_s < LINE_S:
            return
        self._said_s = now
        rate = self._num_ended / (now - self._began_s)
        left = self._num_cells - self._num_before - self._num_ended
        rest = f", about {left / rate:,.0f} s left" if rate and left else ""
        self._say(
            f"{self._num_before + self._num_ended:,} of {self._num_cells:,} cells"
            f"{_counted(self._num_refused, 'refused')}{_counted(self._num_failed, 'failed')}, "
            f"{rate:,.2f} cells/s on {self._executor.where}{rest}"
        )


def _counted(num: int, word: str) -> str:
    return f", {num:,} {word}" if num else ""


def _again(task: CellTask) -> CellTask:
    return replace(task, attempt=task.attempt + 1)


def _unpack(packed: bytes, target: Path) -> None:
    """Put a recording that came packed from elsewhere into its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            archive.extractall(folder / "recording")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(folder / "recording", target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
