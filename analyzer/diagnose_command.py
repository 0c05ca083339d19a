"""`python -m analyzer diagnose FILE... [--paste -] [--json]`: from files or a paste to a verdict.

It reads, asks `analyzer.diagnosis` and prints; it judges nothing. With `--paste -` lines are read from
stdin, or the text after --paste is taken.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from traces.errors import SettingsError

if TYPE_CHECKING:
    from analyzer.diagnosis.findings import Diagnosis
    from traces.evidence.evidence import Line

WIDTH = 100


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m analyzer`."""
    parser = commands.add_parser(
        "diagnose",
        help="a verdict on logs, metrics, tables and notes of a server, or on a recording",
        description="Reads what production gave (logs of any of nine engines, Prometheus text, tables, "
        "start-up lines, flags) and says whether the KV cache is to blame, with proofs.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="files of one server")
    parser.add_argument(
        "--paste", metavar="TEXT", help="pasted lines; - reads them from standard input"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, and nothing else, to stdout"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, diagnose and print; returns the exit code 0. Raises KVReplayError for what cannot be read."""
    found = _diagnose(arguments)
    if arguments.json:
        print(json.dumps(found.as_json(), indent=2, allow_nan=False))
    else:
        print(as_text(found))
    return 0


def _diagnose(arguments: argparse.Namespace) -> Diagnosis:
    from analyzer.diagnosis import diagnose
    from traces.evidence.reading import read_evidence
    from traces.paths import FOLDER, path_kind

    pasted = sys.stdin.read() if arguments.paste == "-" else arguments.paste
    if not arguments.files and pasted is None:
        raise SettingsError(
            "diagnose needs a file or a paste: python -m analyzer diagnose server.log, or "
            "pbpaste | python -m analyzer diagnose --paste -"
        )
    one = len(arguments.files) == 1 and pasted is None
    if one and path_kind(Path(arguments.files[0]))[0] == FOLDER:
        from analyzer.diagnosis.recording import diagnose_folder

        return diagnose_folder(arguments.files[0])
    return diagnose(read_evidence(arguments.files, pasted=pasted, progress=Progress()))


class Progress:
    """A line on stderr every few seconds while bytes are read; nothing for what is read sooner."""

    def __init__(self, every_s: float = 5.0) -> None:
        self.every_s = every_s
        self.start_s = self.said_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.said_s < self.every_s:
            return
        self.said_s = now
        rate = done / (now - self.start_s)
        left = f", {(total - done) / rate:,.0f} s left" if rate > 0 else ""
        print(
            f"read {done / 1e6:,.0f} of {total / 1e6:,.0f} MB ({rate / 1e6:,.1f} MB/s{left})",
            file=sys.stderr,
        )


def as_text(found: Diagnosis) -> str:
    """The diagnosis as lines of text: the verdict first, each proof with its lines."""
    parts = [f"{v.word} ({v.severity}): {v.statement}" for v in found.verdicts]
    parts.append("")
    for proof in found.proofs:
        where = ", ".join(_place(at) for at in proof.lines[:4])
        parts.append(f"  proof     {proof.sentence}" + (f"  [{where}]" if where else ""))
    parts += [f"  excluded  {word}: {why}" for word, why in found.excluded.items()]
    parts += [f"  inferred  {what}: {how}" for what, how in found.inferred.items()]
    parts += [f"  missing   {m.what}; to settle it: {m.settle}" for m in found.missing]
    step = found.next_step
    parts.append(f"  next      {step.first.change}: {step.first.effect}")
    parts += [f"  or        {s.change}: {s.effect}" for s in step.alternatives]
    parts += [f"  no help   {text}" for text in step.useless]
    parts += [f"  note      {text}" for text in found.notes]
    parts.append("")
    parts += [
        f"  {name:32} {_short(value)}"
        for name, value in found.facts.items()
        if _shown(name, value)
    ]
    return "\n".join(parts)


def _place(at: Line) -> str:
    """Where something was read: 'server.log:4', or 'metrics.txt:3-24' where it stands on several lines."""
    return f"{at}-{at.number + at.num_lines - 1}" if at.num_lines > 1 else str(at)


_LONG = ("parts", "per_rank", "usage", "running", "waiting", "stats_gaps")
_COUNTED = (
    "preemptions_logged", "warnings", "warnings_printed", "oversize_rejected", "retract_events",
    "retracted_requests", "resumed_events", "swap_out_events", "swap_in_events",
)  # fmt: skip


def _shown(name: str, value: object) -> bool:
    """Long lists, and lines that were looked for and not there, are in the JSON only."""
    if name in _COUNTED and value == 0:
        return False
    return name not in _LONG and value not in (None, [], {}, "")


def _short(value: object) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
    text = (
        f"{value:,}"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value)
    )
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
