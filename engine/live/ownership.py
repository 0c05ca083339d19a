"""Who holds which block: samples of block tables to intervals of ownership.

Samples come every so many steps, so an interval is right to that many steps. Within one stay on the
GPU a block table only grows; whatever differs from the last sample ended there.
"""

from __future__ import annotations

from collections.abc import Mapping

Interval = tuple[
    int, str, int, int, int
]  # block, request, place in its table, first, last step


class Ownership:
    """Intervals that are open, and those that a sample closed."""

    def __init__(self) -> None:
        self._tables: dict[str, list[int]] = {}
        self._since: dict[str, list[int]] = {}  # request -> first step of each of its blocks
        self._last_step = 0

    def sample(self, step: int, tables: Mapping[str, list[int]]) -> list[Interval]:
        """Take the block tables of all requests that hold any; returns intervals that ended."""
        ended: list[Interval] = []
        for request in [r for r in self._tables if r not in tables]:
            ended += self._close(request, 0)
            del self._tables[request], self._since[request]
        for request, blocks in tables.items():
            known = self._tables.get(request, [])
            same = len(known)
            if blocks[:same] != known:
                pairs = zip(known, blocks, strict=False)
                same = next(
                    (i for i, (a, b) in enumerate(pairs) if a != b),
                    min(len(known), len(blocks)),
                )
                ended += self._close(request, same)
            since = self._since.setdefault(request, [])
            since += [step] * (len(blocks) - len(since))
            self._tables[request] = blocks
        self._last_step = step
        return ended

    def cut(self) -> list[Interval]:
        """End every open interval at the last sample; those that go on start again after it."""
        ended: list[Interval] = []
        for request, blocks in self._tables.items():
            ended += self._close(request, 0)
            self._since[request] = [self._last_step + 1] * len(blocks)
        return [e for e in ended if e[3] <= e[4]]

    def _close(self, request: str, first: int) -> list[Interval]:
        blocks, since = self._tables[request], self._since[request]
        ended = [
            (blocks[i], request, i, since[i], self._last_step)
            for i in range(first, len(blocks))
        ]
        del since[first:]
        return [e for e in ended if e[3] <= e[4]]
