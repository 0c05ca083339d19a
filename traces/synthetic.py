"""Workloads that are made up: arrivals, lengths, shared prefixes and priorities from a seed.

It knows random request streams (lengths: `lengths.py`) and growing agent sessions, and gives them back as a checked
Workload whose report says that it is synthetic and with which seed. It reads no files and does not
know what an engine does; `samples/` uses it for workloads shaped after published traces.

One seed gives one workload, row for row: every draw comes from one numpy Generator in the order of
the code below, which therefore must not change without a changelog line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traces.errors import SettingsError
from traces.lengths import IntArray, Lengths
from traces.workload import ReadReport, Workload, make_workload

FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]


# ---- when ----


@dataclass(frozen=True)
class Arrivals:
    """Open loop: gamma-distributed gaps of mean 1/rate. burstiness 1: Poisson, below: burstier.

    Same meaning as `--request-rate` and `--burstiness` of `vllm bench serve`: the shape of the
    gamma distribution; the gaps' coefficient of variation is burstiness ** -0.5.
    """

    rate_per_s: float
    burstiness: float = 1.0

    def times(self, rng: np.random.Generator, n: int) -> FloatArray:
        for name, value in (("rate_per_s", self.rate_per_s), ("burstiness", self.burstiness)):
            if not (value > 0 and np.isfinite(value)):
                raise SettingsError(f"arrivals, {name}: {value!r} is not a positive number.")
        gaps = rng.gamma(self.burstiness, 1.0 / (self.rate_per_s * self.burstiness), n)
        gaps[0] = 0.0
        return np.cumsum(gaps)


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` requests are in the system at once; the next comes when one ends."""

    concurrency: int


# ---- what they share ----


@dataclass(frozen=True)
class SystemPrompts:
    """`num` system prompts of `tokens` tokens in front of the requests; the k-th is chosen in
    proportion to 1 / k ** skew (0: all alike). `share_frac` of the requests have one."""

    num: int
    tokens: int
    share_frac: float = 1.0
    skew: float = 1.0


@dataclass(frozen=True)
class StreamSpec:
    """A stream of independent requests.

    prompt: length of the whole prompt, a system prompt included (a shorter draw is made
    `system.tokens + 1`); priorities: rank -> weight, empty: all 0.
    """

    num_requests: int
    arrivals: Arrivals | ClosedLoop
    prompt: Lengths
    output: Lengths
    system: SystemPrompts | None = None
    priorities: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    name: str = "synthetic"


def stream(spec: StreamSpec) -> Workload:
    """The requests of `spec`. Raises SettingsError for parameters that cannot be."""
    n = spec.num_requests
    _check_count("num_requests", n)
    rng = np.random.default_rng(spec.seed)
    closed = spec.arrivals if isinstance(spec.arrivals, ClosedLoop) else None
    if closed is not None:
        _check_count("concurrency", closed.concurrency)
    arrival_s = (
        np.zeros(n) if isinstance(spec.arrivals, ClosedLoop) else spec.arrivals.times(rng, n)
    )
    prompt, output = spec.prompt.sample(rng, n), spec.output.sample(rng, n)
    columns: dict[str, object] = {"arrival_s": arrival_s, "output_tokens": output}
    if spec.system is not None:
        which = _choose_system(spec.system, rng, n)
        prompt = np.where(which >= 0, np.maximum(prompt, spec.system.tokens + 1), prompt)
        ids = _ids(spec.seed, np.arange(spec.system.num))
        listed = [[int(ids[k])] if k >= 0 else [] for k in which]
        columns["prefix_ids"] = pl.Series(listed, dtype=pl.List(pl.UInt64))
        columns["prefix_tokens"] = [[spec.system.tokens] if k >= 0 else [] for k in which]
    columns["prompt_tokens"] = prompt
    if spec.priorities:
        ranks, weights = (
            np.array(list(spec.priorities)),
            np.array(list(spec.priorities.values()), dtype=float),
        )
        columns["priority"] = rng.choice(ranks, n, p=weights / weights.sum())
    return make_workload(
        columns,
        name=spec.name,
        report=_report(spec.seed, n, "independent requests"),
        concurrency=closed.concurrency if closed else None,
    )


@dataclass(frozen=True)
class SessionSpec:
    """Agent sessions whose prompt grows by what was said and by tool results, turn by turn.

    turns: requests of a session; level: a session's mean prompt length; growth_frac: a session's
    prompt grows from (1 - growth_frac) to (1 + growth_frac) of its level; output: tokens a turn;
    gap_s, low..high: pause between the end of a turn and the next, drawn uniformly;
    token_s: seconds an output token is taken to last (the next turn is sent after the answer);
    starts: arrivals of the sessions; system: prompts that sessions share.
    """

    num_sessions: int
    starts: Arrivals
    turns: Lengths
    level: Lengths
    output: Lengths
    growth_frac: float = 0.4
    gap_s: tuple[float, float] = (1.0, 8.0)
    token_s: float = 0.03
    system: SystemPrompts | None = None
    prefix_block_tokens: int = 64
    max_prompt_tokens: int = 1_000_000
    seed: int = 0
    name: str = "synthetic sessions"


