"""The books that the live recorder keeps, told of calls by hand, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.live.cached_free import CachedFree
from engine.live.gaps import StepEnds, TokenGaps
from engine.live.rows import EVENT_COLUMNS, REQUEST_COLUMNS, STEP_COLUMNS
from engine.live.tap import Tap
from engine.live.writer import Inbox
from traces.schema import EVENT_KINDS, STATUSES


class Pool:
    """Ten usable blocks; held: request -> blocks."""

    def __init__(self) -> None:
        self.num_gpu_blocks = 11
        self.held: dict[str, int] = {}
        self.free_block_queue = self

    @property
    def num_free_blocks(self) -> int:
        return 10 - sum(self.held.values())

    def get_blocks(self, request_id: str) -> Any:
        return SimpleNamespace(blocks=(range(self.held.get(request_id, 0)),))


class Server:
    """vLLM's scheduler as far as the tap looks at it, moved by hand."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.running: list[Any] = []
        self.num_waiting = 0
        self.requests: dict[str, Any] = {}
        self.inbox = Inbox(1_000)
        self.tap = Tap(
            self.inbox,
            self.pool,
            self.pool,
            mode="recompute",
            hash_block=4,
            cached_free=None,
        )

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), self.num_waiting

    def arrive(self, name: str, prompt: int) -> Any:
        request = SimpleNamespace(
            request_id=name,
            num_prompt_tokens=prompt,
            num_computed_tokens=0,
            num_output_tokens=0,
            priority=0,
            status=SimpleNamespace(name="WAITING"),
            block_hashes=[bytes([i]) * 32 for i in range(prompt // 4)],
        )
        self.requests[name] = request
        self.num_waiting += 1
        self.tap.arrived(request)
        return request

    def schedule(self, tokens: dict[str, int], *, new: tuple[str, ...] = ()) -> Any:
        """A step: who computes how many tokens, and who begins to run in it."""
        for name in new:
            self.running.append(self.requests[name])
            self.num_waiting -= 1
        for name, n in tokens.items():
            self.requests[name].num_computed_tokens += n
        output = SimpleNamespace(
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_new_reqs=list(new),
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        )
        self.tap.scheduled(self, output, self.tap.start_s + self.tap.now_s())
        return output

    def process(self, output: Any, *samples: str, ends: str | None = None) -> None:
        """The step's outputs: who samples a token, and who ends with it."""
        self.tap.updating = True
        for name in samples:
            self.requests[name].num_output_tokens += 1
        if ends is not None:
            self.end(ends, "FINISHED_STOPPED")
        self.tap.processed(self, output)

    def end(self, name: str, status: str) -> None:
        request = self.requests.pop(name)
        request.status = SimpleNamespace(name=status)
        self.tap.freeing(request)
        self.pool.held.pop(name, None)
        if request in self.running:
            self.running.remove(request)

    def preempt(self, name: str, cause: str) -> None:
        request = self.requests[name]
        self.tap.preempting(request, self.requests[cause])
        self.pool.held.pop(name)
        request.num_computed_tokens = 0
        self.running.remove(request)
        self.num_waiting += 1

    def steps(self) -> list[dict[str, Any]]:
        return [dict(zip(STEP_COLUMNS, row, strict=True)) for row in self.inbox.steps]

    def events(self) -> list[tuple[Any, ...]]:
        rows = [dict(zip(EVENT_COLUMNS, row, strict=True)) for row in self.inbox.events]
        return [
            (r["step"], EVENT_KINDS[r["kind"]], r["request_id"], r["blocks"], r["tokens"], r["cause_request_id"])
            for r in rows
        ]  # fmt: skip

    def ended(self) -> dict[str, dict[str, Any]]:
        rows = [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in self.inbox.requests]
        return {r["request_id"]: r for r in rows}


def preempted_and_back() -> Server:
    """a loses its blocks to b after two tokens, comes back with 4 tokens cached, and finishes."""
    server = Server()
    server.arrive("a", 8)
    server.arrive("b", 4)
    server.pool.held = {"a": 2, "b": 1}
    server.process(server.schedule({"a": 8, "b": 4}, new=("a", "b")), "a", "b")
    server.process(server.schedule({"a": 1, "b": 1}), "a", "b")
    server.preempt("a", "b")
    server.process(server.schedule({"b": 1}), "b", ends="b")
    server.pool.held["a"] = 3
    server.requests["a"].num_computed_tokens = 4
    server.process(server.schedule({"a": 6}, new=("a",)), "a")
    server.process(server.schedule({"a": 1}), "a", ends="a")
    return server


def test_tokens_of_steps_are_told_apart() -> None:
    steps = preempted_and_back().steps()

    assert [s["prefill_tokens"] for s in steps] == [12, 0, 0, 0, 0]
    # a had computed 9 tokens; of the 6 when it comes back, 4 to 8 are computed again and 9 is new
    assert [s["recomputed_tokens"] for s in steps] == [0, 0, 0, 5, 0]
    assert [s["decode_tokens"] for s in steps] == [0, 2, 1, 1, 1]
    assert [s["cached_tokens"] for s in steps] == [0, 0, 0, 4, 0]


def test_counts_are_those_after_schedule() -> None:
    steps = preempted_and_back().steps()

    assert [s["num_running"] for s in steps] == [2, 2, 1, 1, 1]
    assert [s["num_waiting"] for s in steps] == [0, 0, 1, 0, 0]
    assert [s["num_admitted"] for s in steps] == [2, 0, 0, 0, 0]
    assert [s["num_resumed"] for s in steps] == [0, 0, 0, 1, 0]
    assert [s["num_preempted"] for s in steps] == [0, 0, 1, 0, 0]
    assert [s["num_finished"] for s in steps] == [0, 0, 1, 0, 1]
    assert [s["used_blocks"] for s in steps] == [3, 3, 1, 3, 3]


def test_events_say_who_for_whom_and_how_much_was_lost() -> None:
    assert preempted_and_back().events() == [
        (0, "arrive", "a", 0, 8, None),
        (0, "arrive", "b", 0, 4, None),
        (0, "admit", "a", 2, 0, None),
        (0, "admit", "b", 1, 0, None),
        (2, "preempt", "a", 2, 9, "b"),
        (2, "finish", "b", 1, 3, None),
        (3, "resume", "a", 3, 4, None),
        (4, "finish", "a", 3, 4, None),
    ]


def test_a_request_sums_what_happened_to_it() -> None:
    ended = preempted_and_back().ended()

    a = ended["a"]
    assert STATUSES[a["status"]] == "finished"
    assert (a["prompt_tokens"], a["output_tokens"]) == (8, 4)
    assert (a["num_preemptions"], a["recomputed_tokens"], a["cached_tokens"]) == (1, 5, 4)
    assert a["prefix"] == bytes([0]) * 8 + bytes([1]) * 8
    assert 0 < a["preempted_s"] < a["finish_s"]
    assert a["max_itl_s"] >= a["preempted_s"]
    assert ended["b"]["max_itl_s"] > 0


def test_an_abort_counts_for_the_step_to_come() -> None:
    server = Server()
    server.arrive("a", 8)
    server.pool.held = {"a": 2}
    output = server.schedule({"a": 8}, new=("a",))
    server.end("a", "FINISHED_ABORTED")
    server.tap.ended()
    server.process(output)

    assert server.events()[-1] == (1, "abort", "a", 2, 0, None)
    assert STATUSES[server.ended()["a"]["status"]] == "aborted"
    assert server.steps()[0]["num_finished"] == 0


def test_an_id_that_comes_again_gets_a_number() -> None:
    server = Server()
    for _ in range(2):
        server.arrive("a", 4)
        server.end("a", "FINISHED_ABORTED")
        server.tap.ended()

    assert [e[2] for e in server.events()] == ["a", "a", "a#1", "a#1"]


def test_steps_without_work_are_counted_and_written_once() -> None:
    server = Server()
    server.arrive("huge", 400)
    for _ in range(5):
        server.process(server.schedule({}))

    assert len(server.steps()) == 1
    assert server.inbox.counts.skipped_idle_steps == 4
    server.arrive("next", 4)  # something happened
    server.process(server.schedule({}))
    assert len(server.steps()) == 2


def test_what_still_runs_at_the_end_is_unfinished() -> None:
    server = Server()
    server.arrive("a", 8)
    server.pool.held = {"a": 2}
    server.process(server.schedule({"a": 8}, new=("a",)), "a")

    count = server.tap.close(server.requests)

    assert count == 1
    assert STATUSES[server.ended()["a"]["status"]] == "unfinished"
    assert server.ended()["a"]["output_tokens"] == 1
    assert server.ended()["a"]["finish_s"] is None


def ends_at(*seconds: float, remembered: int = 8) -> StepEnds:
    ends = StepEnds(remembered)
    for s in seconds:
        ends.add(s)
    return ends


def test_the_longest_gap_of_a_stay_is_between_neighbouring_steps() -> None:
    ends = ends_at(0.0)
    gaps = TokenGaps()
    gaps.token(ends, 1)
    for s in (1.0, 4.0, 5.0):
        ends.add(s)
    gaps.leave(ends, 4)

    assert gaps.longest(4) == 3.0


def test_a_token_that_was_in_flight_counts_at_its_own_step() -> None:
    ends = ends_at(0.0)
    gaps = TokenGaps()
    gaps.token(ends, 1)
    gaps.leave(ends, 1)  # preempted with the next step in flight
    for s in (1.0, 2.0, 9.0):
        ends.add(s)
    gaps.token(ends, 3)  # tokens at 0, 1 (late) and 9

    assert gaps.longest(3) == 8.0


def test_a_request_that_a_step_passed_over_has_no_known_gap() -> None:
    ends = ends_at(0.0)
    gaps = TokenGaps()
    gaps.token(ends, 1)
    for s in (1.0, 2.0, 3.0):
        ends.add(s)
    gaps.leave(ends, 3)  # two tokens from three steps

    assert gaps.longest(3) is None


def test_steps_that_are_forgotten_make_the_gap_unknown() -> None:
    ends = ends_at(0.0, remembered=2)
    gaps = TokenGaps()
    gaps.token(ends, 1)
    for s in (1.0, 2.0, 3.0):
        ends.add(s)
    gaps.leave(ends, 4)

    assert gaps.longest(4) is None


class Queue:
    """vLLM's free queue: hashes of free blocks, next to be taken first."""

    def __init__(self, hashes: list[str | None]) -> None:
        self.blocks = [SimpleNamespace(block_hash=h) for h in hashes]

    def get_all_free_blocks(self) -> list[Any]:
        return self.blocks

    def prepend_n(self, blocks: list[Any]) -> None:
        self.blocks[:0] = blocks

    def append_n(self, blocks: list[Any]) -> None:
        self.blocks += blocks

    def popleft_n(self, n: int) -> list[Any]:
        taken, self.blocks = self.blocks[:n], self.blocks[n:]
        return taken

    def popleft(self) -> Any:
        return self.popleft_n(1)[0]


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_cached_free_blocks_are_counted_without_looking_at_them(taken: int) -> None:
    queue = Queue([None, None, "h"])
    pool = SimpleNamespace(
        free_block_queue=queue,
        reset_prefix_cache=lambda: [setattr(b, "block_hash", None) for b in queue.blocks],
        evict_blocks=lambda ids: None,
    )
    counter = CachedFree(pool)

    queue.popleft_n(taken)
    queue.append_n([SimpleNamespace(block_hash="x")])
    queue.prepend_n([SimpleNamespace(block_hash=None)])

    held = sum(b.block_hash is not None for b in queue.blocks)
    assert counter.count(len(queue.blocks)) == held
    pool.reset_prefix_cache()
    assert counter.count(len(queue.blocks)) == 0
