"""Answers of Prometheus, exports of Grafana, engines' statistics and KV events: samples, facts, and what is odd."""

from __future__ import annotations

import json
from typing import Any

import pytest

from traces.evidence.evidence import Found
from traces.evidence.files import READERS, engine_steps, grafana, kv_events, query_range
from traces.evidence.source import Source


def series(name: str | None, points: list[tuple[float, str]], **labels: str) -> dict[str, Any]:
    metric = {"__name__": name, **labels} if name else labels
    return {"metric": metric, "values": [list(p) for p in points]}


def answer(*result: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "status": "success",
        "data": {"resultType": "matrix", "result": list(result)},
        **more,
    }


def prom(*values: Any, join: str = "\n") -> Found:
    text = join.join(json.dumps(v) for v in values)
    assert query_range.sniff(text, "q.json") >= 0.9
    return query_range.read(Source.from_text("q.json", text))


T = 1772359200  # 2026-03-01T10:00:00Z


def test_an_answer_of_query_range_is_a_sample_a_time() -> None:
    found = prom(
        answer(
            series("vllm:num_requests_running", [(T, "4"), (T + 15, "6")], engine="0"),
            series("vllm:num_preemptions_total", [(T, "10"), (T + 15, "13")], engine="0"),
            series("vllm:kv_cache_usage_perc", [(T, "NaN"), (T + 15, "0.98")], engine="0"),
        )
    )

    assert [(s["t_s"], s["num_running"]) for s in found.samples] == [(0.0, 4), (15.0, 6)]
    assert found.samples[1]["num_preempted"] == 3
    assert "kv_usage_frac" not in found.samples[0]
    assert found.samples[1]["kv_usage_frac"] == 0.98
    assert (found.first_time, found.offset_s) == ("2026-03-01T10:00:00Z", 0.0)
    assert found.report.family == "query-range"


def test_several_answers_in_a_file_are_put_together() -> None:
    found = prom(
        answer(series("vllm:num_requests_waiting", [(T + 5, "2")])),
        answer(series("vllm:num_requests_running", [(T, "4"), (T + 5, "5")])),
    )

    assert [s["t_s"] for s in found.samples] == [0.0, 5.0]
    assert (found.samples[1]["num_running"], found.samples[1]["num_waiting"]) == (5, 2)


def test_a_rate_has_no_name_and_is_placed_by_its_query() -> None:
    nameless = series(None, [(T, "120.5")], engine="0")

    without = prom(answer(nameless))
    beside = prom(answer(nameless, query="rate(vllm:generation_tokens_total[1m])"))

    assert without.samples == ()
    assert "keep the query" in " ".join(without.report.notes)
    assert beside.samples[0]["generation_tokens_per_s"] == 120.5


def test_a_vector_and_bare_series_are_read_too() -> None:
    vector = {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [
                {"metric": {"__name__": "vllm_num_requests_running"}, "value": [T, "7"]}
            ],
        },
    }

    assert prom(vector).samples[0]["num_running"] == 7
    assert (
        prom([series("vllm:num_requests_running", [(T, "3")])]).samples[0]["num_running"] == 3
    )


def test_two_servers_are_two_ranks() -> None:
    found = prom(
        answer(
            series("vllm:num_requests_running", [(T, "4")], engine="0", instance="a:8000"),
            series("vllm:num_requests_running", [(T, "9")], engine="0", instance="b:8000"),
        )
    )

    assert [(s["engine_rank"], s["num_running"]) for s in found.samples] == [(0, 4), (1, 9)]
    assert "0 = a:8000, 1 = b:8000" in " ".join(found.report.notes)


def test_an_error_is_said() -> None:
    found = prom({"status": "error", "errorType": "bad_data", "error": "parse error at char 5"})

    assert found.samples == ()
    assert "parse error at char 5" in " ".join(found.report.notes)


