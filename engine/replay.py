"""Settings of a recorded run, so that its requests can be run again, and whether all came out the same.

It knows which metadata are settings of ours, and which rows of two recordings have to be equal. What
the requests were is in traces/replay.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl

from engine.config import COMPAT, EngineSettings
from engine.devices import load_device
from engine.models import load_model
from traces.errors import SettingsError
from traces.recording import Recording
from traces.recording_meta import Meta

_VLLM_BASELINE = "0.26.0"
_SLICE = 4_096  # rows compared at once


def settings_of(meta: Meta, **changes: Any) -> EngineSettings:
    """The settings under which a recording was made, with `changes`.

    Of a recording from vLLM 0.26.0, compat is that version, so that its known faults are replayed
    too, and the device is the one that the server found. A recorded model or device that is no preset
    is replaced by the default one, with a warning: it changes modelled times and bytes, no decision.

    Raises: SettingsError where the metadata hold a setting that cannot be, or `changes` name a model or
    device that there is not.
    """
    said = {
        f.name: meta.settings[f.name] for f in fields(EngineSettings) if f.name in meta.settings
    }
    values = {name: _plain(value) for name, value in said.items()}
    if meta.executor == "vllm":
        values |= _of_a_server(meta)
    values |= changes
    # Metadata name the pool's blocks whatever it was derived from; a change in tokens replaces them.
    pool = "num_gpu_blocks" if changes.get("kv_tokens") is not None else "kv_tokens"
    if values.get("num_gpu_blocks") is not None and pool not in changes:
        values.pop(pool, None)
    for name, load in (("model", load_model), ("device", load_device)):
        value = values.get(name)
        if isinstance(value, str) and not _is_known(load, value):
            if name in changes:
                load(value)  # says what there is instead
            default = getattr(EngineSettings(), name)
            warnings.warn(
                f"{name} {values[name]!r} is not known here: times and bytes are those of {default}",
                stacklevel=2,
            )
            values[name] = default
    return EngineSettings(**values)


def _of_a_server(meta: Meta) -> dict[str, Any]:
    """Settings that a live vLLM's metadata hold elsewhere."""
    found: dict[str, Any] = {}
    if meta.get("vllm_baseline") == _VLLM_BASELINE:
        found["compat"] = COMPAT[0]
    device = meta.get("device")
    if isinstance(device, Mapping) and device.get("name"):
        found["device"] = str(device["name"])
    return found


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_known(load: Callable[[Any], Any], name: Any) -> bool:
    try:
        load(name)
    except SettingsError:
        return False
    return True


def refuse_inside(recording: Recording, given: str, flag: str, path: str | None) -> None:
    """Raise SettingsError where `path` is the recording that is replayed, or lies in it.

    given: the recording's path as the user gave it.
    """
    if path is None:
        return
    places = [Path(given).resolve(), recording.root.resolve()]
    target = Path(path).resolve()
    if any(target == place or place in target.parents for place in places):
        raise SettingsError(
            f"{flag} {path} is the recording that is replayed, or lies in it. Give another place."
        )


@dataclass(frozen=True)
class Comparison:
    """A recording and its replay. difference: the first one with both sides, None: there is none."""

    steps: int
    recorded_steps: int
    events: int
    requests: int
    blocks: int | None
    difference: str | None

    def __str__(self) -> str:
        if self.difference is not None:
            return f"different: {self.difference}"
        intervals = "" if self.blocks is None else f", {self.blocks:,} block intervals"
        return f"{self.steps:,} of {self.recorded_steps:,} steps, {self.events:,} events, {self.requests:,} requests{intervals} equal"


def compare(recorded: Recording, again: Recording) -> Comparison:
    """Hold a replay against the recording it was made from, bit by bit, in what both recorded.

    Requests that had not arrived are left out, as are those whose rows a killed writer never wrote;
    of such a recording the replay may have more events. Blocks: intervals that were cut are joined.
    """
    pairs = {
        "steps": _recorded_by_both("steps", recorded, again),
        "events": _recorded_by_both("events", recorded, again),
        "requests": (_arrived(recorded), _arrived(again)),
    }
    if not recorded.complete:
        left, right = pairs["events"]
        pairs["events"] = left, right.head(left.height)
        left, right = pairs["requests"]
        pairs["requests"] = left, right.join(left, on="request_id", how="semi")
    if recorded.blocks is not None and again.blocks is not None:
        last = recorded.steps["step"].max()
        pairs["blocks"] = _joined(recorded.blocks, last), _joined(again.blocks, last)
    found = (_first_difference(name, *pair) for name, pair in pairs.items())
    heights = {name: pair[0].height for name, pair in pairs.items()}
    return Comparison(
        min(heights["steps"], again.steps.height),
        heights["steps"],
        heights["events"],
        heights["requests"],
        heights.get("blocks"),
        next((text for text in found if text is not None), None),
    )


def _recorded_by_both(
    name: str, recorded: Recording, again: Recording
) -> tuple[pl.DataFrame, pl.DataFrame]:
    left, right = getattr(recorded, name), getattr(again, name)
    unseen = recorded.meta.not_recorded | again.meta.not_recorded
    columns = [c for c in left.columns if f"{name}.{c}" not in unseen]
    return left.select(columns), right.select(columns)


def _arrived(recording: Recording) -> pl.DataFrame:
    """Written rows of requests that had arrived, by id."""
    rows = recording.requests.head(recording.rows.get("requests", 0))
    return rows.filter(pl.col("arrival_step").is_not_null()).sort("request_id")


def _joined(blocks: pl.DataFrame, last_step: Any) -> pl.DataFrame:
    """Ownership up to last_step, intervals that follow on each other made one."""
    key = ["block_id", "request_id", "logical_index"]
    goes_on = pl.col("first_step") == pl.col("last_step").shift(1).over(key) + 1
    return (
        blocks.filter(pl.col("first_step") <= last_step)
        .with_columns(pl.col("last_step").clip(upper_bound=last_step))
        .sort(*key, "first_step")
        .with_columns(piece=(~goes_on).fill_null(True).cum_sum().over(key))
        .group_by(*key, "piece", maintain_order=True)
        .agg(pl.col("first_step").min(), pl.col("last_step").max())
        .drop("piece")
    )


def _first_difference(name: str, left: pl.DataFrame, right: pl.DataFrame) -> str | None:
    """The first row and column in which two tables differ, with both sides; None: they are equal."""
    n = min(left.height, right.height)
    for first in range(0, n, _SLICE):
        a, b = left[first : min(first + _SLICE, n)], right[first : min(first + _SLICE, n)]
        if a.equals(b, null_equal=True):
            continue
        for k, (ours, theirs) in enumerate(zip(a.rows(), b.rows(), strict=True)):
            for column, x, y in zip(left.columns, ours, theirs, strict=True):
                if x != y:
                    where = _what(dict(zip(left.columns, ours, strict=True)))
                    return f"table {name}, row {first + k + 1} ({where}), {column}: {x!r} in the recording, {y!r} in the replay"
    if left.height != right.height:
        longer, where = (left, "recording") if left.height > n else (right, "replay")
        return f"table {name}: {left.height:,} rows in the recording, {right.height:,} in the replay; the first that only the {where} has: {_what(longer.row(n, named=True))}"
    return None


def _what(row: Mapping[str, Any]) -> str:
    """Which row it is, by its keys."""
    names = ("step", "kind", "request_id", "block_id", "first_step")
    return ", ".join(f"{name} {row[name]}" for name in names if name in row)
