"""Ways to rebuild a victim with costs that are easy to add up, and victims as a run tells them."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from analyzer.crossover import Range, Ways, cheaper_ranges, curve
from analyzer.pages.parts.crossover_costs import Own

NOBODY = Own()
RECORDINGS = Path(__file__).parent.parent / "traces" / "samples" / "recordings"
STEPS = pl.DataFrame({"step": [1, 2, 3, 4, 5, 6], "num_running": [4] * 6})


def toy(fixed_s: float = 0.0, token_s: float = 1.0, square_s: float = 0.0, copy_s: float = 2.0, longest: int = 1600) -> Ways:  # fmt: skip
    """Recompute: fixed + a token's time + square * n^2; swap: copy_s a token each way. Blocks of 16."""

    def recompute(again: int, found: int) -> float:
        return fixed_s + token_s * again + square_s * again * again if again else 0.0

    return Ways(
        recompute,
        lambda n: (copy_s * n, copy_s * n),
        lambda n: 2 * copy_s * n,
        block_size=16,
        longest=longest,
    )


def ranges_of(ways_: Ways, frac: float = 0.0) -> list[Range]:
    return cheaper_ranges(ways_, frac, curve(ways_, frac))


def told() -> pl.DataFrame:
    """Four preemptions, of which one had computed nothing."""
    return pl.DataFrame(
        {
            "step": [3, 4, 9, 9],
            "request_id": ["a", "b", "c", "d"],
            "tokens": [100, 300, 0, 500],
            "mode_used": ["recompute", "recompute", "recompute", "swap"],
            "direct_cost_s": [0.1, 0.2, 0.0, None],
            "recompute_est_s": [0.1, 0.3, 0.0, 0.5],
            "swap_est_s": [0.2, 0.2, 0.0, 0.4],
            "found_tokens": [80, None, 0, 0],
        }
    )
