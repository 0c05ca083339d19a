"""Texts of logs and metrics made from parameters, as servers would print them, for tests of the diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from analyzer.diagnosis import Diagnosis, diagnose
from traces.evidence.reading import read_sources
from traces.evidence.source import Source

START = datetime(2026, 3, 4, 10, 0, 0)


def stamp(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).strftime("%m-%d %H:%M:%S")


def v1(
    t: float,
    running: int,
    waiting: int,
    usage: float,
    *,
    prompt: float = 0.0,
    generation: float = 0.0,
    rank: int = 0,
    prefix: str = "",
    deferred: int = 0,
) -> str:
    """A periodic line of vLLM V1; usage in per cent."""
    held = f", Deferred: {deferred} reqs" if deferred else ""
    return (
        f"{prefix}INFO {stamp(t)} [loggers.py:259] Engine {rank:03}: Avg prompt throughput: {prompt:.1f} tokens/s, "
        f"Avg generation throughput: {generation:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs{held}, "
        f"GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 0.0%"
    )


def v1_pool(tokens: int, length: int | None = None) -> list[str]:
    """Start-up lines of vLLM V1."""
    lines = [f"INFO {stamp(-60)} [kv_cache_utils.py:1087] GPU KV cache size: {tokens:,} tokens"]
    if length:
        lines.append(
            f"INFO {stamp(-60)} [kv_cache_utils.py:1091] Maximum concurrency for {length:,} tokens per request: {tokens / length:.2f}x"
        )
    return lines


def v0(
    t: float,
    running: int,
    swapped: int,
    pending: int,
    usage: float,
    *,
    prompt: float = 0.0,
    generation: float = 0.0,
    host: float = 0.0,
) -> str:
    """A periodic line of vLLM V0."""
    return (
        f"INFO {stamp(t)} metrics.py:449] Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: "
        f"{generation:.1f} tokens/s, Running: {running} reqs, Swapped: {swapped} reqs, Pending: {pending} reqs, "
        f"GPU KV cache usage: {usage:.1f}%, CPU KV cache usage: {host:.1f}%."
    )


def v0_warning(t: float, total: int, mode: str = "RECOMPUTE") -> str:
    return (
        f"WARNING {stamp(t)} scheduler.py:1481] Sequence group {total} is preempted by PreemptionMode.{mode} mode because "
        "there is not enough KV cache space. This can affect the end-to-end performance. Increase "
        f"gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. total_num_cumulative_preemption={total}"
    )


def v0_pool(blocks: int, host: int = 2048) -> list[str]:
    return [
        f"INFO {stamp(-60)} gpu_executor.py:113] # GPU blocks: {blocks}, # CPU blocks: {host}"
    ]


def sglang(t: float, running: int, queue: int, usage: float, generation: float) -> str:
    """A decode line of SGLang; usage as a share."""
    when = (START + timedelta(seconds=t)).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"[{when} TP0] Decode batch. #running-req: {running}, #token: {int(usage * 100000)}, token usage: {usage:.2f}, "
        f"gen throughput (token/s): {generation:.2f}, #queue-req: {queue}"
    )


def triton(
    t: float, step: int, active: int, scheduled: int, used: int, pool: int, size: int = 64
) -> str:
    when = START + timedelta(seconds=t)
    return (
        f'I{when:%m%d %H:%M:%S}.000001 160 model_instance_state.cc:813] {{"Active Request Count":{active},"Iteration Counter":{step},'
        f'"Max Request Count":64,"Timestamp":"{when:%m-%d-%Y %H:%M:%S}","Context Requests":0,"Generation Requests":{scheduled},'
        f'"MicroBatch ID":0,"Paused Requests":0,"Scheduled Requests":{scheduled},"Total Context Tokens":0,"Free KV cache blocks":{pool - used},'
        f'"Max KV cache blocks":{pool},"Tokens per KV cache block":{size},"Used KV cache blocks":{used}}}'
    )


def scrape(values: Sequence[tuple[int, int, int, float, int, float]], when: str = "") -> str:
    """Prometheus text of vLLM: (rank, running, waiting, usage, preemptions, generated) for each rank."""
    names = (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "generation_tokens_total",
    )
    lines = [when] if when else []
    for i, name in enumerate(names, start=1):
        lines += [
            f'vllm:{name}{{engine="{row[0]}",model_name="m"}} {float(row[i])}' for row in values
        ]
    return "\n".join(lines) + "\n"


def diagnosis(*lines: str | Iterable[str], notes: str = "") -> Diagnosis:
    """The diagnosis of a log's lines, and of notes beside it."""
    flat: list[str] = []
    for line in lines:
        flat += [line] if isinstance(line, str) else list(line)
    sources = [Source.from_text("server.log", "\n".join(flat) + "\n")]
    if notes:
        sources.append(Source.from_text("config.txt", notes + "\n"))
    return diagnose(read_sources(sources))


def words(found: Diagnosis) -> list[str]:
    return [v.word for v in found.verdicts]
