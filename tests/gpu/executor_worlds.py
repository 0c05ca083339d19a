"""Small worlds for the executor: a tiny random model, a pool full of NaN, and steps written by hand.

`World` plays the scheduler: it hands out blocks (in a shuffled order) and rows, poisons what is given
back, and turns lines like ("a", 3) into StepInputs. `dense_tokens` is the answer: the same model,
attention over the whole sequence, no cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.gpu.attention import get_backend
from engine.gpu.batch import StepInputs
from engine.gpu.executor import Executor, Outputs, Ticket
from engine.gpu.kv_cache import KVCache
from engine.gpu.model import CausalLM
from engine.gpu.model_config import ModelConfig, RopeConfig
from engine.gpu.sampling import Sampling, row_seeds, sample

BLOCK = 4
PROMPTS = {"a": 7, "b": 3, "c": 12, "d": 1}


def tiny_model(dtype=torch.float64, *, vocab=97, window=0, device="cpu") -> CausalLM:
    """A Llama of 2 layers with fixed random weights, large enough to disagree about tokens."""
    config = ModelConfig(
        name="tiny",
        family="llama",
        num_layers=2,
        hidden=32,
        ffn=48,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab=vocab,
        max_model_len=32,
        windows=(0, window),
        rope=RopeConfig(),
    )
    model = CausalLM(config, dtype=dtype, device=device)
    random = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        weight = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        parameter.data.copy_(
            weight if parameter.ndim == 1 else weight / parameter.shape[1] ** 0.5
        )
    for layer in model.layers:
        layer.qkv.data.mul_(2.0)  # attention that chooses, and that counts
        layer.out.data.mul_(4.0)
    return model


def prompt(name: str, vocab: int = 97) -> list[int]:
    """The seeded prompt of request `name`."""
    return np.random.default_rng(ord(name)).integers(0, vocab, PROMPTS[name]).tolist()


def dense_logits(model: CausalLM, tokens: list[int]) -> torch.Tensor:
    """Logits (n, vocab) of a whole sequence, computed without a cache."""

    def attend(layer, q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * model.scale
        at = torch.arange(len(tokens))
        hidden = at[None, :] > at[:, None]
        if model.config.windows[layer] > 0:
            hidden |= at[None, :] <= at[:, None] - model.config.windows[layer]
        return torch.einsum(
            "hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v
        )

    with torch.inference_mode():
        hidden = model.forward(torch.tensor(tokens), torch.arange(len(tokens)), attend)
        return model.logits(hidden)


def dense_tokens(
    model: CausalLM,
    tokens: list[int],
    num: int,
    sampling: Sampling | None = None,
    key: int = 0,
) -> list[int]:
    """The next `num` tokens after `tokens`."""
    sampling = sampling or Sampling()
    known = list(tokens)
    for _ in range(num):
        seeds = row_seeds(sampling.seed, np.array([key], np.uint64), np.array([len(known)]))
        row = dense_logits(model, known)[-1:]
        known.append(int(sample(row, sampling, torch.from_numpy(seeds))))
    return known[len(tokens) :]


@dataclass
class Row:
    """A request in the world: tokens the host knows, how many are in flight, KV computed, blocks."""

    slot: int
    tokens: list[int]
    in_flight: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class World:
    """A scheduler's tables, an executor, and requests by one-letter names."""

    def __init__(
        self,
        model: CausalLM | None = None,
        *,
        shuffle: int = 0,
        num_blocks: int = 40,
        num_slots: int = 6,
        width: int = 8,
        max_num_seqs: int = 6,
        block_size: int = BLOCK,
        sampling: Sampling | None = None,
        backend="gather_sdpa",
        executor=Executor,
        **options,
    ) -> None:
        self.model = model or tiny_model()
        c = self.model.config
        self.kv = KVCache(
            num_blocks, c.num_layers, block_size, c.num_kv_heads, c.head_dim,
            dtype=self.model.dtype, device=self.model.device,
        )  # fmt: skip
        self.kv.poison(range(num_blocks))
        if isinstance(backend, str):
            backend = get_backend(backend, self.kv, c.num_heads, windows=c.windows)
        order = np.random.default_rng(shuffle).permutation(np.arange(1, num_blocks))
        self.free = order.tolist()
        self.table = np.zeros((num_slots, width), np.int32)
        self.executor = executor(
            self.model,
            self.kv,
            backend,
            num_slots=num_slots,
            table_width=width,
            max_num_seqs=max_num_seqs,
            token_budget=32,
            max_model_len=c.max_model_len,
            sampling=sampling or Sampling(),
            check=True,
            **options,
        )
        self.rows: dict[str, Row] = {}

    def enter(self, name: str, slot: int, tokens: Iterable[int] | None = None) -> None:
        """Give a request a row of the table, and the executor what is known of it."""
        known = prompt(name) if tokens is None else list(tokens)
        self.rows[name] = Row(slot, known)
        self.executor.load_tokens(slot, np.array(known), key=ord(name))

    def leave(self, name: str) -> list[int]:
        """Take a request's row and blocks away; what was in them is poisoned. Returns its tokens."""
        row = self.rows.pop(name)
        self.kv.poison(row.blocks)
        self.free += row.blocks
        return row.tokens

    def move(self, name: str) -> None:
        """Swap a request out and in: its KV goes to other blocks, its row stays."""
        row = self.rows[name]
        old, row.blocks = row.blocks, [self.free.pop(0) for _ in row.blocks]
        self.kv.blocks[row.blocks] = self.kv.blocks[old]
        self.table[row.slot, : len(old)] = row.blocks
        self.kv.poison(old)
        self.free += old
        self.executor.load_tokens(row.slot, np.array(row.tokens), key=ord(name))

    def inputs(self, *parts: tuple[str, int]) -> StepInputs:
        """The step that computes so many tokens of each of the named requests."""
        columns = []
        for name, num in parts:
            row = self.rows[name]
            before = len(row.blocks)
            while len(row.blocks) * self.kv.block_size < row.computed + num:
                row.blocks.append(self.free.pop(0))
                self.table[row.slot, len(row.blocks) - 1] = row.blocks[-1]
            samples = row.computed + num == len(row.tokens) + row.in_flight
            columns.append(
                (ord(name), row.slot, row.computed, num, samples, before, len(row.blocks))
            )
            row.computed += num
            row.in_flight += samples
        request, slot, start, tokens, samples, new_from, num_blocks = map(
            np.array, zip(*columns, strict=True)
        )
        return StepInputs(
            request, slot, start, tokens, samples, new_from, num_blocks, self.table
        )

    def submit(self, *parts: tuple[str, int]) -> tuple[Ticket, list[str]]:
        """Submit that step; with it the names of those that get a token."""
        step = self.inputs(*parts)
        ticket = self.executor.submit(step)
        sampled = [
            name for (name, _), samples in zip(parts, step.samples, strict=True) if samples
        ]
        for array in step[:7]:  # they belong to the scheduler, which reuses them
            array[:] = 77
        return ticket, sampled

    def take(self, submitted: tuple[Ticket, list[str]]) -> Outputs:
        """Wait for a step and note its tokens."""
        ticket, names = submitted
        outputs = self.executor.wait(ticket)
        assert len(outputs.token_ids) == len(names)
        for name, token in zip(names, outputs.token_ids.tolist(), strict=True):
            self.rows[name].tokens.append(token)
            self.rows[name].in_flight -= 1
        return outputs

    def step(self, *parts: tuple[str, int]) -> Outputs:
        return self.take(self.submit(*parts))

    def decode(self, names: str, times: int) -> None:
        for _ in range(times):
            self.step(*((name, 1) for name in names))

    def sampled(self, name: str) -> list[int]:
        return self.rows[name].tokens[PROMPTS[name] :]
