"""One workload under changed settings: each change becomes recordings, kept under what made them.

It knows which changes are settings, which are of the load, and how to name a run so that the same
question is answered from disk. It computes no figure and ranks nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import engine
from engine.config import EngineSettings, Resolved, resolve
from engine.fleet import route
from engine.memory import GIB
from engine.simulator import Progress, simulate
from traces.errors import SettingsError
from traces.routing import ROUTERS, pieces
from traces.schema import CLOSED_FILE, SCHEMA_VERSION
from traces.workload import Workload

LOAD_CHANGES = ("rate_scale", "replicas", "router")  # what is no engine setting
MAX_REPLICAS = 64
POOL = {"num_gpu_blocks", "kv_tokens"}
# What changes the memory that is left for KV, or the bytes of a block.
FREES_MEMORY = {
    "gpu_memory_utilization", "kv_cache_dtype", "weight_dtype", "tensor_parallel_size", "pipeline_parallel_size",
    "device", "model", "block_size", "max_num_seqs", "max_num_batched_tokens",
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A run that was made. paths: its recordings, one a replica; num_gpu_blocks: of each replica,
    null block included."""

    changes: Mapping[str, Any]
    settings: EngineSettings
    paths: tuple[Path, ...]
    num_gpu_blocks: int


class Trials:
    """Runs of one workload. base: the settings that changes are made to; directory: id of 32 hex
    digits -> where that recording lies or is to be written."""

    def __init__(
        self, workload: Workload, base: EngineSettings, directory: Callable[[str], Path]
    ) -> None:
        self.workload = workload
        self.base = base
        self.directory = directory

    def settings(self, changes: Mapping[str, Any]) -> EngineSettings:
        """The base with the changes that are settings, its pool as `_pool` says. Raises SettingsError."""
        ours = {k: v for k, v in changes.items() if k not in LOAD_CHANGES}
        if given := POOL & set(ours):
            return self.base.with_(**dict.fromkeys(POOL - given), **ours)
        changed = self.base.with_(**ours)
        if not FREES_MEMORY & set(ours):
            return changed
        return changed.with_(kv_tokens=None, num_gpu_blocks=self._pool(changed))

    def _pool(self, changed: EngineSettings) -> int | None:
        """Blocks that the changed memory leaves; None: derived, as the base's pool is.

        A pool that was given, as a server printed it, holds what the sum of `memory.py` cannot
        know: the change adds to it what it adds to the derived pool, in bytes. Raises SettingsError.
        """
        if self.base.num_gpu_blocks is None and self.base.kv_tokens is None:
            return None
        told = resolve(self.base)
        given = told.num_gpu_blocks * told.block_bytes
        before, after = self._derived(told), resolve(_without_pool(changed))
        more = after.num_gpu_blocks * after.block_bytes
        more -= before.num_gpu_blocks * before.block_bytes
        blocks = (given + more) // after.block_bytes
        if blocks < 2:
            raise SettingsError(
                f"this takes {-more / GIB:,.1f} GiB from a pool of {given / GIB:,.1f} GiB: no KV block is left. "
                "Change less, or use a larger device."
            )
        return int(blocks)

    def _derived(self, told: Resolved) -> Resolved:
        """The base with the pool that its memory leaves by our sum. Raises SettingsError."""
        try:
            return resolve(_without_pool(self.base))
        except SettingsError as error:
            raise SettingsError(
                f"the pool was given as {told.num_gpu_blocks:,} blocks, and by our sum the memory has no room for one ({error}) "
                "So what a change of memory adds is not known: set num_gpu_blocks instead."
            ) from None

    def run(
        self,
        changes: Mapping[str, Any],
        *,
        progress: Callable[[Progress], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Trial | None:
        """Simulate the workload with these changes, or find it simulated; None where cancelled.

        progress: per replica. Raises SettingsError, WorkloadError.
        """
        settings = self.settings(changes)
        blocks = resolve(settings, concurrency=self.workload.concurrency).num_gpu_blocks
        paths = []
        parts = self._parts(changes, settings, cancelled)
        if parts is None:
            return None
        for part in parts:
            path = simulated(
                part, settings, self.directory, progress=progress, cancelled=cancelled
            )
            if path is None:
                return None
            paths.append(path)
        return Trial(dict(changes), settings, tuple(paths), blocks)

    def _parts(
        self,
        changes: Mapping[str, Any],
        settings: EngineSettings,
        cancelled: Callable[[], bool] | None,
    ) -> tuple[Workload, ...] | None:
        """The workload as each replica is asked it, routed on what the replicas hold; None where cancelled."""
        count, router = changes.get("replicas", 1), changes.get("router", ROUTERS[0])
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_REPLICAS:  # fmt: skip
            raise SettingsError(
                f"replicas must be a whole number from 1 to {MAX_REPLICAS}, not {count!r}."
            )
        scale = changes.get("rate_scale", 1.0)
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise SettingsError(f"rate_scale must be a number such as 0.5 or 2, not {scale!r}.")
        asked = self.workload.scale_rate(float(scale))
        if count == 1:
            return (asked,)
        replica_of = route(asked, settings, count, router, cancelled=cancelled)
        if replica_of is None:
            return None
        return tuple(part for part in pieces(asked, replica_of, count) if len(part))


def simulated(
    workload: Workload,
    settings: EngineSettings,
    directory: Callable[[str], Path],
    *,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Path | None:
    """The recording of the workload under these settings: found where it was made before, or simulated
    now; None where cancelled. directory: as for `Trials`. Raises SettingsError, WorkloadError."""

    def make(part: Path) -> bool:
        done = simulate(workload, settings, part, progress=progress, cancelled=cancelled)
        return done.status != "cancelled"

    return whole(directory(run_id(workload, asdict(settings))), CLOSED_FILE, make)


def whole(target: Path, done_file: str, make: Callable[[Path], bool]) -> Path | None:
    """The folder `target`, found or made; None where it was cancelled. Half of one never has its name,
    and nothing of it stays where `make` raises.

    done_file: is in it when it is whole; make: fills the folder it is given, which is not there yet,
    beside the target; False where it was cancelled.
    """
    if (target / done_file).exists():
        os.utime(target)  # used now: the store forgets what was not
        return target
    part = target.with_name(f".part-{uuid.uuid4().hex}")
    try:
        if not make(part):
            return None
        _move(part, target, done_file)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _without_pool(settings: EngineSettings) -> EngineSettings:
    return settings.with_(num_gpu_blocks=None, kv_tokens=None)


def _move(part: Path, target: Path, done_file: str) -> None:
    """Give a whole folder its name. Where another thread was first, its one stays: somebody may
    be reading it, and both are the same."""
    if not (target / done_file).exists():
        shutil.rmtree(target, ignore_errors=True)
    try:
        part.rename(target)
    except OSError:
        if not (target / done_file).exists():
            raise


def run_id(workload: Workload, settings: Mapping[str, Any]) -> str:
    """32 hex digits: the same requests under the same settings and engine have the same."""
    said = json.dumps({k: settings[k] for k in sorted(settings)}, default=str)
    made_of = f"{SCHEMA_VERSION}\0{engine_stamp()}\0{workload.digest}\0{workload.name}\0{said}"
    return hashlib.blake2b(made_of.encode(), digest_size=16).hexdigest()


@cache
def engine_stamp() -> str:
    """A digest of the engine's source, so that a changed engine is asked anew."""
    root = Path(str(engine.__file__)).parent
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted([*root.glob("*.py"), *root.glob("core/*.py"), *root.glob("data/**/*")]):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
