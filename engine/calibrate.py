"""Recordings of a real run to a device file: python -m engine calibrate RECORDING... --out device.json.

It puts the parts together: samples of the recordings, the fit of steps and of copies, and the way
back to the numbers of a DeviceSpec, so that any model can be simulated on the calibrated device. What
could not be fitted keeps the base device's value and is named. No torch here: recordings suffice.

Source: the project's reference on recompute and swap, section 2.4; docs/calibration.md retells it.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.calibrate_copies import CopyFit, fit_copies
from engine.calibrate_errors import (
    Errors,
    Fold,
    cross_validate,
    errors_by_kind,
    resample,
)
from engine.calibrate_fit import Coefficients, StepFit, fit_steps
from engine.calibrate_samples import Source, read_source
from engine.calibrate_warnings import NAMES, caution_of, warnings_of
from engine.calibrate_work import WANTED, Features, make_features
from engine.devices import NUMBER_NAMES, DeviceSpec, load_device
from traces.errors import SettingsError

MAX_FITTED_STEPS = (
    6_000  # more are thinned evenly: the fit gains nothing and the search slows down
)
BOOTSTRAPS = 100
_OF_FLOPS = ("linear_efficiency", "prefill_attention_efficiency")
_OF_MEMORY = (
    "weight_read_efficiency",
    "decode_attention_efficiency",
    "prefill_io_efficiency",
)


@dataclass(frozen=True)
class Calibration:
    """A fitted device and everything that says how good the fit is.

    fitted: number -> (value, low, high), a 95 % bootstrap interval where there is one; kept: number ->
    why it is the base device's; errors: kind of step -> errors on the steps fitted; folds, cut_by:
    cross-validation and what a fold is; caution: a sentence where folds were predicted badly, else "";
    warnings: sentences, the caution among them.
    """

    device: DeviceSpec
    base: DeviceSpec
    sources: tuple[Source, ...]
    steps: StepFit
    copies: CopyFit
    fitted: Mapping[str, tuple[float, float | None, float | None]]
    kept: Mapping[str, str]
    errors: Mapping[str, Errors]
    folds: tuple[Fold, ...]
    cut_by: str
    caution: str
    warnings: tuple[str, ...]
    created: str

    def document(self) -> dict[str, Any]:
        """The device file: what `load_device` reads, and under "calibration" what it rests on."""
        from engine.calibrate_report import document

        return document(self)

    def lines(self) -> list[str]:
        """Sentences for the terminal."""
        from engine.calibrate_report import lines

        return lines(self)

    def write(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the device file, under a temporary name first; overwrite: an older device file may go.

        Raises: SettingsError for a directory, a file that exists, or no room to write.
        """
        from engine.calibrate_report import to_json

        path = Path(path)
        check_out(path, overwrite=overwrite)
        partial = path.with_name(path.name + ".tmp")
        try:
            partial.write_text(to_json(self.document()), encoding="utf-8")
            os.replace(partial, path)
        except OSError as error:
            raise SettingsError(
                f"{path.name}: cannot write there ({error.strerror}). Give another --out."
            ) from None
        return path


def check_out(path: str | Path, *, overwrite: bool = False) -> None:
    """Raise SettingsError unless a device file may be written there (before the work is done)."""
    path = Path(path)
    if path.is_dir():
        raise SettingsError(
            f"{path.name}: this is a directory. Give --out the name of a file, such as device.json."
        )
    if not path.parent.is_dir():
        raise SettingsError(
            f"{path.name}: cannot write there (the directory {path.parent.name} does not exist). Make it, or give another --out."
        )
    if not path.exists():
        return
    try:
        load_device(path, warn=False)
    except SettingsError:
        raise SettingsError(
            f"{path.name}: a file of that name exists and is no device file; it is left as it is. Give another --out."
        ) from None
    if not overwrite:
        raise SettingsError(
            f"{path.name}: a device file of that name exists. Give another --out, or --overwrite to replace it."
        )


