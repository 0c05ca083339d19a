"""What a reader of a calibration should know before using it, as sentences.

It computes nothing: it looks at counts, at what ended at an edge, and at how well parts that were left
out were predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.calibrate_copies import FLOOR_COPIES, WANTED_COPIES, CopyFit
from engine.calibrate_errors import Errors, Fold
from engine.calibrate_fit import LIMITS, MAX_OVER_PEAK, STAGE_UNKNOWNS, StepFit
from engine.calibrate_samples import NO_TIME, Source
from engine.calibrate_work import WANTED

BAD_MEDIAN = 0.15  # median error of a left-out fold above which the calibration warns of itself
# Unknown of the step model -> number of the device.
NAMES = {
    "step": "step_overhead_s",
    "layer": "layer_overhead_s",
    "decode_layer": "attention_overhead_s",
    "prefill_layer": "prefill_overhead_s",
    "request": "request_overhead_s",
    "linear": "linear_efficiency",
    "ratio": "weight_read_efficiency",
    "knee": "knee",
    "context": "decode_attention_efficiency",
    "pairs": "prefill_attention_efficiency",
    "io": "prefill_io_efficiency",
}


def caution_of(folds: Sequence[Fold], own: Errors) -> str:
    """What to know of folds that were predicted badly, with their median errors; "" for none.

    own: errors on the steps fitted, which tell a disturbed machine from workloads too unlike.
    """
    bad = [f for f in folds if f.errors is not None and f.errors.median > BAD_MEDIAN]
    if not bad:
        return ""
    bad.sort(key=lambda f: -f.errors.median if f.errors else 0.0)
    figures = ", ".join(f"{f.left_out} {f.errors.median:.0%}" for f in bad[:4] if f.errors)
    more = f" and {len(bad) - 4:,} more" if len(bad) > 4 else ""
    if own.median > BAD_MEDIAN:
        cause = (
            f"The fit is off on its own steps, too ({own.median:.0%}): the machine was busy or changed its clock, "
            "or is not of the cost model's form. Record again on a quiet machine."
        )
    else:
        cause = (
            f"The fit is right on its own steps ({own.median:.0%}): the workloads do not cover each other, or the machine "
            "changed between the runs. Add the kinds of run that docs/calibration.md lists."
        )
    return (
        "step times that the fit had not seen were predicted badly "
        f"(median error: {figures}{more}; at most {BAD_MEDIAN:.0%} is good). {cause}"
    )


def warnings_of(sources: Sequence[Source], fit: StepFit, copies: CopyFit) -> list[str]:
    """What a reader of the result should know before using it."""
    said = []
    few = [f"{fit.counts[n]:,} {n} (about {w})" for n, w in WANTED.items() if fit.counts[n] < w]
    if few:
        said.append(
            f"fewer steps than wanted: {', '.join(few)}. The intervals say what that costs; record longer runs."
        )
    few = [f"{n:,} {way}" for way, n in copies.counts.items() if way in ("in", "out") and n < WANTED_COPIES]  # fmt: skip
    if few:
        said.append(
            f"fewer copies than wanted: {', '.join(few)} (about {WANTED_COPIES} each way, at least {FLOOR_COPIES}). "
            "Record runs with --preemption swap and a small pool."
        )
    if len({s.workload for s in sources}) == 1:
        said.append(
            "one workload only: it is cross-validated by blocks of time, which share its lengths and batches, so that errors on other workloads may be larger."
        )
    if any(s.setup.model.num_window_layers for s in sources):
        said.append(
            "sliding-window layers: recordings hold no windowed contexts, the requests of a step were taken as equally long."
        )
    return [*said, *_left_out(sources), *_alike(fit), *_bounds(fit), *copies.notes]


def _alike(fit: StepFit) -> list[str]:
    """A sentence for each stage whose steps are too much alike to be fitted."""
    return [
        f"{', '.join(NAMES[n] for n in STAGE_UNKNOWNS[stage])} stay the base device's: {why}"
        for stage, why in fit.ill.items()
    ]


def _left_out(sources: Sequence[Source]) -> list[str]:
    """Steps and copies whose times cannot have been measured, counted."""
    said = []
    steps = sum(s.dropped.get(NO_TIME, 0) for s in sources)
    if steps:
        said.append(f"{steps:,} steps were left out: {NO_TIME}.")
    copies = sum(s.untimed_copies for s in sources)
    if copies:
        said.append(f"{copies:,} copies were left out: {NO_TIME}.")
    return said


def _bounds(fit: StepFit) -> list[str]:
    """Sentences on unknowns that are not separable, or that ended at the edge of what is searched."""
    said, c = [], fit.coefficients
    if fit.merged:
        said.append(
            f"{', '.join(NAMES[n] for n in fit.merged)} were not separable: their sum is measured and split in the base device's ratio."
        )
    for name in ("linear", "context", "pairs"):
        if name not in fit.kept and getattr(c, name) <= 1.001 / MAX_OVER_PEAK:
            said.append(
                f"{NAMES[name]}: too cheap in these steps to be seen; it was set to {MAX_OVER_PEAK:g} times the base device's peak, the most that is fitted."
            )
    for name, (low, high) in LIMITS.items():
        value = getattr(c, name)
        if name not in fit.kept and not low * 1.01 < value < high * 0.99:
            said.append(
                f"{NAMES[name]}: the fit ended at the edge of what is searched, so that it says little."
            )
    return said
