"""One forward of the model over the paged cache: of a step as it is, or of a padded decode.

The padded decode works on tensors that never move and with launches that depend on its size alone,
as a CUDA graph demands (graphs.py). Both give the same hidden states. It knows nothing of tokens to
sample or of time.

Legend: R requests of a step, T their tokens, W' columns of a step's block table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.gpu.attention import AttentionBackend
from engine.gpu.batch import AttentionBatch
from engine.gpu.kv_cache import KVCache
from engine.gpu.model import CausalLM
from engine.gpu.step_buffer import Parts
from engine.gpu.step_tensors import PackedStep, StepTensors


class PagedAttention:
    """The `attend` of model.CausalLM.forward: writes a layer's K and V, attends over the blocks."""

    def __init__(self, model: CausalLM, kv: KVCache, backend: AttentionBackend) -> None:
        self._layers = [
            (*kv.layer(layer), window) for layer, window in enumerate(model.config.windows)
        ]
        self._backend = backend
        self._scale = model.scale
        self._batch: AttentionBatch | None = None

    def begin(self, batch: AttentionBatch) -> None:
        """Take the batch that the next forward belongs to."""
        self._batch = batch
        self._backend.prepare(batch)

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        key_cache, value_cache, window = self._layers[layer]
        batch = self._batch
        assert batch is not None, "begin() comes before the forward"
        self._backend.write(key_cache, value_cache, key, value, batch.slot_mapping)
        return self._backend.attend(query, key_cache, value_cache, batch, self._scale, window)


class PagedForward:
    """The model's forward over the tables of `tensors`."""

    def __init__(
        self, model: CausalLM, kv: KVCache, backend: AttentionBackend, tensors: StepTensors
    ) -> None:
        self._model = model
        self._tensors = tensors
        self._attention = PagedAttention(model, kv, backend)

    def eager(self, packed: PackedStep) -> torch.Tensor:
        """Hidden states (T, hidden) of a packed step; writes its K and V."""
        return self._forward(packed.parts, self._tensors.batch(packed))

    def _forward(self, parts: Parts, batch: AttentionBatch) -> torch.Tensor:
        self._attention.begin(batch)
        token_ids = self._tensors.tokens.index_select(0, parts.token_index).long()
        return self._model.forward(token_ids, parts.positions, self._attention)


class PaddedForward(PagedForward):
    """The forward of decodes of given sizes; `run(size)` may be captured (graphs.PaddedDecode).

    hidden (largest size, hidden): what `run` fills from its start. The steps' buffers are those of
    `tensors`, packed with `padded=size`. max_model_len: most tokens of a request.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: KVCache,
        backend: AttentionBackend,
        tensors: StepTensors,
        sizes: Sequence[int],
        max_model_len: int,
    ) -> None:
        super().__init__(model, kv, backend, tensors)
        most = max(sizes)
        width = min(-(-max_model_len // kv.block_size), tensors.table.ids.shape[1])
        self.hidden = torch.zeros(
            most, model.config.hidden, dtype=model.dtype, device=model.device
        )
        self._blocks = torch.zeros(most, width, dtype=torch.int32, device=model.device)
        self._batches = {size: self._batch(size, max_model_len) for size in sizes}

    def _batch(self, size: int, max_model_len: int) -> AttentionBatch:
        parts = self._tensors.parts(size, size)
        return AttentionBatch(
            slot_mapping=parts.slot_mapping,
            block_table=self._blocks[:size],
            query_start=parts.query_start,
            seq_lens=parts.seq_lens,
            query_lens_host=np.ones(size, np.int64),
            seq_lens_host=np.full(size, max_model_len),
            num_decode=size,
            max_query_len=1,
            max_seq_len=max_model_len,
        )

    def run(self, size: int) -> None:
        """Hidden states of the packed decode, into the first `size` rows of `hidden`."""
        parts, width = self._tensors.parts(size, size), self._blocks.shape[1]
        table = self._tensors.table.ids[:, :width]
        torch.index_select(table, 0, parts.slots, out=self._blocks[:size])
        self.hidden[:size].copy_(self._forward(parts, self._batches[size]))

    def rehearse(self, size: int) -> None:
        """The same with nothing but padding, which reads and writes no KV."""
        self._tensors.pack_padding(size)
        self.run(size)
