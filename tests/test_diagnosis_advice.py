"""What is advised: no limit that is reached already, what is missing, and where victims are named."""

from __future__ import annotations

from analyzer.diagnosis import Diagnosis
from tests.evidence_texts import diagnosis, scrape, sglang, stamp, v1, v1_pool, words


def _changes(found: Diagnosis) -> list[str]:
    step = found.next_step
    return [s.change for s in (step.first, *step.alternatives)]


def test_a_limit_at_what_filled_the_pool_is_not_advised() -> None:
    found = diagnosis(scrape([(0, 88, 41, 0.973, 1843, 900_000)]))

    assert words(found) == ["CAPACITY_PREEMPTION"]
    assert not [c for c in _changes(found) if "max-num-seqs" in c]
    assert "a limit of 90 running: 88 filled the pool, and they still grow" in (
        found.next_step.useless
    )
    assert not [p for p in found.proofs if "to their end" in p.sentence]


def test_a_limit_that_stated_lengths_give_is_advised() -> None:
    found = diagnosis(
        v1_pool(440_144),
        scrape([(0, 88, 41, 0.973, 1843, 900_000)]),
        notes="input len 4000\noutput len 1500",
    )

    assert _changes(found)[0] == "--max-num-seqs 79"  # 27,508 blocks of 16 / 344 a request


def test_one_scrape_asks_whether_it_goes_on_and_for_who_was_evicted() -> None:
    asked = {
        m.what: m.settle for m in diagnosis(scrape([(0, 88, 41, 0.973, 7, 90_000)])).missing
    }

    assert asked["whether it goes on"] == "a second scrape of the counter, some minutes later"
    assert "RecordingScheduler" in asked["who was evicted, and for whom"]


def test_a_burst_that_emptied_by_itself_is_told_with_its_height() -> None:
    queue = [0, 19, 57, 104, 60, 0]
    lines = [
        v1(10 * i, 120, w, 99.2, prompt=3000.0, generation=1400.0) for i, w in enumerate(queue)
    ]

    found = diagnosis(v1_pool(389_328), lines)

    assert words(found) == ["CAPACITY_QUEUE"]
    assert found.proofs[0].sentence.startswith("Waiting went from 0 to 0 by way of 104 while")
    assert found.next_step.first.numbers == {"waiting_max": 104}
    assert "start-up lines" not in " ".join(_changes(found))  # the pool is stated


def test_retractions_beside_samples_of_another_time_do_not_make_those_full() -> None:
    retraction = (
        "[2026-03-04 10:09:00 TP0] KV cache pool is full. Retract requests. "
        "#retracted_reqs: 2, #new_token_ratio: 0.5732 -> 0.8215"
    )
    found = diagnosis([sglang(10 * i, 21, 0, 0.5, 900.0) for i in range(4)], retraction)

    assert words(found) == ["CAPACITY_PREEMPTION"]
    assert found.verdict.statement == (
        "Running requests lose their blocks: 2 preemptions, though no sample shows more than 50.0 % in use."
    )


def test_a_limit_that_lets_all_reach_their_end_is_not_called_useless() -> None:
    usage = [90.0, 93.0, 96.0, 99.7, 93.0, 98.9, 92.0, 97.8, 99.6, 92.0]
    fast = [170.0] * 4 + [11.0] * 6
    lines = [
        v1(10 * i, 4, 0, u, generation=g)
        for i, (u, g) in enumerate(zip(usage, fast, strict=True))
    ]

    found = diagnosis(
        [f"INFO {stamp(-61)} [api_server.py:1] vLLM API server version 0.10.0"],
        v1_pool(131_072, 32_768),
        lines,
    )

    assert words(found)[0] == "THRASH_PREFILL_READMIT"
    assert "--max-num-seqs 3" in _changes(found)
    assert not [u for u in found.next_step.useless if u.startswith("--max-num-seqs 3")]