def sessions(spec: SessionSpec) -> Workload:
    """The requests of all sessions, interleaved by arrival. Raises SettingsError.

    A turn's prompt begins with the whole prompt of the turn before, so it shares every full block
    of it; blocks that cover an earlier answer are new to the prefix ids of the turn that first
    sends them. Arrivals do not wait for the engine: they assume `token_s` a token.
    """
    _check_count("num_sessions", spec.num_sessions)
    if not 0 <= spec.growth_frac < 1:
        raise SettingsError(f"growth_frac {spec.growth_frac!r} must be 0 or more and below 1.")
    rng = np.random.default_rng(spec.seed)
    starts = spec.starts.times(rng, spec.num_sessions)
    turns = spec.turns.sample(rng, spec.num_sessions)
    levels = spec.level.sample(rng, spec.num_sessions)
    system = spec.system or SystemPrompts(1, 0, share_frac=0.0)
    which = _choose_system(system, rng, spec.num_sessions)
    columns: dict[str, list[object]] = {
        k: []
        for k in ("arrival_s", "prompt_tokens", "output_tokens", "prefix_ids", "session_id")
    }
    outputs = spec.output.sample(rng, int(turns.sum()))
    first = np.concatenate([[0], np.cumsum(turns)[:-1]])
    for s in range(spec.num_sessions):
        out = outputs[first[s] : first[s] + turns[s]]
        prompt = _growing_prompts(
            spec, rng, int(levels[s]), out, system.tokens if which[s] >= 0 else 0
        )
        pause = rng.uniform(*spec.gap_s, len(out)) + out * spec.token_s
        columns["arrival_s"] += list(starts[s] + np.concatenate([[0.0], np.cumsum(pause)[:-1]]))
        columns["prompt_tokens"] += prompt.tolist()
        columns["output_tokens"] += out.tolist()
        columns["prefix_ids"] += _session_ids(spec, s, prompt, int(which[s]), system.tokens)
        columns["session_id"] += [f"s{s:03d}"] * len(out)
    ids = pl.Series(columns["prefix_ids"], dtype=pl.List(pl.UInt64))
    return make_workload(
        columns | {"prefix_ids": ids},
        name=spec.name,
        report=_report(spec.seed, int(turns.sum()), f"{spec.num_sessions} agent sessions"),
        prefix_block_tokens=spec.prefix_block_tokens,
    )


def _growing_prompts(
    spec: SessionSpec, rng: np.random.Generator, level: int, out: IntArray, system_tokens: int
) -> IntArray:
    """Prompt lengths of one session's turns; each holds at least the prompt and answer before it."""
    share = (
        np.linspace(1 - spec.growth_frac, 1 + spec.growth_frac, len(out))
        if len(out) > 1
        else np.ones(1)
    )
    wanted = level * share * rng.uniform(0.97, 1.03, len(out))
    prompt = np.empty(len(out), dtype=np.int64)
    floor = system_tokens + 1
    for t in range(len(out)):
        prompt[t] = min(max(floor, round(wanted[t])), spec.max_prompt_tokens)
        floor = int(prompt[t] + out[t]) + 1
    return prompt


def _session_ids(
    spec: SessionSpec, session: int, prompt: IntArray, system: int, system_tokens: int
) -> list[list[int]]:
    """Ids of the full blocks of each turn's prompt; those of the system prompt are shared."""
    blocks = int(prompt.max()) // spec.prefix_block_tokens
    own = _ids(spec.seed, np.arange(blocks) + (session + 1) * 10_000_000)
    if system >= 0:
        shared = min(system_tokens // spec.prefix_block_tokens, blocks)
        own[:shared] = _ids(spec.seed, np.arange(shared) + (system + 1) * 1_000)
    listed = own.tolist()
    return [listed[: int(p) // spec.prefix_block_tokens] for p in prompt]


def _choose_system(system: SystemPrompts, rng: np.random.Generator, n: int) -> IntArray:
    """Index of each request's system prompt, -1 for none (inside this module only)."""
    _check_count("system.num", system.num)
    if not 0 <= system.share_frac <= 1 or system.tokens < 0:
        raise SettingsError(
            "system prompts: share_frac must be between 0 and 1 and tokens 0 or more."
        )
    weights = 1.0 / np.arange(1, system.num + 1) ** system.skew
    chosen = rng.choice(system.num, n, p=weights / weights.sum())
    return np.where(rng.random(n) < system.share_frac, chosen, -1)


def _ids(seed: int, keys: IntArray) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """64-bit ids of whole numbers: distinct keys of a seed give distinct ids (splitmix64 is a bijection)."""
    z = keys.astype(np.uint64) + np.uint64(seed % 2**31) * np.uint64(2**32)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(31))


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise SettingsError(f"{name} {value!r} must be 1 or more.")


def _report(seed: int, rows: int, what: str) -> ReadReport:
    return ReadReport(
        format="synthetic",
        rows_read=rows,
        notes=(f"Synthetic: {what}, made up with seed {seed}.",),
    )


def percentiles(
    values: Sequence[int] | IntArray, at: Sequence[float] = (50, 90, 99)
) -> tuple[float, ...]:
    """Linear percentiles of `values`, for holding a workload against published figures."""
    return tuple(float(v) for v in np.percentile(np.asarray(values), list(at)))
