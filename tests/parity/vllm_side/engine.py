"""Engine core, executor and model around vLLM's scheduler: one case, one record a schedule() call.

It calls vLLM's scheduler as vLLM's own engine core does (`step` and `step_with_batch_queue` of
v1/engine/core.py), says that every request whose known tokens are all computed has sampled one more,
and looks at what was decided. It changes no decision. Time is the case's: step numbers, or a clock
that every step moves by its tokens.

Before call t, requests that arrive by t are added in order of arrival, then aborts due by t are
made. With nothing unfinished, time jumps to the next arrival; the empty step that vLLM's engine core
takes after the last request, only to tell its workers who ended, is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.parity.vllm_side.offload import make_worker, order_keys
from tests.parity.vllm_side.requests import aborts, arrivals, make_request, sampled_token
from tests.parity.vllm_side.settings import Settings, block_hasher, make_scheduler
from tests.parity.vllm_side.watch import Watch

_PATIENCE = 4  # steps without any progress before an engine counts as stuck


class InFlight(NamedTuple):
    """A step that was handed to the workers: its number, vLLM's output, and who will sample."""

    step: int
    output: Any
    samplers: frozenset[str]


@dataclass
class Totals:
    """What a run came to."""

    status: str = "completed"
    num_steps: int = 0
    num_preemptions: int = 0


class Clock:
    """The case's time and step counter."""

    def __init__(self, s: Settings) -> None:
        self._s = s
        self._timed = s.clock == "latency"
        self._computed: dict[str, int] = {}  # request -> tokens that some step computed
        self.step = 0
        self._now_s = 0.0

    @property
    def now(self) -> float:
        return self._now_s if self._timed else self.step

    def jump(self, to: float) -> None:
        """Move on to that time, never back."""
        if self._timed:
            self._now_s = max(self._now_s, to)
        else:
            self.step = max(self.step, int(to))

    def advance(self, record: dict[str, Any], requests: dict[str, Any]) -> bool:
        """Move on by the step just taken; says whether it computed anything new."""
        again = prompt = generated = 0
        for request_id, tokens, start in record["scheduled"]:
            known = self._computed.get(request_id, 0)
            old = max(0, min(start + tokens, known) - start)
            own = max(0, min(start + tokens, requests[request_id]) - start - old)
            self._computed[request_id] = max(known, start + tokens)
            again, prompt, generated = again + old, prompt + own, generated + tokens - old - own
        base, per_prefill, per_decode = self._s.latency_ms
        self._now_s += (base + per_prefill * (prompt + again) + per_decode * generated) / 1e3
        self.step += 1
        return prompt + generated > 0


