"""One preemption told in words: who was evicted, for whom and why, what it cost, what it delayed.

It knows one row of a told table (`preemption_rows`), the run's metadata and its steps. What was not
recorded is said to be so. It knows nothing of lanes, lists or pages; ids are passed on as they are,
only shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from analyzer.look import Side, gib, seconds, three_digits
from analyzer.measured import recompute_token_s
from analyzer.run import Run
from analyzer.words import NOT_RECORDED
from traces.recording import Meta

Known = Literal["modelled", "measured", "estimated", "counted", "not recorded"]
LONGEST_ID = 48
RULES: Mapping[str, str] = {
    "last": "last admitted",
    "priority": "least important, then last arrived",
    "fewest-computed": "fewest computed tokens",
    "most-blocks": "most blocks",
}
MEANINGS: Mapping[str, str] = {
    "direct": (
        "What the mode used cost alone, others left out. Recompute: computing the tokens that were computed "
        "again, without those found in the prefix cache. Swap: its copies on the link, out and back. "
        "Offload: what was computed again, and the load from the host."
    ),
    "induced": (
        "Request-seconds that other running requests lost: the share of each step's time that went into this "
        "victim's tokens or copies, times the others that ran in it. Requests that waited are not counted."
    ),
    "wasted": (
        "KV that had been computed, was lost, and had to be computed again: neither found in the prefix "
        "cache nor restored from the host."
    ),
    "away": "From the preemption until the victim ran again.",
}


@dataclass(frozen=True)
class Cost:
    """One kind of cost. value: as people read it; known: how it is known; meaning: its definition."""

    label: str
    value: str
    known: Known
    meaning: str


@dataclass(frozen=True)
class Story:
    """A preemption in words. title: who and when; lines: label -> sentence, in the order to be read;
    costs: direct, induced, wasted, away; notes: what is odd about it."""

    title: str
    lines: Mapping[str, str]
    costs: tuple[Cost, ...]
    notes: tuple[str, ...]


def tell(run: Run, row: Mapping[str, Any], cascade: pl.DataFrame) -> Story:
    """The story of one row of a told table. cascade: the rows that share its cascade."""
    teller = _Teller(run, row)
    lines = {
        "Why": teller.why(),
        "Freed": teller.freed(),
        "Cost": teller.cost(),
        "Otherwise": teller.otherwise(),
        "Delay": f"{teller.wait()}; {teller.others()}.",
    }
    return Story(teller.title(), lines, teller.costs(), teller.notes(cascade))


def short_id(request_id: object) -> str:
    """A request's id on one line of bounded length."""
    text = " ".join(str(request_id)[: LONGEST_ID * 4].split())
    return text if len(text) <= LONGEST_ID else f"{text[:LONGEST_ID]}…"


def rule(meta: Meta) -> str:
    """The rule that chose victims, in words; "not recorded" where the settings do not tell."""
    chosen = meta.settings.get("victim")
    if chosen is None and meta.policy in ("fcfs", "priority"):
        chosen = "last" if meta.policy == "fcfs" else "priority"
    return RULES.get(str(chosen), str(chosen)) if chosen else NOT_RECORDED


def how_known(run: Run, mode: str | None) -> Known:
    """How the direct cost of a preemption by that mode is known, where it is."""
    if run.meta.clock != "measured":
        return "modelled"
    by_copies = mode == "swap"
    return "measured" if by_copies or _token_s(run) is not None else "estimated"


def same_request(
    runs: Mapping[Side, Run], tables: Mapping[Side, pl.DataFrame], request_id: str
) -> pl.DataFrame:
    """What became of one request in each run: a row a figure, as text, a column a run."""
    columns: dict[Side, dict[str, str]] = {
        side: _fate(run, tables[side], request_id) for side, run in runs.items()
    }
    labels = list(next(iter(columns.values())))
    texts: dict[str, list[str]] = {s: [fate[k] for k in labels] for s, fate in columns.items()}
    return pl.DataFrame({"Figure": labels, **texts})


