"""Changes and the effect they should have, as numbers, from the pool, the lengths and the flags.

It computes; which change is right for a verdict is decided by the rule that asks.
"""

from __future__ import annotations

import math

from analyzer.diagnosis.capping import cost_of_cap, is_far_below, runs_without_trouble
from analyzer.diagnosis.findings import Step
from analyzer.diagnosis.quantities import Quantities

GIB = 2**30
SLOT_KNOBS = {
    "sglang": "--max-running-requests",
    "tensorrt-llm": "max_batch_size",
    "triton": "max_batch_size",
    "tgi": "--max-concurrent-requests",
}


def small_cap(q: Quantities, thrash: bool = False) -> Step | None:
    """`cap_running` where it can be called a small change, else None."""
    return None if q.fits.value and is_far_below(q, q.fits.value) else cap_running(q, thrash)


def costly_cap(q: Quantities, thrash: bool = False) -> Step | None:
    """`cap_running` where many more run without trouble: no smallest change, else None."""
    return cap_running(q, thrash) if q.fits.value and is_far_below(q, q.fits.value) else None


def cap_running(q: Quantities, thrash: bool = False) -> Step | None:
    """Let no more run than fit to their end, with what that costs; None where that is no fewer than filled
    the pool. thrash: output has collapsed already."""
    if not q.fits.value or cap_is_reached(q):
        return None
    n = q.fits.value
    each = q.lengths.blocks(q.pool)
    knob = SLOT_KNOBS.get(q.engine, "--max-num-seqs")
    numbers: dict[str, int | float | str | None] = {"max_num_seqs": n}
    effect = f"no preemption even if all {n} are as long as {q.fits.basis}"
    if q.fits.by_held:
        effect = f"what fits at {q.fits.basis}; requests that grow longer need fewer, and their lengths settle how many"
    if each and q.pool.usable_blocks and "stated" in q.fits.at:
        effect = f"no preemption by construction: {n} x {each} = {n * each:,} of {q.pool.usable_blocks:,} blocks"
        numbers["blocks"] = n * each
        if q.lengths.sequences > 1:
            knob, n = "--max-num-seqs (V0 counts sequences)", n * q.lengths.sequences
    cost = cost_of_cap(q, q.fits.value, thrash)
    usual = runs_without_trouble(q) if is_far_below(q, q.fits.value) else None
    if usual is not None:
        numbers["runs_without_trouble"] = round(usual, 1)
        effect += f", which few are: {usual:,.3g} run on average"
    return Step(f"{knob} {n}", effect + cost, numbers)


def cap_is_reached(q: Quantities) -> bool:
    """Whether all that is known of lengths is what requests held, and no more ran than fit at that: a
    limit there would change nothing."""
    held, n = q.held, q.fits.value
    return bool(q.fits.by_held and held is not None and n and n >= held.running)


def grow_pool(q: Quantities) -> Step | None:
    """The pool that would carry what runs now to its end."""
    running = q.held.running if q.held is not None else None
    each, blocks = q.lengths.blocks(q.pool), q.pool.usable_blocks
    if not running or not blocks:
        return None
    if each:
        need = running * each
    elif q.growing and (longest := q.number("max_model_len")):
        need = running * q.pool.blocks_for(longest)
    else:
        return None
    if need <= blocks:
        return None
    numbers: dict[str, int | float | str | None] = {
        "pool_blocks": need,
        "times": round(need / blocks, 2),
    }
    more = f", {need - blocks:,} more (x {need / blocks:.2f})"
    if per_block := bytes_per_block(q):
        gib = (need - blocks) * per_block / GIB
        numbers["gib"] = round(gib, 2)
        more += f", {gib:.2f} GiB"
    effect = f"all {running} that run now reach their end"
    if need <= 2 * blocks and q.word("kv_cache_dtype") not in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        effect += f"; fp8 KV gives x 2 = {2 * blocks:,} blocks and covers it"
    return Step(f"a pool of {need:,} blocks{more}", effect, numbers)


def carries_all(grown: Step | None, more_frac: float) -> bool:
    """Whether so much more pool contains what lets all that run reach their end: then no wall is put off."""
    times = grown.numbers.get("times") if grown is not None else None
    return isinstance(times, int | float) and times <= 1 + more_frac


def bytes_per_block(q: Quantities) -> float | None:
    """Bytes of a block over all layers, or None."""
    total = q.number("kv_bytes")
    if total and q.pool.blocks:
        return total / q.pool.blocks
    each = q.number("kv_bytes_per_token")
    return each * q.pool.block_size if each and q.pool.block_size else None


