"""One workload under changed settings: what pool a change leaves, and runs that are made once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engine.config import EngineSettings, resolve
from engine.trials import Trials, run_id, simulated, whole
from tests.engine_builders import make_request, make_settings, make_trace
from traces.errors import SettingsError, WorkloadError
from traces.recording import open_recording
from traces.workload import Workload

# Two that do not fit together to their ends: 5 blocks of 4 tokens, 3 each in the end.
PRESSED = make_trace(make_request("a", 6, 6), make_request("b", 6, 6, arrival=1))
# A block of this model has 16 tokens of 128 KiB: 2 MiB. The card has 25,254,407,700 bytes; 1 % of
# them are 120.4 blocks. The sum of memory.py alone would give 2,635 blocks.
CARD = EngineSettings(
    model="llama-3.1-8b", device="rtx-4090", num_gpu_blocks=2_589, max_num_seqs=256,
    max_num_batched_tokens=2_048,
)  # fmt: skip


def trials(tmp_path: Path, base: EngineSettings, workload: Workload = PRESSED) -> Trials:
    return Trials(workload, base, lambda id_: tmp_path / id_)


def pool(tmp_path: Path, changes: dict[str, Any], base: EngineSettings = CARD) -> int:
    return resolve(trials(tmp_path, base).settings(changes)).num_gpu_blocks


# ---- the pool ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "num_gpu_blocks"),
    [
        ({}, 2_589),
        ({"gpu_memory_utilization": 0.93}, 2_709),
        ({"gpu_memory_utilization": 0.91}, 2_469),
        ({"block_size": 32}, 1_294),
        ({"watermark": 0.05}, 2_589),
    ],
)
def test_a_given_pool_grows_by_the_memory_that_a_change_frees(
    changes: dict[str, Any], num_gpu_blocks: int, tmp_path: Path
) -> None:
    assert pool(tmp_path, changes) == num_gpu_blocks


def test_fp8_halves_a_block_so_twice_as_many_fit(tmp_path: Path) -> None:
    told = resolve(trials(tmp_path, CARD).settings({"kv_cache_dtype": "fp8"}))

    assert told.block_bytes == 2**20
    assert told.num_gpu_blocks == 5_179  # and the half block that the sum had rounded away


def test_fp8_weights_leave_half_their_bytes_to_the_pool(tmp_path: Path) -> None:
    # 6.98 G parameters of linear layers, one byte less each: 3,328 blocks of 2 MiB.
    assert pool(tmp_path, {"weight_dtype": "fp8"}) == 2_589 + 3_328


def test_two_devices_hold_more_than_twice_the_pool_for_the_weights_are_shared(
    tmp_path: Path,
) -> None:
    assert pool(tmp_path, {"tensor_parallel_size": 2}) > 2 * 2_589
    assert pool(tmp_path, {"device": "h100-sxm"}) > 2 * 2_589


def test_a_pool_in_blocks_beside_a_memory_change_is_the_pool(tmp_path: Path) -> None:
    assert pool(tmp_path, {"num_gpu_blocks": 100, "kv_cache_dtype": "fp8"}) == 100
    assert pool(tmp_path, {"kv_tokens": 1_600}) == 101  # and the null block


def test_a_pool_that_was_given_in_tokens_changes_like_one_in_blocks(tmp_path: Path) -> None:
    tokens = CARD.with_(num_gpu_blocks=None, kv_tokens=41_408)

    assert pool(tmp_path, {"gpu_memory_utilization": 0.93}, tokens) == 2_709


def test_a_derived_pool_stays_derived(tmp_path: Path) -> None:
    derived = CARD.with_(num_gpu_blocks=None)

    settings = trials(tmp_path, derived).settings({"gpu_memory_utilization": 0.93})

    assert settings.num_gpu_blocks is None
    assert resolve(settings).num_gpu_blocks == 2_635 + 120


def test_a_change_that_takes_the_whole_pool_is_refused_with_the_sums(tmp_path: Path) -> None:
    small = CARD.with_(num_gpu_blocks=200)

    with pytest.raises(SettingsError, match=r"takes 0\.5 GiB from a pool of 0\.4 GiB"):
        trials(tmp_path, small).settings({"gpu_memory_utilization": 0.90})


def test_a_pool_that_cannot_be_by_our_sum_refuses_memory_changes_alone(tmp_path: Path) -> None:
    impossible = CARD.with_(model="llama-3.1-70b")

    assert pool(tmp_path, {"num_gpu_blocks": 3_000}, impossible) == 3_000
    with pytest.raises(
        SettingsError, match=r"given as 2,589 blocks.*set num_gpu_blocks instead"
    ):
        pool(tmp_path, {"kv_cache_dtype": "fp8"}, impossible)


# ---- runs ----------------------------------------------------------------------------------------


def test_a_run_is_made_once_and_found_again(tmp_path: Path) -> None:
    bench = trials(tmp_path, make_settings(4))

    first = bench.run({})
    assert first is not None
    stamp = (first.paths[0] / "closed.json").stat().st_mtime_ns
    os.utime(first.paths[0], (0, 0))
    second = bench.run({"watermark": 0.0})  # what the base has

    assert second is not None
    assert second.paths == first.paths
    assert (first.paths[0] / "closed.json").stat().st_mtime_ns == stamp
    assert first.paths[0].stat().st_mtime > 0  # noted as used
    with open_recording(first.paths[0]) as recording:
        assert recording.steps["num_preempted"].sum() > 0
        assert recording.label == first.paths[0].name


def test_a_larger_pool_ends_preemption(tmp_path: Path) -> None:
    done = trials(tmp_path, make_settings(4)).run({"num_gpu_blocks": 9})

    assert done is not None
    assert done.num_gpu_blocks == 9
    with open_recording(done.paths[0]) as recording:
        assert recording.steps["num_preempted"].sum() == 0


def test_a_cancelled_run_leaves_nothing(tmp_path: Path) -> None:
    many = make_trace(*(make_request(f"r{i}", 6, 9_000) for i in range(4)))

    done = trials(tmp_path, make_settings(9_000, max_model_len=10_000), many).run(
        {}, cancelled=lambda: True
    )

    assert done is None
    assert list(tmp_path.iterdir()) == []


def test_one_run_is_simulated_without_a_table_of_changes(tmp_path: Path) -> None:
    settings = make_settings(5)

    made = simulated(PRESSED, settings, lambda id_: tmp_path / id_)

    assert made == tmp_path / run_id(PRESSED, asdict(settings))
    assert open_recording(made).requests.height == 2
    assert trials(tmp_path, settings).run({}).paths == (made,)  # type: ignore[union-attr]


def test_what_fails_on_the_way_leaves_nothing_half_made(tmp_path: Path) -> None:
    def fail(part: Path) -> bool:
        part.mkdir()
        (part / "half").write_text("x")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        whole(tmp_path / "run", "done", fail)

    assert list(tmp_path.iterdir()) == []


def test_what_was_cancelled_leaves_what_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").write_text("half of another")

    def cancel(part: Path) -> bool:
        part.mkdir()
        return False

    assert whole(tmp_path / "run", "done", cancel) is None
    assert [p.name for p in tmp_path.rglob("*")] == ["run", "old"]


def test_what_another_thread_made_meanwhile_stays(tmp_path: Path) -> None:
    def make(part: Path) -> bool:
        part.mkdir()
        (part / "done").write_text("second")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "done").write_text("first")
        return True

    assert whole(tmp_path / "run", "done", make) == tmp_path / "run"
    assert (tmp_path / "run" / "done").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_replicas_share_the_requests(tmp_path: Path) -> None:
    done = trials(tmp_path, make_settings(4)).run({"replicas": 2})

    assert done is not None
    assert len(done.paths) == 2
    tables = []
    for path in done.paths:
        with open_recording(path) as recording:
            tables.append(recording.requests.select("request_id", "num_preemptions"))
    rows = pl.concat(tables).sort("request_id")
    assert rows["request_id"].to_list() == ["a", "b"]
    assert rows["num_preemptions"].sum() == 0


def test_more_replicas_than_requests_run_without_empty_ones(tmp_path: Path) -> None:
    done = trials(tmp_path, make_settings(4)).run({"replicas": 5})

    assert done is not None
    assert len(done.paths) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replicas": 0}, "whole number from 1 to 64"),
        ({"replicas": True}, "whole number from 1 to 64"),
        ({"replicas": 2, "router": "psychic"}, "router 'psychic' is not known"),
        ({"rate_scale": "fast"}, "rate_scale must be a number"),
        ({"max_num_seqs": 10**9}, "at most 65,536"),
    ],
)
def test_changes_that_cannot_be_are_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=said):
        trials(tmp_path, make_settings(4)).run(changes)


def test_a_rate_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="not a positive number"):
        trials(tmp_path, make_settings(4)).run({"rate_scale": 0.0})


def test_the_name_of_a_run_is_what_made_it() -> None:
    other = make_trace(make_request("a", 6, 6), make_request("b", 6, 7, arrival=1))
    named: Callable[..., str] = lambda w, s: run_id(w, asdict(s))  # noqa: E731

    first = named(PRESSED, make_settings(4))

    assert len(first) == 32
    assert int(first, 16) >= 0
    assert named(PRESSED, make_settings(4)) == first
    assert named(PRESSED, make_settings(5)) != first
    assert named(other, make_settings(4)) != first
    assert named(PRESSED.scale_rate(2.0), make_settings(4)) != first
