"""`python -m analyzer advise TRACE_OR_RECORDING --goal GOAL`: which change reaches a goal, and what it costs.

It turns flags into a base and a goal, runs changes of that base through the engine, and prints what
`advice.py` finds. It judges nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.errors import SettingsError

if TYPE_CHECKING:
    from analyzer.advice_parts import Advice
    from analyzer.goals import Goal
    from analyzer.outcome import Outcome, Simulate
    from analyzer.validate_command import Plan
    from engine.config import EngineSettings
    from traces.recording import Recording
    from traces.workload import Workload

_EPILOG = """\
Goals: no-preemption; ttft-p99=2.0 (also tpot, e2e, queue; mean, p50, p90, p99; seconds); several hold together.
max-goodput with bounds of each request (--goal max-goodput --goal ttft=2 --goal tpot=0.1). least-memory: the
smallest pool that keeps the other goals, no-preemption where there is none.
JSON: see docs/advice.md.
"""
_SAYS_MORE = 5.0  # s between lines of progress where stderr is no terminal


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], with_engine_flags: bool
) -> None:
    """Add the command to the parser of `python -m analyzer`. with_engine_flags: its own flags and those
    of the base, which import the engine; false where another command is asked for."""
    parser = commands.add_parser(
        "advise",
        help="for a goal, each lever's smallest setting that suffices, with its effect, price and flag",
        description="Simulates a trace, or the requests of a recording, under changed settings until each lever's smallest "
        "sufficient one is known, and ranks them. Times are modelled.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "trace",
        nargs="+",
        metavar="TRACE_OR_RECORDING",
        help="request trace, sample:NAME, or the folder or zip of a recording",
    )
    parser.add_argument(
        "--goal",
        action="append",
        required=True,
        metavar="GOAL",
        help="may be given more than once",
    )
    parser.add_argument(
        "--lever", action="append", metavar="NAME", help="try only these levers (default all)"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="leave this lever alone"
    )
    parser.add_argument(
        "--cost-per-gpu-hour",
        action="append",
        default=[],
        metavar="X|DEVICE=X",
        help="money for an hour of one GPU: of the base's, or of a device by name",
    )
    parser.add_argument(
        "--max-trials", type=int, metavar="N", help="at most N simulations (default 250)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep the recordings that prove the answer here"
    )
    parser.add_argument(
        "--no-validation",
        action="store_true",
        help="of a measured recording: do not say how near the simulator is to it",
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="advise on a measured recording too that the simulator is far from",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, and nothing else, to stdout"
    )
    parser.set_defaults(run=run, compat=None)
    if with_engine_flags:
        _add_base_flags(parser)


def _add_base_flags(parser: argparse.ArgumentParser) -> None:
    from engine.flags import (
        add_engine_flags,
        add_machine_flags,
        add_swap_flags,
        add_trace_flags,
    )

    add_trace_flags(parser.add_argument_group("trace"))
    add_engine_flags(parser.add_argument_group("base: engine (vLLM's names)"))
    add_swap_flags(parser.add_argument_group("base: preemption"))
    add_machine_flags(parser.add_argument_group("base: model and machine"))
    parser.add_argument(
        "--settings", metavar="FILE.json", help="the base's settings from a file"
    )


@dataclass(frozen=True)
class Base:
    """What is asked about. notes: what limits it; validation: how near the simulator is to the
    recording that it was taken from, "" where there is nothing to compare; start_note: why vLLM would
    not start with these settings, "" where it would or is known to have."""

    workload: Workload
    settings: EngineSettings
    notes: tuple[str, ...]
    validation: str
    start_note: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Ask and print; returns 0 where the goal is met or reached, else 1. Raises KVReplayError."""
    from analyzer.advice_parts import MET, REACHED
    from analyzer.advice_text import print_advice
    from analyzer.goals import parse_goals
    from analyzer.output import refuse_inside

    goal = parse_goals(arguments.goal)
    if arguments.out is not None:
        refuse_inside(arguments.out, arguments.trace)
    base = base_of(arguments)
    costs = costs_of(arguments.cost_per_gpu_hour, base.settings)
    with _folder(arguments.out) as folder:
        advice = _ask(arguments, base, goal, costs, folder)
        if arguments.out is not None:
            keep_only(folder, advice)
        document = {
            **advice.as_json(),
            "base_of": base_document(base),
            "notes": [*base.notes, *advice.notes],
            "recordings_kept": arguments.out is not None,
        }
    if base.start_note:
        print(f"note: {base.start_note}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(document, indent=2, allow_nan=False, default=str))
    else:
        print_advice(advice, _about(base, advice), base.validation, base.notes, arguments.out)
    return 0 if advice.state in (MET, REACHED) else 1


def base_of(arguments: argparse.Namespace) -> Base:
    """The requests and settings that the arguments name: of a recording its own, flags on top.

    Raises SettingsError, WorkloadError, RecordingError.
    """
    from engine.flags import read_settings, read_workload
    from engine.start_check import start_note
    from traces.open import FLEET, RECORDING, SAMPLE_PREFIX, what_is

    first = arguments.trace[0]
    kind = "" if first.startswith(SAMPLE_PREFIX) else what_is(first)[1]
    if kind == FLEET:
        raise SettingsError(
            f"{first}: several recordings lie there. Name one of them; python -m analyzer summary {first} lists them."
        )
    if kind == RECORDING:
        if len(arguments.trace) > 1:
            raise SettingsError("give one recording, or request traces, not both.")
        return _of_recording(first, arguments)
    with _noted() as notes:
        settings = read_settings(arguments)
        workload = read_workload(arguments)
        note = start_note(settings, workload.concurrency)
    said = (*notes, *workload.report.notes)
    if workload.estimated:
        said += ("The requests are estimated from what a server told, not recorded.",)
    return Base(workload, settings, said, "", note)


def _of_recording(path: str, arguments: argparse.Namespace) -> Base:
    from analyzer.validate_command import is_own, plan
    from engine.flags import read_settings
    from traces.recording import open_recording

    with open_recording(path) as recording, _noted() as notes:
        given = {"model": arguments.model, "device": arguments.device}
        planned = plan(recording, **{name: value for name, value in given.items() if value})
        settings = read_settings(arguments, planned.settings)
        workload = _cut(planned.workload, arguments)
        validation = ""
        if not is_own(recording) and not arguments.no_validation:
            validation = _validated(path, recording, planned, arguments.anyway)
        if not is_own(recording):
            notes.append(
                "The recording's times were measured; every figure here, the base's too, is of a simulation."
            )
    return Base(workload, settings, (*notes, *planned.notes), validation)


def _cut(workload: Workload, arguments: argparse.Namespace) -> Workload:
    """The trace flags that mean something for a recording's requests."""
    if arguments.window:
        workload = workload.window(*arguments.window)
    if arguments.max_requests is not None:
        if arguments.max_requests < 1:
            raise SettingsError(
                f"--max-requests must be at least 1, not {arguments.max_requests}."
            )
        workload = workload.head(arguments.max_requests)
    return workload.scale_rate(arguments.rate_scale)


def _validated(path: str, recording: Recording, planned: Plan, anyway: bool) -> str:
    """How near the simulator comes to the recording at its own settings, in one line.

    Raises SettingsError where that is poor, and advice was not asked for anyway.
    """
    from analyzer.validate_command import simulate_plan
    from analyzer.validation import validate
    from traces.recording import open_recording

    with tempfile.TemporaryDirectory(prefix="kv-replay-") as scratch:
        simulate_plan(planned, Path(scratch) / "run")
        with open_recording(Path(scratch) / "run") as simulated:
            found = validate(recording, simulated)
    if found.grade == "poor" and not anyway:
        raise SettingsError(
            f"the simulator is too far from {Path(path).name} for advice on it: {found.sentence} Fit a device to it (python -m engine "
            f"calibrate {path} --out device.json) and give --device device.json, or ask --anyway."
        )
    return f"{(found.grade or 'no grade').capitalize()}: {found.sentence}"


def costs_of(texts: list[str], settings: EngineSettings) -> Mapping[str, float]:
    """Device -> money an hour of one GPU. Raises SettingsError."""
    from engine.devices import load_device

    found: dict[str, float] = {}
    for text in texts:
        device, equals, number = text.rpartition("=")
        try:
            cost = float(number)
        except ValueError:
            cost = -1.0
        if not 0 <= cost < 1e9 or (equals and not device):
            raise SettingsError(
                f"--cost-per-gpu-hour {text!r} is not a price. Give a number such as 2.5, or DEVICE=2.5."
            )
        if device and device != str(settings.device):
            load_device(device, warn=False)  # says what there is, of a name that is none
        found[device or str(settings.device)] = cost
    return found


def _ask(
    arguments: argparse.Namespace,
    base: Base,
    goal: Goal,
    costs: Mapping[str, float],
    folder: Path,
) -> Advice:
    from analyzer.advice import MOST_RUNS, advise
    from analyzer.lever_facts import facts_of
    from engine.trial_facts import machine_facts

    machine = machine_facts(base.settings, base.workload.concurrency)
    most = MOST_RUNS if arguments.max_trials is None else arguments.max_trials
    with Told(most) as told, _noted():
        return advise(
            simulate_of(base, folder, goal.request_bounds),
            facts_of(base.workload, machine),
            goal,
            costs=costs,
            most_runs=most,
            told=told,
            levers=chosen_levers(arguments.lever, arguments.without),
        )


def chosen_levers(only: list[str] | None, without: list[str]) -> tuple[str, ...]:
    """Names of the levers to try. Raises SettingsError for one that there is none of."""
    from analyzer.levers import LEVERS

    unknown = sorted({*(only or ()), *without} - set(LEVERS))
    if unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: no such lever. There are {', '.join(LEVERS)}."
        )
    return tuple(n for n in LEVERS if (only is None or n in only) and n not in without)


