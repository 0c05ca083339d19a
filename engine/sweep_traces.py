"""The traces of a sweep: what a spec may name, how a seed draws them, and how a cell shapes them.

A trace is anything that `traces.open` reads (a recording's requests too), a bundled sample, or requests
that are made up. It knows no settings of the engine. The seed draws made-up requests and samples; what
was recorded it changes only where arrivals are redrawn or spread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from traces.errors import SettingsError, WorkloadError
from traces.lengths import Fixed, Lengths, LogNormal, Quantiles, Uniform
from traces.open import RECORDING, SAMPLE_PREFIX, open_workload, what_is
from traces.synthetic import Arrivals, ClosedLoop, StreamSpec, SystemPrompts, stream
from traces.workload import Workload

# What a cell may do to a trace before it is run, with what leaves it as it is.
SHAPE: dict[str, Any] = {
    "rate_scale": 1.0,
    "window": None,
    "max_requests": None,
    "spread_ticks": False,
    "arrivals": "trace",
}
ARRIVALS = ("trace", "poisson")
_SYNTHETIC = ("num_requests", "rate_per_s", "burstiness", "concurrency", "prompt", "output", "system_prompts", "system_tokens", "seed")  # fmt: skip
_LENGTHS = (
    "a number of tokens, {low, high}, {p50, p99} or {quantiles = [[0, N], ..., [100, N]]}"
)


@dataclass(frozen=True)
class TraceSpec:
    """One trace of a sweep. name: as its rows call it; paths: files, a folder or sample:NAME; synthetic:
    parameters of made-up requests instead; mapping, time_unit: as `open_workload` takes them."""

    name: str
    paths: tuple[str, ...] = ()
    synthetic: Mapping[str, Any] = field(default_factory=dict)
    mapping: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None

    @property
    def sample(self) -> str:
        """Name of the bundled sample, "" where it is none."""
        only = self.paths[0] if len(self.paths) == 1 else ""
        return only.removeprefix(SAMPLE_PREFIX) if only.startswith(SAMPLE_PREFIX) else ""

    @property
    def is_drawn(self) -> bool:
        """Whether another seed gives other requests."""
        return bool(self.synthetic or self.sample)

    @property
    def key(self) -> str:
        """JSON of it, from which `from_key` makes it again."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, default=dict)


def from_key(key: str) -> TraceSpec:
    """The TraceSpec of that `key`."""
    said = json.loads(key)
    return TraceSpec(**{**said, "paths": tuple(said["paths"])})


def open_trace(spec: TraceSpec, seed: int) -> Workload:
    """The requests of a trace; of what was recorded the same for every seed. Raises WorkloadError,
    RecordingError, SettingsError."""
    return _open(spec.key, seed if spec.is_drawn else 0)


@lru_cache(maxsize=3)
def _open(key: str, seed: int) -> Workload:
    spec = from_key(key)
    if spec.synthetic:
        return stream(_stream_spec(spec, seed))
    if spec.sample:
        from traces.samples import draw

        return draw(spec.sample, seed)
    path, kind = what_is(spec.paths[0]) if len(spec.paths) == 1 else ("", "")
    if kind == RECORDING:
        from traces.recording import open_recording
        from traces.replay import workload_of

        with open_recording(path) as recording:
            return workload_of(recording)
    return open_workload(
        list(spec.paths) if len(spec.paths) > 1 else spec.paths[0],
        mapping=spec.mapping or None,
        time_unit=spec.time_unit,
    )


# ---- made-up requests ------------------------------------------------------------------------------


def _stream_spec(spec: TraceSpec, seed: int) -> StreamSpec:
    """The stream that the parameters of a synthetic trace describe. Raises SettingsError."""
    given = spec.synthetic
    for name in given:
        if name not in _SYNTHETIC:
            raise SettingsError(
                f"trace {spec.name}: {name!r} is no parameter of synthetic requests. Known are {', '.join(_SYNTHETIC)}."
            )
    for name in ("num_requests", "prompt", "output"):
        if name not in given:
            raise SettingsError(f"trace {spec.name}: synthetic requests need {name}.")
    if ("rate_per_s" in given) == ("concurrency" in given):
        raise SettingsError(
            f"trace {spec.name}: give either rate_per_s, or concurrency for a closed loop."
        )
    arrivals: Arrivals | ClosedLoop
    if "concurrency" in given:
        arrivals = ClosedLoop(_whole(spec, "concurrency"))
    else:
        arrivals = Arrivals(_number(spec, "rate_per_s"), _number(spec, "burstiness", 1.0))
    system = None
    if given.get("system_tokens"):
        system = SystemPrompts(_whole(spec, "system_prompts", 1), _whole(spec, "system_tokens"))
    return StreamSpec(
        num_requests=_whole(spec, "num_requests"),
        arrivals=arrivals,
        prompt=_lengths(spec, "prompt"),
        output=_lengths(spec, "output"),
        system=system,
        seed=_whole(spec, "seed", 0) + seed,
        name=spec.name,
    )


