"""What a recording has to say about a device: its clean steps and copies, as plain columns.

It opens recordings, refuses those that cannot calibrate (with the reason), and leaves out what is no
sample of a step: the first steps of a run, steps that shared the machine with a copy or waited, and
steps without tokens. What is computed from the columns is `calibrate_fit.py` and `calibrate_copies.py`.

Source of the columns and of what is left out: the project's reference on recompute and swap, section 2.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from engine.calibrate_metadata import Setup, machine_of, read_setup
from traces.errors import RecordingError
from traces.recording import Recording, open_recording

WARM_UP_STEPS = 20
# No step and no copy is so short: such a time was not measured.
LEAST_STEP_S, LEAST_COPY_S = 1e-6, 1e-7
_MOST = 10.0  # device time over the length of its step: more is no device time
NO_TIME = "their time is zero, negligible or absurd"
NEEDED = (
    "num_decode",
    "decode_ctx_tokens",
    "num_chunks",
    "chunk_tokens",
    "prefill_qk",
    "num_logit_rows",
)
DECODE, PREFILL, MIXED = 0, 1, 2
KINDS = ("decode", "prefill", "mixed")
_IN, _OUT = ("swap_in", "load"), ("swap_out",)


@dataclass(frozen=True)
class Steps:
    """Steps, one entry each (float64): what was computed and how long it took.

    num_decode requests with one query token over contexts that sum to ctx; num_chunks requests with
    chunk_tokens query tokens in all and qk = sum of n (s + n / 2); logit_rows through the LM head.
    num_padded: decode batch as the device saw it (num_decode where it ran eagerly).
    busy_s: duration without stalls; compute_s: device time within it, NaN where not recorded.
    """

    step: np.ndarray
    num_decode: np.ndarray
    num_padded: np.ndarray
    ctx: np.ndarray
    num_chunks: np.ndarray
    chunk_tokens: np.ndarray
    qk: np.ndarray
    logit_rows: np.ndarray
    busy_s: np.ndarray
    compute_s: np.ndarray

    def __len__(self) -> int:
        return len(self.step)

    @property
    def kind(self) -> np.ndarray:
        """DECODE, PREFILL or MIXED of each step."""
        mixed = (self.num_decode > 0) & (self.num_chunks > 0)
        return np.where(mixed, MIXED, np.where(self.num_chunks > 0, PREFILL, DECODE))

    def take(self, which: np.ndarray) -> Steps:
        """The steps that a mask or an index selects."""
        return Steps(*(getattr(self, f.name)[which] for f in fields(self)))


@dataclass(frozen=True)
class Copies:
    """Transfers, one entry each: direction, separate copies, bytes, seconds, and the seconds of it in
    which the other direction was busy too."""

    inbound: np.ndarray
    num_copies: np.ndarray
    num_bytes: np.ndarray
    seconds: np.ndarray
    overlap_s: np.ndarray

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, which: np.ndarray) -> Copies:
        """The copies that a mask or an index selects."""
        return Copies(*(getattr(self, f.name)[which] for f in fields(self)))


@dataclass(frozen=True)
class Source:
    """One recording, read: what it ran, its clean steps and its copies.

    digest: 32 hex digits over its tables of steps and events; workload: digest of the requests;
    machine: the device it says it ran on; software: versions; dropped: why -> steps left out;
    untimed_copies: copies left out, as their time is zero, negligible or absurd.
    """

    label: str
    digest: str
    workload: str
    workload_name: str
    machine: str
    software: Mapping[str, Any]
    setup: Setup
    steps: Steps
    copies: Copies
    dropped: Mapping[str, int]
    untimed_copies: int = 0


def read_source(
    path: str | Path, *, allow_modelled: bool = False, warm_up_steps: int = WARM_UP_STEPS
) -> Source:
    """Samples of the recording at `path` (folder or zip).

    Raises: RecordingError for a recording that cannot be read, of a modelled clock (unless allowed),
    without the columns that calibration needs, or of a model or split it cannot fit.
    """
    with open_recording(path) as recording:
        _check_clock(recording, allow_modelled)
        setup = read_setup(recording)
        steps, dropped = _steps(recording, warm_up_steps)
        copies, untimed = _copies(recording, setup)
        meta = recording.meta
        return Source(
            label=recording.label,
            digest=digest_of(recording),
            workload=str(meta.workload_digest or digest_of(recording)),
            workload_name=str(meta.workload.get("name") or recording.label),
            machine=machine_of(meta),
            software={k: v for k, v in meta.software.items() if isinstance(v, (str, int))},
            setup=setup,
            steps=steps,
            copies=copies,
            dropped=dropped,
            untimed_copies=untimed,
        )


def _check_clock(recording: Recording, allow_modelled: bool) -> None:
    clock = recording.meta.clock
    if clock == "measured" or (clock == "modelled" and allow_modelled):
        return
    if clock == "modelled":
        fault = "its times were computed by the cost model, so a fit to them would only give back the device file that made them"
    else:
        fault = f"its clock is {clock!r}, which holds no measured seconds"
    raise RecordingError(
        recording.label,
        "metadata, clock",
        fault,
        "Record a run of the torch engine: python -m engine run TRACE --model NAME --out DIR.",
    )


def digest_of(recording: Recording) -> str:
    """32 hex digits over the tables of steps and events."""
    h = hashlib.blake2b(digest_size=16)
    for name in ("steps", "events"):
        for part in recording.parts.get(name, ()):
            h.update(part.read_bytes())
    return h.hexdigest()


def _steps(recording: Recording, warm_up_steps: int) -> tuple[Steps, dict[str, int]]:
    """Clean steps, and how many were left out for which reason. Raises RecordingError."""
    frame = recording.steps
    hidden = recording.meta.not_recorded
    missing = [
        n
        for n in NEEDED
        if n not in frame.columns
        or f"steps.{n}" in hidden
        or frame[n].null_count() == frame.height
    ]
    if missing:
        raise RecordingError(
            recording.label,
            "table steps",
            f"it does not say what each step computed ({', '.join(missing)} not recorded)",
            "Only the torch engine records that: python -m engine run TRACE --model NAME --out DIR.",
        )
    return clean_steps(frame, warm_up_steps)


def clean_steps(
    frame: pl.DataFrame, warm_up_steps: int = WARM_UP_STEPS
) -> tuple[Steps, dict[str, int]]:
    """Rows of a table `steps` (contract 1.2) that are samples of a step, and why -> rows left out."""
    known = pl.all_horizontal(pl.col(n).is_not_null() for n in NEEDED)
    copying = (
        (pl.col("swap_out_bytes") > 0)
        | (pl.col("swap_in_bytes") > 0)
        | (pl.col("link_out_busy_s") > 0)
        | (pl.col("link_in_busy_s") > 0)
        | (pl.col("stall_s") > 0)
    )
    tests = {
        f"the first {warm_up_steps} steps of a run": pl.int_range(pl.len()) < warm_up_steps,
        "what they computed was not recorded": ~known,
        "nothing was computed": pl.col("num_decode") + pl.col("num_chunks") == 0,
        "a copy ran beside them, or they waited": copying,
        NO_TIME: _no_time(frame),
    }
    why = pl.coalesce(
        *(pl.when(test).then(pl.lit(reason)) for reason, test in tests.items()), pl.lit("")
    )
    frame = frame.with_columns(why=why)
    counts = frame.filter(pl.col("why") != "")["why"].value_counts(sort=True)
    dropped = dict(zip(counts["why"].to_list(), counts["count"].to_list(), strict=True))
    f = frame.filter(pl.col("why") == "")
    none = pl.lit(None, dtype=pl.Float64)
    f = f.with_columns(
        (pl.col(n) if n in f.columns else none).alias(n) for n in ("num_padded", "compute_s")
    )

    def column(name: str) -> np.ndarray:
        return f[name].cast(pl.Float64).fill_null(np.nan).to_numpy()

    decode, padded = column("num_decode"), column("num_padded")
    steps = Steps(
        step=column("step"),
        num_decode=decode,
        num_padded=np.where(np.isnan(padded), decode, padded),
        ctx=column("decode_ctx_tokens"),
        num_chunks=column("num_chunks"),
        chunk_tokens=column("chunk_tokens"),
        qk=column("prefill_qk"),
        logit_rows=column("num_logit_rows"),
        busy_s=column("duration_s") - column("stall_s"),
        compute_s=column("compute_s"),
    )
    return steps, dropped


def _no_time(frame: pl.DataFrame) -> pl.Expr:
    """Steps whose length, or the device's part of it where it is recorded, cannot have been measured."""
    length = pl.col("duration_s").cast(pl.Float64)
    none = ~length.is_finite() | (length < LEAST_STEP_S)
    if "compute_s" in frame.columns:
        device = pl.col("compute_s").cast(pl.Float64)
        absurd = ~device.is_finite() | (device < LEAST_STEP_S) | (device > _MOST * length)
        none |= absurd.fill_null(False)
    return none.fill_null(True)


