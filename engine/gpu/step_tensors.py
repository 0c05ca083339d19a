"""Persistent tables on the device, and a step's numbers packed into one buffer for one copy.

The tables: every row's known tokens and every row's block ids. A step sends only what it changed.
It knows rows, tokens and blocks; not the model, not who is scheduled or why. There is no loop over
requests: a step of 256 costs a few dozen NumPy calls.

On the CPU the packed buffer is what the model reads: nothing is copied. On CUDA it is pinned and
there are two, because a step is packed while the step before it may still wait for its copy.

Legend: S rows of the block table, W its width in blocks, L = W * block_size tokens of a row,
R requests of a step, T their tokens, M those that get a next token, D changed places of the table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from engine.gpu.batch import AttentionBatch, StepInputs
from engine.gpu.step_buffer import Layout, Parts, Staging
from traces.errors import InvariantError

_NOWHERE = -1  # slot_mapping of padding: its K and V are written nowhere


class PackedStep(NamedTuple):
    """One step on the device; requests with one query token come first.

    num_requests: R with padding. parts: device tensors; its samples are in the step's order.
    query_lens_host, seq_lens_host (R,): as in AttentionBatch.
    """

    num_requests: int
    num_decode: int
    parts: Parts
    query_lens_host: np.ndarray
    seq_lens_host: np.ndarray


class BlockTable:
    """The block table on the device: ids (S, W) int32 in token order, 0 past a row's blocks."""

    def __init__(self, num_slots: int, width: int, device: torch.device) -> None:
        self.ids = torch.zeros(num_slots, width, dtype=torch.int32, device=device)
        self._flat = self.ids.view(-1)
        self._known = np.zeros(
            num_slots, np.int64
        )  # leading places of a row that may differ from 0
        self._owner = np.full(
            num_slots, -1, np.int64
        )  # the request that the row's ids belong to
        self._used_at = np.full(num_slots, -1, np.int64)  # the last step that it was in
        self._step = 0

    def forget(self, slot: int) -> None:
        """The row has a new request: nothing of what the device has of it holds."""
        self._owner[slot] = -1

    def changes(self, step: StepInputs) -> tuple[np.ndarray, np.ndarray]:
        """Places (D,) int64 of the flat table that this step changes, and their ids (D,) int32.

        A row is trusted up to `new_from` if the same request held it in the step before; else it is
        sent whole, because blocks may have been handed over in a step that it took no part in.
        """
        slot, width = step.slot, self.ids.shape[1]
        known = self._known[slot]
        went_on = (self._owner[slot] == step.request) & (self._used_at[slot] == self._step - 1)
        first = np.where(went_on, np.minimum(step.new_from, known), 0)
        count = np.maximum(step.num_blocks, known) - first  # ids past the row's end become 0
        self._known[slot] = step.num_blocks
        self._owner[slot] = step.request
        self._used_at[slot] = self._step
        self._step += 1
        total = int(count.sum())
        if total == 0:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        of = np.repeat(np.arange(len(slot)), count)
        place = np.arange(total) + (first - (np.cumsum(count) - count))[of]
        rows = slot[of]
        ids = np.where(place < step.num_blocks[of], step.table[rows, place], 0)
        return rows * width + place, ids

    def write(self, places: torch.Tensor, ids: torch.Tensor) -> None:
        """Set places (D,) int64 of the flat table to ids (D,) int32; both on the device."""
        self._flat.index_copy_(0, places, ids)


