"""Real text as the prompts of a run: a file of prompts, tokenised, and the workload that they make.

One prompt a line, or JSON lines with `prompt` or `messages` (put through the model's chat template).
Arrivals and output lengths stay the trace's; prompt lengths and shared prefixes are the text's.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from traces.errors import SettingsError, WorkloadError
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.gpu.tokenizer import TextTokenizer


class PromptsError(WorkloadError):
    """A file of prompts that cannot be used; it is named as the user named it."""

    def __str__(self) -> str:
        where = f"{self.file}, {self.place}" if self.place else f"{self.file}"
        return f"{where}: {self.fault.rstrip('.')}. {self.remedy}"


@dataclass(frozen=True)
class Prompts:
    """ids: token ids (int32) of each prompt of `file`, in order; lines: where each stands, from 1."""

    file: str
    ids: list[np.ndarray]
    lines: list[int]


def read_prompts(path: str | Path, tokenizer: TextTokenizer, vocab: int) -> Prompts:
    """The prompts of a file; vocab: token ids that the model knows, from 0.

    Raises: PromptsError with file, line, fault and remedy; SettingsError where the chat template or
    the tokenizer cannot take a prompt, with file and line too.
    """
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # Windows begins files with a BOM
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PromptsError(
            name, "", f"cannot be read ({what})", "Give a text file, one prompt a line."
        ) from None
    found = Prompts(name, [], [])
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"line {number}"
        said = _text_of(line, place, name, tokenizer)
        found.ids.append(_ids_of(said, place, name, tokenizer, vocab))
        found.lines.append(number)
    if not found.ids:
        raise PromptsError(name, "", "it holds no prompt", "Put one prompt on each line.")
    return found


def _text_of(line: str, place: str, name: str, tokenizer: TextTokenizer) -> str:
    """What a line asks for, messages put through the chat template."""
    said: Any = line
    if line.lstrip().startswith("{"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PromptsError(
                name,
                place,
                f"it begins like JSON and is none ({error})",
                'Write {"prompt": "..."} or {"messages": [...]}, or plain text.',
            ) from None
        said = record.get("messages", record.get("prompt"))
    if isinstance(said, list):
        return _chat(said, place, name, tokenizer)
    if not isinstance(said, str):
        raise PromptsError(
            name,
            place,
            "it has neither a text under prompt nor a list under messages",
            'Write {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}.',
        )
    return said


def _chat(messages: list[Any], place: str, name: str, tokenizer: TextTokenizer) -> str:
    fine = all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages)
    if not fine or not messages:
        raise PromptsError(
            name,
            place,
            "messages must be a list of objects with role and content",
            'Write {"messages": [{"role": "user", "content": "..."}]}.',
        )
    try:
        return tokenizer.chat(messages)
    except SettingsError as error:
        raise SettingsError(f"{name}, {place}: {error}") from error


def _ids_of(
    text: str, place: str, name: str, tokenizer: TextTokenizer, vocab: int
) -> np.ndarray:
    """The text's ids, as the model knows them."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptsError(
            name,
            place,
            f"the prompt holds {text[error.start]!r}, which is half a character (a lone surrogate)",
            "Write the whole character, or remove it.",
        ) from None
    try:
        ids = tokenizer.encode(text)
    except SettingsError as error:
        raise SettingsError(f"{name}, {place}: {error}") from error
    if not ids:
        raise PromptsError(name, place, "the prompt has no token", "Remove the line.")
    if max(ids) >= vocab:
        raise PromptsError(
            name,
            place,
            f"the tokenizer of {tokenizer.name} makes token {max(ids):,} of it, and the model has {vocab:,} (0 to {vocab - 1:,})",
            "Give the tokenizer files that belong to these weights.",
        )
    return np.array(ids, np.int32)


def with_prompts(
    workload: Workload, prompts: Prompts, block_size: int, longest: int
) -> tuple[Workload, list[np.ndarray]]:
    """The workload with these prompts in turn, and the ids of each of its requests.

    longest: most tokens of a request; a prompt that leaves no room for an answer is an error. Equal
    leading blocks of two prompts become equal prefix ids, as a prefix cache sees them.
    """
    count = len(prompts.ids)
    ids = [prompts.ids[i % count] for i in range(len(workload))]
    too_long = next((i for i, p in enumerate(ids) if len(p) >= longest), None)
    if too_long is not None:
        raise PromptsError(
            prompts.file,
            f"line {prompts.lines[too_long % count]}",
            f"the prompt has {len(ids[too_long]):,} tokens and max_model_len is {longest:,}",
            "Shorten it, or raise --max-model-len as far as the model allows.",
        )
    chains = [_chain(p, block_size) for p in prompts.ids]
    table = workload.table.with_columns(
        pl.Series("prompt_tokens", [len(p) for p in ids], dtype=pl.Int64),
        pl.Series(
            "prefix_ids",
            [chains[i % count] for i in range(len(workload))],
            dtype=pl.List(pl.UInt64),
        ),
        pl.Series("prefix_tokens", [[] for _ in ids], dtype=pl.List(pl.Int64)),
    )
    made = replace(workload, table=table, prefix_block_tokens=block_size)
    return made, ids


def _chain(ids: np.ndarray, block_size: int) -> list[int]:
    """One id for each full block of a prompt: of all tokens up to its end."""
    h = hashlib.blake2b(digest_size=8)
    chain = []
    for end in range(block_size, len(ids) + 1, block_size):
        h.update(ids[end - block_size : end].tobytes())
        chain.append(int.from_bytes(h.digest(), "little"))
    return chain
