"""The command `run`: flags to a run of the torch engine, which is imported only then."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.flags import (
    add_engine_flags,
    add_machine_flags,
    add_swap_flags,
    add_trace_flags,
    read_settings,
    read_workload,
)
from engine.progress import (
    ProgressLines,
    before_recording,
    print_notes,
    print_unfinished,
    progress_bar,
    refused_words,
)
from traces.errors import SettingsError

if TYPE_CHECKING:
    from engine.config import EngineSettings
    from engine.gpu.run import RunOptions, RunResult

# Devices that torch names and presets name otherwise are found by their aliases (engine/devices.py).
_DEFAULT_DEVICE = "h100-sxm"


def add_run_parser(commands: Any) -> None:
    """Add `run` to the engine's commands."""
    run = commands.add_parser(
        "run",
        help="run a request trace through a real model with torch and record it",
        description="Run a request trace through a real model with torch: the simulator's scheduler decides, paged KV blocks on a GPU or CPU hold the keys and values, and every step and event is recorded as measured. On a CPU give the pool: --kv-tokens or --num-gpu-blocks. See docs/torch-engine.md.",
    )
    run.add_argument(
        "trace", nargs="+", help="request trace (see docs/formats.md), or sample:NAME"
    )
    run.add_argument("--out", required=True, help="directory for the recording")
    run.add_argument(
        "--overwrite", action="store_true", help="replace a recording that is in --out"
    )
    run.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_model_flags(run.add_argument_group("model and tokens"))
    add_trace_flags(run.add_argument_group("trace"))
    add_engine_flags(run.add_argument_group("engine (vLLM's names)"))
    add_swap_flags(run.add_argument_group("preemption"))
    add_machine_flags(
        run.add_argument_group("estimates (--preemption cheapest, --clock modelled)"), real=True
    )
    record = run.add_argument_group("recording")
    record.add_argument(
        "--blocks", action="store_true", help="record who held which block, too"
    )
    record.add_argument(
        "--clock",
        choices=("measured", "modelled"),
        help="measured (default), or the cost model's, for the simulator's decisions with real tokens",
    )
    record.add_argument(
        "--settings",
        metavar="FILE.json",
        help="settings from a file; flags given beside it win",
    )
    record.add_argument("--compat", choices=("vllm-0.26", "none"), help=argparse.SUPPRESS)
    run.set_defaults(run=run_command)


def _add_model_flags(group: Any) -> None:
    group.add_argument(
        "--model",
        metavar="DIR|FILE.gguf|NAME",
        help="a Hugging Face directory (config.json, safetensors, tokenizer), a GGUF file, smollm2-135m-instruct (fetched once), or with --random-weights a known model's name; needed",
    )
    group.add_argument(
        "--torch-device",
        default="auto",
        metavar="cuda|cpu",
        help="where the model runs (default: cuda where there is one)",
    )
    group.add_argument(
        "--dtype",
        default="auto",
        metavar="auto|bfloat16|float32|...",
        help="of weights and KV (default auto: bfloat16 on CUDA, float32 on a CPU)",
    )
    group.add_argument(
        "--random-weights",
        type=int,
        metavar="SEED",
        help="draw the weights instead of reading them: for speed, not for sense (default: read)",
    )
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="real text, one prompt a line or JSON lines with prompt or messages (default: drawn ids of the trace's lengths)",
    )
    group.add_argument(
        "--outputs",
        metavar="FILE.jsonl",
        help="write each request's answer, tokens and text, when it ends (default: nowhere)",
    )
    group.add_argument(
        "--stop-at-eos",
        action="store_true",
        help="an answer ends at the model's end token, at the latest at the trace's length (default: at the trace's length)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="F",
        help="of drawn tokens (default 0: none is drawn, the most probable is taken)",
    )
    group.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="F",
        help="draw among the most probable tokens of this share together (default 1: all)",
    )
    group.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="N",
        help="draw among the N most probable tokens (default 0: all)",
    )
    group.add_argument(
        "--attention",
        default="auto",
        metavar="auto|gather_sdpa|triton_paged|flashinfer|torch_varlen",
        help="who computes attention over blocks (default auto: triton_paged on CUDA, gather_sdpa on a CPU)",
    )
    group.add_argument(
        "--kv-layout",
        default="block",
        metavar="block|layer",
        help="a block's layers lie together, or a layer's blocks do, which copies slower (default block)",
    )
    group.add_argument(
        "--no-cuda-graphs",
        action="store_true",
        help="decode without CUDA graphs (default: with them, where there is CUDA)",
    )
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads for torch (default: its own choice)",
    )