def test_an_answer_that_is_cut_off_says_so() -> None:
    text = json.dumps(answer(series("vllm:num_requests_running", [(T, "4")])))[:-12]

    assert query_range.sniff(text, "q.json") >= 0.9
    assert "cut off" in " ".join(
        query_range.read(Source.from_text("q.json", text)).report.notes
    )


def test_frames_of_grafana_are_series() -> None:
    frame = {
        "schema": {
            "fields": [
                {"name": "Time"},
                {"name": "vllm:num_requests_running", "labels": {"engine": "0"}},
            ]
        },
        "data": {"values": [[T * 1000, (T + 30) * 1000], [4, 5]]},
    }

    found = prom({"results": {"A": {"frames": [frame]}}})

    assert [(s["t_s"], s["num_running"]) for s in found.samples] == [(0.0, 4), (30.0, 5)]


def grafana_csv(text: str, name: str = "panel.csv") -> Found:
    assert grafana.sniff(text, name) > 0.95
    return grafana.read(Source.from_text(name, text))


def test_grafana_headers_may_be_series() -> None:
    found = grafana_csv(
        '"Time","vllm:num_requests_running{engine=""0""}","vllm:num_requests_running{engine=""1""}"\n'
        "2026-03-01 10:00:00,27,5\n2026-03-01 10:00:15,28,\n"
    )

    assert [(s["t_s"], s["engine_rank"], s["num_running"]) for s in found.samples] == [
        (0.0, 0, 27),
        (0.0, 1, 5),
        (15.0, 0, 28),
    ]
    assert found.first_time == "2026-03-01 10:00:00"


def test_grafana_cells_may_carry_units_and_times_may_be_milliseconds() -> None:
    found = grafana_csv(
        'sep=;\n"Time";"vllm:kv_cache_usage_perc"\n1772359200000;97.3%\n1772359230000;99%\n'
    )

    assert [s["kv_usage_frac"] for s in found.samples] == [0.973, 0.99]
    assert [s["t_s"] for s in found.samples] == [0.0, 30.0]


def test_grafana_value_columns_take_the_title_of_the_panel() -> None:
    found = grafana_csv(
        "Time,engine,Value #A\n2026-03-01 10:00:00,0,8\n2026-03-01 10:00:00,1,2\n",
        "Waiting requests-data-2026-03-01 10_05_00.csv",
    )

    assert [(s["engine_rank"], s["num_waiting"]) for s in found.samples] == [(0, 8), (1, 2)]


def test_grafana_headers_may_be_ranks_below_a_title() -> None:
    found = grafana_csv(
        '"Time","engine 0","engine 1"\n"2026-03-01 10:00:00","97.1%","0%"\n',
        "KV cache usage-data-2026-03-01 10_05_00.csv",
    )

    assert [(s["engine_rank"], s["kv_usage_frac"]) for s in found.samples] == [
        (0, 0.971),
        (1, 0.0),
    ]


def test_grafana_rows_may_be_points() -> None:
    found = grafana_csv(
        '"Series";"Time";"Value"\nRunning;2026-03-01T10:00:00+01:00;3\nWaiting;2026-03-01T10:00:00+01:00;1\n'
    )

    (sample,) = found.samples
    assert (sample["num_running"], sample["num_waiting"]) == (3, 1)
    assert (found.first_time, found.offset_s) == ("2026-03-01T10:00:00+01:00", 3600.0)


def step(t: float, **more: Any) -> dict[str, Any]:
    return {
        "step": round(t * 10),
        "t": t,
        "num_running_reqs": 5,
        "num_waiting_reqs": 2,
        "num_skipped_waiting_reqs": 1,
        "kv_cache_usage": 0.96,
        "prefix_cache_stats": {"requests": 1, "queries": 40, "hits": 16, "preempted_requests": 1,
                               "preempted_queries": 90, "preempted_hits": 64},
        "iteration_stats": {
            "iteration_timestamp": T + t,
            "num_generation_tokens": 5,
            "num_preempted_reqs": 1,
            "prompt_token_stats": {"computed": 24, "local_cache_hit": 16, "external_kv_transfer": 0, "total": 40},
            "inter_token_latencies_iter": [0.01, 0.75],
            "time_to_first_tokens_iter": [],
        },
        **more,
    }  # fmt: skip


