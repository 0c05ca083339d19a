"""`python -m analyzer summary DIR` and `compare DIR_A DIR_B`, as tables or as JSON.

It opens recordings, calls `summary.py` and `compare.py`, and prints. A recording that cannot be
read, or pairs that must not be compared, are one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from traces.errors import KVReplayError


def build_parser() -> argparse.ArgumentParser:
    """The parser of both commands."""
    parser = argparse.ArgumentParser(
        prog="python -m analyzer", description="Figures of recordings."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("summary", help="figures of one recording")
    one.add_argument("recording", help="folder or zip of a recording")
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
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, or 2 for what the user can mend."""
    arguments = build_parser().parse_args(argv)
    try:
        return _summary(arguments) if arguments.command == "summary" else _compare(arguments)
    except KVReplayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _summary(arguments: argparse.Namespace) -> int:
    from analyzer.summary import summarize
    from analyzer.words import label, show
    from traces.recording import open_recording

    with open_recording(arguments.recording) as recording:
        figures = summarize(recording)
        notes = list(recording.notes)
    if arguments.json:
        _print_json(figures)
        _print_notes(notes, sys.stderr)
        return 0
    rows = [[label(name), name, show(name, value)] for name, value in _flat(figures)]
    _print_table(recording.label, ["Figure", "key", "value"], rows)
    _print_notes(notes, sys.stdout)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from analyzer.compare import compare
    from analyzer.words import label, show, show_change, show_delta
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
                "notes": list(result.notes),
            }
        )
        return 0
    rows = [
        [
            label(row["metric"]),
            row["metric"],
            show(row["metric"], row["a"]),
            show(row["metric"], row["b"]),
            show_delta(row["metric"], row["delta"]),
            show_change(row["delta_frac"]),
            row["verdict"] or "",
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
        words = name in ("Figure", "key", "B is")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False, highlight=False)
    console.width = 200  # whoever has less wraps a line, which is better than figures cut off
    console.print(title)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