def calibrate(
    recordings: Sequence[str | Path],
    *,
    base_device: str | Path | None = None,
    name: str | None = None,
    allow_modelled: bool = False,
    bootstraps: int = BOOTSTRAPS,
    seed: int = 0,
) -> Calibration:
    """Fit a device to recordings (contract 1.2, clock "measured").

    base_device: preset or device file that the rest is taken from, by default the one the recordings
    name; name: of the new device; allow_modelled: take simulated recordings too, for tests.

    Raises: RecordingError for a recording that cannot be used, SettingsError for too few samples or
    workloads that leave an unknown undetermined; both say what to record.
    """
    if not recordings:
        raise SettingsError("no recording was given. Name at least one folder or zip.")
    sources = tuple(read_source(p, allow_modelled=allow_modelled) for p in recordings)
    return calibrate_sources(
        sources, _base(sources, base_device), name=name, bootstraps=bootstraps, seed=seed
    )


def calibrate_sources(
    sources: Sequence[Source],
    base: DeviceSpec,
    *,
    name: str | None = None,
    bootstraps: int = BOOTSTRAPS,
    seed: int = 0,
) -> Calibration:
    """The same for samples that are read already. Raises SettingsError."""
    _check_distinct(sources)
    _check_any(sources)
    f, fit, copies, values = _fit(sources, base)
    device = _device(base, values, name or f"{base.name}-calibrated")
    draws = [_of_steps(c, fit, base) for c in resample(f, base, fit, bootstraps, seed)]
    kept = {NAMES[n]: why for n, why in fit.kept.items()} | dict(copies.kept)
    rest = [n for n in NUMBER_NAMES if n not in values and n not in kept]
    kept |= dict.fromkeys(rest, "not in the step or copy model of these recordings")
    folds, cut_by = cross_validate(sources, lambda some: _fold_device(some, base, fit))
    errors = errors_by_kind(device, sources)
    caution = caution_of(folds, errors["all"])
    return Calibration(
        device=device,
        base=base,
        sources=tuple(sources),
        steps=fit,
        copies=copies,
        fitted={n: (float(getattr(device, n)), *_interval(device, base, draws, n)) for n in values},
        kept=kept,
        errors=errors,
        folds=tuple(folds),
        cut_by=cut_by,
        caution=caution,
        warnings=tuple(warnings_of(sources, fit, copies)) + ((caution,) if caution else ()),
        created=datetime.date.today().isoformat(),
    )  # fmt: skip


def _base(sources: Sequence[Source], asked: str | Path | None) -> DeviceSpec:
    """The base device: the one asked for, else the one that all recordings ran on. Raises SettingsError."""
    machines = sorted({s.machine for s in sources})
    if len(machines) > 1:
        raise SettingsError(
            f"the recordings are from different devices ({', '.join(m or 'unknown' for m in machines)}). Calibrate each device by itself."
        )
    if asked is not None:
        return load_device(asked)
    try:
        return load_device(machines[0])
    except SettingsError:
        raise SettingsError(
            f"the device of the recordings ({machines[0] or 'not named'}) is no preset. Give --base-device, the nearest preset "
            "or a device file: what the recordings cannot tell is taken from it."
        ) from None


def _check_distinct(sources: Sequence[Source]) -> None:
    seen: dict[str, str] = {}
    for s in sources:
        if s.digest in seen:
            raise SettingsError(
                f"{s.label} holds the same steps as {seen[s.digest]}. Give each recording once."
            )
        seen[s.digest] = s.label


def _check_any(sources: Sequence[Source]) -> None:
    """Raise SettingsError with the reasons where every step of all recordings was left out."""
    if any(len(s.steps) for s in sources):
        return
    why = {w: sum(s.dropped.get(w, 0) for s in sources) for s in sources for w in s.dropped}
    counts = "; ".join(f"{n:,}: {w}" for w, n in why.items()) or "there are none"
    raise SettingsError(
        f"no step of the recordings can be used ({counts}). Record longer runs, or run them again if their times were lost."
    )


