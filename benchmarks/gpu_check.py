"""Everything about the torch engine that only a GPU can show, in one call and one table.

    python benchmarks/gpu_check.py [--out DIR] [--minutes 8] [--only SECTION,...]
    python benchmarks/gpu_check.py --device cpu --quick        the script itself, small, on a CPU

Needs one card, torch and triton; the last two sections run the engine and also need numba, pyarrow and
polars, and are left out by name where these are not there. Sections have a time each, and one that
fails becomes a row. The table goes to --out as results.json and results.csv, with the recordings and the
device file. Exit code 1 if a result is wrong, a section failed, or a target was missed.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import gpu_check_attention as attention  # noqa: E402
import gpu_check_copies as copies  # noqa: E402
import gpu_check_model as model  # noqa: E402
import gpu_check_runs as runs  # noqa: E402
import torch  # noqa: E402
from gpu_check_table import FAILED, MISSED, SKIPPED, Check, heading  # noqa: E402

# Name, seconds, what it does. Longer ones come later, so that the short ones are never left out.
SECTIONS = (
    ("device copy", 15, attention.device_copy),
    ("link", 25, copies.link),
    ("attention", 100, attention.correctness),
    ("decode bandwidth", 60, attention.bandwidth),
    ("swap", 45, copies.swap),
    ("copy beside steps", 60, model.inflation),
    ("recompute or swap", 75, model.crossover),
    ("recordings", 150, runs.recordings),
    ("calibration", 130, runs.calibration),
)


def main(arguments: list[str] | None = None) -> int:
    args = _arguments(arguments)
    began = time.perf_counter()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} finds no CUDA device. --device cpu --quick tries the script."
        )
        return 1
    check = Check(device, args.quick, out, began + 60.0 * args.minutes)
    (out / "faults.txt").unlink(missing_ok=True)
    check.facts.update(facts(device))
    print(", ".join(f"{k} {v}" for k, v in check.facts.items()))
    print(heading())
    runs.start_compiling(check)
    try:
        for name, budget_s, run in SECTIONS:
            if args.only and name not in args.only:
                continue
            if name == "recordings":
                model.release(check)
            # A quick run may have to compile the scheduler first, on whatever CPU there is.
            check.section(name, budget_s * (10 if args.quick else 1), run)
    finally:
        runs.stop_compiling(check)
        check.facts["minutes"] = round((time.perf_counter() - began) / 60.0, 2)
        check.save()
    return summary(check)


def summary(check: Check) -> int:
    """Print the counts of verdicts and the rows that are not well; returns the exit code."""
    bad = [r for r in check.rows if r.verdict in (FAILED, MISSED)]
    skipped = [r for r in check.rows if r.verdict == SKIPPED]
    print(f"\n{len(check.rows)} rows in {check.facts['minutes']} minutes: {len(bad)} failed or missed, "
          f"{len(skipped)} skipped. {check.out / 'results.json'}")  # fmt: skip
    for row in bad:
        print(f"  {row.verdict}: {row.section}, {row.case or row.note}")
    return 1 if bad else 0


def facts(device: torch.device) -> dict[str, object]:
    """What the figures were measured on."""
    known: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": "cpu",
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        known |= {"device": card.name, "memory_gib": round(card.total_memory / 2**30, 1)}
        known["capability"] = f"{card.major}.{card.minor}"
    try:
        import triton

        known["triton"] = triton.__version__
    except ImportError:
        known["triton"] = None
    return known


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None,
        epilog=f"sections: {', '.join(name for name, _, _ in SECTIONS)}",
    )
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, nothing held to a target"
    )
    parser.add_argument("--out", default="gpu-check", metavar="DIR", help="where results go")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for everything (8)")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        metavar="SECTION,...",
        help="these sections",
    )
    args = parser.parse_args(arguments)
    if torch.device(args.device).type == "cpu" and not args.quick:
        parser.error("on a CPU only --quick makes sense: it tries the script, not the machine")
    unknown = set(args.only or ()) - {name for name, _, _ in SECTIONS}
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; {parser.epilog}")
    return args


if __name__ == "__main__":
    sys.exit(main())
