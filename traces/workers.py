"""Work that is started ahead and asked for later: in threads, or at the moment when it is asked for.

It knows nothing of what the work is. Work in threads looks at `stopped` now and then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Protocol, Self, TypeVar

MOST_THREADS = 4  # each holds a batch of rows or two
LOOK_EVERY_S = 0.1
T = TypeVar("T")


class StoppedError(Exception):
    """Raised inside of work whose result nobody waits for any more."""


class Workers(Protocol):
    """A context; at its end nothing runs any more."""

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """Begin; what is given back waits for the result, or raises what the work raised."""
        ...

    def check_stopped(self) -> None:
        """Called by work between two parts of it. Raises StoppedError."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class AtOnce:
    """Does each work when it is asked for, so that nothing is done after a fault."""

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        return cache(work)

    def check_stopped(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Threads:
    """Does the work in the order in which it was started, some of it at the same time. look: called
    in the waiting thread, every LOOK_EVERY_S and after each result; what it raises stops all."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._stop = threading.Event()
        num = min(MOST_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(num, thread_name_prefix="kv-replay-reading")

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        future = self._pool.submit(work)

        def result() -> T:
            while not wait([future], LOOK_EVERY_S).done:
                self._look()
            found = future.result()
            self._look()
            return found

        return result

    def check_stopped(self) -> None:
        if self._stop.is_set():
            raise StoppedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
