"""How far predicted step times are from recorded ones, and how sure the fitted numbers are.

Predictions go the way of a simulation: a device file, `make_cost_params`, `step_time_s`, with the
batch as the scheduler decided it (padding to CUDA graphs is not known there). Cross-validation leaves
out whole workloads; intervals come from resampled runs of neighbouring steps.

Source: the project's reference on recompute and swap, section 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.calibrate_fit import Coefficients, Solver, StepFit
from engine.calibrate_samples import KINDS, Setup, Source, Steps
from engine.calibrate_work import Features, window_sums
from engine.cost_model import make_cost_params, step_time_s
from engine.devices import DeviceSpec
from traces.errors import SettingsError

TIME_BLOCKS = 5
_RUN = 20  # neighbouring steps that are resampled together
_MAX_RESAMPLED = 1_000


@dataclass(frozen=True)
class Errors:
    """Relative errors of predicted step times: absolute ones by median, mean (MAPE) and 95th
    percentile, and the signed median (bias)."""

    num_steps: int
    median: float
    mean: float
    p95: float
    bias: float


@dataclass(frozen=True)
class Fold:
    """One part of the recordings predicted from the others; errors None: why it could not be."""

    left_out: str
    errors: Errors | None
    why_not: str = ""


def predict_steps(device: DeviceSpec, setup: Setup, s: Steps) -> np.ndarray:
    """Seconds of each step, stalls left out, as a simulation with this device file would have them."""
    p = make_cost_params(
        setup.model, device, kv_dtype=setup.kv_dtype, weight_dtype=setup.weight_dtype,
        block_size=setup.block_size, copy_path=setup.copy_path,
    )  # fmt: skip
    window_ctx, window_qk = window_sums(setup, s)
    rows = zip(
        s.num_decode.astype(np.int64).tolist(), s.ctx.tolist(), window_ctx.tolist(),
        s.chunk_tokens.astype(np.int64).tolist(), s.qk.tolist(), window_qk.tolist(),
        s.num_chunks.astype(np.int64).tolist(), s.logit_rows.astype(np.int64).tolist(), strict=True,
    )  # fmt: skip
    return np.array([step_time_s(p, *row) for row in rows])


def summary(error: np.ndarray) -> Errors | None:
    """Errors of relative errors; None for none."""
    if not len(error):
        return None
    size = np.abs(error)
    return Errors(
        len(error),
        float(np.median(size)),
        float(size.mean()),
        float(np.quantile(size, 0.95)),
        float(np.median(error)),
    )


def errors_by_kind(device: DeviceSpec, sources: Sequence[Source]) -> dict[str, Errors]:
    """Errors over all clean steps of the recordings and by kind of step."""
    parts = [(s.steps.kind, relative_errors(device, s)) for s in sources]
    kind = np.concatenate([k for k, _ in parts])
    error = np.concatenate([e for _, e in parts])
    found = {"all": summary(error)}
    found |= {name: summary(error[kind == k]) for k, name in enumerate(KINDS)}
    return {name: e for name, e in found.items() if e is not None}


def relative_errors(device: DeviceSpec, source: Source) -> np.ndarray:
    """Predicted / measured - 1 of each clean step of a recording."""
    return predict_steps(device, source.setup, source.steps) / source.steps.busy_s - 1


def cross_validate(
    sources: Sequence[Source], fit: Callable[[Sequence[Source]], DeviceSpec]
) -> tuple[list[Fold], str]:
    """Each workload predicted by a fit to the others; with one workload, blocks of time.

    Returns the folds and how they were cut.
    """
    workloads = list(dict.fromkeys(s.workload for s in sources))
    if len(workloads) > 1:
        folds = []
        for w in workloads:
            out = [s for s in sources if s.workload == w]
            rest = [s for s in sources if s.workload != w]
            folds.append(_fold(" + ".join(s.label for s in out), rest, out, fit))
        return folds, "workload"
    folds = []
    for k in range(TIME_BLOCKS):
        out = [_time_block(s, k, True) for s in sources]
        rest = [_time_block(s, k, False) for s in sources]
        folds.append(_fold(f"block {k + 1} of {TIME_BLOCKS} in time", rest, out, fit))
    return folds, "block of time"


def _time_block(source: Source, k: int, inside: bool) -> Source:
    n = len(source.steps)
    block = np.arange(n) * TIME_BLOCKS // max(1, n)
    return replace(source, steps=source.steps.take((block == k) == inside))


def _fold(
    label: str,
    rest: Sequence[Source],
    out: Sequence[Source],
    fit: Callable[[Sequence[Source]], DeviceSpec],
) -> Fold:
    try:
        device = fit(rest)
    except SettingsError as error:
        return Fold(label, None, f"the others alone do not calibrate: {error}")
    errors = summary(np.concatenate([relative_errors(device, s) for s in out]))
    return Fold(label, errors, "" if errors else "it holds no clean step")


def resample(
    f: Features, base: DeviceSpec, fit: StepFit, repeats: int, seed: int
) -> list[Coefficients]:
    """Coefficients of `repeats` fits to resampled runs of neighbouring steps, outliers left out.

    Resamples whose stages no longer suffice are skipped.
    """
    random = np.random.default_rng(seed)
    kept = replace(f, weight=fit.weight).take(~fit.outlier)
    order = np.lexsort((np.arange(len(kept)), kept.kind, kept.source))
    stride = max(1, -(-len(order) // _MAX_RESAMPLED))
    runs = [order[i : i + _RUN * stride : stride] for i in range(0, len(order), _RUN * stride)]
    full = Solver(kept, base, fit.host_known)
    found = []
    for _ in range(repeats):
        which = np.concatenate([runs[i] for i in random.integers(0, len(runs), len(runs))])
        try:
            solver = Solver(kept.take(which), base, fit.host_known)
        except SettingsError:
            continue
        if solver.free != full.free:  # a stage that the whole can fit and this resample cannot
            continue
        found.append(solver.search(around=fit.coefficients, quick=True))
    return found
