"""How evenly a fleet is loaded: one rank full while others have room, and who could have run there.

It reads the thinned series of `fleet_series.py` and nothing else. Definitions:

    imbalance      KV tokens of the rank that holds most, over the mean of all ranks, at one time; over
                   a stretch the sum of the first over the sum of the second, so that idle times, in
                   which one request makes the largest ratio, do not count
    full           a bucket in which a rank has at least 98 % of its pool in use at some step, or preempts
    room           a bucket in which a rank never has more than 90 % in use, and nobody waits
    fits           waiting requests that would fit elsewhere: of those waiting anywhere, as many as ranks
                   with room take at once, by free tokens over the mean prompt, and by free seats
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.fleet_series import FleetSeries
from analyzer.look import three_digits
from analyzer.occupancy import FULL_PERCENT

ROOM_FRAC = 0.9
NOBODY = 0.5  # waiting requests on average: fewer count as none


@dataclass(frozen=True, eq=False)
class Balance:
    """Series are (B,), NaN or False where fewer than two ranks say something; figures are None there.

    ratio: imbalance; fits: waiting requests that would fit elsewhere. imbalance, peak_ratio (while the
    fullest rank is at least half full) and peak_at_s; full_while_room_frac: share of the time in
    which a rank is full or preempts while another has room; fits_mean: over that whole time;
    waiting_fits_frac: share of all waiting time in which the request would have fitted elsewhere;
    busiest: index of the rank with most used on average, busiest_ratio: its mean over all ranks'.
    """

    ratio: np.ndarray
    full_while_room: np.ndarray
    fits: np.ndarray | None
    imbalance: float | None
    peak_ratio: float | None
    peak_at_s: float | None
    full_while_room_frac: float | None
    fits_mean: float | None
    waiting_fits_frac: float | None
    busiest: int | None
    busiest_ratio: float | None

    def figures(self) -> dict[str, float | None]:
        """The figures by name, for tables and JSON."""
        return {
            "imbalance": self.imbalance,
            "peak_imbalance": self.peak_ratio,
            "full_while_room_frac": self.full_while_room_frac,
            "waiting_fits_mean": self.fits_mean,
            "waiting_fits_frac": self.waiting_fits_frac,
        }


def balance(series: FleetSeries) -> Balance:
    """The balance of all ranks over the whole axis."""
    usage = series.values["usage"]
    used = series.used_tokens()
    if used is None:  # pools unknown: shares compare as if all were equal
        used = usage
    num_buckets = series.grid.num_buckets
    together = (~np.isnan(used)).sum(axis=0) >= 2
    most, mean = np.zeros(num_buckets), np.zeros(num_buckets)
    if together.any():
        most[together] = np.nanmax(used[:, together], axis=0)
        mean[together] = np.nanmean(used[:, together], axis=0)
    ratio = np.divide(most, mean, out=np.full(num_buckets, np.nan), where=together & (mean > 0))
    full, room = _full(series), _room(series)
    at_once = together & full.any(axis=0) & room.any(axis=0)
    fits = _fits(series, room, together)
    waiting_s = np.nansum(series.values["waiting"], axis=0)
    peak = _peak(series, ratio, usage)
    busiest, busiest_ratio = _busiest(used)
    return Balance(
        ratio=ratio,
        full_while_room=at_once,
        fits=fits,
        imbalance=_over(most[together].sum(), mean[together].sum()),
        peak_ratio=None if peak is None else float(ratio[peak]),
        peak_at_s=None if peak is None else float(series.grid.edges_s[peak]),
        full_while_room_frac=_over(at_once.sum(), together.sum()),
        fits_mean=None if fits is None else _over(fits[together].sum(), together.sum()),
        waiting_fits_frac=None if fits is None else _over(fits[together].sum(), waiting_s[together].sum()),
        busiest=busiest,
        busiest_ratio=busiest_ratio,
    )  # fmt: skip


def _over(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole > 0 else None


def _full(series: FleetSeries) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        is_full = series.values["usage_max"] * 100 >= FULL_PERCENT - 1e-3
        found: np.ndarray = is_full | (series.values["preemptions"] > 0)
    return found


def _room(series: FleetSeries) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        found: np.ndarray = (series.values["usage_max"] <= ROOM_FRAC) & ~(
            series.values["waiting"] >= NOBODY
        )
    return found


def _fits(series: FleetSeries, room: np.ndarray, together: np.ndarray) -> np.ndarray | None:
    """Waiting requests that would fit on ranks with room, (B,); None where lengths or pools are not known."""
    pools = np.array([r.facts.pool_tokens or np.nan for r in series.ranks])
    prompts = np.array([r.facts.prompt_tokens or np.nan for r in series.ranks])
    if np.isnan(pools).all() or np.isnan(prompts).all() or len(series.ranks) < 2:
        return None
    seats = np.array([r.facts.max_num_seqs or np.inf for r in series.ranks], np.float64)
    waiting = np.nan_to_num(series.values["waiting"])
    need = np.where(np.isnan(prompts), np.nanmean(prompts), prompts)
    asked = waiting.sum(axis=0)
    tokens = (waiting * need[:, None]).sum(axis=0)
    per_request = np.divide(tokens, asked, out=np.full(len(asked), np.nan), where=asked > 0)
    free = np.where(room, (1 - series.values["usage_max"]) * pools[:, None], 0.0)
    open_seats = np.maximum(seats[:, None] - np.nan_to_num(series.values["running"]), 0.0)
    with np.errstate(invalid="ignore"):
        places = np.floor(np.nan_to_num(free) / per_request)
    places = np.where(room, np.minimum(np.nan_to_num(places), open_seats), 0.0).sum(axis=0)
    fits = np.minimum(asked, places)
    return np.where(together, fits, 0.0)


def _peak(series: FleetSeries, ratio: np.ndarray, usage: np.ndarray) -> int | None:
    """The bucket of the largest ratio in which the fullest rank is at least half full."""
    with np.errstate(invalid="ignore"):
        eligible = ~np.isnan(ratio) & (usage >= 0.5).any(axis=0)
    if not eligible.any():
        return None
    return int(np.argmax(np.where(eligible, ratio, -np.inf)))


def _busiest(used: np.ndarray) -> tuple[int | None, float | None]:
    seen = ~np.isnan(used)
    if len(used) < 2 or not seen.any():
        return None, None
    total = np.nansum(used, axis=1)
    means = np.divide(total, seen.sum(axis=1), out=np.zeros(len(used)), where=seen.any(axis=1))
    busiest = int(np.argmax(means))
    return busiest, _over(means[busiest], means.mean())


def say_balance(series: FleetSeries, found: Balance) -> str:
    """The balance in one or two sentences."""
    if len(series.ranks) < 2:
        return "One rank only: there is no other to compare with."
    if found.imbalance is None or found.busiest is None:
        return "No two ranks say their usage at one time, so that balance is not known."
    said = [
        f"Busiest is {series.ranks[found.busiest].name}: it holds {found.busiest_ratio or 0:.1f} times the mean of KV tokens in use; summed over time, whichever rank is fullest holds {found.imbalance:.1f} times the mean of all."
    ]
    share = found.full_while_room_frac or 0.0
    if share > 0:
        said.append(
            f"For {_percent(share)} of the time a rank is full or preempts while another has room."
        )
    else:
        said.append("No rank is full or preempts while another has room.")
    if found.fits_mean is None:
        said.append("How many waiting requests would have fitted elsewhere is not known without prompt lengths and pools.")  # fmt: skip
    elif found.waiting_fits_frac is None:
        said.append("Nobody waits.")
    else:
        said.append(
            f"{_percent(found.waiting_fits_frac)} of the waiting would have fitted elsewhere at that time ({three_digits(found.fits_mean)} requests on average)."
        )
    return " ".join(said)


def _percent(frac: float) -> str:
    return f"{three_digits(100 * frac)} %" if frac else "0 %"
