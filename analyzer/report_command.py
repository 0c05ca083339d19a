"""`python -m analyzer report DIR_A [DIR_B [DIR_C]] --out FILE` and `export DIR --out FILE`: files to share.

It reads arguments, opens recordings and says where the file lies; it computes nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzer.look import Side
    from analyzer.run import Run


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the parser of `python -m analyzer`."""
    parser = commands.add_parser(
        "report",
        help="a report of one recording, or of B, or B and C, against A, as HTML, PNG or PDF",
        description="Writes one file that holds all it needs: HTML for reading, PNG for a chat, PDF for paper. "
        "PNG and PDF need Chromium, Chrome or Edge on this machine.",
    )
    parser.add_argument("a", metavar="DIR_A", help="folder or zip of recording A")
    parser.add_argument("b", metavar="DIR_B", nargs="?", help="folder or zip of recording B")
    parser.add_argument("c", metavar="DIR_C", nargs="?", help="folder or zip of recording C")
    parser.add_argument("--out", required=True, type=Path, help="FILE.html, .png or .pdf")
    parser.add_argument(
        "--title", default="", help="of the report; by default what the runs are"
    )
    parser.add_argument("--notes", default="", help="plain text under the title")
    parser.add_argument(
        "--range", metavar="FROM:TO", help="seconds that timeline and preemptions are of"
    )
    parser.add_argument("--link", default="", help="address of the page that shows the same")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the bootstrap intervals (default 0)"
    )
    parser.add_argument("--anyway", action="store_true", help="compare different workloads too")
    parser.set_defaults(run=report)
    _add_export(commands)


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        help="one to three recordings as a Perfetto trace, Parquet, CSV or zip",
        description="Writes FILE.perfetto-trace (for ui.perfetto.dev), one table as .parquet or .csv, or all tables as .zip.",
    )
    parser.add_argument("a", metavar="DIR", help="folder or zip of a recording")
    parser.add_argument("b", metavar="DIR_B", nargs="?", help="a second one beside it")
    parser.add_argument("c", metavar="DIR_C", nargs="?", help="a third one beside them")
    parser.add_argument(
        "--out", required=True, type=Path, help="FILE.perfetto-trace, .parquet, .csv or .zip"
    )
    parser.add_argument(
        "--table",
        default="steps",
        help="of a .parquet or .csv: steps (default), events, requests, blocks or preemptions",
    )
    parser.add_argument("--range", metavar="FROM:TO", help="seconds to export; all by default")
    parser.set_defaults(run=export)


def report(arguments: argparse.Namespace) -> int:
    """Write the report; returns the exit code 0. Raises KVReplayError."""
    from analyzer import browser
    from analyzer.output import check_suffix, refuse_inside
    from analyzer.report import SUFFIXES, write_report
    from analyzer.report_contents import Ask, parse_range

    # What can be wrong without reading a recording is said before it is read.
    if check_suffix(arguments.out, SUFFIXES) != ".html":
        browser.find()
    refuse_inside(arguments.out, (arguments.a, arguments.b, arguments.c))
    ask = Ask(
        arguments.title,
        arguments.notes,
        parse_range(arguments.range),
        arguments.link,
        arguments.seed,
        arguments.anyway,
    )
    with _runs(arguments) as runs:
        write_report(arguments.out, runs["A"], runs.get("B"), ask, c=runs.get("C"))
    _say_written(arguments.out)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write the trace or the data; returns the exit code 0. Raises KVReplayError."""
    from analyzer.exports import SUFFIXES, write_export
    from analyzer.output import check_suffix, refuse_inside
    from analyzer.report_contents import parse_range

    check_suffix(arguments.out, SUFFIXES)
    refuse_inside(arguments.out, (arguments.a, arguments.b, arguments.c))
    part = parse_range(arguments.range)
    with _runs(arguments) as runs:
        notes = write_export(arguments.out, runs, part, arguments.table)
    _say_written(arguments.out)
    for note in notes:
        print(f"note: {note}")
    return 0


@contextmanager
def _runs(arguments: argparse.Namespace) -> Iterator[dict[Side, Run]]:
    """The recordings that were named, opened; tables of long ones lie on the disk meanwhile, so that
    memory does not grow with them. Raises RecordingError."""
    from analyzer.run import Run
    from traces.mapped_tables import Keep
    from traces.recording import open_recording

    paths = {"A": arguments.a, "B": arguments.b, "C": arguments.c}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_room()))
        yield {
            side: Run(  # type: ignore[misc]  # its keys are the three sides
                f"given:{side}",
                stack.enter_context(open_recording(path, keep=Keep(folder / side))),
            )
            for side, path in paths.items()
            if path is not None
        }


def _room() -> tempfile.TemporaryDirectory[str]:
    """A folder for tables, gone at the end: where the page keeps them, which tidies up after a command
    that was killed; else where the system puts such things."""
    from analyzer.pages.parts.store import default_root

    folder = default_root() / "tables"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(
            prefix="kv-replay-", dir=folder, ignore_cleanup_errors=True
        )
    except OSError:
        return tempfile.TemporaryDirectory(prefix="kv-replay-", ignore_cleanup_errors=True)


def _say_written(out: Path) -> None:
    print(f"{out}: {out.stat().st_size:,} bytes", file=sys.stdout)
