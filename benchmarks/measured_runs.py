"""The simulator against measured vLLM runs: queues, throughput, TTFT, TPOT, E2E.

    python benchmarks/measured_runs.py [--shared ../shared] [--run FOLDER --device NAME] [--write]

Replays the request traces of `traces/vllm-measured-runs` (LLMServingSim 2.0 artefacts, vLLM 0.19 on
RTX PRO 6000, read in place) under the settings of their meta.json and compares with the measured
times of the same requests and the measured queues. Each run is made twice: with data-sheet peaks and the
nearest architecture's efficiencies (untuned), and with the preset, four numbers of which were fitted to
the seconds of two of these runs that computed no prompt. `--run` takes one folder of the same form, measured
anywhere, and a device. With --write the table is saved in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import numpy as np  # noqa: E402
import polars as pl  # noqa: E402

from benchmarks.expert_parallel import decode_step_s, simulate_ranks  # noqa: E402
from engine.config import EngineSettings  # noqa: E402
from engine.models import load_model  # noqa: E402
from engine.simulator import simulate  # noqa: E402
from traces.open import open_workload  # noqa: E402
from traces.recording import open_recording  # noqa: E402
from traces.workload import Workload  # noqa: E402

RUNS = (
    "RTXPRO6000_Llama-3.1-8B",
    "RTXPRO6000_Qwen3-32B",
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507",
)
UNTUNED = {
    "name": "rtx-pro-6000, untuned",
    "base": "rtx-pro-6000",
    "values": {
        "weight_read_efficiency": [0.82, "between L40S and RTX 4090"],
        "decode_attention_efficiency": [
            0.72,
            "A100, FlashAttention 2 too; the L40S' 0.85 is read hot in its L2",
        ],
        "allreduce": [[[2, 5e-06, 20e9], [4, 13e-06, 5.5e9], [8, 26e-06, 1.3e9]], "L40S"],
    },
}
PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
TIMES = (("ttft_s", "TTFT, s", 1.0), ("tpot_s", "TPOT, ms", 1e3), ("e2e_s", "E2E, s", 1.0))
TICK_S = 1.0  # the recorder's samples
MIN_RUNNING = 32  # fewer requests make a second of few steps
ASYNC_SINCE = (0, 14)  # vLLM that schedules asynchronously unless told not to (djl issue 3833)


@dataclass(frozen=True)
class Measured:
    """One run: requests (output_tokens, arrival_s, first_token_s, finish_s; s since the first arrival),
    queues (t_s, running, waiting, usage: share of the pool), None where there are none."""

    name: str
    requests: pl.DataFrame
    queues: pl.DataFrame | None


def read_measured(folder: Path) -> Measured:
    """The measured side of a folder with requests.jsonl and timeseries.csv.

    Arrivals are the client's. Its clock is another than the engine's: they are laid over each other where
    a request was queued soonest after it was sent. Sources of error below some 2 ms.
    """
    rows = pl.read_ndjson(folder / "requests.jsonl").sort("arrival_time", maintain_order=True)
    first = float(rows["arrival_time"].min())  # type: ignore[arg-type]
    base = first + float((rows["queued_ts"] - rows["arrival_time"]).min())  # type: ignore[arg-type]
    requests = rows.select(
        pl.col("output_toks").alias("output_tokens"),
        (pl.col("arrival_time") - first).alias("arrival_s"),
        (pl.col("first_token_ts") - base).alias("first_token_s"),
        (pl.col("last_token_ts") - base).alias("finish_s"),
    )
    path = folder / "timeseries.csv"
    queues = None
    if path.is_file():
        samples = pl.read_csv(path)
        queues = samples.select(
            pl.col("t").cast(pl.Float64).alias("t_s"), "running", "waiting", pl.col("kv_cache_pct").alias("usage") / 100
        )  # fmt: skip
    return Measured(folder.name, requests, queues)


def latencies(requests: pl.DataFrame) -> dict[str, np.ndarray]:
    """ttft_s, tpot_s, e2e_s of finished requests."""
    r = requests.filter(pl.col("finish_s").is_not_null())
    long = r.filter(pl.col("output_tokens") > 1)
    return {
        "ttft_s": (r["first_token_s"] - r["arrival_s"]).to_numpy(),
        "tpot_s": ((long["finish_s"] - long["first_token_s"]) / (long["output_tokens"] - 1)).to_numpy(),
        "e2e_s": (r["finish_s"] - r["arrival_s"]).to_numpy(),
    }  # fmt: skip


def figures(requests: pl.DataFrame) -> dict[str, float]:
    """Every figure of a side by its label, queues left out."""
    times = latencies(requests)
    found: dict[str, float] = {}
    for key, label, factor in TIMES:
        found[f"{label}, mean"] = float(times[key].mean()) * factor
        for name, share in PERCENTILES:
            found[f"{label}, {name}"] = float(np.quantile(times[key], share)) * factor
    makespan = float(requests["finish_s"].max())  # type: ignore[arg-type]  # a Float64 column
    found["output tokens/s"] = float(requests["output_tokens"].sum()) / makespan
    found["makespan, s"] = makespan
    return found


@dataclass(frozen=True)
class Simulated:
    """One simulated run: requests as in Measured; running and waiting requests and blocks in use as a
    share of the pool, [n] at the end of each tick."""

    requests: pl.DataFrame
    running: np.ndarray
    waiting: np.ndarray
    usage: np.ndarray


def read_meta(folder: Path) -> dict[str, Any]:
    """The run's meta.json."""
    found: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    return found


