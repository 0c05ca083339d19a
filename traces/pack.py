"""A recording rewritten with as few parts as it needs: `python -m traces pack RECORDING OUT`.

An engine that records as it goes writes a part every few seconds, each with its metadata, so that a kill
loses little. Packed, a recording is smaller and opens faster. What it says is the same, table by table.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from traces import schema
from traces.errors import RecordingError
from traces.recording import open_recording
from traces.recording_files import write_recording, zip_recording

PART_ROWS = 1 << 20


def pack(recording: str | Path, out: str | Path) -> Path:
    """Write `recording` to `out`, a new folder or, where it ends in .zip, a new file; returns it.

    Raises: RecordingError for what cannot be read, is a run that was not closed, or a taken name.
    """
    out = Path(out)
    if out.exists():
        raise RecordingError(out, "", "something of that name exists", "Give a new name.")
    zipped = out.suffix == ".zip"
    folder = out.with_name(out.name + ".packing") if zipped else out
    with open_recording(recording) as source:
        if not source.complete:
            raise RecordingError(
                source.label,
                "",
                "it was not closed, so its end may be missing, which packing would hide",
                "Share it as it is, or record the run again.",
            )
        tables = {
            name: _whole(source.scan(name).collect().to_arrow(), name) for name in source.rows
        }
        try:
            write_recording(
                folder,
                tables,
                _plain_meta(source.meta),
                rows_per_part=PART_ROWS,
                status=source.status,
            )
            if zipped:
                zip_recording(folder, out)
        except OSError as error:
            raise RecordingError(
                out, "", f"cannot be written ({error.strerror})", "Give another place."
            ) from None
        finally:
            if zipped:
                shutil.rmtree(folder, ignore_errors=True)
    return out


def _plain_meta(meta: object) -> dict[str, object]:
    """The metadata under the version that is written."""
    assert isinstance(meta, dict)
    return {**meta, "schema_version": schema.SCHEMA_VERSION}


def _whole(table: pa.Table, name: str) -> pa.Table:
    """The table with the contract's own types."""
    return table.select(schema.table(name).names).cast(
        pa.schema([(c.name, c.type) for c in schema.table(name).columns])
    )
