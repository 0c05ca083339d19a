"""The one small family of errors that a user can meet.

Every message names the file (or setting), the place, the fault and the next step, so that it can
be shown as it is. A broken law inside the product is an InvariantError and never a user's fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MOST_OF_NAME = 255  # characters; no file system has longer ones


class KVReplayError(Exception):
    """Something a user can mend; `str(error)` is one readable sentence or two."""


@dataclass
class FileError(KVReplayError):
    """A file that cannot be read as what it was given for.

    file: path or upload name; place: "row 17", "column arrival_s", "line 3"; fault: what is wrong;
    remedy: what to do next.
    """

    file: str | Path
    place: str
    fault: str
    remedy: str

    def __str__(self) -> str:
        name = Path(self.file).name or str(self.file)
        where = name if len(name) <= _MOST_OF_NAME else f"{name[:_MOST_OF_NAME]}..."
        if self.place:
            where += f", {self.place}"
        return f"{where}: {self.fault.rstrip('.')}. {self.remedy}"


class WorkloadError(FileError):
    """A request trace that is damaged or holds absurd values."""


class NotAWorkloadError(WorkloadError):
    """A file that is understood but is no request trace; the remedy says what to use instead."""


class RecordingError(FileError):
    """A recording that is damaged, of another version, or breaks a law of the contract."""


class EvidenceError(FileError):
    """A log, metrics dump, table or note that cannot be read at all; what is odd in it is only noted."""


class SweepError(FileError):
    """A sweep's table that is damaged, of another version, or something else."""


class SettingsError(KVReplayError):
    """A setting that cannot be; the message lists what can."""


class CompareError(KVReplayError):
    """Two recordings that must not be compared."""


class InvariantError(Exception):
    """The product broke one of its own laws: step, ids and the sums that disagree."""
