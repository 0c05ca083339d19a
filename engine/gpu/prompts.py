"""Real text as the prompts of a run: a file of prompts, tokenised, and the workload that they make.

One prompt a line, or JSON lines with `prompt` or `messages` (put through the model's chat template).
Arrivals and output lengths stay the trace's; prompt lengths and shared prefixes are the text's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from traces.errors import WorkloadError
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.gpu.tokenizer import TextTokenizer


def read_prompts(path: str | Path, tokenizer: TextTokenizer) -> list[np.ndarray]:
    """Token ids (int32) of each prompt of the file, in order.

    Raises: WorkloadError with file, line, fault and remedy.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise WorkloadError(
            str(path), "", f"cannot be read ({what})", "Give a text file, one prompt a line."
        ) from None
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        ids = _ids_of(line, f"line {number}", str(path), tokenizer)
        prompts.append(np.array(ids, np.int32))
    if not prompts:
        raise WorkloadError(str(path), "", "it holds no prompt", "Put one prompt on each line.")
    return prompts


def _ids_of(line: str, place: str, name: str, tokenizer: TextTokenizer) -> Sequence[int]:
    said: Any = line
    if line.lstrip().startswith("{"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(
                name,
                place,
                f"it begins like JSON and is none ({error})",
                'Write {"prompt": "..."} or {"messages": [...]}, or plain text.',
            ) from None
        said = record.get("messages", record.get("prompt"))
    if isinstance(said, list):
        return _chat(said, place, name, tokenizer)
    if not isinstance(said, str):
        raise WorkloadError(
            name,
            place,
            "it has neither a text under prompt nor a list under messages",
            'Write {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}.',
        )
    ids = tokenizer.encode(said)
    if not ids:
        raise WorkloadError(name, place, "the prompt has no token", "Remove the line.")
    return ids


def _chat(
    messages: list[Any], place: str, name: str, tokenizer: TextTokenizer
) -> Sequence[int]:
    fine = all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages)
    if not fine or not messages:
        raise WorkloadError(
            name,
            place,
            "messages must be a list of objects with role and content",
            'Write {"messages": [{"role": "user", "content": "..."}]}.',
        )
    return tokenizer.encode(tokenizer.chat(messages))


def with_prompts(
    workload: Workload, prompts: Sequence[np.ndarray], block_size: int, longest: int
) -> tuple[Workload, list[np.ndarray]]:
    """The workload with these prompts in turn, and the ids of each of its requests.

    longest: most tokens of a request; a prompt that leaves no room for an answer is an error. Equal
    leading blocks of two prompts become equal prefix ids, as a prefix cache sees them.
    """
    ids = [prompts[i % len(prompts)] for i in range(len(workload))]
    too_long = next((i for i, p in enumerate(ids) if len(p) >= longest), None)
    if too_long is not None:
        raise WorkloadError(
            workload.name,
            f"prompt {too_long % len(prompts) + 1}",
            f"it has {len(ids[too_long]):,} tokens and max_model_len is {longest:,}",
            "Shorten it, or raise --max-model-len as far as the model allows.",
        )
    chains = [_chain(p, block_size) for p in prompts]
    table = workload.table.with_columns(
        pl.Series("prompt_tokens", [len(p) for p in ids], dtype=pl.Int64),
        pl.Series(
            "prefix_ids",
            [chains[i % len(prompts)] for i in range(len(workload))],
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