def simulate_of(base: Base, folder: Path, bounds: Mapping[str, float] | None) -> Simulate:
    """What runs a change of the base, its recordings below the folder under the run's id."""
    from analyzer.outcome import outcome_of
    from engine.trials import Trials

    trials = Trials(base.workload, base.settings, lambda id_: folder / id_)

    def simulate(changes: Mapping[str, Any]) -> Outcome:
        trial = trials.run(changes)
        assert trial is not None, "nobody cancels"
        return outcome_of(changes, trial.paths, trial.num_gpu_blocks, bounds)

    return simulate


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where recordings are written: the given folder, else one that goes again."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="kv-replay-") as scratch:
            yield Path(scratch)
        return
    from analyzer.output import make_folder

    make_folder(out)
    if any(out.iterdir()):
        raise SettingsError(f"--out {out} is there already and not empty. Give another folder.")
    yield out


def keep_only(folder: Path, advice: Advice) -> None:
    """Remove the recordings of the folder that prove nothing that is said."""
    proving = {path for outcome in advice.proofs() for path in outcome.recordings}
    for path in folder.iterdir():
        if path not in proving:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _noted() -> Iterator[list[str]]:
    """Warnings as notes, each once."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    notes += dict.fromkeys(str(w.message) for w in caught)


class Told:
    """Says on stderr how many runs were made, on a terminal over itself, else every few seconds."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.began_s = self.said_s = time.monotonic()

    def __call__(self, num_run: int, changes: Mapping[str, Any]) -> None:
        from analyzer.advice_words import show_changes

        now = time.monotonic()
        is_terminal = sys.stderr.isatty()
        if not is_terminal and now - self.said_s < _SAYS_MORE:
            return
        self.said_s = now
        each = f", {(now - self.began_s) / num_run:.1f} s each" if num_run else ""
        line = f"run {num_run + 1:,} of at most {self.most:,}{each}: {show_changes(changes)}"
        print(f"\r\x1b[K{line[:110]}" if is_terminal else line, end="" if is_terminal else "\n", file=sys.stderr, flush=True)  # fmt: skip

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def base_document(base: Base) -> dict[str, Any]:
    """The base in plain values, for JSON."""
    from dataclasses import asdict

    return {
        "workload": base.workload.name,
        "num_requests": len(base.workload),
        "settings": asdict(base.settings),
        "validation": base.validation or None,
    }


def _about(base: Base, advice: Advice) -> str:
    """The base in a line."""
    s = base.settings
    return (
        f"{base.workload.name}: {len(base.workload):,} requests, {s.model} on {s.device}, "
        f"pool {advice.base.figures['num_gpu_blocks'] - 1:,} blocks of {s.block_size} tokens"
    )