class Case:
    """One run of vLLM's scheduler over a trace."""

    def __init__(
        self, s: Settings, rows: list[dict[str, Any]], class_name: str | None = None
    ) -> None:
        self.s, self.rows = s, rows
        self.scheduler = make_scheduler(s, class_name)
        self.watch = Watch(self.scheduler)
        self.worker = make_worker(s)
        self.clock = Clock(s)
        self._hasher = block_hasher(s)
        self._arrivals = deque(enumerate(arrivals(rows, s)))
        self._aborts = deque(aborts(rows, s))
        self._in_flight: deque[InFlight] = deque()
        self._ended: list[str] = []  # since the last step, in order
        self._sampled = 0
        self._idle_steps = 0
        self._prompts = {row["request_id"]: row["prompt_tokens"] for row in rows}

    def run(self, write: Callable[[dict[str, Any]], None]) -> Totals:
        """Run to the end, handing each finished record to `write`."""
        totals = Totals()
        record: dict[str, Any] | None = None
        while True:
            if not self.scheduler.has_unfinished_requests():
                if self._in_flight:  # asynchronous: an output is due, nothing to schedule
                    assert record is not None
                    self._process_oldest(record)
                    continue
                if not self._arrivals:
                    break
                self.clock.jump(self._arrivals[0][1][0])
            if record is not None:
                write(record)
            arrived, aborted = self._arrive(), self._abort()
            record = self._step(aborted)
            totals.num_steps += 1
            totals.num_preemptions += len(record["preempted"])
            fresh = self.clock.advance(record, self._prompts)
            progress = fresh or record["finished"] or arrived or aborted
            self._idle_steps = 0 if progress else self._idle_steps + 1
            ended = self._stuck(record) or self._too_long(totals.num_steps)
            if ended:
                totals.status = ended
                break
        if record is not None:
            write(record)
        return totals

    def _arrive(self) -> int:
        """Add what has arrived; how many."""
        count = 0
        while self._arrivals and self._arrivals[0][1][0] <= self.clock.now:
            order, (_, index) = self._arrivals.popleft()
            row = self.rows[index]
            self.scheduler.add_request(make_request(index, order, row, self.s, self._hasher))
            count += 1
        return count

    def _abort(self) -> list[str]:
        """Make the aborts that are due; the ids of those that found something to abort."""
        from vllm.v1.request import RequestStatus

        done = []
        while self._aborts and self._aborts[0][0] <= self.clock.now:
            _, request_id = self._aborts.popleft()
            if self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED):
                done.append(request_id)
        return done

    def _step(self, aborted: list[str]) -> dict[str, Any]:
        """One schedule() call, and the outputs that vLLM's engine core would process after it."""
        scheduler = self.scheduler
        before = {r.request_id for r in scheduler.running}
        # A set too, over which the native connector iterates: here in the order in which they ended.
        self._ended += aborted
        left = scheduler.finished_req_ids
        scheduler.finished_req_ids = dict.fromkeys(i for i in self._ended if i in left)
        self._ended = []
        output = scheduler.schedule()
        if self.s.offload == "native":
            order_keys(scheduler)
        record = self.watch.decided(self.clock.step, before, output)
        samplers = frozenset(
            i for i in output.num_scheduled_tokens if not scheduler.requests[i].is_prefill_chunk
        )
        self._in_flight.append(InFlight(self.clock.step, output, samplers))
        executed = output.total_num_scheduled_tokens > 0
        ahead = self.s.async_scheduling and len(self._in_flight) < 2
        if not (ahead and (executed or scheduler.has_requests())):
            self._process_oldest(record)
        record["blocks_end"] = self.watch.blocks()
        record["aborted"] = aborted
        return record

    def _process_oldest(self, record: dict[str, Any]) -> None:
        """Run the oldest step in flight and give the scheduler its output."""
        from vllm.v1.outputs import ModelRunnerOutput

        step, output, samplers = self._in_flight.popleft()
        ids = list(output.num_scheduled_tokens)
        kv_output = None
        if self.worker is not None and output.kv_connector_metadata is not None:
            kv_output, copies = self.worker.execute(step, output.kv_connector_metadata)
            record.setdefault("copies", []).extend(copies)
        model_output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=self._sample(ids, samplers),
            kv_connector_output=kv_output,
        )
        outputs = self.scheduler.update_from_output(output, model_output)
        finished = _finished(outputs.values())
        self._ended += finished
        record["finished"] += finished

    def _sample(self, ids: list[str], samplers: frozenset[str]) -> list[list[int]]:
        first = self._sampled
        self._sampled += len(ids)
        return [sampled_token(first + k) if i in samplers else [] for k, i in enumerate(ids)]

    def _stuck(self, record: dict[str, Any]) -> str | None:
        """ "stalled" where nothing can ever be scheduled again; moves on to the next arrival if any."""
        copying = self.worker is not None and self.worker.busy
        if record["scheduled"] or record["preempted"] or copying:
            return None
        empty = not any(f.output.total_num_scheduled_tokens for f in self._in_flight)
        if self._idle_steps <= _PATIENCE or not empty:
            return None
        if not self.scheduler.has_unfinished_requests():
            return None
        if self._arrivals:
            self.clock.jump(self._arrivals[0][1][0])
        elif not self._aborts:
            return "stalled"
        return None

    def _too_long(self, steps: int) -> str | None:
        if self._idle_steps >= self.s.livelock_steps:
            return "livelock"
        return "max_steps" if steps >= self.s.max_steps else None


def _finished(outputs: Iterable[Any]) -> list[str]:
    """Requests that ended with these outputs, in vLLM's order."""
    return [item.request_id for o in outputs for item in o.outputs or () if item.finished]
