"""The executor against the same model computed without a cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.gpu.executor import profile_step
from engine.gpu.sampling import Sampling
from tests.gpu.executor_worlds import World, dense_tokens, prompt, tiny_model
from traces.errors import InvariantError


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def expected(name, num, **options):
    return dense_tokens(tiny_model(), prompt(name), num, **options)


def test_the_reference_run_of_the_tests_has_many_different_tokens():
    assert len(set(expected("a", 12) + expected("c", 12))) > 8


def test_a_whole_prompt_then_decodes():
    world = World()
    world.enter("a", 2)
    world.step(("a", 7))
    world.decode("a", 9)

    assert world.sampled("a") == expected("a", 10)


def test_a_prompt_in_chunks_gets_its_token_with_the_last_chunk():
    world = World()
    world.enter("c", 0)

    assert len(world.step(("c", 5)).token_ids) == 0
    assert len(world.step(("c", 1)).token_ids) == 0
    assert len(world.step(("c", 6)).token_ids) == 1
    world.decode("c", 5)
    assert world.sampled("c") == expected("c", 6)


def test_decodes_and_chunks_in_one_step_come_back_in_the_order_of_the_step():
    world = World()
    for name, slot in zip("abcd", (4, 1, 5, 0), strict=True):
        world.enter(name, slot)
    world.step(("a", 7))
    world.step(("c", 4), ("a", 1), ("b", 3), ("d", 1))
    world.step(("c", 8), ("d", 1), ("a", 1), ("b", 1))
    world.decode("cadb", 3)

    for name, num in (("a", 6), ("b", 5), ("c", 4), ("d", 5)):
        assert world.sampled(name) == expected(name, num), name


def test_a_sliding_window_hides_what_is_older():
    model = tiny_model(window=5)
    world = World(model)
    world.enter("c", 3)
    world.step(("c", 12))
    world.decode("c", 7)

    assert world.sampled("c") == dense_tokens(model, prompt("c"), 8)
    assert world.sampled("c") != expected("c", 8)


@pytest.mark.parametrize("shuffle", range(1, 5))
def test_block_ids_change_no_bit_of_a_result(shuffle):
    worlds = [World(shuffle=0), World(shuffle=shuffle)]
    for world in worlds:
        world.enter("a", 0)
        world.enter("b", 1)
        world.step(("a", 7), ("b", 3))
        world.decode("ab", 6)

    first, second = worlds
    assert first.rows["a"].blocks != second.rows["a"].blocks
    assert first.sampled("a") == second.sampled("a")
    assert first.sampled("b") == second.sampled("b")


@pytest.mark.parametrize("after", range(8))
def test_a_request_that_is_computed_again_in_another_row_goes_on_with_the_same_tokens(after):
    world = World()
    world.enter("a", 0)
    world.enter("b", 1)
    world.step(("a", 7), ("b", 3))
    world.decode("ab", after)
    known = world.leave("a")  # its blocks are full of NaN from here on
    world.decode("b", 1)
    world.enter("a", 3, known)
    world.enter("c", 0)  # who gets its row
    world.step(("c", 12), ("b", 1))
    world.step(("a", len(known) - 2), ("b", 1), ("c", 1))
    world.step(("a", 2), ("b", 1))
    world.decode("ab", 4)

    assert world.sampled("a") == expected("a", after + 6)
    assert world.sampled("b") == expected("b", after + 9)
    assert world.sampled("c") == expected("c", 2)


def test_a_request_that_comes_back_to_its_old_row_uses_its_new_blocks():
    world = World()
    world.enter("a", 0)
    world.step(("a", 7))
    world.decode("a", 3)
    old = world.rows["a"].blocks
    known = world.leave("a")
    world.enter("a", 0, known)
    world.step(("a", len(known)))
    world.decode("a", 3)

    assert world.rows["a"].blocks != old
    assert world.sampled("a") == expected("a", 8)


def test_a_step_reads_tokens_that_the_step_before_sampled_and_nobody_has_fetched():
    world = World()
    world.enter("a", 0)
    world.enter("b", 3)
    submitted = [world.submit(("a", 7))]
    for parts in [(("b", 3), ("a", 1))] + 5 * [(("a", 1), ("b", 1))]:
        submitted.append(world.submit(*parts))
        world.take(submitted.pop(0))
    world.take(submitted.pop())

    assert world.sampled("a") == expected("a", 7)
    assert world.sampled("b") == expected("b", 6)


def test_a_row_changes_hands_while_the_step_that_used_it_is_in_flight():
    world = World()
    world.enter("a", 0)
    world.step(("a", 7))
    first = world.submit(("a", 1))
    ticket, _ = first
    row = world.rows.pop("a")
    world.enter("b", 0)
    second = world.submit(("b", 3))
    row.tokens += world.executor.wait(ticket).token_ids.tolist()
    world.take(second)
    world.decode("b", 4)
    world.enter("a", 1, row.tokens)
    world.step(("a", 9))

    assert world.sampled("a") == expected("a", 3)
    assert world.sampled("b") == expected("b", 5)


def test_three_steps_in_flight_are_refused():
    world = World()
    world.enter("a", 0)
    world.submit(("a", 7))
    world.submit(("a", 1))

    with pytest.raises(InvariantError, match="2 steps are in flight"):
        world.submit(("a", 1))


def test_tickets_are_taken_in_order_and_once():
    world = World()
    world.enter("a", 0)
    older, _ = world.submit(("a", 7))
    newer, _ = world.submit(("a", 1))

    with pytest.raises(InvariantError, match="oldest"):
        world.executor.wait(newer)
    world.executor.wait(older)
    with pytest.raises(InvariantError, match="oldest"):
        world.executor.wait(older)


SEEDED = Sampling(temperature=1.3, top_k=40, top_p=0.95, seed=11)


def test_seeded_tokens_do_not_depend_on_the_batch_or_on_preemption():
    alone = World(sampling=SEEDED)
    alone.enter("a", 0)
    alone.step(("a", 7))
    alone.decode("a", 8)
    crowd = World(sampling=SEEDED)
    for slot, name in enumerate("bacd"):
        crowd.enter(name, slot)
    crowd.step(("b", 3), ("d", 1))
    crowd.step(("b", 1), ("a", 7), ("c", 12))
    crowd.decode("bac", 3)
    known = crowd.leave("a")
    crowd.enter("a", 5, known)
    crowd.step(("c", 1), ("a", len(known)))
    crowd.decode("ab", 4)

    assert alone.sampled("a") == crowd.sampled("a")
    assert alone.sampled("a") == expected("a", 9, sampling=SEEDED, key=ord("a"))
    assert alone.sampled("a") != expected("a", 9)


def test_two_requests_with_the_same_tokens_draw_differently_by_their_keys():
    world = World(sampling=SEEDED)
    world.enter("a", 0)
    world.enter("b", 1, prompt("a"))
    world.step(("a", 7), ("b", 7))
    world.decode("ab", 8)

    assert world.rows["a"].tokens[:7] == world.rows["b"].tokens[:7]
    assert world.rows["a"].tokens != world.rows["b"].tokens


def test_a_request_without_a_key_cannot_draw():
    world = World(sampling=SEEDED)

    with pytest.raises(InvariantError, match="needs a key"):
        world.executor.load_tokens(0, np.array([1, 2]))


def test_a_block_that_was_never_written_is_found_in_the_logits():
    world = World()
    world.enter("a", 0)
    world.step(("a", 7))
    world.kv.poison(world.rows["a"].blocks[:1])

    with pytest.raises(InvariantError, match="not finite"):
        world.step(("a", 1))


def test_time_is_counted_and_no_graph_is_claimed_where_none_ran():
    world = World()
    world.enter("a", 0)
    outputs = world.step(("a", 7))

    assert outputs.compute_s > 0.0
    assert outputs.num_padded is None
    assert outputs.token_ids.dtype == np.int64


def test_a_profiling_step_computes_every_token_and_the_rows_that_sample():
    model = tiny_model()
    sizes = []
    forward, logits = model.forward, model.logits
    model.forward = lambda ids, *rest: sizes.append(len(ids)) or forward(ids, *rest)
    model.logits = lambda hidden: sizes.append(len(hidden)) or logits(hidden)

    profile_step(model, num_tokens=40, num_logit_rows=6, sampling=SEEDED)
    profile_step(model, num_tokens=3, num_logit_rows=6, sampling=Sampling())

    assert sizes == [40, 6, 3, 3]
