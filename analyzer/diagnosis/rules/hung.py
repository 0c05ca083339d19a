"""An engine without steps: frozen samples, or its own report of a step that does not end."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.oversize import would_fit
from analyzer.diagnosis.rules.signs import HANGS, OTHER_CAUSES, ending_faults, what_it_says
from analyzer.diagnosis.stillness import MIN_FROZEN

MEMORY_KNOBS = "gpu_memory_utilization and max_num_seqs: no capacity knob repairs an engine that takes no steps"


def find_deadlock(q: Quantities) -> Finding | None:
    still, series = q.frozen, q.main
    if still is None or series is None:
        return None
    waiting = series.waiting[still.first : still.last + 1]
    waiting = waiting[np.isfinite(waiting)]
    start, end = q.clock(series.t_s[still.first]), q.clock(series.t_s[still.last])
    before = q.clock(series.t_s[still.first - 1]) if still.first else None
    span = f" ({start} to {end})" if start else ""
    queue = (
        f", Waiting grows only by arrivals ({waiting[0]:.0f} to {waiting[-1]:.0f})"
        if len(waiting)
        else ""
    )
    proofs = [
        Proof(
            f"For {times(still.num, 'sample')}{span} Running stays {still.running}, usage stays "
            f"{percent(still.usage)} and both throughputs are 0{queue}",
            {"samples": still.num, "running": still.running, "usage_frac": still.usage},
            series.lines(still.first, still.last),
        )
    ]
    if before and start:
        proofs.append(
            Proof(
                f"The last step was between {before} and {start}",
                {},
                series.lines(still.first - 1, still.first),
            )
        )
    if still.usage >= 0.9:
        proofs.append(
            Proof(
                f"At {percent(still.usage)} with {still.running} running the pool was also near its limit, which made "
                "the queue before the engine stopped, not the stop",
                {"usage_frac": still.usage},
            )
        )
    return Finding(
        "ENGINE_DEADLOCK",
        "high" if still.num >= MIN_FROZEN else "medium",
        f"The engine takes no steps: Running {still.running}, usage {percent(still.usage)} and zero throughput are "
        f"frozen for {times(still.num, 'sample')}{span}.",
        tuple(proofs),
        (
            Step(
                "take a stack dump of the engine process (py-spy dump --pid ENGINE) while it stands, then restart it",
                "names the collective, kernel or lock that it waits for",
            ),
            Step(
                "upgrade or change the execution options that the stack names",
                "the version's fault is avoided",
            ),
        ),
        (MEMORY_KNOBS,),
        (),
        (Missing("why it stands", "the stack of every engine process and worker"),),
        {
            "stalled_samples": still.num,
            "running_during_stall": still.running,
            "pending_during_stall": [int(waiting.min()), int(waiting.max())]
            if len(waiting)
            else None,
            "waiting_during_stall": [int(waiting.min()), int(waiting.max())]
            if len(waiting)
            else None,
            "kv_usage_during_stall": round(100 * still.usage, 2),
            "stall_from": start,
            "stall_to": end,
            "last_step_between": [before, start],
        },
    )


def find_nobody_admitted(q: Quantities) -> Finding | None:
    """Requests wait before an empty pool in which each of them fits."""
    still, series, why = q.starved, q.main, would_fit(q)
    if still is None or series is None or why is None:
        return None
    waiting = series.waiting[still.first : still.last + 1]
    deferred = np.nan_to_num(series.col("num_deferred")[still.first : still.last + 1])
    if np.nanmax(waiting - deferred) <= 0:
        return None
    start = q.clock(series.t_s[still.first]) or f"sample {still.first + 1}"
    most = int(np.nanmax(waiting))
    external = series.has("external_hit_frac") or bool(
        q.evidence.all_notices("connector", "cannot_store")
    )
    look = " and of the KV connector, whose loads hold requests back" if external else ""
    text = f"from {start} on none runs and {most} wait before a pool at {percent(still.usage)}"
    return Finding(
        "ENGINE_DEADLOCK",
        "high",
        f"The scheduler admits nobody: {text}, and none of them is too long: {why}.",
        (
            Proof(
                text[0].upper() + text[1:],
                {"waiting": most, "samples": still.num, "usage_frac": still.usage},
                series.lines(still.first, still.last),
            ),
            Proof(
                f"Each of them fits: {why}",
                {},
                (
                    *series.lines(max(still.first - 1, 0)),
                    *q.lines("max_model_len", "max_concurrency_tokens", "pool_tokens"),
                ),
            ),
        ),
        (
            Step(
                f"restart it, and look at the log of the scheduler{look}",
                "the queue moves again until the same state comes back",
            ),
            Step(
                "the same load without the KV connector (or without prefix caching), and a newer version",
                "tells which part holds the requests back",
            ),
        ),
        (MEMORY_KNOBS, "--max-model-len: each request fits"),
        ("that the scheduler is at fault: who waits fits, and nothing runs",),
        (Missing("why it admits nobody", "the log at DEBUG, and a stack dump of the engine"),),
        {"waiting_at_stall": most, "stall_from": q.clock(series.t_s[still.first])},
    )


def exclude_deadlock(q: Quantities) -> str | None:
    if q.main is None or not q.has("generation"):
        return None
    made = q.main.generation[np.isfinite(q.main.generation)]
    if len(made) and made[-1] > 0:
        return f"the last sample still generates {made[-1]:,.1f} tokens/s"
    return None


def find_hang_report(q: Quantities) -> Finding | None:
    """An error of the engine that says that a step or a process does not come back."""
    faults = [n for n in ending_faults(q) if HANGS.search(what_it_says(n))]
    if not faults or q.frozen is not None:
        return None
    what = what_it_says(faults[0])[:160]
    return Finding(
        "ENGINE_DEADLOCK",
        "high",
        f"The engine reports that a step does not end: {what}".rstrip(".") + ".",
        (
            Proof(
                f"{times(len(faults), 'line')} of a hang: {what}",
                {"lines": len(faults)},
                tuple(n.at for n in faults[:3]),
            ),
        ),
        (
            Step(
                "take a stack dump of the engine and its workers while it stands, then restart it",
                "names the collective, kernel or lock that it waits for",
            ),
        ),
        (MEMORY_KNOBS,),
        (),
        (Missing("why it stands", "the stack of every engine process and worker"),),
        {"fatal": what},
    )


RULES = (
    Rule(
        "frozen-engine",
        "ENGINE_DEADLOCK",
        10,
        ("usage", "running", "generation"),
        find_deadlock,
        "Preemption always changes something: Running falls, usage drops, the others decode on. Frozen Running, frozen "
        "usage and zero throughput for three samples are an engine without steps.",
        "vllm#2731",
        exclude_deadlock,
        (*OTHER_CAUSES, "CAPACITY_PREEMPTION", "THRASH_PREFILL_READMIT", "ENGINE_BUG"),
    ),
    Rule(
        "admits-nobody",
        "ENGINE_DEADLOCK",
        12,
        ("running", "waiting"),
        find_nobody_admitted,
        "A queue before an empty pool in which each of those that wait fits: the longest that is allowed fits, or they "
        "ran together a moment before.",
        "vllm#45387, #45414, #42371, #37308",
        None,
        (*OTHER_CAUSES, "ENGINE_BUG", "CAPACITY_PREEMPTION", "OVERSIZE_REQUEST"),
    ),
    Rule(
        "step-reported-hung",
        "ENGINE_DEADLOCK",
        11,
        (),
        find_hang_report,
        "A time-out of a step or of shared memory between processes is a worker that does not come back, at any usage.",
        "vllm/distributed/device_communicators/shm_broadcast.py, vllm-ascend#5859",
        None,
        (*OTHER_CAUSES, "ENGINE_BUG", "CAPACITY_PREEMPTION"),
    ),
)