def raise_utilization(q: Quantities, to: float = 0.95) -> Step | None:
    """What a higher share of the device's memory gives."""
    share, device = q.number("gpu_memory_utilization"), q.number("device_bytes")
    each, size = bytes_per_block(q), q.pool.block_size
    if not share or not device or not each or share >= to or not q.pool.usable_blocks:
        return None
    more = int(device * (to - share) / each)
    blocks = q.pool.usable_blocks + more
    length = q.lengths.blocks(q.pool)
    numbers: dict[str, int | float | str | None] = {"blocks": more, "pool_blocks": blocks}
    effect = f"+{device * (to - share) / GIB:.2f} GiB = +{more:,} blocks"
    if size:
        effect += f" = {blocks * size:,} tokens"
    if length:
        fit = blocks // length
        numbers["safe_concurrency"] = fit
        effect += f" = {fit} requests"
        if q.held is not None and fit < q.held.running:
            effect += f", still below {q.held.running}: alone it does not stop it"
    return Step(f"--gpu-memory-utilization {to:g}", effect, numbers)


def suggested_memory(q: Quantities) -> Step | None:
    """What the engine itself says it could take."""
    most = q.number("kv_bytes_available")
    said = [
        n
        for n in q.evidence.all_notices("suggestion")
        if isinstance(n.values.get("kv_bytes"), int | float)
    ]
    if said:
        most = max(float(n.values["kv_bytes"]) for n in said)  # type: ignore[arg-type]  # numbers, chosen above
    now = q.number("kv_bytes")
    if not most or not now or most <= now * 1.001:
        return None
    gain = most / now
    numbers: dict[str, int | float | str | None] = {"gain_pct": round(100 * (gain - 1), 1)}
    effect = f"{most / GIB:.2f} instead of {now / GIB:.2f} GiB, +{100 * (gain - 1):.1f} %"
    if q.pool.tokens:
        numbers["pool_tokens"] = round(q.pool.tokens * gain)
        effect += f" = about {round(q.pool.tokens * (gain - 1)):,} tokens more ({round(q.pool.tokens * gain):,} in all)"
    return Step(
        f"--kv-cache-memory {most:.0f}",
        effect + "; the engine states it; CUDA graphs and activation peaks are the risk",
        numbers,
    )


def remove_override(q: Quantities) -> Step | None:
    """What an override of the pool's size costs."""
    have, could = q.pool.blocks, q.number("available_pool_blocks")
    if could is None:
        for notice in q.evidence.all_notices("override"):
            value = notice.values.get("from_blocks")
            could = float(value) if isinstance(value, int | float) else could
    if not have or not could or could <= have:
        return None
    factor = could / have
    return Step(
        "remove num_gpu_blocks_override",
        f"{could:,.0f} blocks instead of {have:,}: x {factor:.1f}",
        {"pool_blocks": int(could), "times": round(factor, 1)},
    )


def put_off_wall(q: Quantities) -> Step | None:
    """What a tenth more pool buys while nothing ends."""
    if q.wall is None or not q.wall.per_s or not q.pool.tokens or not q.pool.usable_blocks:
        return None
    if carries_all(grow_pool(q), 0.1):
        return None
    blocks = math.ceil(q.pool.usable_blocks / 10)
    seconds = 0.1 * q.pool.tokens / q.wall.per_s
    numbers: dict[str, int | float | str | None] = {
        "blocks": blocks,
        "seconds": round(seconds, 1),
    }
    effect = f"puts the wall off by {seconds:.0f} s at {q.wall.per_s:,.0f} tokens/s"
    if each := bytes_per_block(q):
        effect += f" ({blocks * each / GIB:.2f} GiB)"
    unit = "tokens" if q.pool.block_size == 1 else "blocks"
    return Step(f"a pool 10 % larger (by {blocks:,} {unit})", effect, numbers)


def shed_load(q: Quantities) -> Step | None:
    """How much demand is above what is served."""
    rate = q.waiting_rate
    if rate is None or rate <= 0:
        return None
    per_minute = math.ceil(60 * rate)
    return Step(
        f"shed {per_minute} requests a minute, or add a replica",
        f"the queue grows by {rate:.2f} a second; then it stops growing",
        {"requests_per_minute": per_minute, "queue_growth_per_s": round(rate, 3)},
    )


def present(*steps: Step | None) -> tuple[Step, ...]:
    """The steps that can be computed, in their order."""
    return tuple(s for s in steps if s is not None)
