"""A calibration as a device file and as sentences. It computes nothing but the residuals it lists."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import VERSION
from engine.calibrate_errors import relative_errors
from engine.calibrate_samples import KINDS, Source
from engine.devices import VALUE_NAMES, DeviceSpec

if TYPE_CHECKING:
    from engine.calibrate import Calibration

MAX_RESIDUALS = 1_000  # a recording; more are thinned evenly
_RAISED = ("peak_flops", "peak_fp8_flops", "memory_bytes_per_s")


def document(c: Calibration) -> dict[str, Any]:
    """The device file: `values` for `load_device`, and the evidence under `calibration`."""
    return {
        "name": c.device.name,
        "values": {n: [_value(c.device, n), _source(c, n)] for n in VALUE_NAMES},
        "calibration": {
            "created": c.created,
            "kv_replay": VERSION,
            "base": c.base.name,
            "recordings": [_recording(s) for s in c.sources],
            "fitted": {
                n: {"value": v, "low": low, "high": high} for n, (v, low, high) in c.fitted.items()
            },
            "kept": dict(c.kept),
            "not_separable": list(c.steps.merged),
            "samples": dict(c.steps.counts) | {f"copies {k}": n for k, n in c.copies.counts.items()},
            "outliers": int(c.steps.outlier.sum()),
            "condition_numbers": {k: _short(v) for k, v in c.steps.condition.items()},
            "device_time_recorded": c.steps.host_known,
            "errors": {k: _errors(e) for k, e in c.errors.items()},
            "copy_errors": _copy_errors(c.copies.errors),
            "cross_validation": {
                "left_out": c.cut_by,
                "folds": [
                    {"left_out": f.left_out, "errors": f.errors and _errors(f.errors), "why_not": f.why_not}
                    for f in c.folds
                ],
            },
            "caution": c.caution,
            "warnings": list(c.warnings),
            "residuals": [_residuals(c.device, s) for s in c.sources],
        },
    }  # fmt: skip


def to_json(document: dict[str, Any]) -> str:
    """The document with one value a line and lists of residuals on one."""
    lines = ["{", f'  "name": {json.dumps(document["name"])},', '  "values": {']
    values = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in document["values"].items()]
    lines += [",\n".join(values), "  },", '  "calibration": {']
    rest = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in document["calibration"].items()]
    return "\n".join([*lines, ",\n".join(rest), "  }", "}"]) + "\n"


def _value(device: DeviceSpec, name: str) -> Any:
    value = getattr(device, name)
    return [list(row) for row in value] if name == "allreduce" else value


def _source(c: Calibration, name: str) -> str:
    """Where a number of the device file comes from."""
    base = c.base.sources.get(name, f"device {c.base.name}")
    if name not in c.fitted:
        if name in _RAISED and getattr(c.device, name) != getattr(c.base, name):
            return f"[P] measured: raised until no efficiency exceeds 1, {_what(c)}; before: {base}"
        return base if base.startswith("[") else f"from {c.base.name}: {base}"
    _, low, high = c.fitted[name]
    sure = f", 95 % interval {low:.4g} to {high:.4g}" if low is not None else ""
    return f"[P] measured: {_what(c)}{sure}"


def _what(c: Calibration) -> str:
    names = ", ".join(s.digest[:8] for s in c.sources)
    return f"fitted {c.created} by KV Replay {VERSION} to recordings {names}"


def _recording(s: Source) -> dict[str, Any]:
    return {
        "name": s.label,
        "digest": s.digest,
        "workload": s.workload_name,
        "workload_digest": s.workload,
        "device": s.machine,
        "software": dict(s.software),
        "model": s.setup.model.name,
        "kv_dtype": s.setup.kv_dtype,
        "weight_dtype": s.setup.weight_dtype,
        "copy_path": s.setup.copy_path,
        "clean_steps": len(s.steps),
        "copies": len(s.copies),
        "left_out": dict(s.dropped),
    }


def _errors(e: Any) -> dict[str, Any]:
    return {k: _short(v) for k, v in asdict(e).items()}


def _short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.4g}")


def _copy_errors(error: np.ndarray) -> dict[str, Any] | None:
    if not len(error):
        return None
    size = np.abs(error)
    return {
        "num_copies": len(error),
        "median": _short(float(np.median(size))),
        "p95": _short(float(np.quantile(size, 0.95))),
    }


def _residuals(device: DeviceSpec, s: Source) -> dict[str, Any]:
    """Relative errors of a recording's clean steps, thinned evenly."""
    every = max(1, -(-len(s.steps) // MAX_RESIDUALS))
    which = np.arange(0, len(s.steps), every)
    part = Source(**{**s.__dict__, "steps": s.steps.take(which)})
    steps = part.steps
    return {
        "recording": s.label,
        "step": steps.step.astype(int).tolist(),
        "kind": [KINDS[k] for k in steps.kind],
        "tokens": (steps.num_decode + steps.chunk_tokens).astype(int).tolist(),
        "measured_s": [_short(float(v)) for v in steps.busy_s],
        "predicted_over_measured_less_1": [
            round(float(v), 4) for v in relative_errors(device, part)
        ],
    }


def lines(c: Calibration) -> list[str]:
    """What was fitted, how far off it is, and what a reader should know, as sentences and a table."""
    said = [_summary(c), ""]
    said += [f"  {'number':<30}{c.base.name[:14]:>14}{'fitted':>12}   95 % interval"]
    for name, (value, low, high) in c.fitted.items():
        sure = f"{low:.4g} to {high:.4g}" if low is not None else ""
        said.append(f"  {name:<30}{getattr(c.base, name):>14.4g}{value:>12.4g}   {sure}")
    raised = [n for n in _RAISED if getattr(c.device, n) != getattr(c.base, n)]
    if raised:
        what = ", ".join(f"{n} to {getattr(c.device, n):.3g}" for n in raised)
        said.append(f"  raised, so that no efficiency exceeds 1: {what}")
    said += ["", f"  {'errors of step times':<44}{'steps':>8}{'median':>9}{'mean':>9}{'p95':>9}{'bias':>9}"]  # fmt: skip
    said += [_row(f"fitted, {kind}", e) for kind, e in c.errors.items()]
    for fold in c.folds:
        label = f"predicted, {fold.left_out} left out"
        said.append(
            _row(label, fold.errors) if fold.errors else f"  {label[:60]}: {fold.why_not}"
        )
    copies = _copy_errors(c.copies.errors)
    if copies:
        said.append(
            f"  copies: {copies['num_copies']:,}, median error {copies['median']:.1%}, 95 % within {copies['p95']:.1%}"
        )
    said.append("")
    fitting = {n: why for n, why in c.kept.items() if not why.startswith("not in the step")}
    said += [f"note: {n} is that of {c.base.name}: {why}" for n, why in fitting.items()]
    others = [n for n in c.kept if n not in fitting and n not in raised]
    if others:
        said.append(f"note: taken over from {c.base.name}: {', '.join(others)}, allreduce")
    return said + [f"warning: {w}" for w in c.warnings]


def _summary(c: Calibration) -> str:
    counts = c.steps.counts
    lost = sum(sum(s.dropped.values()) for s in c.sources)
    clean = sum(len(s.steps) for s in c.sources)
    copies = c.copies.counts
    return (
        f"{c.device.name}: fitted to {clean:,} clean steps of {len(c.sources)} recording{'s' if len(c.sources) > 1 else ''} "
        f"({counts['decode']:,} decode, {counts['prefill']:,} large prefill, {counts['near the knee']:,} near the knee; "
        f"{lost:,} left out, {int(c.steps.outlier.sum()):,} outliers) and {copies['in'] + copies['out']:,} copies"
    )


def _row(label: str, e: Any) -> str:
    if len(label) > 43:
        label = label[:42] + "…"
    return f"  {label:<44}{e.num_steps:>8,}{e.median:>9.1%}{e.mean:>9.1%}{e.p95:>9.1%}{e.bias:>+9.1%}"