def settings_of_run(meta: Mapping[str, Any], device: str) -> EngineSettings:
    """EngineSettings of a run: its engine_kwargs, else its resolved configuration, else vLLM's default.

    A pool that was measured (`kv_cache`) is taken as it was; asynchronous scheduling is vLLM's default
    from 0.14 on.
    """
    kwargs = meta["engine_kwargs"]
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel_size", "num_gpu_blocks", "block_size")  # fmt: skip
    said = {name: _said(meta, name, int) for name in names}
    overlaps = _said(meta, "async_scheduling", bool)
    if overlaps is None:
        overlaps = _version(meta.get("vllm_version")) >= ASYNC_SINCE
    return EngineSettings(
        model=str(kwargs["model"]),
        device=device,
        gpu_memory_utilization=float(kwargs.get("gpu_memory_utilization") or 0.9),
        kv_cache_dtype=str(kwargs.get("kv_cache_dtype") or "auto"),
        enable_prefix_caching=_said(meta, "enable_prefix_caching", bool) is not False,
        async_scheduling=overlaps,
        **{name: value for name, value in said.items() if value is not None},
    )


def _said(meta: Mapping[str, Any], name: str, kind: type) -> Any:
    """A setting's value: that of engine_kwargs, else the first of that name at any depth; None: not said."""
    parts = [v for v in meta.values() if isinstance(v, Mapping)]
    here = (meta.get("engine_kwargs") or {}).get(name), meta.get(name)
    found = (*here, *(_said(part, name, kind) for part in parts))
    return next((v for v in found if type(v) is kind), None)


def _version(text: object) -> tuple[int, ...]:
    """Major and minor number of a version; one that cannot be read counts as new."""
    numbers = str(text).split("+")[0].split(".")[:2]
    if not all(n.isdecimal() for n in numbers):
        return ASYNC_SINCE
    return tuple(int(n) for n in numbers)


def modelled(
    workload: Workload, meta: Mapping[str, Any], device: str, scratch: Path, end_s: float
) -> Simulated:
    """The simulated run; data-parallel ranks take requests in turn, and share experts where told to."""
    settings, kwargs = settings_of_run(meta, device), meta["engine_kwargs"]
    ranks = int(kwargs.get("data_parallel_size") or 1)
    shares = [
        Workload(workload.table.gather_every(ranks, n), f"rank {n}", workload.report)
        for n in range(ranks)
    ]
    folders = [scratch / str(n) for n in range(ranks)]
    if ranks > 1 and kwargs.get("enable_expert_parallel") and load_model(settings.model).is_moe:
        simulate_ranks(shares, settings, folders)
    else:
        for share, folder in zip(shares, folders, strict=True):
            simulate(share, settings, folder, overwrite=True)
    ticks = TICK_S * np.arange(1, int(np.ceil(end_s / TICK_S)) + 1)
    queues = np.zeros((3, len(ticks)))
    parts = []
    for folder in folders:
        recording = open_recording(folder)
        parts.append(
            recording.requests.select("output_tokens", "arrival_s", "first_token_s", "finish_s")
        )
        queues += _queues(recording.steps, ticks, recording.pool_blocks * ranks)
    return Simulated(pl.concat(parts), *queues)


