"""The simulator against three measured vLLM runs: TPOT, TTFT, throughput, makespan.

    python benchmarks/measured_runs.py [--shared ../shared] [--write]

Replays the request traces of `traces/vllm-measured-runs` (LLMServingSim 2.0 artefacts, vLLM 0.19 on
RTX PRO 6000, read in place) under the settings of their meta.json and compares with the measured
times of the same requests. Each run is made twice: with data-sheet peaks and the nearest
architecture's efficiencies (untuned), and with the preset, four numbers of which were fitted to two
of these runs. With --write the table is saved in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import polars as pl  # noqa: E402

from engine.config import EngineSettings  # noqa: E402
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
        "decode_attention_efficiency": [0.85, "L40S"],
        "allreduce": [[[2, 5e-06, 20e9], [4, 13e-06, 5.5e9], [8, 26e-06, 1.3e9]], "L40S"],
    },
}
FIGURES = ("mean TPOT, ms", "p90 TPOT, ms", "mean TTFT, s", "output tokens/s", "makespan, s")


def measured(path: Path) -> pl.DataFrame:
    """One row a request in order of arrival; times in s since the first one was queued."""
    rows = pl.read_ndjson(path).sort("arrival_time", maintain_order=True)
    base = float(rows["queued_ts"].min())  # type: ignore[arg-type]
    return rows.select(
        pl.col("output_toks").alias("output_tokens"),
        (pl.col("queued_ts") - base).alias("arrival_s"),
        (pl.col("first_token_ts") - base).alias("first_token_s"),
        (pl.col("last_token_ts") - base).alias("finish_s"),
    )


def figures(requests: pl.DataFrame) -> tuple[float, ...]:
    """FIGURES of finished requests."""
    r = requests.filter(pl.col("finish_s").is_not_null())
    tpot = ((r["finish_s"] - r["first_token_s"]) / (r["output_tokens"] - 1)).to_numpy() * 1e3
    ttft = (r["first_token_s"] - r["arrival_s"]).to_numpy()
    makespan = float(r["finish_s"].max())  # type: ignore[arg-type]
    p90 = float(pl.Series(tpot).quantile(0.9, "linear") or 0.0)
    return tpot.mean(), p90, ttft.mean(), r["output_tokens"].sum() / makespan, makespan


def modelled(
    workload: Workload, kwargs: dict[str, object], device: str, scratch: Path
) -> pl.DataFrame:
    """Requests of the simulated run; data-parallel ranks are engines of their own, in turn."""
    settings = EngineSettings(
        model=str(kwargs["model"]),
        device=device,
        tensor_parallel_size=int(str(kwargs["tensor_parallel_size"])),
        max_num_seqs=int(str(kwargs["max_num_seqs"])),
        max_num_batched_tokens=int(str(kwargs["max_num_batched_tokens"])),
        gpu_memory_utilization=0.9,
    )
    ranks = int(str(kwargs["data_parallel_size"]))
    parts = []
    for rank in range(ranks):
        table = workload.table.gather_every(ranks, rank)
        start = float(table["arrival_s"][0])
        share = Workload(
            table.with_columns(pl.col("arrival_s") - start), f"rank {rank}", workload.report
        )
        simulate(share, settings, scratch / str(rank), overwrite=True)
        rows = open_recording(scratch / str(rank)).requests
        times = ("arrival_s", "first_token_s", "finish_s")
        parts.append(rows.select("output_tokens", *(pl.col(c) + start for c in times)))
    return pl.concat(parts)


def compare(shared: Path) -> list[str]:
    """Markdown table, one row a run, device variant and figure."""
    lines = ["| run | figure | measured | untuned | preset |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as scratch:
        custom = Path(scratch) / "untuned.json"
        custom.write_text(json.dumps(UNTUNED), encoding="utf-8")
        for run in RUNS:
            folder = shared / "traces" / "vllm-measured-runs" / run
            kwargs = json.loads((folder / "meta.json").read_text(encoding="utf-8"))[
                "engine_kwargs"
            ]
            workload = open_workload(folder / "requests.jsonl")
            truth = figures(measured(folder / "requests.jsonl"))
            sims = [
                figures(modelled(workload, kwargs, d, Path(scratch) / "out"))
                for d in (str(custom), "rtx-pro-6000")
            ]
            for i, name in enumerate(FIGURES):
                cells = " | ".join(f"{s[i]:.4g} ({s[i] / truth[i] - 1:+.0%})" for s in sims)
                lines.append(
                    f"| {run.removeprefix('RTXPRO6000_')} | {name} | {truth[i]:.4g} | {cells} |"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The simulator against three measured vLLM runs."
    )
    default = os.environ.get("KV_REPLAY_SHARED", str(ROOT.parent / "shared"))
    parser.add_argument(
        "--shared", type=Path, default=Path(default), help="folder that holds traces/"
    )
    parser.add_argument(
        "--write", action="store_true", help="save a dated file in benchmarks/results/"
    )
    args = parser.parse_args()
    if not (args.shared / "traces" / "vllm-measured-runs").is_dir():
        parser.error(
            "traces/vllm-measured-runs is not in the shared folder: give its place with --shared"
        )
    lines = compare(args.shared)
    print("\n".join(lines))
    if args.write:
        today = datetime.date.today().isoformat()
        out = ROOT / "benchmarks" / "results" / f"{today}-measured-runs.md"
        head = [
            "# Simulator against measured vLLM runs",
            "",
            f"{today}. `python benchmarks/measured_runs.py --write`; vLLM 0.19.0, RTX PRO 6000, 300 ShareGPT requests at 10/s "
            "each, max_num_seqs 128, 2,048 batched tokens (LLMServingSim 2.0 artefacts, commit 5daddb2, MIT).",
            "",
            "The preset's weight reads, decode attention and all-reduce were fitted to the first two runs; the untuned column "
            "uses data-sheet peaks and the nearest architecture. The third run shares its experts over two data-parallel "
            "ranks, which the model does not know: it is simulated as two engines that hold all experts.",
            "",
        ]
        out.write_text("\n".join(head + lines) + "\n", encoding="utf-8")
        print(f"\nwritten: benchmarks/results/{out.name}")


if __name__ == "__main__":
    main()
