"""Data-parallel ranks that share their experts, simulated together: every step is everybody's step.

Two engines with schedulers of their own run through the simulator step by step; what a step takes is worked
out for all ranks at once, as in vLLM, where the experts' layers gather the tokens of all ranks and nobody
goes on before all are there. A model of the benchmark, not of the product: the engine knows one rank.

Per rank of R, with N tokens of its own and S of all ranks:

    arithmetic   dense * N + experts * S / R
    weights      dense + experts / R, those of them that S tokens choose
    transfer     an all-gather and a reduce-scatter a layer; through each GPU's link go the tokens of all
                 ranks but its own, so the rank with the fewest sets the time: 2 * (S - min N)
    a step       the longest rank's

Ranks hold equally loaded experts. Source of the scheme: vLLM's data parallel deployment (all-gather /
reduce-scatter back end, ranks in lockstep); of the terms: docs/cost-model.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.calibrate_live import work_of
from engine.config import EngineSettings, resolve
from engine.core.loop import give
from engine.core.state import State
from engine.cost_model import CostParams, step_time_s
from engine.devices import AllReduce, load_device
from engine.models import ModelShape
from engine.simulator import simulate_by_step
from traces.workload import Workload

Step = tuple[str, State, np.ndarray]


@dataclass
class _Rank:
    """One engine: its steps, and the one that is scheduled and not yet timed; None: it has ended."""

    steps: Iterator[Step]
    state: State | None = None

    def next_scheduled(self) -> None:
        """Go on to the next schedule, or to the end."""
        for phase, state, _ in self.steps:
            if phase == "scheduled":
                self.state = state
                return
        self.state = None

    @property
    def start_s(self) -> float:
        assert self.state is not None
        return float(_row(self.state).t_start_s)


def _row(state: State) -> np.void:
    row: np.void = state.flight_row[state.c[0].oldest_in_flight]
    return row


def simulate_ranks(
    shares: Sequence[Workload], settings: EngineSettings, folders: Sequence[Path]
) -> None:
    """Simulate each share on a rank of its own, all in lockstep; arrivals are on one clock."""
    resolved = resolve(settings)
    num = len(shares)
    link = load_device(settings.device).allreduce_at(num)
    cost = _shared(resolved.cost, resolved.model, num, link)
    dense = 1.0 - _expert_share(resolved.model)
    ranks = [
        _Rank(simulate_by_step(share, settings, folder, overwrite=True))
        for share, folder in zip(shares, folders, strict=True)
    ]
    for rank in ranks:
        rank.next_scheduled()
    now_s = 0.0
    while active := [r for r in ranks if r.state is not None]:
        start_s = max(now_s, min(r.start_s for r in active))
        here = [r for r in active if r.start_s <= start_s]
        works = [work_of(r.state)[1:] for r in here if r.state is not None]
        length_s = lockstep_s(works, cost, num, dense)
        for rank in here:
            # one that was idle begins with the others: what it waits for them is part of its step
            give(rank.state, (start_s - rank.start_s) + length_s, 0.0)
        now_s = start_s + length_s
        for rank in here:
            rank.next_scheduled()


def decode_step_s(settings: EngineSettings, num: int, context: float, ranks: int) -> float:
    """Seconds of a step in which `num` requests decode over contexts of that sum, evenly over the ranks."""
    resolved = resolve(settings)
    if ranks == 1:
        return float(step_time_s(resolved.cost, num, context, 0.0, 0, 0.0, 0.0, 0, num))
    link = load_device(settings.device).allreduce_at(ranks)
    cost = _shared(resolved.cost, resolved.model, ranks, link)
    work = (num / ranks, context / ranks, 0.0, 0.0, 0.0, num / ranks)
    return lockstep_s([work] * ranks, cost, ranks, 1.0 - _expert_share(resolved.model))


def lockstep_s(
    works: Sequence[tuple[float, ...]], cost: CostParams, num: int, dense: float
) -> float:
    """Seconds of a step of all ranks. works: (decodes, context, chunks, chunk tokens, qk, rows) of each."""
    tokens = [int(w[0] + w[3]) for w in works]
    total = sum(tokens)
    moved = (total - min(tokens)) * num / (num - 1)  # of one all-reduce of that volume
    found = 0.0
    for (decodes, context, chunks, chunk_tokens, qk, rows), own in zip(
        works, tokens, strict=True
    ):
        if not own:
            continue
        scale = total / own
        mine = cost._replace(
            token_compute_s=cost.token_compute_s * (dense + (1 - dense) * scale / num),
            expert_skip_frac=cost.expert_skip_frac**scale,
            allreduce_token_s=cost.allreduce_token_s * moved / own,
            allreduce_small_token_s=cost.allreduce_small_token_s * moved / own,
        )
        time = step_time_s(mine, int(decodes), context, 0.0, int(chunk_tokens), qk, 0.0, int(chunks), int(rows))  # fmt: skip
        found = max(found, time)
    return found


def _expert_share(model: ModelShape) -> float:
    """Share of a token's arithmetic that is in the experts."""
    if not model.is_moe:
        return 0.0
    return (
        model.expert_params * model.experts_per_token / model.num_experts / model.active_params
    )


def _shared(cost: CostParams, model: ModelShape, num: int, link: AllReduce) -> CostParams:
    """The cost model of a rank that holds 1/num of the experts; transfers for each token of all ranks."""
    layers = model.num_layers
    token_bytes = 2.0 * (num - 1) / num * model.hidden * 2.0
    return cost._replace(
        experts_read_s=cost.experts_read_s / num,
        allreduce_fixed_s=layers * link.latency_s,
        allreduce_token_s=layers * token_bytes / link.bytes_per_s,
        allreduce_small_token_s=layers * token_bytes / link.small_bytes_per_s,
        allreduce_switch_s=layers * link.switch_s,
    )
