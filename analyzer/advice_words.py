"""Advice in words: values of levers, and what one or two of them do for the goal.

It computes no figure; every number is one of an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from analyzer.advice_parts import (
    ENOUGH,
    HARDLY,
    NO_CHANGE,
    REFUSED,
    WORSE,
    Effect,
)
from analyzer.goals import MAX_GOODPUT, Goal, say_standing
from analyzer.lever_facts import Facts
from analyzer.levers import LEVERS
from analyzer.outcome import Outcome
from analyzer.words import label, show

RULE = (
    "Ranked: what meets the goal first, by its dearest price: a flag alone, a flag with which some latency or goodput is over 2 % worse, memory, quality or cut requests, "
    "slower service (over 2 % of throughput, over 10 % of TTFT or E2E p99, or arrivals turned away), GPUs and "
    "other hardware, and last what vLLM has no setting for; then by how much of that price. What only helps follows, "
    "the nearest to the goal first. A change below 1 % is no change."
)
RULE_GOODPUT = (
    "Ranked by good requests per second, most first, within 1 % by price; of each lever the smallest "
    "change within 1 % of its best. A change below 1 % is no change."
)
RULE_MEMORY = "Ranked by KV memory of each GPU, least first. The price is beside each."
_PHRASES = {
    "num_gpu_blocks": "a KV pool of {} blocks",
    "gpu_memory_utilization": "GPU memory utilisation {}",
    "kv_cache_dtype": "KV cache in {}",
    "weight_dtype": "weights in {}",
    "block_size": "blocks of {} tokens",
    "tensor_parallel_size": "tensor parallel over {} GPUs",
    "pipeline_parallel_size": "a pipeline of {} stages",
    "device": "device {}",
    "max_num_seqs": "at most {} at once",
    "max_num_batched_tokens": "at most {} tokens a step",
    "max_model_len": "requests of at most {} tokens",
    "watermark": "watermark {}",
    "scheduler_reserve_full_isl": "the full-prompt gate {}",
    "enable_chunked_prefill": "chunked prefill {}",
    "long_prefill_token_threshold": "at most {} tokens of one prompt a step",
    "enable_prefix_caching": "prefix caching {}",
    "preemption_mode": "preemption mode {}",
    "victim": "victim rule {}",
    "host_gib": "{} GiB of host memory",
    "copy_path": "copy path {}",
    "copy_mode": "copy mode {}",
    "link_gb_per_s": "a host link of {} GB/s",
    "replicas": "{} replicas",
    "router": "router {}",
}


def show_value(name: str, value: Any, facts: Facts | None = None) -> str:
    """'a KV pool of 3,120 blocks', 'KV cache in fp8', '0.87 × the arrivals (2.28 requests/s)'."""
    if name == "rate_scale":
        rate = None if facts is None else facts.rate_rps
        said = f" ({show('rate', rate * value)} requests/s)" if rate else ""
        return f"{value:g} × the arrivals{said}"
    if name == "long_prefill_token_threshold" and value == 0:
        return "no long-prefill threshold"
    if isinstance(value, bool):
        text = "on" if value else "off"
    elif isinstance(value, float):
        text = f"{value:g}"
    else:
        text = f"{value:,}" if isinstance(value, int) else str(value)
    return _PHRASES.get(name, f"{name} {{}}").format(text)


def show_changes(changes: Mapping[str, Any], facts: Facts | None = None) -> str:
    """'a KV pool of 3,120 blocks and KV cache in fp8'; 'the base' for none."""
    said = [show_value(name, value, facts) for name, value in changes.items()]
    return " and ".join(said) if said else "the base"


def sentence_case(text: str) -> str:
    """The same with a capital letter in front, as a sentence begins."""
    return text if text.startswith("vLLM") else text[:1].upper() + text[1:]


def label_of(levers: tuple[str, ...]) -> str:
    """'KV cache type + KV pool'."""
    return " + ".join(LEVERS[name].label if name in LEVERS else name for name in levers)


def say_enough(
    goal: Goal, outcome: Outcome, below: Outcome | None, base: Outcome, facts: Facts
) -> str:
    """What suffices and what does not any more: 'enough with watermark 0.03 (0 preemptions), not
    with watermark 0.02 (3 preemptions)'. below: None where the base is the next smaller change."""
    now = say_standing(goal, outcome)
    less = base if below is None else below
    known = "cannot run" if less.refused else say_standing(goal, less)
    what = show_changes(outcome.changes, facts)
    return f"enough with {what} ({now}), not with {show_changes(less.changes, facts)} ({known})"


def say_happens(happens: Outcome | None, facts: Facts) -> str:
    """Behind a sentence on what is enough but no threshold. happens: a smaller change that suffices,
    None where the one that was named is the smallest and the largest fails."""
    if happens is None:
        return "; larger changes fail again, the largest too, so this one only happens to be enough"
    return f", and no larger one that was tried fails; {show_changes(happens.changes, facts)} happens to be enough too, but some larger ones fail again"


def say_answer(verdict: str, goal: Goal, base: Outcome, outcome: Outcome, facts: Facts) -> str:
    """What a change does that is not enough."""
    what = show_changes(outcome.changes, facts)
    if verdict == REFUSED:
        return f"{what} cannot run: {outcome.refused}"
    now, was = say_standing(goal, outcome), say_standing(goal, base)
    assert verdict != ENOUGH, "say_enough says that"
    if goal.aim == MAX_GOODPUT:
        return f"most with {what}: {now}, {was} at the base"
    if verdict == NO_CHANGE:
        return f"changes nothing that counts: {now} with {what}, {was} at the base"
    if verdict == WORSE:
        return f"makes it worse: {now} with {what}, {was} at the base"
    if verdict == HARDLY:
        return f"hardly helps: {now} with {what}, {was} at the base"
    how = "alone" if len(outcome.changes) == 1 else "together"
    return f"not enough {how}: at best {now} with {what}, {was} at the base"


def say_effects(effects: Iterable[Effect]) -> str:
    """'Preemptions 176 → 0; TTFT p99 17.0 s → 1.03 s': what changed by more than the noise; 'none'."""
    said = [
        f"{label(e.metric)} {show(e.metric, e.base)} → {show(e.metric, e.now)}"
        for e in effects
        if e.word != NO_CHANGE
    ]
    return "; ".join(said) or "none beyond 1 %"
