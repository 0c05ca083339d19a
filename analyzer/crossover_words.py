"""The crossover in sentences: when recompute is cheaper and when not, under which conditions.

It knows words for what `crossover.py` has found, and works nothing out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analyzer.crossover import Cell, Costs, Range, Setup, cheaper, flips
from analyzer.crossover_victims import BASES, OwnVictims, Tally, by_mode, tally
from analyzer.look import Side, seconds, three_digits

MOST_RANGES = 3  # that a sentence lists


def say_condition(setup: Setup, cached_frac: float, link: tuple[float, float]) -> str:
    """'llama-3.1-8b on h100-sxm, coalesced blocking copies over 53 GB/s, ...'. link: bytes/s out
    and back."""
    parts = [f"{setup.model} on {_devices(setup)}"]
    if setup.kv_dtype != "auto":
        parts.append(f"KV cache in {setup.kv_dtype}")
    if setup.weight_dtype != "auto":
        parts.append(f"weights in {setup.weight_dtype}")
    copies = "blocking" if setup.copy_mode == "blocking" else "asynchronous"
    parts.append(f"{setup.copy_path} {copies} copies over {_link(link)}")
    parts.append(
        f"{_percent(cached_frac)} of the victim still cached" if cached_frac > 0 else "nothing of the victim still cached"
    )  # fmt: skip
    parts.append(
        f"recomputed beside {setup.beside:,} running request{'' if setup.beside == 1 else 's'}"
        if setup.beside
        else "recomputed in steps of its own"
    )
    return ", ".join(parts)


def _devices(setup: Setup) -> str:
    count = setup.tp * setup.pp
    return setup.device if count == 1 else f"{count} x {setup.device}"


def _link(link: tuple[float, float]) -> str:
    out, back = (three_digits(way / 1e9) for way in link)
    return f"{out} GB/s" if out == back else f"{out} GB/s out and {back} GB/s back"


def verdict(ranges: Sequence[Range], shortest: int, longest: int, at: Costs) -> str:
    """When recompute is cheaper and when not, in one sentence. shortest, longest: lengths that were
    looked at; at: both costs at the chosen length."""
    if not ranges:
        said = f"Recompute is cheaper at no length up to {longest:,} tokens"
    elif len(ranges) == 1 and ranges[0].open_end and ranges[0].first <= shortest:
        said = f"Recompute is cheaper at every length up to {longest:,} tokens"
    elif len(ranges) > MOST_RANGES:
        said = _many_flips(ranges, shortest)
    else:
        rest = f", and swap at every other length up to {longest:,} tokens"
        said = f"Recompute is cheaper {say_ranges(ranges)}{rest}"
    return f"{said}: at {at.tokens:,} tokens {_costs(at)}."


def _many_flips(ranges: Sequence[Range], shortest: int) -> str:
    """Where costs are stairs (copies beside the computing take whole steps), the order flips often."""
    at = flips(ranges, shortest)
    ways = ("recompute", "swap")
    below = ways[ranges[0].first > shortest]
    above = ways[not ranges[-1].open_end]
    between = f"The order flips {len(at):,} times between {at[0]:,} and {at[-1]:,} tokens, where both cost about the same"
    if below == above:
        return f"{between}; below and above {below} is cheaper"
    return f"{between}; below {below} is cheaper, above {above}"


def say_ranges(ranges: Sequence[Range]) -> str:
    """'from 272 to 18,560 tokens and from 40,000 tokens on'."""
    return " and ".join(
        f"from {r.first:,} tokens on"
        if r.open_end
        else f"from {r.first:,} to {r.last:,} tokens"
        for r in ranges
    )


def _costs(at: Costs) -> str:
    both = f"recompute costs {seconds(at.recompute_s)} of engine time and swap {seconds(at.swap_s)}"
    if not at.ratio:
        return both
    factor = max(at.ratio, 1 / at.ratio)
    return both if factor < 1.005 else f"{both}, {three_digits(factor)} times {'less' if at.ratio > 1 else 'as much'}"  # fmt: skip


def what_would_flip(
    at: Costs, cached_frac: float, needed_frac: float | None, needed_link: float | None
) -> str:
    """At which cache share or link speed the order at the chosen length would be the other one.

    needed_frac, needed_link: as from `crossover`, at that length and these settings.
    """
    n = f"At {at.tokens:,} tokens"
    link = None if needed_link is None else f"{three_digits(needed_link / 1e9)} GB/s"
    if cheaper(at) == "recompute":
        if link is None:
            return f"{n} no link is fast enough to make swap cheaper."
        return f"{n} swap would be cheaper over a link of more than {link}."
    ways = []
    if needed_frac is not None and needed_frac > cached_frac:
        share = "all" if needed_frac > 0.9995 else f"more than {_percent(needed_frac)}"
        ways.append(f"if the prefix cache still held {share} of the victim")
    if link is not None:
        ways.append(f"over a link of less than {link}")
    if not ways:
        return f"{n} neither a cache that held all of the victim nor a slower link would make recompute cheaper."
    return f"{n} recompute would be cheaper {', or '.join(ways)}."


def _percent(frac: float) -> str:
    """'82 %'; above 99 with a digit more, since 100 % would say that nothing is missing."""
    return f"{frac * 100:.1f} %" if frac > 0.99 else f"{frac * 100:.0f} %"


def say_victims(side: Side, name: str, own: OwnVictims, has_own_setup: bool) -> str:
    """For how many of a run's victims which way was cheaper, and how their cached shares differ.

    has_own_setup: whether what is set is what the run ran with.
    """
    total = own.table.height
    if not total and own.num_untold:
        return f"{side} ({name}): the recording does not hold how many tokens its {own.num_untold:,} victim{'' if own.num_untold == 1 else 's'} lost, and which way was cheaper is not known."
    if not total:
        return f"{side} ({name}) preempted nobody who had computed anything."
    used = ", ".join(f"{n:,} by {mode}" for mode, n in by_mode(own.table).items())
    who = f"of {total:,} victim{'' if total == 1 else 's'} ({used}; median {own.median_tokens:,} tokens)"
    said = f"{side} ({name}): {who}, {_cheaper_for(tally(own.table))}."
    if own.found_frac is not None and own.found_spread is not None:
        low, high = (_percent(f) for f in own.found_spread)
        middle = "" if low == high else f", and between {low} and {high} for the middle half"
        said += (
            f" Of a victim, {_percent(own.found_frac)} was still cached in the median{middle}."
        )
    if not has_own_setup:
        said += " Their costs are of another set-up than is set here, and only their lengths are drawn."
    return said


_BY = {
    "own": "by their own cached share",
    "expected": "by the share expected to be cached when they were chosen",
    "computed": "computed here from their own tokens and cached share",
}


def _cheaper_for(found: Tally) -> str:
    if not found.num_known:
        return "which way was cheaper is not known: the recording holds neither both costs nor what was still cached"
    counts = {b: found.by_basis[b] for b in BASES if b in found.by_basis}
    by = " and ".join(_BY[b] if len(counts) == 1 else f"{_BY[b]} ({n:,})" for b, n in counts.items())  # fmt: skip
    be = "was" if found.num_recompute == 1 else "were"
    said = f"{found.num_recompute:,} {be} cheaper by recompute, {by}; in sum recompute {seconds(found.recompute_s)}, swap {seconds(found.swap_s)}"
    if found.num_unknown:
        said += f"; not known for {found.num_unknown:,}"
    return said


def say_typical(frac: float, own: OwnVictims | None) -> str:
    """What the curves stand for beside victims that differ; '' where nobody's cached share is known."""
    if own is None or own.found_frac is None:
        return ""
    is_median = round(100 * own.found_frac) == round(100 * frac)
    case = (
        "the typical case, the victims' median cached share of"
        if is_median
        else "the case of a cached share of"
    )
    return f"Verdict and curves are {case} {_percent(frac)}; the victims are each counted and drawn by their own."


