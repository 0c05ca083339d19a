"""The command `calibrate`: recordings to a device file."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.calibrate import Calibration


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
    fit.add_argument(
        "--overwrite", action="store_true", help="replace an older device file at --out"
    )
    fit.add_argument("--json", action="store_true", help="print the report as JSON")
    fit.set_defaults(run=calibrate_command)


def same_types(done: Calibration) -> list[str]:
    """How to simulate the recorded runs themselves: with their types, where these are not the defaults."""
    said = []
    for weights, kv in dict.fromkeys(
        (s.setup.weight_dtype, s.setup.kv_dtype) for s in done.sources
    ):
        if (weights, kv) == ("auto", "auto"):
            continue
        names = ", ".join(
            s.label
            for s in done.sources
            if (s.setup.weight_dtype, s.setup.kv_dtype) == (weights, kv)
        )
        said.append(
            f"note: {names} ran with weights in {weights} and KV in {kv}: to simulate the same run, "
            f"add --weight-dtype {weights} --kv-dtype {kv}; without, simulate takes the model's 16-bit types."
        )
    return said


def calibrate_command(args: argparse.Namespace) -> int:
    """Run `calibrate`; returns the exit code."""
    from engine.calibrate import calibrate, check_out

    check_out(args.out, overwrite=args.overwrite)
    done = calibrate(args.recordings, base_device=args.base_device, name=args.name)
    path = done.write(args.out, overwrite=args.overwrite)
    if args.json:
        print(json.dumps(done.document()["calibration"]))
    else:
        print("\n".join(done.lines()))
        print(f"device file: {path}  (python -m engine simulate TRACE --device {path})")
        for line in same_types(done):
            print(line)
    return 0
