"""What collectors, terminals and pastes do to a log changes nothing of what is read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tests.evidence_log_builders import (
    ACCESS_LINE,
    COLOURS,
    LINES,
    PREFIXES,
    clock,
    plain,
    prefixed,
    read,
    v1_line,
    values,
    wrapped,
)
from traces.evidence.records import Reading, read_records

FAMILIES = sorted(LINES)
NUM = 12


def records(lines: list[str]) -> list[str]:
    return [r.text for r in read_records(enumerate(lines, start=1), Reading())]


@pytest.mark.parametrize("prefix", sorted(PREFIXES))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_prefix_is_taken_off_every_grammar(family: str, prefix: str) -> None:
    lines = plain(family, NUM)

    found = read(prefixed(lines, prefix))

    assert found.samples.height == NUM
    assert_frame_equal(values(found), values(read(lines)), check_column_order=False)


@pytest.mark.parametrize("column", [80, 120, 160])
@pytest.mark.parametrize("prefix", sorted(set(PREFIXES) - {"json-file"}))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_break_at_a_column_is_undone(family: str, prefix: str, column: int) -> None:
    lines = plain(family, NUM)

    found = read(wrapped(prefixed(lines, prefix), column))

    assert found.samples.height == NUM
    assert_frame_equal(values(found), values(read(lines)), check_column_order=False)


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    prefix=st.sampled_from(sorted(set(PREFIXES) - {"json-file"})),
    column=st.integers(70, 260),
    num=st.integers(3, 40),
    access=st.booleans(),
    strip=st.booleans(),
)
def test_any_column_and_prefix_give_the_plain_log(
    family: str, prefix: str, column: int, num: int, access: bool, strip: bool
) -> None:
    lines = plain(family, num)
    pasted = [x for line in lines for x in (line, *([ACCESS_LINE] if access else []))]

    found = read(wrapped(prefixed(pasted, prefix), column, strip=strip))

    assert found.samples.height == num
    columns = [c for c in values(read(lines)).columns if c != "t_s"]
    assert_frame_equal(values(found).select(columns), values(read(lines)).select(columns))


@pytest.mark.parametrize("colour", sorted(COLOURS))
@pytest.mark.parametrize("family", FAMILIES)
def test_colour_codes_are_removed(family: str, colour: str) -> None:
    lines = plain(family, NUM)

    found = read([COLOURS[colour](line) for line in lines])

    assert found.samples.height == NUM
    assert_frame_equal(values(found), values(read(lines)), check_column_order=False)


@pytest.mark.parametrize("colour", ["escape", "caret"])
def test_colours_and_a_break_that_counts_what_is_seen(colour: str) -> None:
    lines = plain("v1", NUM)
    coloured = []
    for line in lines:
        first, *more = wrapped([line], 100)
        coloured += [COLOURS[colour](first), *more]

    found = read(coloured)

    assert_frame_equal(values(found), values(read(lines)), check_column_order=False)


@pytest.mark.parametrize("prefix", ["none", "docker", "process", "cri"])
@pytest.mark.parametrize("family", FAMILIES)
def test_records_glued_to_one_line_are_split(family: str, prefix: str) -> None:
    lines = plain(family, NUM)
    one = prefixed(lines, prefix)

    found = read(["".join(one[:5]), *one[5:]])

    assert found.samples.height == NUM
    assert_frame_equal(values(found), values(read(lines)), check_column_order=False)
    assert found.samples["line"].to_list()[:6] == [1, 1, 1, 1, 1, 2]


def test_a_record_behind_a_progress_bar_is_found_in_mid_line() -> None:
    bar = "Processed prompts:   0%|      | 34/10000 [00:29<3:36:54,  1.31s/it, est. speed input: 407.31 toks/s]"

    found = read([bar + line for line in plain("v0", 4)])

    assert found.samples.height == 4
    assert found.report.skipped_examples == ()


def test_carriage_returns_of_a_progress_bar_end_a_line() -> None:
    found = read(["10%|#  | 1/10\r20%|## | 2/10\r" + v1_line(1), v1_line(2)])

    assert found.samples["line"].to_list() == [1, 2]


def test_lines_that_windows_ended_are_the_same() -> None:
    lines = plain("v1", 5)

    assert_frame_equal(values(read([line + "\r" for line in lines])), values(read(lines)))


def test_access_lines_between_are_skipped_and_counted() -> None:
    found = read([x for line in plain("v1", 5) for x in (line, ACCESS_LINE)])

    assert (found.samples.height, found.report.recognised, found.report.skipped) == (5, 5, 5)
    assert found.report.skipped_examples == ()


def test_a_cri_line_in_parts_is_one_record() -> None:
    stamp = "2026-04-15T09:34:02.775110932Z"

    found = records(
        [
            f"{stamp} stdout P (APIServer pid=1) INFO 04-15 09:34:02 [model.py:1678] Using max ",
            f"{stamp} stderr F something else",
            f"{stamp} stdout F model len 262144",
        ]
    )

    assert found == [
        "something else",
        "INFO 04-15 09:34:02 [model.py:1678] Using max model len 262144",
    ]


def test_a_break_inside_lines_that_each_have_a_stamp_is_undone() -> None:
    stamp = "2025-10-14T14:43:00.000000000Z "
    lines = plain("v1", 6)

    found = read([stamp + piece for piece in wrapped(lines, 90)])

    columns = [c for c in values(read(lines)).columns if c != "t_s"]
    assert_frame_equal(values(found).select(columns), values(read(lines)).select(columns))


def test_a_break_between_words_is_undone() -> None:
    lines, broken = plain("v1", 8), []
    for line in lines:
        row = ""
        for word in line.split(" "):
            if len(row) + 1 + len(word) > 100:
                broken.append(row)
                row = word
            else:
                row = f"{row} {word}" if row else word
        broken.append(row)

    assert_frame_equal(values(read(broken)), values(read(lines)))


def test_a_cut_record_gives_what_is_left_of_it() -> None:
    found = read([v1_line(3)[-60:], v1_line(4), v1_line(5)[:130]])

    assert found.samples["num_running"].to_list() == [None, 32, None]
    assert found.samples["generation_tokens_per_s"].to_list() == [None, 704.2, 705.2]


def test_ray_copies_are_counted() -> None:
    seen = Reading()
    line = "(WorkerDict pid=1, ip=192.0.2.1) something [repeated 15x across cluster]"

    (record,) = read_records([(1, line)], seen)

    assert (record.copies, record.text) == (15, "something")
    assert record.process == "WorkerDict pid=1, ip=192.0.2.1"


def test_the_stamp_of_the_outermost_prefix_is_kept() -> None:
    (record,) = read_records(
        [
            (
                1,
                f"2025-10-15T00:04:38.757899744Z (APIServer pid=1) INFO 10-14 {clock(0)} [x.py:1] y",
            )
        ],
        Reading(),
    )

    assert record.outer == "2025-10-15T00:04:38.757899744Z"
    assert record.text == f"INFO 10-14 {clock(0)} [x.py:1] y"