# ---- alternative texts ----------------------------------------------------------------------------


def alt_curves(
    points: Sequence[Costs], ranges: Sequence[Range], victims: Mapping[Side, int]
) -> str:
    """The chart of both costs in words. victims: how many of each run are drawn."""
    if not points:
        return "No lengths to compare."
    first, last = points[0], points[-1]
    where = say_ranges(ranges) if ranges else "nowhere"
    drawn = "; ".join(f"{n:,} victims of {side}" for side, n in victims.items() if n)
    return (
        f"Engine time of recompute and of swap against tokens lost, both axes logarithmic. At {first.tokens:,} tokens "
        f"{seconds(first.recompute_s)} and {seconds(first.swap_s)}, at {last.tokens:,} tokens {seconds(last.recompute_s)} "
        f"and {seconds(last.swap_s)}. Recompute is cheaper {where}.{f' Drawn on it: {drawn}.' if drawn else ''}"
    )


def alt_map(cells: Sequence[Cell], tokens: int) -> str:
    """The map of models and devices in words."""
    known = [c for c in cells if c.costs is not None]
    wins = [c for c in known if cheaper(c.costs) == "recompute"]
    named = "; ".join(f"{c.model} on {c.device}" for c in wins[:12])
    more = f" and {len(wins) - 12:,} more" if len(wins) > 12 else ""
    return (
        f"Who is cheaper at {tokens:,} tokens, models by devices: swap in {len(known) - len(wins):,} of {len(known):,} pairs"
        f"{f', recompute in {len(wins):,}: {named}{more}' if wins else ''}."
    )


def say_rule_misses(rows: Sequence[tuple[str, bool, str]], device: str) -> str:
    """For which models the rule of thumb says other than the costs, and why. rows: a model's name,
    whether its mark is right of its tick (swap, by the rule) and which way costs less."""
    missed = {
        way: [name for name, is_right, costs in rows if costs == way and is_right != (way == "swap")]
        for way in ("swap", "recompute")
    }  # fmt: skip
    said = ""
    if missed["recompute"]:
        said += f" Right of their tick, recompute cheaper on {device} all the same: {_listed(missed['recompute'])}; the running batch reads the weights anyway, and copies have fixed costs besides the link's speed."
    if missed["swap"]:
        said += f" Left of their tick, swap cheaper on {device} all the same: {_listed(missed['swap'])}; weight reads and launches of a recompute, or copies that nobody waits for, are not in the rule."
    return said


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def alt_intensity(
    models: Sequence[tuple[str, float]], machines: Sequence[tuple[str, float]], tokens: int
) -> str:
    """The chart of kFLOP per KV byte in words. models, machines: name and kFLOP per byte."""
    if not models or not machines:
        return "No models to compare."
    low, high = min(models, key=lambda m: m[1]), max(models, key=lambda m: m[1])
    least, most = min(machines, key=lambda m: m[1]), max(machines, key=lambda m: m[1])
    return (
        f"kFLOP that rebuild a byte of KV, what is still cached left out, at {tokens:,} tokens, from {three_digits(low[1])} ({low[0]}) to {three_digits(high[1])} ({high[0]}); "
        f"machines break even between {three_digits(least[1])} ({least[0]}) and {three_digits(most[1])} ({most[0]})."
    )
