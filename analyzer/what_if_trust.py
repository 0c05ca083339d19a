"""How far a simulated figure may be trusted: the errors that were measured, in words for a page.

It knows numbers that were measured elsewhere and their sentence. Source: the rows "measured: ...,
preset" of benchmarks/accuracy.md; a test holds the numbers against that table.
"""

from __future__ import annotations

NUM_MEASURED_RUNS = 3
# figure -> (least, greatest) error of simulated against measured, in percent, over those runs
MEASURED_ERRORS = {
    "throughput": (0, 6),
    "TPOT p50": (-3, 1),
    "TTFT p50": (-4, 4),
}
WHERE = "benchmarks/accuracy.md"
MORE = "docs/validation.md"


def say_errors() -> str:
    """'throughput +0 to +6 %, TPOT p50 −3 to +1 %, ...'."""
    said = (
        f"{name} {_signed(a)} to {_signed(b)} %" for name, (a, b) in MEASURED_ERRORS.items()
    )
    return ", ".join(said)


def _signed(value: int) -> str:
    return f"{value:+d}".replace("-", "−")


def say_trust() -> str:
    """What is exact, what is modelled and how far off that was, and what to rely on."""
    return (
        "Decisions are vLLM's; times are modelled. With the device's preset, "
        f"{NUM_MEASURED_RUNS} measured runs differ by: {say_errors()} (simulated against measured, {WHERE}). "
        "Small differences between two simulated runs are more certain than absolute values, since both have much the same error. "
        f"How far off it is on your own server, a recording of it says: {MORE}."
    )
