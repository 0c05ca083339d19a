"""What the diagnosis infers from sampled telemetry against what the recordings know.

    python benchmarks/inferred_preemptions.py [--only WORD ...] [--write]

Each recording is simulated, told of as a server would (analyzer/sampled.py: a V1 log, a V0 log, scrapes,
lines of iterations; text), read by the readers of evidence and diagnosed. Compared are the count of
preemptions or its range, when the pool was first full, the pool where no line states it, and the verdict.
Times are modelled and workloads seeded, so the figures are the same anywhere.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

import numpy as np  # noqa: E402

from analyzer.diagnosis import Diagnosis, diagnose  # noqa: E402
from analyzer.diagnosis.recording import diagnose_recording  # noqa: E402
from analyzer.sampled import KINDS, sampled_evidence  # noqa: E402
from engine.config import EngineSettings  # noqa: E402
from engine.simulator import simulate  # noqa: E402
from traces import samples  # noqa: E402
from traces.lengths import Fixed, Lengths, LogNormal, Uniform  # noqa: E402
from traces.recording import Recording, open_recording  # noqa: E402
from traces.synthetic import Arrivals, ClosedLoop, StreamSpec, stream  # noqa: E402
from traces.workload import Workload  # noqa: E402

CAPACITY = {
    "CAPACITY_PREEMPTION", "THRASH_PREFILL_READMIT", "CAPACITY_QUEUE", "HOL_CAPACITY", "SWAP_STALL",
}  # fmt: skip
EVICTED = {"CAPACITY_PREEMPTION", "THRASH_PREFILL_READMIT"}
FULL_FRAC = 0.98
MAX_LINES = 10_000  # a line a step: longer runs are not told of that way
START = datetime.datetime(2026, 3, 4, 10, 0, 0)
MODES = ("recompute", "swap", "offload")
RESULT = "2026-11-30-inferred-preemptions.md"


@dataclass(frozen=True)
class World:
    """A workload on a machine."""

    name: str
    workload: Workload
    settings: EngineSettings


def worlds() -> Iterator[World]:
    """All of them: open arrivals at several rates, batches that all come at once, closed loops."""
    for rate, kv, mode in (
        (r, k, m) for r in (1.0, 2.0, 3.0) for k in (30_000, 41_408) for m in MODES
    ):
        name = f"chat x {rate:g}, {kv:,} tokens, {mode}"
        load = samples.load("chat").head(int(600 * rate)).scale_rate(rate)
        yield World(name, load, EngineSettings(kv_tokens=kv, preemption_mode=mode))
    for rate, kv in ((r, k) for r in (1.0, 4.0) for k in (80_000, 200_000, 1_000_000)):
        load = samples.load("long-outputs").head(250).scale_rate(rate)
        yield World(
            f"long outputs x {rate:g}, {kv:,} tokens", load, EngineSettings(kv_tokens=kv)
        )
    for num, prompt, output, kv in (
        (8, Fixed(8_000), Fixed(9_000), 100_000),
        (8, Uniform(4_000, 12_000), Fixed(9_000), 100_000),
        (16, Fixed(1_000), Fixed(5_000), 60_000),
        (16, Uniform(500, 1_500), Uniform(3_000, 7_000), 60_000),
        (32, Fixed(500), Fixed(3_000), 80_000),
        (32, LogNormal(500, 4_000), LogNormal(2_000, 8_000), 80_000),
        (64, Fixed(300), Fixed(2_000), 100_000),
        (64, Fixed(300), Fixed(2_000), 400_000),
        (4, Fixed(20_000), Fixed(12_000), 110_000),
    ):  # fmt: skip
        for device, mode in (
            ("a100-40", "recompute"),
            ("l4", "recompute"),
            ("a100-40", "swap"),
        ):
            name = f"{num} at once, {words(prompt)} in, {words(output)} out, {kv:,}, {device}, {mode}"
            load = batch(num, prompt, output)
            settings = EngineSettings(
                kv_tokens=kv, preemption_mode=mode, device=device, enable_prefix_caching=False
            )
            yield World(name, load, settings)
    for clients, kv in ((c, k) for c in (16, 32, 64) for k in (25_000, 60_000)):
        load = stream(
            StreamSpec(
                400, ClosedLoop(clients), LogNormal(800, 3_000), LogNormal(400, 2_000), seed=5
            )
        )
        yield World(f"{clients} clients, {kv:,} tokens", load, EngineSettings(kv_tokens=kv))
    for seqs in (8, 16):
        load = samples.load("chat").head(800)
        settings = EngineSettings(kv_tokens=60_000, max_num_seqs=seqs)
        yield World(f"chat, {seqs} slots", load, settings)


def words(lengths: Lengths) -> str:
    """Lengths in a few characters."""
    if isinstance(lengths, Fixed):
        return f"{lengths.tokens}"
    if isinstance(lengths, Uniform):
        return f"{lengths.low}-{lengths.high}"
    return "log-normal"


def batch(num: int, prompt: Lengths, output: Lengths) -> Workload:
    """Requests that come within a second."""
    spec = StreamSpec(num, Arrivals(float(num)), prompt, output, seed=num, name="batch")
    return stream(spec)


@dataclass(frozen=True)
class Row:
    """One recording told of in one way. low, high, count_kind: of the diagnosis; full_s: when the pool was
    first full, None: never or not said; stated_pool: whether a line stated the pool; verdicts: its words."""

    world: str
    kind: str
    stated_pool: bool
    samples: int
    true_count: int
    count_kind: str
    low: int | None
    high: int | None
    true_full_s: float | None
    full_s: float | None
    true_pool: int
    pool: int | None
    pool_kind: str
    pool_range: tuple[float, float] | None
    verdicts: tuple[str, ...]
    true_verdict: str

    @property
    def says(self) -> bool:
        """Whether it gives a count or a range."""
        return self.count_kind != "unknown" and self.low is not None

    @property
    def holds(self) -> bool:
        """Whether the truth lies in what it says."""
        return (
            self.low is not None
            and self.low <= self.true_count
            and (self.high is None or self.true_count <= self.high)
        )

    @property
    def error(self) -> float:
        """Relative error of the count, of a range's middle, or of its lower end where it has no other."""
        low = self.low or 0
        guess = (low + self.high) / 2 if self.high is not None else low
        return abs(guess - self.true_count) / max(self.true_count, 1)

    @property
    def right(self) -> bool:
        """Whether the verdict neither denies evictions that a reader could know of nor invents them."""
        if self.true_full_s is None:
            return not EVICTED & set(self.verdicts)
        return bool(CAPACITY & set(self.verdicts)) if self.true_count else True


