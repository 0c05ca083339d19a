"""The command `sweep`: flags to a sweep. Whoever runs the cells is imported when they are to run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine.progress import before_recording
from traces.errors import SettingsError

if TYPE_CHECKING:
    from engine.sweep import Executor, SweepResult
    from engine.sweep_spec import SweepSpec

# Of the analyzer, which the engine does not know: each process looks it up by name.
FIGURES = "analyzer.sweep_figures:sweep_figures"
EXIT_FAILED = 1


def add_sweep_parser(commands: Any) -> None:
    """Add `sweep` to the engine's commands."""
    sweep = commands.add_parser(
        "sweep",
        help="simulate traces x settings x seeds and write one table of the results",
        description="Simulate every combination of traces, settings and seeds and write one Parquet table, a row a combination (a cell). The same command again goes on where it stopped. See docs/sweeps.md.",
    )
    sweep.add_argument(
        "what",
        nargs="*",
        metavar="SPEC.toml|TRACE",
        help="a sweep as a TOML file, or traces (or sample:NAME) for --grid",
    )
    sweep.add_argument("--out", required=True, help="directory for the table and what is kept")
    what = sweep.add_argument_group("what to vary")
    what.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="NAME=V1,V2,...",
        help="vary a setting; given more than once, all combinations. A+B=1+2,3+4 varies two together",
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of every cell; given more than once",
    )
    what.add_argument(
        "--seeds", metavar="0,1,2|0-9", help="of what is drawn: samples, synthetic requests, Poisson arrivals (default 0)"
    )  # fmt: skip
    what.add_argument(
        "--bound",
        action="append",
        default=[],
        metavar="METRIC=S",
        help="most seconds of ttft_s, tpot_s, e2e_s, queue_s or max_itl_s, for goodput",
    )
    how = sweep.add_argument_group("how to run it")
    how.add_argument(
        "--jobs", type=int, metavar="N", help="processes on this machine (default: its CPUs)"
    )
    how.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run on an existing Ray cluster: HOST:PORT, ray://HOST:PORT or auto (pip install -r requirements-ray.txt)",
    )
    how.add_argument(
        "--ray-share",
        choices=("store", "path"),
        default="store",
        help="how traces and recordings travel: through Ray's object store (default), or by paths that all nodes see",
    )
    how.add_argument(
        "--ray-ship-code",
        action="store_true",
        help="send this project's code to the nodes (default: it lies at the same path there)",
    )
    how.add_argument("--keep", action="store_true", help="keep the recording of every cell")
    how.add_argument(
        "--retries", type=int, default=2, metavar="N", help="more tries of a cell that fails (default 2)"
    )  # fmt: skip
    how.add_argument(
        "--max-cells", type=int, default=10_000, metavar="N", help="refuse to run more cells than that (default 10,000)"
    )  # fmt: skip
    how.add_argument("--yes", action="store_true", help="run however many cells there are")
    how.add_argument(
        "--extend", action="store_true", help="go on in a directory that holds another sweep; cells that both have are not run again"
    )  # fmt: skip
    how.add_argument("--json", action="store_true", help="print the result as JSON")
    sweep.set_defaults(run=sweep_command)


def sweep_command(args: argparse.Namespace) -> int:
    """Run `sweep`; returns the exit code: 1 where cells failed."""
    _check_numbers(args)
    with before_recording():
        spec = _spec(args)
        _check_count(spec, args)
        from engine.sweep import run_sweep
    try:
        with _sigterm_stops():
            result = run_sweep(
                spec,
                args.out,
                lambda s: _executor(s, args),
                figures=FIGURES,
                keep=args.keep,
                retries=args.retries,
                extend=args.extend,
                say=_say,
            )
    except KeyboardInterrupt as stop:
        raise type(stop)(
            f"stopped; cells that ended are in {args.out}/sweep.parquet, and the same command goes on from there"
        ) from None
    _print(result, args.json)
    return EXIT_FAILED if result.num_failed else 0


class _Terminated(KeyboardInterrupt):
    """SIGTERM came. exit_code: what a shell expects of a process that it ended."""

    exit_code = 128 + signal.SIGTERM


