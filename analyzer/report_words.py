"""The sentences of a report: set-up in few lines, method and limits, and how long a foreign text may be.

It knows words for what was computed elsewhere; nothing here is markup.
"""

from __future__ import annotations

import re

from analyzer.delta_words import as_third, say_how_judged
from analyzer.look import Side, three_digits
from analyzer.report_contents import Contents
from analyzer.report_setup import Setup
from analyzer.words import label

MOST_TEXT = 120  # characters of a foreign text
_UNIT = re.compile(r"(\d) (%|s|ms|µs|[KMG]i?B(?:/s)?|B)(?![\w])")


def clip(text: object, most: int = MOST_TEXT) -> str:
    """Foreign text on one line, cut where it is longer than anybody reads."""
    start = str(text)[: most * 4]  # an id may have megabytes
    line = " ".join(start.split())
    cut = len(line) > most or len(str(text)) > len(start)
    return f"{line[: most - 1]}…" if cut else line


# ---- method and limits --------------------------------------------------------------------------


def limits(contents: Contents) -> list[str]:
    """How the figures were made and what they cannot say, a sentence or two each."""
    said = _clocks(contents)
    if contents.found is not None:
        said.append(say_how_judged(contents.found.rules))
    if contents.is_part:
        start, end = contents.shown
        said.append(
            f"Timeline and preemptions are of {three_digits(start)} to {three_digits(end)} s; sentence, cards, "
            "latencies and figures are of whole runs."
        )
    said.append(
        "TTFT: arrival to first output token. ITL: gap between neighbouring output tokens. TPOT: (E2E − TTFT) / (tokens − 1), "
        "one a request. E2E: arrival to last token. All over finished requests, percentiles linear."
    )
    said.append(
        "Cost of a preemption: what its mode did cost alone, tokens computed again or copies both ways. Away: until the victim "
        "ran again. Others lost: request-seconds by which other running requests were delayed; queueing that follows is in neither."
    )
    for side, names in contents.missing.items():
        if names:
            said.append(f"Not recorded in {side}: {', '.join(sorted(map(label, names)))}.")
    said += [clip(n, 400) for n in _notes(contents) if not n.startswith("preemption_mode:")]
    for side, run in contents.runs.items():
        listed = run.meta.workload.get("notes")
        if isinstance(listed, list) and side == "A":
            said += [f"Workload: {clip(note, 400)}" for note in listed[:5]]
    return said


def _notes(contents: Contents) -> list[str]:
    """What limits the comparisons, or what the one recording says of itself."""
    if contents.found is None:
        return list(contents.runs["A"].recording.notes)
    notes = list(contents.found.notes)
    of_third = map(as_third, contents.third.notes if contents.third is not None else ())
    return notes + [note for note in of_third if note not in notes]


def _clocks(contents: Contents) -> list[str]:
    runs = contents.runs.values()
    said = []
    if any(r.meta.clock == "modelled" for r in runs):
        said.append(
            "Times are modelled from the model's shape and the device's preset. Decisions (who is admitted, preempted, finished at "
            "which step) follow vLLM's V1 scheduler, which preempts by recompute, and by offload with a connector: swap and "
            "cheapest are ours."
        )
    if any(r.meta.clock == "measured" for r in runs):
        said.append("Times are measured by the engine's clock, one run of each side.")
    return said


# ---- in few lines -----------------------------------------------------------------------------------


def in_short(contents: Contents) -> str:
    """What a reader of a screenshot asks for first, on one line."""
    rows = {row.label: row for row in contents.set_up}
    run = list(contents.runs.values())[-1]
    size = run.meta.block_size_tokens
    pools = {r.recording.pool_blocks for r in contents.runs.values()}
    pool = " and ".join(f"{n:,}" for n in sorted(pools)) + " blocks"
    parts = [f"{run.requests.height:,} requests", f"{pool} of {size} tokens" if size else pool]
    for name in ("Model", "Device"):
        said = rows[name].same
        if said and said != "not stated":
            parts.append(said.split(",")[0])
    clocks = {r.meta.clock for r in contents.runs.values()}
    if len(clocks) == 1 and (clock := clocks.pop()) in ("modelled", "measured"):
        parts.append(f"{clock} time")
    return " · ".join(clip(part, 60) for part in parts)


def range_words(contents: Contents) -> str:
    """'100 to 130 s of 775 s'."""
    start, end = contents.shown
    return f"{three_digits(start)} to {three_digits(end)} s of {three_digits(contents.aligned.full[1])} s"


def card_setup(contents: Contents) -> list[tuple[str, str]]:
    """The set-up in as few lines as a card has room for: what all share, then what differs."""
    rows = {row.label: row for row in contents.set_up}
    terms = {
        "Settings": _unbroken(_together(rows["Not vLLM's defaults"], "\n")),
        "Pool": _together(rows["KV pool"], "; "),
        "Load": f"{_together(rows['Requests'], '; ')}; {_shown(contents)}",
        "Lengths": _together(rows["Lengths"], ";\n", "; "),
    }
    return [(term, clip_lines(text)) for term, text in terms.items()]


def engine_line(contents: Contents) -> str:
    """Who ran it, in which version, on one line."""
    row = next(row for row in contents.set_up if row.label == "Engine")
    return clip(_together(row, "; ").replace("\n", "; "), 90)


def _together(row: Setup, apart: str, joint: str = ", ") -> str:
    """The parts that all sides share on one line, then a line for each side that has more, or for
    those that share it: 'B, C: copy_path coalesced'."""
    parts = {side: text.split(apart) for side, text in row.values.items()}
    whose: dict[str, list[Side]] = {}
    for side, said in parts.items():
        for part in dict.fromkeys(said):
            whose.setdefault(part, []).append(side)
    groups: dict[tuple[Side, ...], list[str]] = {}
    for part, sides in whose.items():
        groups.setdefault(tuple(sides), []).append(part)
    common = groups.pop(tuple(parts), [])
    lines = [joint.join(common)] if common else []
    for who, own in sorted(groups.items(), key=lambda g: (len(g[0]), g[0])):
        lines.append(f"{', '.join(who)}: {joint.join(own)}")
    return "\n".join(lines)


def _unbroken(flags: str) -> str:
    """Flags of a picture, where no line may end at a hyphen within one."""
    return flags.replace("-", "\u2011")


def _shown(contents: Contents) -> str:
    if contents.is_part:
        return f"shown {range_words(contents)}"
    return f"shown 0 to {three_digits(contents.shown[1])} s, all of it"


def tidy(text: str) -> str:
    """A sentence for display: real arrows, and no line break between a number and its unit."""
    return _UNIT.sub("\\1\u00a0\\2", text.replace(" -> ", "\u00a0→\u00a0"))


def clip_lines(text: str, most: int = 220) -> str:
    return "\n".join(clip(line, most) for line in text.split("\n"))
