"""What long recordings cost on the server: 20 thousand, a million and ten million steps a run.

    python benchmarks/long_recordings.py [--write] [--folder DIR] [--copies 1 52 520]

Pairs made of the bundled chat recordings, again and again one after the other (`big_recording.py`).
Each line is a process of its own:

- first opening: every row of both runs checked, tables kept; then all rows of the timeline drawn;
- opened again: the same of what was kept; and a zoom to a tenth and to a thousandth, on places that were
  not looked at before;
- worked out: preemptions, figures and the comparison, which the page leaves to a job (for very long runs
  in a process of its own), and once more from what was kept.

Wall and CPU seconds, those of a process that was started included; bytes of the figure; memory of the
process above what it has when all is imported: anonymous memory at most (sampled every 50 ms) and at the
end, and pages of mapped files at the end, which the system takes back when it needs them; and the most
anonymous memory of the process that was started.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

from analyzer import figures  # noqa: E402
from analyzer.aligned import Aligned  # noqa: E402
from analyzer.look import LIGHT, Side  # noqa: E402
from analyzer.run import Run  # noqa: E402
from analyzer.timeline_rows import ROWS, timeline_rows  # noqa: E402
from analyzer.work_out import is_for_apart, work_out_apart  # noqa: E402
from analyzer.work_out import work_out as work_out_here  # noqa: E402
from benchmarks.big_recording import make_big  # noqa: E402
from traces.mapped_tables import Keep  # noqa: E402
from traces.recording import open_recording  # noqa: E402

SAMPLES = ROOT / "traces" / "samples" / "recordings"
COPIES = (1, 52, 520)
SIDES: tuple[Side, ...] = ("A", "B")
MODES = ("recompute", "swap")


def memory(process: str = "self") -> tuple[int, int]:
    """Anonymous bytes of a process, and bytes of files that are mapped into it."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kib["Anonymous"] * 1024, (kib["Rss"] - kib["Anonymous"]) * 1024


def children() -> list[str]:
    """Processes that this one has started."""
    lists = Path("/proc/self/task").glob("*/children")
    return [process for path in lists for process in path.read_text().split()]


def _cpu_s() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    took = os.times()
    return took.user + took.system + took.children_user + took.children_system


class Watched:
    """Takes the time of one thing after the other, and the most anonymous memory meanwhile."""

    def __init__(self) -> None:
        self.idle, self.idle_mapped = memory()
        self.most = self.idle
        self.most_apart = 0
        self.found: dict[str, Any] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.most = max(self.most, memory()[0])
            for process in children():
                with suppress(OSError, IndexError, KeyError):  # it has ended
                    self.most_apart = max(self.most_apart, memory(process)[0])

    def take(self, name: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), _cpu_s()
        result = work()
        self.found[name] = (time.perf_counter() - wall, _cpu_s() - cpu)
        return result

    def finish(self) -> dict[str, Any]:
        self._stop.set()
        self._thread.join()
        anonymous, mapped = memory()
        self.found["most"] = max(self.most, anonymous) - self.idle
        self.found["apart"] = self.most_apart
        self.found["end"] = anonymous - self.idle
        self.found["mapped"] = mapped - self.idle_mapped
        return self.found


def opened(folders: list[Path], kept: Path) -> dict[Side, Run]:
    return {
        side: Run(f"file:{side}", open_recording(path, keep=Keep(kept / side)), "1")
        for side, path in zip(SIDES, folders, strict=True)
    }


def figure(pair: Aligned, shown: tuple[float, float]) -> int:
    """Draw all rows over that part of the axis; bytes of the figure."""
    rows = timeline_rows(pair, shown, list(ROWS))
    return len(figures.timeline(rows, pair.axis(shown), pair.names, LIGHT).to_json())


def draw(folders: list[Path], kept: Path) -> dict[str, Any]:
    """Open both runs, draw the whole and two zooms."""
    watched = Watched()
    runs = watched.take("open", lambda: opened(folders, kept))
    pair = watched.take("align", lambda: Aligned(runs, "time"))
    watched.found["bytes"] = watched.take("first", lambda: figure(pair, pair.full))
    end = pair.full[1]
    for name, start, share in (("tenth", 0.31, 0.1), ("thousandth", 0.77, 0.001)):
        shown = (end * start, end * (start + share))
        watched.found[f"{name} bytes"] = watched.take(name, lambda s=shown: figure(pair, s))
    return {**watched.finish(), "steps": runs["A"].steps.height}


