"""vLLM's stat-logger plugin: what becomes of its statistics, and what a server must not notice."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.live.samples import SAMPLE_COLUMNS, SampleTap, StatsWriter, samples_table
from engine.live.settings import LiveSettings
from traces.telemetry import Telemetry, open_telemetry
from traces.telemetry_schema import telemetry_metadata

ROOT = Path(__file__).parents[1]
POOL = 40


def scheduler_stats(used: int = 10, **changes: Any) -> SimpleNamespace:
    """vLLM's SchedulerStats by the names of its fields."""
    stats = {
        "num_running_reqs": 3,
        "num_waiting_reqs": 4,
        "num_skipped_waiting_reqs": 1,
        "kv_cache_usage": used / POOL,
        "iteration_details": None,
        "prefix_cache_stats": lookups(2, 100, 32, 1, 50, 48),
        "connector_prefix_cache_stats": None,
        "kv_connector_stats": None,
    }
    return SimpleNamespace(**stats | changes)


def lookups(*numbers: int) -> SimpleNamespace:
    names = ("requests", "queries", "hits", "preempted_requests", "preempted_queries")
    return SimpleNamespace(
        **dict(zip((*names, "preempted_hits"), numbers, strict=True)), reset=False
    )


def iteration_stats(preempted: int = 0, **changes: Any) -> SimpleNamespace:
    """vLLM's IterationStats of a step in which one prompt's first token came, and two more tokens."""
    stats = {
        "num_generation_tokens": 3,
        "prompt_token_stats": SimpleNamespace(
            total=100, computed=60, local_cache_hit=32, external_kv_transfer=8
        ),
        "num_preempted_reqs": preempted,
        "finished_requests": [],
        "time_to_first_tokens_iter": [0.5],
        "inter_token_latencies_iter": [0.02, 0.7],
    }
    return SimpleNamespace(**stats | changes)


def finished(**changes: Any) -> SimpleNamespace:
    request = {
        "request_id": "cmpl-secret",
        "finish_reason": "length",
        "e2e_latency": 2.0,
        "num_prompt_tokens": 100,
        "num_generation_tokens": 30,
        "max_tokens_param": 64,
        "queued_time": 0.25,
        "prefill_time": 0.5,
        "decode_time": 1.25,
        "num_cached_tokens": 32,
    }
    return SimpleNamespace(**request | changes)


def writing(folder: Path, **options: Any) -> tuple[StatsWriter, SampleTap]:
    meta = telemetry_metadata(engine={}, recorded_by="test", sampling="steps")
    settings = LiveSettings(out=folder, **options)
    writer = StatsWriter(settings, meta, 0, "test", 1_700_000_000.0)
    return writer, SampleTap(writer.inbox, 0, POOL, connected=False)


def record(
    folder: Path, calls: list[tuple[Any, Any]], pool: int | None = POOL, **options: Any
) -> Telemetry:
    """Telemetry of these calls of a stat logger, a second apart from 1 s on."""
    writer, _ = writing(folder, flush_s=0.05, **options)
    tap = SampleTap(writer.inbox, 0, pool, connected=True)
    for i, (scheduler, iteration) in enumerate(calls):
        tap.record(scheduler, iteration, 1.0 + i, 0.0)
    writer.start()
    writer.close("completed")
    return open_telemetry(folder)


def test_a_step_becomes_a_sample_of_what_was_said(tmp_path: Path) -> None:
    telemetry = record(tmp_path, [(scheduler_stats(), iteration_stats(preempted=2))])

    sample = telemetry.samples.row(0, named=True)
    assert sample["kv_usage_frac"] == 0.25
    assert (sample["num_running"], sample["num_waiting"]) == (3, 5)
    assert (sample["num_waiting_capacity"], sample["num_deferred"]) == (4, 1)
    assert (sample["num_preempted"], sample["preemptions_total"]) == (2, 2)
    assert (sample["prompt_tokens"], sample["prompt_computed_tokens"]) == (100, 60)
    assert (sample["prompt_cached_tokens"], sample["prompt_external_tokens"]) == (32, 8)
    assert (sample["generation_tokens"], sample["iteration_tokens"]) == (3, 63)
    assert (sample["prefix_query_tokens"], sample["prefix_hit_tokens"]) == (100, 32)
    assert (sample["resumed_lookups"], sample["resumed_hit_tokens"]) == (1, 48)
    assert (sample["max_ttft_s"], sample["max_itl_s"]) == (0.5, 0.7)
    assert telemetry.complete


def test_used_blocks_are_inferred_from_a_share_that_is_whole_blocks(tmp_path: Path) -> None:
    telemetry = record(tmp_path, [(scheduler_stats(used=13), None)])

    assert telemetry.samples["used_blocks"].to_list() == [13]
    assert telemetry.state("used_blocks").to_list() == ["inferred"]
    assert telemetry.state("kv_usage_frac").to_list() == ["known"]