def _queues(steps: pl.DataFrame, ticks: np.ndarray, pool: int) -> np.ndarray:
    """Running, waiting and share of `pool` blocks in use at each tick [3, n]; 0 outside the run."""
    starts = steps["t_start_s"].to_numpy()
    end = float((steps["t_start_s"] + steps["duration_s"]).max())  # type: ignore[arg-type]
    row = np.searchsorted(starts, ticks, side="right") - 1
    inside = (row >= 0) & (ticks < end)
    row = np.maximum(row, 0)
    columns = ("num_running", 1), ("num_waiting", 1), ("used_blocks", pool)
    return np.array(
        [np.where(inside, steps[name].to_numpy()[row] / unit, 0) for name, unit in columns]
    )


def compare_run(
    folder: Path, device: str, scratch: Path, changes: Mapping[str, Any] | None = None
) -> dict[str, tuple[float, float]]:
    """Figure -> (measured, simulated) of one run; distances of queues have 0 on the measured side.

    The pool's usage is compared where it was recorded: not 0 throughout. changes: engine_kwargs in place
    of the run's own.
    """
    truth = read_measured(folder)
    end_s = float(truth.requests["finish_s"].max())  # type: ignore[arg-type]
    if truth.queues is not None and truth.queues.height:
        end_s = max(end_s, float(truth.queues["t_s"].max()))  # type: ignore[arg-type]
    workload = open_workload(folder / "requests.jsonl")
    meta = read_meta(folder)
    meta["engine_kwargs"] = meta["engine_kwargs"] | dict(changes or {})
    ours = modelled(workload, meta, device, scratch, end_s)
    measured, simulated = figures(truth.requests), figures(ours.requests)
    found = {name: (measured[name], simulated[name]) for name in measured}
    if truth.queues is not None:
        at = (truth.queues["t_s"].to_numpy() / TICK_S).astype(int) - 1
        keep = (at >= 0) & (at < len(ours.running))
        for name, label, values, factor in (
            ("running", "running", ours.running, 1.0),
            ("waiting", "waiting", ours.waiting, 1.0),
            ("usage", "pool in use, %", ours.usage, 100.0),
        ):
            theirs = factor * truth.queues[name].to_numpy()[keep]
            mine = factor * values[at[keep]]
            if name == "usage" and not theirs.any():
                continue
            found[f"{label}, mean"] = float(theirs.mean()), float(mine.mean())
            found[f"{label}, mean distance"] = 0.0, float(np.abs(theirs - mine).mean())
    return found


def decode_only(folder: Path, device: str) -> np.ndarray:
    """Modelled step over measured step, less 1, of every second in which no prompt was computed.

    A measured step is requests running over tokens generated in that second; contexts follow from the
    requests' own times, taken as growing evenly. Shape (n, 2): requests running, error.
    """
    meta = read_meta(folder)
    settings = settings_of_run(meta, device)
    ranks = int(meta["engine_kwargs"].get("data_parallel_size") or 1)
    requests = read_measured(folder).requests
    prompts = (
        pl.read_ndjson(folder / "requests.jsonl")
        .sort("arrival_time", maintain_order=True)["input_toks"]
        .to_numpy()
    )
    first, last = requests["first_token_s"].to_numpy(), requests["finish_s"].to_numpy()
    outputs = requests["output_tokens"].to_numpy()
    samples = pl.read_csv(folder / "timeseries.csv").filter(
        (pl.col("prompt_throughput") == 0) & (pl.col("gen_throughput") > 0)
    )
    found = []
    for t, rate in samples.select("t", "gen_throughput").iter_rows():
        mid = t - TICK_S / 2
        live = (first < mid) & (last > mid)
        num = int(live.sum())
        if num < MIN_RUNNING:
            continue
        context = prompts + outputs * (mid - first) / (last - first)
        length_s = decode_step_s(settings, num, float(context[live].sum()), ranks)
        found.append((num, length_s / (num / rate) - 1))
    return np.array(found).reshape(-1, 2)


