"""`python -m analyzer estimate FILE... --out trace.jsonl`: from what a server said to a request trace.

It reads, asks `analyzer.estimate`, writes the trace and prints what it rests on. With `--fit RECORDING` (the
trace, simulated) it prints how the series of that run compare with those that were observed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.errors import SettingsError

if TYPE_CHECKING:
    from analyzer.estimate import Estimate, Fit

COLUMNS = ("request_id", "arrival_s", "prompt_tokens", "output_tokens")
FLAGS = {
    "kv_tokens": "--kv-tokens", "block_size": "--block-size", "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens", "max_model_len": "--max-model-len",
}  # fmt: skip


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m analyzer`."""
    parser = commands.add_parser(
        "estimate",
        help="a request trace that would make a server say what its logs or metrics say",
        description="Estimates arrivals and lengths from samples of usage, Running, Waiting and throughput, or "
        "takes those of reported requests; says what it assumes, and refuses what does not carry a trace.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="files of one server")
    parser.add_argument(
        "--paste", metavar="TEXT", help="pasted lines; - reads them from standard input"
    )
    parser.add_argument("--out", metavar="TRACE", help="write the requests here, as JSON lines")
    parser.add_argument(
        "--fit", metavar="RECORDING", help="compare with this recording of the trace"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the drawn lengths (default 0)")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, and nothing else, to stdout"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, estimate, write and print; returns 0. Raises KVReplayError for what carries no trace."""
    from analyzer.estimate import compare_series, estimate_workload
    from traces.evidence.reading import read_evidence
    from traces.recording import open_recording

    pasted = sys.stdin.read() if arguments.paste == "-" else arguments.paste
    if not arguments.files and pasted is None:
        raise SettingsError(
            "estimate needs a file or a paste: python -m analyzer estimate server.log --out trace.jsonl"
        )
    estimate = estimate_workload(read_evidence(arguments.files, pasted=pasted), arguments.seed)
    if arguments.out:
        write_trace(estimate, arguments.out)
    fit = None
    if arguments.fit:
        with open_recording(arguments.fit) as recording:
            fit = compare_series(estimate, recording)
    found = as_document(estimate, fit)
    if arguments.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        print(as_text(found, arguments.out))
    return 0


def write_trace(estimate: Estimate, path: str | Path) -> None:
    """The requests as JSON lines, which every command that takes a trace reads; an existing file is
    replaced once the new one is whole. Raises SettingsError where it cannot be written."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        estimate.workload.table.select(COLUMNS).write_ndjson(part)
        os.replace(part, path)
    except OSError as error:
        raise SettingsError(
            f"--out {path.name}: cannot be written ({error.strerror}). Name a file in a folder that exists."
        ) from error


def as_document(estimate: Estimate, fit: Fit | None) -> dict[str, Any]:
    """What was estimated, in plain types."""
    table = estimate.workload.table
    found: dict[str, Any] = {
        "estimated": True,
        "num_requests": len(estimate.workload),
        "span_s": round(estimate.workload.span_s, 3),
        "requests_per_s": round(len(table) / estimate.workload.span_s, 4)
        if estimate.workload.span_s
        else None,
        "prompt_mean_tokens": round(estimate.prompt_mean, 1),
        "output_mean_tokens": round(estimate.output_mean, 1),
        "assumptions": list(estimate.assumptions),
        "settings": dict(estimate.settings),
    }
    if fit is not None:
        found["fit"] = {
            name: {
                "error": error,
                "observed_mean": means[0] if (means := fit.means[name]) else None,
                "simulated_mean": means[1] if means else None,
            }
            for name, error in fit.errors.items()
        }
    return found


def as_text(found: dict[str, Any], out: str | None) -> str:
    """The document as lines of text."""
    rate = found["requests_per_s"]
    lines = [
        f"{found['num_requests']:,} requests over {found['span_s']:,.1f} s"
        + (f" ({rate:g} a second)" if rate else "")
        + f", prompts of {found['prompt_mean_tokens']:,.0f} and outputs of {found['output_mean_tokens']:,.0f} tokens "
        "on average; estimated"
    ]
    lines += [f"  assumed   {text}" for text in found["assumptions"]]
    for name, row in found.get("fit", {}).items():
        if row["observed_mean"] is None:
            continue
        error = (
            "" if row["error"] is None else f", distance {100 * row['error']:.1f} % on average"
        )
        lines.append(
            f"  fit       {name}: mean {row['observed_mean']:,.3g} observed, {row['simulated_mean']:,.3g} simulated{error}"
        )
    if out:
        flags = " ".join(f"{FLAGS[k]} {v}" for k, v in found["settings"].items())
        lines.append(
            f"  next      python -m engine simulate {out} --out run {flags} --model ... --device ..."
        )
        lines.append("            then the same command with --fit run")
    return "\n".join(lines)
