"""vLLM `bench serve --save-result --save-detailed`: parallel lists in one JSON object a run.

start_times (perf_counter seconds: a clock of the machine, not the date), input_lens, output_lens,
ttfts, errors, and a header. Quirks: a failed request has output 0 and an error text; --append-result
writes one object after another; without --save-detailed the lists are missing; versions before
start_times existed have lists without arrivals; request_rate may be the text "inf".
"""

from __future__ import annotations

from typing import Any

from traces.errors import NotAWorkloadError
from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source

_SGLANG = ("total_output_tokens_retokenized", "sharegpt_output_len", "random_input_len")
_HEADER = ("duration", "completed", "total_input_tokens")


def sniff(source: Source) -> bool:
    return source.shape == "json" and source.has(*_HEADER)


def read(source: Source, options: ReadOptions) -> RawTrace:
    rows = Rows(source, "vLLM bench serve", options.time_unit or "s")
    shift, end, runs, relaid = 0.0, None, 0, 0
    for place, run in records(source):
        lists = _lists(source, place, run)
        starts = [s for s in lists["start_times"] if isinstance(s, int | float)]
        if end is not None and starts and min(starts) + shift < end:
            shift, relaid = (
                end - min(starts),
                relaid + 1,
            )  # another machine or boot: its clock began anew
        runs += 1
        _add(rows, f"{place}, ", lists, shift, runs)
        if starts:
            last = min(starts) + (
                run["duration"] if isinstance(run["duration"], int | float) else 0
            )
            end = max(*starts, last) + shift
    notes = [
        "Times are a clock of the client machine, not dates: they count from its first request."
    ]
    if runs > 1:
        notes.append(f"The file holds {runs} runs, replayed one after another.")
    if relaid:
        notes.append(
            f"{relaid} runs began before the run above ended by their clock: they were laid behind it."
        )
    return rows.trace(notes=tuple(notes), details={"runs": runs})


def _lists(source: Source, place: str, run: Any) -> dict[str, list[Any]]:
    """The three needed lists (and errors, if any), of one length. Raises where they are missing."""
    if not isinstance(run, dict):
        raise source.error(
            place, "it is not an object", "Give the file that vllm bench serve wrote."
        )
    names = ("start_times", "input_lens", "output_lens")
    missing = [n for n in names if not isinstance(run.get(n), list)]
    if missing:
        if any(k in run for k in _SGLANG):
            raise source.refuse(
                "it is written by SGLang's bench_serving, which keeps no start times of its requests",
                "Send the same load with vllm bench serve --save-result --save-detailed, or give a request log.",
            )
        detailed = missing == ["start_times"]
        raise NotAWorkloadError(
            source.name,
            place if place != "record 1" and place != "line 1" else "",
            "the requests have lengths but no start times"
            if detailed
            else "it holds the totals of a benchmark run, not its requests",
            "Run a newer vllm bench serve (0.11 or later) with --save-result --save-detailed."
            if detailed
            else "Run vllm bench serve again with --save-result --save-detailed.",
        )
    lists = {n: run[n] for n in names}
    lists["errors"] = (
        run["errors"] if isinstance(run.get("errors"), list) else [""] * len(run["input_lens"])
    )
    sizes = {n: len(v) for n, v in lists.items()}
    if len(set(sizes.values())) != 1:
        said = ", ".join(f"{n} {k}" for n, k in sizes.items())
        raise source.error(
            place, f"its lists differ in length ({said})", "Write the result again."
        )
    return lists


def _add(rows: Rows, place: str, lists: dict[str, list[Any]], shift: float, run: int) -> None:
    for i, (start, prompt, output, error) in enumerate(zip(*lists.values(), strict=True), 1):
        if isinstance(start, int | float):
            start += shift
        rows.add(
            f"{place}request {i}",
            start,
            prompt,
            output,
            request_id=f"{run}-{i - 1}",
            aside="failed" if error else None,
        )


FORMAT = Format("vllm_bench", "vLLM bench serve detailed results", sniff, read)
