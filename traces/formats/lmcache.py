"""LMCache agent traces: JSON lines of texts, without token counts.

timestamp (integer us since 1970), input (the whole prompt as text), output, session_id. Quirks: not
in time order; an input or output may be empty. Token counts are ESTIMATED at four characters a
token, and blocks of 64 characters of the prompt are hashed, so that shared beginnings are shared;
the workload is marked as estimated. The edition on Hugging Face has session_id, input (chat messages),
output_length and pre_gap (s since the answer before) instead of times.
"""

from __future__ import annotations

import hashlib
from typing import Any

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source
from traces.formats.tracelab import PACE_NOTE, nominal_service_s

CHARS_PER_TOKEN = 4  # the rule of thumb for English text with common tokenizers
BLOCK_TOKENS = 16


_SESSIONS = ("session_id", "input", "output_length", "pre_gap")


def sniff(source: Source) -> bool:
    if source.shape == "json" and source.has(*_SESSIONS):
        return isinstance(source.first.get("input"), list)
    if source.shape != "json" or not source.has("timestamp", "input", "output"):
        return False
    return isinstance(source.first.get("input"), str) and isinstance(
        source.first.get("output"), str
    )


def read(source: Source, options: ReadOptions) -> RawTrace:
    if source.has(*_SESSIONS):
        return _read_sessions(source, options)
    rows = Rows(source, "LMCache agent trace", options.time_unit or "us")
    for place, record in records(source):
        record = record if isinstance(record, dict) else {}
        prompt, output = record.get("input"), record.get("output")
        if not isinstance(prompt, str) or not isinstance(output, str):
            raise source.error(
                place, "its input or output is no text", "Correct or remove the line."
            )
        rows.add(
            place,
            record.get("timestamp"),
            estimated_tokens(prompt),
            estimated_tokens(output),
            session_id=record.get("session_id"),
            prefix_ids=_text_blocks(prompt),
        )
    note = f"Token counts are estimated from the texts at {CHARS_PER_TOKEN} characters a token."
    return rows.trace(prefix_block_tokens=BLOCK_TOKENS, notes=(note,), estimated=True)


def estimated_tokens(text: str) -> int:
    """Tokens of a text at CHARS_PER_TOKEN characters each, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def _text_blocks(text: str) -> list[int]:
    """A hash for each whole block of the text, over everything up to its end."""
    size = BLOCK_TOKENS * CHARS_PER_TOKEN
    running = hashlib.blake2b(digest_size=8)
    out = []
    for end in range(size, len(text) + 1, size):
        running.update(text[end - size : end].encode(errors="surrogatepass"))
        out.append(int.from_bytes(running.digest(), "little"))
    return out


def _read_sessions(source: Source, options: ReadOptions) -> RawTrace:
    """The edition with messages: a request comes pre_gap seconds after the answer before it."""
    rows = Rows(source, "LMCache agentic sessions", "s")
    ready: dict[str, float] = {}
    for place, record in records(source):
        session = str(record.get("session_id"))
        text = _message_text(record.get("input") or [])
        output = rows.finite(place, "a number of output tokens", record.get("output_length"))
        gap = rows.finite(place, "a gap in seconds", record.get("pre_gap"))
        start = ready.setdefault(session, len(ready) * options.stagger_s) + gap
        rows.add(
            place,
            start,
            estimated_tokens(text),
            record.get("output_length"),
            session_id=session,
            prefix_ids=_text_blocks(text),
        )
        ready[session] = start + nominal_service_s(estimated_tokens(text), int(output))
    return rows.trace(
        prefix_block_tokens=BLOCK_TOKENS,
        notes=(
            f"Prompt tokens are estimated from the texts at {CHARS_PER_TOKEN} characters a token.",
            f"{len(ready)} sessions without absolute times were laid {options.stagger_s:g} s apart; {PACE_NOTE}",
        ),
        estimated=True,
    )


def _message_text(messages: list[Any]) -> str:
    """The texts of chat messages, one after another; parts that are no text are left out."""
    out = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else message
        parts = content if isinstance(content, list) else [content]
        texts = (p.get("text") if isinstance(p, dict) else p for p in parts)
        out += [t for t in texts if isinstance(t, str)]
    return "\n".join(out)


FORMAT = Format("lmcache", "LMCache agent traces (texts, counts estimated)", sniff, read)
