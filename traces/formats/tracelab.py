"""TraceLab: coding-agent sessions as replay CSV or as round traces.

Replay CSV: session_id, arrival_time (ms, of the session), round_idx, prefix_len, input_len,
output_len, tool_wait_after_ms; a prompt is prefix_len + input_len. One edition has no arrival_time.
Round trace: JSON lines with input_tokens_total, output_tokens, timing_events; a round arrives at its
last user message or tool result.

A round can only start when the one before has answered, and the CSV does not say when that was:
its time is estimated at NOMINAL_PREFILL and NOMINAL_DECODE and said so in a note.
Source: github.com/uw-syfi/TraceLab.
"""

from __future__ import annotations

from typing import Any

from traces.formats.cells import COUNT, INTEGER, NUMBER, TEXT
from traces.formats.columns import KINDS
from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows, mix_ids
from traces.formats.source import Source
from traces.formats.tabular import load
from traces.formats.times import TEXT_UNIT, UNITS

# A plain pace of an unloaded server, only to place the rounds of a session one after another.
NOMINAL_PREFILL_TOKENS_PER_S = 8_000.0
NOMINAL_DECODE_S_PER_TOKEN = 0.030
PACE_NOTE = (
    "a request starts when the one before it is answered; the file does not say when, so it is placed "
    f"at {NOMINAL_PREFILL_TOKENS_PER_S:,.0f} prompt tokens/s and {NOMINAL_DECODE_S_PER_TOKEN * 1e3:.0f} ms "
    "an output token, plus the recorded waits."
)

_CSV = ("session_id", "round_idx", "prefix_len", "input_len", "output_len")
_ROUND = ("session_id", "round_index", "input_tokens_total", "output_tokens", "timing_events")
_ARRIVALS = ("user_message", "tool_result")


def sniff(source: Source) -> bool:
    return (source.is_table and source.has(*_CSV)) or (
        source.shape == "json" and source.has(*_ROUND)
    )


def read(source: Source, options: ReadOptions) -> RawTrace:
    return _read_csv(source, options) if source.is_table else _read_rounds(source)


def _read_csv(source: Source, options: ReadOptions) -> RawTrace:
    columns = {c: c for c in _CSV}
    kinds = {
        **KINDS,
        "session_id": TEXT,
        "round_idx": INTEGER,
        "prefix_len": COUNT,
        "input_len": COUNT,
    }
    kinds |= {"output_len": COUNT, "tool_wait_after_ms": NUMBER, "arrival_time": NUMBER}
    columns |= {c: c for c in ("arrival_time", "tool_wait_after_ms") if source.has(c)}
    frame = load(source, columns, kinds).frame
    rows = Rows(source, "TraceLab replay", "s")
    unit = UNITS[options.time_unit or "ms"]
    timed = "arrival_time" in frame.columns
    sessions: dict[str, _Session] = {}
    for i, row in enumerate(frame.iter_rows(named=True), 1):
        place = f"row {i}"
        name = str(row["session_id"])
        missing = [c for c in ("prefix_len", "input_len", "output_len") if row[c] is None]
        if missing:
            raise source.error(
                f"{place}, column {missing[0]}",
                "the cell is empty",
                "Fill it or remove the row.",
            )
        if name not in sessions:
            if timed and row["arrival_time"] is None:
                raise source.error(
                    f"{place}, column arrival_time",
                    "the cell is empty",
                    "Fill it or remove the session.",
                )
            at = row["arrival_time"] * unit if timed else len(sessions) * options.stagger_s
            sessions[name] = _Session(name, at)
        session = sessions[name]
        ids, tokens = session.prompt(row["prefix_len"], row["input_len"])
        rows.add(
            place,
            float(session.ready_s),
            row["prefix_len"] + row["input_len"],
            row["output_len"],
            request_id=f"{name}-{row['round_idx']}",
            session_id=name,
            prefix_ids=ids,
            prefix_tokens=tokens,
        )
        session.answer(
            row["input_len"], row["output_len"], (row.get("tool_wait_after_ms") or 0.0) / 1e3
        )
    notes = [PACE_NOTE[0].upper() + PACE_NOTE[1:]]
    if not timed:
        notes.append(
            f"{len(sessions)} sessions without arrival times were laid {options.stagger_s:g} s apart."
        )
    return rows.trace(columns=columns, notes=tuple(notes))


def nominal_service_s(prompt_tokens: int, output_tokens: int) -> float:
    """Seconds that a request takes at the nominal pace."""
    prefill = prompt_tokens / NOMINAL_PREFILL_TOKENS_PER_S
    return prefill + output_tokens * NOMINAL_DECODE_S_PER_TOKEN


class _Session:
    """The context of a session as segments (prompt parts and answers), and when it is ready again."""

    def __init__(self, name: str, start_s: float) -> None:
        self.name, self.ready_s = name, start_s
        self.tokens: list[int] = []

    def prompt(self, prefix_len: int, input_len: int) -> tuple[list[int], list[int]]:
        """Segments of a prompt: whole known ones inside prefix_len, then the new part if they meet it."""
        kept: list[int] = []
        for n in self.tokens:
            if sum(kept) + n > prefix_len:
                break
            kept.append(n)
        if sum(kept) == prefix_len:
            kept.append(input_len)
        self.tokens = kept.copy()
        kept = [n for n in kept if n > 0]
        return mix_ids([self._key(kept[: i + 1]) for i in range(len(kept))], self.name), kept

    @staticmethod
    def _key(lengths: list[int]) -> int:
        """An id for the segments so far: the same history of lengths in a session is the same text."""
        key = 0
        for n in lengths:
            key = (key * 1_000_003 + n + 1) % 2**64
        return key

    def answer(self, input_len: int, output_len: int, wait_s: float) -> None:
        self.tokens.append(output_len)
        self.ready_s += nominal_service_s(input_len, output_len) + wait_s


def _read_rounds(source: Source) -> RawTrace:
    rows = Rows(source, "TraceLab rounds", TEXT_UNIT)
    for place, record in records(source):
        if not isinstance(record, dict):
            raise source.error(
                place, "a record is not an object", "Correct or remove the line."
            )
        rows.add(
            place,
            _arrival(record.get("timing_events") or []),
            record.get("input_tokens_total"),
            record.get("output_tokens"),
            request_id=record.get("trace_key") or record.get("round_id"),
            session_id=record.get("session_id"),
        )
    raw = rows.trace(
        columns={"arrival_s": "timing_events", "prompt_tokens": "input_tokens_total"}
    )
    untimed = int(raw.frame["arrival_s"].null_count())
    return raw.with_notes(
        "Prefix tokens are counts without ids: no prefix is assumed to be shared.",
        f"{untimed:,} rounds have no user message or tool result to time them."
        if untimed
        else "",
    )


def _arrival(events: list[dict[str, Any]]) -> str | None:
    """The last user message or tool result before the model's first output, as text."""
    last = None
    for event in events:
        if event.get("event_type") in _ARRIVALS and event.get("timestamp"):
            last = str(event["timestamp"])
    return last


FORMAT = Format("tracelab", "TraceLab replay CSV and round traces", sniff, read)
