"""The evidence that comes with the app, made from parameters and from a bundled recording.

python -m tests.evidence_samples        # writes traces/samples/evidence anew
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from analyzer.sampled import v0_log
from tests.evidence_texts import START, scrape, v1, v1_pool
from traces.recording import open_recording

ROOT = Path(__file__).parents[1] / "traces" / "samples"


def texts() -> dict[str, dict[str, str]]:
    """Name of a case -> name of a file -> its text."""
    return {
        "v0-preemptions": {"server.log": _v0_preemptions()},
        "v1-thrash": {
            "server.log": _v1_thrash(),
            "flags.txt": "vllm serve /models/long-context-8b --max-num-seqs 32 --max-model-len 32768\n",
        },
        "one-rank-full": {"metrics.prom": _one_rank_full()},
        "slots-not-kv": {
            "server.log": _slots(),
            "flags.txt": "vllm serve /models/chat-8b --max-num-seqs 64\n",
        },
    }


def _v0_preemptions() -> str:
    with open_recording(ROOT / "recordings" / "chat-recompute") as recording:
        return v0_log(recording)


def _v1_thrash() -> str:
    """Four long requests grow into the wall and then evict each other for ever."""
    pool, running, rate = 131_072, 4, 168.0
    lines = v1_pool(pool, 32_768)
    usage = 88.0
    for i in range(14):
        usage = 88.0 + 100 * rate * 10 * i / pool
        if usage > 99.7:
            break
        lines.append(v1(10 * i, running, 0, usage, generation=rate + (i % 3) * 0.4))
    start, usage = len(lines) - 2, 77.3
    for i in range(start, start + 22):
        lines.append(v1(10 * i, running, 0, usage, generation=10.4 + (i * 7 % 5) * 0.3))
        usage += 5.6
        if usage > 99.8:
            usage -= 23.9
    return "\n".join(lines) + "\n"


def _one_rank_full() -> str:
    """Twelve scrapes of four ranks: sessions stick to rank 2."""
    parts = []
    for i in range(12):
        when = (START + timedelta(seconds=30 * i)).strftime("%Y-%m-%d %H:%M:%S")
        busy = min(24 + 2 * i, 31)
        rows = [
            (0, 4 + i % 2, 0, 0.12 + 0.004 * i, 0, 20_000.0 + 1_400 * i),
            (1, 3, 0, 0.09 + 0.002 * i, 0, 15_000.0 + 1_050 * i),
            (2, busy, max(0, i - 3), min(0.70 + 0.08 * i, 0.996), max(0, 5 * (i - 4)), 90_000.0 + 6_300 * i),
            (3, 1, 0, 0.03, 0, 5_000.0 + 350 * i),
        ]  # fmt: skip
        parts.append(scrape(rows, when))
    return "\n".join(parts)


def _slots() -> str:
    """Running stands at its limit before a queue, with half of the pool free."""
    lines = v1_pool(524_288)
    for i in range(30):
        running = min(64, 40 + 6 * i)
        waiting = max(0, 3 * i - 10)
        usage = running * 0.72 + (i * 5 % 7) * 0.3
        lines.append(
            v1(10 * i, running, waiting, usage, prompt=900.0 + i % 4, generation=28.0 * running)
        )
    return "\n".join(lines) + "\n"


def write() -> None:
    """Write the files of every case."""
    for name, files in texts().items():
        folder = ROOT / "evidence" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text, "utf-8")


if __name__ == "__main__":
    write()
