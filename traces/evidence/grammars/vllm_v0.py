"""Lines of vLLM's first engine (V0): statistics every 5 s, preemption warnings, the host pool.

A warning is printed for the first preemption and then for each 50th; its counter is what counts, not the
lines. Fields that patched builds put between the known ones are passed over.
"""

from __future__ import annotations

from traces.evidence.grammars.grammar import (
    Grammar,
    constant,
    integer,
    lower,
    number,
    percent,
    word,
)


def _family(text: str, process: str) -> str:
    patched = "Max iteration time" in text or "Avg time/tok" in text
    if "llm_engine.py" in text:
        return "v0-llm_engine-patched" if patched else "v0-llm_engine"
    return "v0-metrics"


GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "v0-stats",
        "vllm",
        "v0-metrics",
        ("Pending: ", "Swapped: ", "CPU KV cache usage: ", " metrics.py:", "llm_engine.py:"),
        "vllm#3561, #1879, #2731; metrics.py, llm_engine.py",
        pattern=r"(?:Running|Pending|Swapped): \d+ reqs|KV cache usage: [\d.]+%|throughput: [\d.]+ tokens/s",
        family_of=_family,
        sample={
            "prompt_tokens_per_s": number(r"prompt throughput: ([\d.]+)"),
            "generation_tokens_per_s": number(r"generation throughput: ([\d.]+)"),
            "num_running": integer(r"Running: (\d+)"),
            "num_swapped": integer(r"Swapped: (\d+)"),
            "num_waiting": integer(r"Pending: (\d+)"),
            "kv_usage_frac": percent(r"GPU KV cache usage: ([\d.]+)%"),
            "host_usage_frac": percent(r"CPU KV cache usage: ([\d.]+)%"),
        },
        examples=(
            "INFO 11-26 14:43:05 metrics.py:449] Avg prompt throughput: 1912.4 tokens/s, Avg generation throughput: 402.7 tokens/s, Running: 31 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 61.2%, CPU KV cache usage: 0.0%.",
            "INFO 02-01 06:36:05 llm_engine.py:921] Avg prompt throughput: 382.6 tokens/s, Avg generation throughput: 118.5 tokens/s, Max iteration time: 386.7 ms, Avg time/tok:149.4 ms, Running: 35 reqs, Swapped: 0 reqs, Pending: 115 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 0.0%",
        ),
    ),
    Grammar(
        "v0-prefix-hits",
        "vllm",
        "v0-metrics",
        "Prefix cache hit rate: GPU: ",
        "metrics.py, since 0.6.2",
        joins=True,
        sample={"prefix_hit_frac": percent(r"hit rate: GPU: ([\d.]+)%")},
        examples=(
            "INFO 11-26 14:43:05 metrics.py:465] Prefix cache hit rate: GPU: 54.20%, CPU: 0.00%",
        ),
    ),
    Grammar(
        "v0-preempted",
        "vllm",
        "v0-metrics",
        " is preempted ",
        "vllm#3561, #5578, LIMO#29, #8219 ('in' for 'by'); scheduler.py, each 50th",
        pattern=r"Sequence group",
        notice="preemption",
        count=integer(r"total_num_cumulative_preemption=(\d+)"),
        values={
            "request": word(r"Sequence group (\S+) is preempted"),
            "mode": lower(r"PreemptionMode\.(RECOMPUTE|SWAP)"),
        },
        facts={
            "preemption_mode": lower(r"PreemptionMode\.(RECOMPUTE|SWAP)"),
        },
        examples=(
            "WARNING 11-26 14:43:22 scheduler.py:1481] Sequence group chatcmpl-0a3f1 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. total_num_cumulative_preemption=51",
        ),
    ),
    Grammar(
        "v0-lack-of-swap",
        "vllm",
        "v0-metrics",
        "Aborted due to the lack of CPU swap space",
        "vllm#5578; scheduler.py _swap_out",
        notice="out_of_host_blocks",
        also="fatal",
        values={"what": word(r"(Aborted due to the lack of CPU swap space)")},
        examples=(
            "RuntimeError: Aborted due to the lack of CPU swap space. Please increase the swap space to avoid this error.",
        ),
    ),
    Grammar(
        "v0-ignored-prompt",
        "vllm",
        "v0-metrics",
        "is too long and exceeds",
        "scheduler.py _schedule_prefills",
        notice="request_refused",
        values={
            "prompt_tokens": integer(r"Input prompt \((\d+) tokens?\)"),
            "limit_tokens": integer(r"exceeds (?:the )?limit of (\d+)"),
            "why": constant(r"capacity of block_manager", "longer than the pool"),
        },
        examples=(
            "WARNING 11-26 14:43:22 scheduler.py:717] Input prompt (41877 tokens) is too long and exceeds limit of 20000",
            "WARNING 11-26 14:43:22 scheduler.py:732] Input prompt (41877 tokens) + lookahead slots (0) is too long and exceeds the capacity of block_manager",
        ),
    ),
)