def measure(world: World, folder: Path) -> list[Row]:
    """A row for each way of telling, with the pool stated and not."""
    simulate(world.workload, world.settings, folder, overwrite=True)
    with open_recording(folder, name=world.name) as recording:
        return rows_of(recording, world.name)


def rows_of(recording: Recording, name: str, kinds: Iterable[str] = tuple(KINDS)) -> list[Row]:
    """Diagnose the recording as each kind tells of it, against the recording itself."""
    steps = recording.steps
    usage = steps["used_blocks"].to_numpy() / recording.pool_blocks
    full = np.flatnonzero(usage >= FULL_FRAC)
    ends = (steps["t_start_s"] + steps["duration_s"]).to_numpy()
    count = int(steps["num_preempted"].sum())
    truth = diagnose_recording(recording).verdict.word
    pool = recording.pool_blocks * int(recording.meta.settings["block_size"])
    found = []
    for kind in kinds:
        for stated in (True, False):
            if kind == "v1-iterations" and (not stated or steps.height > MAX_LINES):
                continue
            told = diagnose(sampled_evidence(recording, kind, pool=stated))
            preempted = told.facts["preemptions"]
            size, size_kind, size_range = pool_of(told)
            found.append(
                Row(
                    name,
                    kind,
                    stated,
                    told.facts.get("samples") or 0,
                    count,
                    preempted["kind"],
                    preempted["low"],
                    preempted["high"],
                    float(ends[full[0]]) if len(full) else None,
                    seconds(told.facts.get("first_full_at")),
                    pool,
                    size,
                    size_kind,
                    size_range,
                    tuple(v.word for v in told.verdicts),
                    truth,
                )
            )
    return found


def pool_of(told: Diagnosis) -> tuple[int | None, str, tuple[float, float] | None]:
    """Pool in tokens, how it is known, and the range that a slope gives."""
    span = told.facts.get("pool_tokens_estimated_from_slope")
    tokens = told.facts.get("pool_tokens")
    return (
        tokens,
        told.facts.get("pool_kind") or "unknown",
        (span[0], span[1]) if span else None,
    )


def seconds(clock: str | None) -> float | None:
    """Seconds since the start of a time as the sampled sources write it."""
    for form in ("%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S"):
        try:
            at = datetime.datetime.strptime((clock or "")[: 14 if form[1] == "m" else 19], form)
        except ValueError:
            continue
        return (at.replace(year=START.year) - START).total_seconds()
    return None


