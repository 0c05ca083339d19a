"""Which replica each request of a Workload goes to, by a rule, and the requests of each replica.

    round-robin      one after another, whatever the requests are
    least-requests   the replica with the fewest outstanding requests
    least-tokens     the replica whose outstanding requests hold the fewest KV tokens: their prompts, and
                     the output tokens that they have got so far (a router does not know how many come)
    prefix-affinity  the replica that last had the request's prefix, if that is at least half of its
                     prompt (the session's replica, where a trace has sessions and no prefixes), and it
                     does not hold over twice the KV tokens of the emptiest; else as least-tokens

It knows requests and nothing of an engine. `assign` estimates when requests leave from a ServiceModel:
each is served at once, at one speed, however full its replica is. So it is open-loop: queueing and
preemption do not reach the router, and under pressure it takes replicas for emptier than they are.
Routing on the live state of simulated replicas is known in engine/fleet.py, with the same Router.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from traces.errors import SettingsError
from traces.workload import Workload

ROUTERS = ("round-robin", "least-requests", "least-tokens", "prefix-affinity")
MAX_REPLICAS = 1_024
MATCHED_FRAC = 0.5  # of a prompt, from which on its prefix decides
MOST_TIMES_EMPTIEST = 2  # a replica that holds more KV tokens than this is passed over


@dataclass(frozen=True)
class ServiceModel:
    """How long a request is taken to stay: prompt / prefill_tokens_per_s + output * tpot_s."""

    prefill_tokens_per_s: float = 10_000.0
    tpot_s: float = 0.02

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_s", "tpot_s"):
            value = getattr(self, name)
            if not (0 < value < float("inf")):
                raise SettingsError(f"{name} must be a positive number, not {value!r}.")


def split(
    workload: Workload,
    num_replicas: int,
    rule: str = "round-robin",
    service: ServiceModel | None = None,
) -> tuple[Workload, ...]:
    """The requests of each of `num_replicas` replicas, by a rule of ROUTERS; some may be empty.

    Arrival times stay those of the whole, on one clock, so that a replica's first request may arrive
    after 0. Of a closed loop each replica keeps its share of the concurrency, at least 1. Same
    arguments, same result. Raises SettingsError.
    """
    return pieces(workload, assign(workload, num_replicas, rule, service), num_replicas)


def pieces(
    workload: Workload, replica_of: np.ndarray, num_replicas: int
) -> tuple[Workload, ...]:
    """The requests of each replica. replica_of: (N,), the replica of each request."""
    made = []
    for k in range(num_replicas):
        share = None
        if workload.concurrency is not None:
            whole, rest = divmod(workload.concurrency, num_replicas)
            share = max(1, whole + (k < rest))
        made.append(
            replace(
                workload,
                table=workload.table.filter(pl.Series(replica_of == k)),
                name=f"{workload.name} [replica {k + 1} of {num_replicas}]",
                concurrency=share,
            )
        )
    return tuple(made)


def assign(
    workload: Workload,
    num_replicas: int,
    rule: str = "round-robin",
    service: ServiceModel | None = None,
) -> np.ndarray:
    """The replica of each request, (N,) int32, with departures as the service model estimates them.

    Raises SettingsError.
    """
    router = Router(workload, num_replicas, rule)
    if rule == "round-robin":
        return (np.arange(len(workload)) % num_replicas).astype(np.int32)
    service = service or ServiceModel()
    table = workload.table
    arrival_s, abort_s = table["arrival_s"].to_list(), table["abort_s"].to_list()
    prompt, output = table["prompt_tokens"].to_list(), table["output_tokens"].to_list()
    loads = _Loads(num_replicas, service)
    chosen = np.empty(len(workload), np.int32)
    now_s = 0.0
    for row in range(len(workload)):
        if workload.concurrency is None:
            now_s = arrival_s[row]
        elif sum(loads.num_requests) >= workload.concurrency:
            now_s = loads.first_departure_s()  # a closed loop: it comes when another leaves
        loads.advance(now_s)
        k = router.choose(row, loads.num_requests, loads.kv_tokens(now_s))
        loads.add(k, now_s, prompt[row], output[row], abort_s[row])
        chosen[row] = k
    return chosen


class Router:
    """Chooses a replica for one request after another, from what is outstanding at each."""

    def __init__(self, workload: Workload, num_replicas: int, rule: str) -> None:
        if rule not in ROUTERS:
            raise SettingsError(
                f"router {rule!r} is not known. Choose one of {', '.join(ROUTERS)}."
            )
        if (
            isinstance(num_replicas, bool)
            or not isinstance(num_replicas, int)
            or not 1 <= num_replicas <= MAX_REPLICAS
        ):
            raise SettingsError(
                f"replicas must be a whole number from 1 to {MAX_REPLICAS:,}, not {num_replicas!r}."
            )
        self.rule = rule
        self.num_replicas = num_replicas
        self._turn = [-1] * num_replicas  # when each was last chosen
        self._prompt = workload.table["prompt_tokens"].to_list()
        self._places = _Places(workload) if rule == "prefix-affinity" else None

    def choose(self, row: int, num_requests: Sequence[int], kv_tokens: Sequence[float]) -> int:
        """The replica for the request in that row; rows come in order.

        num_requests, kv_tokens: outstanding at each replica. Ties go to the replica that was chosen
        longest ago, then to the first.
        """
        if self.rule == "round-robin":
            chosen = row % self.num_replicas
        elif self.rule == "least-requests":
            chosen = self._least(num_requests)
        else:
            chosen = self._least(kv_tokens)
            known = self._places.known(row) if self._places is not None else None
            if known is not None:
                most = MOST_TIMES_EMPTIEST * kv_tokens[chosen] + self._prompt[row]
                chosen = known if kv_tokens[known] <= most else chosen
        self._turn[chosen] = row
        if self._places is not None:
            self._places.note(row, chosen)
        return chosen

    def _least(self, loads: Sequence[float]) -> int:
        turn = self._turn
        return min(range(self.num_replicas), key=lambda k: (loads[k], turn[k], k))


class _Places:
    """Which replica last had a prefix, or a session."""

    def __init__(self, workload: Workload) -> None:
        table = workload.table
        ids, lengths = table["prefix_ids"], table["prefix_tokens"]
        self._ends = np.append(0, np.cumsum(ids.list.len().to_numpy().astype(np.int64)))
        self._ids = ids.explode(empty_as_null=False, keep_nulls=False).to_numpy()
        self._tokens = lengths.explode(empty_as_null=False, keep_nulls=False).to_numpy()
        if len(self._tokens) != len(self._ids):
            self._tokens = np.full(len(self._ids), workload.prefix_block_tokens or 16, np.int64)
        self._sessions = table["session_id"].to_list()
        self._prompt = table["prompt_tokens"].to_list()
        self._of: dict[int | str, int] = {}

    def known(self, row: int) -> int | None:
        """The replica that last had at least half of this prompt, None where none had."""
        names = self._names(row)
        if names and isinstance(names[0], str):
            return self._of.get(names[0])
        found, covered = None, 0
        tokens = self._tokens[self._ends[row] : self._ends[row + 1]].tolist()
        for name, length in zip(names, tokens, strict=True):
            if name not in self._of:
                break
            found = self._of[name]
            covered += length
        return found if covered >= MATCHED_FRAC * self._prompt[row] else None

    def note(self, row: int, replica: int) -> None:
        """That replica has the request's prefix from now on."""
        for name in self._names(row):
            self._of[name] = replica

    def _names(self, row: int) -> list[int | str]:
        """A number for each leading part of the prefix, equal where all its segments are; where
        there is no prefix, the session."""
        begin, end = self._ends[row], self._ends[row + 1]
        if begin == end:
            session = self._sessions[row]
            return [] if session is None else [session]
        chain = 0
        found: list[int | str] = []
        for id_ in self._ids[begin:end].tolist():
            chain = hash((chain, id_))
            found.append(chain)
        return found


