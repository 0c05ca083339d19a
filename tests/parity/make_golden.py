"""Writes golden cases: a trace, settings, and what vLLM decided, for tests that run without vLLM.

    python -m tests.parity.make_golden NAME --seed 26 --case 7 --about "What it shows."
    python -m tests.parity.make_golden NAME --trace T.jsonl --settings S.json --about "..."
    python -m tests.parity.make_golden --choose 300 --seed 26      which seeded cases add breadth

Records are kept compact (compare.py) and gzipped; tests/test_golden.py reads them.
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.parity.cases import Case, case_from_files, make_case
from tests.parity.compare import theirs_compact
from tests.parity.run import ParityError, VllmSide, vllm_python

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
_LEAST_GAIN = 3  # new pairs of traits that a case must show to be chosen


def write_golden(case: Case, side: VllmSide, folder: Path, about: str) -> None:
    """Run the case on vLLM's side and put the golden case there. Raises ParityError."""
    answer, records = _decided(case, side)
    case.write(folder)
    meta = {
        "description": about,
        "vllm_version": side.versions["vllm"],
        "status": answer["status"],
        "num_steps": answer["num_steps"],
        "num_preemptions": answer["num_preemptions"],
    }
    # Without compat we refuse what can never run and what vLLM's front end refuses, and a failed
    # allocation under asynchronous offload does not cascade.
    s = case.settings
    refused = max(row["prompt_tokens"] for row in case.rows) >= s["max_model_len"]
    cascade = s.get("offload") and s["async_scheduling"]
    if answer["status"] != "completed" or refused or cascade:
        meta["fault"] = True
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    (folder / "steps.jsonl.gz").write_bytes(_packed(records))


def _decided(case: Case, side: VllmSide) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """vLLM's totals and compact records of the case."""
    (answer,) = side.answers([case])
    if answer["error"]:
        raise ParityError(f"vLLM raised an error in {case.name}: {answer['error']}")
    lines = side.steps(0).read_text(encoding="utf-8").splitlines()
    return answer, [theirs_compact(json.loads(line)) for line in lines]


def _packed(records: list[dict[str, Any]]) -> bytes:
    """The same bytes for the same records: no time, no name."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as out:
        for record in records:
            out.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    return buffer.getvalue()


def traits(case: Case, status: str, records: list[dict[str, Any]]) -> set[str]:
    """What a run shows, in words; pairs of them are what a set of golden cases should cover."""
    s = case.settings
    seen = {f"{k}={s[k]}" for k in ("policy", "clock", "block_size")} | {status}
    for name in (
        "enable_prefix_caching", "enable_chunked_prefill", "scheduler_reserve_full_isl",
        "async_scheduling", "watermark", "long_prefill_token_threshold",
    ):  # fmt: skip
        seen.add(f"{name}={bool(s[name])}")
    aborted = {i for r in records for i in r["aborted"]}
    preempted = {v[0] for r in records for v in r["preempted"]}
    segments = {row.get("prefix_hash_block") or s["block_size"] for row in case.rows}
    shown = {
        "prefix ids": any(row.get("prefix_hash_ids") for row in case.rows),
        "prefix ids of another length": bool(segments - {s["block_size"]}),
        "model length": s["max_model_len"] < 1_000,
        "aborts": bool(aborted),
        "abort of a victim": bool(aborted & preempted),
        "preemption": bool(preempted),
        "several victims": any(len(r["preempted"]) > 1 for r in records),
        "victim was scheduled": any(v[1] for r in records for v in r["preempted"]),
        "hit after preemption": any(
            a[1] == "resumed" and a[2] for r in records for a in r["admitted"]
        ),
        "hit": any(a[1] == "new" and a[2] for r in records for a in r["admitted"]),
        "finished while waiting": any(
            set(r["finished"]) & preempted - set(r["running"]) for r in records
        ),
    }
    return seen | {word for word, is_so in shown.items() if is_so}


def choose(
    seed: int, count: int, side: VllmSide, most_bytes: int = 6_000
) -> Iterator[tuple[int, int, int]]:
    """(case, its bytes, new pairs of traits) of the seeded cases that together show most pairs."""
    pairs: dict[int, set[tuple[str, ...]]] = {}
    sizes: dict[int, int] = {}
    for number in range(count):
        case = make_case(seed, number)
        answer, records = _decided(case, side)
        sizes[number] = len(_packed(records)) + len(json.dumps(case.rows))
        if sizes[number] <= most_bytes:
            words = sorted(traits(case, answer["status"], records))
            pairs[number] = set(itertools.combinations(words, 2))
    covered: set[tuple[str, ...]] = set()
    while pairs:
        best = max(pairs, key=lambda n: len(pairs[n] - covered) / (1_500 + sizes[n]))
        gained = pairs.pop(best) - covered
        if len(gained) < _LEAST_GAIN:
            return
        covered |= gained
        yield best, sizes[best], len(gained)


def main() -> int:
    """Exit code 0, or 2 with a sentence where it could not be done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--about", default="")
    parser.add_argument("--choose", type=int, metavar="N", help="among the first N cases")
    args = parser.parse_args()
    try:
        python = vllm_python()
        if python is None:
            raise ParityError("no interpreter with vLLM: make parity installs one.")
        with VllmSide(python) as side:
            if args.choose:
                for number, size, gained in choose(args.seed, args.choose, side):
                    print(f"case {number}: {size} bytes, {gained} new pairs", flush=True)
                return 0
            if args.trace:
                case = case_from_files(args.trace, args.settings)
            else:
                case = make_case(args.seed, args.case, offload=args.offload)
            write_golden(case, side, GOLDEN / args.name, args.about)
        return 0
    except (ParityError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
