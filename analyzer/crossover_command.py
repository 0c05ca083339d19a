"""`python -m analyzer crossover`: when recompute is cheaper than swap for a model on a device.

The Crossover page's verdict without the page, by the same functions. It knows flags and how the answer is
printed.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from traces.errors import SettingsError

if TYPE_CHECKING:
    from analyzer.crossover import Costs, Range, Ways

LENGTHS = (256, 1_024, 4_096, 16_384, 65_536)  # of the table, as far as the model goes
_MOST_TOKENS, _MOST_BESIDE, _MOST_BLOCK = 4_194_304, 65_536, 4_096


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m analyzer`."""
    parser = commands.add_parser(
        "crossover",
        help="when recompute is cheaper than swap, and when not",
        description="Compares what recomputing a victim and swapping it cost the engine, over the victim's length, by the "
        "formulas of the estimates that preemption mode cheapest compares.",
    )
    add = parser.add_argument
    add(
        "--model",
        default="llama-3.1-8b",
        metavar="NAME|config.json",
        help="default llama-3.1-8b",
    )
    add("--device", default="h100-sxm", metavar="NAME|device.json", help="default h100-sxm")
    add(
        "--tp",
        type=int,
        default=1,
        metavar="N",
        help="devices that share each layer (default 1)",
    )
    add("--pp", type=int, default=1, metavar="N", help="pipeline stages (default 1)")
    add(
        "--kv-dtype",
        default="auto",
        metavar="auto|fp8|...",
        help="type of the KV cache (default auto)",
    )
    add(
        "--weight-dtype",
        default="auto",
        metavar="auto|fp8|...",
        help="type of the weights (default auto)",
    )
    add(
        "--block-size", type=int, default=16, metavar="N", help="tokens of a block (default 16)"
    )
    add(
        "--copy-path",
        default="coalesced",
        choices=("loop", "batch", "coalesced"),
        help="default coalesced",
    )
    add(
        "--copy-mode",
        default="blocking",
        choices=("blocking", "async"),
        help="default blocking",
    )
    add(
        "--link-gb-per-s",
        type=float,
        metavar="F",
        help="speed of the host link each way (default: the device's)",
    )
    add(
        "--cached",
        type=float,
        default=0.0,
        metavar="F",
        help="share of the victim that the prefix cache still holds (default 0)",
    )
    add(
        "--beside",
        type=int,
        default=0,
        metavar="N",
        help="requests that decode beside the recompute (default 0: steps of its own)",
    )
    add(
        "--tokens",
        type=int,
        default=2048,
        metavar="N",
        help="length that the verdict tells of (default 2,048)",
    )
    add("--json", action="store_true", help="print JSON, and nothing else, to stdout")
    parser.set_defaults(run=run)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; returns 0. Raises SettingsError."""
    from dataclasses import replace

    from analyzer.crossover import (
        Setup,
        cheaper_ranges,
        curve,
        needed_cached_frac,
        needed_link_bytes_per_s,
    )
    from analyzer.crossover_words import say_condition, verdict, what_would_flip
    from analyzer.pages.parts.crossover_costs import (
        LONGEST,
        Own,
        kv_bytes_per_token_of,
        params_of,
        ways_of,
    )
    from engine.devices import load_device
    from engine.models import load_model

    _check(arguments)
    own = Own(load_model(arguments.model), load_device(arguments.device))
    assert own.model is not None
    assert own.device is not None
    setup = Setup(
        model=own.model.name,
        device=own.device.name,
        tp=arguments.tp,
        pp=arguments.pp,
        kv_dtype=arguments.kv_dtype,
        weight_dtype=arguments.weight_dtype,
        block_size=arguments.block_size,
        copy_path=arguments.copy_path,
        copy_mode=arguments.copy_mode,
        link_gb_per_s=arguments.link_gb_per_s,
        beside=arguments.beside,
    )
    if kv_bytes_per_token_of(setup, own) <= 0:
        raise SettingsError(
            f"{setup.model} has no KV that grows with its tokens: a preemption loses no KV, and there is nothing to swap."
        )
    frac, tokens = arguments.cached, arguments.tokens
    ways = ways_of(setup, own, max(own.model.max_model_len or LONGEST, tokens))
    points = curve(ways, frac)
    ranges = cheaper_ranges(ways, frac, points)
    at = ways.at(tokens, frac)
    needed = needed_cached_frac(ways, tokens)

    def with_link(speed: float) -> Ways:
        return ways_of(replace(setup, link_gb_per_s=speed / 1e9), own)

    link = needed_link_bytes_per_s(with_link, tokens, frac)
    cost = params_of(setup, own)
    condition = say_condition(
        setup, frac, (cost.link_out_bytes_per_s, cost.link_in_bytes_per_s)
    )
    said = verdict(ranges, points[0].tokens, points[-1].tokens, at)
    flip = what_would_flip(at, frac, needed, link)
    table = [ways.at(n, frac) for n in sorted({*LENGTHS, tokens}) if n <= points[-1].tokens]
    if arguments.json:
        print(json.dumps(_as_json(condition, said, ranges, at, table, needed, link), indent=1))
        return 0
    print(f"{said}\n{flip}\nFor {condition}.\n")
    _print_table(table)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise SettingsError for a number that cannot be."""
    for flag, value, low, high in (
        ("--cached", arguments.cached, 0, 1),
        ("--beside", arguments.beside, 0, _MOST_BESIDE),
        ("--tokens", arguments.tokens, 1, _MOST_TOKENS),
        ("--block-size", arguments.block_size, 1, _MOST_BLOCK),
        ("--link-gb-per-s", arguments.link_gb_per_s, 0.001, 1e6),
    ):
        if value is not None and not low <= value <= high:
            raise SettingsError(f"{flag} must lie between {low:,} and {high:,}, not {value:g}.")


def _as_json(
    condition: str,
    said: str,
    ranges: list[Range],
    at: Costs,
    table: list[Costs],
    needed_frac: float | None,
    needed_link: float | None,
) -> dict[str, Any]:
    return {
        "verdict": said,
        "condition": condition,
        "recompute_cheaper": [
            {"first_tokens": r.first, "last_tokens": None if r.open_end else r.last}
            for r in ranges
        ],
        "at": _row(at),
        "needed_cached_frac": needed_frac,
        "needed_link_bytes_per_s": needed_link,
        "lengths": [_row(c) for c in table],
    }


def _row(costs: Costs) -> dict[str, Any]:
    return {
        "tokens": costs.tokens,
        "recompute_s": costs.recompute_s,
        "swap_s": costs.swap_s,
        "copy_out_s": costs.out_s,
        "copy_in_s": costs.back_s,
        "ratio": costs.ratio,
    }


def _print_table(table: list[Costs]) -> None:
    from analyzer.crossover import cheaper
    from analyzer.look import seconds

    print(f"{'tokens':>8}  {'recompute':>10}  {'swap':>10}  cheaper")
    for costs in table:
        print(
            f"{costs.tokens:>8,}  {seconds(costs.recompute_s):>10}  {seconds(costs.swap_s):>10}  {cheaper(costs)}"
        )
