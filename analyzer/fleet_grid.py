"""One member of a fleet, read onto equal buckets of time: what its memory needs does not grow with it.

Of a recording it reads nine columns of `steps`, of telemetry its gauges; both lazily, part by part. It
checks what it uses (blocks that add up, times, nulls); all rows of all tables are checked when the
member is opened by itself. Where members lie on the fleet's axis is known in traces/fleet_clock.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from analyzer.occupancy import FULL_PERCENT
from traces.errors import RecordingError
from traces.fleet import RECORDING, Member
from traces.recording_files import list_parts
from traces.recording_meta import DAMAGE, Meta
from traces.schema import REQUESTS, STEPS
from traces.telemetry import open_telemetry

# What each bucket says of a rank. Shares and queues are means over time, *_max the largest value;
# preemptions and tokens are sums.
MEASURES = (
    "usage",
    "usage_max",
    "running",
    "waiting",
    "waiting_max",
    "full",
    "preemptions",
    "tokens",
)
_SUMS = ("preemptions", "tokens")
_HOLDS = 3.0  # a sample of telemetry holds for at most so many of its usual distances


@dataclass(frozen=True)
class Grid:
    """Equal buckets of [start_s, end_s) on the fleet's axis."""

    start_s: float
    end_s: float
    num_buckets: int

    @property
    def width_s(self) -> float:
        return (self.end_s - self.start_s) / self.num_buckets

    @property
    def edges_s(self) -> np.ndarray:
        return np.linspace(self.start_s, self.end_s, self.num_buckets + 1)


@dataclass(frozen=True)
class Facts:
    """What is known of a rank beside its series; None where nothing says it.

    pool_tokens: KV tokens that its pool holds; max_num_seqs; prompt_tokens: mean prompt of its
    requests; usage_is: "measured", "modelled", "known" or "inferred".
    """

    pool_tokens: int | None
    max_num_seqs: int | None
    prompt_tokens: float | None
    usage_is: str


def span_s(member: Member) -> tuple[float, float] | None:
    """First and last time of a member's own rows in seconds, None where it has none with a time.

    A recording's comes from the edges of its parts. Raises RecordingError.
    """
    if member.kind != RECORDING:
        times = (
            open_telemetry(member.path, member.label).scan("samples").select("t_s").drop_nulls()
        )
        low, high = times.select(low=pl.min("t_s"), high=pl.max("t_s")).collect().row(0)
        return None if low is None or high <= low else (low, high)
    try:
        parts, _ = list_parts(member.path, STEPS, member.label)
        rows = [(p, f) for p in parts if (f := pq.ParquetFile(p)).metadata.num_rows]
        if not rows:
            return None
        columns = ["t_start_s", "duration_s"]
        first = rows[0][1].read_row_group(0, columns=columns[:1])
        last_file = rows[-1][1]
        last = last_file.read_row_group(last_file.num_row_groups - 1, columns=columns)
        begin, end = _seconds(first[0][0]), _seconds(last[0][-1]) + _seconds(last[1][-1])
    except (*DAMAGE, KeyError, IndexError, TypeError) as reason:
        raise _damaged(member, reason) from reason
    if not (math.isfinite(begin) and math.isfinite(end)):
        raise RecordingError(
            member.label,
            "table steps",
            f"it runs from {begin:g} to {end:g} s, and a time must be finite",
            f"`python -m analyzer summary` of {member.label} names the row.",
        )
    return (begin, end) if end > begin else None


def _seconds(found: Any) -> float:
    """A scalar of a column of times. Raises TypeError for text and for what is missing."""
    value = found.as_py()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a time is {str(value)[:40]!r}")
    return float(value)


def facts_of(member: Member) -> Facts:
    """What a member's metadata, and the prompts of its requests, say. Raises RecordingError."""
    meta = Meta(member.meta)
    block = meta.block_size_tokens or meta.get("block_size")
    pool = meta.pool_blocks
    tokens = pool * block if isinstance(pool, int) and isinstance(block, int) else None
    seqs = meta.settings.get("max_num_seqs")
    if member.kind != RECORDING:
        inferred = member.meta.get("inferred")
        derived = isinstance(inferred, dict) and "kv_usage_frac" in inferred
        return Facts(tokens, _whole(seqs), None, "inferred" if derived else "known")
    prompt = None
    try:
        parts, _ = list_parts(member.path, REQUESTS, member.label)
        if parts:
            scans = [pl.scan_parquet(p, glob=False).select("prompt_tokens") for p in parts]
            prompt = pl.concat(scans).mean().collect(engine="streaming").item()
    except (*DAMAGE, RecordingError) as reason:
        raise _damaged(member, reason) from reason
    is_modelled = meta.clock in ("modelled", "step", "latency")
    return Facts(tokens, _whole(seqs), prompt, "modelled" if is_modelled else "measured")


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def read_member(
    member: Member, offset_s: float, grid: Grid
) -> dict[int | None, dict[str, np.ndarray]]:
    """Engine rank -> measure -> (num_buckets,) float32, NaN where the member says nothing.

    A recording has one entry, under its own rank. offset_s: where the member's t = 0 lies on the
    fleet's axis. Raises RecordingError.
    """
    if member.kind == RECORDING:
        return {member.rank: _read_steps(member, offset_s, grid)}
    return _read_samples(member, offset_s, grid)


