"""`python -m analyzer report DIR_A [DIR_B] --out FILE` and `export DIR --out FILE`: files to share.

It reads arguments, opens recordings and says where the file lies; it computes nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the parser of `python -m analyzer`."""
    parser = commands.add_parser(
        "report",
        help="a report of one recording, or of B against A, as HTML, PNG or PDF",
        description="Writes one file that holds all it needs: HTML for reading, PNG for a chat, PDF for paper. "
        "PNG and PDF need Chromium, Chrome or Edge on this machine.",
    )
    parser.add_argument("a", metavar="DIR_A", help="folder or zip of recording A")
    parser.add_argument("b", metavar="DIR_B", nargs="?", help="folder or zip of recording B")
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


def report(arguments: argparse.Namespace) -> int:
    """Write the report; returns the exit code 0. Raises KVReplayError."""
    from analyzer import browser
    from analyzer.report import SUFFIXES, check_suffix, write_report
    from analyzer.report_contents import Ask, parse_range
    from analyzer.run import Run
    from traces.recording import open_recording

    # What can be wrong without reading a recording is said before it is read.
    if check_suffix(arguments.out, SUFFIXES) != ".html":
        browser.find()
    ask = Ask(
        arguments.title,
        arguments.notes,
        parse_range(arguments.range),
        arguments.link,
        arguments.seed,
        arguments.anyway,
    )
    with open_recording(arguments.a) as a:
        if arguments.b is None:
            out = write_report(arguments.out, Run("", a), None, ask)
        else:
            with open_recording(arguments.b) as b:
                out = write_report(arguments.out, Run("", a), Run("", b), ask)
    _say_written(out)
    return 0


def _say_written(out: Path) -> None:
    print(f"{out}: {out.stat().st_size:,} bytes", file=sys.stdout)
