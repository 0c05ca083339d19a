"""What is no log, is too much of one, or is several at once, is said in a sentence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evidence_log_builders import (
    ACCESS_LINE,
    plain,
    prefixed,
    read,
    sglang_line,
    v1_line,
)
from traces.errors import EvidenceError
from traces.evidence.log_reader import MAX_KEPT, LogReader
from traces.evidence.reading import read_evidence
from traces.evidence.records import WINDOW_LINES, Reading, read_records
from traces.evidence.source import Source


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "core.bin"
    path.write_bytes(random.Random(1).randbytes(20_000))

    with pytest.raises(EvidenceError, match=r"core\.bin: it is a binary file, not text"):
        read_evidence([path])


def test_nothing_is_refused() -> None:
    with pytest.raises(EvidenceError, match="nothing was given"):
        read_evidence([])
    with pytest.raises(EvidenceError, match="it holds nothing"):
        read_evidence([], pasted="\n  \n")


def test_a_file_that_cannot_be_read_is_noted_beside_one_that_can(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join(plain("v1", 3)))

    evidence = read_evidence([log, tmp_path / "gone.log"])

    assert evidence.telemetry is not None
    assert any("gone.log" in note and "no such file" in note for note in evidence.notes)


def test_a_log_of_other_software_is_said_to_be_so() -> None:
    lines = [
        f'192.0.2.{i} - - [10/Oct/2025:13:55:36 +0000] "GET /{i} HTTP/1.1" 200 5'
        for i in range(9)
    ]

    evidence = read_evidence([], pasted="\n".join(lines))

    assert evidence.engine is None
    assert evidence.telemetry is None
    assert evidence.sources[0].sure == 0.0
    assert any("none of its 9 lines is known" in note for note in evidence.notes)


def test_lines_of_two_engines_in_one_file_are_said_to_be_so() -> None:
    found = read([v1_line(0), v1_line(1), v1_line(2), sglang_line(3)])

    assert found.report.engine == "vllm"
    assert found.report.sure == 0.75
    assert any("several engines" in n and "SGLang (1)" in n for n in found.report.notes)


def test_names_given_for_uploads_are_used_and_told_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_text("\n".join(plain("v1", 3)))
    two.write_text("\n".join(plain("v1", 2)))

    evidence = read_evidence([one, two], names=["server.log", "server.log"])

    assert [s.name for s in evidence.sources] == ["server.log", "server.log (2)"]
    assert evidence.telemetry is not None
    assert evidence.telemetry.samples.height == 5


def test_sources_with_different_clocks_are_put_on_one(tmp_path: Path) -> None:
    paste = "\n".join(prefixed(plain("v1", 3), "docker-zone"))
    other = tmp_path / "node2.log"
    other.write_text("\n".join(prefixed(plain("v0", 4), "docker")))

    evidence = read_evidence([other], pasted=paste)

    assert evidence.telemetry is not None
    samples = evidence.telemetry.samples
    times = {s: samples.filter(source=s)["t_s"].to_list() for s in ("paste", "node2.log")}
    assert times["paste"] == [0.0, 5.0, 10.0]
    assert times["node2.log"] == [7200.0, 7205.0, 7210.0, 7215.0]
    assert evidence.clock(0.0) == "2025-10-14T12:43:00Z"


def test_a_flag_line_between_log_lines_is_read() -> None:
    evidence = read_evidence(
        [],
        pasted="\n".join(
            ["vllm serve /models/a --max-num-seqs 48 --block-size 32", *plain("v1", 3)]
        ),
    )

    found = {f.name: f.value for f in evidence.facts}
    assert found["max_num_seqs"] == 48
    assert found["block_size"] == 32


def test_absurd_numbers_are_left_out_and_break_nothing() -> None:
    bad = v1_line(1).replace("Running: 35", "Running: " + "9" * 40)
    bad = bad.replace("usage: 51.1%", "usage: 99999.0%")

    evidence = read_evidence([], pasted="\n".join([v1_line(0), bad, v1_line(2)]))

    assert evidence.telemetry is not None
    assert evidence.telemetry.samples["num_running"].to_list() == [36, None, 34]
    assert evidence.telemetry.samples["kv_usage_frac"].to_list() == [0.5, None, 0.522]


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=12),
    junk=st.lists(st.text(max_size=80), max_size=6),
    seed=st.integers(0, 999),
)
def test_no_damage_of_a_log_is_an_error(
    cuts: list[tuple[int, int]], junk: list[str], seed: int
) -> None:
    rng = random.Random(seed)
    families = ["v1", "v0", "iteration", "sglang", "triton"]
    lines = [line for f in rng.sample(families, 2) for line in plain(f, 4)]
    for start, length in cuts:
        i = rng.randrange(len(lines))
        lines[i] = lines[i][:start] + lines[i][start + length :]
    lines += junk
    rng.shuffle(lines)

    evidence = read_evidence([], pasted="\n".join([ACCESS_LINE, *lines]))

    assert evidence.sources


def test_memory_stays_bounded_whatever_the_length() -> None:
    """Rows of a window, kept notices and examples do not grow with the log."""
    num = 3 * MAX_KEPT

    def lines() -> Iterator[tuple[int, str]]:
        for i in range(num):
            yield i + 1, f"INFO 10-14 14:43:00 [async_llm.py:270] Added request cmpl-{i}."

    reader = LogReader(Source.from_text("server.log", "x"))
    for record in read_records(lines(), reader.seen):
        reader.take(record)
    found = reader.finish()

    assert found.report.recognised == num
    assert len(found.notices) == 2 * MAX_KEPT
    assert found.notices[-1].values["request"] == f"cmpl-{num - 1}"
    assert any(f"{num - 2 * MAX_KEPT} notices" in n for n in found.report.notes)


def test_records_come_out_while_lines_go_in() -> None:
    taken = 0

    def lines() -> Iterator[tuple[int, str]]:
        nonlocal taken
        for i in range(10 * WINDOW_LINES):
            taken += 1
            yield i + 1, v1_line(i % 1000)

    next(iter(read_records(lines(), Reading())))

    assert taken == WINDOW_LINES


def test_a_very_long_line_is_read_in_pieces_and_bounded() -> None:
    found = read([v1_line(0), "x" * 3_000_000, v1_line(1)])

    assert found.samples.height == 2
    assert all(len(e) <= 160 for e in found.report.skipped_examples)


def test_metrics_pasted_below_a_log_are_read_too() -> None:
    metrics = [
        'vllm:num_preemptions_total{engine="0",model_name="a"} 12.0',
        'vllm:num_requests_running{engine="0",model_name="a"} 4.0',
    ]

    evidence = read_evidence(
        [], pasted="\n".join([*plain("v1", 3), "2025-10-14 14:44:00", *metrics])
    )

    assert evidence.telemetry is not None
    assert evidence.telemetry.samples.height == 4
    assert evidence.telemetry.samples["preemptions_total"].to_list()[-1] == 12
    assert evidence.telemetry.samples["line"].to_list()[-1] in (4, 5, 6)


def test_quoted_and_indented_lines_are_read() -> None:
    lines = plain("v1", 6)

    for mark in ("> ", "    ", "- ", "\t"):
        assert read([mark + line for line in lines]).samples.height == 6