def _fold_device(sources: Sequence[Source], base: DeviceSpec, whole: StepFit) -> DeviceSpec:
    """The device that some of the recordings give. Raises SettingsError, too, where they cannot tell
    what all of them can: its predictions would be the base's."""
    _, fit, _, values = _fit(sources, base)
    for stage, why in fit.ill.items():
        if stage not in whole.ill:
            raise SettingsError(why)
    return _device(base, values, "fold")


def _fit(
    sources: Sequence[Source], base: DeviceSpec
) -> tuple[Features, StepFit, CopyFit, dict[str, float]]:
    """Features of the steps used, both fits, and the device numbers that came of them."""
    thin = max(1, -(-sum(len(s.steps) for s in sources) // MAX_FITTED_STEPS))
    parts = [(s.setup, s.steps.take(_thinned(s.steps.kind, thin))) for s in sources]
    known = all(not np.isnan(steps.compute_s).any() for _, steps in parts)
    f = make_features(parts, base)
    fit = fit_steps(f, base, host_known=known)
    copies = fit_copies([(s.setup, s.copies) for s in sources], base)
    return f, fit, copies, _of_steps(fit.coefficients, fit, base) | dict(copies.values)


def _thinned(kind: np.ndarray, every: int) -> np.ndarray:
    """Every n-th step of each kind, of kinds that have many."""
    keep = np.ones(len(kind), bool)
    for k in np.unique(kind):
        rows = np.flatnonzero(kind == k)
        if len(rows) > 4 * WANTED["decode"]:
            keep[rows] = np.arange(len(rows)) % every == 0
    return keep


def _of_steps(c: Coefficients, fit: StepFit, base: DeviceSpec) -> dict[str, float]:
    """Device numbers from coefficients, peaks as they are: efficiencies above 1 are left to `_device`."""
    values = {
        "step_overhead_s": c.step,
        "layer_overhead_s": c.layer,
        "attention_overhead_s": c.decode_layer,
        "prefill_overhead_s": c.prefill_layer,
        "request_overhead_s": c.request,
        "linear_efficiency": 1 / c.linear,
        "weight_read_efficiency": 1 / (c.linear * c.ratio),
        "knee": c.knee,
        "decode_attention_efficiency": 1 / c.context,
        "prefill_attention_efficiency": 1 / c.pairs,
    }
    return {n: v for n, v in values.items() if not any(NAMES[k] == n for k in fit.kept)}


def _device(base: DeviceSpec, values: Mapping[str, float], name: str) -> DeviceSpec:
    """The base with these numbers; a peak that turned out too low is raised, rates kept."""
    device = replace(base, name=name, **dict(values))  # type: ignore[arg-type]
    for peaks, shares in (
        (("peak_flops", "peak_fp8_flops"), _OF_FLOPS),
        (("memory_bytes_per_s",), _OF_MEMORY),
    ):
        over = max(1.0, *(getattr(device, n) for n in shares))
        if over > 1.0:
            changed = {n: getattr(device, n) * over for n in peaks}
            changed |= {n: min(1.0, getattr(device, n) / over) for n in shares}
            device = replace(device, **changed)
    return device


def _interval(
    device: DeviceSpec, base: DeviceSpec, draws: Sequence[Mapping[str, float]], name: str
) -> tuple[float | None, float | None]:
    """95 % interval of a fitted number over the resampled fits, at the device's own peaks."""
    found = [d[name] for d in draws if name in d]
    if len(found) < 20:
        return None, None
    scale = 1.0
    if name in _OF_FLOPS:
        scale = base.peak_flops / device.peak_flops
    elif name in _OF_MEMORY:
        scale = base.memory_bytes_per_s / device.memory_bytes_per_s
    low, high = np.quantile(found, (0.025, 0.975)) * scale
    return float(low), float(high)
