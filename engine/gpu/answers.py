"""The file of a run's answers: one JSON line for each request, written when it ends.

It knows the line's keys and what a disk may refuse. It does not know requests' states (run.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.errors import SettingsError

if TYPE_CHECKING:
    from engine.gpu.tokenizer import TextTokenizer


class AnswersFile:
    """A new file of JSON lines; tokenizer: for the text of each, None: ids only.

    A line is written at once, so that a killed run leaves those of the requests that had ended.

    Raises: SettingsError if it exists, or cannot be made.
    """

    def __init__(self, path: str | Path, tokenizer: TextTokenizer | None) -> None:
        self._path = path
        self._tokenizer = tokenizer
        try:
            self._file = Path(path).open("xb", buffering=0)  # noqa: SIM115
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise SettingsError(
                f"--outputs {str(path)!r}: cannot be made ({why}). Give the name of a new file."
            ) from None

    def write(
        self, request_id: str, prompt_tokens: int, tokens: list[int], finish_reason: str
    ) -> None:
        """Add a line. Raises: SettingsError where the disk does not take it."""
        record: dict[str, Any] = {
            "request_id": request_id,
            "prompt_tokens": prompt_tokens,
            "tokens": tokens,
            "finish_reason": finish_reason,
        }
        if self._tokenizer is not None:
            record["text"] = self._tokenizer.decode(tokens)
        line = json.dumps(record).encode() + b"\n"
        try:
            while line:  # a disk that fills up takes a part first
                line = line[self._file.write(line) :]
        except OSError as error:
            raise SettingsError(
                f"--outputs {str(self._path)!r}: request {request_id} could not be written ({error.strerror}). "
                "Make room, or give a file on another disk; what was recorded so far is readable."
            ) from error

    def remove(self) -> None:
        """Take the file away again, for a run that does not begin."""
        self.close()
        Path(self._path).unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()
