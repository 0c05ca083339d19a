"""From recorded transfers to the numbers of the link: t = f + n * t0 + bytes / bandwidth.

f (a transfer) and t0 (a copy, one for each copy path) are the same in both directions, the bandwidth
is not. What of a transfer's time fell together with one of the other direction says what contention
leaves of the bandwidth. It takes plain columns (`calibrate_samples.Copies`) and knows no steps.

Source: the project's reference on recompute and swap, section 1.3 (model) and 2.4 (procedure).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.calibrate_fit import bounded_nnls
from engine.calibrate_samples import Copies, Setup
from engine.calibrate_stages import MAX_CONDITION, MAX_MADS, condition_number
from engine.devices import DeviceSpec

WANTED_COPIES, FLOOR_COPIES = 60, 15
MAX_OVER_LINK = 20.0  # no link is fitted above this many times the base device's
_ALONE, _BESIDE = 0.1, 0.2  # share of a transfer beside the other direction: at most, at least
_LEAST_CONTENTION = 0.05
_WAYS = ((True, "in"), (False, "out"))


@dataclass(frozen=True)
class CopyFit:
    """Fitted values by DeviceSpec's names; kept: name -> why it stayed the base's; counts of transfers
    used; errors: relative error of each transfer used, in their order; notes: sentences."""

    values: Mapping[str, float]
    kept: Mapping[str, str]
    counts: Mapping[str, int]
    errors: np.ndarray
    notes: tuple[str, ...]


def fit_copies(parts: Sequence[tuple[Setup, Copies]], base: DeviceSpec) -> CopyFit:
    """Fit the link to the transfers of several recordings; too few in a direction leave it as it is."""
    paths = np.concatenate([np.full(len(c), s.copy_path) for s, c in parts])
    c = _join([c for _, c in parts])
    alone = c.overlap_s <= _ALONE * c.seconds
    kept: dict[str, str] = {}
    use = np.zeros(len(c), bool)
    counts = {}
    for inbound, way in _WAYS:
        mine = alone & (c.inbound == inbound)
        counts[way] = int(mine.sum())
        if counts[way] >= FLOOR_COPIES:
            use |= mine
        else:
            kept[f"link_{way}_bytes_per_s"] = (
                f"only {counts[way]:,} copies that ran alone, at least {FLOOR_COPIES} are needed"
            )
    if not use.any():
        for name in ("transfer_overhead_s", "loop_copy_s", "batch_copy_s", "coalesced_copy_s"):
            kept[name] = "too few copies"
        kept |= _no_contention(("in", "out"), "too few copies")
        return CopyFit({}, kept, counts, np.zeros(0), ())
    fit = _Line(c.take(use), paths[use], base)
    for _ in range(2):
        error = fit.error()
        centre = float(np.median(error))
        mad = 1.4826 * float(np.median(np.abs(error - centre)))
        fit = fit.without(np.abs(error - centre) > MAX_MADS * max(mad, 1e-9))
    kept |= fit.kept
    values = dict(fit.values)
    beside = c.overlap_s >= _BESIDE * c.seconds
    for inbound, way in _WAYS:
        mine = beside & (c.inbound == inbound)
        counts[f"{way}, other way busy"] = int(mine.sum())
        if mine.sum() < FLOOR_COPIES or f"link_{way}_bytes_per_s" not in values:
            why = f"only {int(mine.sum()):,} copies beside one of the other way, at least {FLOOR_COPIES} are needed"
            kept |= _no_contention((way,), why)
        else:
            values[f"contention_{way}"] = _contention(fit, c.take(mine), paths[mine])
    return CopyFit(values, kept, counts, fit.error(), tuple(fit.notes))


def _no_contention(ways: Sequence[str], why: str) -> dict[str, str]:
    return {f"contention_{way}": why for way in ways}


def _join(parts: Sequence[Copies]) -> Copies:
    names = ("inbound", "num_copies", "num_bytes", "seconds", "overlap_s")
    return Copies(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))


class _Line:
    """Fixed part, time a copy of each path, and bandwidth of each direction, of copies that ran alone."""

    def __init__(self, c: Copies, paths: np.ndarray, base: DeviceSpec) -> None:
        self.c, self.paths, self.base = c, paths, base
        self.notes: list[str] = []
        self.kept: dict[str, str] = {}
        self.values: dict[str, float] = {}
        self._fit()

    def without(self, outlier: np.ndarray) -> _Line:
        """The same fit without these copies."""
        return _Line(self.c.take(~outlier), self.paths[~outlier], self.base)

    def _base(self, name: str) -> float:
        return self.values.get(name, float(getattr(self.base, name)))

    def seconds(self, c: Copies, paths: np.ndarray) -> np.ndarray:
        """Seconds of copies that run alone."""
        t = np.full(len(c), self._base("transfer_overhead_s"))
        for path in np.unique(paths):
            t[paths == path] += (self._base(f"{path}_copy_s") * c.num_copies)[paths == path]
        rate = np.where(c.inbound, self._base("link_in_bytes_per_s"), self._base("link_out_bytes_per_s"))  # fmt: skip
        return t + c.num_bytes / rate

    def error(self) -> np.ndarray:
        return self.seconds(self.c, self.paths) / self.c.seconds - 1

    def _columns(self) -> dict[str, np.ndarray]:
        """Column of each unknown that these copies contain."""
        c = self.c
        columns = {"transfer_overhead_s": np.ones(len(c))}
        for path in ("loop", "batch", "coalesced"):
            mine = self.paths == path
            if path == "coalesced" and mine.any():
                self.kept["coalesced_copy_s"] = (
                    "events do not tell how many runs a transfer had"
                )
            elif mine.any():
                columns[f"{path}_copy_s"] = np.where(mine, c.num_copies, 0.0)
            else:
                self.kept[f"{path}_copy_s"] = "no copies on that path"
        for inbound, way in _WAYS:
            if (c.inbound == inbound).any():
                columns[f"link_{way}_bytes_per_s"] = np.where(c.inbound == inbound, c.num_bytes, 0.0)  # fmt: skip
        return columns

    def _fit(self) -> None:
        columns = self._columns()
        by_copy = [n for n in columns if n.endswith("_copy_s")]
        if self._condition(columns, list(columns)) > MAX_CONDITION and by_copy:
            self._share(columns, by_copy)
        free = [n for n in columns if n not in self.kept and n not in self.values]
        if self._condition(columns, free) > MAX_CONDITION:
            free.remove("transfer_overhead_s")
            self.kept["transfer_overhead_s"] = "all transfers are of nearly the same size"
            most = 0.5 * float(self.c.seconds.min())
            if (
                self.base.transfer_overhead_s > most
            ):  # the base's is longer than whole transfers
                self.values["transfer_overhead_s"] = most
        self._solve(columns, free)

    def _condition(self, columns: Mapping[str, np.ndarray], names: Sequence[str]) -> float:
        return condition_number(np.column_stack([columns[n] / self.c.seconds for n in names]))[
            0
        ]

    def _share(self, columns: Mapping[str, np.ndarray], by_copy: Sequence[str]) -> None:
        """Copies and bytes grow alike: their sum is fitted and shared out as the base device would."""
        sum_ = sum(self._base(n) * columns[n] for n in by_copy)
        for name in columns:
            if name.startswith("link_"):
                sum_ = sum_ + columns[name] / self._base(name)
        rows = np.column_stack((columns["transfer_overhead_s"], sum_)) / self.c.seconds[:, None]
        scale = bounded_nnls(rows, np.ones(len(rows)), np.zeros(2))[1]
        for name in by_copy:
            self.values[name] = float(scale) * self._base(name)
        self.notes.append(
            f"{', '.join(by_copy)} and the bandwidths were not separable (every block costs the same number of copies): "
            "their sum is measured and split in the base device's ratio. A second run with another --copy-path or --block-size separates them."
        )

    def _solve(self, columns: Mapping[str, np.ndarray], free: Sequence[str]) -> None:
        left = self.c.seconds.copy()
        for name in ("transfer_overhead_s", "loop_copy_s", "batch_copy_s"):
            if name in columns and name not in free:
                left -= self._base(name) * columns[name]
        if "coalesced_copy_s" in self.kept:
            mine = self.paths == "coalesced"
            left -= np.where(mine, self._base("coalesced_copy_s") * self.c.num_copies, 0.0)
        least = np.array([1 / (MAX_OVER_LINK * self._base(n)) if n.startswith("link_") else 0.0 for n in free])  # fmt: skip
        by = 1 / self.c.seconds
        rows = np.column_stack([columns[n] * by for n in free])
        for name, x in zip(free, bounded_nnls(rows, left * by, least), strict=True):
            self.values[name] = 1 / float(x) if name.startswith("link_") else float(x)


def _contention(fit: _Line, c: Copies, paths: np.ndarray) -> float:
    """What is left of the bandwidth while the other way is busy: t = alone + overlap * (1 - left)."""
    by = 1 / c.seconds**2
    late = c.seconds - fit.seconds(c, paths)
    lost = np.sum(by * c.overlap_s * late) / np.sum(by * c.overlap_s**2)
    return float(np.clip(1 - lost, _LEAST_CONTENTION, 1.0))
