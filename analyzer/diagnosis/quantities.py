"""Everything that rules ask of evidence, computed once when it is asked for.

It brings together the pool, growth, preemptions, lengths, stillness and ranks. What a quantity means for
a verdict is in rules/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzer.diagnosis.findings import KNOWN
from analyzer.diagnosis.growth import (
    FULL_FRAC,
    Slope,
    Stairs,
    Wall,
    find_slope,
    find_stairs,
    first_full,
    forecast,
)
from analyzer.diagnosis.hidden import Hidden, find_hidden
from analyzer.diagnosis.lengths import (
    Fits,
    Held,
    Lengths,
    find_held,
    find_lengths,
    how_many_fit,
    sweep_rows,
)
from analyzer.diagnosis.pool import Pool, derive_pool
from analyzer.diagnosis.preempting import Preemptions, count_preemptions
from analyzer.diagnosis.ranks import Imbalance, find_imbalance
from analyzer.diagnosis.series import Series, split_ranks
from analyzer.diagnosis.stillness import (
    Gap,
    Still,
    find_frozen,
    find_gaps,
    find_starved,
    usual_period,
)
from traces.evidence.evidence import Evidence, Fact, Line

_TOKEN_POOL = re.compile(r"(?<!swa )token usage: ([\d.]+)")
_OTHER_POOL = re.compile(r"(swa token|mamba) usage: ([\d.]+)")
KINDS = (
    "samples", "usage", "running", "waiting", "generation", "ranks", "steps", "pool", "lengths",
    "notices", "sweeps", "counter",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Quantities:
    """Quantities of one set of evidence; each property is computed when it is first asked for."""

    evidence: Evidence

    def has(self, kind: str) -> bool:
        """Whether the evidence has one of KINDS. Raises KeyError."""
        present = {
            "samples": lambda: self.main is not None,
            "usage": lambda: self._column("kv_usage_frac"),
            "running": lambda: (
                self.main is not None and bool(np.isfinite(self.main.running).any())
            ),
            "waiting": lambda: self._column("num_waiting"),
            "generation": lambda: (
                self.main is not None and bool(np.isfinite(self.main.generation).any())
            ),
            "ranks": lambda: len([s for s in self.ranks if s.rank is not None]) > 1,
            "steps": lambda: self.main is not None and self.main.per_step,
            "pool": lambda: self.pool.tokens is not None or self.pool.blocks is not None,
            "lengths": lambda: self.lengths.total() is not None,
            "notices": lambda: bool(self.evidence.notices),
            "sweeps": lambda: bool(self.evidence.sweeps),
            "counter": lambda: self._column("preemptions_total"),
        }
        return bool(present[kind]())

    def _column(self, name: str) -> bool:
        return self.main is not None and self.main.has(name)

    @cached_property
    def ranks(self) -> list[Series]:
        """A series a rank."""
        return split_ranks(self.evidence.telemetry)

    @cached_property
    def main(self) -> Series | None:
        """The rank to look at: the only one, or the fullest; None without samples."""
        if not self.ranks:
            return None

        def weight(series: Series) -> tuple[float, float, float]:
            usage = series.usage[np.isfinite(series.usage)]
            running = series.running[np.isfinite(series.running)]
            return (
                float(usage.max()) if len(usage) else -1.0,
                float(running.max()) if len(running) else -1.0,
                float(len(series)),
            )

        return max(self.ranks, key=weight)

    @cached_property
    def engine(self) -> str:
        """The engine's first word, "" where unknown."""
        return (self.evidence.engine or "").lower().split()[0] if self.evidence.engine else ""

    @cached_property
    def is_v0(self) -> bool:
        """Whether the log has vLLM V0's grammar."""
        if self.evidence.family.lower().startswith(("v0", "vllm-v0", "vllm_v0")):
            return True
        if self.engine != "vllm" or self.evidence.family.lower().startswith("v1"):
            return False
        return self._column("num_swapped") or self._column("host_usage_frac")  # V1 has neither

    @cached_property
    def is_v1(self) -> bool:
        """Whether it is vLLM and not V0."""
        return self.engine.startswith("vllm") and self.engine != "vllm.rs" and not self.is_v0

    @cached_property
    def slope(self) -> Slope | None:
        if self.other_pool is not None:
            return None  # usage is that of the other pool, which tokens do not fill
        return find_slope(self.main) if self.main is not None else None

    @cached_property
    def stairs(self) -> Stairs | None:
        periodic = self.main is not None and not self.main.per_step
        return find_stairs(self.main) if periodic and self.main is not None else None

    @cached_property
    def pool(self) -> Pool:
        return derive_pool(self.evidence, self.main, self.slope, self.stairs, self.is_v1)

    @cached_property
    def preemptions(self) -> Preemptions:
        return count_preemptions(self.evidence, self.ranks, self.pool, self.is_v0)

    @cached_property
    def hidden(self) -> Hidden | None:
        """Inferred preemptions of the main rank, whatever counters say."""
        budget = self.number("max_num_batched_tokens")
        if self.main is not None and self.main.per_step:
            return None  # steps are counted, not inferred
        return find_hidden(self.main, self.pool, budget) if self.main is not None else None

    @cached_property
    def lengths(self) -> Lengths:
        return find_lengths(self.evidence)

    @cached_property
    def held(self) -> Held | None:
        return find_held(self.main, self.pool) if self.main is not None else None

    @cached_property
    def growing(self) -> bool:
        """Whether the same requests grew into the wall, or to the end of the samples."""
        full, series = self.full_sample, self.main
        if self.slope is None or series is None:
            return False
        end = full if full is not None else len(series) - 1
        return self.slope.last >= end - 1 and self.slope.grown_frac >= 0.02

    @cached_property
    def fits(self) -> Fits:
        limit = self.number("max_model_len") or self.number("max_concurrency_tokens")
        length = self.number("max_concurrency_tokens")
        printed = self.number("max_concurrency") if limit == length else None
        return how_many_fit(self.pool, self.lengths, self.held, limit, self.growing, printed)

    @cached_property
    def imbalance(self) -> Imbalance | None:
        models = {
            f.value for f in self.evidence.facts if f.name == "model" and f.rank is not None
        }
        if len(models) > 1:
            return None  # what runs for one model cannot run for another
        return find_imbalance([s for s in self.ranks if s.rank is not None], self.pool)

    @cached_property
    def full_sample(self) -> int | None:
        """First sample of the main rank with at least 98 % in use."""
        return first_full(self.main) if self.main is not None else None

    @cached_property
    def wall(self) -> Wall | None:
        """When the pool is full, drawn on from what came before: the first victim, a gap, or the end."""
        if self.main is None or not self.main.timed:
            return None
        before = self._before_wall()
        return forecast(self.main, self.pool.tokens, self.stairs, before)

    def _before_wall(self) -> int | None:
        series = self.main
        if series is None:
            return None
        first, p = self.preemptions.first_s, self.preemptions
        if first is not None and p.kind == KNOWN:
            earlier = np.flatnonzero(series.t_s < first)
            late = (
                not p.logged and not series.per_step
            )  # a counter tells of a victim when it is back
            if late and self.full_sample is not None and len(earlier):
                return min(int(earlier[-1]), self.full_sample)
            return int(earlier[-1]) if len(earlier) else None
        if self.hidden is not None and self.hidden.drops:
            return self.hidden.drops[0] - 1
        return self.full_sample

    @cached_property
    def max_usage(self) -> float | None:
        usage = self.main.usage if self.main is not None else np.array([])
        return float(np.nanmax(usage)) if np.isfinite(usage).any() else None

    @cached_property
    def other_pool(self) -> tuple[str, float, float, int] | None:
        """Another pool of the model (window, state) that is fuller than the one of tokens: its name, its
        highest usage, that of tokens then, and the sample, as SGLang's lines say; None where none does."""
        series = self.main
        if series is None or self.engine not in ("sglang", ""):
            return None
        best: tuple[str, float, float, int] | None = None
        for i in range(len(series)):
            text = series.line(i).text
            tokens = _TOKEN_POOL.search(text)
            for name, said in _OTHER_POOL.findall(text) if tokens else ():
                usage = float(said)
                if tokens and usage > max(best[1] if best else 0.0, float(tokens[1])):
                    best = (name.split()[0], usage, float(tokens[1]), i)
        return best

    @cached_property
    def summed(self) -> bool:
        """Whether samples sum up several ranks: their usage is a mean, and says of no rank that it has room."""
        ranks = self.main.col("num_ranks") if self.main is not None else np.array([])
        return bool((ranks > 1).any()) and len(self.ranks) == 1

    @cached_property
    def full_frac(self) -> float:
        """Share of the samples with a usage that have at least 98 %."""
        usage = self.main.usage if self.main is not None else np.array([])
        usage = usage[np.isfinite(usage)]
        return float((usage >= FULL_FRAC).mean()) if len(usage) else 0.0

    @cached_property
    def period_s(self) -> float | None:
        return usual_period(self.main) if self.main is not None else None

    @cached_property
    def gaps(self) -> list[Gap]:
        return find_gaps(self.main, self.evidence) if self.main is not None else []

    @cached_property
    def silent_end(self) -> bool:
        """Whether statistics stopped while something else shows that time went on."""
        if self.main is None:
            return False
        at_end = any(g.after is None for g in self.gaps)
        idle = self.fact("idle_device") is not None
        killed = bool(self.evidence.all_notices("killed"))
        return at_end or idle or killed

    @cached_property
    def frozen(self) -> Still | None:
        return find_frozen(self.main) if self.main is not None else None

    @cached_property
    def starved(self) -> Still | None:
        return find_starved(self.main) if self.main is not None else None

    @cached_property
    def sweeps(self) -> list[dict[str, float]]:
        return list(sweep_rows(self.evidence))

    @cached_property
    def waiting_rate(self) -> float | None:
        """Growth of the queue a second, last sample against first; None without time."""
        return self._growth("waiting")

    def _growth(self, name: str) -> float | None:
        if self.main is None:
            return None
        values = getattr(self.main, name)
        at = self.main.valid(values, self.main.t_s)
        if len(at) < 2 or self.main.t_s[at[-1]] <= self.main.t_s[at[0]]:
            return None
        return float(values[at[-1]] - values[at[0]]) / float(
            self.main.t_s[at[-1]] - self.main.t_s[at[0]]
        )

    def fact(self, name: str) -> Fact | None:
        """A fact of the main rank."""
        return self.evidence.fact(name, self.main.rank if self.main is not None else None)

    def number(self, name: str) -> float | None:
        """A fact as a number."""
        fact = self.fact(name)
        good = (
            fact is not None
            and isinstance(fact.value, int | float)
            and not isinstance(fact.value, bool)
        )
        return float(fact.value) if good and fact is not None else None  # type: ignore[arg-type]  # a number, looked at in `good`

    def word(self, name: str) -> str:
        """A fact as lower-case text, "" where it is not there."""
        fact = self.fact(name)
        return str(fact.value).lower() if fact is not None else ""

    def lines(self, *names: str) -> tuple[Line, ...]:
        """The lines of facts."""
        found = [self.fact(n) for n in names]
        return tuple(dict.fromkeys(f.at for f in found if f is not None and f.at is not None))

    def clock(self, t_s: float | None) -> str | None:
        """A time as the source would write it; "12.5 s" where it has no clock."""
        if t_s is None or not np.isfinite(t_s):
            return None
        if self.evidence.first_time is None:
            return f"{t_s:.1f} s"
        return self.evidence.clock(t_s)
