"""All grammars of log lines, in the order in which they are tried: the first that matches reads the line.

What an engine's lines do not tell is in SILENT, by family: column -> why.
"""

from __future__ import annotations

from traces.evidence.grammars import (
    ends,
    others,
    requests,
    rust,
    sglang,
    startup,
    trtllm,
    vllm_v0,
    vllm_v1,
)
from traces.evidence.grammars.grammar import Grammar, Hit

__all__ = ["GRAMMARS", "SILENT", "Grammar", "Hit"]

GRAMMARS: tuple[Grammar, ...] = (
    *vllm_v0.GRAMMARS,
    *vllm_v1.GRAMMARS,
    *sglang.GRAMMARS,
    *trtllm.GRAMMARS,
    *rust.GRAMMARS,
    *others.GRAMMARS,
    *startup.GRAMMARS,
    *requests.GRAMMARS,
    *ends.GRAMMARS,
)

_V1 = "the statistics line of vLLM V1 does not print preemptions (a fault of it up to 0.26)"
SILENT: dict[str, dict[str, str]] = {
    "v1-engine": {"num_preempted": _V1, "preemptions_total": _V1},
    "v1-apiserver": {"num_preempted": _V1, "preemptions_total": _V1},
    "v1-iteration": {"num_preempted": "iteration lines do not tell of preemptions"},
    "v0-metrics": {"num_preempted": "vLLM V0 prints each 50th preemption only"},
    "v0-llm_engine": {"num_preempted": "this vLLM prints no preemptions"},
    "sglang": {"num_preempted": "retractions are printed one by one, as notices"},
    "triton-inflight-json": {
        "num_preempted": "the line counts requests that are paused now, not pauses"
    },
}