def test_statistics_of_vllm_steps_are_samples() -> None:
    text = "\n".join(json.dumps(step(t)) for t in (0.5, 0.6))

    found = engine_steps.read(Source.from_text("steps.jsonl", text))

    first = found.samples[0]
    assert [s["t_s"] for s in found.samples] == [0.5, 0.6]
    assert found.first_time == "2026-03-01T10:00:00Z"
    assert (first["num_waiting"], first["num_waiting_capacity"], first["num_deferred"]) == (
        3,
        2,
        1,
    )
    assert (
        first["num_preempted"],
        first["resumed_query_tokens"],
        first["resumed_hit_tokens"],
    ) == (1, 90, 64)
    assert (first["prompt_tokens"], first["prompt_computed_tokens"]) == (40, 24)
    assert first["max_itl_s"] == 0.75
    assert "max_ttft_s" not in first
    assert engine_steps.sniff(text, "x") == 1.0


def test_a_damaged_line_is_skipped_and_counted() -> None:
    text = json.dumps(step(0.1)) + '\n{"step": 2, "num_run\n' + json.dumps(step(0.3)) + "\n"

    found = engine_steps.read(Source.from_text("steps.jsonl", text))

    assert len(found.samples) == 2
    assert found.report.skipped == 1
    assert found.report.skipped_examples == ('{"step": 2, "num_run',)


def iteration(i: int, *, used: int, free: int, **more: Any) -> dict[str, Any]:
    return {
        "iter": i,
        "timestamp": f"03-01-2026 10:00:{i:02}.500000",
        "iterLatencyMS": 25.0,
        "numActiveRequests": 9,
        "numQueuedRequests": 3,
        "inflightBatchingStats": {"numScheduledRequests": 6, "numContextRequests": 1, "numCtxTokens": 512,
                                  "numGenRequests": 5, "numPausedRequests": 0},
        "kvCacheStats": {"maxNumBlocks": 100, "freeNumBlocks": free, "usedNumBlocks": used, "tokensPerBlock": 32},
        **more,
    }  # fmt: skip


@pytest.mark.parametrize("listed", [True, False])
def test_iterations_of_tensorrt_llm_are_samples(listed: bool) -> None:
    records = [iteration(1, used=40, free=60), iteration(3, used=90, free=10)]
    text = json.dumps(records, indent=1) if listed else "\n".join(map(json.dumps, records))

    found = engine_steps.read(Source.from_text("iterations.json", text))

    assert [s["step"] for s in found.samples] == [1, 3]
    assert [s["t_s"] for s in found.samples] == [0.0, 2.0]
    assert [s["kv_usage_frac"] for s in found.samples] == [0.4, 0.9]
    assert (found.samples[0]["num_running"], found.samples[0]["num_waiting"]) == (6, 6)
    assert found.samples[0]["duration_s"] == 0.025
    assert found.first_time == "2026-03-01 10:00:01"
    assert {f.name: f.value for f in found.facts} == {"pool_blocks": 100, "block_size": 32}
    assert found.report.engine == "tensorrt-llm"


def test_used_blocks_with_the_host_pool_in_them_are_counted_again() -> None:
    found = engine_steps.read(
        Source.from_text("i.json", json.dumps([iteration(1, used=150, free=20)]))
    )

    assert found.samples[0]["used_blocks"] == 80
    assert "used_blocks" in found.samples[0]["inferred"]
    assert "host pool" in " ".join(found.report.notes)


