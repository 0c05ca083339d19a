"""Longest gap between neighbouring tokens of a request, without looking at any token.

While a request decodes, every step that ends gives it one token. So it is enough to keep when steps
ended, and to know at which step a stay on the GPU gave its first token and how many tokens it gave:
the gaps within the stay are those between its steps. Where the count does not come out (a step
passed a request over; speculative decoding), the gap is unknown, and null.
"""

from __future__ import annotations

import numpy as np

REMEMBERED_STEPS = 1 << 17  # a stay that began before has gaps that are not known


class StepEnds:
    """When the latest steps with work ended, by number from 0."""

    def __init__(self, remembered: int = REMEMBERED_STEPS) -> None:
        self.count = 0
        self._size = remembered
        self._ends = np.zeros(remembered)

    def add(self, end_s: float) -> None:
        self._ends[self.count % self._size] = end_s
        self.count += 1

    def gap(self, first: int, last: int) -> float:
        """Seconds between the ends of two steps; nan where the first is forgotten."""
        if not self.count - self._size <= first <= last < self.count:
            return float("nan")
        return float(self._ends[last % self._size] - self._ends[first % self._size])

    def longest(self, first: int, last: int) -> float:
        """Longest gap between neighbouring ends from step `first` to `last`; 0 where they are one."""
        if not self.count - self._size <= first <= last < self.count:
            return float("nan")
        a, b = first % self._size, last % self._size
        if a <= b:
            ends = self._ends[a : b + 1]
        else:
            ends = np.concatenate((self._ends[a:], self._ends[: b + 1]))
        return float(np.diff(ends).max()) if len(ends) > 1 else 0.0


class TokenGaps:
    """The longest gap of one request, told of its stays on the GPU.

    Tokens are counts of output tokens so far; nan marks what is not known any more.
    """

    __slots__ = ("_first", "_last", "_longest", "_tokens")

    def __init__(self) -> None:
        self._first: int | None = None  # step of this stay's first token
        self._last: int | None = None  # step of the last token before this stay's first
        self._tokens = 0  # at that step
        self._longest = 0.0

    def token(self, ends: StepEnds, tokens: int) -> None:
        """The step that just ended gave the first token of a stay."""
        step = ends.count - 1
        if self._last is not None:
            self._after_the_stay(ends, tokens - 1)
            self._note(ends.gap(self._last, step))
        elif tokens != 1:
            self._longest = float("nan")
        self._first, self._last, self._tokens = step, None, tokens

    def leave(self, ends: StepEnds, tokens: int) -> None:
        """The stay ends: the request was preempted, or has ended, with so many tokens."""
        if self._first is None:
            if self._last is not None:
                self._after_the_stay(ends, tokens)
            return
        last = self._first + tokens - self._tokens
        if last != ends.count - 1:
            self._longest = float("nan")
        self._note(ends.longest(self._first, last))
        self._first, self._last, self._tokens = None, last, tokens

    def abandon(self, ends: StepEnds, tokens: int) -> None:
        """The request was ended from outside, some time after its last token."""
        if self._first is not None:
            last = self._first + tokens - self._tokens
            self._note(ends.longest(self._first, last))

    def longest(self, tokens: int) -> float | None:
        """The longest gap between neighbours of so many tokens, or None: unknown, or no gap."""
        return self._longest if tokens > 1 and self._longest > 0.0 else None

    def _after_the_stay(self, ends: StepEnds, tokens: int) -> None:
        """Tokens of a step that was in flight when the stay ended."""
        assert self._last is not None
        late = tokens - self._tokens
        if late:
            self._note(ends.longest(self._last, self._last + late))
            self._last, self._tokens = self._last + late, tokens

    def _note(self, gap_s: float) -> None:
        if not gap_s <= self._longest:  # nan stays
            self._longest = gap_s if self._longest == self._longest else self._longest
