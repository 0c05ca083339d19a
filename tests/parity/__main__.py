"""Command line of the parity check; see the docstring of tests/parity/__init__.py."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.parity.cases import Case, case_from_files, make_case
from tests.parity.real_traces import REAL, real_case
from tests.parity.run import (
    PYTHON_VARIABLE,
    ROOT,
    ParityError,
    VllmSide,
    run_cases,
    vllm_python,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.parity",
        description="Compare our scheduler with vLLM 0.26.0's own, decision for decision.",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, metavar="K", help="only case K of the seed")
    parser.add_argument("--cases", type=int, default=200, metavar="N", help="the first N")
    parser.add_argument("--from-case", type=int, default=0, metavar="K", help="from case K on")
    parser.add_argument("--offload", action="store_true", help="cases with a CPU pool")
    parser.add_argument("--trace", type=Path, help="a JSON-lines trace, with --settings")
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--golden", metavar="NAME", help="a case of tests/golden")
    parser.add_argument("--real", choices=sorted(REAL), help="a recorded trace")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave every file there")
    parser.add_argument("--scheduler-cls", metavar="MODULE.CLASS", help="on vLLM's side")
    return parser


def _cases(args: argparse.Namespace) -> list[Case]:
    if args.golden:
        folder = ROOT / "tests" / "golden" / args.golden
        return [case_from_files(folder / "trace.jsonl", folder / "settings.json")]
    if args.real:
        return [real_case(args.real)]
    if args.trace:
        if not args.settings:
            raise ParityError("--trace needs --settings beside it.")
        return [case_from_files(args.trace, args.settings)]
    if args.case is not None:
        return [make_case(args.seed, args.case, offload=args.offload)]
    numbers = range(args.from_case, args.from_case + args.cases)
    return [make_case(args.seed, k, offload=args.offload) for k in numbers]


def main() -> int:
    """Exit code 0: equal; 1: a difference, shown; 2: the comparison could not be made."""
    args = _parser().parse_args()
    try:
        python = vllm_python()
        if python is None:
            raise ParityError(
                f"no interpreter with vLLM: make parity, or set {PYTHON_VARIABLE}."
            )
        return _compare(args, python)
    except (ParityError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _compare(args: argparse.Namespace, python: Path) -> int:
    started = time.perf_counter()
    ends: Counter[str] = Counter()
    steps = preemptions = different = 0
    cases = _cases(args)
    with VllmSide(python, args.scheduler_cls) as side:
        for outcome in run_cases(cases, side, args.keep):
            ends[outcome.status] += 1
            steps += outcome.num_steps
            preemptions += outcome.num_preemptions
            if outcome.difference is not None:
                different += 1
                print(outcome.report() + "\n", flush=True)
    print(
        f"{sum(ends.values())} cases, {steps:,} steps, {preemptions:,} preemptions, {different} with a difference; "
        f"vLLM's ends: {dict(ends)}; {time.perf_counter() - started:.0f} s"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
