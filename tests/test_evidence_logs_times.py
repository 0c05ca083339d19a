"""Time stamps: read in any form, put on one clock, written back as they were."""

from __future__ import annotations

import pytest

from tests.evidence_log_builders import read, v1_line
from traces.evidence.times import from_unix, parse_stamp, shift


@pytest.mark.parametrize(
    ("first", "after", "written"),
    [
        ("2025-10-15T00:04:38Z", 60, "2025-10-15T00:05:38Z"),
        ("2025-10-15T00:04:38.757899744Z", 60, "2025-10-15T00:05:38Z"),
        ("2025-12-31T23:59:58+02:00", 5, "2026-01-01T00:00:03+02:00"),
        ("2026-05-28 12:53:45", 401, "2026-05-28 13:00:26"),
        ("11-26 14:43:02", 20, "11-26 14:43:22"),
        ("12-31 23:59:59", 2, "01-01 00:00:01"),
        ("14:43:02", 20.9, "14:43:22"),
        ("23:59:59", 2, "00:00:01"),
        ("Oct  5 00:04:38", 86_400, "Oct  6 00:04:38"),
        ("0514 21:01:55", 12, "0514 21:02:07"),
        ("01/15/2025-10:22:33", 1, "01/15/2025-10:22:34"),
        ("07-28 06:40:59", -1702, "07-28 06:12:37"),
        (None, 12.5, "at 12.5 s"),
        ("no time at all", 3, "at 3.0 s"),
    ],
)
def test_a_time_is_written_in_the_form_of_the_source(
    first: str | None, after: float, written: str
) -> None:
    assert shift(first, after) == written


def test_digits_of_a_second_are_cut_and_not_rounded() -> None:
    assert shift("2025-11-10T11:15:08Z", 25.7369, 3) == "2025-11-10T11:15:33.736Z"
    assert shift("11:15:08", 25.7369, 1) == "11:15:33.7"


@pytest.mark.parametrize(
    "text", ["", "hello", "2025-02-30T11:11:11Z", "25:00:00", "99-99 10:00:00"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert parse_stamp(text) is None


def test_unix_seconds_are_written_in_utc() -> None:
    assert from_unix(1760486678.7) == "2025-10-15T00:04:38Z"


def test_of_two_clocks_the_collectors_is_used_and_the_distance_said() -> None:
    found = read(
        [
            "2025-10-15T00:04:38.757899744Z " + v1_line(0).replace("14:43:00", "17:04:38"),
            "2025-10-15T00:04:48.758488632Z " + v1_line(1).replace("14:43:05", "17:04:48"),
        ]
    )

    assert found.first_time == "2025-10-15T00:04:38Z"
    assert found.samples["t_s"].to_list() == pytest.approx([0.7579, 10.758489], abs=1e-4)
    assert any("7 h behind" in note for note in found.report.notes)


def test_a_record_without_a_stamp_has_no_time() -> None:
    found = read([v1_line(0), v1_line(1).split("] ", 1)[1], v1_line(2)])

    assert found.samples["t_s"].to_list() == [0.0, None, 10.0]


def test_midnight_is_passed_where_there_is_only_a_time_of_day() -> None:
    line = (
        "[{} TP0] Decode batch. #running-req: 5, #token: 10, token usage: 0.50, #queue-req: 0"
    )

    found = read([line.format(t) for t in ("23:59:50", "23:59:58", "00:00:06")])

    assert found.samples["t_s"].to_list() == [0.0, 8.0, 16.0]
    assert found.first_time == "23:59:50"


def test_new_year_is_passed_where_there_is_no_year() -> None:
    lines = [
        v1_line(0).replace("10-14 14:43:00", t) for t in ("12-31 23:59:55", "01-01 00:00:05")
    ]

    assert read(lines).samples["t_s"].to_list() == [0.0, 10.0]


def test_silence_stays_a_gap() -> None:
    lines = [v1_line(0), v1_line(1), v1_line(65)]

    assert read(lines).samples["t_s"].to_list() == [0.0, 5.0, 325.0]


def test_lines_of_another_process_that_come_late_are_put_in_order() -> None:
    found = read([v1_line(0), v1_line(2), v1_line(1), v1_line(3)])

    assert found.samples["t_s"].to_list() == [0.0, 5.0, 10.0, 15.0]
    assert found.samples["line"].to_list() == [1, 3, 2, 4]
    assert any("put in order" in note for note in found.report.notes)


def test_a_log_without_times_keeps_its_order() -> None:
    found = read([v1_line(i).split("] ", 1)[1] for i in range(4)])

    assert found.first_time is None
    assert found.samples["num_waiting"].to_list() == [9, 10, 11, 12]
    assert any("No line has a time" in note for note in found.report.notes)


def test_clocks_of_two_parts_of_a_program_are_put_together() -> None:
    found = read(
        [
            v1_line(0),
            "2025-10-14T12:43:01.500000Z  INFO _core::llm::slot: request set to finish: cached_gpu_tokens: 0; cached_host_tokens: 0; cached_disk_tokens: 0 request_id=a",
            v1_line(1),
            v1_line(2),
            v1_line(3),
        ]
    )

    assert found.notices[0].t_s == 1.5
    assert found.first_time == "10-14 14:43:00"
