"""Command line of the engine: python -m engine simulate TRACE --out DIR.

It turns flags into settings and a trace into a recording; flag names are vLLM's where vLLM has the
flag. Every user error is one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import VERSION
from engine.calibrate_command import add_calibrate_parser
from engine.flags import (
    add_engine_flags,
    add_machine_flags,
    add_record_flags,
    add_swap_flags,
    add_trace_flags,
    read_settings,
    read_workload,
)
from engine.progress import note_compiling, print_notes, print_unfinished, progress_bar
from engine.run_command import add_run_parser
from engine.sweep_command import add_sweep_parser
from traces.errors import InvariantError, KVReplayError, RecordingError, SettingsError

if TYPE_CHECKING:
    from engine.config import EngineSettings
    from engine.recorded_times import RecordedTimes
    from traces.recording import Recording
    from traces.workload import Workload

EXIT_USER_ERROR = 2


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
    add_trace_flags(sim.add_argument_group("trace"))
    add_engine_flags(sim.add_argument_group("engine (vLLM's names)"))
    add_swap_flags(sim.add_argument_group("preemption"))
    add_machine_flags(sim.add_argument_group("model and machine"))
    add_record_flags(sim.add_argument_group("equality with vLLM"))
    sim.set_defaults(run=simulate_command)
    again = commands.add_parser(
        "replay",
        help="run the requests of a recording again, under its settings or others",
        description="Run the requests of a recording again, under the settings it was made with; flags change them.",
    )
    again.add_argument("recording", help="folder or zip of a recording, from a live vLLM too")
    again.add_argument("--out", help="directory for the new recording")
    again.add_argument(
        "--check",
        action="store_true",
        help="hold the replay against the recording: say that all is equal, or the first difference (exit code 1); --out is not needed",
    )
    again.add_argument(
        "--overwrite", action="store_true", help="replace a recording that is in --out"
    )
    again.add_argument("--json", action="store_true", help="print the result as JSON")
    add_engine_flags(again.add_argument_group("engine (vLLM's names)"))
    add_swap_flags(again.add_argument_group("preemption"))
    add_machine_flags(again.add_argument_group("model and machine"))
    add_record_flags(
        again.add_argument_group("equality with vLLM"),
        ("modelled", "step", "latency", "measured"),
    )
    again.set_defaults(run=replay_command)
    add_run_parser(commands)
    add_calibrate_parser(commands)
    add_sweep_parser(commands)
    warm = commands.add_parser(
        "warm-up", help="compile the core now instead of at the first run"
    )
    warm.set_defaults(run=warm_up_command)
    return parser


def simulate_command(args: argparse.Namespace) -> int:
    """Run `simulate`; returns the exit code."""
    from engine.start_check import start_note

    settings = read_settings(args)
    if args.decisions and any(
        Path(args.decisions).resolve() == Path(t).resolve() for t in args.trace
    ):
        raise SettingsError(
            f"--decisions {args.decisions} is the trace itself. Give another file."
        )
    workload = read_workload(args)
    code = _simulate(args, workload, settings)
    if note := start_note(settings, workload.concurrency):
        print(f"note: {note}", file=sys.stderr)
    return code


def replay_command(args: argparse.Namespace) -> int:
    """Run `replay`; returns the exit code."""
    from engine.recorded_times import RecordedTimes
    from engine.replay import refuse_inside, settings_of
    from traces.recording import open_recording
    from traces.replay import workload_of

    if args.out is None and not args.check:
        raise SettingsError("--out DIR is missing: where the new recording goes.")
    with open_recording(args.recording) as recording:
        for flag in ("out", "decisions"):
            refuse_inside(recording, args.recording, f"--{flag}", getattr(args, flag))
        asked = {"model": args.model, "preemption_mode": args.preemption_mode}
        given = {name: value for name, value in asked.items() if value}
        if recording.meta.clock == "measured":
            given["clock"] = "modelled"  # unless --clock says otherwise
        settings = read_settings(args, settings_of(recording.meta, **given))
        if settings.compat and not args.compat:
            warnings.warn(
                f"known faults of {settings.compat} are replayed too, as the recording is from it: --compat none mends them",
                stacklevel=1,
            )
        times = RecordedTimes(recording) if settings.clock == "measured" else None
        workload = workload_of(recording, as_it_ended=times is not None)
        if args.check:
            return _check_replay(args, recording, workload, settings, times)
        return _simulate(args, workload, settings, times)


def _check_replay(
    args: argparse.Namespace,
    recording: Recording,
    workload: Workload,
    settings: EngineSettings,
    times: RecordedTimes | None,
) -> int:
    """Replay and say whether it came out as recorded; returns 0 if it did, 1 if not."""
    from engine.replay import compare
    from engine.simulator import simulate
    from traces.recording import open_recording

    if times is None and recording.meta.clock == "measured":
        raise SettingsError(
            "--check needs the recorded times, as these were measured: give --clock measured."
        )
    if times is None and recording.status != "completed":
        raise SettingsError(
            f"--check of a run that did not complete ({recording.status}) needs measured times, and these are {recording.meta.clock}. Leave --check away."
        )
    if args.decisions:
        raise SettingsError("--check writes no log of decisions: leave --decisions away.")
    blocks = args.blocks or recording.blocks is not None
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as temporary:
        out = args.out or str(Path(temporary) / "replay")
        refused = None
        try:
            simulate(
                workload, settings, out, overwrite=args.overwrite, blocks=blocks, times=times
            )
        except RecordingError as error:
            if times is None or not times.differs:
                raise
            refused = str(error)  # what was decided until then shows where it began
        with open_recording(out) as again:
            found = compare(recording, again)
    difference = found.difference or refused
    if args.json:
        print(json.dumps({**dataclasses.asdict(found), "difference": difference}))
        return int(difference is not None)
    print_notes(workload)
    print(found if found.difference or not refused else f"different: {refused}")
    return int(difference is not None)


def _simulate(
    args: argparse.Namespace,
    workload: Workload,
    settings: EngineSettings,
    times: RecordedTimes | None = None,
) -> int:
    """Run, record and print what came of it; returns the exit code."""
    from engine.config import resolve

    note_compiling()
    if args.decisions:
        from engine.decisions import write_decisions

        status = write_decisions(
            workload,
            settings,
            args.out,
            args.decisions,
            overwrite=args.overwrite,
            blocks=args.blocks,
            times=times,
        )
        result: dict[str, Any] = {
            "out": args.out,
            "status": status,
            "decisions": args.decisions,
        }
    else:
        from engine.simulator import simulate

        with progress_bar("simulating", sys.stderr.isatty() and not args.json) as show:
            done = simulate(
                workload,
                settings,
                args.out,
                progress=show,
                overwrite=args.overwrite,
                blocks=args.blocks,
                times=times,
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
        run = resolve(settings, concurrency=workload.concurrency)
        machine = f"{run.model.name} on {run.device.name}, {run.pool_blocks:,} KV blocks of {settings.block_size:,} tokens"
        _print_result(result, workload, machine)
    return 0


def warm_up_command(args: argparse.Namespace) -> int:
    """Compile the core into its cache; returns the exit code."""
    from engine.fleet import warm_up_router
    from engine.simulator import warm_up

    print(
        f"core compiled in {warm_up():.1f} s, the router of replicas in {warm_up_router():.1f} s"
    )
    return 0


def _print_result(result: dict[str, Any], workload: Workload, machine: str) -> None:
    print_notes(workload)
    line = f"{result['status']}: {len(workload):,} requests"
    if "num_steps" in result:
        line += (
            f", {result['num_steps']:,} steps, {result['num_preemptions']:,} preemptions, "
            f"{result['duration_s']:,.1f} s of engine time in {result['wall_s']:.1f} s"
        )
    print(line)
    print(f"with {machine}")
    print_unfinished(result["status"], result.get("num_unfinished", 0))
    print(f"recording: {result['out']}  (python -m analyzer summary {result['out']})")


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
    except KeyboardInterrupt as stop:
        print(str(stop) or "stopped; what was recorded so far is readable", file=sys.stderr)
        return int(getattr(stop, "exit_code", 130))
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
