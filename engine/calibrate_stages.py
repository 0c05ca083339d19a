"""When steps suffice: counts a stage, conditions of its design, and steps that are outliers.

A stage is the part of the procedure that one kind of step answers for: decode steps for overheads,
weight reads and contexts, large prefill steps for arithmetic and attention pairs, and steps near the
knee for its softness. A design whose columns cannot be told apart is not fitted, and the workload is
named that would tell them apart.

Source: the project's reference on recompute and swap, section 2.4.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import median_filter

from engine.calibrate_samples import DECODE, KINDS, PREFILL
from engine.calibrate_work import Coefficients, Features

MAX_CONDITION = 1e3
MAX_MADS = 4.0
_MAX_WORSE = 3.0  # condition number without outliers over that with them: more, and they stay
# Five samples for each unknown of a stage: fewer, and the 4-MAD rule cannot tell an outlier.
FLOOR = {"decode": 15, "prefill": 15, "near the knee": 10}
_NEIGHBOURS = 21  # steps of one kind, in time, whose median says what was usual


def condition_number(columns: np.ndarray) -> tuple[float, np.ndarray]:
    """Condition number of a design with columns scaled to length 1, and the weakest direction."""
    length = np.linalg.norm(columns, axis=0)
    if not (length > 0).all():
        return np.inf, (length <= 0).astype(float)
    _, singular, directions = np.linalg.svd(columns / length, full_matrices=False)
    weakest = np.abs(directions[-1])
    return (float(singular[0] / singular[-1]) if singular[-1] > 0 else np.inf), weakest


_STAGES: dict[str, tuple[tuple[str, ...], dict[tuple[int, int], str]]] = {
    "decode": (
        ("a fixed part", "the batch", "the contexts"),
        {
            (0, 1): "Nearly all decode steps have the same batch: add a run with other batch sizes (--max-num-seqs 1, 4, 16, ...)",
            (0, 2): "The contexts of the decode steps hardly vary: add runs with prompts of other lengths (32 to several thousand tokens)",
            (1, 2): "Contexts grow with the batch in all decode steps: add a run with few long requests and one with many short ones",
        },
    ),
    "prefill": (
        ("a fixed part", "the tokens", "the attention pairs"),
        {
            (0, 1): "Nearly all prefill steps have the same number of tokens: vary the prompt lengths or --max-num-batched-tokens",
            (0, 2): "The prefill steps hardly vary in attention pairs: add prompts of other lengths",
            (1, 2): "Attention pairs grow with the tokens in all prefill steps: add long prompts that are computed in chunks, and many short ones together",
        },
    ),
}  # fmt: skip


def _stage_design(f: Features, base: Coefficients, stage: str) -> np.ndarray:
    fixed = base.step + base.layer * f.layers
    if stage == "decode":
        fixed = fixed + base.linear * base.ratio * (f.read + f.head_read)
        return np.column_stack((fixed, f.flops, f.ctx_read)) / f.seconds[:, None]
    return np.column_stack((fixed, f.flops, f.pair)) / f.seconds[:, None]


def check_stage(f: Features, base: Coefficients, stage: str) -> tuple[float, str]:
    """Condition number of a stage's design, and why it cannot be fitted: "" up to MAX_CONDITION."""
    condition, weakest = condition_number(_stage_design(f, base, stage))
    if condition <= MAX_CONDITION:
        return condition, ""
    names, advice = _STAGES[stage]
    a, b = np.argsort(-weakest, kind="stable")[:2].tolist()
    first, second = min(a, b), max(a, b)
    why = (
        f"the {len(f):,} {stage} steps cannot tell {names[first]} from {names[second]} (condition number "
        f"{condition:.3g}, at most {MAX_CONDITION:g}). {advice[first, second]}."
    )
    return condition, why


def stage_steps(f: Features, base: Coefficients) -> dict[str, np.ndarray]:
    """Which steps each stage rests on, by the base's own crossing from weight reads to arithmetic."""
    crossing = base.ratio * f.crossing
    return {
        "decode": f.kind == DECODE,
        "prefill": (f.kind == PREFILL) & (f.tokens >= 4 * crossing),
        "near the knee": (f.tokens >= crossing / 4) & (f.tokens <= 4 * crossing),
    }


def spare_variety(f: Features, base: Coefficients, keep: np.ndarray) -> np.ndarray:
    """`keep` with all steps of a stage back where the design is much weaker without the outliers.

    A step that alone has another length or batch is contradicted by its neighbours and yet all that
    tells two columns apart. Weaker: too few steps, or a condition number grown by _MAX_WORSE.
    """
    keep = keep.copy()
    stages = stage_steps(f, base)
    for stage in _STAGES:
        mine = stages[stage]
        left = mine & keep
        if mine.sum() < FLOOR[stage] or left.sum() == mine.sum():
            continue
        before = check_stage(f.take(mine), base, stage)[0]
        weaker = left.sum() < FLOOR[stage] or (
            check_stage(f.take(left), base, stage)[0] > _MAX_WORSE * before
        )
        keep |= mine & weaker
    return keep


def outliers(ratio: np.ndarray, kind: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Which steps are more than 4 MADs from the running median of their neighbours of the same kind.

    ratio: measured over predicted, in time order. From the neighbours and not from all: a regime
    that the model misses stays in, and only what its own surroundings contradict goes.
    """
    out = np.zeros(len(ratio), bool)
    for k in range(len(KINDS)):
        deviation = np.zeros(len(ratio))
        mine = kind == k
        for i in np.unique(source[mine]):
            rows = np.flatnonzero(mine & (source == i))
            deviation[rows] = ratio[rows] - median_filter(
                ratio[rows], size=min(_NEIGHBOURS, len(rows)), mode="mirror"
            )
        if mine.any():
            mad = 1.4826 * float(np.median(np.abs(deviation[mine])))
            out |= mine & (np.abs(deviation) > MAX_MADS * max(mad, 1e-9))
    return out
