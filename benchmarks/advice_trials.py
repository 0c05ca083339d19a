"""How many simulations advice takes on the samples, and how many CPU seconds: `python benchmarks/advice_trials.py`.

Each sample on its own pool, for two goals, all levers; the core is compiled before. Prints a Markdown table.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.advice import advise
from analyzer.goals import parse_goals
from analyzer.lever_facts import facts_of
from analyzer.outcome import Outcome, outcome_of
from engine.config import EngineSettings
from engine.simulator import warm_up
from engine.trial_facts import machine_facts
from engine.trials import Trials
from traces.open import open_workload
from traces.samples.workloads import AGENTS, CHAT, LONG_OUTPUTS, SampleInfo

GOALS = (("no-preemption",), ("ttft-p99=2", "tpot-p99=0.05"))


def main() -> None:
    warm_up()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}\n")
    print("| sample | goal | state | simulations | CPU s | wall s | first answer |")
    print("|---|---|---|---:|---:|---:|---|")
    for sample in (CHAT, AGENTS, LONG_OUTPUTS):
        for goals in GOALS:
            print(_row(sample, goals), flush=True)


def _row(sample: SampleInfo, goals: tuple[str, ...]) -> str:
    workload = open_workload(f"sample:{sample.name}")
    base = EngineSettings(
        model=sample.model, device=sample.device, kv_tokens=sample.pool_tokens
    )
    goal = parse_goals(goals)
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as folder:
        trials = Trials(workload, base, lambda id_: Path(folder) / id_)

        def simulate(changes: Mapping[str, Any]) -> Outcome:
            trial = trials.run(changes)
            assert trial is not None, "nobody cancels"
            return outcome_of(changes, trial.paths, trial.num_gpu_blocks, goal.request_bounds)

        cpu_s, wall_s = time.process_time(), time.monotonic()
        advice = advise(
            simulate, facts_of(workload, machine_facts(base, workload.concurrency)), goal
        )
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    first = next(iter([*advice.answers, *advice.pairs]), None)
    said = first.sentence if first else ""
    return f"| {sample.name} | {' '.join(goals)} | {advice.state} | {advice.num_runs} | {cpu_s:.1f} | {wall_s:.1f} | {said} |"


if __name__ == "__main__":
    main()
