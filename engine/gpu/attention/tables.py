"""Block tables as flat lists, for backends that want them so. It knows AttentionBatch and nothing else.

Legend: R requests, N blocks of all of them.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.gpu.batch import AttentionBatch


def listed_blocks(batch: AttentionBatch, num_blocks: np.ndarray) -> torch.Tensor:
    """The first num_blocks (R,) ids of each row of the block table, one after another: (N,) int32,
    on the table's device, without asking the device for anything."""
    first = np.cumsum(num_blocks) - num_blocks
    rows = np.repeat(np.arange(num_blocks.size), num_blocks)
    columns = np.arange(int(num_blocks.sum())) - np.repeat(first, num_blocks)
    device = batch.block_table.device
    return batch.block_table[
        torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)
    ]
