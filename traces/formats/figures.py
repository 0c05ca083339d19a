"""The figures of a trace as its file has it, and which of its rows can be replayed.

Knows why a row is set aside and which values are absurd. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import polars as pl

from traces.errors import WorkloadError
from traces.formats.raw import RawTrace
from traces.workload import MAX_TOKENS, refuse_early_aborts, token_summary

NO_TIME = "no arrival time"
NO_COUNTS = "no token counts"
ZERO_OUTPUT = "zero output tokens"
EMPTY_PROMPT = "empty prompt"
MAX_SPAN_S = 3.2e9  # a century
UNKNOWN = -1  # how several logs write "not reported"


def aside_reasons(source_name: str, raw: RawTrace) -> pl.Series:
    """For each row the reason why it cannot be replayed, or null. Raises for absurd counts."""
    frame = raw.frame
    for role, what in (("prompt_tokens", "prompt"), ("output_tokens", "output")):
        _refuse_absurd(source_name, frame[role], role, what)
    _refuse_absurd_span(source_name, frame["arrival_s"])
    if "prefix_ids" in frame.columns:
        _refuse_missing_ids(source_name, frame["prefix_ids"])
    said = pl.col("aside") if "aside" in frame.columns else pl.lit(None, dtype=pl.String)
    prompt, output = pl.col("prompt_tokens"), pl.col("output_tokens")
    unknown = prompt.is_null() | output.is_null() | (prompt == UNKNOWN) | (output == UNKNOWN)
    reason = (
        pl.when(said.is_not_null())
        .then(said)
        .when(unknown)
        .then(pl.lit(NO_COUNTS))
        .when(pl.col("arrival_s").is_null())
        .then(pl.lit(NO_TIME))
        .when(output == 0)
        .then(pl.lit(ZERO_OUTPUT))
        .when(prompt == 0)
        .then(pl.lit(EMPTY_PROMPT))
        .otherwise(pl.lit(None, dtype=pl.String))
    )
    reasons = frame.select(reason.alias("aside"))["aside"]
    refuse_early_aborts(frame, source_name, reasons.is_null())
    return reasons


def _refuse_absurd(name: str, column: pl.Series, role: str, what: str) -> None:
    for bad, fault in (
        (column < UNKNOWN, f"a negative number of {what} tokens"),
        (column > MAX_TOKENS, f"more than {MAX_TOKENS:,} {what} tokens in one request"),
    ):
        rows = bad.fill_null(False).arg_true()
        if len(rows):
            row = int(rows[0])
            raise WorkloadError(
                name,
                f"row {row + 1}, {role}",
                f"{column[row]:,} is {fault}",
                "Check which column holds the count and its unit, or correct the row.",
            )


def _refuse_absurd_span(name: str, arrivals: pl.Series) -> None:
    far = (arrivals.abs() > MAX_SPAN_S).fill_null(False).arg_true()
    if len(far):
        row = int(far[0])
        years = arrivals[row] / 31_557_600
        said = f"{years:,.0f}" if abs(years) < 1e12 else f"{years:.3g}"
        raise WorkloadError(
            name,
            f"row {row + 1}, arrival_s",
            f"it is {said} years from the first row",
            "Check the unit of the times (--time-unit), or correct the row.",
        )


def _refuse_missing_ids(name: str, ids: pl.Series) -> None:
    if not ids.explode(empty_as_null=False, keep_nulls=False).null_count():
        return
    holes = (ids.list.len() != ids.list.drop_nulls().list.len()).fill_null(False).arg_true()
    raise WorkloadError(
        name,
        f"row {int(holes[0]) + 1}, prefix_ids",
        "one of its ids is missing",
        "Correct or remove the row.",
    )


def counted(raw: RawTrace) -> pl.DataFrame:
    """The rows that the file's own figures are of: with both counts, not nested in another."""
    keep = pl.col("prompt_tokens").is_not_null() & pl.col("output_tokens").is_not_null()
    keep &= (pl.col("prompt_tokens") >= 0) & (pl.col("output_tokens") >= 0)
    if "nested" in raw.frame.columns:
        keep &= ~pl.col("nested")
    roles = [
        c
        for c in ("arrival_s", "prompt_tokens", "output_tokens", "prefix_ids", "prefix_tokens")
        if c in raw.frame.columns
    ]
    return raw.frame.filter(keep).select(roles)


