"""Command line of the engine: python -m engine simulate TRACE --out DIR.

It turns flags into settings and a trace into a recording; flag names are vLLM's where vLLM has the
flag. Every user error is one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import VERSION
from traces.errors import InvariantError, KVReplayError, SettingsError

if TYPE_CHECKING:
    from engine.config import EngineSettings
    from traces.workload import Workload

EXIT_USER_ERROR = 2


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


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    sim = commands.add_parser(
        "simulate",
        help="run a request trace through the scheduler and record it",
        description="Run a request trace through the scheduler on a virtual clock and record every step and event.",
    )
    sim.add_argument(
        "trace", nargs="+", help="request trace (see docs/formats.md), or sample:NAME"
    )
    sim.add_argument("--out", required=True, help="directory for the recording")
    sim.add_argument(
        "--overwrite", action="store_true", help="replace a recording that is in --out"
    )
    sim.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_trace_flags(sim.add_argument_group("trace"))
    _add_engine_flags(sim.add_argument_group("engine (vLLM's names)"))
    _add_swap_flags(sim.add_argument_group("preemption"))
    _add_machine_flags(sim.add_argument_group("model and machine"))
    _add_record_flags(sim.add_argument_group("equality with vLLM"))
    sim.set_defaults(run=simulate_command)
    again = commands.add_parser(
        "replay",
        help="run the requests of a recording again, under its settings or others",
        description="Run the requests of a recording again, under the settings it was made with; flags change them.",
    )
    again.add_argument("recording", help="folder or zip of a recording, from a live vLLM too")
    again.add_argument("--out", required=True, help="directory for the new recording")
    again.add_argument(
        "--overwrite", action="store_true", help="replace a recording that is in --out"
    )
    again.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_engine_flags(again.add_argument_group("engine (vLLM's names)"))
    _add_swap_flags(again.add_argument_group("preemption"))
    _add_machine_flags(again.add_argument_group("model and machine"))
    _add_record_flags(again.add_argument_group("equality with vLLM"))
    again.set_defaults(run=replay_command)
    warm = commands.add_parser(
        "warm-up", help="compile the core now instead of at the first run"
    )
    warm.set_defaults(run=warm_up_command)
    return parser


def _add_trace_flags(group: Any) -> None:
    group.add_argument(
        "--window", type=_window, metavar="A:B", help="only arrivals in [A, B) s"
    )
    group.add_argument(
        "--rate-scale", type=float, default=1.0, metavar="F", help="arrive F times as fast"
    )
    group.add_argument(
        "--spread-ticks",
        action="store_true",
        help="spread arrivals that share a clock tick within it",
    )
    group.add_argument(
        "--max-requests", type=int, metavar="N", help="only the first N requests"
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
    group.add_argument("--seed", type=int, metavar="N")


def _add_engine_flags(group: Any) -> None:
    group.add_argument(
        "--num-gpu-blocks", type=int, metavar="N", help="pool, null block included"
    )
    group.add_argument("--kv-tokens", type=int, metavar="N", help="pool in tokens")
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="F",
        help="pool from device memory (default 0.92)",
    )
    group.add_argument("--block-size", type=int, metavar="N")
    group.add_argument("--max-num-seqs", type=int, metavar="N")
    group.add_argument("--max-num-batched-tokens", type=int, metavar="N")
    group.add_argument("--max-model-len", type=int, metavar="N")
    group.add_argument("--policy", choices=("fcfs", "priority"))
    group.add_argument("--watermark", type=float, metavar="F")
    group.add_argument("--long-prefill-token-threshold", type=int, metavar="N")
    for flag, dest in (
        ("--no-prefix-caching", "enable_prefix_caching"),
        ("--no-chunked-prefill", "enable_chunked_prefill"),
        ("--no-reserve-full-isl", "scheduler_reserve_full_isl"),
    ):
        group.add_argument(flag, dest=dest, action="store_const", const=False)
    group.add_argument("--async-scheduling", action="store_const", const=True)


def _add_swap_flags(group: Any) -> None:
    group.add_argument(
        "--preemption",
        dest="preemption_mode",
        choices=("recompute", "swap", "offload", "cheapest"),
    )
    group.add_argument(
        "--victim", choices=("last", "priority", "fewest-computed", "most-blocks")
    )
    group.add_argument(
        "--host-gib",
        type=float,
        metavar="F",
        help="host memory for swapped KV, or for the host cache of offload (default 16)",
    )
    group.add_argument("--num-host-blocks", type=int, metavar="N", help="the same in blocks")
    group.add_argument("--copy-path", choices=("loop", "batch", "coalesced"))
    group.add_argument("--copy-mode", choices=("blocking", "async"))
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


def _add_machine_flags(group: Any) -> None:
    group.add_argument("--model", metavar="NAME|config.json")
    group.add_argument("--device", metavar="NAME|device.json")
    group.add_argument("--tp", dest="tensor_parallel_size", type=int, metavar="N")
    group.add_argument("--kv-dtype", dest="kv_cache_dtype", metavar="auto|fp8|...")
    group.add_argument("--weight-dtype", metavar="auto|fp8|...")
    group.add_argument(
        "--cost",
        type=_override,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override one parameter of the cost model",
    )


def _add_record_flags(group: Any) -> None:
    group.add_argument(
        "--settings",
        metavar="FILE.json",
        help="settings from a file; flags given beside it win",
    )
    group.add_argument("--clock", choices=("modelled", "step", "latency"))
    group.add_argument(
        "--decisions", metavar="FILE.jsonl", help="one record a step with every decision"
    )
    group.add_argument(
        "--compat",
        choices=("vllm-0.26", "none"),
        help="keep that version's known faults, or mend them (the default but for replays of its recordings)",
    )


_NOT_SETTINGS = (
    "command", "trace", "recording", "out", "overwrite", "json", "run", "window", "rate_scale", "spread_ticks",
    "max_requests", "map", "time_unit", "cost", "settings", "decisions",
)  # fmt: skip


def read_settings(
    args: argparse.Namespace, base: EngineSettings | None = None
) -> EngineSettings:
    """EngineSettings from the settings file over `base`, with the flags that were given on top."""
    from engine.config import EngineSettings, settings_from_file

    given = {k: v for k, v in vars(args).items() if k not in _NOT_SETTINGS and v is not None}
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


def simulate_command(args: argparse.Namespace) -> int:
    """Run `simulate`; returns the exit code."""
    settings = read_settings(args)
    if args.decisions and any(
        Path(args.decisions).resolve() == Path(t).resolve() for t in args.trace
    ):
        raise SettingsError(
            f"--decisions {args.decisions} is the trace itself. Give another file."
        )
    return _simulate(args, read_workload(args), settings)


def replay_command(args: argparse.Namespace) -> int:
    """Run `replay`; returns the exit code."""
    from engine.replay import settings_of
    from traces.recording import open_recording
    from traces.replay import workload_of

    with open_recording(args.recording) as recording:
        asked = {"model": args.model, "preemption_mode": args.preemption_mode}
        given = {name: value for name, value in asked.items() if value}
        settings = read_settings(args, settings_of(recording.meta, **given))
        if settings.compat and not args.compat:
            warnings.warn(
                f"known faults of {settings.compat} are replayed too, as the recording is from it: --compat none mends them",
                stacklevel=1,
            )
        return _simulate(args, workload_of(recording), settings)


def _simulate(args: argparse.Namespace, workload: Workload, settings: EngineSettings) -> int:
    """Run, record and print what came of it; returns the exit code."""
    if args.decisions:
        from engine.decisions import write_decisions

        status = write_decisions(
            workload, settings, args.out, args.decisions, overwrite=args.overwrite
        )
        result: dict[str, Any] = {
            "out": args.out,
            "status": status,
            "decisions": args.decisions,
        }
    else:
        from engine.simulator import simulate

        with _progress(sys.stderr.isatty() and not args.json) as show:
            done = simulate(
                workload, settings, args.out, progress=show, overwrite=args.overwrite
            )
        result = {
            "out": str(done.path),
            "status": done.status,
            "num_requests": done.num_requests,
            "num_unfinished": done.num_unfinished,
            "num_steps": done.num_steps,
            "num_preemptions": done.num_preemptions,
            "duration_s": done.duration_s,
            "wall_s": done.wall_s,
        }
    if args.json:
        print(json.dumps(result))
    else:
        _print_result(result, workload)
    return 0


def warm_up_command(args: argparse.Namespace) -> int:
    """Compile the core into its cache; returns the exit code."""
    from engine.simulator import warm_up

    print(f"core compiled in {warm_up():.1f} s")
    return 0


_WHY_UNFINISHED = {
    "stalled": "Nothing more could be scheduled: the head of the queue can never fit. Without --compat such requests are refused with the reason.",
    "livelock": "No new token came for livelock_steps steps: requests preempt themselves for ever. Give a larger pool, or leave --compat away.",
    "max_steps": "The run was cut at max_steps.",
}


def _print_result(result: dict[str, Any], workload: Workload) -> None:
    for note in workload.report.notes:
        print(f"note: {note}")
    for reason, rows in workload.report.dropped.items():
        print(f"note: {rows:,} rows set aside: {reason}")
    line = f"{result['status']}: {len(workload):,} requests"
    if "num_steps" in result:
        line += (
            f", {result['num_steps']:,} steps, {result['num_preemptions']:,} preemptions, "
            f"{result['duration_s']:,.1f} s of engine time in {result['wall_s']:.1f} s"
        )
    print(line)
    if result.get("num_unfinished"):
        print(
            f"note: {result['num_unfinished']:,} requests never finished. {_WHY_UNFINISHED.get(result['status'], '')}"
        )
    print(f"recording: {result['out']}  (python -m analyzer summary {result['out']})")


class _progress:
    """A progress bar on a terminal; elsewhere nothing."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def __enter__(self) -> Callable[[Any], None] | None:
        if not self._wanted:
            return None
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("simulating"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} % of requests, {task.fields[steps]:,} steps"),
            TimeRemainingColumn(),
            transient=True,
        )
        self._bar.start()
        task = self._bar.add_task("simulating", total=1.0, steps=0)
        return lambda p: self._bar.update(task, completed=p.fraction_finished, steps=p.steps)

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            self._bar.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run; a user's mistake is one sentence and exit code 2."""
    args = build_parser().parse_args(argv)
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        return int(args.run(args))
    except KVReplayError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except InvariantError as error:
        print(f"internal error, please report: {error}", file=sys.stderr)
        return 3
    except (OSError, OverflowError, ValueError, MemoryError) as error:
        what = str(error) or type(error).__name__
        print(f"error: {what}. Check the paths and numbers given.", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("stopped; what was recorded so far is readable", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
