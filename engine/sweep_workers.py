"""Processes of this machine that run cells, one at a time each, and are replaced when they die.

It knows processes and pipes. What is done with an outcome, and whether a cell is tried again, is
decided in `sweep.py`. A worker ends when its pipe does, so none outlives the process that began it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from engine.sweep_cell import ONE_THREAD, CellTask, Outcome, run_cell
from traces.sweep_schema import FAILED

_JOIN_S = 5.0


def usable_cpus() -> int:
    """CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


class Processes:
    """Up to `jobs` worker processes. Started when there is work, each with one thread."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._workers: list[_Worker] = []

    @property
    def where(self) -> str:
        return f"{self._jobs:,} {'process' if self._jobs == 1 else 'processes'}"

    @property
    def num_running(self) -> int:
        return sum(w.task is not None for w in self._workers)

    def has_room(self) -> bool:
        return self.num_running < self._jobs

    def submit(self, task: CellTask) -> None:
        """Give a cell to an idle worker; there is one where `has_room` says so."""
        idle = next((w for w in self._workers if w.task is None), None)
        if idle is None:
            idle = _Worker()
            self._workers.append(idle)
        try:
            idle.give(task)
        except (BrokenPipeError, ConnectionError):  # died while idle
            self._workers.remove(idle)
            idle.stop()
            self.submit(task)

    def wait(self, timeout_s: float) -> list[tuple[CellTask, Outcome]]:
        """Cells that have ended, after at most so many seconds; of dead workers too."""
        busy = [w for w in self._workers if w.task is not None]
        ready = set(wait([w.connection for w in busy], timeout_s)) if busy else set()
        ended = []
        for worker in busy:
            if worker.connection in ready and worker.task is not None:
                task = worker.task
                outcome = worker.take()
                ended.append((task, outcome))
                if not worker.is_alive:
                    self._workers.remove(worker)
        return ended

    def close(self) -> None:
        """End all workers, with what they are at."""
        for worker in self._workers:
            worker.stop()
        self._workers = []


class _Worker:
    """One process, its end of a pipe, and the cell that it is at."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs,), daemon=True, name="sweep"
        )
        with _environment(ONE_THREAD), _deaf_to_ctrl_c():
            self._process.start()
        theirs.close()  # else our end never says that theirs is gone
        self.task: CellTask | None = None
        self.is_alive = True

    def give(self, task: CellTask) -> None:
        self.connection.send(task)
        self.task = task

    def take(self) -> Outcome:
        """The outcome of its cell, or that the process died at it."""
        self.task = None
        try:
            found: Outcome = self.connection.recv()
            return found
        except (EOFError, ConnectionError):
            self.is_alive = False
            self._process.join(_JOIN_S)
            return Outcome(FAILED, error=_how_it_died(self._process.exitcode), again=True)

    def stop(self) -> None:
        self.connection.close()
        self._process.terminate()
        self._process.join(_JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_JOIN_S)


def _how_it_died(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", as the system does where memory runs out: give fewer --jobs" if name == "SIGKILL" else ""  # fmt: skip
        return f"its process was ended by {name}{hint}"
    return f"its process ended with exit code {code}"


def _serve(connection: Connection) -> None:
    """Run what comes through the pipe until it ends. Ctrl-C is for the process that began us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            task: CellTask = connection.recv()
        except (EOFError, ConnectionError):
            return
        outcome = run_cell(task)
        try:
            connection.send(outcome)
        except (BrokenPipeError, ConnectionError):
            return


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started inside pass over Ctrl-C from their first moment."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's; `_serve` passes over it from there on
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for processes that are started inside; those that the user has set stay."""
    mine: dict[str, Any] = {k: v for k, v in values.items() if k not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
