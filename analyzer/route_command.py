"""`python -m analyzer route DIR`: a recorded fleet's requests under another router, or more replicas.

It reads arguments, brings fleet and engine together, and prints. Routing and simulating are the
engine's business; figures and words are known in `fleet_figures.py` and `fleet_routing.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzer.fleet_routing import Goal, Needed, Variant

_EPILOG = """\
JSON: fleet; replicas and rule; variants: a list of {key (recorded, as-recorded, round-robin, the rule), how
(measured or modelled), figures}; needed, where a goal was given: {goal, replicas or null, tried: {number: figures}};
notes. Figures have the names of docs/fleet.md; null: not known.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m analyzer`."""
    from traces.routing import MAX_REPLICAS, ROUTERS

    parser = commands.add_parser(
        "route",
        help="what another router would have done with a fleet's requests; replicas needed",
        description="Simulates the requests of all ranks together: as they were split when recorded, round-robin, "
        "and by a rule that sees what each replica holds. Times are modelled.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("fleet", metavar="DIR", help="the folder that ranks wrote into")
    parser.add_argument(
        "--replicas",
        type=int,
        help=f"how many to split over, 1 to {MAX_REPLICAS:,} (default: as many as ranks)",
    )
    parser.add_argument(
        "--rule", choices=ROUTERS, default="least-tokens", help="default least-tokens"
    )
    parser.add_argument(
        "--goal",
        metavar="GOAL",
        help="search the fewest replicas: no-preemption, or ttft-p99=SECONDS",
    )
    parser.add_argument(
        "--out", type=Path, help="keep the simulated fleets here; by default they are removed"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, and nothing else, to stdout"
    )
    parser.set_defaults(run=route)


def route(arguments: argparse.Namespace) -> int:
    """Simulate, compare and print; returns the exit code 0. Raises KVReplayError."""
    from analyzer.fleet_figures import figures_of_folder, fleet_figures
    from analyzer.fleet_routing import AS_RECORDED, RECORDED, Variant, how_known
    from analyzer.fleet_series import read_fleet
    from analyzer.output import refuse_inside
    from engine.fleet_trials import FleetTrials, settings_of_ranks
    from traces.errors import SettingsError
    from traces.fleet import open_fleet
    from traces.fleet_requests import requests_of

    goal = parse_goal(arguments.goal)
    if arguments.out is not None:
        refuse_inside(arguments.out, [arguments.fleet])
    series = read_fleet(open_fleet(arguments.fleet))
    requests = requests_of(series.clock, series.label)
    settings = settings_of_ranks(requests)
    replicas = len(settings) if arguments.replicas is None else arguments.replicas
    how = how_known(m.clock for m in requests.metas)
    with _folder(arguments.out) as root, _progress() as report:
        trials = FleetTrials(requests, settings, lambda id_: root / id_)

        def run(number: int, rule: str) -> dict[str, Any]:
            path = trials.run(number, rule, report=report)
            if path is None:
                raise SettingsError("the simulation was stopped.")
            return figures_of_folder(path)

        variants = [
            Variant(RECORDED, how, fleet_figures(series)),
            Variant(AS_RECORDED, "modelled", run(len(settings), AS_RECORDED)),
            *(
                Variant(rule, "modelled", run(replicas, rule))
                for rule in dict.fromkeys(("round-robin", arguments.rule))
            ),
        ]
        needed = None if goal is None else _needed(run, goal, arguments.rule, replicas)
    notes = [*series.notes, *requests.workload.report.notes, *_settings_note(settings)]
    if arguments.json:
        _print_json(series.label, arguments.rule, replicas, variants, needed, notes)
    else:
        _print(series.label, arguments.rule, variants, needed, notes)
    return 0


def parse_goal(text: str | None) -> Goal | None:
    """'no-preemption' or 'ttft-p99=2.5' -> the goal; None for None. Raises SettingsError."""
    from analyzer.fleet_routing import NO_PREEMPTION, TTFT_P99, Goal
    from traces.errors import SettingsError

    if text is None:
        return None
    kind, _, bound = text.partition("=")
    if kind == NO_PREEMPTION and not bound:
        return Goal(kind)
    try:
        if kind == TTFT_P99:
            return Goal(kind, float(bound))
    except ValueError:
        pass
    raise SettingsError(
        f"the goal {text!r} is not known. Give no-preemption, or ttft-p99=SECONDS such as ttft-p99=2."
    )


def _needed(
    run: Callable[[int, str], dict[str, Any]], goal: Goal, rule: str, start: int
) -> Needed:
    from analyzer.fleet_routing import replicas_needed

    return replicas_needed(lambda number: run(number, rule), goal, start)


def _settings_note(settings: tuple[Any, ...]) -> Iterator[str]:
    if len(set(map(repr, settings))) > 1:
        yield "The ranks differ in their settings: new splits run with those of the first."


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where simulated fleets lie: kept where the user said so. Raises SettingsError."""
    from analyzer.output import make_folder

    if out is not None:
        make_folder(out)
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as folder:
        yield Path(folder)


@contextmanager
def _progress() -> Iterator[Callable[[float, str], None]]:
    """One line on a terminal's stderr, rewritten; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, text: None
        return
    yield lambda done, text: print(f"\r{done:4.0%} {text:<60.60}", end="", file=sys.stderr)
    print("\r" + " " * 66, end="\r", file=sys.stderr)


def _print_json(
    name: str,
    rule: str,
    replicas: int,
    variants: list[Variant],
    needed: Needed | None,
    notes: list[str],
) -> None:
    found: dict[str, Any] = {
        "fleet": name,
        "replicas": replicas,
        "rule": rule,
        "variants": [
            {"key": v.key, "how": v.how, "figures": dict(v.figures)} for v in variants
        ],
        "notes": notes,
    }
    if needed is not None:
        found["needed"] = {
            "goal": str(needed.goal),
            "replicas": needed.num,
            "tried": {str(n): dict(f) for n, f in needed.tried.items()},
        }
    print(json.dumps(found, indent=2, allow_nan=False))


def _print(
    name: str, rule: str, variants: list[Variant], needed: Needed | None, notes: list[str]
) -> None:
    from analyzer.__main__ import _print_table
    from analyzer.fleet_routing import (
        needed_table,
        routing_table,
        say_fit,
        say_needed,
        say_routing,
    )

    recorded, again, *routed = variants
    print(say_routing(again, routed[-1]))
    if len(routed) > 1:
        print(say_routing(routed[0], routed[-1]))
    print(say_fit(recorded, again))
    table = routing_table(variants)
    _print_table(f"{name}: routed", table.columns, [list(row) for row in table.rows()])
    if needed is not None:
        print(say_needed(needed, rule, again.figures))
        tried = needed_table(needed)
        _print_table(
            "Replicas tried", tried.columns, [list(map(str, row)) for row in tried.rows()]
        )
    for note in notes:
        print(f"note: {note}")
