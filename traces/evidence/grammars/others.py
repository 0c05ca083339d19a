"""Lines of engines with few grammars yet: LightLLM.

LightLLM pauses requests where others preempt; the line counts those that are paused now.
"""

from __future__ import annotations

from traces.evidence.grammars.grammar import Grammar, integer, number

GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "lightllm-batch",
        "lightllm",
        "lightllm",
        "current batch size: ",
        "LightLLM PR#1562; router manager",
        pattern=r"token used ratio|paused req num",
        sample={
            "num_running": integer(r"current batch size: (\d+)"),
            "kv_usage_frac": number(r"token used ratio: ([\d.]+)"),
        },
        extra={"paused": integer(r"paused req num: (\d+)")},
        examples=(
            "DEBUG 07-15 04:22:41 [manager.py:283] current batch size: 40 paused req num: 2 token used ratio: 0.9213 not contain prompt cache tree unrefed token",
        ),
    ),
)
