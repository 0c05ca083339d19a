"""Command line: `python -m traces describe FILE... [--json]` says what files are; `pack` rewrites a recording.

Exit status: 0 when every file is a workload, recording, telemetry or fleet; 1 when one of them was refused
or is damaged (the others are described all the same); 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    if args.command == "pack":
        return _pack(args.recording, args.out)
    from traces.description import describe

    mapping = dict(args.map) or None
    found = [describe(f, mapping=mapping, time_unit=args.time_unit) for f in args.files]
    for path, one in zip(args.files, found, strict=True):
        one["file"] = path
    if args.json:
        json.dump(
            found[0] if len(found) == 1 else found, sys.stdout, indent=1, ensure_ascii=False
        )
        print()
    else:
        print("\n\n".join(as_text(one) for one in found))
    return 1 if any(one["kind"] == "refused" for one in found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m traces", description="Request traces and recordings."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("describe", help="say what files are, in figures")
    command.add_argument("files", nargs="+", metavar="FILE")
    command.add_argument(
        "--json",
        action="store_true",
        help="one JSON object, or a list of them for several files",
    )
    command.add_argument(
        "--map",
        action="append",
        type=_pair,
        default=[],
        metavar="ROLE=COLUMN",
        help="use COLUMN as arrival_s, prompt_tokens, output_tokens, ... instead of the guess",
    )
    command.add_argument(
        "--time-unit",
        choices=("s", "ms", "us", "ns", "min", "h"),
        help="unit of the arrival column",
    )
    packed = commands.add_parser(
        "pack", help="rewrite a recording with few parts, to share it: smaller, opens faster"
    )
    packed.add_argument("recording", help="folder or zip")
    packed.add_argument("out", help="new folder, or new file that ends in .zip")
    return parser


def _pack(recording: str, out: str) -> int:
    from traces.errors import KVReplayError
    from traces.pack import pack

    try:
        print(f"packed: {pack(recording, out)}")
    except KVReplayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _pair(text: str) -> tuple[str, str]:
    role, sep, column = text.partition("=")
    if not sep or not role or not column:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROLE=COLUMN")
    return role, column


def as_text(one: Mapping[str, Any]) -> str:
    """A description for people."""
    lines = [f"{printable(one['file'])}", f"  {one['kind']}: {one['format']}"]
    if one.get("reason"):
        lines += [
            f"  why    {printable(one['reason'])}",
            f"  do     {printable(one['what_to_do'])}",
        ]
    if one.get("requests") is not None:
        lines.append(f"  {one['requests']:,} requests" + _span(one))
        lines += _percentiles(one)
    if one.get("dropped"):
        said = ", ".join(f"{n:,} {r}" for r, n in one["dropped"].items())
        lines.append(f"  set aside: {said}; {one.get('replayable', 0):,} can be replayed")
    prefix = one.get("prefix")
    if prefix:
        share = prefix["ideal_prefix_hit_token_ratio"]
        lines.append(
            f"  prefixes: {prefix['distinct_blocks']:,} distinct, {share:.1%} of prompt tokens could be hits"
        )
    if one.get("columns"):
        said = ", ".join(f"{r} = {printable(c)}" for r, c in one["columns"].items())
        lines.append(f"  columns: {said}")
    if one.get("samples") is not None:
        lines += _telemetry_lines(one)
    lines += [f"  {_member_line(m)}" for m in one.get("members", ())]
    lines += [f"  note: {printable(n)}" for n in one["notes"]]
    return "\n".join(lines)


def _telemetry_lines(one: Mapping[str, Any]) -> list[str]:
    ranks = ", ".join("all together" if r is None else str(r) for r in one["ranks"])
    span = f" in {one['span_s']:,.3f} s" if one.get("span_s") is not None else ", without times"
    lines = [f"  {one['samples']:,} samples{span}, engine rank {ranks}"]
    if one.get("finished_requests") is not None:
        lines.append(f"  {one['finished_requests']:,} requests ended")
    lines.append(f"  values: {', '.join(one['values'])}")
    lines += [
        f"  inferred: {printable(k)}, {printable(how)}" for k, how in one["inferred"].items()
    ]
    for why, names in one["missing"].items():
        what = ", ".join(map(printable, names)) if why else f"{len(names)} other columns"
        lines.append(f"  missing: {what}" + (f": {printable(why)}" if why else ""))
    return lines


def _member_line(member: Mapping[str, Any]) -> str:
    rank = "rank unknown" if member["rank"] is None else f"rank {member['rank']}"
    return f"{rank}: {member['kind']} {printable(member['label'])}"


def _span(one: Mapping[str, Any]) -> str:
    if one.get("span_s") is None:
        return ""
    out = f" in {one['span_s']:,.3f} s, the first at {one['first_s']:,.6f} s ({one.get('time_unit', 's')})"
    if one.get("out_of_order"):
        out += f", {one['out_of_order']:,} out of order"
    if one.get("duplicate_timestamps"):
        out += f", {one['duplicate_timestamps']:,} share a time"
    return out


def _percentiles(one: Mapping[str, Any]) -> list[str]:
    names = ("min", "p50", "p90", "p99", "max", "mean", "sum")
    rows = [
        (w, one[k])
        for w, k in (("prompt", "prompt_tokens"), ("output", "output_tokens"))
        if one.get(k)
    ]
    if not rows:
        return []
    out = ["  tokens " + "".join(f"{n:>17}" for n in names)]
    return out + [f"  {w:<7}" + "".join(f"{v[n]:>17,.1f}" for n in names) for w, v in rows]


def printable(text: Any) -> str:
    """Text without control characters: a file's names and cells must not steer a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except BrokenPipeError:  # the reader of a pipe (head) has seen enough
        sys.stderr.close()
        raise SystemExit(141) from None
