"""Everything that Compare shows of long runs, worked out and kept: in this process, or in one of its own.

Very long runs take hundreds of MiB while they are worked out, and hold the interpreter's lock: a process
of its own (`python -m analyzer.work_out`) gives both back to the page. Results are files beside the
tables (`run_files`), so that only words go between the two: what to work out on its standard input, how
far it is, a line each, on its standard output. It knows nothing of pages.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import IO, Any

from analyzer.compare import check_comparable
from analyzer.look import Side
from analyzer.run import Run
from analyzer.run_figures import comparison_of, figures_of, preemptions_of, ttft_of
from traces import errors
from traces.errors import KVReplayError
from traces.mapped_tables import Keep
from traces.recording import open_recording

TOGETHER = "Verdict"
APART_STEPS = 2_000_000  # of all runs; for fewer it does not pay to start a process
NICER = 5  # the page comes first
_COMMAND = (sys.executable, "-m", "analyzer.work_out")
_ROOT = Path(__file__).resolve().parents[1]
_LOOK_EVERY_S = 0.2
_LAST_WORDS = 4_000  # characters
Report = Callable[[str, float, str], object]
Cancelled = Callable[[], bool]

_PARTS: tuple[tuple[str, Callable[[Run], object]], ...] = (
    ("times to first token", ttft_of),
    ("what each preemption cost", preemptions_of),
    ("latencies and sums", figures_of),
)


def work_out(runs: Mapping[Side, Run], report: Report, cancelled: Cancelled) -> bool:
    """Work out and keep everything that Compare shows of these runs, A first; stops between two parts.
    Whether it came to its end. report: is told part, share done and words. Raises CompareError."""
    first, *others = runs.values()
    for other in others:
        check_comparable(first.recording, other.recording)
    for side, run in runs.items():
        for done, (text, work) in enumerate(_PARTS):
            if cancelled():
                return False
            report(side, done / len(_PARTS), text)
            work(run)
        report(side, 1.0, "done")
    for done, other in enumerate(others):
        if cancelled():
            return False
        report(TOGETHER, (done + 0.1) / len(others), "")
        comparison_of(first, other)
    return True


def is_for_apart(runs: Mapping[Side, Run]) -> bool:
    """Whether these runs are long enough for a process of its own, which finds their tables."""
    folders = [run.files.folder.parent for run in runs.values() if run.files is not None]
    if len(folders) < len(runs) or not all(folder.is_dir() for folder in folders):
        return False
    return sum(run.steps.height for run in runs.values()) >= APART_STEPS


def work_out_apart(runs: Mapping[Side, Run], report: Report, cancelled: Cancelled) -> bool:
    """As `work_out`, in a process of its own, which is ended when it is cancelled. runs: of which
    `is_for_apart` holds."""
    with tempfile.TemporaryFile() as heard:
        process = subprocess.Popen(
            _COMMAND,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=heard,
            text=True,
        )
        ended = threading.Event()
        watcher = threading.Thread(target=_end_when, args=(process, cancelled, ended))
        watcher.start()
        try:
            done = _talk(process, [_named(side, run) for side, run in runs.items()], report)
        finally:
            ended.set()
            watcher.join()
            process.terminate()
            process.wait()
        if done or cancelled():
            return done
        heard.seek(0)
        said = heard.read().decode(errors="replace")[-_LAST_WORDS:]
    raise RuntimeError(f"working out ended with {process.returncode}: {said}")


def _end_when(
    process: subprocess.Popen[str], cancelled: Cancelled, ended: threading.Event
) -> None:
    while not ended.wait(_LOOK_EVERY_S):
        if cancelled():
            process.terminate()
            return


def _talk(process: subprocess.Popen[str], runs: list[dict[str, str]], report: Report) -> bool:
    """Give the work and listen until it is done; False where it broke off."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            json.dump(runs, stdin)
    except OSError:  # it has ended
        return False
    for line in process.stdout:
        kind, *said = json.loads(line)
        if kind == "done":
            return True
        if kind == "error":
            raise _error(*said)
        report(*said)
    return False


def _named(side: Side, run: Run) -> dict[str, str]:
    assert run.files is not None
    return {
        "side": side,
        "ref": run.ref,
        "stamp": run.stamp,
        "label": run.recording.label,
        "root": str(run.recording.root.resolve()),
        "tables": str(run.files.folder.parent.resolve()),
    }


def _error(name: str, said: Any) -> KVReplayError:
    kind = getattr(errors, name)
    found = kind(**said) if isinstance(said, dict) else kind(said)
    assert isinstance(found, KVReplayError)
    return found


# ---- in the process of its own -----------------------------------------------------------------


def main(given: IO[str], out: IO[str]) -> None:
    """Work out what is asked for on `given`, and say on `out` how far it is."""

    def say(*what: Any) -> None:
        print(json.dumps(what, default=str), file=out, flush=True)

    try:
        runs: dict[Side, Run] = {
            of["side"]: Run(
                of["ref"],
                open_recording(of["root"], of["label"], Keep(Path(of["tables"]))),
                of["stamp"],
            )
            for of in json.load(given)
        }
        work_out(runs, lambda *said: say("at", *said), lambda: False)
    except KVReplayError as error:
        said = asdict(error) if is_dataclass(error) else str(error)
        say("error", type(error).__name__, said)
    else:
        say("done")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is being written is removed
    if hasattr(os, "nice"):
        os.nice(NICER)
    said_here, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed
    main(sys.stdin, said_here)