def _fate(run: Run, table: pl.DataFrame, request_id: str) -> dict[str, str]:
    """Label -> figure of one request in one run."""
    asked = run.requests.lazy().filter(pl.col("request_id") == request_id).head(1).collect()
    own = table.lazy().filter(pl.col("request_id") == request_id).collect()
    labels = (
        "Preempted", "At steps", "Time away", "Direct cost", "Tokens computed again", "TTFT", "E2E", "Longest gap between tokens", "Ended",
    )  # fmt: skip
    if asked.is_empty():
        return dict.fromkeys(labels, "not in this run")
    r = asked.row(0, named=True)
    times = [str(f"{s:,}") for s in own["step"].head(4)]
    more = f", {own.height - 4:,} more" if own.height > 4 else ""
    ended = str(r["status"])
    in_steps = run.meta.clock == "step"
    back = own.filter(pl.col("resume_step").is_not_null())
    gone = "" if back.height == own.height else ", not back at the end"
    values = (
        f"{own.height:,} {'time' if own.height == 1 else 'times'}",
        (", ".join(times) + more) or "—",
        f"{_time(_sum(back, 'away_s'), in_steps)}{gone}" if own.height else "—",
        _or_unknown(_sum(own, "direct_cost_s"), seconds) if own.height else "—",
        _or_unknown(_sum(back, "recomputed_tokens"), lambda v: f"{v:,.0f}") if own.height else "—",
        _time(_gap(r["first_token_s"], r["arrival_s"]), in_steps, "no token"),
        _time(_gap(r["finish_s"], r["arrival_s"]) if ended == "finished" else None, in_steps, "—"),
        _time(r["max_itl_s"], in_steps, "—"),
        ended,
    )  # fmt: skip
    return dict(zip(labels, values, strict=True))


# ---- the sentences -------------------------------------------------------------------------------


