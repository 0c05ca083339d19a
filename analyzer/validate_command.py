"""`python -m analyzer validate RECORDING`: how far the simulator is from a recorded run at its own settings.

It simulates the recorded requests under the recorded settings, asks `analyzer.validation`, and prints.
`--calibrate` fits a device to the recording first, and adds the errors on the half of the run that a fit
to the other half has not seen. What a page needs of this, it takes from here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from analyzer.validation import (
    Validation,
    as_document,
    bounds_in_words,
    show_error,
    show_value,
    validate,
)
from traces.errors import KVReplayError, SettingsError
from traces.recording import Recording, open_recording
from traces.replay import workload_of
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.calibrate_rates import Machine
    from engine.calibrate_samples import Source, Steps
    from engine.config import EngineSettings
    from engine.devices import DeviceSpec

OWN_CLOCKS = ("modelled", "step", "latency")
OURS = "This recording is the simulator's own: there is no measurement to hold it against."
Say = Callable[[float, str], object]
Cancelled = Callable[[], bool]


@dataclass(frozen=True)
class Plan:
    """What is simulated to validate a recording: its requests and settings; notes: what is not as it was."""

    workload: Workload
    settings: EngineSettings
    notes: tuple[str, ...]


def is_own(recording: Recording) -> bool:
    """Whether the recording was simulated, so that there is nothing to validate."""
    return recording.meta.executor == "simulator" or recording.meta.clock in OWN_CLOCKS


def plan(recording: Recording, **changes: Any) -> Plan:
    """The requests of a recording and its own settings, with `changes`; on the modelled clock unless it
    was simulated on another.

    Raises: SettingsError, WorkloadError where the recording cannot be run again.
    """
    from engine.replay import settings_of

    said = str(recording.meta.settings.get("clock"))
    clock = said if is_own(recording) and said in OWN_CLOCKS else "modelled"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = settings_of(recording.meta, clock=clock, **changes)
    workload = workload_of(recording)
    notes = (*(str(w.message) for w in caught), *workload.report.notes)
    return Plan(workload, settings, notes)


def simulate_plan(
    planned: Plan,
    out: Path,
    say: Say | None = None,
    cancelled: Cancelled | None = None,
    stage: str = "simulating",
    part: tuple[float, float] = (0.0, 1.0),
) -> None:
    """Write the simulated recording into `out`. stage, part: what is said of it, and which share of the
    whole work it is. Raises what the engine raises."""
    from engine.simulator import simulate

    begin, end = part

    def progress(p: Any) -> None:
        if say is not None:
            done = begin + (end - begin) * p.fraction_finished
            say(done, f"{stage}, {p.steps:,} steps")

    simulate(
        planned.workload,
        planned.settings,
        out,
        progress=progress,
        cancelled=cancelled,
        overwrite=True,
    )


@dataclass(frozen=True)
class Calibrated:
    """A device fitted to a recording. path: of the device file; held_out: errors on the second half of
    the run, simulated on a device fitted to the first alone, None and why_not where the first alone does
    not calibrate; step_errors: median errors of step times that a fit to the other steps predicts;
    caution: the calibration's own, else ""."""

    path: Path
    held_out: Validation | None
    why_not: str
    step_errors: tuple[float, ...]
    caution: str


def calibrate_on(
    recording: Recording,
    planned: Plan,
    out: Path,
    say: Say | None = None,
    cancelled: Cancelled | None = None,
) -> Calibrated | None:
    """Fit a device to a recording, write its file to `out` and judge it on what it has not seen; None:
    cancelled.

    Raises: RecordingError, SettingsError where the recording does not calibrate, with the reason.
    """
    from engine.devices import load_device

    def told(done: float, text: str) -> bool:
        if say is not None:
            say(done, text)
        return cancelled is not None and cancelled()

    if told(0.2, "reading what its steps computed"):
        return None
    samples = _samples(recording, planned, cancelled)
    base = load_device(planned.settings.device, warn=False)
    if told(0.35, f"fitting to {len(samples.steps):,} steps"):
        return None
    done = samples.fit(base)
    if told(0.55, "fitting to the first half, to judge on the second"):
        return None
    held_out, why_not = None, ""
    middle = _middle_s(recording)
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as scratch:
        try:
            first = samples.before(_last_step(recording, middle)).fit(base, like=done)
            device = first.write(Path(scratch) / "first-half.json")
            held_out = _second_half(
                recording, planned, device, Path(scratch), middle, say, cancelled
            )
        except KVReplayError as error:
            why_not = f"the first half alone does not calibrate: {error}"
    if cancelled is not None and cancelled():
        return None
    done.write(out)
    return Calibrated(out, held_out, why_not, done.step_errors, done.caution)


