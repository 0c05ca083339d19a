"""GPU check, runs: two recordings under pressure, and a device file fitted to recordings.

The scheduler is compiled at first use, which takes one core a minute or two: `start_compiling` has
another process do that on the CPU, by the quick form of this section, while the card is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from gpu_check_model import compare, cost_model, model_name, preset
from gpu_check_table import FAILED, OK, Check, Skip

NEEDS = ("numba", "pyarrow", "polars", "engine.gpu.run")
MOST_MEDIAN_ERROR = 0.15


def start_compiling(check: Check) -> None:
    """Start the process that fills numba's cache, at low priority."""
    if check.quick or _missing():
        return
    script = Path(__file__).with_name("gpu_check.py")
    command = ["nice", "-n", "10", sys.executable, str(script), "--device", "cpu", "--quick"]
    command += ["--only", "recordings", "--out", str(check.out / "compile")]
    with (check.out / "compile.log").open("w") as log:
        check.shared["compiling"] = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def _missing() -> str:
    """The first of NEEDS that cannot be imported, and why; "" where all can."""
    for module in NEEDS:
        try:
            import_module(module)
        except ImportError as why:
            return f"{module} cannot be imported ({why})"
    return ""


def _wait_for_compiler(check: Check) -> None:
    missing = _missing()
    if missing:
        raise Skip(missing)
    process = check.shared.pop("compiling", None)
    if process is None:
        return
    began = time.perf_counter()
    while process.poll() is None:
        if check.time_left() < 60:
            process.kill()
            raise Skip("the scheduler was not compiled in time (compile.log)")
        time.sleep(0.2)
    verdict = OK if process.returncode == 0 else FAILED
    note = "" if process.returncode == 0 else "see compile.log"
    waited = time.perf_counter() - began
    check.row("waited for the scheduler to compile", waited, "s", verdict=verdict, note=note)


def stop_compiling(check: Check) -> None:
    """End the process that compiles, if it is still there."""
    process = check.shared.pop("compiling", None)
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()


# --- workloads ------------------------------------------------------------------------------------


def workload(name: str, arrival_s: Any, prompt: Any, output: Any) -> Any:
    """A Workload of these columns."""
    from traces.workload import ReadReport, make_workload

    columns = {
        "arrival_s": np.asarray(arrival_s, np.float64),
        "prompt_tokens": np.asarray(prompt, np.int64),
        "output_tokens": np.asarray(output, np.int64),
    }
    return make_workload(
        columns, name=name, report=ReadReport(format="made up for the GPU check")
    )


