"""Pool sizes that follow from lines which print a count and a rounded share of it.

Each line bounds the pool from both sides (half of the share's last digit); bounds of all lines are put together,
and where they contradict each other, the pool has changed and counting starts anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from traces.evidence.evidence import Fact
from traces.evidence.grammars.grammar import number_of
from traces.evidence.source import Source
from traces.evidence.times import Time

_FREE = re.compile(
    r"GPU Kvcache: (\d+) blocks \((\d+) tokens\) free, used ([\d.]+)% \([\d.]+GB/([\d.]+)GB\)"
)
_HOST = re.compile(r"CPU swap used [\d.]+% \([\d.]+GB/([\d.]+)GB\)")
_USED = re.compile(r"#(?:full )?token: (\d+),\s+(?:full )?token[ _]?usage: ([\d.]+)")
_WINDOW = re.compile(r"#swa token: (\d+), swa token usage: ([\d.]+)")
_STATES = re.compile(r"#?mamba num: (\d+), mamba usage: ([\d.]+)")


@dataclass
class Bounds:
    """Least and greatest value that all lines allow."""

    low: float = 0.0
    high: float = float("inf")
    lines: int = 0

    def narrow(self, low: float, high: float) -> None:
        """Add what one line allows."""
        low, high = max(self.low, low), min(self.high, high)
        if low > high:
            self.low, self.high, self.lines = 0.0, float("inf"), 0
            return
        self.low, self.high, self.lines = low, high, self.lines + 1

    @property
    def value(self) -> int | None:
        """The middle, None where nothing bounds it or hardly so."""
        if not self.lines or self.high > 1.2 * self.low:
            return None
        return round((self.low + self.high) / 2)


@dataclass
class PoolEstimates:
    """Bounds on the pool of one source."""

    blocks: Bounds = field(default_factory=Bounds)
    tokens: Bounds = field(default_factory=Bounds)
    window: Bounds = field(default_factory=Bounds)
    states: Bounds = field(default_factory=Bounds)
    block_tokens: int | None = None
    host_share: tuple[float, float] | None = None

    def take(self, grammar: str, text: str, sample: Mapping[str, Any]) -> None:
        """Read the counts of one sample's line, where its grammar has some."""
        if grammar == "vllm.rs-pool" and (m := _FREE.search(text)):
            free, tokens, percent, of_host = (number_of(m[i]) for i in (1, 2, 3, 4))
            if percent is not None and free and tokens is not None:
                used = percent / 100
                least, most = 1 - used - 0.0005, 1 - used + 0.0005
                if least > 0:
                    self.blocks.narrow(free / most, free / least)
                    self.block_tokens = int(tokens // free)
            host = _HOST.search(text)
            if host and of_host and (share := number_of(host[1])) is not None:
                self.host_share = (share, of_host)
        elif grammar in ("sglang-decode", "sglang-batch"):
            pairs = ((_USED, self.tokens), (_WINDOW, self.window), (_STATES, self.states))
            for pattern, bounds in pairs:
                m = pattern.search(text)
                count, share = (number_of(m[1]), number_of(m[2])) if m else (None, None)
                if count and share is not None and share >= 0.05:
                    bounds.narrow(count / (share + 0.005), count / (share - 0.005))

    def finish(self, facts: list[tuple[Fact, Time | None]], source: Source) -> None:
        """Add the facts that follow."""
        known = {f.name for f, _ in facts if not f.inferred}
        if (blocks := self.blocks.value) is not None and "pool_blocks" not in known:
            note = (
                f"free blocks over the free share, {self.blocks.lines} lines together: "
                f"{self.blocks.low:.1f} to {self.blocks.high:.1f}"
            )
            _add(facts, "pool_blocks", blocks, note)
            if self.block_tokens:
                _add(
                    facts,
                    "pool_tokens",
                    blocks * self.block_tokens,
                    "pool blocks times block size",
                )
            if self.host_share and self.host_share[0] and self.host_share[1]:
                host = round(blocks * self.host_share[0] / self.host_share[1])
                _add(
                    facts,
                    "host_pool_blocks",
                    host,
                    "pool blocks times the ratio of the two pools' bytes",
                )
        tokens = "pool_tokens_by_usage" if "pool_tokens" in known else "pool_tokens"
        for name, bounds, what in (
            (tokens, self.tokens, "used tokens"),
            ("window_pool_tokens", self.window, "window tokens"),
            ("state_slots", self.states, "state slots"),
        ):
            if (value := bounds.value) is not None and name not in known:
                note = (
                    f"{what} over the printed share, {bounds.lines} lines together: "
                    f"{bounds.low:.0f} to {bounds.high:.0f}"
                )
                _add(facts, name, value, note)


def _add(facts: list[tuple[Fact, Time | None]], name: str, value: int, note: str) -> None:
    facts.append((Fact(name, value, inferred=True, note=note), None))
