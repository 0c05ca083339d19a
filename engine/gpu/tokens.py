"""Token ids of each request: its prompt, and what it has generated so far.

Prompts are given, or drawn: a trace knows lengths and shared prefixes only. What is drawn depends on
the seed, on the prefix segments (equal segments at equal places are equal tokens, as the scheduler's
prefix cache takes them to be) and for the rest on the request alone. It knows no device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.core.state import State, mix

_START = np.uint64(0x243F6A8885A308D3)  # of a chain of segments, as in engine.core.prefix
_OWN = np.uint64(0x9E3779B97F4A7C15)  # keeps a request's own tokens apart from any segment's


class Tokens:
    """Known tokens of the requests of a run.

    vocab: ids are drawn below it; prompts: ids of each request, or None to draw them.
    """

    def __init__(
        self, s: State, vocab: int, seed: int, prompts: Sequence[np.ndarray] | None = None
    ) -> None:
        self._s = s
        self._vocab = vocab
        self._seed = seed
        self._prompts = prompts
        self._known: dict[int, np.ndarray] = {}
        self._count: dict[int, int] = {}

    def known(self, r: int) -> np.ndarray:
        """Ids of all tokens of request r that are known: its prompt and what was generated."""
        return self._row(r)[: self._count[r]]

    def generated(self, r: int) -> np.ndarray:
        """Ids that request r has generated."""
        return self._row(r)[int(self._s.requests[r].prompt) : self._count[r]]

    def append(self, r: int, token: int) -> None:
        """Note the next generated token of request r."""
        row = self._row(r)
        row[self._count[r]] = token
        self._count[r] += 1

    def held(self) -> list[int]:
        """Requests whose tokens are known here."""
        return list(self._known)

    def drop(self, r: int) -> None:
        """Forget a request that has ended."""
        self._known.pop(r, None)
        self._count.pop(r, None)

    def _row(self, r: int) -> np.ndarray:
        row = self._known.get(r)
        if row is None:
            q = self._s.requests[r]
            prompt = self._prompt(r)
            row = np.empty(int(q.prompt + q.max_tokens), np.int32)
            row[: len(prompt)] = prompt
            self._known[r] = row
            self._count[r] = len(prompt)
        return row

    def _prompt(self, r: int) -> np.ndarray:
        q = self._s.requests[r]
        length = int(q.prompt)
        if self._prompts is not None:
            return self._prompts[r]
        ids = np.empty(length, np.int32)
        done, before = 0, _START
        for k in range(int(q.seg_start), int(q.seg_start + q.num_segs)):
            segment = self._s.segs[k]
            end = int(segment.end)
            # What a shorter prompt cuts off does not change the rest (prefix.shared_hash).
            what = np.uint64(mix(before, np.uint64(segment.id)))
            ids[done:end] = self._draw(what, end - done)
            done, before = end, np.uint64(segment.chain)
        ids[done:] = self._draw(_OWN ^ np.uint64(r + 1), length - done)
        return ids

    def _draw(self, what: np.uint64, n: int) -> np.ndarray:
        key = np.array([np.uint64(self._seed), what], np.uint64)
        return np.random.Generator(np.random.Philox(key=key)).integers(
            0, self._vocab, n, dtype=np.int32
        )