def test_a_paused_request_is_a_preemption_of_its_iteration() -> None:
    record = iteration(1, used=99, free=1)
    record["inflightBatchingStats"]["numPausedRequests"] = 2

    found = engine_steps.read(Source.from_text("i.json", json.dumps(record)))

    assert found.samples[0]["num_preempted"] == 2
    assert [(n.kind, n.values["requests"]) for n in found.notices] == [("preemption", 2)]


def test_records_of_triton_have_keys_with_blanks() -> None:
    record = {
        "Active Request Count": 9, "Iteration Counter": 7, "Max Request Count": 16, "Timestamp": "05-14-2024 21:01:55",
        "Paused Requests": 0, "Scheduled Requests": 1, "Free KV cache blocks": 137, "Max KV cache blocks": 157,
        "Tokens per KV cache block": 128, "Used KV cache blocks": 20,
    }  # fmt: skip

    found = engine_steps.read(Source.from_text("t.jsonl", json.dumps(record)))

    (sample,) = found.samples
    assert (sample["num_running"], sample["num_waiting"], sample["used_blocks"]) == (1, 8, 20)
    assert found.first_time == "2024-05-14 21:01:55"


def test_kv_events_tell_evictions_and_keep_no_tokens() -> None:
    stored = {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "token_ids": [901, 902],
        "block_size": 16,
    }
    removed = {"type": "BlockRemoved", "block_hashes": [1]}
    text = "\n".join(
        json.dumps(x) for x in ([T, [stored], 0], {"payload_decoded": [T + 2, [removed], 1]}, [T + 4, [["BlockRemoved", [2, 3]]], 1])
    )  # fmt: skip

    found = kv_events.read(Source.from_text("kv.jsonl", text))

    said = " ".join(found.report.notes)
    assert "2 blocks were cached and 3 cached blocks were overwritten over 4.0 s" in said
    assert "rank 0: 0, rank 1: 3" in said
    assert "901" not in repr(found)
    assert {f.name: f.value for f in found.facts} == {
        "block_size": 16,
        "enable_prefix_caching": True,
    }
    assert kv_events.sniff(text, "kv.jsonl") == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[", "[]", "{}", "[1, 2", '{"a": {"b": [1, {"c": null}]}}', "null", "[[[[",
        '{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": 5, "values": [[1]]}]}}',
        '{"kvCacheStats": 3, "inflightBatchingStats": [1]}', '{"num_running_reqs": "x", "num_waiting_reqs": null}',
        '[1, [null, [], {"type": 5}], "r"]', "Time,Series\n\n,,,\n", "|a|b|\n|-|-|\n", "vllm:x{ 5", "a=1 step 5 b=",
        "step 1 free=9 running=1\n\x1b[0m", "\u2028\u0085,\t;|{}[]=:", "concurrency,running\n1e999,nan\n-3,--\n",
    ],
)  # fmt: skip
def test_no_reader_falls_over_strange_text(text: str) -> None:
    for reader in READERS:
        assert 0.0 <= reader.sniff(text, "x") <= 1.0
        found = reader.read(Source.from_text("x", text + "\n."))
        assert found.report.num_lines >= 0


def test_the_readers_agree_on_whose_a_text_is() -> None:
    texts = {
        "query_range": json.dumps(answer(series("vllm:num_requests_running", [(T, "1")]))),
        "engine_steps": json.dumps(step(0.1)),
        "grafana": 'Time,"vllm:num_requests_running{}"\n2026-03-01 10:00:00,1\n',
        "tables": "concurrency,running,preemptions\n8,8,0\n",
        "steps": "step 1 free=9 running=1\nstep 2 free=8 running=1\n",
        "notes": "vllm serve m --max-num-seqs 8",
        "prometheus": "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\n",
    }
    for name, text in texts.items():
        best = max(READERS, key=lambda r: r.sniff(text, "paste"))
        assert best.__name__.rsplit(".", 1)[-1] == name
        assert best.sniff(text, "paste") >= 0.5
