"""A limit on running requests says what it costs, is no smallest change where many more run, and hands over
to the simulation where the requests are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.__main__ import main
from analyzer.diagnosis import diagnose
from analyzer.diagnosis.findings import Diagnosis, Step
from analyzer.diagnosis.recording import diagnose_folder, recording_evidence
from tests.evidence_texts import diagnosis, scrape, v1, v1_pool, words
from traces.evidence.reading import read_evidence
from traces.recording import open_recording

SAMPLES = Path(__file__).parents[1] / "traces" / "samples"
CHAT = SAMPLES / "recordings" / "chat-recompute"  # p95 of lengths: 9 fit; 23.4 run on average
SIMULATE = "find the smallest change that is enough, by simulation"


def _steps(found: Diagnosis) -> list[Step]:
    return [found.next_step.first, *found.next_step.alternatives]


def _cap(found: Diagnosis) -> Step:
    return next(s for s in _steps(found) if s.change.startswith("--max-num-seqs"))


def test_a_recording_hands_over_to_the_simulated_answer() -> None:
    found = diagnose_folder(CHAT)

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert found.next_step.first.change == (
        f"{SIMULATE} (python -m analyzer advise {CHAT} --goal no-preemption)"
    )


def test_a_folder_with_a_space_is_quoted_in_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "run a"
    folder.symlink_to(CHAT)

    change = diagnose_folder(folder).next_step.first.change

    assert f"advise '{folder}' --goal" in change


def test_a_limit_far_below_what_runs_is_the_last_step_and_names_its_price() -> None:
    steps = _steps(diagnose_folder(CHAT))

    assert steps[-1].change == "--max-num-seqs 9"
    assert steps[-1].effect == (
        "no preemption even if all 9 are as long as the 95th percentile of requests that finished, which few are: "
        "24.7 run on average; it costs: at most 9 run instead of 23.5 on average where more did (up to 41), "
        "the rest wait in the queue, and where decode binds output tokens/s fall by up to 62 %"
    )
    assert steps[-1].numbers == {"max_num_seqs": 9, "runs_without_trouble": 24.7}


def test_without_the_requests_a_limit_far_below_what_runs_is_not_first_either() -> None:
    with open_recording(CHAT) as recording:
        evidence = replace(recording_evidence(recording), family="telemetry")

    steps = _steps(diagnose(evidence))

    assert steps[0].change == (
        f"{SIMULATE} of estimated requests: python -m analyzer estimate with these files and --out trace.jsonl, "
        "then python -m analyzer advise trace.jsonl --kv-tokens 41408 --goal no-preemption"
    )
    assert steps[1].change.startswith("a pool of 5,544 blocks")
    assert steps[-1].change == "--max-num-seqs 9"


def test_a_limit_that_a_stated_length_gives_stays_first_with_its_price() -> None:
    found = diagnosis(
        v1_pool(440_144),
        scrape([(0, 88, 41, 0.973, 1843, 900_000)]),
        notes="input len 4000\noutput len 1500",
    )

    assert found.next_step.first.change == "--max-num-seqs 79"
    assert found.next_step.first.effect == (
        "no preemption by construction: 79 x 344 = 27,176 of 27,508 blocks; it costs: at most 79 run instead of 88, "
        "the rest wait in the queue, and where decode binds output tokens/s fall by up to 10 %"
    )


def test_a_limit_that_no_sample_passes_costs_nothing() -> None:
    lines = [v1(10 * i, 60 + i, 0, 91.0 + 4 * i, generation=900.0) for i in range(3)]

    found = diagnosis(
        v1_pool(440_144),
        lines,
        scrape([(0, 62, 0, 0.99, 3, 1_000), (30, 62, 0, 0.99, 9, 30_000)]),
        notes="input len 4000\noutput len 1500",
    )

    assert "no more than 62 ran, so it costs nothing at this load" in _cap(found).effect


def test_where_output_has_collapsed_the_price_is_held_against_the_collapse() -> None:
    folder = SAMPLES / "evidence" / "v1-thrash"

    found = diagnose(read_evidence(sorted(folder.iterdir())))

    assert _cap(found).effect == (
        "no preemption even if all 3 are as long as max_model_len; it costs: at most 3 run instead of 4, the rest "
        "wait in the queue; about 126.3 tokens/s, against 168.4 before the wall and 11.0 at it"
    )


def test_a_pool_that_carries_all_is_not_said_to_put_the_wall_off() -> None:
    folder = SAMPLES / "evidence" / "v1-thrash"

    found = diagnose(read_evidence(sorted(folder.iterdir())))

    texts = [f"{s.change}: {s.effect}" for s in _steps(found)]
    assert [t for t in texts if "8,192 blocks, 1 more" in t and "all 4 that run" in t]
    assert not [t for t in texts if "puts the wall off" in t]


def test_the_command_prints_the_way_to_the_simulated_answer_as_the_next_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["diagnose", str(CHAT)]) == 0

    told = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("  next "))
    assert f"python -m analyzer advise {CHAT} --goal no-preemption" in told