@dataclass(frozen=True)
class _Fitted:
    """A device and how it was come by. step_errors: medians on steps that were left out; caution: a
    sentence; full: every number was fitted, not only scales of the base's."""

    document: dict[str, Any]
    step_errors: tuple[float, ...]
    caution: str
    full: bool

    def write(self, path: Path) -> Path:
        """Write the device file. Raises SettingsError."""
        from engine.calibrate_report import to_json

        text = to_json(self.document) if self.full else json.dumps(self.document, indent=1)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SettingsError(
                f"{path.name}: cannot be written ({error.strerror})."
            ) from error
        return path


@dataclass(frozen=True)
class _Samples:
    """Steps of a recording, to be fitted. source: for a fit of every number, None where that is
    refused, for the reason in `refusal`."""

    label: str
    steps: Steps
    machine: Machine
    source: Source | None
    refusal: str

    def before(self, last: int) -> _Samples:
        """The steps up to that one."""
        steps = self.steps.take(self.steps.step <= last)
        source = None if self.source is None else replace(self.source, steps=steps)
        return replace(self, steps=steps, source=source)

    def fit(self, base: DeviceSpec, like: _Fitted | None = None) -> _Fitted:
        """Every number of the device, or where the steps do not tell them apart four scales of the base's.

        like: a fit of the same kind as that one. Raises SettingsError for too few steps.
        """
        from engine.calibrate import calibrate_sources
        from engine.calibrate_rates import fit_rates

        refusal = self.refusal
        if self.source is not None and (like is None or like.full):
            try:
                done = calibrate_sources([self.source], base, bootstraps=0)
            except SettingsError as error:
                if like is not None:
                    raise
                refusal = str(error)
            else:
                errors = tuple(f.errors.median for f in done.folds if f.errors is not None)
                return _Fitted(done.document(), errors, done.caution, True)
        rates = fit_rates(self.steps, self.machine, base)
        scales = ", ".join(f"{name} x {scale:.2f}" for name, scale in rates.scales.items())
        caution = f"Only scales of {base.name} were fitted ({scales}; step times then off by {100 * rates.error:.1f} % in the median): {refusal}"
        return _Fitted(rates.document(self.label), (), caution, False)


def _samples(recording: Recording, planned: Plan, cancelled: Cancelled | None) -> _Samples:
    """What the recording says of its device; of a live vLLM, what follows from deciding it again.

    Raises RecordingError for times that were not measured, or steps that nothing is known of.
    """
    from engine.calibrate_live import live_source, live_steps
    from engine.calibrate_rates import Machine
    from engine.calibrate_samples import read_source
    from engine.models import load_model

    s = planned.settings
    if s.pipeline_parallel_size > 1:
        raise SettingsError(
            f"{recording.label}: the run used pipeline stages, and calibration knows steps of one stage only. Simulate it on the preset that is nearest."
        )
    machine = Machine(
        load_model(s.model),
        s.tensor_parallel_size,
        s.kv_cache_dtype,
        s.weight_dtype,
        s.block_size,
    )
    if recording.meta.executor != "vllm":
        source = read_source(recording.root)
        return _Samples(recording.label, source.steps, machine, source, "")
    try:
        source = live_source(recording, cancelled)
    except KVReplayError as error:
        steps, _ = live_steps(recording, cancelled)
        return _Samples(recording.label, steps, machine, None, str(error))
    return _Samples(recording.label, source.steps, machine, source, "")