class StepTensors:
    """The two tables and the step buffers.

    tokens (S * L + 1,) int32: known tokens, row after row, and one cell that is no row's.
    check: hold each step against the laws, and the tables against the scheduler's (slow).
    """

    def __init__(
        self,
        *,
        num_slots: int,
        table_width: int,
        block_size: int,
        max_num_seqs: int,
        token_budget: int,
        device: torch.device,
        check: bool = False,
    ) -> None:
        self.block_size = block_size
        self.row_tokens = table_width * block_size
        self.check = check
        self._pinned = device.type == "cuda"
        cells = num_slots * self.row_tokens + 1
        self.tokens = torch.zeros(cells, dtype=torch.int32, device=device)
        self._padding_cell = cells - 1
        self.table = BlockTable(num_slots, table_width, device)
        most_tokens = max(token_budget, max_num_seqs)
        # The blocks that a step adds are bounded by its tokens, but for rows that enter with their
        # KV (found in the cache, swapped in): where those are too many they get their own copy.
        self._max_changes = most_tokens + 4 * max_num_seqs
        words = Layout(max_num_seqs, most_tokens, max_num_seqs, self._max_changes).words
        self._staging = [Staging(words, self._pinned) for _ in range(1 + self._pinned)]
        self._turn = 0
        if self._pinned:
            self._words = torch.zeros(words, dtype=torch.int64, device=device)
        else:
            self._words = self._staging[0].tensor
        self._ints = self._words.view(torch.int32)

    def load_tokens(self, slot: int, tokens: np.ndarray) -> None:
        """Write the known tokens (n,) of a request that has entered row `slot`; n <= L.

        Steps already submitted are not disturbed. tokens is read before this returns.
        """
        n = len(tokens)
        if n > self.row_tokens:
            raise InvariantError(f"{n} tokens for row {slot}, which holds {self.row_tokens}")
        self.table.forget(slot)
        # Pinned memory from torch's cache, which hands it out again only after the copy has ended.
        host = torch.empty(n, dtype=torch.int32, pin_memory=self._pinned)
        host.numpy()[:] = tokens
        begin = slot * self.row_tokens
        self.tokens[begin : begin + n].copy_(host, non_blocking=True)

    def parts(self, num_requests: int, num_tokens: int) -> Parts:
        """Views of the device buffer for a step of that size without samples or changes."""
        return Layout(num_requests, num_tokens, 0, 0).cut(self._words, self._ints)

    def pack(
        self, step: StepInputs, seeds: np.ndarray | None = None, padded: int | None = None
    ) -> PackedStep:
        """Bring a step, and what it changed in the block table, to the device.

        seeds (M, 2) int32: of the requests with samples, in the order of `step`. padded: how many
        requests to pad to, for a step in which each has one token. Valid until the next call.
        """
        if self.check:
            self._check_step(step)
        staging = self._staging[self._turn]
        self._turn = (self._turn + 1) % len(self._staging)
        if staging.copied is not None:
            staging.copied.synchronize()
        places, ids = self.table.changes(step)
        if len(places) > self._max_changes:
            self._write_apart(places, ids)
            places, ids = places[:0], ids[:0]
        one = step.tokens == 1
        num, num_decode = len(one), int(np.count_nonzero(one))
        padding = 0 if padded is None else padded - num
        num_tokens = num if num_decode == num else int(step.tokens.sum())
        layout = Layout(
            num + padding,
            num_tokens + padding,
            int(np.count_nonzero(step.samples)),
            len(places),
        )
        host = layout.cut(staging.words, staging.ints)
        order = None if num_decode == num else np.argsort(~one, kind="stable")
        query_lens, seq_lens = self._fill(host, step, order)
        host.changed[:] = places
        host.block_ids[:] = ids
        if seeds is not None:
            host.seeds[:] = seeds.reshape(-1)
        if self._pinned:
            part = slice(layout.words)
            self._words[part].copy_(staging.tensor[part], non_blocking=True)
            staging.copied.record()
        device = layout.cut(self._words, self._ints)
        if len(places):
            self.table.write(device.changed, device.block_ids)
        if self.check:
            self._check_table(step)
        return PackedStep(num + padding, num_decode + padding, device, query_lens, seq_lens)

    def pack_padding(self, num_requests: int) -> PackedStep:
        """A step of nothing but padding, of that size."""
        none = np.empty(0, np.int64)
        table = np.zeros((1, 1), np.int32)
        step = StepInputs(none, none, none, none, none.astype(bool), none, none, table)
        return self.pack(step, padded=num_requests)

    def _fill(
        self, host: Parts, step: StepInputs, order: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Write a step into the sections of a host buffer, requests in `order` (None: as they are).

        Returns query_lens_host and seq_lens_host. What is longer than the step is padding: requests
        with one token that goes nowhere and sees nothing.
        """
        num = len(step.slot)
        full = len(host.slots)
        slot, start, tokens = step.slot, step.start, step.tokens
        if order is not None:
            slot, start, tokens = slot[order], start[order], tokens[order]
        query_lens = np.ones(full, np.int64)
        query_lens[:num] = tokens
        seq_lens = np.zeros(full, np.int64)
        np.add(start, tokens, out=seq_lens[:num])
        host.query_start[0] = 0
        np.cumsum(query_lens, out=host.query_start[1:])
        host.slots[:num] = slot
        host.slots[num:] = 0
        host.seq_lens[:] = seq_lens
        if order is None:
            rows, positions = slot, start
            ends = host.query_start[1 : num + 1]
        else:
            rows = np.repeat(slot, tokens)
            positions = np.repeat(start - host.query_start[:num], tokens)
            positions += np.arange(len(positions))
            ends = np.empty(num, np.int64)
            ends[order] = host.query_start[1 : num + 1]
        n = len(positions)
        host.positions[:n] = positions
        host.positions[n:] = 0
        host.token_index[:n] = rows * self.row_tokens + positions
        host.token_index[n:] = self._padding_cell
        block, offset = np.divmod(positions, self.block_size)
        mapping = step.table[rows, block].astype(np.int64)
        mapping *= self.block_size
        mapping += offset
        host.slot_mapping[:n] = mapping
        host.slot_mapping[n:] = _NOWHERE
        end = step.start + step.tokens
        # The token after a full row is nobody's input: it goes into the cell of the padding.
        after = np.where(
            end < self.row_tokens, step.slot * self.row_tokens + end, self._padding_cell
        )
        host.logit_rows[:] = ends[step.samples] - 1
        host.write_index[:] = after[step.samples]
        return query_lens, seq_lens

    def batch(self, packed: PackedStep) -> AttentionBatch:
        """What attention gets of a packed step. The block table is as wide as its longest request."""
        parts = packed.parts
        longest = int(packed.seq_lens_host.max())
        width = -(-longest // self.block_size)
        return AttentionBatch(
            slot_mapping=parts.slot_mapping,
            block_table=self.table.ids[:, :width].index_select(0, parts.slots),
            query_start=parts.query_start,
            seq_lens=parts.seq_lens,
            query_lens_host=packed.query_lens_host,
            seq_lens_host=packed.seq_lens_host,
            num_decode=packed.num_decode,
            max_query_len=int(packed.query_lens_host.max()),
            max_seq_len=longest,
        )

    def _write_apart(self, places: np.ndarray, ids: np.ndarray) -> None:
        """Write changes that do not fit into the step buffer."""
        both = torch.empty(2, len(places), dtype=torch.int64, pin_memory=self._pinned)
        both.numpy()[0] = places
        both.numpy()[1] = ids
        both = both.to(self.tokens.device, non_blocking=True)
        self.table.write(both[0], both[1].int())

    def _check_step(self, step: StepInputs) -> None:
        """Raise InvariantError where a step breaks a law that the rest relies on."""
        if len(np.unique(step.slot)) != len(step.slot):
            raise InvariantError(f"two requests of one step share a row: {step.slot.tolist()}")
        if (step.tokens < 1).any() or (step.start < 0).any():
            raise InvariantError(
                f"a request of the step has no token: start {step.start.tolist()}, "
                f"tokens {step.tokens.tolist()}"
            )
        ends = step.start + step.tokens
        room = step.num_blocks * self.block_size
        if (ends > room).any():
            at = int(np.argmax(ends > room))
            raise InvariantError(
                f"request {int(step.request[at])} ends at token {int(ends[at])}, but its row "
                f"{int(step.slot[at])} has room for {int(room[at])} "
                f"({int(step.num_blocks[at])} blocks of {self.block_size})"
            )

    def _check_table(self, step: StepInputs) -> None:
        """Raise InvariantError where the device's rows of a step differ from the scheduler's."""
        width = self.table.ids.shape[1]
        inside = np.arange(width) < step.num_blocks[:, None]
        want = np.where(inside, step.table[step.slot, :width], 0)
        have = self.table.ids[torch.from_numpy(step.slot.astype(np.int64))].cpu().numpy()
        if not np.array_equal(want, have):
            row, place = (int(x[0]) for x in np.nonzero(want != have))
            raise InvariantError(
                f"row {int(step.slot[row])}, place {place}: the device has block "
                f"{int(have[row, place])}, the scheduler {int(want[row, place])}"
            )
