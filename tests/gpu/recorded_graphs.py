"""What a CUDA graph is, on a CPU: recorded operations that run again on the same memory.

`Recorder` keeps every operation that torch is asked for while a function runs, with the very tensors
it was given and those it made. A replay runs them again and writes the results into the tensors that
were made at capture: nothing of Python, NumPy or the host's numbers is looked at again.
`MaskedAttention` is a backend that can be captured: shapes are the batch's, lengths come from tensors.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.gpu.attention import AttentionBackend


class Recorder(TorchDispatchMode):
    """The operations of a `with` block; `replay` runs them on the memory that they had."""

    def __init__(self):
        super().__init__()
        self.operations = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else torch imports its compiler at the first operation, for seconds

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        result = function(*args, **kwargs)
        made = [
            t if t.untyped_storage().data_ptr() not in given else None for t in _tensors(result)
        ]
        self.operations.append((function, args, kwargs, made))
        return result

    def replay(self):
        with torch.inference_mode():
            for function, args, kwargs, made in self.operations:
                again = _tensors(function(*args, **kwargs))
                for old, new in zip(made, again, strict=True):
                    if old is not None:
                        old.copy_(new)


def _tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class RecordingCapturer:
    """graphs.Capturer on a CPU. `calls` says what was asked; `fail_at`: the capture that fails."""

    def __init__(self, fail_at=None):
        self.calls = []
        self.replays = 0
        self._fail_at = fail_at
        self._captured = 0

    def rehearse(self, run):
        self.calls.append(("rehearse", *run.args))
        run()

    def capture(self, run):
        if self._captured == self._fail_at:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self._captured += 1
        self.calls.append(("capture", *run.args))
        recorder = Recorder()
        with recorder:
            run()

        def replay():
            self.replays += 1
            recorder.replay()

        return replay

    def used_bytes(self):
        return 1000 * self._captured


class MaskedAttention(AttentionBackend):
    """Every request's whole block-table row, masked by its length; block 0 takes what goes nowhere."""

    name = "masked"
    graph_safe = True

    def prepare(self, batch):
        pass

    def write(self, key_cache, value_cache, key, value, slot_mapping):
        slots = slot_mapping.clamp(min=0)
        size = key_cache.shape[1]
        where = (slots // size, slots % size)
        key_cache.index_put_(where, key)
        value_cache.index_put_(where, value)

    def attend(self, query, key_cache, value_cache, batch, scale, window=0):
        starts, table = batch.query_start.long(), batch.block_table.long()
        num_tokens = query.shape[0]
        of = (torch.arange(num_tokens)[:, None] >= starts[None, 1:]).sum(1)
        keys = key_cache[table].flatten(1, 2)[of]
        values = value_cache[table].flatten(1, 2)[of]
        group = query.shape[1] // keys.shape[2]
        keys, values = keys.repeat_interleave(group, 2), values.repeat_interleave(group, 2)
        lens = batch.seq_lens.long()
        last = lens[of] - starts[1:][of] + torch.arange(num_tokens)  # -1 where there is nothing
        at = torch.arange(keys.shape[1])
        seen = (at <= last[:, None]) & (lens[of] > 0)[:, None]
        if window > 0:
            seen &= at > last[:, None] - window
        scores = torch.einsum("qhd,qkhd->qhk", query, keys) * scale
        scores = torch.where(seen[:, None, :], scores, -1e30)
        values = torch.where(seen[:, :, None, None], values, 0.0)
        return torch.einsum("qhk,qkhd->qhd", scores.softmax(-1), values)
