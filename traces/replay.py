"""The Workload inside a Recording: what was asked of the run, so that it can be run again.

It reads requests and events and knows what they do not say: how many tokens a request would have
had that was aborted, or was still running at the end. Under which settings to run it is the engine's
business (engine/replay.py).
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from traces.errors import WorkloadError
from traces.recording import Recording
from traces.workload import ReadReport, Workload, make_workload

# Tokens that a request which was cut short is taken to have wanted beyond those it got: it must not
# end by itself before it is aborted again, also with several steps in flight.
MORE_TOKENS = 1_024


def workload_of(recording: Recording, *, as_it_ended: bool = False) -> Workload:
    """The requests of a recording, in order of arrival, with steps of arrival and abort.

    Requests that were unfinished at the end are aborted after the last step; as_it_ended: they are
    not, and those that had not arrived are kept, for a replay that ends where the recorded run did.
    The table has one column more, abort_order: aborts of one time are in the order of their events.
    The report's notes say what is missing. Raises WorkloadError where no request has a prompt length.
    """
    requests = _with_order(recording, as_it_ended)
    came = ~(
        (pl.col("status").cast(pl.String) == "unfinished")
        & pl.col("place").is_null()
        & pl.col("arrival_step").is_null()
    )
    if not as_it_ended:
        requests = requests.filter(came)  # the run ended before the others arrived
    known = requests.filter(
        pl.col("prompt_tokens").is_not_null() & (pl.col("prompt_tokens") > 0)
    )
    left_out = requests.height - known.height
    if known.is_empty():
        raise WorkloadError(
            recording.label,
            "table requests",
            "no request says its prompt length, so none can be run again",
            "Open a recording that was closed, or a request trace.",
        )
    status = known["status"].cast(pl.String)
    # Refused after it had begun: it outgrew the pool, and wanted more than it got.
    outgrew = (status == "refused") & (known["output_tokens"].fill_null(0) > 0)
    cut = status.is_in(["aborted", "unfinished"]) | outgrew
    columns = known.with_columns(
        output_tokens=pl.when(cut)
        .then(pl.col("output_tokens").fill_null(0) + MORE_TOKENS)
        .otherwise(pl.col("output_tokens").fill_null(0).clip(1)),
    )
    said = recording.meta.workload
    block = said.get("prefix_block_tokens")
    concurrency = said.get("concurrency")
    workload = make_workload(
        {c: columns[c] for c in _COLUMNS},
        name=recording.label,
        report=ReadReport(
            "recording",
            rows_read=requests.height,
            dropped={"no prompt length": left_out} if left_out else {},
            notes=tuple(_notes(recording, left_out, int(cut.sum()))),
        ),
        prefix_block_tokens=block if isinstance(block, int) else None,
        concurrency=concurrency if isinstance(concurrency, int) else None,
        estimated=bool(said.get("estimated", False)),
    )
    order = columns.select("request_id", "abort_order")
    table = workload.table.join(order, on="request_id", how="left", maintain_order="left")
    return replace(workload, table=table)


_COLUMNS = (
    "request_id", "arrival_s", "prompt_tokens", "output_tokens", "priority", "prefix_ids",
    "prefix_tokens", "arrival_step", "abort_step", "abort_s",
)  # fmt: skip


def _with_order(recording: Recording, as_it_ended: bool) -> pl.DataFrame:
    """Requests in order of their arrival, with the step, time and place at which each was cut short."""
    events = recording.events.with_row_index("place").with_columns(
        kind=pl.col("kind").cast(pl.String)
    )
    arrive = events.filter(pl.col("kind") == "arrive").select("request_id", "place")
    abort = events.filter(pl.col("kind") == "abort").select(
        "request_id",
        abort_step="step",
        abort_s="t_s",
        abort_order=pl.col("place").cast(pl.Int64),
    )
    last = recording.steps.select(
        step=pl.col("step").max() + 1, end_s=(pl.col("t_start_s") + pl.col("duration_s")).max()
    )
    end_step, end_s = last.row(0) if last.height else (None, None)
    open_at_end = (pl.col("status").cast(pl.String) == "unfinished") & (not as_it_ended)
    arrival_s = pl.col("arrival_s")
    if as_it_ended and recording.meta.workload.get(
        "concurrency"
    ):  # who had not arrived, comes after all who had
        arrival_s = (
            pl.when(pl.col("place").is_null()).then(pl.max("arrival_s")).otherwise("arrival_s")
        )
    return (
        recording.requests.join(arrive, on="request_id", how="left")
        .join(abort, on="request_id", how="left")
        .with_columns(arrival_s=arrival_s)
        .with_columns(
            abort_step=pl.when(open_at_end).then(end_step).otherwise(pl.col("abort_step")),
            abort_s=pl.when(open_at_end)
            .then(pl.max_horizontal(pl.lit(end_s), "arrival_s"))
            .otherwise(pl.col("abort_s")),
        )
        .sort("arrival_s", "place", nulls_last=True, maintain_order=True)
    )


def _notes(recording: Recording, left_out: int, cut: int) -> list[str]:
    notes = []
    if left_out:
        notes.append(
            f"{left_out:,} requests were left out: the recording does not say their prompt length."
        )
    if cut:
        notes.append(
            f"{cut:,} requests were aborted, unfinished or refused on the way; they are taken to have wanted {MORE_TOKENS:,} tokens more than they got."
        )
    if "requests.prefix_ids" in recording.meta.not_recorded:
        notes.append(
            "Shared prefixes were not recorded: every prompt is taken to be unlike any other."
        )
    return notes
