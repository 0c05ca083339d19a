"""Recompute against swap over the length of a victim: where one is cheaper, and by how much.

It is given what each way costs (`Ways`) and finds where the order flips; it knows neither models nor
devices, and not how a cost comes about. That the two are compared by engine time is the engine's choice
too (preemption mode cheapest).

Source: the project's reference on recompute and swap, section 1 (per-token costs, machines, copies,
crossover tables).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

_PER_DECADE = 48  # lengths of a curve
_HALVINGS = 60


@dataclass(frozen=True)
class Setup:
    """Under what the two are compared. link_gb_per_s: None for the device's; beside: tokens of
    the batch in which a recompute rides, 0 for a step of its own; budget: most tokens of a step,
    None for vLLM's on the device; long_prefill: most of one request, 0 for no limit."""

    model: str = "llama-3.1-8b"
    device: str = "h100-sxm"
    tp: int = 1
    kv_dtype: str = "auto"
    copy_path: str = "coalesced"
    copy_mode: str = "blocking"
    link_gb_per_s: float | None = None
    beside: int = 0
    weight_dtype: str = "auto"
    pp: int = 1
    block_size: int = 16
    budget: int | None = None
    long_prefill: int = 0


@dataclass(frozen=True)
class Ways:
    """What both ways of preemption cost one model on one machine, in seconds.

    recompute_s: (tokens to compute, tokens before them that were found in the cache) -> engine time;
    copies_s: tokens -> time on the link out and back, each alone; swap_s: tokens -> engine time of the
    swap: both copies where the engine waits for them, else what is lost while blocks are on the way.
    block_size: tokens of a block; longest: tokens that a request may have.
    """

    recompute_s: Callable[[int, int], float]
    copies_s: Callable[[int], tuple[float, float]]
    swap_s: Callable[[int], float]
    block_size: int
    longest: int

    def found_tokens(self, tokens: int, cached_frac: float) -> int:
        """Tokens of a victim that the prefix cache gives back: a share of its full blocks."""
        return int(cached_frac * (tokens // self.block_size) * self.block_size)

    def at(self, tokens: int, cached_frac: float = 0.0) -> Costs:
        """Both costs of a victim of that many tokens."""
        found = self.found_tokens(tokens, cached_frac)
        out, back = self.copies_s(tokens)
        return Costs(
            tokens, self.recompute_s(tokens - found, found), self.swap_s(tokens), out, back
        )


@dataclass(frozen=True)
class Costs:
    """A victim's length and both costs; out_s, back_s: on the link, each copy alone."""

    tokens: int
    recompute_s: float
    swap_s: float
    out_s: float
    back_s: float

    @property
    def ratio(self) -> float | None:
        """Recompute over swap: above 1 swap is cheaper; None where swap costs nothing."""
        return self.recompute_s / self.swap_s if self.swap_s > 0 else None


@dataclass(frozen=True)
class Range:
    """Lengths, both ends included, at which recompute is cheaper. open_end: it goes on to the longest
    request."""

    first: int
    last: int
    open_end: bool


def lengths(ways: Ways) -> list[int]:
    """Lengths of a curve: whole blocks, evenly spread over the logarithm, one block to the longest."""
    size, most = ways.block_size, max(ways.longest // ways.block_size, 1)
    num = max(2, int(_PER_DECADE * np.log10(most)) + 1) if most > 1 else 1
    blocks = np.unique(np.round(np.geomspace(1, most, num)).astype(np.int64))
    return [int(b) * size for b in blocks]


def curve(ways: Ways, cached_frac: float) -> list[Costs]:
    """Both costs at every length of `lengths`."""
    return [ways.at(n, cached_frac) for n in lengths(ways)]


def cheaper_ranges(ways: Ways, cached_frac: float, points: Sequence[Costs]) -> list[Range]:
    """Where recompute costs less than swap, to the block. points: as from `curve`.

    Between two neighbouring points the order is taken to flip at most once.
    """
    size = ways.block_size

    def wins(blocks: int) -> bool:
        costs = ways.at(blocks * size, cached_frac)
        return costs.recompute_s < costs.swap_s

    def flip(low: int, high: int) -> int:
        """First number of blocks after `low` at which it is as at `high`."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if wins(middle) == wins_high else (middle, high)
        return high

    found: list[Range] = []
    begun: int | None = None
    before: int | None = None
    for point in points:
        blocks = point.tokens // size
        wins_high = point.recompute_s < point.swap_s
        if wins_high and begun is None:
            begun = blocks if before is None else flip(before, blocks)
        elif not wins_high and begun is not None and before is not None:
            found.append(Range(begun * size, (flip(before, blocks) - 1) * size, False))
            begun = None
        before = blocks
    if begun is not None and before is not None:
        found.append(Range(begun * size, before * size, True))
    return found


def flips(ranges: Sequence[Range], shortest: int) -> list[int]:
    """Lengths at which the order flips, in order. shortest: that was looked at."""
    begins = [r.first for r in ranges if r.first > shortest]
    return sorted(begins + [r.last for r in ranges if not r.open_end])


def needed_cached_frac(ways: Ways, tokens: int) -> float | None:
    """Share of a victim that the cache must give back for recompute to cost no more than swap.

    0.0 where it does anyhow, None where even the last block alone costs more.
    """
    swap_s = ways.swap_s(tokens)

    def enough(frac: float) -> bool:
        return ways.at(tokens, frac).recompute_s <= swap_s

    if enough(0.0):
        return 0.0
    if not enough(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def needed_link_bytes_per_s(
    with_link: Callable[[float], Ways],
    tokens: int,
    cached_frac: float,
    bounds: tuple[float, float] = (1e6, 1e13),
) -> float | None:
    """Speed of the link, the same each way, at which both ways cost the same; None where no speed does.

    with_link: bytes/s -> the ways over such a link.
    """
    low, high = bounds

    def recompute_wins(speed: float) -> bool:
        costs = with_link(speed).at(tokens, cached_frac)
        return costs.recompute_s < costs.swap_s

    if not recompute_wins(low) or recompute_wins(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if recompute_wins(middle) else (low, middle)
    return high


# ---- kFLOP per KV byte ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What rebuilding KV asks of a model. flops_per_token: of the linear layers; flops_per_pair,
    window_flops_per_pair: of attention's full and window layers for each pair of query and key;
    window_tokens: most keys of a window layer; kv_bytes: of a token on all devices together;
    derate: how much slower its linear layers run than a dense model's (experts), at least 1."""

    flops_per_token: float
    flops_per_pair: float
    window_flops_per_pair: float
    window_tokens: int
    kv_bytes: float
    derate: float = 1.0

    def flops_per_byte(self, tokens: int, found: int = 0) -> float | None:
        """FLOPs that rebuild a sequence of so many tokens, per byte of its KV; None without KV.

        found: of the tokens, those at the start that need not be rebuilt.

        I(n, f) = (2 P (n - f) + pairs) / (b n): a causal sequence has (n + f) / 2 keys a query on average,
        of which a window layer sees min((n + f) / 2, window), as the engine counts them.
        """
        if self.kv_bytes <= 0 or tokens <= 0:
            return None
        keys = 0.5 * (tokens + found)
        attention = self.flops_per_pair * keys
        attention += self.window_flops_per_pair * min(keys, float(self.window_tokens))
        rebuilt_frac = (tokens - found) / tokens
        return rebuilt_frac * (self.flops_per_token * self.derate + attention) / self.kv_bytes


def break_even_flops_per_byte(
    flops_per_s: float, out_bytes_per_s: float, back_bytes_per_s: float, both_ways: bool = True
) -> float:
    """FLOPs that a machine does in the time in which a byte of KV crosses the link and comes back.

    A model above it swaps cheaper, one below recomputes cheaper, fixed costs left out. both_ways:
    False where only the way back is waited for.
    """
    seconds_per_byte = 1.0 / back_bytes_per_s
    if both_ways:
        seconds_per_byte += 1.0 / out_bytes_per_s
    return flops_per_s * seconds_per_byte


# ---- models by devices ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One model on one device. costs: None where it cannot be split so, `problem` says why; fits:
    whether its weights leave room for KV."""

    model: str
    device: str
    costs: Costs | None
    fits: bool = True
    problem: str = ""


def as_table(cells: Sequence[Cell]) -> pl.DataFrame:
    """The map as a table: a row a cell."""
    rows = [
        {
            "Model": c.model,
            "Device": c.device,
            "Recompute (ms)": None if c.costs is None else c.costs.recompute_s * 1e3,
            "Swap (ms)": None if c.costs is None else c.costs.swap_s * 1e3,
            "Recompute / swap": None if c.costs is None else c.costs.ratio,
            "Cheaper": cheaper(c.costs),
            "Fits": "yes" if c.fits else "no",
        }
        for c in cells
    ]
    return pl.DataFrame(rows, schema_overrides={"Recompute / swap": pl.Float64})


def cheaper(costs: Costs | None) -> str:
    """'recompute', 'swap', 'the same', or '—' where nothing is known."""
    if costs is None:
        return "—"
    if costs.recompute_s == costs.swap_s:
        return "the same"
    return "recompute" if costs.recompute_s < costs.swap_s else "swap"