def _middle_s(recording: Recording) -> float:
    """Time since the first arrival by which half of the requests had come."""
    arrivals = recording.requests["arrival_s"].sort().to_numpy()
    return float(arrivals[len(arrivals) // 2] - arrivals[0]) if len(arrivals) else 0.0


def _last_step(recording: Recording, middle_s: float) -> int:
    """The last step that began before that time after the first arrival; -1 for none."""
    start = float(recording.requests["arrival_s"].min() or 0.0)  # type: ignore[arg-type]  # a Float64 column
    early = recording.scan("steps").filter(pl.col("t_start_s") < start + middle_s)
    last = early.select(pl.col("step").max()).collect().item()
    return last if isinstance(last, int) else -1


def _second_half(
    recording: Recording,
    planned: Plan,
    device: Path,
    scratch: Path,
    middle_s: float,
    say: Say | None,
    cancelled: Cancelled | None,
) -> Validation | None:
    """Errors on what came after that time, of a simulation on this device; None: cancelled."""
    again = replace(planned, settings=planned.settings.with_(device=str(device)))
    stage = "simulating the second half"
    simulate_plan(again, scratch / "run", say, cancelled, stage, (0.7, 0.85))
    if cancelled is not None and cancelled():
        return None
    with open_recording(scratch / "run") as simulated:
        return validate(recording, simulated, since_s=middle_s)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, compare and print; returns 0. Raises KVReplayError."""
    with open_recording(arguments.recording) as recording:
        found = _found(recording, arguments)
    if arguments.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        print("\n".join(found.pop("lines")))
    return 0


def _found(recording: Recording, arguments: argparse.Namespace) -> dict[str, Any]:
    """The answer in plain types; with `lines` for the terminal unless JSON was asked for."""
    if is_own(recording):
        return {"own": True} if arguments.json else {"lines": [f"{recording.label}: {OURS}"]}
    changes = {"device": arguments.device} if arguments.device else {}
    planned = plan(recording, **changes)
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as scratch:
        simulate_plan(planned, Path(scratch) / "run")
        with open_recording(Path(scratch) / "run") as simulated:
            before = validate(recording, simulated)
        calibrated, after = None, None
        if arguments.calibrate:
            calibrated = calibrate_on(recording, planned, Path(scratch) / "device.json")
            if calibrated is None:
                raise SettingsError("the calibration was cancelled. Run it again.")
            again = replace(
                planned, settings=planned.settings.with_(device=str(calibrated.path))
            )
            simulate_plan(again, Path(scratch) / "again")
            with open_recording(Path(scratch) / "again") as simulated:
                after = validate(recording, simulated)
    if arguments.json:
        return _document(planned, before, calibrated, after)
    return {"lines": _lines(recording, planned, before, calibrated, after)}


def _document(
    planned: Plan, before: Validation, calibrated: Calibrated | None, after: Validation | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "own": False,
        "device": planned.settings.device,
        "model": planned.settings.model,
        **as_document(before),
        "notes": list(planned.notes),
    }
    if calibrated is not None and after is not None:
        held = calibrated.held_out
        found["calibrated"] = {
            **as_document(after),
            "held_out": None if held is None else as_document(held),
            "why_not": calibrated.why_not,
            "step_errors": list(calibrated.step_errors),
            "caution": calibrated.caution,
        }
    return found


def _lines(
    recording: Recording,
    planned: Plan,
    before: Validation,
    calibrated: Calibrated | None,
    after: Validation | None,
) -> list[str]:
    s = planned.settings
    said = [
        f"{recording.label} against its simulation: {s.model} on {s.device}, {before.num_requests:,} requests finished on both sides",
        *table_lines(before),
        f"{_graded(before)}: {before.sentence}",
    ]
    if calibrated is not None and after is not None:
        said += ["", "Calibrated on this recording (fitted: these are its own steps)"]
        said += [*table_lines(after), f"{_graded(after)}: {after.sentence}"]
        held = calibrated.held_out
        if held is None:
            said += ["", f"Held out: none, {calibrated.why_not}"]
        else:
            said += ["", "Held out: fitted to the first half, these are requests of the second"]
            said += [*table_lines(held), f"{_graded(held)}: {held.sentence}"]
        if calibrated.step_errors:
            worst = max(calibrated.step_errors)
            said.append(
                f"Step times that a fit to the others predicts: median error at most {worst:.1%}"
            )
        if calibrated.caution:
            said.append(f"warning: {calibrated.caution}")
    return [*said, "", bounds_in_words(before), *(f"note: {n}" for n in planned.notes)]


def _graded(found: Validation) -> str:
    return (found.grade or "no grade").capitalize()


def table_lines(found: Validation) -> list[str]:
    """The figures as lines of text."""
    rows = [f"  {'figure':<44}{'observed':>14}{'simulated':>14}{'error':>20}  grade"]
    for c in found.checks:
        observed = "" if c.name == "used_distance" else show_value(c.name, c.observed)
        rows.append(
            f"  {c.label:<44}{observed:>14}{show_value(c.name, c.simulated):>14}{show_error(c):>20}  {c.grade or 'not counted'}"
        )
    return rows
