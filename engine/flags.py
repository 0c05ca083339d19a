"""Flags that several commands share, and what they say: a workload and settings.

Flag names are vLLM's where vLLM has the flag. It runs nothing.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from traces.errors import SettingsError

if TYPE_CHECKING:
    from engine.config import EngineSettings
    from traces.workload import Workload


def _window(text: str) -> tuple[float, float | None]:
    start, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(start or 0.0), float(end) if end else None
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not START:END in seconds, such as 60:120 or 60:"
        ) from None


def _override(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER") from None


def _renamed(text: str) -> tuple[str, str]:
    role, equals, column = text.partition("=")
    if not equals or not column:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROLE=COLUMN, such as arrival_s=ts")
    return role, column


def add_trace_flags(group: Any) -> None:
    group.add_argument(
        "--window", type=_window, metavar="A:B", help="only arrivals in [A, B) s (default all)"
    )
    group.add_argument(
        "--rate-scale",
        type=float,
        default=1.0,
        metavar="F",
        help="arrive F times as fast (default 1)",
    )
    group.add_argument(
        "--spread-ticks",
        action="store_true",
        help="spread arrivals that share a clock tick within it",
    )
    group.add_argument(
        "--max-requests", type=int, metavar="N", help="only the first N requests (default all)"
    )
    group.add_argument(
        "--map",
        type=_renamed,
        action="append",
        default=[],
        metavar="ROLE=COLUMN",
        help="column of a table, where the guess is wrong",
    )
    group.add_argument(
        "--time-unit",
        choices=("s", "ms", "us", "ns"),
        help="unit of the trace's times, where the guess is wrong",
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="of everything that is drawn (default 0)"
    )


def add_engine_flags(group: Any) -> None:
    group.add_argument(
        "--num-gpu-blocks",
        type=int,
        metavar="N",
        help="pool in blocks, null block included (default: by --gpu-memory-utilization)",
    )
    group.add_argument("--kv-tokens", type=int, metavar="N", help="pool in tokens instead")
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="F",
        help="pool: what this share of the device's memory leaves (default 0.92)",
    )
    for flag, text in (
        ("--block-size", "tokens of a block (default 16)"),
        ("--max-num-seqs", "most requests of a step (default 256; 1,024 on large devices)"),
        (
            "--max-num-batched-tokens",
            "most tokens of a step (default 2,048; 8,192 on large devices)",
        ),
        ("--max-model-len", "most tokens of a request (default: the model's)"),
    ):
        group.add_argument(flag, type=int, metavar="N", help=text)
    group.add_argument(
        "--policy", choices=("fcfs", "priority"), help="order of the queue (default fcfs)"
    )
    group.add_argument(
        "--watermark",
        type=float,
        metavar="F",
        help="share of the pool that stays free when a request is admitted (default 0)",
    )
    group.add_argument(
        "--long-prefill-token-threshold",
        type=int,
        metavar="N",
        help="most tokens of one prompt in a step (default 0: no limit)",
    )
    for flag, dest, text in (
        (
            "--no-prefix-caching",
            "enable_prefix_caching",
            "share no blocks of equal beginnings (default: share)",
        ),
        (
            "--no-chunked-prefill",
            "enable_chunked_prefill",
            "prompts are computed whole (default: in chunks)",
        ),
        (
            "--no-reserve-full-isl",
            "scheduler_reserve_full_isl",
            "admit a request when its first chunk fits (default: when its whole prompt does)",
        ),
    ):
        group.add_argument(flag, dest=dest, action="store_const", const=False, help=text)
    group.add_argument(
        "--async-scheduling",
        action="store_const",
        const=True,
        help="decide a step while the one before runs (default: in turn)",
    )


def add_swap_flags(group: Any) -> None:
    group.add_argument(
        "--preemption",
        dest="preemption_mode",
        choices=("recompute", "swap", "offload", "cheapest"),
        help="what becomes of a preempted request's KV (default recompute)",
    )
    group.add_argument(
        "--victim",
        choices=("last", "priority", "fewest-computed", "most-blocks"),
        help="who is preempted (default: last admitted; with --policy priority the least important)",
    )
    group.add_argument(
        "--host-gib",
        type=float,
        metavar="F",
        help="host memory for swapped KV, or for the host cache of offload (default 16)",
    )
    group.add_argument(
        "--num-host-blocks", type=int, metavar="N", help="the same in blocks instead"
    )
    group.add_argument(
        "--copy-path",
        choices=("loop", "batch", "coalesced"),
        help="how blocks cross the link: one by one, in one call, or neighbours together (default coalesced)",
    )
    group.add_argument(
        "--copy-mode",
        choices=("blocking", "async"),
        help="whether a step waits for the copies of swaps (default blocking)",
    )
    group.add_argument(
        "--link-gb-per-s",
        type=float,
        metavar="F",
        help="speed of the host link each way, in 1e9 bytes/s (default: the device's)",
    )
    group.add_argument(
        "--offload-connector",
        choices=("native", "simple"),
        help="which of vLLM's connectors keeps the host cache (default native)",
    )
    group.add_argument(
        "--offload-all",
        dest="offload_prompt_only",
        action="store_const",
        const=False,
        help="native: store generated blocks too (vLLM's default is prompt blocks only)",
    )
    group.add_argument(
        "--lazy-offload",
        action="store_const",
        const=True,
        help="simple: store blocks only when they are about to be handed out",
    )


def add_machine_flags(group: Any, *, real: bool = False) -> None:
    """real: of a run with a real model, where these are what they are; its --model is elsewhere.

    The flags that cannot be set there are taken all the same, so that they are refused with a reason.
    """

    def of_simulation(text: str) -> str:
        return argparse.SUPPRESS if real else text

    if not real:
        group.add_argument(
            "--model",
            metavar="NAME|config.json",
            help="a known model, a Hugging Face directory, its config.json or a GGUF file (default llama-3.1-8b)",
        )
    group.add_argument(
        "--device",
        metavar="NAME|device.json",
        help="whose times the cost model estimates (default: the device that the run is on)"
        if real
        else "a known device or a device file (default h100-sxm)",
    )
    group.add_argument(
        "--tp",
        dest="tensor_parallel_size",
        type=int,
        metavar="N",
        help=of_simulation("number of devices that share each layer (default 1)"),
    )
    group.add_argument(
        "--pp",
        dest="pipeline_parallel_size",
        type=int,
        metavar="N",
        help=of_simulation("number of stages that the layers are dealt out to (default 1)"),
    )
    group.add_argument(
        "--kv-dtype",
        dest="kv_cache_dtype",
        metavar="auto|fp8|...",
        help=of_simulation("type of the KV cache (default auto: 16 bits)"),
    )
    group.add_argument(
        "--weight-dtype",
        metavar="auto|fp8|...",
        help=of_simulation("type of the weights (default auto: the model's)"),
    )
    group.add_argument(
        "--cost",
        type=_override,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override one parameter of the cost model; may be given more than once",
    )


def add_record_flags(
    group: Any, clocks: tuple[str, ...] = ("modelled", "step", "latency")
) -> None:
    group.add_argument(
        "--settings",
        metavar="FILE.json",
        help="settings from a file; flags given beside it win",
    )
    group.add_argument(
        "--clock",
        choices=clocks,
        help="how long steps take: by the cost model (modelled, the default), 1 each (step), linear in their work (latency), or as recorded (measured)"
        if "measured" in clocks
        else "how long steps take: by the cost model (modelled, the default), 1 each (step), or linear in their work (latency)",
    )
    group.add_argument("--blocks", action="store_true", help="record who held which block, too")
    group.add_argument(
        "--decisions", metavar="FILE.jsonl", help="one record a step with every decision"
    )
    group.add_argument(
        "--compat",
        choices=("vllm-0.26", "none"),
        help="keep that version's known faults, or mend them (the default but for replays of its recordings)",
    )


def read_settings(
    args: argparse.Namespace, base: EngineSettings | None = None
) -> EngineSettings:
    """EngineSettings from the settings file over `base`, with the flags that were given on top."""
    from engine.config import EngineSettings, settings_from_file

    names = {f.name for f in fields(EngineSettings)}
    given = {k: v for k, v in vars(args).items() if k in names and v is not None}
    if args.cost:
        given["cost_overrides"] = dict(args.cost)
    if given.get("compat") == "none":
        given["compat"] = None
    base = (
        settings_from_file(args.settings, base) if args.settings else base or EngineSettings()
    )
    if "kv_tokens" in given or "gpu_memory_utilization" in given:
        base = base.with_(num_gpu_blocks=None)
    settings = base.with_(**given)
    _warn_of_idle_flags(given, settings)
    return settings


def _warn_of_idle_flags(given: dict[str, Any], settings: EngineSettings) -> None:
    """Warn of flags of the host cache that change nothing under these settings."""
    connector = settings.offload_connector if settings.preemption_mode == "offload" else None
    for name, flag, needed in (
        ("offload_connector", "--offload-connector", ("native", "simple")),
        ("offload_prompt_only", "--offload-all", ("native",)),
        ("lazy_offload", "--lazy-offload", ("simple",)),
    ):
        if name in given and connector not in needed:
            why = f"the {connector} connector" if connector else "without --preemption offload"
            warnings.warn(
                f"{flag} changes nothing {'with ' if connector else ''}{why}", stacklevel=2
            )


def read_workload(args: argparse.Namespace) -> Workload:
    """The workload that the trace flags describe."""
    from traces.open import open_workload

    workload = open_workload(
        args.trace if len(args.trace) > 1 else args.trace[0],
        mapping=dict(args.map) or None,
        time_unit=args.time_unit,
    )
    if args.window:
        workload = workload.window(*args.window)
    if args.max_requests is not None:
        if args.max_requests < 1:
            raise SettingsError(f"--max-requests must be at least 1, not {args.max_requests}.")
        workload = workload.head(args.max_requests)
    workload = workload.scale_rate(args.rate_scale)
    return workload.spread_ticks(args.seed or 0) if args.spread_ticks else workload
