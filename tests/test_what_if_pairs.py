"""Whether what-ifs are paired where they are of the same requests, and trust in the words of benchmarks."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from analyzer.outcome import Outcome, outcome_of
from analyzer.what_if_pairs import pairs_of
from analyzer.what_if_trust import (
    MEASURED_ERRORS,
    NUM_MEASURED_RUNS,
    UNTUNED_ERRORS,
    WHERE,
    say_errors,
)
from engine.simulator import simulate
from tests.engine_builders import make_request, make_settings, make_trace

ROOT = Path(__file__).parents[1]


def made(path: Path, blocks: int, every_s: float = 1e-4) -> Outcome:
    """30 requests of 3 blocks each, arriving every so many seconds."""
    trace = make_trace(*(make_request(f"r{i}", 6, 6, arrival=i * every_s) for i in range(30)))
    simulate(trace, make_settings(blocks, clock="modelled", num_host_blocks=64), path)
    return outcome_of({}, (path,), blocks)


def test_two_pools_have_the_same_requests_and_an_interval_each(tmp_path: Path) -> None:
    found = pairs_of(made(tmp_path / "a", 4), made(tmp_path / "b", 40))

    assert found is not None
    assert found.num_requests == 30
    assert found.rules.time_frac == 0.01
    assert found.intervals["num_preemptions"].high < 0  # the larger pool preempts nobody
    assert found.intervals["ttft_s p99"].excludes_zero


def test_another_rate_is_not_the_same_requests(tmp_path: Path) -> None:
    assert pairs_of(made(tmp_path / "a", 40), made(tmp_path / "b", 40, 2e-4)) is None


def test_what_cannot_run_has_no_pairs(tmp_path: Path) -> None:
    assert pairs_of(made(tmp_path / "a", 40), Outcome({}, {}, (), "no room")) is None


def test_the_errors_that_are_said_are_those_of_the_benchmark() -> None:
    rows = re.findall(r"^\| measured: .*, preset \| (.*?) \|", (ROOT / WHERE).read_text("utf-8"), re.M)  # fmt: skip
    assert len(rows) == NUM_MEASURED_RUNS
    for name, (least, greatest) in MEASURED_ERRORS.items():
        seen = [
            int(re.search(rf"{name} ([+−]\d+) %", r).group(1).replace("−", "-")) for r in rows
        ]  # type: ignore[union-attr]
        assert [least, greatest] == [min(seen), max(seen)], name


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("throughput", "output tokens/s"),
        ("TPOT p50", "TPOT, ms, p50"),
        ("TTFT p50", "TTFT, s, p50"),
    ],
)
def test_the_errors_without_those_runs_are_those_of_the_table(name: str, figure: str) -> None:
    row = rf"^\| [^|]+ \| {re.escape(figure)} \| [^|]+ \| [^|(]+\(([+-][\d.]+) %\)"
    seen = [Decimal(v) for v in re.findall(row, (ROOT / WHERE).read_text("utf-8"), re.M)]

    assert len(seen) == NUM_MEASURED_RUNS
    ends = [int(v.quantize(Decimal(1), ROUND_HALF_UP)) for v in (min(seen), max(seen))]
    assert list(UNTUNED_ERRORS[name]) == ends


def test_the_errors_have_their_signs() -> None:
    assert say_errors() == "throughput +0 to +6 %, TPOT p50 −3 to +1 %, TTFT p50 −4 to +4 %"
