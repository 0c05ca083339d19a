"""The sample workloads: chat, long outputs, agents that share prefixes, and a small chat that ran for real.

It knows the published figures that each follows and the pool on which each shows pressure. How
requests are drawn is `traces/synthetic.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from traces.errors import SettingsError
from traces.lengths import Quantiles
from traces.synthetic import (
    Arrivals,
    SessionSpec,
    StreamSpec,
    SystemPrompts,
    sessions,
    stream,
)
from traces.workload import Workload


@dataclass(frozen=True)
class SampleInfo:
    """What a sample is.

    title, what: for the page; follows: published figures it was shaped after; departs: where it
    does not follow them, or where nothing was published; pool_tokens, model, device: settings on
    which it presses the pool; seed: of the generator.
    """

    name: str
    title: str
    what: str
    follows: tuple[str, ...]
    departs: tuple[str, ...]
    pool_tokens: int
    model: str
    device: str
    seed: int


CHAT = SampleInfo(
    name="chat",
    title="Chat on a 24 GB card",
    what="2,000 chat requests whose answers grow in a pool that is too small for them",
    follows=(
        "Azure LLM inference trace 2023, conversation (19,366 requests): prompt p50 / p90 / p99 1,020 / 2,735 / 4,142 "
        "tokens, piling at about 1,020 and 4,100, at most 14,050",
        "the same: output p50 / p90 / p99 129 / 424 / 601 tokens in two humps, 85 to 129 and 395 to 450, at most 1,000",
        "the same: coefficient of variation of the gaps between arrivals 1.09",
        "the pool: 41,408 tokens, which vLLM logged for an 8B model on a 24 GB card",
    ),
    departs=(
        "2.6 requests/s instead of 5.53, because one such card can serve no more: at the full rate prefill alone "
        "keeps it busy and the picture is a queue",
        "prompt and output lengths are drawn independently",
    ),
    pool_tokens=41_408,
    model="llama-3.1-8b",
    device="rtx-4090",
    seed=20231116,
)
LONG_OUTPUTS = SampleInfo(
    name="long-outputs",
    title="Reasoning on an 80 GB card",
    what="2,000 short questions with answers of up to 16,000 tokens",
    follows=(
        "LLMServingSim 2.0 workload me2_01_mixed: output p50 / p90 / p99 874 / 11,809 / 15,039 tokens, 234 to 15,890",
        "LLMServingSim's 300 ShareGPT requests: prompt p50 / p90 / p99 732 / 1,460 / 2,765 tokens, at most 3,998",
    ),
    departs=(
        "prompts and outputs come from two workloads, because short questions with long answers are what reasoning "
        "models see",
        "the rate, 0.9 requests/s Poisson, is chosen so that the pool is full for a part of the run",
    ),
    pool_tokens=430_000,
    model="llama-3.1-8b",
    device="h100-sxm",
    seed=874,
)
AGENTS = SampleInfo(
    name="agents",
    title="Coding agents with shared prefixes",
    what="40 agent sessions whose prompts grow turn by turn behind shared system prompts",
    follows=(
        "Weka Claude Code sessions (710): prompt p50 / p90 / p99 103,659 / 233,633 / 498,519 tokens, divided by 8",
        "the same: output p50 / p90 / p99 216 / 898 / 3,686 tokens, at most 18,195",
        "the same: an ideal prefix cache finds a median of 95 % of a session's prompt tokens (60 to 99 %)",
        "Mooncake tool and agent trace: a shared prefix of 6,144 tokens",
    ),
    departs=(
        "prompt lengths are an eighth of the published ones, so that an 8B model's pool holds several sessions",
        "turns a session, pauses between turns, starts and the number of system prompts were not published and "
        "are chosen",
    ),
    pool_tokens=131_072,
    model="llama-3.1-8b",
    device="h100-sxm",
    seed=95,
)

SMOLLM2 = SampleInfo(
    name="smollm2",
    title="SmolLM2 on a CPU core, measured",
    what="48 short chat requests that the torch engine really ran, token by token, in a pool of 64 blocks",
    follows=(
        "the sample chat, whose prompts are divided by 8 and whose outputs by 4, so that a 135M model on a CPU serves them",
    ),
    departs=(
        "prompts are drawn token ids, not text",
        "0.3 requests/s, somewhat more than a core serves, so that the pool stays full",
    ),
    pool_tokens=1_024,
    model="smollm2-135m",
    device="cpu",
    seed=135,
)

_CHAT_PROMPT = Quantiles(
    ((0, 2), (5, 150), (20, 330), (38, 990), (46, 1012), (54, 1028), (62, 1090), (76, 1400), (90, 2735),
     (91.5, 4040), (95, 4090), (98.6, 4120), (99, 4142), (100, 14_050))
)  # fmt: skip
_CHAT_OUTPUT = Quantiles(
    ((0, 7), (6, 40), (15, 70), (22, 85), (50, 129), (60, 190), (69, 330), (73, 395), (90, 424), (94, 450), (99, 601), (100, 1000))
)  # fmt: skip
_REASONING_OUTPUT = Quantiles(
    ((0, 234), (50, 874), (90, 11_809), (99, 15_039), (100, 15_890)), log=True
)
_SHAREGPT_PROMPT = Quantiles(((0, 24), (50, 732), (90, 1_460), (99, 2_765), (100, 3_998)))
_AGENT_OUTPUT = Quantiles(
    ((0, 20), (10, 90), (50, 216), (90, 898), (99, 3_686), (100, 18_195)), log=True
)
# Mean prompt of a session. Within a session prompts run from 0.6 to 1.4 of it, and pushed up where
# answers are long, so that the percentiles of all prompts come out an eighth of Weka's.
_AGENT_LEVEL = Quantiles(
    ((0, 6_000), (50, 8_600), (90, 20_500), (97, 58_000), (100, 60_000)), log=True
)


def _chat(seed: int) -> Workload:
    return stream(
        StreamSpec(
            num_requests=2_000,
            arrivals=Arrivals(rate_per_s=2.6, burstiness=1.09**-2),
            prompt=_CHAT_PROMPT,
            output=_CHAT_OUTPUT,
            seed=seed,
            name="sample: chat",
        )
    )


def _smollm2(seed: int) -> Workload:
    return stream(
        StreamSpec(
            num_requests=48,
            arrivals=Arrivals(rate_per_s=0.3, burstiness=1.09**-2),
            prompt=_divided(_CHAT_PROMPT, 8),
            output=_divided(_CHAT_OUTPUT, 4),
            seed=seed,
            name="sample: smollm2",
        )
    )


def _divided(lengths: Quantiles, by: int) -> Quantiles:
    return Quantiles(tuple((p, max(1, round(n / by))) for p, n in lengths.points))


def _long_outputs(seed: int) -> Workload:
    return stream(
        StreamSpec(
            num_requests=2_000,
            arrivals=Arrivals(rate_per_s=0.9),
            prompt=_SHAREGPT_PROMPT,
            output=_REASONING_OUTPUT,
            seed=seed,
            name="sample: long outputs",
        )
    )


def _agents(seed: int) -> Workload:
    return sessions(
        SessionSpec(
            num_sessions=40,
            starts=Arrivals(rate_per_s=0.05),
            turns=Quantiles(((0, 3), (50, 22), (90, 38), (100, 60))),
            level=_AGENT_LEVEL,
            output=_AGENT_OUTPUT,
            growth_frac=0.4,
            system=SystemPrompts(num=3, tokens=6_144),
            prefix_block_tokens=64,
            max_prompt_tokens=100_000,
            seed=seed,
            name="sample: agents",
        )
    )


_SAMPLES: dict[str, tuple[SampleInfo, Callable[[int], Workload]]] = {
    "chat": (CHAT, _chat),
    "long-outputs": (LONG_OUTPUTS, _long_outputs),
    "agents": (AGENTS, _agents),
    "smollm2": (SMOLLM2, _smollm2),
}


def names() -> tuple[str, ...]:
    """Names of the samples, the first one being the default."""
    return tuple(_SAMPLES)


def info(name: str) -> SampleInfo:
    """What that sample is. Raises SettingsError that lists the names."""
    if name not in _SAMPLES:
        raise SettingsError(
            f"there is no sample {name!r}. Choose one of {', '.join(_SAMPLES)}."
        )
    return _SAMPLES[name][0]


@cache
def load(name: str) -> Workload:
    """The workload of that name, always the same rows. Raises SettingsError that lists the names."""
    return draw(name, 0)


def draw(name: str, draw_number: int) -> Workload:
    """Other requests of the same kind: 0 gives the sample itself. Raises SettingsError that lists the names."""
    seed = info(name).seed
    return _SAMPLES[name][1](seed + draw_number)
