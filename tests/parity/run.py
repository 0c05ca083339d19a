"""Runs cases on both sides: vLLM's scheduler in its own process, ours in this one.

One process of vLLM's interpreter serves all cases (importing vLLM takes 15 to 50 seconds); it works
ahead while ours runs and the records are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import settings_from_file
from engine.decisions import write_decisions
from tests.parity.cases import Case
from tests.parity.compare import Difference, first_difference
from traces.open import open_workload

ROOT = Path(__file__).resolve().parents[2]
COMPAT = "vllm-0.26"
PYTHON_VARIABLE = "KV_REPLAY_VLLM_PYTHON"
# Hashes start from the first. The second: vLLM's scheduler tells its connectors that a request has
# been resumed with the older model runner only (the newer one gets it as new, and the simple connector
# then goes on with the blocks of before); the default hangs on whether Triton can be imported.
_FIXED = {"PYTHONHASHSEED": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}


class ParityError(RuntimeError):
    """The comparison could not be made at all."""


def vllm_python() -> Path | None:
    """The interpreter that has vLLM, or None. Raises ParityError where the one named is not there."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        if not Path(named).exists():
            raise ParityError(f"{PYTHON_VARIABLE} names {named}, which does not exist.")
        return Path(named)
    usual = ROOT / ".venv-vllm" / "bin" / "python"
    stamp = ROOT / ".venv-vllm" / ".installed"
    return usual if usual.exists() and stamp.exists() else None


@dataclass(frozen=True)
class Outcome:
    """One case on both sides. difference None: every decision was the same."""

    case: Case
    difference: Difference | None
    status: str
    num_steps: int
    num_preemptions: int

    def report(self) -> str:
        """The difference, and the command that shows it again."""
        assert self.difference is not None
        return f"{self.case.name}: {self.difference}\nsee it with: python -m tests.parity {self.case.again}"


class VllmSide:
    """vLLM's interpreter, which answers cases one after the other; a context manager."""

    def __init__(self, python: Path, scheduler_cls: str | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="kv-replay-parity-")
        self.folder = Path(self._scratch.name)
        self._errors = (self.folder / "vllm.log").open("w+", encoding="utf-8")
        command = [str(python), "-m", "tests.parity.vllm_side", "run"]
        if scheduler_cls:
            command += ["--scheduler-cls", scheduler_cls]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | _FIXED,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> VllmSide:
        try:
            self.versions = self._answer()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answers(self, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
        """The totals of each case, in order, while later ones are under way."""
        feeder = threading.Thread(target=self._feed, args=(cases,), daemon=True)
        feeder.start()
        for _ in cases:
            yield self._answer()
        feeder.join()

    def steps(self, number: int) -> Path:
        """Where the records of the case at that place are."""
        return self.folder / f"vllm-{number}.jsonl"

    def _feed(self, cases: Sequence[Case]) -> None:
        assert self._process.stdin is not None
        for number, case in enumerate(cases):
            line = {
                "name": case.name,
                "settings": case.settings,
                "rows": case.rows,
                "steps": str(self.steps(number)),
            }
            try:
                print(json.dumps(line), file=self._process.stdin, flush=True)
            except BrokenPipeError:
                return  # it has ended: reading its answer says so

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise ParityError(
                f"vLLM's process ended with code {self._process.returncode}:\n{self._errors.read()[-4000:]}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process and remove what it wrote."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()  # it holds nothing that has to be written
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()
        self._scratch.cleanup()


def run_ours(case: Case, folder: Path) -> tuple[str, Path]:
    """Status of our run and its log of decisions, through the files that a user would give."""
    case.write(folder)
    settings = settings_from_file(folder / "settings.json").with_(compat=COMPAT)
    log = folder / "decisions.jsonl"
    status = write_decisions(
        open_workload(folder / "trace.jsonl"),
        settings,
        folder / "recording",
        log,
        overwrite=True,
    )
    return status, log


def run_cases(
    cases: Iterable[Case], side: VllmSide, keep: Path | None = None
) -> Iterator[Outcome]:
    """Each case's outcome, in order. keep: a folder that is left with every case's files.

    Whoever stops early leaves answers behind: use the side for nothing else then.
    """
    cases = list(cases)
    for number, answer in enumerate(side.answers(cases)):
        case = cases[number]
        folder = keep or side.folder / "ours"
        if keep and len(cases) > 1:
            folder = keep / case.name.replace(" ", "-")
        yield _outcome(case, answer, side.steps(number), folder, bool(keep))


def _outcome(
    case: Case, answer: dict[str, Any], theirs: Path, folder: Path, keep: bool
) -> Outcome:
    if answer["error"]:
        raised = Difference("vLLM raised an error", answer["error"])
        return Outcome(case, raised, "error", 0, 0)
    status, log = run_ours(case, folder)
    failed = answer["status"] == "failed"  # vLLM's own assertion: equal up to there
    difference = first_difference(log, theirs, cut=failed)
    if difference is None and not failed and status != answer["status"]:
        said = f"ours ends as {status}, vllm as {answer['status']}"
        difference = Difference("the runs end differently", said)
    if keep:
        (folder / "vllm.jsonl").write_bytes(theirs.read_bytes())
    theirs.unlink()
    return Outcome(
        case, difference, answer["status"], answer["num_steps"], answer["num_preemptions"]
    )
