"""What `python -m analyzer validate` takes. What it does is imported when it is run (validate_command.py),
so that other commands start without it."""

from __future__ import annotations

import argparse


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m analyzer`."""
    parser = commands.add_parser(
        "validate",
        help="how far the simulator is from a recorded run, at the run's own settings",
        description="Simulates the requests of a measured recording under its settings and holds blocks in use, preemptions, "
        "throughput, TTFT, TPOT and E2E of both sides against each other. See docs/validation.md.",
    )
    parser.add_argument(
        "recording", help="folder or zip of `engine run`, or of a recorder in a vLLM server"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="fit a device to the recording first, and show errors on the half that the fit has not seen",
    )
    parser.add_argument(
        "--device", metavar="NAME|FILE", help="simulate on this device, not on the recorded one"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, and nothing else, to stdout"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from analyzer.validate_command import run

    return run(arguments)