# ---- recordings ------------------------------------------------------------------------------------

_COLUMNS = (
    "t_start_s", "duration_s", "used_blocks", "free_blocks", "num_running", "num_waiting",
    "num_preempted", "prefill_tokens", "decode_tokens",
)  # fmt: skip


def _read_steps(member: Member, offset_s: float, grid: Grid) -> dict[str, np.ndarray]:
    try:
        parts, _ = list_parts(member.path, STEPS, member.label)
        scans = [pl.scan_parquet(p, glob=False).select(_COLUMNS) for p in parts]
        found = _bucketed(pl.concat(scans), offset_s, grid) if scans else pl.DataFrame()
    except DAMAGE as reason:
        raise _damaged(member, reason) from reason
    if found.height and (bad := int(found["bad"].sum())):
        raise RecordingError(
            member.label,
            "table steps",
            f"{bad:,} rows break the contract (blocks that do not add up, or no time)",
            f"`python -m analyzer summary` of {member.label} names the first.",
        )
    return _on_grid(found, grid)


def _bucketed(steps: pl.LazyFrame, offset_s: float, grid: Grid) -> pl.DataFrame:
    """One row a bucket that has a step."""
    used, free = pl.col("used_blocks").cast(pl.Int64), pl.col("free_blocks").cast(pl.Int64)
    pool, duration = used + free, pl.col("duration_s")
    begin = pl.col("t_start_s") + offset_s
    share = pl.when(pool > 0).then(used / pool).otherwise(0.0)
    is_full = (used * 100 >= FULL_PERCENT * pool) & (pool > 0)
    bad = (used < 0) | (free < 0) | (duration < 0) | ~begin.is_finite() | ~duration.is_finite()
    running, waiting = pl.col("num_running"), pl.col("num_waiting")
    return (
        steps.filter(
            begin + duration >= grid.start_s, (begin < grid.end_s) | begin.is_nan()
        )
        .group_by(
            bucket=((begin - grid.start_s) / grid.width_s).floor().clip(0, grid.num_buckets - 1).cast(pl.Int32)
        )
        .agg(
            bad=bad.fill_null(True).sum(),
            busy_s=duration.sum(),
            begin_s=begin.min(),
            end_s=(begin + duration).max(),
            usage=(share * duration).sum(),
            usage_max=share.max(),
            running=(running * duration).sum(),
            waiting=(waiting * duration).sum(),
            waiting_max=waiting.max(),
            full=(is_full * duration).sum(),
            preemptions=pl.col("num_preempted").cast(pl.Int64).sum(),
            tokens=(pl.col("prefill_tokens") + pl.col("decode_tokens")).cast(pl.Int64).sum(),
        )
        .collect(engine="streaming")
        .sort("bucket")
    )  # fmt: skip


def _on_grid(found: pl.DataFrame, grid: Grid) -> dict[str, np.ndarray]:
    """A level's mean over a bucket weighs what holds in it: steps that begin there, as far as they lie
    within, and before them the one that still goes on. Else the engine idles, and holds nothing."""
    out = {m: np.full(grid.num_buckets, np.nan, np.float32) for m in MEASURES}
    if not found.height:
        return out
    at, width_s, edges = found["bucket"].to_numpy(), grid.width_s, grid.edges_s
    busy_s, ends = found["busy_s"].to_numpy(), np.maximum.accumulate(found["end_s"].to_numpy())
    first_s = found["begin_s"].to_numpy()
    last = min(grid.num_buckets, int(np.ceil((ends[-1] - grid.start_s) / width_s)))
    buckets = np.arange(int(at[0]), max(last, int(at[-1]) + 1))
    row = np.searchsorted(at, buckets, side="right") - 1  # that begins there, or before it
    has_row = at[row] == buckets
    begins, until = edges[buckets], edges[buckets + 1]
    before = np.where(has_row, row - 1, row)  # whose last step may go on
    goes_on_until = np.where(before >= 0, ends[np.maximum(before, 0)], -np.inf)
    free_at = np.where(has_row, np.minimum(first_s[row], until), until)
    carried_s = np.clip(np.minimum(goes_on_until, free_at) - begins, 0.0, width_s)
    own_s = np.clip(busy_s[row] - np.maximum(0.0, ends[row] - until), 0.0, width_s - carried_s)
    own_s = np.where(has_row, own_s, 0.0)
    for measure in MEASURES:
        values = found[measure].to_numpy().astype(np.float64)
        if measure in _SUMS:
            out[measure][buckets] = np.where(has_row, values[row], 0.0)
        elif measure.endswith("_max"):
            held = np.where(carried_s > 0, values[np.maximum(before, 0)], 0.0)
            out[measure][buckets] = np.where(has_row, values[row], held)
        else:
            mean = np.divide(values, busy_s, out=np.zeros_like(values), where=busy_s > 0)
            weighed = mean[row] * own_s + mean[np.maximum(before, 0)] * carried_s
            out[measure][buckets] = weighed / width_s
    return out


