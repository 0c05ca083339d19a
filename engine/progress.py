"""What the commands print: a progress bar or lines, notes on the workload, and what came of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traces.workload import Workload

LINE_S = 30.0  # off a terminal: a line of progress every so often
_WHY_UNFINISHED = {
    "stalled": "Nothing more could be scheduled: the head of the queue can never fit. Without --compat such requests are refused with the reason.",
    "livelock": "No new token came for livelock_steps steps: requests preempt themselves for ever. Give a larger pool, or leave --compat away.",
    "max_steps": "The run was cut at max_steps.",
}


def note_compiling() -> None:
    """Say on stderr that the core is compiled first, where this machine has not done so yet."""
    from engine.core.jit import cache_folder, config

    if not config.DISABLE_JIT and not any(cache_folder().rglob("loop.run_chunk*.nbi")):
        print(
            "compiling the scheduler first, once for this machine: a minute and a half on a small core",
            file=sys.stderr,
        )


@contextmanager
def progress_bar(verb: str, wanted: bool) -> Iterator[Callable[[Any], None] | None]:
    """What takes each `simulator.Progress`; None where no bar is wanted."""
    if not wanted:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn(verb),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} % of requests, {task.fields[steps]:,} steps"),
        TimeRemainingColumn(),
        transient=True,
    )
    with bar:
        task = bar.add_task(verb, total=1.0, steps=0)
        yield lambda p: bar.update(task, completed=p.fraction_finished, steps=p.steps)


class ProgressLines:
    """Takes each `simulator.Progress` and says a line every LINE_S seconds from the first, for logs.

    num_requests: of the run; say: takes a line; now: seconds of any clock.
    """

    def __init__(
        self,
        num_requests: int,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_requests = num_requests
        self._say = say
        self._now = now
        self._began_s: float | None = None
        self._said_s = 0.0

    def __call__(self, p: Any) -> None:
        now_s = self._now()
        if self._began_s is None:
            self._began_s = self._said_s = now_s
        if now_s - self._said_s < LINE_S:
            return
        self._said_s = now_s
        ended = round(p.fraction_finished * self._num_requests)
        self._say(
            f"running: {ended:,} of {self._num_requests:,} requests ended, {p.steps:,} steps, {now_s - self._began_s:,.0f} s"
        )


@contextmanager
def before_recording() -> Iterator[None]:
    """Make Ctrl-C say that nothing was recorded yet."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; nothing was recorded") from None


def stopped_line(path: Path, num_steps: int, num_requests: int, num_unfinished: int) -> str:
    """What a run that Ctrl-C or SIGTERM ended has left."""
    if num_steps == 0:
        return f"stopped before the first step ended: the recording in {path} holds none"
    return (
        f"stopped; what was recorded so far is readable: {num_steps:,} steps, "
        f"{num_unfinished:,} of {num_requests:,} requests unfinished, in {path}"
    )


def print_notes(workload: Workload) -> None:
    """What the reader of a trace noted, and the rows that it set aside."""
    for note in workload.report.notes:
        print(f"note: {note}")
    for reason, rows in workload.report.dropped.items():
        print(f"note: {rows:,} rows set aside: {reason}")


def print_unfinished(status: str, num_unfinished: int) -> None:
    """That requests never finished, and why; nothing where all did."""
    if num_unfinished:
        why = _WHY_UNFINISHED.get(status, "")
        print(f"note: {num_unfinished:,} requests never finished. {why}".rstrip())


def refused_words(num_refused: int, why: str) -> str:
    """Put behind a number of requests; why: the limits that they met. Empty where none was refused."""
    if not num_refused:
        return ""
    return f" ({num_refused:,} refused: {why})"
