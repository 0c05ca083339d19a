"""How far a simulated figure may be trusted: the errors that were measured, in words for a page.

It knows numbers that were measured elsewhere and their sentence. Source: the rows "measured: ...,
preset" of benchmarks/accuracy.md, and its table of those runs; a test holds the numbers against both.
"""

from __future__ import annotations

from collections.abc import Mapping

NUM_MEASURED_RUNS = 3
# figure -> (least, greatest) error of simulated against measured, in percent, over those runs
MEASURED_ERRORS = {
    "throughput": (0, 6),
    "TPOT p50": (-3, 1),
    "TTFT p50": (-4, 4),
}
NUM_IN_PRESET = 2  # runs of which the device's preset took numbers
UNTUNED_ERRORS = {  # with nothing of those runs: data sheets and published kernels alone
    "throughput": (-1, 9),
    "TPOT p50": (-9, 3),
    "TTFT p50": (-11, 1),
}
WHERE = "benchmarks/accuracy.md"
MORE = "docs/validation.md"


def say_errors(errors: Mapping[str, tuple[int, int]] = MEASURED_ERRORS) -> str:
    """'throughput +0 to +6 %, TPOT p50 −3 to +1 %, ...'."""
    said = (f"{name} {_signed(a)} to {_signed(b)} %" for name, (a, b) in errors.items())
    return ", ".join(said)


def _signed(value: int) -> str:
    return f"{value:+d}".replace("-", "−")


def say_trust() -> str:
    """What is exact, what is modelled and how far off that was, and what to rely on."""
    return (
        "Decisions are vLLM's; times are modelled. With the device's preset, "
        f"{NUM_MEASURED_RUNS} measured runs differ by: {say_errors()} (simulated against measured, {WHERE}; "
        f"{NUM_IN_PRESET} of them fed the preset; with nothing of these runs: {say_errors(UNTUNED_ERRORS)}). "
        "Small differences between two simulated runs are more certain than absolute values, since both have much the same error. "
        f"How far off it is on your own server, a recording of it says: {MORE}."
    )
