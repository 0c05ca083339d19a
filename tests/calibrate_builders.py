"""Recordings of a machine whose numbers are known: steps and copies timed by the cost model, with noise.

`work` draws what steps compute, `time_steps` says how long they take on a device, `write_run` makes a
recording of both, as the torch engine would write it.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.calibrate_samples import Copies, Setup, Steps
from engine.cost_model import make_cost_params, step_time_s
from engine.devices import DeviceSpec, load_device
from engine.models import load_model
from tests.builders import make_events, make_meta, make_requests, make_steps, write

CPU = load_device("cpu")
# The machine that the tests have to find again, unlike its base in every number that is fitted.
MACHINE = replace(
    CPU,
    name="machine",
    linear_efficiency=0.5,
    weight_read_efficiency=0.9,
    knee=2.2,
    decode_attention_efficiency=0.12,
    prefill_attention_efficiency=0.4,
    layer_overhead_s=4e-4,
    step_overhead_s=2e-3,
    attention_overhead_s=3e-4,
    prefill_overhead_s=2e-4,
    request_overhead_s=1e-4,
    link_in_bytes_per_s=4e9,
    link_out_bytes_per_s=3e9,
    loop_copy_s=2e-6,
    transfer_overhead_s=1e-4,
    contention_in=0.7,
    contention_out=0.6,
)


def make_setup(model: str = "smollm2-135m", **changes: Any) -> Setup:
    """A model in 32 bits."""
    given = {"kv_dtype": "float32", "weight_dtype": "float32"} | changes
    return Setup(load_model(model), **given)


def work(
    decode: int = 400,
    prefill: int = 100,
    mixed: int = 150,
    *,
    batch: int = 16,
    context: int = 1500,
    chunk: int = 512,
    seed: int = 0,
) -> np.ndarray:
    """Work of so many steps of each kind, shuffled: (num_decode, ctx, num_chunks, tokens, qk, rows)."""
    random = np.random.default_rng(seed)
    rows: list[tuple[float, ...]] = []
    for _ in range(decode):
        b = int(random.integers(1, batch + 1))
        rows.append((b, b * int(random.integers(32, context)), 0, 0, 0.0, b))
    for _ in range(prefill):
        n, k = int(random.integers(64, chunk)), int(random.integers(1, 4))
        s = int(random.integers(0, context)) if random.random() < 0.3 else 0
        rows.append((0, 0, k, n, n * (s + n / 2 / k), k))
    for _ in range(mixed):
        b, n = int(random.integers(1, batch + 1)), int(random.integers(2, chunk))
        rows.append((b, b * int(random.integers(32, context)), 1, n, n * n / 2, b + 1))
    table = np.array(rows, float).reshape(-1, 6)
    return table[random.permutation(len(table))]


def time_steps(
    setup: Setup,
    device: DeviceSpec,
    rows: np.ndarray,
    *,
    noise: float = 0.02,
    known: bool = True,
    seed: int = 0,
) -> Steps:
    """These steps as `device` would take them; noise: relative, log-normal; known: compute_s is."""
    random = np.random.default_rng(seed)
    p = make_cost_params(
        setup.model, device, kv_dtype=setup.kv_dtype, weight_dtype=setup.weight_dtype
    )
    true = np.array(
        [
            step_time_s(p, int(b), c, 0.0, int(n), q, 0.0, int(k), int(r))
            for b, c, k, n, q, r in rows
        ]
    ).reshape(-1)
    compute = true - device.step_overhead_s
    compute = compute * np.exp(noise * random.standard_normal(len(rows)))
    host = device.step_overhead_s * np.exp(noise * random.standard_normal(len(rows)))
    b, ctx, chunks, tokens, qk, logit_rows = rows.T
    return Steps(
        step=np.arange(len(rows), dtype=float),
        num_decode=b,
        num_padded=b,
        ctx=ctx,
        num_chunks=chunks,
        chunk_tokens=tokens,
        qk=qk,
        logit_rows=logit_rows,
        busy_s=compute + host,
        compute_s=compute if known else np.full(len(rows), np.nan),
    )


def time_copies(
    setup: Setup, device: DeviceSpec, num: int = 80, *, beside: bool = False, seed: int = 0
) -> Copies:
    """Copies of 1 to 80 blocks, half of them inbound, 1 % noise; beside: half their time beside another."""
    random = np.random.default_rng(seed)
    p = make_cost_params(
        setup.model, device, kv_dtype=setup.kv_dtype, copy_path=setup.copy_path,
        block_size=setup.block_size,
    )  # fmt: skip
    blocks = random.integers(1, 81, num).astype(float)
    inbound = np.arange(num) % 2 == 0
    copies = blocks * p.copies_per_block if p.copies_per_block else np.ones(num)
    moved = blocks * p.kv_block_bytes
    rate = np.where(inbound, device.link_in_bytes_per_s, device.link_out_bytes_per_s)
    left = np.where(inbound, device.contention_in, device.contention_out)
    alone = device.transfer_overhead_s + copies * p.copy_s + moved / rate
    overlap = 0.5 * alone if beside else np.zeros(num)
    seconds = (alone + overlap * (1 - left)) * np.exp(0.01 * random.standard_normal(num))
    return Copies(inbound, copies, moved, seconds, overlap)


def write_run(
    root: Path,
    setup: Setup,
    steps: Steps,
    *,
    copies: Copies | None = None,
    device: str = "cpu",
    workload: str = "w",
    meta: dict[str, Any] | None = None,
    **columns: Any,
) -> Path:
    """A recording of these steps and copies, 20 warm-up steps before them; columns replace those of steps."""
    warm = 20
    n = warm + len(steps)

    def padded(values: np.ndarray, first: float) -> list[float]:
        return [first] * warm + values.tolist()

    def whole(values: np.ndarray, first: int = 1) -> list[int]:
        return [int(v) for v in padded(values, first)]

    known = not np.isnan(steps.compute_s).any()
    table = {
        "duration_s": padded(steps.busy_s, 9.0),
        "num_decode": whole(steps.num_decode),
        "decode_ctx_tokens": whole(steps.ctx),
        "num_chunks": whole(steps.num_chunks, 0),
        "chunk_tokens": whole(steps.chunk_tokens, 0),
        "prefill_qk": padded(steps.qk, 0.0),
        "num_logit_rows": whole(steps.logit_rows),
        "compute_s": padded(steps.compute_s, 9.0) if known else [None] * n,
        **columns,
    }
    settings = {
        "block_size": setup.block_size,
        "kv_cache_dtype": setup.kv_dtype,
        "weight_dtype": setup.weight_dtype,
        "copy_path": setup.copy_path,
        "num_gpu_blocks": 11,
    }
    said = {
        "executor": "torch",
        "clock": "measured",
        "settings": settings,
        "model": asdict(setup.model),
        "device": {"name": device},
        "workload": {"name": workload, "digest": workload * 8},
    }
    return write(
        root,
        steps=make_steps([0] * n, **table),
        events=make_events(_copy_events(copies, setup)),
        requests=make_requests([{"request_id": "a", "arrival_s": 0.0}]),
        meta=make_meta(**(said | (meta or {}))),
    )


def _copy_events(copies: Copies | None, setup: Setup) -> list[dict[str, Any]]:
    """Swaps one after the other, each alone on the link."""
    rows: list[dict[str, Any]] = [{"step": 0, "kind": "arrive", "request_id": "a"}]
    if copies is None:
        return rows
    per_block = 2 * setup.model.num_layers
    t = 0.0
    for inbound, n, moved, seconds in zip(
        copies.inbound, copies.num_copies, copies.num_bytes, copies.seconds, strict=True
    ):
        rows.append(
            {
                "step": 0,
                "t_s": t,
                "kind": "swap_in" if inbound else "swap_out",
                "request_id": "a",
                "blocks": int(n / per_block) if setup.copy_path != "coalesced" else 1,
                "bytes": int(moved),
                "cost_s": float(seconds),
            }
        )
        t += 2 * float(seconds)
    return rows
