"""Lines of serving software that no grammar reads: whose they are, so that a user is told.

It knows words that only that software writes. It reads no values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SIGNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "Ollama",
        re.compile(
            r"^\[GIN\] \d{4}/|source=\w+\.go:\d+|starting (?:llama|ollama) (?:server|runner)"
        ),
    ),
    (
        "llama.cpp",
        re.compile(
            r"\bllama_(?:kv_cache|context|model|perf|print)\w*:|^(?:slot|srv) +\w+[: ]|update_slots ?:|slot \d+ released"
            r"|print_timings?:|ggml_\w+:|KV cache is full - try increasing"
        ),
    ),
    ("llama-box (GPUStack)", re.compile(r"\bsrv +reconcile: rid \d+")),
    ("LMDeploy", re.compile(r"\[TM\]\[(?:INFO|WARNING|ERROR)\]|\blmdeploy\b")),
    (
        "DeepSpeed-MII",
        re.compile(
            r"Deadlock detected\. Resetting KV cache|deepspeed\.inference|\bmii\.(?:serve|pipeline)"
        ),
    ),
    ("MLC LLM", re.compile(r"\bmlc_llm\b|mlc-llm")),
    ("KTransformers", re.compile(r"\bktransformers\b")),
    ("Triton (no KV statistics)", re.compile(r"\bnv_inference_\w+\{")),
    (
        "a web server's access log",
        re.compile(r'^\S+ - \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:[^\]]+\] "(?:GET|POST|PUT) '),
    ),
    ("nvidia-smi", re.compile(r"NVIDIA-SMI \d|\d+MiB / +\d+MiB")),
    ("DCGM", re.compile(r"\bDCGM_FI_\w+")),
)


def whose(lines: Iterable[str]) -> str | None:
    """The software that wrote these lines, by the most signs of it; None where none is known."""
    found: dict[str, int] = {}
    for line in lines:
        for name, sign in _SIGNS:
            if sign.search(line):
                found[name] = found.get(name, 0) + 1
                break
    return max(found, key=lambda n: found[n], default=None)
