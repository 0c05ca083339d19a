"""What is not certain is a range, and a counter that moved bounds the time of the wall."""

from __future__ import annotations

from analyzer.diagnosis import Diagnosis, diagnose
from traces.evidence.reading import read_evidence

POOL = 100  # blocks of 16 tokens, besides the null block


def iterations(rows: list[tuple[int, int, int, float]]) -> Diagnosis:
    """The diagnosis of lines of (step, context requests, generation requests, usage in per cent)."""
    lines = [
        "INFO 10-14 14:40:00 [kv_cache_utils.py:1087] GPU KV cache size: 1,616 tokens",
        *(
            f"INFO 10-14 14:43:{step:02d} [loggers.py:182] Engine 000: Iteration({step}): {context} context requests, "
            f"{512 * context} context tokens, {decode} generation requests, {decode} generation tokens, iteration "
            f"elapsed time: 8.03 ms, GPU KV cache usage: {usage:.1f}%"
            for step, context, decode, usage in rows
        ),
    ]
    return diagnose(read_evidence([], pasted="\n".join(lines)))


def test_a_victim_in_pure_decode_is_known() -> None:
    told = iterations(
        [(1, 0, 9, 98), (2, 0, 9, 99), (3, 0, 8, 90), (4, 0, 8, 91), (5, 0, 8, 92)]
    )

    counted = told.facts["preemptions"]
    assert (counted["low"], counted["high"], counted["kind"]) == (1, 1, "known")


def test_a_request_that_goes_while_another_ends_is_a_range() -> None:
    told = iterations(
        [(1, 0, 9, 98), (2, 0, 9, 99), (3, 0, 8, 90), (4, 0, 7, 80), (5, 0, 7, 81)]
    )

    counted = told.facts["preemptions"]
    assert (counted["low"], counted["high"], counted["kind"]) == (0, 1, "inferred")


def test_a_request_that_comes_while_usage_falls_may_hide_a_victim() -> None:
    told = iterations(
        [(1, 0, 9, 98), (2, 0, 9, 99), (3, 0, 8, 95), (4, 0, 8, 99), (5, 1, 7, 90)]
    )

    counted = told.facts["preemptions"]
    assert (counted["low"], counted["high"], counted["kind"]) == (1, 2, "inferred")


def scrape(second: int, usage: float, preemptions: int) -> str:
    labels = '{engine="0",model_name="m"}'
    return (
        f"2026-03-04 10:00:{second:02d}\nvllm:kv_cache_usage_perc{labels} {usage}\n"
        f"vllm:num_requests_running{labels} 9.0\nvllm:num_requests_waiting{labels} 0.0\n"
        f"vllm:num_preemptions_total{labels} {preemptions}.0\n"
    )


def test_a_counter_that_moved_says_that_the_pool_was_full_by_then() -> None:
    text = scrape(0, 0.5, 4) + scrape(15, 0.7, 4) + scrape(30, 0.6, 9) + scrape(45, 0.99, 9)

    told = diagnose(read_evidence([], pasted=text))

    assert told.facts["first_full_at"].startswith("2026-03-04 10:00:30")
    assert told.facts["first_full_kind"] == "inferred"


def test_samples_that_saw_a_full_pool_sooner_go_before_the_counter() -> None:
    text = scrape(0, 0.5, 4) + scrape(15, 0.99, 4) + scrape(30, 0.6, 9)

    told = diagnose(read_evidence([], pasted=text))

    assert told.facts["first_full_at"].startswith("2026-03-04 10:00:15")


def test_a_counter_that_comes_late_does_not_move_the_wall_behind_a_sample_that_saw_it() -> None:
    """The victim of second 40 runs again at second 55 and is counted then."""
    usage = [0.90, 0.94, 0.98, 0.80, 0.84, 0.88]
    counter = [0, 0, 0, 0, 0, 1]
    text = "".join(scrape(10 * i, usage[i], counter[i]) for i in range(6))

    told = diagnose(read_evidence([], pasted=text))

    assert told.facts["first_full_at"].startswith("2026-03-04 10:00:20")
