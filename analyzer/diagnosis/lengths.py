"""How long requests are, how much each holds, and how many fit at once.

Lengths come from what was stated (notes, flags, received requests), from requests that finished, or, where
neither is there, from what running requests held: that is said each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.diagnosis.pool import Pool
from analyzer.diagnosis.series import Series
from traces.evidence.evidence import Evidence, Line
from traces.telemetry import Telemetry


@dataclass(frozen=True)
class Lengths:
    """prompt, output: (low, high) in tokens, None where unknown; sequences: n or best_of; p50, p95, max: of
    prompt + output over requests that finished; how: where from; lines."""

    prompt: tuple[int, int] | None = None
    output: tuple[int, int] | None = None
    sequences: int = 1
    p50: int | None = None
    p95: int | None = None
    longest: int | None = None
    how: str = ""
    lines: tuple[Line, ...] = ()

    def total(self) -> int | None:
        """Tokens of the longest request as stated, or of the longest that finished."""
        if self.prompt is None and self.output is None:
            return self.longest
        if self.prompt is None:
            return None
        return self.prompt[1] + self.sequences * (self.output[1] if self.output else 0)

    def blocks(self, pool: Pool) -> int | None:
        """Blocks that one request of the stated length (or of 95 in 100 that finished) ends with; all its
        sequences, prompt shared."""
        if self.prompt is None:
            return pool.blocks_for(self.p95) + pool.state_blocks if self.p95 else None
        output = self.output[1] if self.output else 0
        if self.sequences > 1:
            return pool.blocks_for(self.prompt[1]) + self.sequences * pool.blocks_for(output)
        return pool.blocks_for(self.prompt[1] + output) + pool.state_blocks


def find_lengths(evidence: Evidence) -> Lengths:
    """Lengths as stated, else of finished or received requests, else nothing."""
    n = evidence.fact("sequences_per_request")
    sequences = int(n.value) if n is not None and isinstance(n.value, int | float) else 1
    prompt, output = _pair(evidence, "prompt_tokens"), _pair(evidence, "output_tokens")
    lines = tuple(
        f.at
        for name in ("prompt_tokens", "output_tokens", "sequences_per_request")
        if (f := evidence.fact(name)) is not None and f.at is not None
    )
    totals = _finished(evidence)
    p50 = p95 = longest = None
    if len(totals):
        p50, p95, longest = (int(np.percentile(totals, q)) for q in (50, 95, 100))
    measured = _measured(evidence)
    if prompt is not None:
        how = "as stated"
    elif len(totals):
        how = f"{len(totals)} requests that finished"
    elif measured is not None:
        p50, p95, longest = measured
        how = "percentiles of requests as a client measured them"
    else:
        prompt, asked, how = _received(evidence)
        output = output or asked
    return Lengths(prompt, output, max(sequences, 1), p50, p95, longest, how, lines)


def _pair(evidence: Evidence, name: str) -> tuple[int, int] | None:
    fact = evidence.fact(name)
    if fact is None:
        return None
    values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
    numbers = [int(v) for v in values if isinstance(v, int | float)]
    return (min(numbers), max(numbers)) if numbers else None


def _measured(evidence: Evidence) -> tuple[int, int, int] | None:
    """Prompt + output at p50, p95 and most, as a benchmark states them where no server says anything."""
    if evidence.telemetry is not None:
        return None
    found = []
    for names in (
        ("p50", "mean"),
        ("p95", "p90", "max", "mean"),
        ("max", "p99", "p95", "mean"),
    ):
        total = 0.0
        for what in ("prompt", "output"):
            facts = (evidence.fact(f"{what}_{name}_tokens") for name in names)
            value = next((f.value for f in facts if f is not None), None)
            if not isinstance(value, int | float):
                return None
            total += float(value)
        found.append(int(total))
    return found[0], found[1], found[2]


def _finished(evidence: Evidence) -> np.ndarray:
    said = [
        float(p) + float(o)
        for n in evidence.all_notices("request_finished")
        if isinstance(p := n.values.get("prompt_tokens"), int | float)
        and isinstance(o := n.values.get("output_tokens"), int | float)
    ]
    telemetry: Telemetry | None = evidence.telemetry
    ended = telemetry.finished_requests if telemetry is not None else None
    if ended is not None:
        both = ended.drop_nulls(["prompt_tokens", "output_tokens"])
        said += [float(x) for x in (both["prompt_tokens"] + both["output_tokens"]).to_list()]
    return np.array(said)


def _received(evidence: Evidence) -> tuple[tuple[int, int] | None, tuple[int, int] | None, str]:
    both = [
        (int(p), int(o))
        for n in evidence.all_notices("request_received")
        if isinstance(p := n.values.get("prompt_tokens"), int | float)
        and isinstance(o := n.values.get("max_tokens"), int | float)
    ]
    if not both:
        return None, None, ""
    prompts, outputs = [p for p, _ in both], [o for _, o in both]
    how = f"{len(both)} requests as received"
    return (min(prompts), max(prompts)), (min(outputs), max(outputs)), how


@dataclass(frozen=True)
class Held:
    """What a running request held on the fullest samples. frac: of the pool; tokens: None where the pool
    is unknown; sample: the fullest; running: there."""

    frac: float
    tokens: float | None
    running: int
    usage: float
    sample: int


def find_held(series: Series, pool: Pool) -> Held | None:
    """Share and tokens per running request where the pool was fullest, or None."""
    at = series.valid(series.usage, series.running)
    at = at[(series.running[at] > 0) & (series.usage[at] > 0.005)]
    if not len(at):
        return None
    top = int(at[np.argmax(series.usage[at])])
    near = at[series.usage[at] >= 0.97 * series.usage[top]]
    frac = float(series.usage[near].sum() / series.running[near].sum())
    tokens = frac * pool.tokens if pool.tokens else None
    return Held(frac, tokens, int(series.running[top]), float(series.usage[top]), top)


@dataclass(frozen=True)
class Fits:
    """How many requests fit at once. value: the number to use; basis: at which length; at: number for each
    length for which it is known."""

    value: int | None
    basis: str
    at: dict[str, int]

    @property
    def by_held(self) -> bool:
        """Whether only what requests held is known: they may still have been growing, so more than that many
        cannot run, and that many need not reach their end."""
        return self.basis == _BASES["held_mean"]


def how_many_fit(
    pool: Pool,
    lengths: Lengths,
    held: Held | None,
    max_model_len: float | None,
    growing: bool,
    printed: float | None = None,
) -> Fits:
    """Safe concurrency at the lengths that are known. growing: running requests were still growing when
    the pool was full, so that what they held is not their length; printed: concurrency at max_model_len,
    as the engine prints it (it knows the pages of hybrid models, which a pool in tokens does not)."""
    at: dict[str, int] = {}
    blocks = pool.usable_blocks
    if blocks:
        for name, tokens in (
            ("p50", lengths.p50),
            ("p95", lengths.p95),
            ("max", lengths.longest),
        ):
            if tokens:
                at[name] = blocks // max(pool.blocks_for(tokens) + pool.state_blocks, 1)
        each = lengths.blocks(pool)
        if each and lengths.prompt is not None:
            at["stated"] = blocks // each
            low = pool.blocks_for(
                lengths.prompt[0]
                + lengths.sequences * (lengths.output[0] if lengths.output else 0)
            )
            if low and lengths.prompt[0] != lengths.prompt[1]:
                at["stated_low"] = blocks // low
        if max_model_len:
            each = pool.blocks_for(max_model_len) + pool.state_blocks
            at["max_model_len"] = blocks // max(each, 1)
    elif pool.tokens:
        total = lengths.total()
        if total:
            at["stated" if lengths.prompt is not None else "max"] = pool.tokens // total
        if lengths.prompt is not None and lengths.prompt[0] != lengths.prompt[1]:
            least = lengths.prompt[0] + lengths.sequences * (lengths.output or (0, 0))[0]
            at["stated_low"] = pool.tokens // max(least, 1)
        if max_model_len:
            at["max_model_len"] = int(pool.tokens // max_model_len)
    if printed and abs(int(printed) - at.get("max_model_len", int(printed))) > 1:
        at["max_model_len"] = int(printed)
    if held is not None:
        at["held_mean"] = int(1 / held.frac + 1e-6)
    order = ["stated", "p95", "max_model_len"]
    if not growing:
        order = ["stated", "p95", "held_mean", "max_model_len"]
    if lengths.output is None and at.get("stated"):  # a prompt alone is where a request begins
        order.remove("stated")
        order.append("stated")
    basis = next((b for b in order if b in at), "")
    return Fits(at.get(basis), _BASES.get(basis, "nothing says how long requests are"), at)


_BASES = {
    "stated": "the longest request as stated",
    "p95": "the 95th percentile of requests that finished",
    "held_mean": "the mean that running requests held when the pool was fullest",
    "max_model_len": "max_model_len",
}


def sweep_rows(evidence: Evidence) -> Sequence[dict[str, float]]:
    """Rows of tables as numbers, by name."""
    return [
        {
            k: float(v)
            for k, v in row.items()
            if isinstance(v, int | float) and not isinstance(v, bool)
        }
        for row in evidence.sweeps
    ]
