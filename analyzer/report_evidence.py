"""What a report rests on: each recording's files with their hashes, versions, and how to check both.

It reads every byte once. It knows files and metadata, not what is in the tables.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from traces.recording import Recording
from traces.schema import CLOSED_FILE

_PACKAGES = ("polars", "plotly", "pyarrow")


@dataclass(frozen=True)
class FileHash:
    """A file of a recording: its place in it, SHA-256 of its bytes, and their number."""

    name: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class Evidence:
    """Of one recording. digest: SHA-256 over the lines "hash  name" of all files, by name, so that a
    folder and a zip of it agree; seed, workload_digest: None where it does not say."""

    label: str
    digest: str
    files: tuple[FileHash, ...]
    schema_version: str
    executor: str | None
    workload_digest: str | None
    seed: int | None
    software: str
    status: str

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def evidence(recording: Recording) -> Evidence:
    """Hashes and versions of a recording."""
    paths = sorted({p for parts in recording.parts.values() for p in parts})
    closed = recording.root / CLOSED_FILE
    if closed.is_file():
        paths.append(closed)
    files = tuple(sorted((_hash(p, recording.root) for p in paths), key=lambda f: f.name))
    lines = "".join(f"{f.sha256}  {f.name}\n" for f in files)
    meta = recording.meta
    return Evidence(
        recording.label,
        hashlib.sha256(lines.encode()).hexdigest(),
        files,
        meta.schema_version,
        meta.executor,
        meta.workload_digest,
        meta.seed,
        ", ".join(f"{name} {said}" for name, said in meta.software.items()),
        recording.status,
    )


def _hash(path: Path, root: Path) -> FileHash:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        size = file.tell()
    return FileHash(path.relative_to(root).as_posix(), digest.hexdigest(), size)


def made_with() -> str:
    """The software that makes the report."""
    said = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            said.append(f"{package} {version(package)}")
        except PackageNotFoundError:  # run from a bare checkout
            continue
    return ", ".join(said)


def as_json(found: Evidence) -> str:
    """The evidence as a JSON document, for the zip of a range's data."""
    return json.dumps(
        {
            "recording": found.label,
            "digest_sha256": found.digest,
            "files": {f.name: f.sha256 for f in found.files},
            "schema_version": found.schema_version,
            "workload_digest": found.workload_digest,
            "seed": found.seed,
            "software": found.software,
            "status": found.status,
        },
        indent=2,
    )
