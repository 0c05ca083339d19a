"""From clean steps to the numbers of the step model.

Everything is a least-squares fit of relative errors with no coefficient below 0 (each row divided by
its time, then `scipy.optimize.nnls`). For a given ratio of weight read to arithmetic and a given knee
the whole step model is linear, so the fit is a search along each of these two around a linear solve.
It takes columns and gives `Coefficients`: overheads, and reciprocals of efficiencies. It knows no
files and nothing of copies.

Source: the project's reference on recompute and swap, section 2.2 (model) and 2.4 (procedure);
docs/decisions/2026-11-29-calibration.md says where and why this departs from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize, nnls

from engine.calibrate_stages import (
    FLOOR,
    MAX_CONDITION,
    check_stage,
    condition_number,
    outliers,
    spare_variety,
    stage_steps,
)
from engine.calibrate_work import WANTED, Coefficients, Features, base_coefficients, predict
from engine.devices import DeviceSpec
from traces.errors import SettingsError

# No rate is fitted above this many times the base device's peak: a column too cheap to be seen.
MAX_OVER_PEAK = 4.0
LIMITS = {"ratio": (1 / 50, 50.0), "knee": (1.0, 8.0)}  # between which they are searched
STAGE_UNKNOWNS = {
    "decode": ("context", "ratio"),
    "prefill": ("linear", "pairs"),
    "near the knee": ("knee",),
}
_RATES = ("linear", "context", "pairs")
_ROUNDS = 4  # of dropping outliers and of weighing errors by their size instead of its square
_SMALL_ERROR = 0.05  # below it they count by the square
_SMALL_S = 1e-6  # stands for an overhead that is 0 on the base device


@dataclass(frozen=True)
class StepFit:
    """Coefficients with what they rest on.

    kept: unknown -> why it stayed at the base's value; ill: stage whose steps are too much alike to be
    fitted -> why, with the workload that is missing; merged: unknowns that only their sum is known
    of; counts: samples a stage; condition: design -> condition number; outlier: which of the given
    steps were dropped; weight: what each counted in the end; host_known: device time was recorded, so that host time is apart.
    """

    coefficients: Coefficients
    kept: Mapping[str, str]
    ill: Mapping[str, str]
    merged: tuple[str, ...]
    counts: Mapping[str, int]
    condition: Mapping[str, float]
    outlier: np.ndarray
    weight: np.ndarray
    host_known: bool


def _objective(f: Features, c: Coefficients, step: float) -> float:
    error = (predict(f, c) + step) / f.seconds - 1
    return float(np.sum(f.weight * error**2))


def bounded_nnls(columns: np.ndarray, target: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Least squares with every coefficient at or above `least`."""
    both = np.column_stack((columns, target - columns @ least))
    length = np.linalg.norm(both, axis=0)
    length[length == 0] = 1.0
    unit = both / length
    # The triangle of a QR by the normal equations: conditions are held below 1e3, squared 1e6.
    gram = unit.T @ unit + 1e-14 * np.eye(unit.shape[1])
    small = np.linalg.cholesky(gram).T
    return least + nnls(small[:, :-1], small[:, -1])[0] * length[-1] / length[:-1]