class _Teller:
    """The sentences of one preemption."""

    def __init__(self, run: Run, row: Mapping[str, Any]) -> None:
        self.run, self.row, self.meta = run, row, run.meta
        self.mode: str | None = None if row["mode_used"] is None else str(row["mode_used"])
        self.in_steps = run.meta.clock == "step"

    def title(self) -> str:
        when = "" if self.in_steps else f" ({self.row['t_s']:,.1f} s)"
        return f"Request {short_id(self.row['request_id'])} evicted at step {self.row['step']:,}{when}"

    def why(self) -> str:
        cause, free = self.row["cause_request_id"], self.row["free_blocks_before"]
        own = cause is not None and cause == self.row["request_id"]
        pool = f"{self.run.recording.pool_blocks:,}"
        asker = "it" if own else f"request {short_id(cause)}"
        if cause is None:
            who = f"whose need evicted it is {NOT_RECORDED}"
            room = f"; {f'free blocks {NOT_RECORDED}' if free is None else f'{free:,} of {pool} blocks were free'}"
        elif free:
            who = f"{asker}{' itself' if own else ''} needed more blocks"
            room = f" than the {free:,} of {pool} that were free"
        else:
            who = f"{asker} needed a block{' itself' if own else ''}"
            room = (
                f" and 0 of {pool} were free" if free == 0 else f"; free blocks {NOT_RECORDED}"
            )
        return _sentence(f"{who}{room}; victim rule: {rule(self.meta)}")

    def freed(self) -> str:
        blocks, tokens = self.row["blocks"], self.row["tokens"]
        said = f"blocks {NOT_RECORDED}" if blocks is None else _count(blocks, "block")
        held = "" if tokens is None else f", that held {_count(tokens, 'computed token')}"
        where = ""
        if self.mode == "swap":
            size = self.row["bytes"]
            where = " to the host" + (f" ({gib(size)})" if size else "")
            held = held.replace("held", "hold")
        return _sentence(f"{said}{where}{held}")

    def cost(self) -> str:
        mode = self.mode or f"a mode {NOT_RECORDED}"
        cost_s, known = self.row["direct_cost_s"], how_known(self.run, self.mode)
        price = (
            f"cost {NOT_RECORDED}" if cost_s is None else f"{seconds(cost_s)} {self._of_what()} ({known})"
        )  # fmt: skip
        if self.in_steps:
            price = "no cost in seconds, since this run's clock counts steps"
        return _sentence(f"as {mode}{self._asked()}: {self._work()}{price}")

    def otherwise(self) -> str:
        """What the mode that was not used was expected to cost."""
        swap_s, recompute_s = self.row["swap_est_s"], self.row["recompute_est_s"]
        if self.in_steps:
            return "Not estimated: this run's clock counts steps."
        if self.mode == "swap":
            return _sentence(f"had it been recomputed: {_est(recompute_s)}")
        if self.mode == "offload":
            return _sentence(
                f"had it been swapped: {_est(swap_s)}; without the host cache: {_est(recompute_s)}"
            )
        return _sentence(f"had it been swapped: {_est(swap_s)}")

    def wait(self) -> str:
        away_s, back = self.row["away_s"], self.row["resume_step"]
        if back is None:
            return "It never ran again in this recording"
        length = _count(back - self.row["step"], "step")
        time = "" if self.in_steps or away_s is None else f"{seconds(away_s)}, "
        return f"Waited {time}{length}, until it ran again at step {back:,}"

    def others(self) -> str:
        """Whom else it slowed down, and by how much."""
        induced_s = self.row["induced_s"]
        if induced_s is None:
            return f"how long others were held up is {NOT_RECORDED}"
        if induced_s == 0:
            return "no other running request was held up"
        num = self._num_others()
        amount = f"{three_digits(induced_s)} request-{'steps' if self.in_steps else 'seconds'}"
        if num is None:
            return f"steps of other running requests were lengthened, {amount} in all"
        if num == 1:
            return f"the steps of 1 other running request were lengthened, by {amount}"
        return f"the steps of {num:,} other running requests were lengthened, {amount} in all"

    def costs(self) -> tuple[Cost, ...]:
        row, step = self.row, self.in_steps
        direct, induced, away = row["direct_cost_s"], row["induced_s"], row["away_s"]
        wasted = row["recomputed_tokens"]
        clock: Known = "measured" if self.meta.clock == "measured" else "modelled"
        never = row["resume_step"] is None
        return (
            Cost("Direct", _or_unknown(direct, seconds), "not recorded" if direct is None else how_known(self.run, self.mode), MEANINGS["direct"]),
            Cost("Delay of others", _or_unknown(induced, lambda v: f"{three_digits(v)} req·{'steps' if step else 's'}"), "not recorded" if induced is None else clock, MEANINGS["induced"]),
            Cost("Wasted KV work", "none yet" if wasted is None and never else _or_unknown(wasted, lambda v: f"{v:,} tokens"), "counted" if wasted is not None or never else "not recorded", MEANINGS["wasted"]),
            Cost("Away", "never back" if never else _time(away, step), clock, MEANINGS["away"]),
        )  # fmt: skip

    def notes(self, cascade: pl.DataFrame) -> tuple[str, ...]:
        said = []
        nth, since = self.row["nth"], self.row["since_resume_s"]
        if nth > 1:
            after = (
                "" if since is None or self.in_steps else f", {seconds(since)} after it had come back"
            )  # fmt: skip
            said.append(f"Its preemption number {nth:,}{after}.")
        if cascade.height > 1:
            first, last = int(cascade["step"][0]), int(cascade["step"][-1])
            said.append(
                f"One of {cascade.height:,} preemptions in a row, steps {first:,} to {last:,}."
            )
        return tuple(said)

    def _asked(self) -> str:
        asked = self.row["mode_asked"]
        if asked is None or str(asked) == self.mode:
            return ""
        if str(asked) == "cheapest":
            return " (chosen as the cheapest)"
        full = ", the host was full" if (str(asked), self.mode) == ("swap", "recompute") else ""
        return f" ({asked} was asked for{full})"

    def _work(self) -> str:
        """What was computed again or moved, before its price."""
        again, found = self.row["recomputed_tokens"], self.row["found_tokens"]
        if self.mode == "swap" or again is None:
            return ""
        back = self.row["restored_tokens"]
        kept = [f"{found:,} were found in the prefix cache"] if found else []
        kept += [f"{back:,} came from the host"] if back else []
        rest = f" ({', '.join(kept)})" if kept else ""
        return f"{_count(again, 'token')} computed again{rest}, "

    def _of_what(self) -> str:
        if self.mode != "swap":
            return (
                "of computing"
                if not self.row["restored_tokens"]
                else "of computing and loading"
            )
        stalled = self.row["stalled_s"]
        if stalled is None:
            return "on the link"
        held = "nothing" if stalled == 0 else seconds(stalled)
        return f"on the link, out and back, for which the engine stood still {'not at all' if held == 'nothing' else held}"

    def _num_others(self) -> int | None:
        """Most other requests that ran in any of the steps that this preemption lengthened."""
        steps = self.run.steps.lazy()
        back = self.row["resume_step"]
        if self.mode == "swap":
            ends = [s for s in (self.row["step"], back) if s is not None]
            part = steps.filter(pl.col("step").is_in(ends) & (pl.col("stall_s") > 0))
            own = (
                (pl.col("step") == back) if back is not None else pl.lit(False)
            )  # it runs there
        elif self.row["again_first_step"] is None:
            return None
        else:
            first, last = self.row["again_first_step"], self.row["again_last_step"]
            part, own = steps.filter(pl.col("step").is_between(first, last)), pl.lit(True)
        most = part.select((pl.col("num_running") - own.cast(pl.Int32)).max()).collect().item()
        return None if most is None else max(int(most), 1)


def _token_s(run: Run) -> float | None:
    return recompute_token_s(run.recording)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _est(value: float | None) -> str:
    return NOT_RECORDED if value is None else f"{seconds(value)} (estimated)"


def _or_unknown(value: float | None, show: Any) -> str:
    return NOT_RECORDED if value is None else str(show(value))


def _time(value: float | None, in_steps: bool, missing: str = NOT_RECORDED) -> str:
    if value is None:
        return missing
    return f"{three_digits(value)} steps" if in_steps else seconds(value)


def _gap(end: float | None, start: float | None) -> float | None:
    return None if end is None or start is None else end - start


def _sum(table: pl.DataFrame, column: str) -> float | None:
    """The sum of a column; None where a value is not known."""
    return None if table[column].null_count() else float(table[column].sum())
