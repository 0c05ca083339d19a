"""Settings of the live recorders, and the folders that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.live.settings import LiveSettings, load_settings
from traces.errors import SettingsError
from traces.run_folders import list_run_folders, make_run_folder, parse_run_folder

NOON = 1_764_590_400.0  # 2025-12-01 12:00:00 UTC


def test_nothing_said_gives_the_defaults() -> None:
    assert load_settings({}) == LiveSettings()


def test_the_environment_is_read_by_name() -> None:
    settings = load_settings(
        {
            "KV_REPLAY_OUT": "/data/kv",
            "KV_REPLAY_PART_STEPS": "1000",
            "KV_REPLAY_DISK_CAP": "1.5 GiB",
            "KV_REPLAY_HASH_IDS": "yes",
            "KV_REPLAY_PREFIX_IDS": "0",
            "KV_REPLAY_BLOCKS": "50",
            "KV_REPLAY_UNSUPPORTED": "run-unrecorded",
            "UNRELATED": "x",
        }
    )

    assert settings.out == Path("/data/kv")
    assert settings.part_steps == 1000
    assert settings.disk_cap == 1_610_612_736
    assert settings.hash_ids
    assert not settings.prefix_ids
    assert settings.blocks == 50
    assert settings.unsupported == "run-unrecorded"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500", 500), ("2kb", 2_000), ("3MiB", 3_145_728), ("1T", 10**12)],
)
def test_sizes_are_taken_with_units(text: str, size: int) -> None:
    assert load_settings({"KV_REPLAY_DISK_CAP": text}).disk_cap == size


def test_additional_config_wins_over_the_environment() -> None:
    settings = load_settings(
        {"KV_REPLAY_OUT": "/a", "KV_REPLAY_FLUSH_S": "5"},
        {"kv_replay": {"out": "/b", "hash_ids": True}, "another": 1},
    )

    assert settings.out == Path("/b")
    assert settings.flush_s == 5.0
    assert settings.hash_ids


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"KV_REPLAY_PART_STEPS": "0"}, "KV_REPLAY_PART_STEPS must be a number from 1"),
        ({"KV_REPLAY_PART_STEPS": "1.5"}, "must be a whole number, not '1.5'"),
        ({"KV_REPLAY_FLUSH_S": "soon"}, "not 'soon'"),
        ({"KV_REPLAY_FLUSH_S": "nan"}, "not 'nan'"),
        ({"KV_REPLAY_DISK_CAP": "20 gallons"}, "such as 500MiB or 20GiB, not '20 gallons'"),
        ({"KV_REPLAY_HASH_IDS": "perhaps"}, "must be 1 or 0, not 'perhaps'"),
        ({"KV_REPLAY_OUT": ""}, "must be a directory, not ''"),
        ({"KV_REPLAY_UNSUPPORTED": "ignore"}, "Choose refuse or run-unrecorded"),
    ],
)
def test_a_setting_that_cannot_be_names_its_variable(
    environ: dict[str, str], fault: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ)

    assert fault in str(caught.value)
    assert next(iter(environ)) in str(caught.value)


def test_an_unknown_key_of_additional_config_lists_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match=r"unknown setting 'output'\. Known are out, part_steps"
    ):
        load_settings({}, {"kv_replay": {"output": "/x"}})


def test_a_folder_says_when_by_which_server_and_for_which_rank(tmp_path: Path) -> None:
    made = make_run_folder(tmp_path / "new", "rank", 3, "a1b2c3", NOON)

    assert made.path is not None
    assert made.path.name == "20251201T120000Z-a1b2c3-rank-03"
    assert parse_run_folder(made.path) == made


def test_a_taken_name_is_never_written_into(tmp_path: Path) -> None:
    first = make_run_folder(tmp_path, "rank", 0, "a1b2c3", NOON)
    second = make_run_folder(tmp_path, "rank", 0, "a1b2c3", NOON)

    assert first.path != second.path
    assert second.name == "20251201T120000Z-a1b2c3-rank-00-2"


def test_folders_are_listed_by_start_and_rank_and_others_left_out(tmp_path: Path) -> None:
    (tmp_path / "something").mkdir()
    make_run_folder(tmp_path, "rank", 1, "bb", NOON + 60)
    make_run_folder(tmp_path, "rank", 1, "aa", NOON)
    make_run_folder(tmp_path, "stats", 0, "aa", NOON)
    make_run_folder(tmp_path, "rank", 0, "aa", NOON)

    assert [f.name for f in list_run_folders(tmp_path)] == [
        "20251201T120000Z-aa-rank-00",
        "20251201T120000Z-aa-rank-01",
        "20251201T120000Z-aa-stats-00",
        "20251201T120100Z-bb-rank-01",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KV_REPLAY_OUT", "~nobody-of-that-name/x"),
        ("KV_REPLAY_OUT", "runs/\udcff"),
        ("KV_REPLAY_SALT", "\udcff"),
        ("KV_REPLAY_DISK_CAP", "9" * 400),
    ],
)
def test_odd_text_is_refused_by_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings({"KV_REPLAY_OUT": "runs", name: value})
