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
        if not isinstance(request, dict):
            raise rows.source.error(at, "it is not an object", "Correct or remove it.")
        if request.get("type") != "subagent":
            counts["streaming"] += request.get("type") == "s"
            counts["missing_api_time"] += request.get("api_time") is None
            _add(rows, at, request, start, name, f"{name}-{i}", nested=False)
            continue
        inner = request.get("requests") or []
        counts["subagents"] += 1
        counts["subagent_requests"] += len(inner)
        agent = request.get("agent_id") or i
        for j, child in enumerate(inner, 1):
            begin = start + float(request.get("t") or 0.0)
            _add(rows, f"{at}.{j}", child, begin, name, f"{name}-{agent}-{j}", nested=True)


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
    t = request.get("t")
    if isinstance(t, bool) or not isinstance(t, int | float):
        raise rows.source.error(place, f"its time t is {t!r}", "Correct or remove it.")
    rows.add(
        place,
        start + float(t),
        request.get("in"),
        request.get("out"),
        request_id=request_id,
        session_id=session,
        nested=nested,
        prefix_ids=mix_ids(request.get("hash_ids") or [], session),
    )


FORMAT = Format("weka", "Weka / kv-cache-tester agent sessions", sniff, read)
