"""What the commands print: a progress bar on a terminal, and notes on the workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traces.workload import Workload


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


def print_notes(workload: Workload) -> None:
    """What the reader of a trace noted, and the rows that it set aside."""
    for note in workload.report.notes:
        print(f"note: {note}")
    for reason, rows in workload.report.dropped.items():
        print(f"note: {rows:,} rows set aside: {reason}")