def compare(shared: Path) -> list[str]:
    """Markdown table, one row a run, device variant and figure."""
    lines = ["| run | figure | measured | untuned | preset |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as scratch:
        custom = Path(scratch) / "untuned.json"
        custom.write_text(json.dumps(UNTUNED), encoding="utf-8")
        for run in RUNS:
            folder = shared / "traces" / "vllm-measured-runs" / run
            sides = [
                compare_run(folder, device, Path(scratch) / "out")
                for device in (str(custom), "rtx-pro-6000")
            ]
            lines += rows_of(run.removeprefix("RTXPRO6000_"), sides)
    return lines


def rows_of(name: str, sides: Sequence[Mapping[str, tuple[float, float]]]) -> list[str]:
    """Rows of the table: measured once, then each side with its error."""
    lines = []
    for figure, (measured, _) in sides[0].items():
        cells = [_cell(measured, side[figure][1]) for side in sides]
        said = "" if "distance" in figure else f"{measured:.4g}"
        lines.append(f"| {name} | {figure} | {said} | {' | '.join(cells)} |")
    return lines


def _cell(measured: float, simulated: float) -> str:
    if measured == 0:
        return f"{simulated:.3g}"
    return f"{simulated:.4g} ({100 * (simulated / measured - 1):+.1f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description="The simulator against measured vLLM runs.")
    default = os.environ.get("KV_REPLAY_SHARED", str(ROOT.parent / "shared"))
    parser.add_argument(
        "--shared", type=Path, default=Path(default), help="folder that holds traces/"
    )
    parser.add_argument(
        "--run",
        type=Path,
        help="one folder with meta.json and requests.jsonl, instead of the three",
    )
    parser.add_argument("--device", help="preset or device file for --run")
    parser.add_argument(
        "--write", action="store_true", help="save a dated file in benchmarks/results/"
    )
    args = parser.parse_args()
    if args.run is not None:
        if args.device is None:
            parser.error("--run needs --device: the preset of the machine it was measured on")
        with tempfile.TemporaryDirectory() as scratch:
            side = compare_run(args.run, args.device, Path(scratch) / "out")
        print("| run | figure | measured | simulated |\n|---|---|---|---|")
        print("\n".join(rows_of(args.run.name, [side])))
        return
    if not (args.shared / "traces" / "vllm-measured-runs").is_dir():
        parser.error(
            "traces/vllm-measured-runs is not in the shared folder: give its place with --shared"
        )
    lines = compare(args.shared)
    print("\n".join(lines))
    if args.write:
        today = datetime.date.today().isoformat()
        out = ROOT / "benchmarks" / "results" / f"{today}-measured-runs.md"
        out.write_text("\n".join([*_head(today), *lines]) + "\n", encoding="utf-8")
        print(f"\nwritten: benchmarks/results/{out.name}")


def _head(today: str) -> list[str]:
    return [
        "# Simulator against measured vLLM runs",
        "",
        f"{today}. `python benchmarks/measured_runs.py --write`; vLLM 0.19.0, RTX PRO 6000, 300 ShareGPT requests at 10/s "
        "each, max_num_seqs 128, 2,048 batched tokens (LLMServingSim 2.0 artefacts, commit 5daddb2, MIT).",
        "",
        "The preset's weight reads, decode attention and small all-reduces were fitted to the seconds of the first two runs that computed no prompt; "
        "the untuned column uses data-sheet peaks and the nearest architecture. The third run shares its experts over two data-parallel "
        "ranks, and nothing was fitted to it: it is simulated as two equally loaded engines, of which each holds half of the experts.",
        "",
        "Distances are of running and waiting requests at one second, on average over the run.",
        "",
    ]


if __name__ == "__main__":
    main()