def work_out(folders: list[Path], kept: Path) -> dict[str, Any]:
    """Everything that the page's job works out."""
    watched = Watched()
    runs = opened(folders, kept)
    work = work_out_apart if is_for_apart(runs) else work_out_here
    watched.take("made", lambda: work(runs, lambda *_: None, lambda: False))
    watched.take("kept", lambda: work_out_here(runs, lambda *_: None, lambda: False))
    return {**watched.finish(), "steps": runs["A"].steps.height}


def in_a_process(what: str, folders: list[Path], kept: Path) -> dict[str, Any]:
    command = [
        sys.executable,
        str(Path(__file__)),
        "--only",
        what,
        str(kept),
        *map(str, folders),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def seconds(of: Any, *names: str) -> str:
    """Wall and CPU seconds of these, summed."""
    wall, cpu = (sum(of[name][i] for name in names) for i in (0, 1))
    return f"{wall:,.2f} ({cpu:,.2f})"


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f}"


def measure(
    folder: Path, copies: tuple[int, ...], draw_only: bool
) -> tuple[list[str], list[str]]:
    """Rows of the two tables."""
    drawn, worked = [], []
    for num in copies:
        folders = [folder / f"{mode}-{num}" for mode in MODES]
        for mode, path in zip(MODES, folders, strict=True):
            if num == 1:
                path.exists() or path.symlink_to(SAMPLES / f"chat-{mode}")
            elif not path.exists():
                make_big(SAMPLES / f"chat-{mode}", path, num)
        size = sum(p.stat().st_size for f in folders for p in f.rglob("*") if p.is_file())
        with tempfile.TemporaryDirectory(dir=folder) as kept:
            for what in ("first opening", "opened again"):
                found = in_a_process("draw", folders, Path(kept))
                cells = [
                    f"{found['steps']:,}",
                    mib(size),
                    what,
                    seconds(found, "open"),
                    seconds(found, "align", "first"),
                    seconds(found, "tenth"),
                    seconds(found, "thousandth"),
                    f"{found['bytes'] / 1e3:,.0f} / {found['tenth bytes'] / 1e3:,.0f}",
                    f"{mib(found['most'])} / {mib(found['end'])}",
                    mib(found["mapped"]),
                ]
                drawn.append(f"| {' | '.join(cells)} |")
                print(drawn[-1], flush=True)
            if draw_only:
                continue
            found = in_a_process("work", folders, Path(kept))
            disk = sum(p.stat().st_blocks * 512 for p in Path(kept).rglob("*") if p.is_file())
            cells = [
                f"{found['steps']:,}",
                seconds(found, "made"),
                seconds(found, "kept"),
                f"{mib(found['most'])} / {mib(found['end'])}",
                mib(found["apart"]),
                mib(disk),
            ]
            worked.append(f"| {' | '.join(cells)} |")
            print(worked[-1], flush=True)
    return drawn, worked


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write a dated file of results")
    parser.add_argument("--folder", type=Path, help="where the recordings lie or are made")
    parser.add_argument("--copies", type=int, nargs="+", default=list(COPIES))
    parser.add_argument(
        "--draw-only", action="store_true", help="leave out what a job works out"
    )
    parser.add_argument("--only", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        what, kept, *folders = args.only
        done = (draw if what == "draw" else work_out)([Path(f) for f in folders], Path(kept))
        print(json.dumps(done))
        return
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as made:
        drawn, worked = measure(args.folder or Path(made), tuple(args.copies), args.draw_only)
    heads = (
        ["steps a run", "Parquet, both (MiB)", "", "open (s)", "first figure (s)", "zoom to 1/10 (s)", "zoom to 1/1,000 (s)", "figure, all / 1/10 (kB)", "anonymous, most / end (MiB)", "mapped files (MiB)"],
        ["steps a run", "worked out (s)", "again, as kept (s)", "anonymous, most / end (MiB)", "of a process of its own, most (MiB)", "kept on disk (MiB)"],
    )  # fmt: skip
    tables = [
        "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines])
        for head, lines in zip(heads, (drawn, worked), strict=True)
    ]
    text = (
        "# Long recordings\n\n"
        f"{datetime.date.today()}, Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[2]:.0f} over the last 15 minutes, "
        "`python benchmarks/long_recordings.py --write`; pairs of runs; wall seconds, in brackets CPU "
        "seconds; memory above that of the idle process.\n\n"
        + "\n\nPreemptions, figures and comparison, which are a job beside the page:\n\n".join(
            tables
        )
        + "\n"
    )
    print(text)
    if args.write:
        today = datetime.date.today().isoformat()
        out = Path(__file__).parent / "results" / f"{today}-long-recordings.md"
        out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
