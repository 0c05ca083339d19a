"""What one step hands from the scheduler to the device, and from the executor to attention.

Two views of the same step. `StepInputs` is the scheduler's: NumPy, one entry a request, ids and counts.
`AttentionBatch` is the device's: tensors, requests with one query token first. It holds no rule about
who runs (engine.core) and no arithmetic (attention, model).

Legend: R requests of the step, T their tokens, S rows of the block table, W its width in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch


class StepInputs(NamedTuple):
    """One step as the scheduler decided it. The arrays are valid until the next step is decided.

    request (R,): row in the workload; slot (R,): row of the block table that it holds; start (R,):
    tokens whose KV exists; tokens (R,): tokens to compute now; samples (R,): whether the last of them
    gets a next token; new_from (R,): first place in its row that changed since the last step;
    num_blocks (R,): blocks in its row; table (S, W): block ids in token order, int32.
    """

    request: np.ndarray
    slot: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    samples: np.ndarray
    new_from: np.ndarray
    num_blocks: np.ndarray
    table: np.ndarray


@dataclass
class AttentionBatch:
    """One step as attention sees it: R requests, the first num_decode of them with one query token.

    slot_mapping (T,) int64: block * block_size + offset where each token's K and V go, -1: nowhere
    (padding); block_table (R, W') int32, places past a request's blocks hold 0; query_start (R + 1,)
    int32: where each request's query tokens begin in the flat batch; seq_lens (R,) int32: tokens to
    attend to, this step's included (0: padding). query_lens_host, seq_lens_host (R,): the same on the
    host, so that nobody has to ask the device. max_query_len, max_seq_len: bounds that hold; under a
    CUDA graph they, and all shapes, are those of the capture.
    """

    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    query_lens_host: np.ndarray
    seq_lens_host: np.ndarray
    num_decode: int
    max_query_len: int
    max_seq_len: int