class _Loads:
    """What is outstanding at each replica, as the service model has it.

    KV tokens of a replica: the prompts of its requests, and of those past their prefill one token
    more every tpot_s; kept as sums, so that a request is touched when it comes, begins and leaves.
    """

    def __init__(self, num_replicas: int, service: ServiceModel) -> None:
        self.num_requests = [0] * num_replicas
        self._service = service
        self._prompt_tokens = [0] * num_replicas
        self._num_decoding = [0] * num_replicas
        self._begun_s = [0.0] * num_replicas  # sum of the times at which those began to decode
        # (time, order, replica, prompt, began to decode at, whether it leaves)
        self._coming: list[tuple[float, int, int, int, float, bool]] = []
        self._leaving: list[float] = []
        self._order = 0

    def add(
        self, replica: int, now_s: float, prompt: int, output: int, abort_s: float | None
    ) -> None:
        """A request comes to that replica."""
        first_s = now_s + prompt / self._service.prefill_tokens_per_s
        last_s = first_s + output * self._service.tpot_s
        if abort_s is not None:
            last_s = min(last_s, max(abort_s, now_s))
        self.num_requests[replica] += 1
        self._prompt_tokens[replica] += prompt
        begun_s = float("nan")
        if first_s < last_s:
            begun_s = first_s
            self._push(first_s, replica, 0, first_s, False)
        self._push(last_s, replica, prompt, begun_s, True)
        heapq.heappush(self._leaving, last_s)

    def _push(
        self, t_s: float, replica: int, prompt: int, begun_s: float, leaves: bool
    ) -> None:
        self._order += 1
        heapq.heappush(self._coming, (t_s, self._order, replica, prompt, begun_s, leaves))

    def advance(self, now_s: float) -> None:
        """Let all begin and leave that do so by now."""
        while self._coming and self._coming[0][0] <= now_s:
            _, _, k, prompt, begun_s, leaves = heapq.heappop(self._coming)
            step = -1 if leaves else 1
            if leaves:
                heapq.heappop(self._leaving)
                self.num_requests[k] -= 1
                self._prompt_tokens[k] -= prompt
            if begun_s == begun_s:  # an abort may come before the first token: nan
                self._num_decoding[k] += step
                self._begun_s[k] = (
                    self._begun_s[k] + step * begun_s if self._num_decoding[k] else 0.0
                )

    def first_departure_s(self) -> float:
        """When the next request leaves; there has to be one."""
        return self._leaving[0]

    def kv_tokens(self, now_s: float) -> list[float]:
        """KV tokens outstanding at each replica."""
        tpot_s = self._service.tpot_s
        return [
            prompt + (count * now_s - begun) / tpot_s
            for prompt, count, begun in zip(
                self._prompt_tokens, self._num_decoding, self._begun_s, strict=True
            )
        ]
