"""The persistent tables and the packed step, number for number.

The world: rows of 4 blocks of 4 tokens. What the device's tables hold is typed, or compared with the
scheduler's table; `check=True` holds every step against the laws as the executor's tests do.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from engine.gpu.batch import StepInputs
from engine.gpu.step_buffer import Layout
from engine.gpu.step_tensors import StepTensors
from traces.errors import InvariantError

TABLE = np.array(
    [[3, 9, 0, 0], [7, 0, 0, 0], [0, 0, 0, 0], [5, 6, 1, 2]],
    np.int32,
)


def tensors(**options):
    sizes = {"num_slots": 4, "table_width": 4, "block_size": 4, "max_num_seqs": 4}
    return StepTensors(
        **{**sizes, "token_budget": 16, "device": torch.device("cpu"), "check": True, **options}
    )


def step(*rows, table=TABLE):
    """A step of rows (request, slot, start, tokens, samples, new_from, num_blocks)."""
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return StepInputs(*columns, table)


MIXED = step(
    (10, 3, 2, 4, False, 0, 4),
    (11, 0, 6, 1, True, 0, 2),
    (12, 1, 0, 3, True, 0, 1),
)


def test_requests_with_one_token_come_first_and_samples_keep_the_order_of_the_step():
    packed = tensors().pack(MIXED)
    parts = packed.parts

    assert packed.num_decode == 1
    assert parts.slots.tolist() == [0, 3, 1]
    assert parts.query_start.tolist() == [0, 1, 5, 8]
    assert parts.seq_lens.tolist() == [7, 6, 3]
    assert packed.query_lens_host.tolist() == [1, 4, 3]
    assert packed.seq_lens_host.tolist() == [7, 6, 3]
    assert parts.positions.tolist() == [6, 2, 3, 4, 5, 0, 1, 2]
    # block * 4 + offset: block 9 of row 0; blocks 5 and 6 of row 3; block 7 of row 1
    assert parts.slot_mapping.tolist() == [38, 22, 23, 24, 25, 28, 29, 30]
    # row * 16 + position
    assert parts.token_index.tolist() == [6, 50, 51, 52, 53, 16, 17, 18]
    assert parts.logit_rows.tolist() == [0, 7]
    assert parts.write_index.tolist() == [7, 19]


def test_the_batch_of_attention_has_the_blocks_of_its_requests_and_0_after_them():
    table = tensors()
    batch = table.batch(table.pack(MIXED))

    assert batch.block_table.tolist() == [[3, 9], [5, 6], [7, 0]]
    assert batch.block_table.dtype == torch.int32
    assert (batch.max_query_len, batch.max_seq_len, batch.num_decode) == (4, 7, 1)
    types = [t.dtype for t in (batch.slot_mapping, batch.query_start, batch.seq_lens)]
    assert types == [torch.int64, torch.int32, torch.int32]


def test_samples_of_chunks_that_change_places_find_their_own_last_token():
    parts = tensors().pack(step((1, 3, 0, 2, True, 0, 4), (2, 1, 0, 1, True, 0, 1))).parts

    assert parts.slots.tolist() == [1, 3]
    assert parts.logit_rows.tolist() == [2, 0]


def test_padding_is_a_token_that_goes_nowhere_and_sees_nothing():
    table = tensors()
    for part in table.parts(4, 16)[:3]:
        part.fill_(-9)  # numbers of other steps, all over the buffer
    packed = table.pack(step((11, 0, 6, 1, True, 0, 2)), padded=3)
    parts = packed.parts

    assert (packed.num_requests, packed.num_decode) == (3, 3)
    assert parts.slot_mapping.tolist() == [38, -1, -1]
    assert parts.seq_lens.tolist() == [7, 0, 0]
    assert parts.slots.tolist() == [0, 0, 0]
    assert parts.query_start.tolist() == [0, 1, 2, 3]
    assert parts.positions.tolist() == [6, 0, 0]
    assert parts.token_index.tolist() == [6, 64, 64]  # 64: the cell after 4 rows of 16
    assert parts.logit_rows.tolist() == [0]
    assert packed.query_lens_host.tolist() == [1, 1, 1]
    assert packed.seq_lens_host.tolist() == [7, 0, 0]


def test_fixed_parts_lie_where_they_lay_for_every_step_of_that_size():
    table = tensors()
    views = table.parts(2, 2)
    for start in (3, 6):
        packed = table.pack(step((11, 0, start, 1, True, 0, 2), (12, 1, 0, 1, False, 0, 1)))
        for name in ("token_index", "positions", "slot_mapping", "slots", "query_start"):
            assert getattr(views, name).data_ptr() == getattr(packed.parts, name).data_ptr()
        assert views.positions.tolist() == [start, 0]


def test_the_token_after_a_full_row_goes_into_no_row():
    parts = tensors().pack(step((1, 3, 15, 1, True, 0, 4), (2, 0, 6, 1, True, 0, 2))).parts

    assert parts.write_index.tolist() == [64, 7]


@pytest.mark.parametrize("num_requests", range(1, 8))
@pytest.mark.parametrize("num_tokens", [7, 8, 9, 10])
def test_what_kernels_are_given_lies_at_multiples_of_16_bytes_and_apart(
    num_requests, num_tokens
):
    layout = Layout(num_requests, num_tokens, 3, 5)
    words = np.zeros(layout.words + 1, np.int64)
    base = words.ctypes.data
    spans = []
    for part, size in zip(
        layout.cut(words, words.view(np.int32)),
        3 * [num_tokens] + [num_requests, num_requests + 1, num_requests, 3, 3, 5, 6, 5],
        strict=True,
    ):
        assert part.shape == (size,)
        spans.append((part.ctypes.data - base, part.nbytes))
    assert [begin % 16 for begin, _ in spans[:6]] == [0] * 6
    for (begin, length), (following, _) in itertools.pairwise(sorted(spans)):
        assert begin + length <= following
    assert max(begin + length for begin, length in spans) <= 8 * layout.words


def test_only_changed_places_are_sent():
    table = tensors()
    first = table.pack(MIXED)
    host = TABLE.copy()
    host[1, 1] = 8
    second = table.pack(step((12, 1, 3, 2, True, 1, 2), (11, 0, 7, 1, True, 2, 2), table=host))

    assert sorted(first.parts.changed.tolist()) == [0, 1, 4, 12, 13, 14, 15]
    assert second.parts.changed.tolist() == [5]
    assert second.parts.block_ids.tolist() == [8]
    assert table.table.ids[1].tolist() == [7, 8, 0, 0]


def test_a_row_with_another_request_loses_the_ids_of_the_one_before():
    table = tensors()
    table.pack(step((10, 3, 2, 4, False, 0, 4)))
    host = TABLE.copy()
    host[3] = (8, 6, 1, 2)  # what is behind its one block is left from before
    table.load_tokens(3, np.array([1, 2]))
    table.pack(step((12, 3, 0, 2, True, 0, 1), table=host))

    assert table.table.ids[3].tolist() == [8, 0, 0, 0]


@pytest.mark.parametrize("announced", [True, False])
def test_blocks_that_came_in_a_step_without_the_request_are_sent(announced):
    table = tensors()
    table.pack(step((10, 3, 2, 4, False, 0, 4), (11, 0, 6, 1, True, 0, 2)))
    host = TABLE.copy()
    host[0] = (10, 11, 0, 0)  # swapped out and in again: others, and nothing is called new
    if announced:
        table.load_tokens(0, np.arange(7))
    else:
        table.pack(step((10, 3, 6, 4, False, 4, 4)))
    table.pack(step((11, 0, 7, 1, True, 2, 2), table=host))

    assert table.table.ids[0].tolist() == [10, 11, 0, 0]


def test_more_changes_than_a_step_buffer_holds_are_sent_apart():
    table = tensors(num_slots=2, table_width=64, max_num_seqs=2, token_budget=2)
    host = np.arange(1, 129, dtype=np.int32).reshape(2, 64)
    table.pack(step((1, 0, 255, 1, True, 0, 64), (2, 1, 254, 1, True, 0, 64), table=host))

    assert np.array_equal(table.table.ids.numpy(), host)


def test_known_tokens_lie_in_their_row():
    table = tensors()
    table.load_tokens(2, np.array([5, 6, 7], np.uint16))
    table.load_tokens(1, np.array([9] * 16))

    assert table.tokens[32:36].tolist() == [5, 6, 7, 0]
    assert table.tokens[16:32].tolist() == [9] * 16


@pytest.mark.parametrize("count", [17, 100])
def test_more_tokens_than_a_row_holds_are_refused(count):
    with pytest.raises(InvariantError, match=f"{count} tokens for row 2, which holds 16"):
        tensors().load_tokens(2, np.zeros(count, np.int64))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (step((1, 0, 0, 1, True, 0, 1), (2, 0, 0, 1, True, 0, 1)), "share a row"),
        (step((1, 0, 0, 0, False, 0, 1)), "has no token"),
        (step((1, 0, 3, 2, True, 0, 1)), "request 1 ends at token 5.*room for 4"),
        (step((1, 3, 15, 2, True, 0, 4)), "request 1 ends at token 17.*room for 16"),
    ],
)
def test_a_step_that_breaks_a_law_is_refused(broken, words):
    with pytest.raises(InvariantError, match=words):
        tensors().pack(broken)


def test_a_table_that_differs_from_the_schedulers_is_found():
    table = tensors()
    table.pack(MIXED)
    host = TABLE.copy()
    host[0, 0] = 4  # changed behind our back
    with pytest.raises(InvariantError, match="row 0, place 0: the device has block 3"):
        table.pack(step((11, 0, 7, 1, True, 2, 2), table=host))
