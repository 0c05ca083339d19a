"""Counting quiet lines by their shape gives what reading every line gives."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evidence_log_builders import (
    COLOURS,
    PREFIXES,
    iteration_line,
    plain,
    sglang_line,
    v0_line,
    v1_line,
    wrapped,
)
from traces.evidence.log_reader import LogFound, LogReader, read_log
from traces.evidence.quiet import SLICE_LINES, Shapes, read_blocks
from traces.evidence.records import WINDOW_LINES, read_records
from traces.evidence.source import Source

CASES = Path(__file__).parent / "fixtures" / "cases"
LOGS = sorted(p for p in CASES.glob("*/*") if p.suffix in (".log", ".txt"))
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/usr/lib/vllm/engine.py", line 12, in step',
    "    return self.core.step(17)",
    "ValueError: 3 is no rank",
)
OTHERS = (
    "",
    "   ",
    "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.07it/s]",
    "Processed prompts:  12%|#2        | 3/25 [00:02<00:11,  1.9it/s]",
    "INFO 10-14 14:43:00 [launcher.py:38] Route: /health, Methods: GET",
    "WARNING 10-14 14:43:00 [protocol.py:71] fields were ignored: {'a'}",
    "a line of nobody",
    "INFO an \\x1b[32mescaped\\x1b[0m code",
    "INFO #033 and #045 and a tail",
    'vllm:num_requests_running{engine="0"} 3.0',
    "message repeated 3 times: [ INFO nothing ]",
    '{"level":30,"msg":"INFO started 12"}',
    "10%\rINFO 20%\rdone",
    "caf\u00e9 \u0661\u0662 INFO 10-14 14:43:00 x",
)


def access(i: int) -> str:
    status = ("200 OK", "200 OK", "404 Not Found", "500")[i % 4]
    return (
        f'INFO:     198.51.100.{i % 250}:{40000 + i} - "POST /v1/completions HTTP/1.1" {status}'
    )


def read_each(source: Source) -> LogFound:
    """As read_log, every line by itself."""
    reader = LogReader(source)
    for record in read_records(source.lines(), reader.seen):
        reader.take(record)
    return reader.finish()


def assert_same(raw: str | bytes) -> LogFound:
    """Both ways, shapes being learned after each few lines; what they give, which is the same."""
    with patch("traces.evidence.quiet.SLICE_LINES", 4):
        fast = read_log(Source.from_text("server.log", raw))
    each = read_each(Source.from_text("server.log", raw))
    for field in fields(LogFound):
        a, b = getattr(fast, field.name), getattr(each, field.name)
        same = a.equals(b) if isinstance(a, pl.DataFrame) else a == b
        assert same, (field.name, a, b)
    return fast


@pytest.mark.parametrize("path", LOGS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_logs_of_the_cases_are_read_the_same(path: Path) -> None:
    raw = path.read_bytes()
    mixed = []
    for i, line in enumerate(raw.decode(errors="replace").splitlines()):
        mixed += [line, *(access(n) for n in range(i % 5))]

    assert_same(raw)
    assert_same("\n".join(mixed * 3))


def test_access_lines_are_not_taken_apart_one_by_one() -> None:
    lines = [PREFIXES["process"](access(i), i) for i in range(3 * WINDOW_LINES)]
    source = Source.from_text("server.log", "\n".join([*lines, *plain("v1", 3)]) + "\n")
    taken = 0

    class Counting(LogReader):
        def take(self, record: object) -> None:
            nonlocal taken
            taken += 1

    found = assert_same("\n".join([*lines, *plain("v1", 3)]))
    reader = Counting(source)
    for record in read_blocks(source.blocks(), reader.seen, reader.judge, reader.hungry):
        reader.take(record)

    assert found.report.recognised == 3
    assert found.report.skipped == 3 * WINDOW_LINES
    assert reader.seen.num_lines == 3 * WINDOW_LINES + 3
    assert taken < SLICE_LINES + 100
    assert reader.seen.quiet + taken == 3 * WINDOW_LINES + 3


def test_a_quiet_line_that_is_broken_is_joined_with_the_next() -> None:
    long = (
        'INFO:     198.51.100.7:40007 - "POST /v1/completions HTTP/1.1" 200 OK and a tail of it'
    )
    lines = wrapped([long, v1_line(0)] * 40 + [access(i) for i in range(200)], 72)

    found = assert_same("\n".join(lines))

    assert found.samples.height == 40
    assert any("broken at column 72" in note for note in found.report.notes)


def test_quiet_lines_count_where_the_column_of_a_break_is_sought() -> None:
    """Longer whole lines between broken ones say that these were not broken at their own length."""
    whole = [access(i % 200) + " " + "x" * 60 for i in range(WINDOW_LINES + 200)]
    broken = wrapped([v1_line(i) for i in range(4)], 100)

    found = assert_same("\n".join([*whole, *broken, access(1)]))
    as_long = [line[:100] for line in whole]
    assert_same("\n".join([*as_long, *broken, access(1)]))

    assert not any("broken at column" in note for note in found.report.notes)


def test_partial_lines_of_a_runtime_are_joined_around_quiet_lines() -> None:
    stamp = "2025-10-14T14:43:00.000000000Z stdout"
    quiet = [f"{stamp} F {access(i)}" for i in range(60)]
    first, second = v1_line(1)[:90], v1_line(1)[90:]

    found = assert_same(
        "\n".join(
            [
                *quiet,
                f"{stamp} P {first}",
                f"{stamp} F {second}",
                *quiet,
                f"{stamp} P {first}",
                *quiet,
            ]
        )
    )

    assert found.samples.height == 2
    assert "2 partial lines were joined" in found.report.notes


def test_digits_that_are_escapes_or_numbers_of_json_are_not_taken_for_others() -> None:
    escaped = [f"INFO #0{n}[1m nothing of note here" for n in (33, 45, 33, 33, 45)]
    objects = [
        '{"log":"INFO started\\n","stream":"stderr","n":'
        + f'{n},"time":"2025-10-14T14:43:00Z"}}'
        for n in ("12", "05", "31", "07")
    ]

    assert_same("\n".join((escaped + objects) * 40))


def test_a_line_that_holds_a_word_of_a_grammar_is_always_read() -> None:
    reader = LogReader(Source.from_text("x", "x"))
    shapes = Shapes(reader.judge)

    for text in (
        v1_line(1),
        "INFO killed by signal 9",
        "INFO Exit code: 137",
        "INFO: EngineCore died",
    ):
        assert shapes._kind(text.encode(), text, reader.judge) is None
    assert shapes._kind(access(1).encode(), access(1), reader.judge) is not None


def test_of_very_many_statistics_lines_some_are_read_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traces.evidence.log_reader.MAX_READ", 1000)
    monkeypatch.setattr("traces.evidence.quiet.SLICE_LINES", 16)
    lines = [v1_line(i % 40).replace("Engine 000", f"Engine 00{i % 4}") for i in range(9000)]
    lines[8000] = "ERROR 10-14 14:43:00 [core.py:700] EngineCore encountered a fatal error."

    found = read_log(Source.from_text("server.log", "\n".join(lines)))

    read = (
        WINDOW_LINES + (9000 - WINDOW_LINES) // 11
    )  # how many were read shows at a window's end
    assert abs(found.report.recognised - read) < 60
    assert found.report.num_lines == 9000
    assert sorted(found.samples["engine_rank"].unique()) == [0, 1, 2, 3]
    assert [n.kind for n in found.notices] == ["fatal"]
    assert any("one of 11 was read" in note for note in found.report.notes)


PIECES = st.sampled_from(("access", "v1", "v0", "iteration", "sglang", "trace", "other"))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prefixes=st.lists(st.sampled_from(sorted(PREFIXES)), min_size=1, max_size=3),
    pieces=st.lists(PIECES, min_size=3, max_size=30),
    colour=st.sampled_from(("", *sorted(COLOURS))),
    column=st.sampled_from((0, 0, 60, 80, 110, 150)),
    glue=st.sampled_from((0.0, 0.0, 0.1)),
    end=st.sampled_from(("\n", "\r\n", "\r")),
)
def test_any_mixture_is_read_the_same(
    seed: int,
    prefixes: list[str],
    pieces: list[str],
    colour: str,
    column: int,
    glue: float,
    end: str,
) -> None:
    r = random.Random(seed)
    lines: list[str] = []
    for piece in pieces:
        made = {
            "access": lambda: [
                access(r.randrange(9999)) for _ in range(r.choice((1, 5, 300, 2500)))
            ],
            "v1": lambda: [v1_line(r.randrange(40))],
            "v0": lambda: [v0_line(r.randrange(40))],
            "iteration": lambda: [iteration_line(r.randrange(40)) for _ in range(3)],
            "sglang": lambda: [sglang_line(r.randrange(40))],
            "trace": lambda: list(TRACEBACK),
            "other": lambda: [r.choice(OTHERS) for _ in range(r.choice((1, 6)))],
        }[piece]()
        for line in made:
            named = PREFIXES[r.choice(prefixes)](line, r.randrange(60))
            lines.append(COLOURS[colour](named) if colour and r.random() < 0.7 else named)
    if column:
        lines = wrapped(lines, column, strip=seed % 2 == 0)
    text = "".join(line + ("" if r.random() < glue else end) for line in lines)
    if text.strip():
        assert_same(text)