class Solver:
    """The fit of one set of steps: which unknowns are free, and the linear solve for the rest."""

    def __init__(self, f: Features, base: DeviceSpec, host_known: bool) -> None:
        self.f, self.start, self.host_known = f, base_coefficients(base), host_known
        self._last = (
            self.start
        )  # where the next solve begins: it says which branch a step takes
        self.kept: dict[str, str] = {
            "io": "it cannot be told from the linear layers' arithmetic"
        }
        self.ill: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.condition: dict[str, float] = {}
        self._count(self.start)
        self.groups: tuple[tuple[str, ...], ...] = ()
        self._choose_groups()

    def _count(self, at: Coefficients) -> None:
        """Count the samples of each stage and keep at the base what has too few, or steps too much alike.

        Raises: SettingsError where neither decode nor prefill steps are left to fit.
        """
        f = self.f
        stages = stage_steps(f, at)
        self.counts = {stage: int(mine.sum()) for stage, mine in stages.items()}
        self.free = {"linear", "pairs", "context", "ratio", "knee"}
        for stage, names in STAGE_UNKNOWNS.items():
            why = ""
            if self.counts[stage] < FLOOR[stage]:
                why = f"only {self.counts[stage]:,} steps of its kind ({stage}), at least {FLOOR[stage]} are needed"
            elif stage in ("decode", "prefill"):
                self.condition[stage], why = check_stage(f.take(stages[stage]), at, stage)
                if why:
                    self.ill[stage] = why
            if why:
                self.free.difference_update(names)
                self.kept |= dict.fromkeys(names, why.rstrip("."))
        if self.free & {"linear", "ratio"}:
            return
        if self.ill:
            raise SettingsError(" ".join(w[0].upper() + w[1:] if i else w for i, w in enumerate(self.ill.values())))  # fmt: skip
        crossing = 4 * float(np.median(at.ratio * f.crossing)) if len(f) else 0
        raise SettingsError(
            f"the recordings hold {self.counts['decode']:,} clean decode steps and {self.counts['prefill']:,} prefill steps "
            f"of {crossing:,.0f} tokens or more; at least {FLOOR['decode']} of one of them are needed "
            f"(about {WANTED['decode']} and {WANTED['prefill']} are wanted). Record longer runs."
        )

    def _choose_groups(self) -> None:
        """Join overheads that these steps cannot tell apart, until the whole design is sound."""
        for groups in self._options():
            there = (tuple(n for n in g if self._has(n)) for g in groups)
            self.groups = tuple(g for g in there if g)
            columns, _, _ = self._design(self.start, *self._branches(self.start))
            condition = condition_number(columns)[0]
            if condition <= MAX_CONDITION:
                break
        self.condition["all steps"] = condition
        fitted = {n for g in self.groups for n in g}
        for name in ("layer", "decode_layer", "prefill_layer", "request"):
            if name not in fitted:
                self.kept[name] = (
                    "it cannot be told from the tokens" if self._has(name) else "no such steps"
                )
        if condition > MAX_CONDITION:
            raise SettingsError(
                f"the steps of all recordings together leave the step model undetermined (condition number {condition:.3g}, "
                f"at most {MAX_CONDITION:g}). Add a recording with other batch sizes, prompt lengths and mixed steps."
            )

    def _options(self) -> list[tuple[tuple[str, ...], ...]]:
        """Ways to join the overheads, the finest first; the coarsest leave requests at the base."""
        step = () if self.host_known else ("step",)
        fine: list[tuple[tuple[str, ...], ...]] = [
            tuple((n,) for n in (*step, "layer", "decode_layer", "prefill_layer"))
        ]
        if step:
            fine.append((("step", "layer"), ("decode_layer",), ("prefill_layer",)))
        fine.append(((*step, "layer", "decode_layer"), ("prefill_layer",)))
        fine.append(((*step, "layer", "decode_layer", "prefill_layer"),))
        return [(*groups, ("request",)) for groups in fine] + fine

    def _has(self, name: str) -> bool:
        column = {"decode_layer": self.f.decode_layers, "prefill_layer": self.f.prefill_layers}
        return name not in column or bool(column[name].any())

    @property
    def merged(self) -> tuple[str, ...]:
        """Overheads of which only the sum is known."""
        return next((g for g in self.groups if len(g) > 1), ())

    def _branches(self, c: Coefficients) -> tuple[np.ndarray, np.ndarray]:
        """Steps whose decode attention is bound by arithmetic, and whose chunks by looking back."""
        f = self.f
        return (
            c.pairs * f.ctx_flops > c.context * f.ctx_read,
            c.context * f.look_read > c.pairs * f.pair,
        )

    def _design(
        self, c: Coefficients, by_flops: np.ndarray, by_look: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[tuple[str, ...]]]:
        """Columns of the free unknowns and what is left for them to explain, by relative weight."""
        f = self.f
        high = np.maximum(f.flops, c.ratio * f.read)
        low = np.minimum(f.flops, c.ratio * f.read)
        soft = high * (1 + (low / high) ** c.knee) ** (1 / c.knee)
        work = {
            "step": np.ones(len(f)),
            "layer": f.layers,
            "decode_layer": f.decode_layers,
            "prefill_layer": f.prefill_layers,
            "request": f.request_layers,
            "linear": soft + np.maximum(f.head_flops, c.ratio * f.head_read),
            "context": np.where(by_flops, 0.0, f.ctx_read)
            + np.where(by_look, f.look_read, 0.0),
            "pairs": np.where(by_flops, f.ctx_flops, 0.0) + np.where(by_look, 0.0, f.pair),
            "io": f.io,
        }
        free = [
            (n,) for n in ("linear", "context", "pairs") if n in self.free and work[n].any()
        ]
        grouped = {n for g in self.groups for n in g}
        left = f.seconds.copy()
        for name, column in work.items():
            known = name == "step" and self.host_known
            if (name,) not in free and name not in grouped and not known:
                left -= getattr(self.start, name) * column
        names = list(self.groups) + free
        columns = np.column_stack(
            [sum((self._scale(n) if n in grouped else 1.0) * work[n] for n in g) for g in names]
        )
        by = np.sqrt(f.weight) / f.seconds
        return columns * by[:, None], left * by, names

    def solve(self, ratio: float, knee: float) -> tuple[Coefficients, float]:
        """Best coefficients for a ratio and a knee, and their weighted squared relative error."""
        at = replace(self._last, ratio=ratio, knee=knee)
        best: tuple[Coefficients, float] | None = None
        for _ in range(4):
            branches = self._branches(at)
            columns, left, names = self._design(at, *branches)
            least = np.array([1 / MAX_OVER_PEAK if n[0] in _RATES else 0.0 for n in names])
            x = bounded_nnls(columns, left, least)
            found = {
                n: float(v) * (self._scale(n) if g in self.groups else 1.0)
                for g, v in zip(names, x, strict=True)
                for n in g
            }
            at = replace(at, **found)
            if (
                "ratio" not in self.free
            ):  # weight reads stay the base's, whatever arithmetic does
                at = replace(at, ratio=self.start.linear * self.start.ratio / at.linear)
            same = zip(branches, self._branches(at), strict=True)
            if "ratio" in self.free and all(np.array_equal(a, b) for a, b in same):
                self._last = at
                return at, float(np.sum((columns @ x - left) ** 2))
            error = _objective(self.f, at, 0.0 if self.host_known else at.step)
            if best is None or error < best[1]:
                best = at, error
        assert best is not None
        return best

    def _scale(self, name: str) -> float:
        """Base value of an overhead, by which overheads that are joined share their sum."""
        return float(getattr(self.start, name)) or _SMALL_S

    def search(
        self, around: Coefficients | None = None, *, quick: bool = False
    ) -> Coefficients:
        """Best coefficients: a grid over ratio and knee, then a simplex from its best point.

        around: start there, without the grid; quick: stop early (for resampled steps).
        """
        free = [n for n in ("ratio", "knee") if n in self.free]
        at = around or self.start
        if not free:
            return self._with_host(self.solve(at.ratio, at.knee)[0])
        bounds = [tuple(np.log(LIMITS[n])) for n in free]

        def error(logs: np.ndarray) -> float:
            here = dict(zip(free, np.exp(logs).tolist(), strict=True))
            return self.solve(here.get("ratio", at.ratio), here.get("knee", at.knee))[1]

        if around is None:
            axes = [np.linspace(b[0], b[1], n) for b, n in zip(bounds, (11, 4), strict=False)]
            points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(free))
            start = points[int(np.argmin([error(p) for p in points]))]
        else:
            start = np.log([getattr(around, n) for n in free])
        reach, sharp, most = (0.1, 5e-3, 30) if quick else (0.2, 1e-3, 120)
        corners = np.vstack([start, start + reach * np.eye(len(free))])
        inside = np.clip(corners, *np.array(bounds).T)
        inside[1:] -= (
            (inside[1:] == inside[0]).all(1, keepdims=True) * reach * np.eye(len(free))
        )
        found = minimize(
            error,
            start,
            method="Nelder-Mead",
            bounds=bounds,
            options={"initial_simplex": inside, "xatol": sharp, "fatol": 1e-9, "maxfev": most},
        )
        here = dict(zip(free, np.exp(found.x).tolist(), strict=True))
        c = self.solve(here.get("ratio", at.ratio), here.get("knee", at.knee))[0]
        return self._with_host(c)

    def _with_host(self, c: Coefficients) -> Coefficients:
        if not self.host_known:
            return c
        f = self.f
        by = f.weight / (f.seconds + f.host_s) ** 2
        return replace(c, step=max(0.0, float(np.sum(by * f.host_s) / np.sum(by))))


def fit_steps(f: Features, base: DeviceSpec, *, host_known: bool) -> StepFit:
    """Fit the step model to these steps, in rounds that drop outliers and tame large errors.

    Raises: SettingsError with the counts needed where there are too few steps, or with the workload
    that is missing where unknowns cannot be told apart.
    """
    keep, weight = np.ones(len(f), bool), f.weight
    solver = Solver(f, base, host_known)
    c = solver.search()
    for _ in range(_ROUNDS):
        ratio = f.seconds / (predict(f, c) + (0.0 if host_known else c.step))
        keep = spare_variety(f, solver.start, ~outliers(ratio, f.kind, f.source))
        less = _SMALL_ERROR / np.maximum(np.abs(1 / ratio - 1), _SMALL_ERROR)
        weight = f.weight * less
        solver = Solver(replace(f, weight=weight).take(keep), base, host_known)
        c = solver.search(around=c)
    return StepFit(
        c,
        solver.kept,
        solver.ill,
        solver.merged,
        solver.counts,
        solver.condition,
        ~keep,
        weight,
        host_known,
    )
