"""Ctrl-C and SIGTERM while a run goes on: a step is ended first, so that what is recorded fits together."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM came. exit_code: what a shell expects of a process that it ended."""

    exit_code = 128 + signal.SIGTERM


class Stop:
    """Whether one of the two signals came. A second one stops at once."""

    def __init__(self) -> None:
        self._came: KeyboardInterrupt | None = None

    def __bool__(self) -> bool:
        return self._came is not None

    def check(self) -> None:
        """Raise what came."""
        if self._came is not None:
            raise self._came

    def _take(self, number: int, _: object) -> None:
        came = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        if self._came is not None:
            raise came
        self._came = came

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the two signals, where they can be had (the main thread)."""
        before: dict[int, Any] = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, self._take)
        except ValueError:
            yield
            return
        try:
            yield
        finally:
            for taken, handler in before.items():
                signal.signal(taken, handler)
