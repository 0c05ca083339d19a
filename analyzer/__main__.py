"""`python -m analyzer summary DIR`, `compare DIR_A DIR_B`, `diagnose FILE...`, `estimate FILE...`: tables or JSON;
`report` and `export`: files to share; `route`: a fleet under another router; `advise`: what reaches a goal.

It opens recordings, calls `summary.py`, `fleet.py`, `telemetry.py` and `compare.py`, and prints. A
recording that cannot be read, or pairs that must not be compared, are one sentence on stderr and
exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from traces.errors import InvariantError, KVReplayError


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of all commands. argv: what is to be parsed; only where it names `advise` are the
    engine's flags among those of that command, since they import the engine."""
    from analyzer.advise_command import add_parser as add_advise
    from analyzer.crossover_command import add_parser as add_crossover
    from analyzer.diagnose_command import add_parser
    from analyzer.estimate_command import add_parser as add_estimate
    from analyzer.report_command import add_parser as add_report
    from analyzer.route_command import add_parser as add_route
    from analyzer.validate_parser import add_parser as add_validate

    parser = argparse.ArgumentParser(
        prog="python -m analyzer", description="Figures of recordings."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "summary", help="figures of a recording, of telemetry, or of a fleet of them by rank"
    )
    one.add_argument(
        "recording", help="folder or zip of a recording, or the folder that ranks wrote into"
    )
    two = commands.add_parser(
        "compare", help="two recordings of one workload, B judged against A"
    )
    two.add_argument("a", help="folder or zip of recording A")
    two.add_argument("b", help="folder or zip of recording B")
    two.add_argument(
        "--seed", type=int, default=0, help="of the bootstrap intervals (default 0)"
    )
    two.add_argument("--anyway", action="store_true", help="compare different workloads too")
    for command in (one, two):
        command.add_argument(
            "--json", action="store_true", help="print JSON, and nothing else, to stdout"
        )
    add_parser(commands)
    add_estimate(commands)
    add_report(commands)
    add_validate(commands)
    add_route(commands)
    add_advise(commands, with_engine_flags="advise" in argv)
    add_crossover(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, or 2 for what the user can mend."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = build_parser(argv).parse_args(argv)
        if hasattr(arguments, "run"):
            return int(arguments.run(arguments))
        return _summary(arguments) if arguments.command == "summary" else _compare(arguments)
    except KVReplayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        said = str(stop) or "stopped; nothing that was recorded before has changed"
        print(said, file=sys.stderr)
        return int(getattr(stop, "exit_code", 130))
    except BrokenPipeError:  # the reader, such as `head`, has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InvariantError as error:
        print(f"internal error, please report: {error}", file=sys.stderr)
        return 3
    except (OSError, OverflowError, ValueError, MemoryError) as error:
        what = str(error).rstrip(".") or type(error).__name__
        print(f"error: {what[:300]}. Check the paths and numbers given.", file=sys.stderr)
        return 2


def _summary(arguments: argparse.Namespace) -> int:
    from analyzer.measured import is_cost_estimated
    from analyzer.summary import missing_figures, summarize
    from traces.open import FLEET, TELEMETRY, what_is
    from traces.recording import open_recording

    path, kind = what_is(arguments.recording)
    if kind == FLEET:
        return _fleet_summary(str(path), arguments.json)
    if kind == TELEMETRY:
        from analyzer.telemetry import summarize_telemetry
        from traces.telemetry import open_telemetry

        telemetry = open_telemetry(path)
        unknown = [
            f"Not known: {', '.join(names)}: {why}"
            for why, names in telemetry.missing_by_reason().items()
            if why
        ]
        derived = [f"Derived: {k}, {how}" for k, how in telemetry.inferred.items()]
        return _print_figures(
            telemetry.label,
            summarize_telemetry(telemetry),
            [*telemetry.notes, *derived, *unknown],
            arguments.json,
        )
    with open_recording(path) as recording:
        guessed = is_cost_estimated(recording)
        note = "preemption_cost_s is the engine's estimate, not measured."
        return _print_figures(
            recording.label,
            summarize(recording),
            [*recording.notes, *([note] if guessed else [])],
            arguments.json,
            missing_figures(recording.meta),
        )


def _print_figures(
    title: str,
    figures: dict[str, Any],
    notes: list[str],
    as_json: bool,
    missing: frozenset[str] = frozenset(),
) -> int:
    """Print figures as a table or as JSON. missing: those that the executor could not see."""
    from analyzer.words import NOT_RECORDED, label, show

    if as_json:
        _print_json(figures)
        _print_notes(notes, sys.stderr)
        return 0
    rows = [
        [label(k), k, NOT_RECORDED if k.split()[0] in missing else show(k, v)]
        for k, v in _flat(figures)
        if not isinstance(v, list)
    ]
    _print_table(title, ["Figure", "key", "value"], rows)
    _print_notes(notes, sys.stdout)
    return 0


_RANK_COLUMNS = (
    "num_steps",
    "duration_s",
    "num_requests",
    "max_running",
    "max_waiting",
    "num_preemptions",
    "peak_used_frac",
    "full_steps_frac",
    "recomputed_frac",
)
_TELEMETRY_COLUMNS = (
    "num_samples",
    "duration_s",
    "num_finished",
    "max_running",
    "max_waiting",
    "num_preemptions",
    "peak_used_frac",
    "full_samples_frac",
    "resumed_hit_frac",
)


def _fleet_summary(path: str, as_json: bool) -> int:
    from analyzer.fleet import summarize_fleet
    from traces.fleet import open_fleet

    fleet = open_fleet(path)
    summary = summarize_fleet(fleet)
    if as_json:
        parts = (("ranks", summary.ranks), ("telemetry", summary.telemetry))
        _print_json(
            {"fleet": fleet.label, "totals": summary.totals, **{k: list(v) for k, v in parts}}
        )
        _print_notes(list(summary.notes), sys.stderr)
        return 0
    totals = {"label": "all", "rank": None, **summary.totals}
    ranks = [*summary.ranks, *([totals] if summary.ranks else [])]
    for title, columns, members in (
        (f"{fleet.label}: recordings by rank", _RANK_COLUMNS, ranks),
        (f"{fleet.label}: telemetry by rank", _TELEMETRY_COLUMNS, list(summary.telemetry)),
    ):
        if members:
            _print_members(title, columns, members)
    _print_notes([*summary.notes, fleet.how_to_choose()], sys.stdout)
    return 0


def _print_members(title: str, columns: Sequence[str], members: list[dict[str, Any]]) -> None:
    """A row for each member; what a member has no figure for is a dash."""
    from analyzer.words import label, show

    rows = [
        [m["label"], "—" if m["rank"] is None else str(m["rank"])]
        + [show(c, m.get(c)) for c in columns]
        for m in members
    ]
    _print_table(title, ["Recording", "Rank", *(label(c) for c in columns)], rows)


def _compare(arguments: argparse.Namespace) -> int:
    from analyzer.compare import compare
    from analyzer.words import label, show_change, show_delta, show_figure, show_verdict
    from traces.recording import open_recording

    with open_recording(arguments.a) as a, open_recording(arguments.b) as b:
        result = compare(a, b, seed=arguments.seed, anyway=arguments.anyway)
    if arguments.json:
        _print_json(
            {
                "a": result.a,
                "b": result.b,
                "delta": result.delta,
                "verdict": result.verdict.text,
                "estimated": {side: sorted(names) for side, names in result.estimated.items()},
                "notes": list(result.notes),
            }
        )
        return 0
    rows = [
        [
            label(row["metric"]),
            row["metric"],
            show_figure(row["metric"], row["a"], result.missing["A"], result.estimated["A"]),
            show_figure(row["metric"], row["b"], result.missing["B"], result.estimated["B"]),
            show_delta(row["metric"], row["delta"]),
            show_change(row["delta_frac"], coarse=row["verdict"] not in ("better", "worse")),
            show_verdict(row["verdict"], row["reason"]),
        ]
        for row in result.table.iter_rows(named=True)
    ]
    print(result.verdict.text)
    if result.verdict.why:
        print(result.verdict.why)
    header = ["Figure", "key", "A", "B", "B − A", "of A", "B is"]
    _print_table(f"A: {a.label}   B: {b.label}", header, rows)
    _print_notes(list(result.notes), sys.stdout)
    return 0


def _flat(figures: dict[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in figures.items():
        if isinstance(value, dict):
            flat += [(f"{key} {inner}", v) for inner, v in value.items()]
        else:
            flat.append((key, value))
    return flat


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2, allow_nan=False))


def _print_notes(notes: list[str], stream: Any) -> None:
    for note in notes:
        print(f"note: {note}", file=stream)


def _print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=None, box=None, pad_edge=False)
    for name in header:
        words = name in ("Figure", "key", "B is", "Recording")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False, highlight=False)
    console.width = 200  # whoever has less wraps a line, which is better than figures cut off
    console.print(title)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
