"""Nothing moves: an engine without steps, a request that can never fit, a fault at the wall, a full host."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from analyzer.diagnosis.advice import cap_running, present, remove_override
from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.series import Series
from traces.evidence.evidence import Line, Notice, Value

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
        "high",
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


def exclude_deadlock(q: Quantities) -> str | None:
    if q.main is None or not q.has("generation"):
        return None
    made = q.main.generation[np.isfinite(q.main.generation)]
    if len(made) and made[-1] > 0:
        return f"the last sample still generates {made[-1]:,.1f} tokens/s"
    return None


def _servable(q: Quantities) -> int | None:
    """Tokens that one request alone can have: the pool without state blocks, and without the null block
    where one is stated; a printed size in tokens is taken as it is."""
    state = int(q.number("state_blocks") or 0)
    counted = q.number("pool_tokens") is None or q.number("null_blocks") is not None or state
    if counted and q.pool.usable_blocks and q.pool.block_size:
        return (q.pool.usable_blocks - state) * q.pool.block_size
    return q.pool.tokens


def _asked(q: Quantities) -> int | None:
    """Tokens of the largest request that is stated, its output included."""
    return q.lengths.total()


def find_starved(q: Quantities) -> Finding | None:
    """Requests wait, none runs, and the pool is empty."""
    still, series = q.starved, q.main
    if still is None or series is None:
        return None
    deferred = series.col("num_deferred")[still.first : still.last + 1]
    waiting = series.waiting[still.first : still.last + 1]
    if np.nansum(deferred) and np.nanmax(waiting - np.nan_to_num(deferred)) <= 0:
        return None
    servable, asked = _servable(q), _asked(q)
    limit = q.number("max_model_len")
    if servable and limit and limit <= servable and not (asked and asked > servable):
        return None
    size = q.pool.block_size or 16
    most = int(np.nanmax(waiting))
    start = q.clock(series.t_s[still.first]) or _place(series, still.first)
    facts: dict[str, object] = {"waiting_at_stall": most, **_stall_times(q, still.first)}
    proofs = [
        Proof(
            f"From {start} on none runs, {most} wait and usage is {percent(still.usage)}: the head of the queue is not "
            "admitted into an empty pool",
            {"waiting": most, "samples": still.num},
            series.lines(still.first, still.last),
        )
    ]
    if q.preemptions.some and q.preemptions.lines:
        facts["waiting_steps_after"] = still.last - still.first
        made = series.col("generation_tokens_total")[: still.first]
        if np.isfinite(made).any():
            facts["output_tokens_before_wall"] = int(np.nanmax(made))
        proofs.append(
            Proof(
                f"It ran before and lost its blocks ({q.preemptions.text()} preempted), its own victim: a low counter that does not "
                f"rise is no sign of health; it waits in {times(still.last - still.first, 'sample')} after that",
                {"preemptions": q.preemptions.low, "waiting_after": still.last - still.first},
                q.preemptions.lines[:2],
            )
        )
    for gap in q.gaps:
        if gap.before >= still.first and gap.before <= still.last + 1:
            end = f", until {gap.ended_by.kind.replace('_', ' ')}" if gap.ended_by else ""
            proofs.append(
                Proof(
                    f"No statistics for {gap.length_s:.0f} s after that{end}: the silence is the stall itself",
                    {"gap_s": round(gap.length_s)},
                    series.lines(gap.before, *([gap.after] if gap.after is not None else [])),
                )
            )
            break
    text = f"none of {most} waiting requests starts in an empty pool"
    steps: list[Step] = []
    if servable and asked and asked > servable:
        short = asked - servable
        blocks = -(-short // size)
        facts |= {
            "shortfall_tokens": short,
            f"shortfall_blocks_of_{size}": blocks,
            "servable_tokens": servable,
            "request_total_tokens": asked,
        }
        text = f"a request of {asked:,} tokens can never fit {servable:,}: {short:,} tokens ({times(blocks, 'block')} of {size}) short"
        proofs.append(
            Proof(
                f"{asked:,} tokens asked, {servable:,} can be served",
                {"asked": asked, "servable": servable, "short": short},
                q.lines("pool_tokens", "pool_blocks", "prompt_tokens"),
            )
        )
        need = _least_blocks(q, asked)
        if need:
            facts["min_blocks"] = need
        steps.append(
            Step(
                f"a pool of at least {asked:,} tokens"
                + (f" ({need:,} blocks)" if need else ""),
                f"x {asked / servable:.3g} of this one lets it finish",
                {"pool_tokens": asked, "times": round(asked / servable, 3), "min_blocks": need},
            )
        )
    elif servable and limit and limit > servable:
        proofs.append(_warning(q, servable, limit))
        text += f"; max_model_len {limit:,.0f} is above the pool's {servable:,} tokens"
    first = _limit_step(servable)
    gate = Step(
        "--no-scheduler-reserve-full-isl, for hybrid models only",
        "admits by real use; the printed size of a hybrid model counts too much",
    )
    return Finding(
        "OVERSIZE_REQUEST",
        "high",
        f"The head of the queue can never run here: {text}.",
        tuple(proofs),
        (*present(first), *steps, *((gate,) if q.is_v1 and not q.has("steps") else ())),
        (
            "more swap space, another victim rule or a watermark: there is no other request to evict",
            "max_num_seqs: nothing runs",
        ),
        ()
        if servable and asked and asked > servable
        else ("that the head of the queue is too long: nothing runs in an empty pool",),
        _what_was_asked(servable, asked),
        facts,
    )


def _place(series: Series, index: int) -> str:
    step = series.col("step")[index]
    return f"step {step:.0f}" if np.isfinite(step) else f"sample {index}"


def _stall_times(q: Quantities, first: int) -> dict[str, object]:
    series = q.main
    if series is None or not series.timed:
        return {}
    last = float(np.nanmax(series.t_s))
    after = next((g for g in q.gaps if g.before >= first), None)
    running = np.flatnonzero((series.running > 0) & (np.arange(len(series)) > first))
    end = float(series.t_s[running[0]]) if len(running) else last
    start = float(series.t_s[first])
    aborts = [
        n.t_s
        for n in q.evidence.all_notices("request_aborted", "killed", "request_finished")
        if n.t_s is not None and start < n.t_s <= max(end, after.to_s if after else end)
    ]
    end = aborts[0] if aborts else end
    facts: dict[str, object] = {"stall_from": q.clock(start), "stall_to": q.clock(end)}
    if after is not None:
        facts["stats_gap_s"] = round(after.length_s)
    return facts


def _least_blocks(q: Quantities, tokens: int) -> int | None:
    if not q.pool.block_size or q.pool.usable_blocks is None or q.pool.blocks is None:
        return None
    state = int(q.number("state_blocks") or 0)
    return q.pool.blocks_for(tokens) + state + int(q.number("null_blocks") or 0)


def _limit_step(servable: int | None) -> Step | None:
    if servable is None:
        return Step(
            "--max-model-len at most the pool's tokens", "too long a request is refused at once"
        )
    return Step(
        f"--max-model-len {servable}",
        "the request is refused at once with a clear error instead of stopping the queue",
        {"max_model_len": servable},
    )


def _warning(q: Quantities, servable: int, limit: float) -> Proof:
    return Proof(
        f"max_model_len / pool = {limit / servable:.2f}: any request between {servable:,} and {limit:,.0f} tokens does this",
        {"times": round(limit / servable, 2)},
        q.lines("max_model_len", "pool_tokens"),
    )


def _what_was_asked(servable: int | None, asked: int | None) -> tuple[Missing, ...]:
    found = []
    if servable is None:
        found.append(
            Missing(
                "the size of the pool",
                "the start-up line 'GPU KV cache size' or '# GPU blocks'",
            )
        )
    if asked is None:
        found.append(
            Missing(
                "the length of the request at the head",
                "prompt and max output tokens of the first waiting request",
            )
        )
    return tuple(found)


def find_outgrown(q: Quantities) -> Finding | None:
    """One running request grows into the wall, and then there is silence or it evicts itself."""
    series = q.main
    if series is None:
        return None
    at = series.valid(series.usage, series.running)
    if len(at) < 2:
        return None
    last = int(at[-1])
    alone = series.running[last] == 1 and (
        np.nan_to_num(series.waiting[last]) == 0 or q.silent_end
    )
    if not alone or not q.silent_end or not _near_wall(q, last):
        return None
    wall = q.wall
    tokens = q.pool.tokens
    rate = float(series.generation[last]) if np.isfinite(series.generation[last]) else None
    proofs = [
        Proof(
            f"One request runs, usage rises to {percent(float(series.usage[last]))}"
            + (
                f" and {tokens * (1 - float(series.usage[last])):,.0f} tokens are left"
                if tokens
                else ""
            )
            + (f" ({wall.how}): full at about {q.clock(wall.at_s)}" if wall else ""),
            {"usage_frac": float(series.usage[last]), "generation_per_s": rate},
            series.lines(int(at[0]), last),
        ),
        *_silence_proof(q),
    ]
    if q.pool.checks:
        proofs.append(
            Proof(
                "The pool was checked: " + "; ".join(q.pool.checks),
                {"pool_tokens": tokens},
                q.pool.lines,
            )
        )
    inferred = ["that the one request is the one that stops: nobody else runs"]
    if rate and rate > 150:
        inferred.append(
            f"{rate:.0f} tokens/s from one request: it very likely has several sequences (n or best_of), which V0 swaps; "
            "with nobody else to evict it swaps itself out and cannot come back: likely, not proven"
        )
    bound = f"{tokens:,}" if tokens else "the pool's"
    slope = q.slope
    return Finding(
        "OVERSIZE_REQUEST",
        "high",
        f"One running request outgrew the pool at {percent(float(series.usage[last]))}, and nobody else can be evicted for it.",
        tuple(proofs),
        (
            Step(
                f"bound the request: (prompt + max_tokens) x n <= {bound} tokens: lower n, best_of, max_tokens or --max-model-len",
                "it ends before the wall",
                {"max_tokens_in_all": tokens},
            ),
            Step("upgrade", "newer versions refuse or recompute it"),
        ),
        ("more --swap-space: the request alone needs more blocks than exist",),
        tuple(inferred),
        ()
        if q.lengths.total()
        else (
            Missing(
                "prompt, max_tokens and n of the running request", "its 'Received request' line"
            ),
        ),
        {
            "growth_tokens_per_s": [round(slope.generated / _span(q), 1)] * 2
            if slope and _span(q)
            else None
        },
    )


def _span(q: Quantities) -> float:
    if q.slope is None or q.main is None:
        return 0.0
    return float(q.main.t_s[q.slope.last] - q.main.t_s[q.slope.first])


def _near_wall(q: Quantities, last: int) -> bool:
    """Whether the pool was full, or would be within three usual periods after that sample."""
    series = q.main
    if series is None:
        return False
    if series.usage[last] >= 0.985:
        return True
    if q.wall is None or q.wall.observed is not None or not q.period_s:
        return False
    return (
        series.usage[last] >= 0.7 and q.wall.low_s - float(series.t_s[last]) <= 3 * q.period_s
    )


def _silence_proof(q: Quantities) -> tuple[Proof, ...]:
    found = []
    for gap in q.gaps[-1:]:
        until = (
            f" until {gap.ended_by.kind.replace('_', ' ')} at {q.clock(gap.to_s)}"
            if gap.ended_by
            else ""
        )
        lines = q.main.lines(gap.before) if q.main is not None else ()
        found.append(
            Proof(
                f"No statistics for {gap.length_s:.0f} s after {q.clock(gap.from_s)}{until}, usually every "
                f"{q.period_s:.0f} s: a gap, not to be joined by a line",
                {"gap_s": round(gap.length_s), "usual_s": q.period_s},
                (*lines, *((gap.ended_by.at,) if gap.ended_by else ())),
            )
        )
    if q.fact("idle_device") is not None:
        found.append(
            Proof("The device was seen idle after the last line", {}, q.lines("idle_device"))
        )
    return tuple(found)


def find_unstartable(q: Quantities) -> Finding | None:
    """The engine refused to start: not even one request of max_model_len fits."""
    refused = q.evidence.all_notices("too_small")
    starts = q.fact("starts")
    if q.main is not None:
        return None  # it ran, so a later start was possible
    if not refused and not (starts is not None and starts.value is False):
        return None
    limit, tokens = q.number("max_model_len"), q.pool.tokens
    said: dict[str, Value] = {k: v for n in refused for k, v in n.values.items()}
    fits = said.get("fits_tokens") or tokens
    text = "the pool cannot hold one request of max_model_len, so the engine did not start"
    steps: list[Step] = []
    if limit and isinstance(fits, int) and limit > fits:
        text = f"max_model_len {limit:,.0f} is above the {fits:,} tokens that fit: the engine did not start"
        steps.append(
            Step(
                f"--max-model-len {fits}",
                f"{limit - fits:,.0f} tokens less, and it starts",
                {"max_model_len": fits},
            )
        )
    needed, had = said.get("needed_bytes"), said.get("kv_bytes")
    if isinstance(needed, int | float) and isinstance(had, int | float) and had:
        steps.append(
            Step(
                f"{needed / 2**30:.2f} GiB of KV (a higher gpu_memory_utilization, more devices, or fp8 KV)",
                f"{(needed - had) / 2**30:.2f} GiB more than there are: x {needed / had:.2f}",
                {"kv_bytes": needed, "times": round(needed / had, 2)},
            )
        )
    if q.is_v0:
        first = "turn chunked prefill on (a bounded profile run), where it is off"
        why = "the profile run of a long prompt takes its activation memory from the pool"
        steps.insert(0, Step(first, why))
    return Finding(
        "OVERSIZE_REQUEST",
        "medium",
        f"No request runs: {text}.",
        (
            Proof(
                text[0].upper() + text[1:],
                {
                    "max_model_len": limit,
                    "fits_tokens": fits if isinstance(fits, int) else None,
                },
                tuple(n.at for n in refused[:2]),
            ),
        ),
        tuple(steps)
        or (Step("a smaller max_model_len, or more memory for the pool", "it starts"),),
        facts={"starts": False},
    )


def find_stated_oversize(q: Quantities) -> Finding | None:
    """A stated or refused length that no block count here can hold."""
    servable = _servable(q)
    asked = _asked(q)
    sizes = [
        int(v)
        for n in q.evidence.all_notices("out_of_blocks")
        if isinstance(v := n.values.get("asked_blocks"), int | float)
    ]
    if sizes and q.pool.usable_blocks and max(sizes) > q.pool.usable_blocks:
        asked, servable = max(sizes) * (q.pool.block_size or 1), q.pool.tokens
    stopped = q.has("sweeps") or q.starved is not None
    if not servable or not asked or asked <= servable or stopped:
        return None
    if q.lengths.sequences > 1 and not sizes:
        each = q.lengths.blocks(q.pool)
        if each is None or q.pool.usable_blocks is None or each <= q.pool.usable_blocks:
            return None
    short = asked - servable
    size = q.pool.block_size or 16
    return Finding(
        "OVERSIZE_REQUEST",
        "high",
        f"A request of {asked:,} tokens can never fit a pool of {servable:,}: {short:,} tokens short.",
        (
            Proof(
                f"{asked:,} tokens asked, {servable:,} in the pool",
                {"asked": asked, "servable": servable, "short": short},
                q.lines("prompt_tokens", "output_tokens", "pool_tokens", "pool_blocks"),
            ),
        ),
        present(_limit_step(servable)),
        ("watermark, victim rule, swap: there is no other request to evict",),
        facts={"shortfall_tokens": short, f"shortfall_blocks_of_{size}": -(-short // size)},
    )


def find_bug(q: Quantities) -> Finding | None:
    """Silence where the first victim was due, with others that could run on; or an error of the engine."""
    faults = _ending_faults(q)
    series = q.main
    if series is None:
        return _fault(q, faults) if faults else None
    at = series.valid(series.usage, series.running)
    if not len(at):
        return _fault(q, faults) if faults else None
    last = int(at[-1])
    wall = _near_wall(q, last) and series.running[last] > 1
    if faults:
        return _fault(q, faults)
    if not wall or not q.silent_end:
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
                "the next stair fits and the wall is not met",
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
        (*proofs, *_silence_proof(q)),
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


_SEVERE = re.compile(r"illegal|assert|cuda|nccl|hccl|broadcast|timed out|timeout|dead", re.I)
_HANGS = re.compile(r"timed out|timeout|broadcast block|watchdog|heartbeat|unresponsive", re.I)


def _what(notice: Notice) -> str:
    return str(notice.values.get("what", notice.at.text))


def _ending_faults(q: Quantities) -> list[Notice]:
    """Errors that ended the engine: not of the host pool, and none after which it still generates."""
    said = [
        n for n in q.evidence.all_notices("fatal", "fault") if "swap" not in _what(n).lower()
    ]
    series = q.main
    if series is None:
        return [n for n in said if n.kind == "fatal" or _SEVERE.search(_what(n))]
    made = series.valid(series.generation)
    made = made[series.generation[made] > 0]
    if not len(made):
        return said
    last, at = series.t_s[made[-1]], series.line(int(made[-1]))
    return [
        n
        for n in said
        if (n.t_s >= last - 1.0 if n.t_s is not None and np.isfinite(last) else _after(n, at))
    ]


def _after(notice: Notice, at: Line) -> bool:
    return notice.at.source != at.source or notice.at.number >= at.number


def find_hang_report(q: Quantities) -> Finding | None:
    """An error of the engine that says that a step or a process does not come back."""
    faults = [n for n in _ending_faults(q) if _HANGS.search(_what(n))]
    if not faults or q.frozen is not None:
        return None
    what = _what(faults[0])[:160]
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


def _fault(q: Quantities, faults: Sequence[Notice]) -> Finding | None:
    what = str(faults[0].values.get("what", faults[0].at.text))[:200]
    near = [
        n
        for n in q.evidence.all_notices("preemption", "swap_out", "retract")
        if n.t_s is not None and faults[0].t_s is not None and 0 <= faults[0].t_s - n.t_s <= 5
    ]
    full = q.max_usage is not None and q.max_usage >= 0.95
    after = (faults[0].t_s or 0.0) - (near[-1].t_s or 0.0) if near else 0.0
    trigger = f" within {after:.1f} s of a preemption" if near else ""
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


def find_swap_stall(q: Quantities) -> Finding | None:
    series = q.main
    ended = q.evidence.all_notices("out_of_host_blocks")
    swapped = series.swapped if series is not None else np.array([])
    most = float(np.nanmax(swapped)) if np.isfinite(swapped).any() else 0.0
    host = series.col("host_usage_frac") if series is not None else np.array([])
    top = float(np.nanmax(host)) if np.isfinite(host).any() else None
    running = series.running if series is not None else np.array([])
    stuck = bool(len(swapped) and ((swapped > 0) & (running == 0)).sum() >= 2)
    full = top is not None and top >= 0.9 and most > 0
    if not ended and not full and not stuck:
        return None
    proofs = []
    if most and series is not None:
        index = int(np.nanargmax(swapped))
        proofs.append(
            Proof(
                f"{most:.0f} are swapped while {running[index]:.0f} run"
                + (f", the host pool is {percent(top)} full" if top is not None else ""),
                {"swapped": int(most), "host_usage_frac": top},
                series.lines(index),
            )
        )
    if ended:
        what = str(ended[0].values.get("what", ended[0].at.text))[:120]
        proofs.append(Proof(f"The host pool is full: {what}", {}, (ended[0].at,)))
    each = q.lengths.blocks(q.pool)
    groups = q.fits.at.get("stated")
    if each and groups is not None and q.lengths.sequences > 1:
        proofs.append(
            Proof(
                f"A group of {q.lengths.sequences} sequences ends with {each} blocks: {groups} fit {q.pool.usable_blocks:,} blocks",
                {"blocks_per_group": each, "groups": groups},
                q.lengths.lines,
            )
        )
    facts: dict[str, object] = {
        "swapped_max": int(most),
        "cpu_kv_usage_max": round(100 * top, 2) if top is not None else None,
    }
    if ended:
        facts["fatal"] = str(ended[0].values.get("what", "out of host blocks"))
    if groups is not None and q.lengths.sequences > 1:
        facts["safe_concurrency_groups"] = groups
        facts["blocks_per_group"] = each
    steps = present(cap_running(q), remove_override(q)) or (
        Step(
            "lower the number that runs at once until nothing is swapped",
            "the host pool stays empty",
        ),
    )
    more = []
    if q.lengths.sequences > 1:
        more.append(
            Step(
                f"n=1 with {q.lengths.sequences} requests",
                "victims are recomputed, no host pool is needed",
            )
        )
        if q.word("enable_chunked_prefill") == "true":
            more.append(
                Step(
                    "turn chunked prefill off",
                    "this version admits prefills while groups are swapped; the default scheduler does not",
                )
            )
    return Finding(
        "SWAP_STALL",
        "high",
        f"Swapped requests fill the host pool: {most:.0f} swapped"
        + (f", {percent(top)} of it" if top is not None else "")
        + (", and the run ends there." if ended else "."),
        tuple(proofs),
        (*steps, *more),
        ("more swap space: it only postpones the same end",),
        (),
        () if each else (Missing("blocks of a group", "n, prompt and output tokens"),),
        facts,
    )


_STOPPED = (
    "NOT_KV",
    "NO_PRESSURE_YET",
    "SLOT_LIMIT",
    "PREFILL_BOUND",
    "HOL_CAPACITY",
    "CAPACITY_QUEUE",
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
        (*_STOPPED, "CAPACITY_PREEMPTION", "THRASH_PREFILL_READMIT", "ENGINE_BUG"),
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
        (*_STOPPED, "ENGINE_BUG", "CAPACITY_PREEMPTION"),
    ),
    Rule(
        "empty-pool-queue",
        "OVERSIZE_REQUEST",
        20,
        ("running", "waiting"),
        find_starved,
        "A queue before an empty pool in which nothing runs: the full-prompt check (or its own past length) lets the head "
        "never in, and first come, first served lets nobody pass.",
        "vllm#39734, vllm PR#52530; vllm/v1/core/sched/scheduler.py",
        None,
        (*_STOPPED, "ENGINE_BUG", "CAPACITY_PREEMPTION", "RESERVATION_BLOCKED"),
    ),
    Rule(
        "one-request-outgrows",
        "OVERSIZE_REQUEST",
        21,
        ("usage", "running"),
        find_outgrown,
        "When the only running request meets the wall there is nobody to evict for it.",
        "vllm#1879, #546, #1607, #1206",
        None,
        (*_STOPPED, "ENGINE_BUG"),
    ),
    Rule(
        "longer-than-pool",
        "OVERSIZE_REQUEST",
        22,
        ("pool",),
        find_stated_oversize,
        "A stated length, or blocks that were asked for, above the whole pool.",
        "vllm#39734, #45388, ascend#17074",
        None,
        (*_STOPPED, "RESERVATION_BLOCKED", "CAPACITY_PREEMPTION"),
    ),
    Rule(
        "did-not-start",
        "OVERSIZE_REQUEST",
        23,
        (),
        find_unstartable,
        "The engine refuses a max_model_len that its pool cannot hold once.",
        "vllm#10517; vllm/worker/worker.py, vllm/v1/core/kv_cache_utils.py",
        None,
        (*_STOPPED,),
    ),
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
        _STOPPED,
    ),
    Rule(
        "host-pool-full",
        "SWAP_STALL",
        40,
        (),
        find_swap_stall,
        "Swapped groups pile up in the host pool until it is full or nothing comes back.",
        "vllm#5578; vllm/core/scheduler.py _swap_out (V0)",
        lambda q: (
            "nothing was ever swapped"
            if q.main is not None
            and q.main.has("num_swapped")
            and np.nanmax(q.main.swapped) == 0
            else None
        ),
        (*_STOPPED, "ENGINE_BUG"),
    ),
)