def _whole(spec: TraceSpec, name: str, default: int | None = None) -> int:
    value = spec.synthetic.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingsError(
            f"trace {spec.name}: {name} must be a whole number of at least 0, not {value!r}."
        )
    return value


def _number(spec: TraceSpec, name: str, default: float | None = None) -> float:
    value = spec.synthetic.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(f"trace {spec.name}: {name} must be a number, not {value!r}.")
    return float(value)


def _lengths(spec: TraceSpec, name: str) -> Lengths:
    """The distribution of lengths that a value describes. Raises SettingsError."""
    value = spec.synthetic[name]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return Fixed(value)
    if isinstance(value, Mapping):
        keys = set(value)
        try:
            if keys == {"low", "high"}:
                return Uniform(int(value["low"]), int(value["high"]))
            if {"p50", "p99"} <= keys <= {"p50", "p99", "low", "high"}:
                return LogNormal(**{k: float(v) if k[0] == "p" else int(v) for k, v in value.items()})  # type: ignore[arg-type]  # fmt: skip
            if {"quantiles"} <= keys <= {"quantiles", "log"}:
                points = tuple((float(p), float(n)) for p, n in value["quantiles"])
                return Quantiles(points, log=bool(value.get("log", False)))
        except (TypeError, ValueError):
            pass  # said below, with what would do
    raise SettingsError(f"trace {spec.name}: {name} must be {_LENGTHS}, not {value!r}.")


# ---- what a cell does to a trace --------------------------------------------------------------------


def shaped(workload: Workload, shape: Mapping[str, Any], seed: int) -> Workload:
    """The requests as a cell asks for them: redrawn arrivals, window, first requests, rate, spread.

    shape: keys of SHAPE, those left out as they are. Raises WorkloadError, SettingsError.
    """
    s = {**SHAPE, **shape}
    check_shape(s)
    if s["arrivals"] == "poisson":
        workload = _poisson(workload, seed)
    if s["window"] is not None:
        workload = workload.window(*window_of(s["window"]))
    if s["max_requests"] is not None:
        workload = workload.head(s["max_requests"])
    workload = workload.scale_rate(float(s["rate_scale"]))
    return workload.spread_ticks(seed) if s["spread_ticks"] else workload


def check_shape(shape: Mapping[str, Any]) -> None:
    """Raise SettingsError at the first value that no trace could take."""
    for name, value in shape.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name == "rate_scale" and not (is_number and 0 < value < float("inf")):
            raise SettingsError(f"rate_scale must be a number above 0, not {value!r}.")
        if name == "max_requests" and value is not None and not (
            isinstance(value, int) and not isinstance(value, bool) and value >= 1
        ):  # fmt: skip
            raise SettingsError(
                f"max_requests must be a whole number of at least 1, not {value!r}."
            )
        if name == "spread_ticks" and not isinstance(value, bool):
            raise SettingsError(f"spread_ticks must be true or false, not {value!r}.")
        if name == "arrivals" and value not in ARRIVALS:
            raise SettingsError(
                f"arrivals {value!r} is not known. Choose one of {', '.join(ARRIVALS)}."
            )
        if name == "window" and value is not None:
            window_of(value)


def window_of(value: Any) -> tuple[float, float | None]:
    """(start, end) in seconds of "60:120", "60:" or [60, 120]. Raises SettingsError."""
    try:
        if isinstance(value, str):
            start, colon, end = value.partition(":")
            if not colon:
                raise ValueError
            return float(start or 0.0), float(end) if end else None
        if isinstance(value, Sequence) and len(value) == 2:
            return float(value[0]), float(value[1])
    except (TypeError, ValueError):
        pass  # said below
    raise SettingsError(
        f'window {value!r} is not START:END in seconds, such as "60:120" or "60:".'
    )


def _poisson(workload: Workload, seed: int) -> Workload:
    """The same requests in the same order, arriving at random at the trace's mean rate.

    An abort stays as long after its arrival as it was. Arrivals in steps are unknown from here on.
    """
    n = len(workload)
    if n < 2 or workload.span_s <= 0 or workload.concurrency is not None:
        raise WorkloadError(
            workload.name,
            "arrivals",
            "its requests come at one time or in a closed loop, so they have no rate to draw arrivals at",
            "Leave arrivals as in the trace.",
        )
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(workload.span_s / (n - 1), n)
    gaps[0] = 0.0
    times = pl.Series("arrival_s", np.cumsum(gaps))
    table = workload.table
    moved = times - table["arrival_s"]
    table = table.with_columns(
        times,
        (table["abort_s"] + moved).alias("abort_s"),
        pl.lit(None, dtype=pl.Int64).alias("arrival_step"),
        pl.lit(None, dtype=pl.Int64).alias("abort_step"),
    )
    return replace(workload, table=table, name=f"{workload.name} (Poisson)")
