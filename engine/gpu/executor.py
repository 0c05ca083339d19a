"""Runs the steps that engine.core decided: tokens in, next tokens out, two steps in flight at most.

`submit` only enqueues (on a CPU it computes at once), `wait` fetches the sampled tokens and the time.
What a request samples goes into the token table on the device, so that the next step finds it there
before the host has seen it: that is what asynchronous scheduling needs. It decides nothing, moves no
blocks (swap.py), and knows requests only as rows of the block table.

Legend: R requests of a step, T their tokens, M those that get a next token.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.gpu.attention import AttentionBackend
from engine.gpu.batch import StepInputs
from engine.gpu.forward import PaddedForward, PagedForward
from engine.gpu.graphs import (
    Capturer,
    CudaCapturer,
    DecodeGraphs,
    bucket_sizes,
    capture_or_warn,
)
from engine.gpu.kv_cache import KVCache
from engine.gpu.model import CausalLM
from engine.gpu.sampling import Sampling, marked_ids, row_seeds, sample
from engine.gpu.step_tensors import PackedStep, StepTensors
from traces.errors import InvariantError, SettingsError

MAX_IN_FLIGHT = 2


@dataclass
class Outputs:
    """What one step brought.

    token_ids (M,) int64: next tokens of the requests with samples, in the order of the step;
    compute_s: seconds of forward, sampling and putting the tokens where wait() finds them (CUDA:
    between events, so time in which the device waited for launches counts); num_padded: requests
    that were computed only to fill a CUDA graph, None where the step ran without one.
    """

    token_ids: np.ndarray
    compute_s: float
    num_padded: int | None


@dataclass(eq=False)
class Ticket:
    """A step that was submitted. host_ids: its tokens, as sampling.marked_ids marks them, once
    `ended` has fired (None: it has)."""

    host_ids: torch.Tensor
    compute_s: float
    num_padded: int | None
    began: Any = None
    ended: Any = None


class Executor:
    """One model on one device with one KV cache.

    num_slots, table_width: rows of the scheduler's block table, and their width in blocks;
    max_num_seqs, token_budget: most requests and tokens of a step; max_model_len: most tokens of a
    request. cuda_graphs: decode steps run under graphs where device and backend allow, which are
    captured here and take memory (graph_bytes, for each of graph_sizes); check: hold every step
    against the laws, and look for NaN in the logits (slow); capturer: who makes graphs, None: CUDA.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: KVCache,
        backend: AttentionBackend,
        *,
        num_slots: int,
        table_width: int,
        max_num_seqs: int,
        token_budget: int,
        max_model_len: int,
        sampling: Sampling,
        cuda_graphs: bool = True,
        check: bool = False,
        capturer: Capturer | None = None,
    ) -> None:
        self.device = torch.device(kv.device)
        self.sampling = sampling
        self._model = model
        self._check = check
        self._warned = False  # of logits that are not finite
        self._on_cuda = self.device.type == "cuda"
        if self._on_cuda:
            _check_current(self.device)
        self._tensors = StepTensors(
            num_slots=num_slots,
            table_width=table_width,
            block_size=kv.block_size,
            max_num_seqs=max_num_seqs,
            token_budget=token_budget,
            device=self.device,
            check=check,
        )
        self._forward = PagedForward(model, kv, backend, self._tensors)
        self._keys = np.zeros(num_slots, np.uint64)
        self._in_flight: list[Ticket] = []
        self._graphs: DecodeGraphs | None = None
        if cuda_graphs and capturer is None and self._on_cuda:
            capturer = _cuda_capturer(backend, self.device)
        if cuda_graphs and capturer is not None:
            longest = min(max_model_len, (kv.num_blocks - 1) * kv.block_size)
            self._capture(model, kv, backend, max_num_seqs, longest, capturer)

    @torch.inference_mode()
    def _capture(
        self,
        model: CausalLM,
        kv: KVCache,
        backend: AttentionBackend,
        max_num_seqs: int,
        longest: int,
        capturer: Capturer,
    ) -> None:
        sizes = bucket_sizes(max_num_seqs)
        self._padded = PaddedForward(model, kv, backend, self._tensors, sizes, longest)
        self._graphs = capture_or_warn(self._padded, sizes, capturer)

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Numbers of requests for which a graph was captured; empty: every step runs without."""
        return self._graphs.sizes if self._graphs is not None else ()

    @property
    def graph_bytes(self) -> int:
        """Device memory that the graphs took."""
        return self._graphs.memory_bytes if self._graphs is not None else 0

    def load_tokens(self, slot: int, tokens: np.ndarray, key: int | None = None) -> None:
        """Take the known tokens of a request that has entered row `slot` (admitted or come back).

        Call it whenever the scheduler has handed the row out, before the request's first step there.
        tokens (n,): prompt and what was sampled so far, any integer type. key: 64 bits that name the
        request in draws, the same each time; may be left out where sampling is greedy.
        """
        if key is None and not self.sampling.greedy:
            raise InvariantError(f"row {slot}: a request needs a key for its draws")
        self._keys[slot] = (key or 0) & (2**64 - 1)
        self._tensors.load_tokens(slot, tokens)

    @torch.inference_mode()
    def submit(self, step: StepInputs) -> Ticket:
        """Enqueue one step; step's arrays may change as soon as this returns. R is at least 1."""
        if len(self._in_flight) == MAX_IN_FLIGHT:
            raise InvariantError(
                f"{MAX_IN_FLIGHT} steps are in flight: wait() for the older one before the next"
            )
        size = self._graph_size(step)
        packed = self._tensors.pack(step, self._seeds(step), padded=size)
        began, started_s = self._mark(), time.perf_counter()
        if self._graphs is not None and size is not None:
            self._graphs.replay(size)
            hidden = self._padded.hidden
        else:
            hidden = self._forward.eager(packed)
        host_ids = self._to_host(self._next_tokens(packed, hidden))
        compute_s = time.perf_counter() - started_s
        num_padded = None if size is None else size - len(step.slot)
        ticket = Ticket(host_ids, compute_s, num_padded, began, self._mark())
        self._in_flight.append(ticket)
        return ticket

    def wait(self, ticket: Ticket) -> Outputs:
        """The outputs of a submitted step, when it has ended; once a ticket, the older one first."""
        if not self._in_flight or self._in_flight[0] is not ticket:
            raise InvariantError("wait() for the oldest step in flight, once")
        del self._in_flight[0]
        compute_s = ticket.compute_s
        if ticket.ended is not None:
            ticket.ended.synchronize()
            compute_s = ticket.began.elapsed_time(ticket.ended) / 1e3
        return Outputs(self._checked(ticket.host_ids.numpy()), compute_s, ticket.num_padded)

    def _checked(self, marked: np.ndarray) -> np.ndarray:
        """The ids of marked_ids' marks; the first time that a logit was not finite, a warning."""
        bad = marked < 0
        if not bad.any():
            return marked
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the model's logits are not finite (NaN or infinite): the answers mean nothing from here on. Its weights are damaged, or its numbers do not fit {str(self._model.dtype).removeprefix('torch.')}: fetch them again, or choose another --dtype.",
                stacklevel=2,
            )
        return np.where(bad, ~marked, marked)

    def _seeds(self, step: StepInputs) -> np.ndarray | None:
        if self.sampling.greedy:
            return None
        rows = step.samples
        ends = (step.start + step.tokens)[rows]
        return row_seeds(self.sampling.seed, self._keys[step.slot[rows]], ends)

    def _graph_size(self, step: StepInputs) -> int | None:
        """The size of the graph that this step runs under; None: it runs without."""
        if self._graphs is None or not (step.tokens == 1).all():
            return None
        return self._graphs.size_for(len(step.slot))

    def _next_tokens(self, packed: PackedStep, hidden: torch.Tensor) -> torch.Tensor:
        """Sample (M,) next tokens, marked, and put them into the token table."""
        parts = packed.parts
        if parts.logit_rows.numel() == 0:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        logits = self._model.logits(hidden.index_select(0, parts.logit_rows))
        if self._check and not bool(torch.isfinite(logits).all()):
            bad = torch.nonzero(~torch.isfinite(logits).all(dim=1)).flatten().tolist()
            raise InvariantError(f"logits of sampled rows {bad} of the step are not finite")
        ids = sample(logits, self.sampling, parts.seeds.view(-1, 2))
        self._tensors.tokens.index_copy_(0, parts.write_index, ids.int())
        return marked_ids(ids, logits)

    def _to_host(self, ids: torch.Tensor) -> torch.Tensor:
        if not self._on_cuda:
            return ids
        host = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
        return host.copy_(ids, non_blocking=True)

    def _mark(self) -> Any:
        """An event on the current stream; None on a CPU."""
        if not self._on_cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _check_current(device: torch.device) -> None:
    """Raise SettingsError unless launches, events and graphs go to that device."""
    current = torch.cuda.current_device()
    if device.index not in (None, current):
        raise SettingsError(
            f"the KV cache lies on {device}, but this process works on cuda:{current}. Choose the card with "
            "the environment variable CUDA_VISIBLE_DEVICES and use --torch-device cuda."
        )


def _cuda_capturer(backend: AttentionBackend, device: torch.device) -> Capturer | None:
    if backend.graph_safe:
        return CudaCapturer(device)
    warnings.warn(
        f"decode runs without CUDA graphs, which is slower for small models: attention backend "
        f"{backend.name} cannot be captured. Use --attention triton_paged for graphs.",
        stacklevel=3,
    )
    return None


def profile_step(
    model: CausalLM, *, num_tokens: int, num_logit_rows: int, sampling: Sampling
) -> None:
    """Compute one step of that many tokens without a KV cache, and wait for it.

    For sizing memory: what a step's activations, logits and sampling need is what this takes at its
    peak. Attention is left out; its output has the size of the query.
    """
    device = model.device
    with torch.inference_mode():
        token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        positions = torch.arange(num_tokens, device=device) % model.config.max_model_len
        hidden = model.forward(token_ids, positions, _no_attention)
        rows = min(num_logit_rows, num_tokens)
        seeds = torch.zeros(rows, 2, dtype=torch.int32, device=device)
        sample(model.logits(hidden[:rows]), sampling, seeds)
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _no_attention(
    layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    return torch.empty_like(query)
