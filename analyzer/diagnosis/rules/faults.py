"""A fault of the engine: silence where its first preemption was due, or an error that ended it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from analyzer.diagnosis.advice import (
    cap_running,
    present,
)
from analyzer.diagnosis.capping import cost_of_cap
from analyzer.diagnosis.findings import KNOWN, Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.signs import (
    OTHER_CAUSES,
    ending_faults,
    near_wall,
    silence_proof,
    what_it_says,
)
from traces.evidence.evidence import Notice


def find_bug(q: Quantities) -> Finding | None:
    """Silence where the first victim was due, with others that could run on; or an error of the engine."""
    faults = ending_faults(q)
    series = q.main
    if series is None:
        return _fault(q, faults) if faults else None
    at = series.valid(series.usage, series.running)
    if not len(at):
        return _fault(q, faults) if faults else None
    last = int(at[-1])
    wall = near_wall(q, last) and series.running[last] > 1
    if faults:
        return _fault(q, faults)
    if not wall or not q.silent_end or _went_on(q, float(series.t_s[last])):
        return None
    proofs = []
    facts: dict[str, object] = {
        "trigger": "CAPACITY_PREEMPTION",
        "stats_silent_after": q.clock(series.t_s[last]),
    }
    running = int(series.running[last])
    steps = [
        Step(
            "keep the wall away and upgrade, then test again",
            "a correct engine evicts and goes on",
        ),
    ]
    stairs = q.stairs
    if stairs is not None:
        free = stairs.blocks * (1 - float(series.usage[last]))
        proofs.append(
            Proof(
                f"Usage is a staircase of {100 * stairs.step_frac:.1f} %: {stairs.running} requests need a block together; about "
                f"{free:.0f} of {stairs.blocks:.0f} blocks are free and the next stair wants {stairs.running}",
                {
                    "step_frac": round(stairs.step_frac, 4),
                    "free_blocks": round(free),
                    "needed": stairs.running,
                },
                series.lines(*stairs.edges[-2:]),
            )
        )
        facts |= {
            "blocks_needed_next_step": stairs.running,
            "blocks_free_before": [math.floor(free), math.ceil(free)],
        }
        short = max(stairs.running - int(free), 1)
        facts["safe_concurrency"] = stairs.running - short
        steps.insert(
            0,
            Step(
                f"at most {stairs.running - short} parallel requests of this length, or {short} blocks more",
                "the next stair fits and the wall is not met"
                + cost_of_cap(q, stairs.running - short, thrash=True),
                {"max_num_seqs": stairs.running - short, "blocks": short},
            ),
        )
    else:
        proofs.append(
            Proof(
                f"{running} requests run at {percent(float(series.usage[last]))} in the last sample"
                + (f", full at about {q.clock(q.wall.at_s)}" if q.wall else ""),
                {"running": running, "usage_frac": float(series.usage[last])},
                series.lines(last),
            )
        )
    return Finding(
        "ENGINE_BUG",
        "high",
        f"The engine goes silent where its first preemption was due ({percent(float(series.usage[last]))}, {running} running): the "
        "wall is the trigger, the preemption path is the fault.",
        (*proofs, *silence_proof(q)),
        (*steps, *present(cap_running(q))),
        ("a larger pool alone: it only puts the wall off",),
        ("the cause: the silence begins where the wall is expected",),
        (
            Missing(
                "what the engine does",
                "a stack dump of the engine process, and its log at the end",
            ),
        ),
        facts,
    )


NEAR_S, NEAR_LINES = 5.0, 8
_VAGUE = re.compile(
    r"background task failed|encountered a|hit an exception|failed to start", re.I
)


def _cause(faults: Sequence[Notice]) -> Notice:
    """The line that names the error; the first where none does. Engines report that they failed, and the last
    line of a traceback says why."""
    named = [
        n
        for n in faults
        if re.search(r"\w(?:Error|Exception)\b", what_it_says(n))
        and not re.search(r"DeadError", what_it_says(n))
    ]
    clear = [n for n in faults if not _VAGUE.search(what_it_says(n))]
    if _VAGUE.search(what_it_says(faults[0])):
        return (named or clear or list(faults))[0]
    return faults[0]


def _just_before(notice: Notice, fault: Notice) -> bool:
    """Whether it happened just before the fault: in time, or a few lines above where a line has none."""
    if notice.t_s is not None and fault.t_s is not None:
        return 0 <= fault.t_s - notice.t_s <= NEAR_S
    same = notice.at.source == fault.at.source
    return same and 0 <= fault.at.number - notice.at.number <= NEAR_LINES


def _went_on(q: Quantities, last_s: float) -> bool:
    """Whether the engine preempted before the last sample and went on: then its preemption path works."""
    p = q.preemptions
    return p.kind == KNOWN and p.some and p.first_s is not None and p.first_s < last_s - 1


def _fault(q: Quantities, faults: Sequence[Notice]) -> Finding | None:
    what = what_it_says(_cause(faults))[:200]
    near = [
        n
        for n in q.evidence.all_notices("preemption", "swap_out", "retract")
        if _just_before(n, faults[0])
    ]
    full = q.max_usage is not None and q.max_usage >= 0.95
    trigger = ""
    if near:
        first, last = faults[0].t_s, near[-1].t_s
        timed = first is not None and last is not None
        apart = f"within {(first or 0.0) - (last or 0.0):.1f} s of" if timed else "right after"
        trigger = f" {apart} a preemption"
    facts: dict[str, object] = {"fatal": what}
    if near or full:
        facts["trigger"] = "CAPACITY_PREEMPTION"
    return Finding(
        "ENGINE_BUG",
        "high",
        f"The engine failed by an error{trigger}: {what}"[:300].rstrip(".") + ".",
        (
            Proof(
                f"{times(len(faults), 'error line')}{trigger}",
                {"errors": len(faults)},
                tuple(n.at for n in faults[:3]),
            ),
        ),
        (
            Step(
                "upgrade, and report the error with these lines",
                "a full pool must never end an engine",
            ),
        ),
        ("memory knobs: they change when it happens, not whether",),
        (),
        (Missing("the version", "the start-up line with the engine's version"),)
        if not q.word("version")
        else (),
        facts,
    )


RULES = (
    Rule(
        "silent-at-wall",
        "ENGINE_BUG",
        30,
        (),
        find_bug,
        "Statistics stop where the first victim is due although others could run on, or an error ends the engine: the wall "
        "triggers it, the engine's preemption path is at fault.",
        "vllm-ascend#2245, vllm#8219, #9272, #16832",
        None,
        OTHER_CAUSES,
    ),
)