@contextmanager
def _sigterm_stops() -> Iterator[None]:
    """Let SIGTERM stop a sweep as Ctrl-C does, where signals can be had (the main thread)."""

    def stop(number: int, frame: object) -> None:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check_numbers(args: argparse.Namespace) -> None:
    for flag, value, least in (
        ("--jobs", args.jobs, 1),
        ("--retries", args.retries, 0),
        ("--max-cells", args.max_cells, 1),
    ):
        if value is not None and value < least:
            raise SettingsError(f"{flag} must be at least {least}, not {value}.")
    if args.jobs is not None and args.ray is not None:
        raise SettingsError(
            "--jobs is for processes on this machine. Leave it away with --ray."
        )


def _spec(args: argparse.Namespace) -> SweepSpec:
    """The sweep of the file, with what the flags add to it; or of the flags alone."""
    from engine import sweep_spec as specs

    files = [w for w in args.what if w.lower().endswith(".toml")]
    traces = [specs.trace_of(w) for w in args.what if w not in files]
    if len(files) > 1:
        raise SettingsError(f"two specs are given, {files[0]} and {files[1]}. Give one.")
    if not args.what:
        raise SettingsError(
            "nothing to sweep: give SPEC.toml, or traces and --grid, such as sample:chat --grid kv_tokens=24000,41408."
        )
    if not files and not args.grid:
        raise SettingsError(
            "--grid is missing: what to vary, such as --grid kv_tokens=24000,41408 --grid preemption=recompute,swap."
        )
    base = specs.read_spec(files[0]) if files else None
    axes = [specs.parse_grid(g) for g in args.grid]
    settings = dict(specs.parse_setting(s) for s in args.set)
    bounds = dict(specs.parse_bound(b) for b in args.bound)
    seeds: Sequence[int] = specs.parse_seeds(args.seeds) if args.seeds else (0,)
    if base is None:
        return specs.make_spec(traces, axes, seeds, settings, bounds)
    return specs.make_spec(
        [*base.traces, *traces],
        [*base.axes, *axes],
        seeds if args.seeds else base.seeds,
        {**base.settings, **settings},
        {**base.bounds, **bounds},
        base.name,
    )


def _check_count(spec: SweepSpec, args: argparse.Namespace) -> None:
    """Refuse a sweep that is larger than was meant."""
    if spec.num_cells > args.max_cells and not args.yes:
        raise SettingsError(
            f"{spec.say_count()}, more than the {args.max_cells:,} that are run without asking. "
            "Leave values out, raise --max-cells, or give --yes to run them all."
        )


def _executor(spec: SweepSpec, args: argparse.Namespace) -> Executor:
    if args.ray is not None:
        from engine.sweep_ray import RayTasks

        return RayTasks(args.ray, spec, share=args.ray_share, ship_code=args.ray_ship_code)
    from engine.sweep_workers import Processes, usable_cpus

    _compile_once()
    return Processes(min(args.jobs or usable_cpus(), spec.num_cells))


def _compile_once() -> None:
    """Compile the core before the processes start, so that they do not all compile it."""
    from engine.core.jit import cache_folder

    if not cache_folder().exists():
        from engine.simulator import warm_up

        _say("compiling the simulator, once for this machine: a minute or two")
        warm_up()


def _print(result: SweepResult, as_json: bool) -> None:
    if as_json:
        said = dataclasses.asdict(result)
        print(json.dumps({**said, "table": str(result.table)}))
        return
    parts = [f"{result.num_run:,} run in {result.wall_s:,.1f} s"]
    if result.num_before:
        parts.append(f"{result.num_before:,} from before")
    for num, word in ((result.num_refused, "refused"), (result.num_failed, "failed")):
        if num:
            parts.append(f"{num:,} {word}")
    print(
        f"{result.num_cells:,} cell{'' if result.num_cells == 1 else 's'}: {', '.join(parts)}"
    )
    for where, why in result.failures:
        print(f"failed: {where}: {why}")
    if result.num_failed:
        print("The same command runs failed cells again.")
    print(f"table: {result.table}  (open it on the page Sweeps)")
