"""What the GPU check's sections share: the device, time left, timing, and the table that results go to.

A row is written to disk as soon as it is there, so that a killed check leaves what it measured. It
does not know what is measured.
"""

from __future__ import annotations

import csv
import json
import math
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

OK, MISSED, FAILED, SKIPPED, INFO = "ok", "missed", "FAILED", "skipped", ""
_WIDTHS = (17, 58, 9, 11, 8, 7)


@dataclass(frozen=True)
class Row:
    """One line of the table. target: what value was held against; note: why, or what it was made of."""

    section: str
    case: str
    value: float | None = None
    unit: str = ""
    target: str = ""
    verdict: str = INFO
    note: str = ""

    def line(self) -> str:
        value = "" if self.value is None else f"{self.value:.4g}"
        cells = (self.section, self.case, value, self.unit, self.target, self.verdict)
        text = "  ".join(f"{c:<{w}}" for c, w in zip(cells, _WIDTHS, strict=True))
        return f"{text}  {self.note}".rstrip()


class OutOfTime(Exception):
    """A section's time is over."""


class Skip(Exception):
    """A section cannot be run here; the message says why."""


@dataclass
class Check:
    """One run of the check. quick: small sizes, for a test of the script itself; ends_s: perf_counter()
    at which everything has to be over; shared: what one section leaves for a later one."""

    device: torch.device
    quick: bool
    out: Path
    ends_s: float
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    shared: dict[str, Any] = field(default_factory=dict)
    _section: str = ""
    _until_s: float = 0.0

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def row(self, case: str, value: float | None = None, unit: str = "", **more: str) -> None:
        """Add a row to the section under way, print it, and save everything."""
        self._add(Row(self._section, case, value, unit, **more))

    def held(
        self, case: str, value: float, unit: str, *, least: float | None = None,
        most: float | None = None, note: str = "", counts: bool = True,
    ) -> None:  # fmt: skip
        """A row that is held against a bound; counts False: the bound is shown and not judged."""
        bound = least if least is not None else most
        target = f"{'>=' if least is not None else '<='} {bound:.4g}"
        good = value >= bound if least is not None else value <= bound
        verdict = INFO if not counts else OK if good else MISSED
        self.row(case, value, unit, target=target, verdict=verdict, note=note)

    def correct(self, case: str, value: float, unit: str, most: float, note: str = "") -> None:
        """A row of an error that must not exceed `most`; NaN is wrong too."""
        verdict = OK if value <= most else FAILED
        self.row(case, value, unit, target=f"<= {most:.3g}", verdict=verdict, note=note)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(row.line(), flush=True)
        self.save()

    def time_left(self) -> float:
        """Seconds until the section's time is over."""
        return self._until_s - time.perf_counter()

    def need_time(self, seconds: float = 0.0) -> None:
        """Raise OutOfTime unless that much of the section's time is left."""
        if self.time_left() < seconds:
            raise OutOfTime

    def section(self, name: str, budget_s: float, run: Callable[[Check], None]) -> None:
        """Run a section within its time. Whatever goes wrong becomes a row; the check goes on."""
        began = time.perf_counter()
        self._section = name
        self._until_s = min(began + budget_s, self.ends_s)
        if self._until_s - began < min(5.0, budget_s):
            self.row("", verdict=SKIPPED, note="the check's time is over")
            return
        try:
            with _alarm(self._until_s - began + 15.0):
                run(self)
        except Skip as why:
            self.row("", verdict=SKIPPED, note=str(why))
        except OutOfTime:
            self.row("", verdict=SKIPPED, note=f"the rest: {budget_s:.0f} s are over")
        except Exception as fault:
            self._fault("", fault)
        finally:
            self.facts.setdefault("section_s", {})[name] = round(time.perf_counter() - began, 1)
            self.free_memory()
            self.save()

    def attempt(self, case: str, work: Callable[[], Any]) -> Any:
        """What `work` returns; if it fails, a row that says so, and None: other cases may do better."""
        try:
            return work()
        except (OutOfTime, Skip, TimeoutError):
            raise
        except Exception as fault:
            self._fault(case, fault)
            return None

    def _fault(self, case: str, fault: Exception) -> None:
        log = self.out / "faults.txt"
        with log.open("a", encoding="utf-8") as file:
            file.write(f"== {self._section}: {case}\n{traceback.format_exc()}\n")
        first = (str(fault).splitlines() or [""])[0][:160]
        note = f"{type(fault).__name__}: {first} (traceback: {log.name})"
        self.row(case, verdict=FAILED, note=note)

    def free_memory(self) -> None:
        """Give the device memory of what is gone back to the driver."""
        import gc

        gc.collect()
        if self.on_cuda:
            try:
                torch.cuda.synchronize(self.device)
                torch.cuda.empty_cache()
            except RuntimeError:  # a fault of the section before, which has its row
                pass

    def save(self) -> None:
        """Write results.json and results.csv."""
        rows = [_plain(row) for row in self.rows]
        document = {"facts": self.facts, "rows": rows}
        (self.out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
        with (self.out / "results.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(Row.__dataclass_fields__))
            writer.writeheader()
            writer.writerows(rows)

    # --- timing -------------------------------------------------------------------------------

    def seconds(self, work: Callable[[], Any], *, repeats: int = 5, inner: int = 1) -> float:
        """Median seconds of one call of `work`, by device events around `inner` calls on CUDA."""
        work()
        times = [self._one(work, inner) for _ in range(repeats)]
        return statistics.median(times)

    def _one(self, work: Callable[[], Any], inner: int) -> float:
        if not self.on_cuda:
            began = time.perf_counter()
            for _ in range(inner):
                work()
            return (time.perf_counter() - began) / inner
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(inner):
            work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / inner


def _plain(row: Row) -> dict[str, Any]:
    """A row as columns; JSON has no NaN."""
    columns = asdict(row)
    if row.value is not None and not math.isfinite(row.value):
        columns["value"] = None
        columns["note"] = f"{row.value}; {row.note}".rstrip("; ")
    return columns


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread if the body is still at it by then."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"still at it after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def heading() -> str:
    """The table's first two lines."""
    names = ("section", "case", "value", "unit", "target", "verdict")
    text = "  ".join(f"{n:<{w}}" for n, w in zip(names, _WIDTHS, strict=True))
    return f"{text}  note\n{'-' * 132}"
