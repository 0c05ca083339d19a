"""The metadata of a recording: the JSON document in each part's key-value metadata.

It knows the keys that readers ask for, which schema versions can be read, and when two parts belong
to different runs. What a table holds is known elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import RecordingError
from traces.recording_files import list_parts
from traces.recording_laws import Place
from traces.schema import METADATA_KEY, READABLE_VERSIONS, TABLES, Table

# what the two Parquet readers raise over a damaged file
DAMAGE = (
    pa.ArrowException,
    OSError,
    UnicodeDecodeError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)

MAX_BLOCKS = 2**31 - 1  # what the tables' columns can hold
MAX_BLOCK_BYTES = 2**50


class Meta(dict[str, Any]):
    """A recording's metadata document, with names for what readers ask for most.

    It is the JSON object itself (`meta["seed"]`); the properties give None where a writer did not
    say. Block counts leave the null block out.
    """

    def _section(self, name: str) -> Mapping[str, Any]:
        value = self.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def schema_version(self) -> str:
        return str(self.get("schema_version", ""))

    @property
    def executor(self) -> str | None:
        """ "simulator", "torch" or "vllm"."""
        return self.get("executor")

    @property
    def clock(self) -> str | None:
        """ "modelled", "measured" or "step"."""
        return self.get("clock")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Engine settings by vLLM's names."""
        return self._section("settings")

    @property
    def pool_blocks(self) -> int | None:
        """Usable GPU blocks: vLLM's num_gpu_blocks less the null block."""
        if isinstance(self.get("pool_blocks"), int):
            return int(self["pool_blocks"])
        total = self.settings.get("num_gpu_blocks")
        return int(total) - 1 if isinstance(total, int) else None

    @property
    def host_pool_blocks(self) -> int | None:
        return self.get("host_pool_blocks")

    @property
    def block_size_tokens(self) -> int | None:
        return self.settings.get("block_size")

    @property
    def block_bytes(self) -> int | None:
        """KV bytes of one block, all layers."""
        return self.get("block_bytes")

    @property
    def preemption_mode(self) -> str | None:
        """ "recompute", "swap", ...: the mode that was asked for."""
        return self.settings.get("preemption_mode")

    @property
    def policy(self) -> str | None:
        return self.settings.get("policy")

    @property
    def not_recorded(self) -> frozenset[str]:
        """Columns ("table.column") that the executor could not see: what they hold says nothing."""
        listed = self.get("not_recorded")
        return frozenset(map(str, listed)) if isinstance(listed, list) else frozenset()

    @property
    def workload(self) -> Mapping[str, Any]:
        """name, format, digest, num_requests, notes."""
        return self._section("workload")

    @property
    def workload_digest(self) -> str | None:
        return self.workload.get("digest")

    @property
    def seed(self) -> int | None:
        return self.get("seed")

    @property
    def software(self) -> Mapping[str, Any]:
        return self._section("software")


def first_meta(
    root: Path,
    label: str,
    tables: Iterable[Table] = TABLES,
    read: Callable[[pq.ParquetFile, Place], Meta] | None = None,
) -> Meta:
    """Metadata of the first part that can be read, its version checked. Raises RecordingError.

    tables, read: of what the folder is to hold; by default a recording and `part_meta`.
    """
    read = read or part_meta
    last: BaseException | None = None
    for spec in tables:
        for part in list_parts(root, spec, label)[0]:
            try:
                with pq.ParquetFile(part) as file:
                    return read(file, Place(part.name, label, spec.name))
            except DAMAGE as error:
                last = error
    fault = "none of its Parquet files can be read" if last else "it holds no Parquet file"
    remedy = "Copy or upload the recording again, or record the run again; where its recorder has just started, wait for its first step."
    raise RecordingError(label, "", fault, remedy) from last


def part_document(file: pq.ParquetFile, place: Place) -> Meta:
    """The metadata document of a part, whatever it is of. Raises RecordingError."""
    raw = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
    if raw is None:
        raise place.error(
            "",
            None,
            f"the file has no metadata under {METADATA_KEY.decode()!r}",
            "This Parquet file was not written by KV Replay.",
        )
    try:
        meta = json.loads(raw)
    except ValueError as error:
        raise place.error("", None, f"the metadata is no JSON ({error})") from error
    except RecursionError as error:
        raise place.error("", None, "the metadata is nested too deeply") from error
    if not isinstance(meta, dict):
        raise place.error("", None, "the metadata is no JSON object")
    return Meta(meta)


def part_meta(file: pq.ParquetFile, place: Place) -> Meta:
    """The metadata document of a recording's part, its version checked. Raises RecordingError."""
    found = part_document(file, place)
    version = str(found.get("schema_version"))
    if version not in READABLE_VERSIONS:
        raise place.error(
            "",
            None,
            f"the recording has schema version {version}, and this version of KV Replay reads {', '.join(READABLE_VERSIONS)}",
            "Record the run again with this version, or open it with the one that wrote it.",
        )
    _check_sizes(found, place)
    return found


def _check_sizes(meta: Meta, place: Place) -> None:
    """Raise where a size that readers reckon with is no whole number, negative or absurd."""
    sizes = (
        ("pool_blocks", meta.get("pool_blocks"), 0, MAX_BLOCKS),
        ("host_pool_blocks", meta.get("host_pool_blocks"), 0, MAX_BLOCKS),
        ("block_bytes", meta.get("block_bytes"), 0, MAX_BLOCK_BYTES),
        ("settings.num_gpu_blocks", meta.settings.get("num_gpu_blocks"), 1, MAX_BLOCKS + 1),
        ("settings.block_size", meta.settings.get("block_size"), 1, MAX_BLOCKS),
        (
            "workload.prefix_block_tokens",
            meta.workload.get("prefix_block_tokens"),
            1,
            MAX_BLOCKS,
        ),
    )
    for key, value, least, most in sizes:
        if value is not None and not (type(value) is int and least <= value <= most):
            said = repr(value)[:60]
            raise place.error(
                "",
                None,
                f"the metadata says {key} {said}, and it is a whole number from {least} to {most:,}",
            )


_LACKS = (
    (("dropped_steps", "lost_steps"), "{:,} steps"),
    (("dropped_events", "lost_events"), "{:,} events"),
    (("dropped_requests", "lost_requests"), "{:,} requests"),
    (("dropped_samples",), "{:,} samples of block ownership"),
)


def writer_notes(meta: Meta) -> list[str]:
    """Sentences on what a live recorder counted as not recorded, from its last part's metadata."""

    def count(*names: str) -> int:
        said = meta._section("writer")
        return sum(int(said[n]) for n in names if isinstance(said.get(n), int))

    notes = []
    lacks = [text.format(n) for names, text in _LACKS if (n := count(*names))]
    if lacks:
        notes.append(
            f"The recorder could not keep up or could not write: {', '.join(lacks)} are missing."
        )
    if n := count("skipped_idle_steps"):
        notes.append(
            f"{n:,} steps in which nothing could be scheduled were counted and not written."
        )
    if count("errors"):
        notes.append(
            "The recorder failed and stopped before the server did; the server's log says why."
        )
    return notes


SAME_RUN = ("schema_version", "executor", "settings", "workload", "seed", "pool_blocks")


def check_same_run(
    found: Meta, first: Meta, place: Place, keys: Iterable[str] = SAME_RUN
) -> None:
    """Raise where a part's metadata belongs to another run than the first part's."""
    for key in keys:
        if found.get(key) != first.get(key):
            raise place.error(
                "",
                None,
                f"the part belongs to another run: its {key} differs from that of the first part",
                "Remove the folder and record the run again.",
            )
