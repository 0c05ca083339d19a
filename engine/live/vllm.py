"""A production vLLM as a recorder: its scheduler, with a tap that writes a recording.

    vllm serve MODEL --scheduler-cls engine.live.vllm.RecordingScheduler

One class serves both of vLLM's: where asynchronous scheduling is on (vLLM's default), an
AsyncRecordingScheduler is made in its place, so that nothing gets slower than vLLM's own choice.
Settings: settings.py. What is recorded: tap.py. Costs, privacy and failures:
docs/record-from-vllm.md.

Every method calls straight through to vLLM and returns what it returned. Whatever fails in the
recorder is caught, said once, counted, and ends the recording; serving goes on.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from engine.live import interface, metadata
from engine.live.cached_free import CachedFree
from engine.live.settings import RUN_UNRECORDED, SECTION, load_settings, variable
from engine.live.tap import Tap
from engine.live.writer import Writer
from traces.errors import KVReplayError

log = logging.getLogger("vllm.kv_replay")

# What a vLLM does not have is reported when a scheduler is made, and not as an error of the import.
AsyncScheduler: Any = interface.find("vllm.v1.core.sched.async_scheduler", "AsyncScheduler")
_SCHEDULE_CODE = getattr(Scheduler.schedule, "__code__", None)
_DEEPEST = 6  # calls between schedule() and _preempt_request(), other wrappers included


def found_vllm() -> interface.Interface:
    """The classes of the vLLM that is installed."""
    import vllm

    return interface.Interface(
        version=vllm.__version__,
        scheduler=Scheduler,
        async_scheduler=AsyncScheduler,
        output=interface.find("vllm.v1.core.sched.output", "SchedulerOutput"),
        cached_request_data=interface.find("vllm.v1.core.sched.output", "CachedRequestData"),
        request=interface.find("vllm.v1.request", "Request"),
        kv_cache_manager=interface.find("vllm.v1.core.kv_cache_manager", "KVCacheManager"),
        block_pool=interface.find("vllm.v1.core.block_pool", "BlockPool"),
        free_queue=interface.find("vllm.v1.core.kv_cache_utils", "FreeKVCacheBlockQueue"),
    )


class RecordingScheduler(Scheduler):
    """vLLM's scheduler, recorded. Becomes the asynchronous one where vLLM's configuration says so."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """The scheduler that vLLM's configuration asks for.

        Raises: UnsupportedVllmError, SettingsError, unless run-unrecorded was asked for; then vLLM's
        own scheduler is made.
        """
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        asynchronous = bool(config.scheduler_config.async_scheduling)
        try:
            _check(config)
        except KVReplayError as error:
            if not _may_run_unrecorded(config):
                raise
            log.warning("KV Replay does not record. %s", error)
            if asynchronous and issubclass(AsyncScheduler, Scheduler):
                return AsyncScheduler(*args, **kwargs)
            return Scheduler(*args, **kwargs)
        wanted: type[RecordingScheduler] = cls
        if cls in (RecordingScheduler, AsyncRecordingScheduler):
            wanted = AsyncRecordingScheduler if asynchronous else RecordingScheduler
        made = object.__new__(wanted)
        if not issubclass(wanted, cls):  # then Python does not initialize it
            wanted.__init__(made, *args, **kwargs)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._kv_replay: Tap | None = None
        self._kv_replay_writer: Writer | None = None
        super().__init__(*args, **kwargs)
        try:
            self._kv_replay_begin()
        except Exception as error:  # whatever it is, serving goes on
            self._kv_replay_failed(error)

    def _kv_replay_begin(self) -> None:
        config = self.vllm_config
        settings = load_settings(additional_config=config.additional_config)
        vllm = found_vllm()
        pool = self.kv_cache_manager.block_pool
        caching = bool(self.cache_config.enable_prefix_caching)
        hashing = caching or self.connector is not None
        hash_block = self._kv_replay_hash_block() if settings.prefix_ids and hashing else None
        counter = None
        if caching and interface.splits_free_blocks(vllm):
            counter = CachedFree(pool)
        self._kv_replay_writer = writer = Writer(
            settings,
            metadata.run_metadata(
                config,
                self.kv_cache_config,
                settings=settings,
                vllm_version=vllm.version,
                token_budget=self.max_num_scheduled_tokens,
                hash_block=hash_block,
                blind=interface.look(vllm).blind,
                unix_s=(unix_s := time.time()),
            ),
            metadata.data_parallel_rank(config),
            metadata.server_name(config),
            unix_s,
        )
        self._kv_replay = tap = Tap(
            writer.inbox,
            pool,
            self.kv_cache_manager,
            mode=metadata.preemption_mode(config),
            hash_block=hash_block,
            cached_free=counter,
            blocks_every=settings.blocks,
            connected=self.connector is not None,
        )
        look_up = self.kv_cache_manager.get_computed_blocks

        def noted_look_up(request: Any, *args: Any, **kwargs: Any) -> Any:
            result = look_up(request, *args, **kwargs)
            if self._kv_replay is not None:
                self._kv_replay_call(tap.looked_up, request, result)
            return result

        self.kv_cache_manager.get_computed_blocks = noted_look_up
        writer.start()
        atexit.register(_close_at_exit, weakref.ref(self))

    def _kv_replay_hash_block(self) -> int:
        return int(getattr(self, "hash_block_size", None) or self.block_size)

    def _kv_replay_call(self, note: Any, *args: Any) -> None:
        try:
            note(*args)
        except Exception as error:  # whatever it is, serving goes on
            self._kv_replay_failed(error)

    def _kv_replay_failed(self, error: Exception) -> None:
        """Say it once and stop recording; what was recorded is closed."""
        self._kv_replay = None
        log.error(
            "KV Replay's recorder failed and has stopped; serving goes on.", exc_info=error
        )
        writer = self._kv_replay_writer
        if writer is not None:
            writer.inbox.counts.errors += 1
            writer.stop("failed")

    # vLLM's calls, in the order in which a request meets them.

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().add_request(request, *args, **kwargs)
        tap = self._kv_replay
        if tap is not None:
            self._kv_replay_call(tap.arrived, request)
        return result

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        tap = self._kv_replay
        if tap is None:
            return super().schedule(*args, **kwargs)
        called_s = time.monotonic()
        output = super().schedule(*args, **kwargs)
        try:
            tap.scheduled(self, output, called_s)
        except Exception as error:  # whatever it is, serving goes on
            self._kv_replay_failed(error)
        return output

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        tap = self._kv_replay
        if tap is not None:
            self._kv_replay_call(tap.preempting, request, _asker())
        return super()._preempt_request(request, *args, **kwargs)

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        tap = self._kv_replay
        if tap is None:
            return super().update_from_output(scheduler_output, *args, **kwargs)
        tap.updating = True
        result = super().update_from_output(scheduler_output, *args, **kwargs)
        try:
            tap.processed(self, scheduler_output)
        except Exception as error:  # whatever it is, serving goes on
            self._kv_replay_failed(error)
        return result

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        tap = self._kv_replay
        if tap is not None:
            self._kv_replay_call(tap.freeing, request)
        return super()._free_request(request, *args, **kwargs)

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        result = super().finish_requests(*args, **kwargs)
        tap = self._kv_replay
        if tap is not None:
            self._kv_replay_call(tap.ended)
        return result

    def shutdown(self) -> None:
        super().shutdown()
        self._kv_replay_close()

    def _kv_replay_close(self) -> None:
        tap, writer = self._kv_replay, self._kv_replay_writer
        self._kv_replay = None
        if tap is None or writer is None:
            return
        try:
            unfinished = tap.close(self.requests)
            writer.close("stopped" if unfinished else "completed")
        except Exception as error:  # whatever it is, serving goes on
            self._kv_replay_failed(error)


class AsyncRecordingScheduler(RecordingScheduler, AsyncScheduler):
    """The same around vLLM's AsyncScheduler."""


def _check(config: Any) -> None:
    """Raise where recording cannot begin: settings that cannot be, or another vLLM."""
    load_settings(additional_config=config.additional_config)
    vllm = found_vllm()
    findings = interface.look(vllm)
    if findings.lacks:
        raise interface.refusal(vllm, findings)


def _may_run_unrecorded(config: Any) -> bool:
    """Whether the operator asked for it, even where another setting is wrong."""
    section = config.additional_config
    asked = section.get(SECTION) if isinstance(section, dict) else None
    said = asked.get("unsupported") if isinstance(asked, dict) else None
    return (said or os.environ.get(variable("unsupported"))) == RUN_UNRECORDED


def _asker() -> Any:
    """The request that schedule() was serving when it called _preempt_request(), or None.

    vLLM does not hand it over; it is the local variable `request` of the schedule() that is at work.
    """
    frame = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        if frame.f_code is _SCHEDULE_CODE:
            return frame.f_locals.get("request")
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _close_at_exit(scheduler: weakref.ref[RecordingScheduler]) -> None:
    """Close the recording of a process that ends without shutdown()."""
    there = scheduler()
    if there is not None:
        there._kv_replay_close()
