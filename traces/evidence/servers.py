"""Several servers in one log: told apart by the host, pod, service or process that a collector names.

Each gets ranks of its own, so that series of two servers are not taken for one. A process that starts after
another has ended is the same server, started again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from traces.evidence.records import Record

Server = tuple[str, str]  # unit and process


@dataclass
class _Span:
    number: int
    first: int
    last: int
    ranks: int
    samples: int = 0


@dataclass(frozen=True)
class Apart:
    """Ranks of the servers of one log. first_ranks: number of a server's process -> its first rank."""

    first_ranks: dict[int, int]
    by_server: dict[Server, int]
    by_unit: dict[str, int]
    note: str

    def rank(self, server: Server, rank: int | None) -> int | None:
        """The rank of something that this server wrote; unchanged where the server has no samples."""
        first = self.by_server.get(server, self.by_unit.get(server[0]) if server[0] else None)
        return rank if first is None else first + (rank or 0)


@dataclass
class Servers:
    """The servers whose samples were read."""

    spans: dict[Server, _Span] = field(default_factory=dict)

    def take(self, record: Record, rank: int | None) -> int:
        """Note a sample; the number of its process."""
        key = (record.unit, record.process)
        span = self.spans.get(key)
        if span is None:
            span = self.spans[key] = _Span(len(self.spans), record.number, record.number, 1)
        span.last = record.number
        span.samples += 1
        span.ranks = max(span.ranks, (rank or 0) + 1)
        return span.number

    def apart(self) -> Apart | None:
        """How the servers are told apart; None where there is one."""
        groups: list[list[Server]] = []
        for key in sorted(self.spans, key=lambda k: self.spans[k].number):
            for group in groups:
                last = self.spans[group[-1]]
                same_unit = group[-1][0] == key[0]
                if same_unit and last.last < self.spans[key].first:
                    group.append(key)
                    break
            else:
                groups.append([key])
        each_has = [sum(self.spans[k].samples for k in group) for group in groups]
        if len(groups) < 2 or min(each_has) < 2:
            return None  # one server, or names that change from line to line
        each = max(s.ranks for s in self.spans.values())
        first = {key: i * each for i, group in enumerate(groups) for key in group}
        units: dict[str, int] = {}
        for unit, _ in first:
            units.setdefault(unit, min(r for (u, _), r in first.items() if u == unit))
        several = len({unit for unit, _ in first}) > 1
        named = ", ".join(
            f"{first[g[0]]}: {(g[0][0] if several else '') or g[0][1] or 'no name'}"
            for g in groups[:8]
        )
        return Apart(
            {self.spans[k].number: r for k, r in first.items()},
            first,
            {u: r for u, r in units.items() if several},
            f"{len(groups)} servers write into this log; they are told apart by rank ({named})",
        )
