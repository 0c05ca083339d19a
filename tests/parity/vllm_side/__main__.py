"""Run by the interpreter that has vLLM: python -m tests.parity.vllm_side run < cases > results.

`run` reads one case a line (name, settings, rows, steps: the file to write), and answers with one
line a case; records go to the case's file, one JSON line a step. `bench` times vLLM's scheduler.
"""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import argparse
import json
import logging
import sys
import traceback
from pathlib import Path
from typing import IO, Any

EXPECTED = "0.26.0"
# Where vLLM 0.26.0 fails an assertion of its own, whoever drives it: the native connector, when a
# request is aborted whose blocks do not cover its tokens (it waits, was preempted, or is half way
# through its prompt). The steps before that still count.
OWN_FAILURES = ("_build_store_jobs",)
NO_TOTALS = {"num_steps": 0, "num_preemptions": 0}


def answers() -> IO[str]:
    """Standard output for answers only: whatever vLLM prints goes to standard error instead."""
    mine = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return mine


def run_case(case: dict[str, Any], class_name: str | None) -> dict[str, Any]:
    """One case; its totals, or the error that vLLM raised."""
    from tests.parity.vllm_side.engine import Case
    from tests.parity.vllm_side.settings import settings_from

    try:
        with Path(case["steps"]).open("w", encoding="utf-8") as handle:
            totals = Case(settings_from(case["settings"]), case["rows"], class_name).run(
                lambda record: print(json.dumps(record, separators=(",", ":")), file=handle)
            )
    except Exception as error:
        # Shown by the other side as a failure of this case; the next one starts afresh.
        last = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, AssertionError) and last.name in OWN_FAILURES:
            return {"name": case["name"], "error": None, "status": "failed", **NO_TOTALS}
        where = traceback.format_exc(limit=-4)
        return {"name": case["name"], "error": f"{type(error).__name__}: {error}\n{where}"}
    return {"name": case["name"], "error": None, **vars(totals)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--scheduler-cls", metavar="MODULE.CLASS")
    bench = commands.add_parser("bench")
    bench.add_argument("--running", type=int, nargs="+", default=[64, 256])
    bench.add_argument("--steps", type=int, default=400)
    bench.add_argument("--prompt", type=int, default=512)
    bench.add_argument("--repeat", type=int, default=3)
    bench.add_argument("--prefix-caching", choices=("on", "off", "both"), default="both")
    bench.add_argument("--async-scheduling", action="store_true")
    bench.add_argument("--scheduler-cls", metavar="MODULE.CLASS")
    args = parser.parse_args()
    out = answers()
    logging.disable(logging.WARNING)

    import vllm

    if vllm.__version__.split("+")[0] != EXPECTED:
        print(f"needs vLLM {EXPECTED}, this is {vllm.__version__}", file=sys.stderr)
        return 2
    if args.command == "bench":
        from tests.parity.vllm_side.bench import bench_lines

        for numbers in bench_lines(args):
            print(json.dumps(numbers), file=out)
        return 0
    print(json.dumps({"vllm": vllm.__version__, "python": sys.version.split()[0]}), file=out)
    for line in sys.stdin:
        print(json.dumps(run_case(json.loads(line), args.scheduler_cls)), file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