def test_a_pool_that_does_not_fit_the_shares_infers_nothing(tmp_path: Path) -> None:
    calls = [(scheduler_stats(kv_cache_usage=0.333), None), (scheduler_stats(used=10), None)]

    telemetry = record(tmp_path, calls)

    assert telemetry.state("used_blocks").to_list() == ["missing", "missing"]


def test_a_step_without_output_produced_nothing(tmp_path: Path) -> None:
    telemetry = record(tmp_path, [(scheduler_stats(), None)])

    sample = telemetry.samples.row(0, named=True)
    assert (sample["generation_tokens"], sample["num_preempted"]) == (0, 0)
    assert sample["max_itl_s"] is None


def test_outputs_without_the_scheduler_s_statistics_leave_its_values_missing(
    tmp_path: Path,
) -> None:
    telemetry = record(tmp_path, [(None, iteration_stats())])

    assert telemetry.samples["generation_tokens"].to_list() == [3]
    for name in ("kv_usage_frac", "num_running", "prefix_lookups", "used_blocks"):
        assert telemetry.state(name).to_list() == ["missing"]


def test_the_counter_goes_on_and_samples_know_the_time_between(tmp_path: Path) -> None:
    calls = [(scheduler_stats(), iteration_stats(preempted=n)) for n in (1, 0, 3)]

    samples = record(tmp_path, calls).samples

    assert samples["preemptions_total"].to_list() == [1, 1, 4]
    assert samples["t_s"].to_list() == [1.0, 2.0, 3.0]
    assert samples["interval_s"].to_list() == [None, 1.0, 1.0]


def test_details_of_a_step_are_kept_where_vllm_sends_them(tmp_path: Path) -> None:
    details = SimpleNamespace(
        iteration_index=77, num_ctx_requests=2, num_ctx_tokens=500, num_generation_requests=9,
        num_generation_tokens=40, elapsed_ms=41.7, is_dummy=False,
    )  # fmt: skip

    telemetry = record(tmp_path, [(scheduler_stats(iteration_details=details), None)])

    sample = telemetry.samples.row(0, named=True)
    assert (sample["step"], sample["duration_s"]) == (77, pytest.approx(0.0417))
    assert (sample["num_context_requests"], sample["context_tokens"]) == (2, 500)
    assert (sample["num_decode_requests"], sample["decode_tokens"]) == (9, 40)


def test_copies_of_the_connector_are_summed_over_their_labels(tmp_path: Path) -> None:
    data = {
        "vllm:kv_offload_load_bytes": {(): 4096},
        "vllm:kv_offload_load_time": {("a",): 0.25, ("b",): 0.5},
    }
    stats = scheduler_stats(
        kv_connector_stats={"types": {}, "data": data},
        connector_prefix_cache_stats=lookups(1, 64, 16, 2, 80, 40),
    )

    sample = record(tmp_path, [(stats, None)]).samples.row(0, named=True)

    assert (sample["load_bytes"], sample["load_s"]) == (4096, 0.75)
    assert sample["store_bytes"] is None
    assert (sample["external_query_tokens"], sample["external_hit_tokens"]) == (64, 16)
    assert sample["external_resumed_query_tokens"] == 80
    assert sample["external_resumed_hit_tokens"] == 40


def test_a_request_that_ended_has_its_times_and_no_readable_id(tmp_path: Path) -> None:
    step = iteration_stats(finished_requests=[finished()])

    telemetry = record(tmp_path, [(scheduler_stats(), None)] * 4 + [(scheduler_stats(), step)])

    assert telemetry.finished_requests is not None
    (request,) = telemetry.finished_requests.rows(named=True)
    assert (request["t_s"], request["arrival_s"], request["e2e_s"]) == (5.0, 3.0, 2.0)
    assert (request["prompt_tokens"], request["output_tokens"]) == (100, 30)
    assert (request["queued_s"], request["reason"]) == (0.25, "length")
    assert telemetry.samples["num_finished"].to_list() == [0, 0, 0, 0, 1]
    for part in tmp_path.rglob("*.parquet"):
        assert b"secret" not in part.read_bytes()
    assert len(request["request_id"]) == 24


def test_preemptions_of_a_request_are_kept_where_a_newer_vllm_counts_them(
    tmp_path: Path,
) -> None:
    step = iteration_stats(finished_requests=[finished(), finished(num_preemptions=3)])

    requests = record(tmp_path, [(scheduler_stats(), step)]).finished_requests

    assert requests is not None
    assert requests["num_preemptions"].to_list() == [None, 3]


