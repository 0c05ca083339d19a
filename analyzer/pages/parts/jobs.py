"""Work that goes on while the page stays alive: one thread, its progress, and a way to stop it.

It knows threads. It does not know what the work is, and calls nothing of Streamlit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Report = Callable[[str, float, str], None]
Cancelled = Callable[[], bool]


@dataclass
class Progress:
    """Of one part of the work: done 0 to 1, and a few words on where it is."""

    done_frac: float = 0.0
    text: str = ""


@dataclass
class Job:
    """Runs `work(report, cancelled)` in a thread. progress: part -> Progress, in the order given;
    made_from: key of what it works on. After it has ended exactly one of result, error and was_cancelled says how."""

    work: Callable[[Report, Cancelled], Any]
    progress: dict[str, Progress]
    made_from: str = ""
    result: Any = None
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> Job:
        self._thread = threading.Thread(target=self._run, name="kv-replay-job", daemon=True)
        self._thread.start()
        return self

    def cancel(self) -> None:
        """Ask the work to stop; it does so at its next look."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after waiting at most that long."""
        if self._thread is None:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def was_cancelled(self) -> bool:
        return self._stop.is_set() and self.result is None and self.error is None

    def _run(self) -> None:
        try:
            result = self.work(self._report, self._stop.is_set)
            if not self._stop.is_set():
                self.result = result
        except Exception as error:  # shown by the page, which looks at `error`
            if not self._stop.is_set():
                self.error = error

    def _report(self, part: str, done_frac: float, text: str) -> None:
        self.progress[part] = Progress(min(1.0, max(0.0, done_frac)), text)