# ---- the report ----


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" if whole else "none"


def table(rows: Sequence[Row]) -> list[str]:
    """Counts by way of telling; recordings without a preemption apart."""
    head = (
        "| told as | recordings with preemptions | says a count or range | with an upper end | true count in it "
        "| median relative error | 90 % below | exact | without preemptions: says more than 0 | verdict right |"
    )
    lines = [head, "|" + "---|" * 10]
    for kind in KINDS:
        mine = [r for r in rows if r.kind == kind and r.stated_pool]
        some, none = [r for r in mine if r.true_count], [r for r in mine if not r.true_count]
        said = [r for r in some if r.says]
        errors = np.array([r.error for r in said])
        middle = f"{100 * np.median(errors):.1f} %" if len(errors) else "—"
        most = f"{100 * np.percentile(errors, 90):.1f} %" if len(errors) else "—"
        exact = sum(r.low == r.high == r.true_count for r in said)
        invented = sum(bool(r.low) for r in none)
        lines.append(
            f"| {kind} | {len(some)} | {share(len(said), len(some))} "
            f"| {share(sum(r.high is not None for r in said), len(said))} | {share(sum(r.holds for r in said), len(said))} "
            f"| {middle} | {most} | {share(exact, len(said))} | {share(invented, len(none))} "
            f"| {share(sum(r.right for r in mine), len(mine))} |"
        )
    return lines


def pool_table(rows: Sequence[Row]) -> list[str]:
    """The pool where no line states it, and when it was first full."""
    lines = [
        "| told as | derives a pool | median error | worst | first full: said of those that were | median error, s | worst, s |",
        "|" + "---|" * 7,
    ]
    for kind in KINDS:
        mine = [r for r in rows if r.kind == kind and not r.stated_pool]
        if not mine:
            continue
        got = [abs(r.pool / r.true_pool - 1) for r in mine if r.pool]
        full = [
            r for r in rows if r.kind == kind and r.stated_pool and r.true_full_s is not None
        ]
        late = [abs(r.full_s - float(r.true_full_s or 0)) for r in full if r.full_s is not None]
        pool = f"{100 * np.median(got):.1f} % | {100 * max(got):.1f} %" if got else "— | —"
        times = f"{np.median(late):.1f} | {max(late):.1f}" if late else "— | —"
        lines.append(
            f"| {kind} | {share(len(got), len(mine))} | {pool} | {share(len(late), len(full))} | {times} |"
        )
    return lines


def misses(rows: Sequence[Row]) -> list[str]:
    """Rows whose count or verdict does not hold."""
    lines = [
        "| recording | told as | true | said | verdicts | verdict of the recording |",
        "|" + "---|" * 6,
    ]
    for r in rows:
        if r.stated_pool and ((r.says and not r.holds) or not r.right):
            said = f"{r.low} to {r.high}, {r.count_kind}" if r.says else "unknown"
            lines.append(
                f"| {r.world} | {r.kind} | {r.true_count} | {said} | {', '.join(r.verdicts)} | {r.true_verdict} |"
            )
    return lines


def report(rows: Sequence[Row]) -> str:
    """The document."""
    num = len({r.world for r in rows})
    return "\n".join(
        [
            "# Inferred preemptions against the truth",
            "",
            f"{num} recordings, each told of as a V1 log (10 s), a V0 log (5 s), scrapes (15 s) and lines of iterations,",
            "as text through the readers. Command: `python benchmarks/inferred_preemptions.py --write`. Modelled times,",
            "seeded workloads: the same figures anywhere. Error: of the count, of a range's middle, or of the lower end",
            "where a range has no upper one: there, that the true count is in it says only that no more was claimed than",
            "there were. Runs of one load that preempt nothing are alike in all modes. A verdict is right where it names capacity (queue, preemption, thrash, head",
            "of line, swap) for a run with preemptions, and names no eviction for a run whose pool was never full.",
            "",
            *table(rows),
            "",
            "## Pool and wall",
            "",
            "The pool where no line states it; the time at which 98 % were first in use.",
            "",
            *pool_table(rows),
            "",
            "## What does not hold",
            "",
            *misses(rows),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for world in worlds():
            if all(word in world.name for word in arguments.only):
                print(world.name, file=sys.stderr)
                rows += measure(world, Path(scratch) / "run")
    text = report(rows)
    print(text)
    if arguments.write:
        (ROOT / "benchmarks" / "results" / RESULT).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
