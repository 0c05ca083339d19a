"""The command `calibrate`: recordings to a device file."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_calibrate_parser(commands: Any) -> None:
    """Add `calibrate` to the engine's commands."""
    fit = commands.add_parser(
        "calibrate",
        help="fit a device file to recordings of the torch engine",
        description="Fit the numbers of the cost model to measured recordings; `simulate --device FILE` takes the result.",
    )
    fit.add_argument("recordings", nargs="+", help="folders or zips of `python -m engine run`")
    fit.add_argument("--out", required=True, metavar="DEVICE.json", help="device file to write")
    fit.add_argument("--name", help="of the new device (default: the base's, calibrated)")
    fit.add_argument(
        "--base-device",
        metavar="NAME|device.json",
        help="what is not fitted is taken from it (default: the device the recordings ran on)",
    )
    fit.add_argument("--json", action="store_true", help="print the report as JSON")
    fit.set_defaults(run=calibrate_command)


def calibrate_command(args: argparse.Namespace) -> int:
    """Run `calibrate`; returns the exit code."""
    from engine.calibrate import calibrate, check_out

    check_out(args.out)
    done = calibrate(args.recordings, base_device=args.base_device, name=args.name)
    path = done.write(args.out)
    if args.json:
        print(json.dumps(done.document()["calibration"]))
    else:
        print("\n".join(done.lines()))
        print(f"device file: {path}  (python -m engine simulate TRACE --device {path})")
    return 0
