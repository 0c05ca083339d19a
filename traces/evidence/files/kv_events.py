"""KV cache events of vLLM, decoded to JSON lines: what was stored, and what was overwritten.

Read in: shared `kv_events.jsonl`, events as packed for ZMQ by vLLM 0.26, the reference on telemetry, section 5.
Payload = [time, [event, ...], rank]; an event is a map with `type` (0.11: an array whose first element is it).

What it cannot say: there are no events for free, hit or preempt, and none without prefix caching, so that neither
occupancy nor preemptions follow; evictions do: a removed block was cached and was overwritten. Token ids of
prompts are not kept.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from traces.evidence.evidence import Fact, Found, SourceReport
from traces.evidence.files.jsons import JsonReading, first_value
from traces.evidence.files.stamps import unix_text
from traces.evidence.source import Source

_TYPES = ("BlockStored", "BlockRemoved", "AllBlocksCleared")


def sniff(head: str, name: str) -> float:
    """1 where such events stand in JSON."""
    if head.lstrip()[:1] not in ("{", "[") or not any(t in head for t in _TYPES):
        return 0.0
    return 1.0 if first_value(head) is not None or "payload" in head else 0.8


def read(source: Source) -> Found:
    """Facts of blocks; the events are counted in the notes."""
    reading = JsonReading(source)
    counts: Counter[tuple[int | None, str]] = Counter()
    facts: dict[str, Fact] = {}
    times: list[float] = []
    unread = recognised = 0
    for number, value in reading.values():
        batch = _batch(value)
        if batch is None:
            unread += 1
            continue
        time, events, rank = batch
        recognised += 1
        if isinstance(time, int | float):
            times = [min([*times[:1], float(time)]), max([*times[1:], float(time)])]
        for event in events:
            kind, blocks, size = _event(event)
            counts[rank, kind] += blocks
            if size is not None and "block_size" not in facts:
                at = source.line(number, "")
                facts["block_size"] = Fact("block_size", size, at)
                why = "events are only sent with prefix caching"
                facts["prefix"] = Fact(
                    "enable_prefix_caching", True, at, inferred=True, note=why
                )
    report = SourceReport(
        source.name,
        "events",
        "kv-events",
        "vllm",
        reading.num_lines,
        recognised,
        unread + reading.num_skipped,
        tuple(s[:80] for s in reading.skipped),
        1.0 if recognised else 0.3,
        (*reading.notes, *_notes(counts, times)),
    )
    first = unix_text(times[0]) if times and times[0] > 1e9 else None
    return Found(report, (), tuple(facts.values()), (), (), first, 0.0 if first else None)


def _batch(value: Any) -> tuple[Any, list[Any], int | None] | None:
    """(time, events, rank) of a payload, wrapped or bare."""
    if isinstance(value, dict):
        for key in ("payload_decoded", "payload", "batch"):
            if key in value:
                return _batch(value[key])
        if "events" in value and isinstance(value["events"], list):
            return value.get("ts"), value["events"], _rank(value.get("data_parallel_rank"))
        if value.get("type") in _TYPES:
            return value.get("ts"), [value], None
        return None
    if isinstance(value, list) and len(value) >= 2 and isinstance(value[1], list):
        return value[0], value[1], _rank(value[2]) if len(value) > 2 else None
    return None


def _rank(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _event(event: Any) -> tuple[str, int, int | None]:
    """(type, blocks, block size where it says one)."""
    if isinstance(event, dict):
        hashes, size = event.get("block_hashes"), event.get("block_size")
        kind = str(event.get("type", "?"))
    elif isinstance(event, list) and event:
        kind, hashes = str(event[0]), event[1] if len(event) > 1 else None
        size = event[4] if kind == "BlockStored" and len(event) > 4 else None
    else:
        return "?", 1, None
    blocks = len(hashes) if isinstance(hashes, list) else 1
    return kind, blocks, size if isinstance(size, int) else None


def _notes(counts: Counter[tuple[int | None, str]], times: list[float]) -> list[str]:
    if not counts:
        return []
    stored = sum(n for (_, k), n in counts.items() if k == "BlockStored")
    removed = sum(n for (_, k), n in counts.items() if k == "BlockRemoved")
    cleared = sum(n for (_, k), n in counts.items() if k == "AllBlocksCleared")
    over = f" over {times[1] - times[0]:,.1f} s" if len(times) == 2 else ""
    said = [
        f"{stored:,} blocks were cached and {removed:,} cached blocks were overwritten{over}; the cache was "
        f"cleared {cleared} times.",
        "An overwritten block is an eviction from the cache, not a preemption; neither occupancy nor preemptions "
        "can be told from events.",
    ]
    ranks = sorted({r for r, _ in counts if r is not None})
    if len(ranks) > 1:
        each = ", ".join(f"rank {r}: {counts[r, 'BlockRemoved']:,}" for r in ranks)
        said.append(f"Overwritten by rank: {each}.")
    return said