def _copies(recording: Recording, setup: Setup) -> tuple[Copies, int]:
    """Transfers between device and host, from the events, and how many had no measured time."""
    if "events.cost_s" in recording.meta.not_recorded:
        return copies_of(recording.events.head(0), setup)
    return copies_of(recording.events, setup)


def copies_of(events: pl.DataFrame, setup: Setup) -> tuple[Copies, int]:
    """Transfers in a table `events`, and how many were left out as their time cannot have been measured.

    Paths loop and batch move one layer's K or V of a block a copy. The runs that the coalesced path
    found are not in the events: its copies are counted as one a transfer.
    """
    kind = pl.col("kind").cast(pl.String)
    timed = events.filter(
        kind.is_in(_IN + _OUT) & pl.col("cost_s").is_not_null() & (pl.col("bytes") > 0)
    )
    f = timed.filter(
        pl.col("cost_s").is_finite()
        & pl.col("t_s").is_finite()
        & (pl.col("cost_s") >= LEAST_COPY_S)
    )
    inbound = f.select(kind.is_in(_IN)).to_series().to_numpy()
    start = f["t_s"].cast(pl.Float64).to_numpy()
    seconds = f["cost_s"].cast(pl.Float64).to_numpy()
    blocks = f["blocks"].cast(pl.Float64).to_numpy()
    one = setup.copy_path == "coalesced"
    overlap = np.zeros(len(seconds))
    for this in (False, True):
        mine, other = inbound == this, inbound != this
        overlap[mine] = _overlap(start[mine], seconds[mine], start[other], seconds[other])
    copies = Copies(
        inbound=inbound,
        num_copies=np.ones(len(blocks)) if one else blocks * 2 * setup.model.num_layers,
        num_bytes=f["bytes"].cast(pl.Float64).to_numpy(),
        seconds=seconds,
        overlap_s=overlap,
    )
    return copies, timed.height - f.height


def _overlap(
    start: np.ndarray, length: np.ndarray, other_start: np.ndarray, other_length: np.ndarray
) -> np.ndarray:
    """Seconds of each interval during which any of the other intervals runs."""
    if not len(start) or not len(other_start):
        return np.zeros(len(start))
    order = np.argsort(other_start, kind="stable")
    begin, end = other_start[order], np.maximum.accumulate((other_start + other_length)[order])
    opens = np.concatenate(([True], begin[1:] > end[:-1]))  # of merged intervals
    first = np.flatnonzero(opens)
    begin, end = begin[first], end[np.concatenate((first[1:] - 1, [len(end) - 1]))]
    covered = np.concatenate(([0.0], np.cumsum(end - begin)))

    def busy_until(t: np.ndarray) -> np.ndarray:
        k = np.searchsorted(begin, t, side="right")
        inside = np.where(k > 0, np.minimum(t, end[k - 1]) - begin[k - 1], 0.0)
        return np.where(k > 0, covered[np.maximum(k - 1, 0)] + inside, 0.0)

    return busy_until(start + length) - busy_until(start)
