"""Workers of vLLM's CPU-offload connectors that copy nothing: a copy takes a number of steps.

The order in which jobs are submitted and reported is that of vLLM's own workers
(kv_connector/v1/offloading/worker.py and v1/simple_kv_offload/worker.py): jobs to flush are awaited
first; a native store starts one step later, before that step's loads; a step that flushes waits for
what is under way.

Where vLLM keeps a set whose order decides something, it is given an order here, one of those that it
might have had: the keys of a native job (the order in which they age in the CPU pool) are in the order
of the request's tokens, requests whose loads are done in the order of their jobs.
"""

from __future__ import annotations

from typing import Any

from tests.parity.vllm_side.settings import Settings

# A copy as the record shows it: direction, request (empty where vLLM does not say), blocks.
Copy = list[Any]


def order_keys(scheduler: Any) -> None:
    """Replace the set of keys of each native job that is new by a list in the order of the tokens."""
    connector = scheduler.connector.connector_scheduler
    for job in reversed(connector._jobs.values()):
        if not isinstance(job.keys, set):
            return
        (group,) = connector._req_status[job.req_id].group_states
        place = {key: i for i, key in enumerate(group.offload_keys)}
        job.keys = sorted(job.keys, key=place.__getitem__)


class NativeWorker:
    """In place of OffloadingConnectorWorker."""

    def __init__(self, s: Settings) -> None:
        self._s = s
        self._held: list[int] = []  # stores that start with the next step
        self._due: dict[int, int] = {}  # job -> step at whose end it is done
        self._loading: dict[int, str] = {}  # load job -> request

    @property
    def busy(self) -> bool:
        return bool(self._held or self._due)

    def execute(self, step: int, meta: Any) -> tuple[Any, list[Copy]]:
        """vLLM's KVConnectorOutput of the step, and the copies that the step asked for."""
        stores = dict(meta.store_jobs)
        flush = sorted(meta.jobs_to_flush or ())
        self._held += [job for job in flush if stores.pop(job, None) is not None]
        for job in self._held:
            self._due[job] = step + self._s.store_steps - 1
        self._held = list(stores)
        for job in flush:
            if job in self._due:
                self._due[job] = step
        for job, transfer in meta.load_jobs.items():
            self._loading[job] = transfer.req_id
            self._due[job] = step + self._s.load_steps - 1
        copies = [
            ["load", t.req_id, len(t.dst_spec.block_ids)] for t in meta.load_jobs.values()
        ]
        copies += [
            ["store", t.req_id, len(t.src_spec.block_ids)] for t in meta.store_jobs.values()
        ]
        return self._report(step), copies

    def _report(self, step: int) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput

        done = OffloadingWorkerMetadata()
        received: dict[str, None] = {}
        for job in sorted(j for j, due in self._due.items() if due <= step):
            del self._due[job]
            done.mark_completed(job)
            if job in self._loading:
                received[self._loading.pop(job)] = None
        return KVConnectorOutput(
            finished_recving=received or None,
            kv_connector_worker_meta=done if done.completed_jobs else None,
        )


class SimpleWorker:
    """In place of SimpleCPUOffloadWorker: one load event and one store event a step at most."""

    def __init__(self, s: Settings) -> None:
        self._s = s
        self._loads: dict[int, int] = {}  # event -> step at whose end it is done
        self._stores: dict[int, int] = {}

    @property
    def busy(self) -> bool:
        return bool(self._loads or self._stores)

    def execute(self, step: int, meta: Any) -> tuple[Any, list[Copy]]:
        """vLLM's KVConnectorOutput of the step, and the copies that the step asked for."""
        copies: list[Copy] = []
        if meta.need_flush:
            self._loads = dict.fromkeys(self._loads, step)
            self._stores = dict.fromkeys(self._stores, step)
        if meta.load_cpu_blocks:
            self._loads[meta.load_event] = step + self._s.load_steps - 1
            who = ",".join(meta.load_event_to_reqs.get(meta.load_event, ()))
            copies.append(["load", who, len(meta.load_gpu_blocks)])
        if meta.store_gpu_blocks:
            self._stores[meta.store_event] = step + self._s.store_steps - 1
            copies.append(["store", "", len(meta.store_gpu_blocks)])
        return self._report(step, meta), copies

    def _report(self, step: int, meta: Any) -> Any:
        from vllm.v1.outputs import KVConnectorOutput
        from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

        received: dict[str, None] = {}
        for event in _take_due(self._loads, step):
            received |= dict.fromkeys(meta.load_event_to_reqs.get(event, ()))
        stored = _take_due(self._stores, step)
        done = SimpleCPUOffloadWorkerMetadata(dict.fromkeys(stored, 1)) if stored else None
        return KVConnectorOutput(
            finished_recving=received or None, kv_connector_worker_meta=done
        )


def _take_due(events: dict[int, int], step: int) -> list[int]:
    """Events done by the end of that step, taken out, in order."""
    due = sorted(e for e, at in events.items() if at <= step)
    for event in due:
        del events[event]
    return due


def make_worker(s: Settings) -> NativeWorker | SimpleWorker | None:
    """The worker of the case's connector; None without offload."""
    if s.offload is None:
        return None
    return NativeWorker(s) if s.offload == "native" else SimpleWorker(s)
