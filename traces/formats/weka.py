"""Claude Code sessions of kv-cache-tester (Weka): one JSON document a session.

id, block_size 64, hash_id_scope "local", requests [{t, type n, s or subagent, in, out, hash_ids,
...}], totals. Ids count from 1 in every session: they are mixed with the session's id, so that two
sessions share nothing. A subagent holds requests of its own, timed from its own start, in the
session's id space: they are replayed too, and not counted in the session's own figures. Quirks: ids
cover whole blocks only (rounded down; other editions round up); some requests have out 0; there is
no absolute time, so several sessions start a chosen distance apart.
Source: github.com/callanjfox/kv-cache-tester.
"""

from __future__ import annotations

from typing import Any

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows, mix_ids
from traces.formats.source import Source


def sniff(source: Source) -> bool:
    if source.shape != "json" or not source.has("id", "block_size", "requests"):
        return False
    requests = source.first.get("requests")
    return isinstance(requests, list) and all(
        isinstance(r, dict) and "t" in r for r in requests[:3]
    )


def read(source: Source, options: ReadOptions) -> RawTrace:
    rows = Rows(source, "Weka session", "s")
    counts = {"subagents": 0, "subagent_requests": 0, "streaming": 0, "missing_api_time": 0}
    block: int | None = None
    sessions: list[str] = []
    for place, session in records(source):
        if not isinstance(session, dict) or not isinstance(session.get("requests"), list):
            raise source.error(
                place, "it is not a session with a list of requests", "Export it again."
            )
        if block not in (None, session.get("block_size")):
            raise source.error(
                place, "its block size differs from the session before", "Open it alone."
            )
        block = int(session["block_size"])
        start = len(sessions) * options.stagger_s
        name = str(session.get("id"))
        sessions.append(name)
        _session(rows, place, session, start, name, counts)
    notes = []
    if len(sessions) > 1:
        notes.append(
            f"{len(sessions)} sessions without absolute times were laid {options.stagger_s:g} s apart."
        )
    if counts["subagents"]:
        notes.append(
            f"{counts['subagent_requests']:,} requests of {counts['subagents']:,} subagents are replayed "
            "beside the session's own and are not in its figures."
        )
    return rows.trace(
        prefix_block_tokens=block,
        notes=tuple(notes),
        details={**counts, "session": sessions[0]},
    )


def _session(
    rows: Rows,
    place: str,
    session: dict[str, Any],
    start: float,
    name: str,
    counts: dict[str, int],
) -> None:
    for i, request in enumerate(session["requests"], 1):
        at = f"{place}, request {i}"
        if isinstance(request, dict) and request.get("type") == "subagent":
            counts["subagents"] += 1
            _subagent(
                rows, at, request, start, name, f"{name}-{request.get('agent_id') or i}", counts
            )
            continue
        _add(rows, at, request, start, name, f"{name}-{i}", nested=False)
        counts["streaming"] += request.get("type") == "s"
        counts["missing_api_time"] += request.get("api_time") is None


def _subagent(
    rows: Rows,
    place: str,
    agent: dict[str, Any],
    start: float,
    name: str,
    label: str,
    counts: dict[str, int],
) -> None:
    """The requests of a subagent, and of subagents of its own; their times count from its start."""
    begin = start + _seconds(rows, place, agent)
    for j, child in enumerate(agent.get("requests") or [], 1):
        at = f"{place}.{j}"
        if isinstance(child, dict) and child.get("type") == "subagent":
            counts["subagents"] += 1
            _subagent(
                rows, at, child, begin, name, f"{label}-{child.get('agent_id') or j}", counts
            )
            continue
        counts["subagent_requests"] += 1
        _add(rows, at, child, begin, name, f"{label}-{j}", nested=True)


def _seconds(rows: Rows, place: str, request: Any) -> float:
    if not isinstance(request, dict):
        raise rows.source.error(place, "it is not an object", "Correct or remove it.")
    t = request.get("t")
    if isinstance(t, bool) or not isinstance(t, int | float):
        raise rows.source.error(place, f"its time t is {t!r}", "Correct or remove it.")
    return rows.finite(place, "a time in seconds", t)


def _add(
    rows: Rows,
    place: str,
    request: dict[str, Any],
    start: float,
    session: str,
    request_id: str,
    *,
    nested: bool,
) -> None:
    seconds = _seconds(rows, place, request)
    rows.add(
        place,
        start + seconds,
        request.get("in"),
        request.get("out"),
        request_id=request_id,
        session_id=session,
        nested=nested,
        prefix_ids=mix_ids(request.get("hash_ids") or [], session),
    )


FORMAT = Format("weka", "Weka / kv-cache-tester agent sessions", sniff, read)