@dataclass(frozen=True)
class Figures:
    """What a file holds before anything is set aside: the figures of `describe`."""

    requests: int
    first_s: float | None
    span_s: float | None
    out_of_order: int
    duplicate_timestamps: int
    prompt_tokens: Mapping[str, float]
    output_tokens: Mapping[str, float]
    zero_output: int


def figures(raw: RawTrace) -> Figures:
    """Figures over the rows that have both token counts, in file order."""
    rows = counted(raw)
    t = (
        rows["arrival_s"].drop_nulls().to_numpy()
        if "arrival_s" in rows.columns
        else np.empty(0)
    )
    prompt, output = rows["prompt_tokens"].to_numpy(), rows["output_tokens"].to_numpy()
    return Figures(
        requests=rows.height,
        first_s=float(raw.origin_s + t[0]) if len(t) else None,
        span_s=float(t.max() - t.min()) if len(t) else None,
        out_of_order=int((np.diff(t) < 0).sum()),
        duplicate_timestamps=len(t) - int(pl.Series(t).n_unique()) if len(t) else 0,
        prompt_tokens=token_summary(prompt),
        output_tokens=token_summary(output),
        zero_output=int((output == 0).sum()),
    )


def dropped(reasons: pl.Series) -> dict[str, int]:
    """Reason -> rows set aside, most frequent first."""
    counts = reasons.drop_nulls().value_counts(sort=True)
    return {str(r): int(n) for r, n in counts.iter_rows()}


def nothing_left(records: int, reasons: Mapping[str, int]) -> tuple[str, str]:
    """(fault, remedy) for a trace of which nothing can be replayed."""
    said = ", ".join(f"{n:,} {r}" for r, n in reasons.items())
    fault = f"none of its {records:,} records can be replayed ({said})"
    return fault, "Give a trace with requests that produced output."


def prefix_figures(raw: RawTrace) -> dict[str, float] | None:
    """Prefix sharing of the counted rows: blocks, distinct ones, and the share of prompt tokens
    that an endless cache would have held. None where there are no prefix ids of known length.

    Ids of fixed blocks name everything up to their end; ids of segments are chained here.
    """
    if "prefix_ids" not in raw.frame.columns:
        return None
    rows = counted(raw)
    ids = rows["prefix_ids"].fill_null([])
    count = ids.list.len().to_numpy().astype(np.int64)
    if not count.sum():
        return None
    block = raw.prefix_block_tokens
    if block:
        keys = ids.explode(empty_as_null=False, keep_nulls=False)
        known = _leading_known(keys, count) * block
    elif "prefix_tokens" in rows.columns:
        keys = pl.Series(
            [k for chain in ids.to_list() for k in accumulate(chain, _link)], dtype=pl.UInt64
        )
        leading = _leading_known(keys, count).tolist()
        lengths = rows["prefix_tokens"].to_list()
        known = np.array([sum(t[:n]) for t, n in zip(lengths, leading, strict=True)])
    else:
        return None
    prompts = rows["prompt_tokens"].to_numpy()
    return {
        "block_size": block or 0,
        "hash_blocks": int(count.sum()),
        "distinct_blocks": keys.n_unique(),
        "ideal_prefix_hit_token_ratio": float(
            np.minimum(known, prompts).sum() / max(1, prompts.sum())
        ),
    }


def _link(before: int, key: int) -> int:
    """A key for a segment behind what came before it (any 64-bit mix would do)."""
    return ((before ^ key) * 0x9E3779B97F4A7C15 + key) % 2**64


def _leading_known(keys: pl.Series, count: np.ndarray) -> np.ndarray:
    """For each row, how many of its leading keys occur in rows above it."""
    new = np.append(keys.is_first_distinct().to_numpy().nonzero()[0], len(keys))
    start = np.cumsum(count) - count
    return np.minimum(new[np.searchsorted(new, start)] - start, count)
