"""Run by the interpreter that has vLLM: python -m tests.live.drive < cases > answers.

A case a line: name, settings and rows as in tests/parity, `out` (where to record), optionally
`environ` (more KV_REPLAY_ variables), `scheduler` (class), `steps` (file for the driver's own records)
`broken` (see broken.py) and `kill_at`: SIGKILL itself at that step, once a part is on disk. An answer a line: the totals, the
ids that finished, and the error.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from tests.live.broken import broken

SCHEDULER = "engine.live.vllm.RecordingScheduler"


def set_environment(out: str, more: dict[str, str]) -> None:
    for name in [n for n in os.environ if n.startswith("KV_REPLAY_")]:
        del os.environ[name]
    os.environ["KV_REPLAY_OUT"] = out
    os.environ.update(more)


def wait_for_parts(out: Path, seconds: float = 30.0) -> None:
    """Until all three tables have a part, or the time is over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if len(list(out.glob("*/*/part-00000.parquet"))) >= 3:
            return
        time.sleep(0.05)


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One case; what it came to."""
    from tests.parity.vllm_side.engine import Case
    from tests.parity.vllm_side.settings import settings_from

    set_environment(case["out"], case.get("environ", {}))
    records: list[dict[str, Any]] = []
    runner = Case(
        settings_from(case["settings"]), case["rows"], case.get("scheduler", SCHEDULER)
    )
    kill_at = case.get("kill_at")

    def look(record: dict[str, Any]) -> None:
        records.append(record)
        if record["step"] == kill_at:
            wait_for_parts(Path(case["out"]))
            os.kill(os.getpid(), signal.SIGKILL)

    totals = runner.run(look)
    runner.scheduler.shutdown()
    if "steps" in case:
        Path(case["steps"]).write_text("".join(json.dumps(r) + "\n" for r in records))
    finished = [i for r in records for i in r["finished"]]
    return {"class": type(runner.scheduler).__name__, "finished": finished, **vars(totals)}


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever vLLM prints is no answer
    logging.disable(logging.INFO)
    for line in sys.stdin:
        case = json.loads(line)
        print(f"--- {case['name']}", file=sys.stderr, flush=True)
        try:
            with broken(case.get("broken")):
                answer = {"name": case["name"], "error": None, **run(case)}
        except Exception as error:
            answer = {"name": case["name"], "error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        print(json.dumps(answer), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
