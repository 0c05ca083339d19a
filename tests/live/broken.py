"""A vLLM, or a recorder, that is not as it should be, for one case of the driver.

Imported in the interpreter that has vLLM. `interface`: the scheduler's methods take other arguments;
`tap`: the recorder raises in the tenth step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def broken(how: str | None) -> Iterator[None]:
    """Break it that way for a while; None: not at all."""
    if how is None:
        yield
        return
    owner, name, other = {"interface": _other_interface, "tap": _failing_tap}[how]()
    real = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, real)


def _other_interface() -> tuple[Any, str, Any]:
    from vllm.v1.core.sched.scheduler import Scheduler

    def _preempt_request(self: Any, victim: Any) -> None:
        raise NotImplementedError

    return Scheduler, "_preempt_request", _preempt_request


def _failing_tap() -> tuple[Any, str, Any]:
    from engine.live.tap import Tap

    real = Tap.scheduled

    def scheduled(self: Tap, scheduler: Any, output: Any, called_s: float) -> None:
        if self._next_step == 10:
            raise ZeroDivisionError("made up")
        real(self, scheduler, output, called_s)

    return Tap, "scheduled", scheduled