def run_command(args: argparse.Namespace) -> int:
    """Run `run`; returns the exit code."""
    with before_recording():
        settings, device = _settings(args)
        workload = read_workload(args)
        from engine.gpu.run import run

    with progress_bar("running", sys.stderr.isatty() and not args.json) as bar:
        lines = None if args.json else ProgressLines(len(workload), _say)
        result = run(
            workload,
            settings,
            args.out,
            _options(args, device),
            progress=bar or lines,
            overwrite=args.overwrite,
            started=None if args.json else _say,
        )
    if args.json:
        print(json.dumps({**_plain(result)}))
    else:
        print_notes(workload)
        _print_result(result)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _settings(args: argparse.Namespace) -> tuple[EngineSettings, str]:
    """Settings of the run, and the torch device."""
    if args.model is None and not args.settings:
        raise SettingsError(
            "--model is needed: a Hugging Face directory, a GGUF file, smollm2-135m-instruct (fetched once), "
            "or a preset with --random-weights SEED."
        )
    for flag, value in (
        ("--kv-dtype", args.kv_cache_dtype),
        ("--weight-dtype", args.weight_dtype),
    ):
        if value is not None:
            raise SettingsError(
                f"{flag} is for simulate: here weights and KV have one type. Use --dtype."
            )
    from engine.gpu.run import pick_device

    device, name = pick_device(args.torch_device, args.threads)
    if args.clock is None:
        args.clock = "measured"
    if args.device is None:
        args.device = "cpu" if device == "cpu" else _preset(name)
    return read_settings(args), device


def _preset(name: str) -> str:
    """The device preset of that name, for estimates; the default one where there is none."""
    import warnings

    from engine.devices import load_device

    try:
        return load_device(name).name
    except SettingsError:
        warnings.warn(
            f"{name} is no device preset: estimates are those of {_DEFAULT_DEVICE}, times are measured. --device names another.",
            stacklevel=2,
        )
        return _DEFAULT_DEVICE


def _options(args: argparse.Namespace, device: str) -> RunOptions:
    from engine.gpu.run import RunOptions
    from engine.gpu.sampling import Sampling

    return RunOptions(
        torch_device=device,
        dtype=args.dtype,
        random_weights=args.random_weights,
        attention=args.attention,
        kv_layout=args.kv_layout,
        prompts=args.prompts,
        outputs=args.outputs,
        sampling=Sampling(args.temperature, args.top_p, args.top_k, args.seed or 0),
        stop_at_eos=args.stop_at_eos,
        blocks=args.blocks,
        cuda_graphs=not args.no_cuda_graphs,
    )


def _plain(result: RunResult) -> dict[str, Any]:
    import dataclasses

    return {
        k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(result).items()
    }


def _print_result(result: RunResult) -> None:
    print(
        f"{result.status}: {result.num_requests:,} requests{refused_words(result.num_refused, result.why_refused)}, {result.num_steps:,} steps, {result.num_preemptions:,} preemptions, "
        f"{result.duration_s:,.1f} s measured (preparation {result.load_s:,.1f} s, recording {100 * result.recording_s / max(result.wall_s, 1e-9):.2f} % of the run)"
    )
    print_unfinished(result.status, result.num_unfinished)
    if result.num_refused:
        print(
            f"note: refused requests could never run. What would let them: python -m analyzer diagnose {result.path}"
        )
    print(f"recording: {result.path}  (python -m analyzer summary {result.path})")