# ---- telemetry -------------------------------------------------------------------------------------


def _read_samples(
    member: Member, offset_s: float, grid: Grid
) -> dict[int | None, dict[str, np.ndarray]]:
    telemetry = open_telemetry(member.path, member.label)
    risen = pl.col("preemptions_total") - pl.col("preemptions_total").shift(1).over(
        "engine_rank"
    )
    work = pl.col("generation_tokens") + pl.col("prompt_computed_tokens").fill_null(0)
    samples = (
        telemetry.scan("samples")
        .filter(pl.col("t_s").is_not_null())
        .with_columns(
            at=pl.col("t_s") + offset_s,
            counted=pl.coalesce(pl.col("num_preempted"), risen.clip(0)),
            work=pl.coalesce(pl.col("iteration_tokens"), work),
        )
    )
    usual = samples.group_by("engine_rank").agg(
        usual_s=(pl.max("at") - pl.min("at")) / (pl.len() - 1).clip(1)
    )
    bucket = (
        ((pl.col("at") - grid.start_s) / grid.width_s).floor().clip(0, grid.num_buckets - 1)
    )
    inside = samples.filter(pl.col("at").is_between(grid.start_s, grid.end_s))
    # What the last sample before the part said may hold at its beginning.
    before = (
        samples.filter(pl.col("at") < grid.start_s).sort("at").group_by("engine_rank").tail(1)
    )
    rows = (
        pl.concat(
            [
                inside.with_columns(bucket=bucket.cast(pl.Int32)),
                before.with_columns(
                    bucket=pl.lit(-1, pl.Int32),
                    counted=pl.lit(None, pl.Int64),
                    work=pl.lit(None, pl.Int64),
                ).select(*samples.collect_schema().names(), "bucket"),
            ]
        )
        .group_by("engine_rank", "bucket")
        .agg(*_OF_SAMPLES)
        .join(usual, on="engine_rank", nulls_equal=True)
        .collect()
        .sort("bucket")
    )
    found: dict[int | None, dict[str, np.ndarray]] = {}
    for rank in rows["engine_rank"].unique().to_list():
        own = rows.filter(pl.col("engine_rank").eq_missing(pl.lit(rank, pl.Int32)))
        found[rank if rank is not None else member.rank] = _held(own, grid)
    return found


_USAGE = pl.col("kv_usage_frac")
_OF_SAMPLES = (
    pl.max("at").alias("last_s"),
    _USAGE.mean().alias("usage"),
    _USAGE.max().alias("usage_max"),
    pl.mean("num_running").alias("running"),
    pl.mean("num_waiting").alias("waiting"),
    pl.max("num_waiting").alias("waiting_max"),
    (_USAGE * 100 >= FULL_PERCENT).mean().alias("full"),
    pl.sum("counted").alias("preemptions"),
    pl.sum("work").alias("tokens"),
    pl.count("counted").alias("num_preemptions"),
    pl.count("work").alias("num_tokens"),
)


def _held(rows: pl.DataFrame, grid: Grid) -> dict[str, np.ndarray]:
    """Gauges hold until the next sample, for at most three of the usual distances."""
    out = {m: np.full(grid.num_buckets, np.nan, np.float32) for m in MEASURES}
    at, last_s = rows["bucket"].to_numpy(), rows["last_s"].to_numpy()
    longest_s = _HOLDS * max(float(rows["usual_s"][0]), grid.width_s)
    until = min(
        grid.num_buckets, int((last_s[-1] + longest_s - grid.start_s) / grid.width_s) + 1
    )
    begin = max(int(at[0]), 0)
    buckets = np.arange(begin, max(int(at[-1]) + 1, until if at[-1] < 0 else 0))
    if not len(buckets):
        return out
    row = np.searchsorted(at, buckets, side="right") - 1
    has_row = at[row] == buckets
    holds = has_row | (grid.edges_s[buckets] - last_s[row] <= longest_s)
    for measure in MEASURES:
        values = rows[measure].cast(pl.Float64).fill_null(np.nan).to_numpy()
        if measure in _SUMS:
            if rows[f"num_{measure}"].sum():
                none = np.where(holds, 0.0, np.nan)
                out[measure][buckets] = np.where(has_row, values[row], none)
            continue
        out[measure][buckets] = np.where(holds, values[row], np.nan)
    return out


def _damaged(member: Member, reason: BaseException) -> RecordingError:
    if isinstance(reason, RecordingError):
        return reason
    said = str(reason).splitlines()[0][:200] if str(reason) else type(reason).__name__
    return RecordingError(
        member.label,
        "",
        f"its files cannot be read ({said})",
        f"`python -m analyzer summary` of {member.label} says more.",
    )
