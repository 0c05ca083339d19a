"""The writer's thread of a live recorder: rows from an inbox to the Parquet parts of a recording.

The scheduler's thread only appends to the inbox and never waits. Every flush_s the open part is
written again, whole, under its own number (a temporary name, then a rename), so that a killed server
loses at most the last flush_s, and files do not become many. All tables have the same part numbers,
so that a disk cap can remove the oldest part of each and what is left still belongs together.

A disk that does not take a part is said once and tried again; rows that found no room meanwhile are
counted. Counts are in the metadata of every part under `writer`. Nothing here raises into its caller.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.live import rows
from engine.live.ownership import Ownership
from engine.live.settings import LiveSettings
from traces import schema
from traces.recording_files import metadata_bytes, write_closed, write_part
from traces.run_folders import make_run_folder

log = logging.getLogger("vllm.kv_replay")  # vLLM prints what is below its own name

PIECE_ROWS = 512  # rows converted at a time: short, for the scheduler waits for the interpreter
_PAUSE_S = 0.25
_CAP_PARTS = 4  # a part is at most this share of the disk cap


@dataclass
class Counts:
    """What a recording lacks, as its metadata says it. All zero: it lacks nothing.

    dropped: rows for which the inbox had no room; lost: rows that the disk did not take in time;
    failed_writes: parts that could not be written when they were due; removed_parts: oldest parts
    removed for the disk cap; skipped_idle_steps: empty steps like the one before, not written;
    errors: faults of the recorder itself, after which it stopped.
    """

    dropped_steps: int = 0
    dropped_events: int = 0
    dropped_requests: int = 0
    dropped_samples: int = 0
    lost_steps: int = 0
    lost_events: int = 0
    lost_requests: int = 0
    failed_writes: int = 0
    removed_parts: int = 0
    skipped_idle_steps: int = 0
    errors: int = 0


class Inbox:
    """Rows on their way to the writer, at most `limit` of a kind. One thread puts, one takes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.counts = Counts()
        self.steps: deque[tuple[Any, ...]] = deque()
        self.events: deque[tuple[Any, ...]] = deque()
        self.requests: deque[tuple[Any, ...]] = deque()
        self.samples: deque[tuple[int, dict[str, list[int]]]] = deque()

    def longest(self) -> int:
        """Rows that wait, of the table that has most."""
        return max(len(self.steps), len(self.events), len(self.requests))

    def step(self, row: tuple[Any, ...]) -> None:
        if len(self.steps) < self.limit:
            self.steps.append(row)
        else:
            self.counts.dropped_steps += 1

    def event(self, row: tuple[Any, ...]) -> None:
        if len(self.events) < self.limit:
            self.events.append(row)
        else:
            self.counts.dropped_events += 1

    def request(self, row: tuple[Any, ...]) -> None:
        if len(self.requests) < self.limit:
            self.requests.append(row)
        else:
            self.counts.dropped_requests += 1

    def sample(self, step: int, tables: dict[str, list[int]]) -> None:
        if len(self.samples) < min(self.limit, 1_000):  # one holds a number a block
            self.samples.append((step, tables))
        else:
            self.counts.dropped_samples += 1


@dataclass
class _Part:
    """The open part: chunks of rows of each table, in memory until the part is full."""

    chunks: dict[str, list[pa.Table]] = field(default_factory=dict)
    fresh: bool = False  # holds rows that are not on disk

    def add(self, name: str, data: pa.Table) -> None:
        self.chunks.setdefault(name, []).append(data)
        self.fresh = True

    def rows(self, name: str) -> int:
        return sum(c.num_rows for c in self.chunks.get(name, ()))

    def table(self, spec: schema.Table) -> pa.Table:
        """All rows of one table, as one chunk, so that the next time is cheap."""
        chunks = self.chunks.get(spec.name)
        if not chunks:
            return spec.arrow.empty_table()
        if len(chunks) > 1:
            chunks[:] = [pa.concat_tables(chunks)]
        return chunks[0]


