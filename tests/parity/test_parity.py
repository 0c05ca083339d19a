"""Our scheduler against vLLM 0.26.0's own, live: run by `make parity`, not by `make test`.

Base seeds: one that never changes, and one that changes with the day (or KV_REPLAY_PARITY_SEED).
Without an interpreter that has vLLM everything here is skipped, unless KV_REPLAY_REQUIRE_PARITY is
set, as continuous integration does: then it fails.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import pytest

from tests.parity.cases import Case, make_case
from tests.parity.real_traces import REAL, real_case
from tests.parity.run import PYTHON_VARIABLE, Outcome, VllmSide, run_cases, vllm_python

pytestmark = pytest.mark.parity
FIXED_SEED = 26
FIXED_CASES = 60
TODAY = int(os.environ.get("KV_REPLAY_PARITY_SEED") or f"{datetime.date.today():%Y%m%d}")
CASES = int(os.environ.get("KV_REPLAY_PARITY_CASES") or 200)
OFFLOAD_CASES = CASES // 3
AT_ONCE = 40  # cases of a test, so that two processes can share them
_SHOWN = 3


def parts(fixed: int, today: int) -> list[Any]:
    """Seed and numbers of the cases, in parts: of the fixed seed and of today's."""
    found = []
    for seed, count, name in ((FIXED_SEED, fixed, "fixed"), (TODAY, today, "today")):
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            found.append(pytest.param(seed, numbers, id=f"{name}-{first}"))
    return found


def _missing(why: str) -> NoReturn:
    """Skip, or fail where the comparison is required."""
    if os.environ.get("KV_REPLAY_REQUIRE_PARITY"):
        pytest.fail(f"{why}, and KV_REPLAY_REQUIRE_PARITY asks for the comparison")
    pytest.skip(why)


@pytest.fixture(scope="session")
def vllm_side() -> Iterator[VllmSide]:
    python = vllm_python()
    if python is None:
        _missing(f"no interpreter with vLLM 0.26.0: make parity, or set {PYTHON_VARIABLE}")
    with VllmSide(python) as side:
        assert side.versions["vllm"].startswith("0.26.0")
        yield side


def assert_equal(cases: Iterable[Case], side: VllmSide) -> list[Outcome]:
    """Every case decides as vLLM does; the first few that do not are shown."""
    outcomes = list(run_cases(cases, side))
    reports = [o.report() for o in outcomes if o.difference is not None]
    assert not reports, f"{len(reports)} of {len(outcomes)} cases differ\n\n" + "\n\n".join(
        reports[:_SHOWN]
    )
    return outcomes


@pytest.mark.parametrize(("seed", "numbers"), parts(FIXED_CASES, CASES))
def test_every_decision_of_seeded_cases_equals_that_of_vllm(
    seed: int, numbers: range, vllm_side: VllmSide
) -> None:
    outcomes = assert_equal((make_case(seed, k) for k in numbers), vllm_side)

    # The cases put both to the test: most preempt, most end.
    assert sum(o.num_preemptions for o in outcomes) > 2 * len(numbers)
    assert sum(o.status == "completed" for o in outcomes) > len(numbers) / 2


@pytest.mark.parametrize(("seed", "numbers"), parts(FIXED_CASES // 2, OFFLOAD_CASES))
def test_every_decision_with_a_cpu_pool_equals_that_of_vllm(
    seed: int, numbers: range, vllm_side: VllmSide
) -> None:
    assert_equal((make_case(seed, k, offload=True) for k in numbers), vllm_side)


@pytest.mark.shared
@pytest.mark.parametrize("name", list(REAL))
def test_every_decision_on_recorded_traces_equals_that_of_vllm(
    name: str, vllm_side: VllmSide
) -> None:
    try:
        case = real_case(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))  # other people's data, absent from most machines

    (outcome,) = assert_equal([case], vllm_side)

    least, most = REAL[outcome.case.name].preemptions
    assert outcome.status == "completed"
    assert least <= outcome.num_preemptions <= most
