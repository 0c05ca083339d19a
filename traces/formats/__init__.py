"""Foreign trace formats, one file each: sniff, read, and the quirks it knows.

`FORMATS` lists the modules in the order in which they are asked; the first whose `sniff` says yes
reads the file, and `generic` comes last. A module is imported when it is first asked for, so that
importing `traces` costs none of them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traces.formats.raw import Format

FORMATS = (
    "azure",
    "burstgpt",
    "bailian",
    "ragpulse",
    "mooncake",
    "vidur",
    "llmservingsim",
    "weka",
    "tracelab",
    "swissai",
    "vllm_bench",
    "aiperf",
    "guidellm",
    "otel",
    "langfuse",
    "litellm",
    "multi_round_qa",
    "dynamo",
    "chutes",
    "sagemaker",
    "aibrix",
    "lmcache",
    "generic",
)


@cache
def formats() -> tuple[Format, ...]:
    """Every Format, in the order in which they are asked."""
    return tuple(import_module(f"traces.formats.{name}").FORMAT for name in FORMATS)