class Writer:
    """Writes one recording below settings.out from what comes into `inbox`.

    metadata: what made the run, the same for all parts; rank, server, unix_s: for the folder's name.
    kind, main, lost: what a subclass that writes other tables names otherwise: the folder, the table
    that says when a part is full, and the counts of what the disk did not take.
    """

    kind = "rank"
    main = "steps"
    lost: tuple[tuple[str, str], ...] = (("steps", "lost_steps"), ("events", "lost_events"))

    def __init__(
        self,
        settings: LiveSettings,
        metadata: Mapping[str, Any],
        rank: int,
        server: str,
        unix_s: float,
    ) -> None:
        self.inbox = Inbox(settings.queue)
        self.folder: Path | None = None
        self._settings = settings
        self._metadata = dict(metadata)
        self._where = (rank, server, unix_s)
        self._ownership = Ownership() if settings.blocks else None
        self._specs = schema.TABLES if settings.blocks else schema.TABLES[:3]
        key = settings.salt.encode() or secrets.token_bytes(32)
        key = blake2b(key, digest_size=32).digest()
        self._name = rows.hashed_ids(key) if settings.hash_ids else rows.plain_ids
        rekey = bool(metadata.get("live", {}).get("prefix_ids_rekeyed"))
        self._prefix = rows.rekeyed_prefix(key) if rekey else None
        self._part = _Part()
        self._number = 0
        self._kept: dict[int, tuple[int, dict[str, int]]] = {}  # full part -> bytes, rows
        self._doomed: list[int] = []
        self._open_bytes = 0
        self._failing = False
        self._status = "stopped"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-replay-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, status: str, timeout_s: float = 30.0) -> None:
        """Write what is left and the closing mark; waits at most timeout_s for the disk."""
        self.stop(status)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("KV Replay: the disk did not take the end of the recording in time.")

    def stop(self, status: str) -> None:
        """Ask for the end of the recording; does not wait for it."""
        if not self._stop.is_set():
            self._status = status
            self._stop.set()

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            # The last resort: a recorder's fault must not become the server's.
            self.inbox.limit = 0
            self.inbox.counts.errors += 1
            log.exception("KV Replay: the recorder's writer failed; recording has stopped.")

    def _loop(self) -> None:
        settings = self._settings
        pause_s = min(_PAUSE_S, settings.flush_s / 2)
        drain_rows = min(PIECE_ROWS, -(-settings.queue // 2))  # a few large pieces cost least
        due_s = 0.0  # the first part is written at once: whoever looks sees that it works
        while True:
            stopping = self._stop.wait(pause_s)
            now_s = time.monotonic()
            if stopping or now_s >= due_s or self.inbox.longest() >= drain_rows:
                self._drain()
            full = self._part.rows(self.main) >= settings.part_steps
            if stopping or full or (now_s >= due_s and self._part.fresh):
                self._flush(full)
                due_s = now_s + settings.flush_s
            if stopping:
                self._finish()
                return

    def _drain(self) -> None:
        """Convert what has come. A request's row is taken before its events, so that it never lies
        in an earlier part than they do."""
        box = self.inbox
        self._take(
            box.requests, "requests", lambda r: rows.requests_table(r, self._name, self._prefix)
        )
        self._take(box.events, "events", lambda r: rows.events_table(r, self._name))
        self._take(box.steps, "steps", rows.steps_table)
        while self._ownership is not None and box.samples:
            self._own(self._ownership.sample(*box.samples.popleft()))

    def _take(
        self, source: deque[Any], name: str, convert: Callable[[rows.Rows], pa.Table]
    ) -> None:
        waiting = len(source)
        while waiting:
            piece = [source.popleft() for _ in range(min(waiting, PIECE_ROWS))]
            waiting -= len(piece)
            self._part.add(name, convert(piece))

    def _own(self, intervals: list[tuple[int, str, int, int, int]]) -> None:
        for i in range(0, len(intervals), PIECE_ROWS):
            piece = intervals[i : i + PIECE_ROWS]
            self._part.add("blocks", rows.blocks_table(piece, self._name))

    def _flush(self, full: bool) -> None:
        """Write the open part; a full one is then left alone and the next one begun."""
        cap = self._settings.disk_cap
        if full and self._ownership is not None:
            self._own(self._ownership.cut())
        try:
            self._make_room(cap)
            self._write()
        except OSError as error:
            self._could_not_write(error)
            return
        finally:
            self._remove()
        if self._failing:
            self._failing = False
            log.warning("KV Replay: the recording in %s goes on.", self.folder)
        self._part.fresh = False
        if full or (cap and self._open_bytes > cap // _CAP_PARTS):
            rows_of = {s.name: self._part.rows(s.name) for s in self._specs}
            self._kept[self._number] = self._open_bytes, rows_of
            self._part, self._number, self._open_bytes = _Part(), self._number + 1, 0

    def _make_room(self, cap: int) -> None:
        """Choose the oldest full parts that must go. They are counted before the next part is
        written, so that its metadata says so while they are still there."""
        total = self._open_bytes + sum(size for size, _ in self._kept.values())
        for number in sorted(self._kept):
            if not cap or total <= cap:
                break
            total -= self._kept.pop(number)[0]
            self._doomed.append(number)
            self.inbox.counts.removed_parts += 1

    def _remove(self) -> None:
        """Remove the chosen parts. One that cannot be removed stays; readers pass over it."""
        while self._doomed and self.folder is not None:
            for spec in self._specs:
                path = self.folder / spec.name / f"part-{self._doomed[0]:05d}.parquet"
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            self._doomed.pop(0)

    def _write(self) -> None:
        """Write all tables of the open part. Raises OSError."""
        if self.folder is None:
            self._open_folder()
        assert self.folder is not None
        written = {**self._metadata, "writer": asdict(self.inbox.counts)}
        metadata = metadata_bytes(written)
        size = 0
        for spec in self._specs:
            try:
                path = write_part(
                    self.folder, spec, self._number, self._part.table(spec), metadata
                )
            except OSError:
                unfinished = self.folder / spec.name / f"part-{self._number:05d}.parquet.tmp"
                with contextlib.suppress(OSError):
                    unfinished.unlink(missing_ok=True)
                raise
            size += path.stat().st_size
        self._open_bytes = size

    def _open_folder(self) -> None:
        rank, server, unix_s = self._where
        made = make_run_folder(self._settings.out, self.kind, rank, server, unix_s)
        self.folder = made.path
        if made.copy > 1:
            log.warning(
                "KV Replay: another recorder has the folder of rank %d; this one writes to %s.",
                rank,
                made.name,
            )
        log.info("KV Replay records rank %d to %s.", rank, self.folder)

    def _could_not_write(self, error: OSError) -> None:
        """Say it once; keep rows for the next try while they are not more than a part."""
        counts = self.inbox.counts
        counts.failed_writes += 1
        if not self._failing:
            self._failing = True
            log.warning(
                "KV Replay cannot write to %s (%s). Serving goes on; it tries again every %g s and counts what is lost.",
                self.folder or self._settings.out,
                error.strerror or error,
                self._settings.flush_s,
            )
        for name, counter in self.lost:
            if self._part.rows(self.main) >= self._settings.part_steps:
                setattr(counts, counter, getattr(counts, counter) + self._part.rows(name))
                self._part.chunks.pop(name, None)
        if self._part.rows("requests") > self._settings.queue:
            counts.lost_requests += self._part.rows("requests")
            self._part.chunks.pop("requests")

    def _finish(self) -> None:
        """The last part again, with the final counts, and the closing mark where nothing of the
        requests is missing: without the mark a reader derives them from events."""
        counts = self.inbox.counts
        if self._ownership is not None:
            self._own(self._ownership.cut())
        try:
            self._write()
            rows_of = {s.name: self._part.rows(s.name) for s in self._specs}
            for _, kept in self._kept.values():
                rows_of = {name: n + kept[name] for name, n in rows_of.items()}
            assert self.folder is not None
            if not counts.dropped_requests + counts.lost_requests + counts.errors:
                write_closed(self.folder, rows_of, self._status)
        except OSError as error:
            counts.failed_writes += 1
            log.warning("KV Replay could not write the end of the recording (%s).", error)
        missing = {k: v for k, v in asdict(counts).items() if v}
        log.info("KV Replay closed %s. Not recorded: %s.", self.folder, missing or "nothing")
