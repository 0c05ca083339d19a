"""What readers of a report ask back: version, flags, model, device, pool, lengths, time range, clock.

It knows metadata and the lengths of requests, and words for them. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzer.look import Side, gib, seconds, three_digits
from analyzer.run import Run
from analyzer.vllm_defaults import VLLM, changed_settings
from traces.recording import Meta


@dataclass(frozen=True)
class Setup:
    """One line of the set-up: label and value of each side. same: one value, where all sides agree."""

    label: str
    values: Mapping[Side, str]

    @property
    def same(self) -> str | None:
        said = set(self.values.values())
        return next(iter(said)) if len(said) == 1 else None


def set_up(
    runs: Mapping[Side, Run], part: tuple[float, float] | None, ends_s: Mapping[Side, float]
) -> list[Setup]:
    """The lines of the set-up. part: of the time that is reported, None for all; ends_s: length of
    each run, s."""
    lines = {
        "Engine": _engine,
        "Not vLLM's defaults": _flags,
        "Model": _model,
        "Device": _device,
        "KV pool": _pool,
        "Requests": _requests,
        "Lengths": _lengths,
        "Times": _clock,
    }
    found = [
        Setup(label, {s: say(run) for s, run in runs.items()}) for label, say in lines.items()
    ]
    ranges = {side: _range(run, part, ends_s[side]) for side, run in runs.items()}
    return [*found, Setup("Time range", ranges)]


def _engine(run: Run) -> str:
    """Who ran it, in which version."""
    software, ours = run.meta.software, run.meta.software.get("kv_replay", "")
    kv_replay = f"KV Replay {ours}".strip()
    if run.meta.executor == "vllm":
        return f"vLLM {software.get('vllm', '')}".strip() + f", recorded live by {kv_replay}"
    baseline = run.meta.get("vllm_baseline")
    like = f", scheduling as vLLM {baseline} does" if baseline else ""
    if run.meta.executor == "torch":
        return f"torch engine of {kv_replay}, torch {software.get('torch', '?')}{like}"
    if run.meta.executor == "simulator":
        return f"simulator of {kv_replay}{like}"
    return str(run.meta.executor or "not stated")


def _flags(run: Run) -> str:
    if not run.meta.settings:
        return "not stated"
    changed = changed_settings(run.meta)
    return "\n".join(map(str, changed)) or f"none (vLLM {VLLM})"


def _name(meta: Meta, kind: str) -> str | None:
    said = meta.get(kind) or meta.settings.get(kind)
    name = said.get("name") if isinstance(said, Mapping) else said
    return str(name) if name else None


def _model(run: Run) -> str:
    name = _name(run.meta, "model")
    if name is None:
        return "not stated"
    weights = run.meta.settings.get("weight_dtype")
    if weights in (None, "auto"):
        model = run.meta.get("model")
        weights = (
            model.get("weight_dtype") or model.get("dtype")
            if isinstance(model, Mapping)
            else None
        )
    return f"{name}, weights in {weights}" if weights else name


_PARALLEL = (
    ("tensor_parallel_size", ", {} of them (tensor parallel)"),
    ("pipeline_parallel_size", ", {} pipeline stages"),
)


def _device(run: Run) -> str:
    name = _name(run.meta, "device")
    torch: Any = run.meta.get("torch")
    if isinstance(torch, Mapping) and torch.get("device_name"):
        name = str(torch["device_name"])
        if str(torch.get("device")) == "cpu":
            name += f", {torch.get('threads')} thread" + "s" * (torch.get("threads") != 1)
    if name is None:
        return "not stated"
    many = "".join(
        said.format(count)
        for key, said in _PARALLEL
        if isinstance(count := run.meta.settings.get(key), int) and count > 1
    )
    return f"{name}{many}"


def _pool(run: Run) -> str:
    """Blocks, tokens and bytes; and the room on the host, where a mode uses it."""
    blocks, size, each = (
        run.recording.pool_blocks,
        run.meta.block_size_tokens,
        run.meta.block_bytes,
    )
    said = f"{blocks:,} blocks"
    if size:
        said += f" of {size} tokens: {blocks * size:,} tokens"
    if each:
        said += f", {gib(blocks * each)}"
    host = run.meta.host_pool_blocks
    if host and run.meta.preemption_mode != "recompute":
        said += f"; {host:,} blocks on the host" + (f", {gib(host * each)}" if each else "")
    return said


def _requests(run: Run) -> str:
    name, num = run.meta.workload.get("name"), run.requests.height
    said = f"{num:,} request{'' if num == 1 else 's'}"
    if num:
        arrivals = run.requests["arrival_s"]
        span = float(arrivals.max() or 0.0) - float(arrivals.min() or 0.0)  # type: ignore[arg-type]
        if num > 1 and span > 0 and run.meta.clock != "step":
            said += f" in {seconds(span)} ({three_digits((num - 1) / span)} per s)"
    estimated = ", estimated from telemetry" if run.meta.workload.get("estimated") else ""
    return f"{name}: {said}{estimated}" if name else said + estimated


def _lengths(run: Run) -> str:
    if not run.requests.height:
        return "no request"
    return ";\n".join(
        f"{word} {_spread(run.requests[column])} tokens"
        for word, column in (("prompt", "prompt_tokens"), ("output", "output_tokens"))
    )


def _spread(column: pl.Series) -> str:
    median, tail, most = (column.quantile(q, "nearest") for q in (0.5, 0.99, 1.0))
    return f"median {median or 0:,.0f}, p99 {tail or 0:,.0f}, most {most or 0:,.0f}"


def _range(run: Run, part: tuple[float, float] | None, end_s: float) -> str:
    unit = "steps" if run.meta.clock == "step" else "s"
    num = f"{run.steps.height:,} steps"
    if part is None:
        return f"all of it: 0 to {three_digits(end_s)} {unit}, {num}"
    return f"{three_digits(part[0])} to {three_digits(part[1])} {unit} of {three_digits(end_s)} {unit} ({num} in all)"


def _clock(run: Run) -> str:
    meta = run.meta
    if meta.clock == "measured":
        return "measured"
    if meta.clock == "modelled":
        return "modelled: computed from the shape of the model and the device, not measured"
    return "steps, not seconds" if meta.clock == "step" else "not stated"