def test_ids_with_one_salt_can_be_joined_and_without_one_cannot(tmp_path: Path) -> None:
    step = (scheduler_stats(), iteration_stats(finished_requests=[finished()]))

    def id_of(folder: str, **options: Any) -> str:
        found = record(tmp_path / folder, [step], **options).finished_requests
        assert found is not None
        return str(found["request_id"][0])

    assert id_of("a", salt="s") == id_of("b", salt="s")
    assert id_of("c") != id_of("d")


def test_times_that_a_request_never_had_are_missing(tmp_path: Path) -> None:
    """Aborted before it was scheduled: vLLM's differences are of stamps that are 0."""
    early = finished(queued_time=-12_345.6, prefill_time=-5.0, finish_reason="abort")

    telemetry = record(
        tmp_path, [(scheduler_stats(), iteration_stats(finished_requests=[early]))]
    )

    assert telemetry.finished_requests is not None
    (request,) = telemetry.finished_requests.rows(named=True)
    assert (request["queued_s"], request["prefill_s"], request["reason"]) == (
        None,
        None,
        "abort",
    )


def test_a_clock_that_is_set_back_does_not_turn_the_samples_around(tmp_path: Path) -> None:
    writer, tap = writing(tmp_path)
    for now_s, since_s in ((1.0, 0.0), (2.0, 3_600.0), (3.0, -50.0)):
        tap.record(scheduler_stats(), None, now_s, since_s)
    writer.start()
    writer.close("completed")

    assert open_telemetry(tmp_path).samples["t_s"].to_list() == [1.0, 1.0, 3.0]


def test_a_full_queue_drops_samples_that_the_reader_counts(tmp_path: Path) -> None:
    calls = [(scheduler_stats(), iteration_stats(preempted=1))] * 5

    writer, tap = writing(tmp_path, queue=2)
    for i, call in enumerate(calls):
        tap.record(*call, float(i), 0.0)
        if i == 3:  # the disk comes back
            writer._drain()
    writer.start()
    writer.close("completed")
    telemetry = open_telemetry(tmp_path)

    assert telemetry.samples["sample"].to_list() == [0, 1, 4]
    assert telemetry.samples["preemptions_total"].to_list() == [1, 2, 5]
    assert any("2 samples between others were lost" in n for n in telemetry.notes)


def test_requests_that_found_no_room_are_counted(tmp_path: Path) -> None:
    writer, tap = writing(tmp_path, queue=2)
    tap.record(scheduler_stats(), iteration_stats(finished_requests=[finished()] * 5), 0.0, 0.0)
    writer.start()
    writer.close("completed")

    telemetry = open_telemetry(tmp_path)

    assert telemetry.rows["finished_requests"] == 2
    assert any("3 requests are missing" in n for n in telemetry.notes)


def test_a_disk_cap_removes_the_oldest_samples_and_the_rest_opens(tmp_path: Path) -> None:
    writer, tap = writing(tmp_path, disk_cap=150_000, part_steps=50)
    for i in range(40):
        for j in range(50):
            tap.record(scheduler_stats(), iteration_stats(), float(50 * i + j), 0.0)
        writer._drain()
        writer._flush(True)
    writer.start()
    writer.close("completed")

    telemetry = open_telemetry(tmp_path)

    assert sum(p.stat().st_size for p in tmp_path.rglob("*.parquet")) < 2 * 150_000
    assert 50 <= telemetry.samples.height < 2_000
    assert telemetry.samples["sample"][-1] == 1_999
    assert any("oldest parts were removed" in n for n in telemetry.notes)


def test_a_server_that_is_killed_leaves_what_was_flushed(tmp_path: Path) -> None:
    writer, tap = writing(tmp_path)
    for i in range(10):
        tap.record(scheduler_stats(), iteration_stats(), float(i), 0.0)
    writer._drain()
    writer._flush(False)

    telemetry = open_telemetry(tmp_path)

    assert telemetry.samples.height == 10
    assert not telemetry.complete
    assert any("not closed" in n for n in telemetry.notes)


def test_the_project_registers_the_plugin() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]

    assert points["vllm.stat_logger_plugins"] == {
        "kv_replay": "engine.live.stat_logger:TelemetryStatLogger"
    }


def test_numbers_that_cannot_be_are_missing_and_the_sample_stays() -> None:
    odd = {"sample": 0, "t_s": 1.0, "engine_rank": 0, "num_ranks": 1, "inferred": ()}
    odd |= {
        "max_ttft_s": float("nan"),
        "num_running": -4,
        "prompt_tokens": 1 << 70,
        "num_waiting": 3,
    }

    table = samples_table([tuple(odd.get(name) for name in SAMPLE_COLUMNS)])

    row = table.to_pylist()[0]
    assert (row["max_ttft_s"], row["num_running"], row["prompt_tokens"]) == (None, None, None)
    assert row["num_waiting"] == 3
