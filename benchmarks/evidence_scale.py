"""How fast, and in how much memory, a long log is read and diagnosed.

    python benchmarks/evidence_scale.py [--mb 200] [--kind mixed|statistics] [--file server.log]

It writes a log of that size (access lines, statistics of four ranks every 10 s, warnings, errors; or
statistics alone) or takes a file, diagnoses it in a process of its own, and prints lines and bytes a second of CPU
time, and the peak of memory. Figures are of the machine that they are measured on.

Measured on 2026-11-30 (two shared cores, Python 3.11) with `--mb 2148`: 2,252 MB of "mixed", 24,629,436 lines:
57.8 s of CPU time (426,025 lines/s, 39 MB/s), 322 MiB at most.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]


def clock(t_s: int) -> str:
    """A time of a log that starts with a year."""
    days = t_s // 86400
    return f"{1 + days // 28 % 12:02d}-{1 + days % 28:02d} {t_s // 3600 % 24:02d}:{t_s // 60 % 60:02d}:{t_s % 60:02d}"


def statistics(r: random.Random, t_s: int, rank: int) -> str:
    return (
        f"(EngineCore_DP{rank} pid={200 + rank}) INFO {clock(t_s)} [loggers.py:123] Engine {rank:03d}: Avg prompt "
        f"throughput: {900 * r.random():.1f} tokens/s, Avg generation throughput: {2000 * r.random():.1f} tokens/s, "
        f"Running: {r.randint(20, 60)} reqs, Waiting: {r.randint(0, 40)} reqs, GPU KV cache usage: "
        f"{80 + 20 * r.random():.1f}%, Prefix cache hit rate: {40 + r.random():.1f}%"
    )


def access(r: random.Random) -> str:
    status = r.choice(("200 OK",) * 20 + ("400 Bad Request", "500 Internal Server Error"))
    return (
        f"(APIServer pid=1) INFO:     10.{r.randint(0, 255)}.{r.randint(0, 255)}.{r.randint(1, 254)}:"
        f'{r.randint(1024, 65535)} - "POST /v1/completions HTTP/1.1" {status}'
    )


def write_log(f: IO[str], num_bytes: int, kind: str) -> None:
    """Lines of that kind until there are so many bytes."""
    r = random.Random(7)
    pool = [access(r) for _ in range(20_000)]
    size = t_s = 0
    while size < num_bytes:
        lines = [statistics(r, t_s, rank) for rank in range(4)]
        if kind == "mixed":
            at = r.randint(0, 19_000)
            lines += pool[at : at + r.randint(100, 700)]
            if r.random() < 0.02:
                head = f"(EngineCore_DP0 pid=200) ERROR {clock(t_s)} [core.py:700]"
                lines += [
                    f"{head} Traceback (most recent call last):",
                    f"{head} ValueError: 17",
                ]
        text = "\n".join(lines) + "\n"
        f.write(text)
        size += len(text)
        t_s += 10


def measure(path: Path) -> None:
    """Diagnose it in a child and print what that took."""
    command = [sys.executable, "-m", "analyzer", "diagnose", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, size = used.ru_utime + used.ru_stime, path.stat().st_size
    with path.open("rb") as f:
        num = sum(block.count(b"\n") for block in iter(lambda: f.read(1 << 20), b""))
    print(
        f"{size / 1e6:,.0f} MB, {num:,} lines: {cpu_s:.1f} s of CPU time, {num / cpu_s:,.0f} lines/s, "
        f"{size / 1e6 / cpu_s:.1f} MB/s, at most {used.ru_maxrss / 1024:.0f} MiB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--kind", choices=("mixed", "statistics"), default="mixed")
    parser.add_argument("--file", type=Path)
    arguments = parser.parse_args()
    if arguments.file is not None:
        measure(arguments.file.resolve())
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "server.log"
        with path.open("w", encoding="utf-8") as f:
            write_log(f, arguments.mb << 20, arguments.kind)
        measure(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
