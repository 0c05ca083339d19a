"""The numbers of one step in one buffer, so that bringing them to the device is one copy.

It knows where each section lies; step_tensors.py fills them.

Legend: R requests of a step, T their tokens, M those that get a next token, D changed places of the
block table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch


class Parts(NamedTuple):
    """The sections of a step buffer: NumPy arrays on the host, tensors on the device.

    The first six lie where R and T alone put them, so that a CUDA graph can read them. int64:
    token_index (T,), places in the flat token table; positions (T,); slot_mapping (T,). int32:
    slots (R,); query_start (R + 1,); seq_lens (R,). Then int64: logit_rows (M,), rows of the flat
    batch that get a next token; write_index (M,), where that goes in the flat token table;
    changed (D,), places in the flat block table. int32: seeds (2 M,); block_ids (D,).
    """

    token_index: Any
    positions: Any
    slot_mapping: Any
    slots: Any
    query_start: Any
    seq_lens: Any
    logit_rows: Any
    write_index: Any
    changed: Any
    seeds: Any
    block_ids: Any


class Layout(NamedTuple):
    """Sizes of a step buffer; offsets in words of 64 bits.

    The fixed sections begin at multiples of 16 bytes, as tensors of their own would: a kernel that
    is compiled for aligned pointers fits every step.
    """

    requests: int
    tokens: int
    samples: int
    changes: int

    @property
    def rest(self) -> int:
        """Where the sections begin that are not fixed."""
        ints = 2 * _up(self.requests, 4) + _up(self.requests + 1, 4)
        return 3 * _up(self.tokens, 2) + ints // 2

    @property
    def words(self) -> int:
        both = 2 * self.samples + self.changes
        return self.rest + both + (both + 1) // 2

    def cut(self, words: Any, ints: Any) -> Parts:
        """The sections of a buffer given as int64 and as int32, of NumPy or torch alike."""
        r, t, m, d = self
        row, a = _up(t, 2), self.rest
        slots = 6 * row
        starts = slots + _up(r, 4)
        lens = starts + _up(r + 1, 4)
        c = 2 * (a + 2 * m + d)
        return Parts(
            words[:t],
            words[row : row + t],
            words[2 * row : 2 * row + t],
            ints[slots : slots + r],
            ints[starts : starts + r + 1],
            ints[lens : lens + r],
            words[a : a + m],
            words[a + m : a + 2 * m],
            words[a + 2 * m : a + 2 * m + d],
            ints[c : c + 2 * m],
            ints[c + 2 * m : c + 2 * m + d],
        )


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


class Staging:
    """A host buffer and when its last copy has ended."""

    def __init__(self, words: int, pinned: bool) -> None:
        self.tensor = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
        self.words = self.tensor.numpy()
        self.ints = self.words.view(np.int32)
        self.copied: Any = torch.cuda.Event() if pinned else None
