"""Too many samples are thinned: sums, means and the highest usage stay, and it is said."""

from __future__ import annotations

import pytest

from analyzer.diagnosis import diagnose
from tests.evidence_log_builders import clock, sglang_line, v1_line
from traces.evidence.log_reader import MAX_KEPT
from traces.evidence.reading import read_evidence, read_sources
from traces.evidence.source import ReadingCancelled, Source
from traces.evidence.thinning import SampleColumns


def columns(most: int) -> SampleColumns:
    made = SampleColumns(most)
    for i in range(20_000):
        made.add_line(2 * i + 1, f"line {i}")
        made.add(
            {
                "line": 2 * i + 1,
                "num_lines": 1,
                "_server": 0,
                "engine_rank": i % 2,
                "_s": float(i),
                "kv_usage_frac": (i * 7919 % 1000) / 1000,
                "num_preempted": 1,
                "generation_tokens_per_s": float(i % 4),
                "num_running": i,
                "inferred": ["num_preempted"] if i % 4 == 0 else [],
            }
        )
    return made


def test_few_samples_stay_as_they_are() -> None:
    made = columns(most=100_000)

    frame, lines = made.finish()

    assert frame.height == lines.height == 20_000
    assert frame["num_running"].to_list() == list(range(20_000))
    assert made.note() == ""


def test_of_many_samples_the_fullest_of_each_few_is_kept_with_the_counts_of_all() -> None:
    made = columns(most=3_000)

    frame, lines = made.finish()

    assert frame.height <= 3_000 + 8_192
    assert made.each > 1
    assert frame["num_preempted"].sum() == 20_000
    assert frame["kv_usage_frac"].max() == 0.999
    assert frame["num_running"].is_sorted()
    assert set(frame["engine_rank"]) == {0, 1}
    assert lines["line"].to_list() == frame["line"].to_list()
    kept = frame.row(frame.height // 2, named=True)
    i = kept["num_running"]
    assert kept["kv_usage_frac"] == (i * 7919 % 1000) / 1000
    assert kept["line"] == 2 * i + 1
    assert f"of {made.each} that follow each other" in made.note()


def test_a_log_that_was_thinned_says_so_in_the_diagnosis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traces.evidence.thinning.ROWS_PER_CHUNK", 64)
    monkeypatch.setattr("traces.evidence.log_reader.MAX_SAMPLES", 128)
    text = "\n".join(v1_line(i) for i in range(1000))

    found = diagnose(read_evidence([], pasted=text))

    assert any("1,000 samples were read; of" in note for note in found.notes)
    assert found.facts["usage_max"] == pytest.approx(99.9)


def test_retractions_that_are_not_kept_are_counted() -> None:
    num = 2 * MAX_KEPT + 700
    lines = [sglang_line(0)]
    for i in range(num):
        at = f"2025-10-{14 + i // 17_000:02d} {clock(i % 6_000)}"
        lines.append(
            f"[{at} TP0] KV cache pool is full. Retract requests. #retracted_reqs: {1 + i % 3}, "
            f"#new_token_ratio: 0.{i % 9000 + 1000} -> 0.7100"
        )

    found = diagnose(read_evidence([], pasted="\n".join(lines)))

    counted = found.facts["preemptions"]
    assert counted["value"] == sum(1 + i % 3 for i in range(num))


def test_progress_never_falls_and_ends_at_all_bytes() -> None:
    text = "\n".join(v1_line(i) for i in range(200))
    sources = [Source.from_text("a.log", text), Source.from_text("b.log", text)]
    said: list[tuple[int, int]] = []

    read_sources(sources, progress=lambda done, total: said.append((done, total)))

    done = [d for d, _ in said]
    assert done == sorted(done)
    assert said[-1] == (2 * len(text), 2 * len(text))


def test_reading_stops_when_it_is_told_to() -> None:
    text = "\n".join(v1_line(i % 50) for i in range(20_000))

    with pytest.raises(ReadingCancelled, match="stopped"):
        read_evidence([], pasted=text, cancelled=lambda: True)