def pressed(check: Check, seed: int = 0) -> tuple[Any, int]:
    """Requests that outgrow their pool, and the pool in blocks (the null block counted)."""
    rng = np.random.default_rng(seed)
    if check.quick:
        return workload("pressure", rng.uniform(0, 0.05, 6), [20] * 6, [40] * 6), 14
    n = 64
    prompt, output = rng.integers(200, 1200, n), rng.integers(150, 700, n)
    # Two fifths of what all of them need at their longest.
    blocks = int((-(-(prompt + output) // 16)).sum() * 2 // 5)
    return workload("pressure", np.sort(rng.uniform(0, 3, n)), prompt, output), blocks


def varied(check: Check) -> tuple[Any, int]:
    """Lone prefills of many lengths, then batches of many sizes and contexts: what a fit can tell apart."""
    rng = np.random.default_rng(1)
    if check.quick:
        n = 40
        return workload("variety", np.arange(n) * 0.02, rng.integers(8, 90, n), rng.integers(1, 9, n)), 200  # fmt: skip
    lone = rng.integers(800, 7000, 70)
    arrival, prompt, output = [np.arange(70) * 0.16], [lone], [np.ones(70, np.int64)]
    at = 70 * 0.16 + 0.5
    for size in (1, 2, 4, 8, 16, 32, 64):
        for context in (64, 512, 2048):
            arrival.append(np.full(size, at) + np.arange(size) * 1e-3)
            prompt.append(rng.integers(context // 2, context * 3 // 2 + 1, size))
            output.append(rng.integers(24, 49, size))
            at += 0.8 + size * context / 60_000
    return workload("variety", *(np.concatenate(c) for c in (arrival, prompt, output))), 16_000


def record(check: Check, name: str, made: tuple[Any, int], **settings: Any) -> Any:
    """Run the engine and record it under --out; returns RunResult."""
    from engine.config import EngineSettings
    from engine.gpu.run import RunOptions, run

    requests, blocks = made
    limits: dict[str, Any] = {
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 64,
        "max_model_len": 8192,
    }
    if check.quick:
        limits = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "max_model_len": 512}
    given = EngineSettings(
        model=model_name(check), device=preset(check), num_gpu_blocks=blocks, clock="measured",
        **limits, **settings,
    )  # fmt: skip
    options = RunOptions(
        torch_device=check.device.type, random_weights=0, blocks=not check.quick
    )
    began = time.perf_counter()
    result = run(requests, given, check.out / name, options, overwrite=True)
    check.free_memory()
    taken = time.perf_counter() - began
    share = result.recording_s / max(result.wall_s, 1e-9)
    check.row(
        f"recording {name}", result.duration_s, "s of run",
        verdict=OK if result.status == "completed" else FAILED,
        note=f"{result.status}: {result.num_steps:,} steps, {result.num_preemptions} preemptions, recording "
        f"{share:.2%} of the run; {result.load_s:.0f} s to load, {taken:.0f} s in all",
    )  # fmt: skip
    return result


def recordings(check: Check) -> None:
    """The same requests under pressure, recomputed and swapped; both have to preempt."""
    _wait_for_compiler(check)
    host = {"num_host_blocks": 64} if check.quick else {"host_gib": 8.0}
    for mode in ("recompute", "swap"):
        check.need_time(2.0 if check.quick else 25.0)
        extra = host if mode == "swap" else {}
        result = record(
            check, f"pressure-{mode}", pressed(check), preemption_mode=mode, **extra
        )
        check.shared.setdefault("recordings", []).append(result.path)
        seen = OK if result.num_preemptions > 0 else FAILED
        check.row(
            f"preemptions, {mode}", result.num_preemptions, "", target="> 0", verdict=seen
        )


def calibration(check: Check) -> None:
    """A device file from the pressure recordings and one of varied steps, with its errors."""
    _wait_for_compiler(check)
    try:
        fit: Callable[..., Any] = import_module("engine.calibrate").calibrate
        report = import_module("engine.calibrate_report")
    except ImportError as why:
        raise Skip(f"engine.calibrate cannot be imported ({why})") from why
    check.need_time(2.0 if check.quick else 45.0)
    result = record(check, "variety", varied(check))
    check.need_time(1.0)
    paths = [result.path, *check.shared.get("recordings", [])]
    made = fit(paths, name="gpu-check", bootstraps=20)
    (check.out / "device.json").write_text(report.to_json(report.document(made)))
    for kind, errors in made.errors.items():
        check.row(
            f"calibrated on {len(paths)} recordings, {kind} steps, median error", errors.median,
            "of a step", note=f"{errors.num_steps:,} steps, p95 {errors.p95:.3f}",
        )  # fmt: skip
    held_out = [f.errors for f in made.folds if f.errors is not None]
    if held_out:
        worst = max(e.median for e in held_out)
        check.held(
            f"median error on what the fit had not seen, {made.cut_by}", worst, "of a step",
            most=MOST_MEDIAN_ERROR, counts=check.on_cuda,
        )  # fmt: skip
    for name, (value, low, high) in made.fitted.items():
        span = "" if low is None else f"{low:.4g} to {high:.4g}"
        check.row(f"fitted {name}", value, note=span)
    for warning in made.warnings:
        check.row("warning", note=warning)
    if "lengths" in check.shared:
        lengths = list(check.shared["lengths"].recompute)
        compare(check, "calibrated", cost_model(check, check.out / "device.json", lengths))
