"""Metrics as text: scrapes become samples, counters become gains, `cache_config_info` becomes the pool."""

from __future__ import annotations

from typing import Any

import pytest

from traces.evidence.evidence import Found
from traces.evidence.files import prometheus
from traces.evidence.source import Source

ONE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.875
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.79e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 1000.0
"""


def read(text: str) -> Found:
    return prometheus.read(Source.from_text("metrics.txt", text))


def fact(found: Found, name: str, rank: int | None = None) -> Any:
    return next((f.value for f in found.facts if f.name == name and f.rank == rank), None)


def test_one_scrape_gives_totals_and_no_rates() -> None:
    found = read(ONE)

    (sample,) = found.samples
    assert sample["num_running"] == 12
    assert sample["num_waiting"] == 3
    assert sample["kv_usage_frac"] == 0.875
    assert sample["preemptions_total"] == 7
    assert (sample["line"], sample["num_lines"]) == (3, 6)
    assert "num_preempted" not in sample
    assert "t_s" not in sample
    assert found.report.engine == "vllm"
    assert found.report.family == "prometheus"
    assert fact(found, "model") == "m"


def test_names_with_an_underscore_and_without_total_mean_the_same() -> None:
    text = ONE.replace("vllm:", "vllm_").replace("preemptions_total", "preemptions")

    (sample,) = read(text).samples

    assert sample["num_running"] == 12
    assert sample["preemptions_total"] == 7


@pytest.mark.parametrize(
    ("first", "second", "first_time"),
    [
        ("2026-03-01 10:00:00", "2026-03-01 10:01:40", "2026-03-01 10:00:00"),
        (
            "Sun Mar  1 10:00:00 UTC 2026",
            "Sun Mar  1 10:01:40 UTC 2026",
            "2026-03-01T10:00:00Z",
        ),
        ("# scrape at 10:00:00", "# scrape at 10:01:40", "10:00:00"),
        ("# scrape at 23:59:00", "# scrape at 00:00:40", "23:59:00"),
        ("--- 1772359200 ---", "--- 1772359300 ---", "2026-03-01T10:00:00Z"),
        ("=== t=0s ===", "=== t=100s ===", None),
        ("=== t=0s ===", "=== 100 seconds later ===", None),
    ],
)
def test_a_line_with_a_time_begins_a_scrape(first: str, second: str, first_time: str) -> None:
    later = ONE.replace(" 1000.0", " 6000.0").replace("} 7.0", "} 9.0")

    found = read(f"{first}\n{ONE}\n{second}\n{later}")

    assert [s["t_s"] for s in found.samples] == [0.0, 100.0]
    assert found.first_time == first_time
    last = found.samples[1]
    assert last["interval_s"] == 100.0
    assert last["num_preempted"] == 2
    assert last["generation_tokens"] == 5000
    assert last["generation_tokens_per_s"] == 50.0
    assert set(last["inferred"]) == {
        "num_preempted",
        "generation_tokens",
        "generation_tokens_per_s",
    }
    assert found.report.family == "prometheus-with-loose-timestamps"


def test_a_time_before_each_line_is_the_time_of_the_scrape() -> None:
    lines = [
        "2026-03-01 10:00:00 vllm:num_requests_running 4",
        "2026-03-01 10:00:00 vllm:num_preemptions_total 1",
        "2026-03-01 10:00:30 vllm:num_requests_running 5",
        "2026-03-01 10:00:30 vllm:num_preemptions_total 3",
    ]

    found = read("\n".join(lines))

    assert [(s["t_s"], s["num_running"]) for s in found.samples] == [(0.0, 4), (30.0, 5)]
    assert found.samples[1]["num_preempted"] == 2


def test_times_behind_the_values_are_the_times_of_the_scrapes() -> None:
    lines = [
        'vllm:num_requests_running{engine="0"} 4 1772359200000',
        'vllm:num_requests_running{engine="0"} 5 1772359215000',
    ]

    found = read("\n".join(lines))

    assert [(s["t_s"], s["num_running"]) for s in found.samples] == [(0.0, 4), (15.0, 5)]


def test_scrapes_without_any_time_are_told_apart_by_series_that_come_again() -> None:
    found = read(ONE + ONE.replace("} 7.0", "} 9.0"))

    assert len(found.samples) == 2
    assert found.samples[1]["num_preempted"] == 2
    assert "interval_s" not in found.samples[1]
    assert "2 scrapes without times" in " ".join(found.report.notes)


def test_one_series_again_and_again_is_a_scrape_each() -> None:
    found = read("vllm:num_requests_running 1\nvllm:num_requests_running 2\n" * 2)

    assert [s["num_running"] for s in found.samples] == [1, 2, 1, 2]


def test_a_series_twice_in_a_scrape_is_a_copy() -> None:
    line = 'vllm:num_requests_waiting{engine="0",model_name="m"} 3.0\n'

    found = read(ONE.replace(line, line + line.replace("3.0", "5.0")))

    (sample,) = found.samples
    assert sample["num_waiting"] == 5
    assert "came twice" in " ".join(found.report.notes)


def test_a_counter_that_falls_is_a_restart_and_no_negative_rate() -> None:
    text = "10:00:00\n{a}10:01:00\n{b}10:02:00\n{c}".format(
        a=ONE, b=ONE.replace("} 7.0", "} 1.0"), c=ONE.replace("} 7.0", "} 4.0")
    )

    found = read(text)

    assert "num_preempted" not in found.samples[1]
    assert found.samples[2]["num_preempted"] == 3
    assert "Counters fell 1 times" in " ".join(found.report.notes)


def test_a_series_that_is_absent_is_missing_and_not_zero() -> None:
    text = (
        f'10:00:00\n{ONE}10:01:00\nvllm:num_requests_running{{engine="0",model_name="m"}} 9\n'
    )

    second = read(text).samples[1]

    assert second["num_running"] == 9
    assert "num_waiting" not in second
    assert "preemptions_total" not in second


def test_nan_is_no_value() -> None:
    (sample,) = read(ONE.replace("0.875", "NaN")).samples

    assert "kv_usage_frac" not in sample
    assert sample["num_running"] == 12


def test_labels_may_hold_braces_commas_and_quotes_and_exemplars_are_cut_off() -> None:
    line = r'vllm:num_requests_running{engine="2",model_name="a,\"b\" {x}"} 8 # {trace_id="1"} 0.5 1.0'

    found = read(line + "\n" + line.replace("running", "waiting").replace("} 8", "} 2"))

    (sample,) = found.samples
    assert (sample["num_running"], sample["num_waiting"]) == (8, 2)
    assert fact(found, "model") == 'a,"b" {x}'


def test_usage_in_per_cent_becomes_a_share() -> None:
    found = read(ONE.replace("0.875", "87.5"))

    assert found.samples[0]["kv_usage_frac"] == 0.875
    assert "per cent" in " ".join(found.report.notes)


def test_ranks_are_rows_of_their_own() -> None:
    lines = [
        f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} {10 - rank}'
        for rank in (2, 0, 1)
    ]

    found = read("\n".join(lines))

    assert [(s["engine_rank"], s["num_running"]) for s in found.samples] == [
        (0, 10),
        (1, 9),
        (2, 8),
    ]


def test_two_models_in_a_scrape_are_never_added_up() -> None:
    found = read(
        ONE + ONE.replace('model_name="m"', 'model_name="other"').replace("12.0", "1.0")
    )

    assert [(s["engine_rank"], s["num_running"]) for s in found.samples] == [(0, 12), (1, 1)]
    assert "several models" in " ".join(found.report.notes)
    assert {f.value for f in found.facts if f.name == "model"} == {"m", "other"}


def test_replicas_behind_one_name_are_ranks() -> None:
    other = ONE.replace('engine="0"', 'engine="0",ReplicaId="b"').replace("vllm:", "vllm_")

    found = read(ONE.replace('engine="0"', 'engine="0",ReplicaId="a"') + other)

    assert [s["engine_rank"] for s in found.samples] == [0, 1]


CONFIG = (
    'vllm:cache_config_info{{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",'
    'gpu_memory_utilization="0.9",kv_cache_max_concurrency="2.5",kv_cache_size_tokens="{tokens}",'
    'num_cpu_blocks="None",num_gpu_blocks="{blocks}",num_gpu_blocks_override="None"}} 1.0\n'
)


def test_the_pool_comes_from_the_configuration_less_the_null_block() -> None:
    found = read(ONE + CONFIG.format(tokens=5120, blocks=320))

    assert fact(found, "pool_blocks") == 319
    assert fact(found, "pool_tokens") == 5120
    assert fact(found, "block_size") == 16
    assert fact(found, "null_blocks") == 1
    assert fact(found, "max_model_len") == 2048
    assert fact(found, "kv_cache_dtype") == "fp8"
    assert fact(found, "enable_prefix_caching") is True


def test_blocks_of_all_ranks_are_divided_by_the_ranks() -> None:
    ranks = "".join(ONE.replace('engine="0"', f'engine="{r}"') for r in range(4))

    found = read(ranks + CONFIG.format(tokens=5120, blocks=1280))

    assert fact(found, "pool_blocks") == 319
    assert "sum over 4 ranks" in " ".join(found.report.notes)


def test_blocks_of_one_rank_are_not_divided() -> None:
    ranks = "".join(ONE.replace('engine="0"', f'engine="{r}"') for r in range(4))

    found = read(ranks + CONFIG.format(tokens=5120, blocks=320))

    assert fact(found, "pool_blocks") == 319


def test_a_hybrid_pool_is_said_to_be_one() -> None:
    found = read(ONE + CONFIG.format(tokens=9000, blocks=320))

    assert fact(found, "pool_tokens") == 9000
    assert "hybrid" in " ".join(found.report.notes)


def test_v0_has_no_null_block_and_its_hit_rate_of_minus_one_is_none() -> None:
    text = (
        'vllm:num_requests_swapped{model_name="m"} 2\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.99\n'
        'vllm:cpu_cache_usage_perc{model_name="m"} 0.25\n'
        'vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",num_cpu_blocks="50"} 1.0\n'
    )

    found = read(text)

    (sample,) = found.samples
    assert (sample["num_swapped"], sample["host_usage_frac"]) == (2, 0.25)
    assert sample["kv_usage_frac"] == 0.99
    assert "prefix_hit_frac" not in sample
    assert fact(found, "pool_blocks") == 100
    assert fact(found, "pool_tokens") == 1600
    assert fact(found, "host_pool_blocks") == 50


def test_hit_rate_comes_from_tokens_by_source_and_not_from_queries() -> None:
    text = ONE + "".join(
        f'vllm:{name}{{engine="0",model_name="m"{more}}} {value}\n'
        for name, more, value in (
            ("prefix_cache_queries_total", "", 9000),
            ("prefix_cache_hits_total", "", 100),
            ("prompt_tokens_by_source_total", ',source="local_compute"', 600),
            ("prompt_tokens_by_source_total", ',source="local_cache_hit"', 150),
            ("prompt_tokens_by_source_total", ',source="external_kv_transfer"', 250),
        )
    )

    (sample,) = read(text).samples

    assert sample["prefix_hit_frac"] == 0.4
    assert sample["prefix_query_tokens_total"] == 9000
    assert sample["inferred"] == ["prefix_hit_frac"]


def histogram(counts: tuple[int, ...], total: float) -> str:
    bounds = ("100.0", "200.0", "500.0", "+Inf")
    lines = [
        f'vllm:request_prompt_tokens_bucket{{engine="0",le="{b}",model_name="m"}} {n}'
        for b, n in zip(bounds, counts, strict=True)
    ]
    lines.append(f'vllm:request_prompt_tokens_count{{engine="0",model_name="m"}} {counts[-1]}')
    lines.append(f'vllm:request_prompt_tokens_sum{{engine="0",model_name="m"}} {total}')
    return "\n".join(lines) + "\n"


def test_a_histogram_gives_mean_and_quantiles() -> None:
    found = read(ONE + histogram((0, 50, 100, 100), 22_000.0))

    assert fact(found, "prompt_mean_tokens") == 220.0
    assert fact(found, "prompt_p50_tokens") == 200.0
    assert fact(found, "prompt_p99_tokens") == pytest.approx(494.0)
    assert all(f.inferred for f in found.facts if f.name.startswith("prompt_p"))


def test_a_histogram_of_several_scrapes_is_of_the_time_between_them() -> None:
    first = ONE + histogram((100, 100, 100, 100), 5_000.0)
    second = ONE + histogram((100, 100, 110, 110), 8_000.0)

    found = read(f"10:00:00\n{first}10:01:00\n{second}")

    assert fact(found, "prompt_mean_tokens") == 300.0
    assert fact(found, "prompt_p50_tokens") == 350.0


def test_sglang_ranks_are_not_added_up_and_its_gauge_of_retracts_is_not_read() -> None:
    def rank(dp: int, queue: int, total: int) -> str:
        labels = f'{{dp_rank="{dp}",model_name="m",tp_rank="{dp}"}}'
        return (
            f"sglang:num_running_reqs{labels} 2\nsglang:num_queue_reqs{labels} {queue}\n"
            f"sglang:token_usage{labels} 0.5\nsglang:max_total_num_tokens{labels} 4096\n"
            f"sglang:num_retracted_reqs{labels} 0\nsglang:num_retracted_requests_total{labels} {total}\n"
            f"sglang:kv_evictable_tokens{labels} 1024\n"
        )

    found = read(rank(0, 0, 1) + rank(1, 6, 9))

    assert [s["num_waiting"] for s in found.samples] == [0, 6]
    assert [s["preemptions_total"] for s in found.samples] == [1, 9]
    assert fact(found, "pool_tokens", 1) == 4096
    assert found.report.engine == "sglang"
    assert "can be evicted: 1,024 (rank 0), 1,024 (rank 1)" in " ".join(found.report.notes)


def test_tensor_parallel_copies_of_a_rank_are_one() -> None:
    lines = [
        f'sglang:num_running_reqs{{model_name="m",tp_rank="{t}"}} 7\n'
        f'sglang:num_retracted_requests_total{{model_name="m",tp_rank="{t}"}} 4'
        for t in range(4)
    ]

    (sample,) = read("\n".join(lines)).samples

    assert (sample["num_running"], sample["preemptions_total"]) == (7, 4)


def test_sglang_usage_follows_from_used_tokens_where_it_is_not_stated() -> None:
    (sample,) = read("sglang:num_used_tokens 300\nsglang:max_total_num_tokens 1200\n").samples

    assert sample["kv_usage_frac"] == 0.25
    assert sample["inferred"] == ["kv_usage_frac"]


def test_triton_counts_waiting_as_active_less_scheduled() -> None:
    lines = [
        'nv_trt_llm_request_metrics{model="t",request_type="active",version="1"} 9',
        'nv_trt_llm_request_metrics{model="t",request_type="scheduled",version="1"} 2',
        'nv_trt_llm_request_metrics{model="t",request_type="max",version="1"} 16',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="t",version="1"} 60',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="t",version="1"} 240',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="t",version="1"} 64',
        'nv_trt_llm_inflight_batcher_metrics{inflight_batcher_specific_metric="paused_requests",'
        'model="t",version="1"} 1',
    ]

    found = read("\n".join(lines))

    (sample,) = found.samples
    assert (sample["num_running"], sample["num_waiting"]) == (2, 7)
    assert (sample["used_blocks"], sample["kv_usage_frac"]) == (60, 0.25)
    assert sample["num_preempted"] == 1
    assert fact(found, "pool_blocks") == 240
    assert fact(found, "block_size") == 64
    assert fact(found, "max_num_seqs") == 16
    assert found.report.engine == "tensorrt-llm"


def test_used_blocks_that_count_the_host_pool_are_counted_again() -> None:
    lines = [
        "trtllm_num_requests_running 5",
        "trtllm_kv_cache_used_blocks 150",
        "trtllm_kv_cache_free_blocks 40",
        "trtllm_kv_cache_max_blocks 100",
    ]

    (sample,) = read("\n".join(lines)).samples

    assert sample["used_blocks"] == 60
    assert set(sample["inferred"]) == {"used_blocks", "kv_usage_frac"}


def test_tgi_names_are_known() -> None:
    (sample,) = read(
        "tgi_queue_size 6\ntgi_batch_current_size 3\ntgi_request_success 9\n"
    ).samples

    assert (sample["num_running"], sample["num_waiting"]) == (3, 6)


def test_a_router_in_front_of_an_engine_does_not_hide_it() -> None:
    text = (
        "dynamo_component_kvstats_active_blocks 5\ndynamo_component_kvstats_total_blocks 50\n"
        "dynamo_frontend_model_context_length 4096\n" + ONE
    )

    found = read(text)

    assert found.report.engine == "vllm"
    assert fact(found, "pool_blocks") == 50
    assert fact(found, "max_model_len") == 4096
    assert found.samples[0]["num_running"] == 12


def test_metrics_of_other_software_say_so() -> None:
    text = "# HELP up x\n# TYPE up gauge\nup 1\n# HELP node_load1 x\nnode_load1 0.5\n"

    found = read(text)

    assert prometheus.sniff(text, "node.prom") >= 0.5
    assert found.samples == ()
    assert found.report.notes[0].startswith("These are metrics of other software")


def test_scrapes_in_the_wrong_order_are_put_in_order() -> None:
    later = ONE.replace("} 7.0", "} 9.0")

    found = read(f"2026-03-01 10:05:00\n{later}2026-03-01 10:00:00\n{ONE}")

    assert [s["preemptions_total"] for s in found.samples] == [7, 9]
    assert found.samples[1]["num_preempted"] == 2
    assert found.first_time == "2026-03-01 10:00:00"


def test_lines_that_are_no_metrics_are_skipped_and_shown() -> None:
    found = read("$ curl -s localhost:8000/metrics | grep vllm\nsome words here\n" + ONE)

    assert found.report.skipped_examples == ("some words here",)
    assert len(found.samples) == 1


def test_a_log_is_no_metrics_dump() -> None:
    log = "INFO 11-26 14:43:02 metrics.py:455] Avg prompt throughput: 0.0 tokens/s, Running: 36 reqs\n"

    assert prometheus.sniff(log * 5, "server.log") < 0.5
    assert prometheus.sniff(ONE, "x") == 1.0
    assert prometheus.sniff("2026-03-01 10:00:00\n" + ONE, "paste") == 1.0


def test_lines_of_promtool_are_series_with_their_times() -> None:
    found = read(
        'vllm:num_requests_running{engine="0"} => 4 @[1772359200]\n'
        'vllm:num_requests_running{engine="0"} => 6 @[1772359260.5]\n'
    )

    assert [(s["t_s"], s["num_running"]) for s in found.samples] == [(0.0, 4), (60.5, 6)]


def test_of_very_many_scrapes_some_are_kept_and_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traces.evidence.files.series.MAX_SCRAPES", 8)
    lines = [f"vllm:num_preemptions_total {n}" for n in range(101)]

    found = read("\n".join(lines))

    assert len(found.samples) <= 10
    assert found.samples[0]["preemptions_total"] == 0
    assert found.samples[-1]["preemptions_total"] == 100
    assert sum(s.get("num_preempted", 0) for s in found.samples) == 100
    assert "101 scrapes" in " ".join(found.report.notes)
