"""Tables, load-test results and step traces: columns by name and unit, rows as runs or as samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from traces.evidence.evidence import Found
from traces.evidence.files import bench, steps, tables
from traces.evidence.files.columns import guess_column, read_cell
from traces.evidence.source import Source


def table(text: str, name: str = "table.csv") -> Found:
    assert tables.sniff(text, name) >= 0.5
    return tables.read(Source.from_text(name, text))


@pytest.mark.parametrize(
    ("name", "target", "factor"),
    [
        ("gpu_memory_utilization", "gpu_memory_utilization", 1.0),
        ("gmu", "gpu_memory_utilization", 1.0),
        ("kv_tokens", "pool_tokens", 1.0),
        ("fired_concurrency", "clients", 1.0),
        ("Concurrency", "clients", 1.0),
        ("batch", "clients", 1.0),
        ("running", "num_running", 1.0),
        ("Waiting reqs", "num_waiting", 1.0),
        ("KV usage %", "kv_usage_frac", 1.0),
        ("kv_cache_usage_perc", "kv_usage_frac", 1.0),
        ("preemptions", "preemptions", 1.0),
        ("num_preemptions_total", "preemptions", 1.0),
        ("TTFT p50 (ms)", "ttft_p50_s", 0.001),
        ("p99 TTFT [s]", "ttft_p99_s", 1.0),
        ("mean_ttft_ms", "ttft_mean_s", 0.001),
        ("ITL p99 ms", "itl_p99_s", 0.001),
        ("Output tok/s", "generation_tokens_per_s", 1.0),
        ("throughput (tokens/s)", "generation_tokens_per_s", 1.0),
        ("req/s", "requests_per_s", 1.0),
        ("max_num_seqs", "max_num_seqs", 1.0),
        ("requests", "num_requests", 1.0),
        ("Median input tokens", "prompt_p50_tokens", 1.0),
        ("cache hit rate", "prefix_hit_frac", 1.0),
    ],
)
def test_a_column_is_known_by_its_name_and_unit(name: str, target: str, factor: float) -> None:
    column = guess_column(name)

    assert column is not None
    assert (column.target, column.factor) == (target, factor)


@pytest.mark.parametrize("name", ["colour", "host", "gpu temperature", "comment", "power w"])
def test_other_columns_are_not_known(name: str) -> None:
    assert guess_column(name) is None


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1,234", 1234.0), ("97.5 %", 0.975), ("12.5 ms", 12.5), ("480 (9 per 100)", 480.0),
     ("1.2 K", 1200.0), ("-", None), ("", None), ("n/a", None), ("**7**", 7.0)],
)  # fmt: skip
def test_a_cell_is_read_as_a_number(cell: str, value: float | None) -> None:
    assert read_cell(cell) == value


def test_each_row_of_a_sweep_is_a_run() -> None:
    found = table(
        "gmu,kv_tokens,concurrency,preemptions,ttft_p50_ms\n0.5,4000,16,9,1500\n0.9,9000,16,0,250\n"
    )

    assert found.sweeps == (
        {"gpu_memory_utilization": 0.5, "pool_tokens": 4000, "clients": 16, "preemptions": 9, "ttft_p50_s": 1.5},
        {"gpu_memory_utilization": 0.9, "pool_tokens": 9000, "clients": 16, "preemptions": 0, "ttft_p50_s": 0.25},
    )  # fmt: skip
    assert found.samples == ()
    assert found.report.family == "sweep"


@pytest.mark.parametrize(
    "text",
    [
        "concurrency\trunning\tpreemptions\n8\t8\t0\n64\t40\t12\n",
        "concurrency;running;preemptions\n8;8;0\n64;40;12\n",
        "| Concurrency | Running | Preemptions |\n|---:|:---:|---|\n| 8 | 8 | 0 |\n| 64 | 40 | 12 |\n",
        '[{"concurrency": 8, "running": 8, "preemptions": 0}, {"concurrency": 64, "running": 40, "preemptions": 12}]',
        '{"concurrency": 8, "running": 8, "preemptions": 0}\n{"concurrency": 64, "running": 40, "preemptions": 12}\n',
        "# a sweep\nconcurrency,running,preemptions\n8,8,0\n\n64,40,12\n",
    ],
)  # fmt: skip
def test_separators_and_forms(text: str) -> None:
    assert table(text).sweeps == (
        {"clients": 8, "num_running": 8, "preemptions": 0},
        {"clients": 64, "num_running": 40, "preemptions": 12},
    )


def test_a_latency_without_a_unit_that_would_be_minutes_is_in_milliseconds() -> None:
    found = table("concurrency,ttft_p99\n8,300\n64,5200\n")

    assert [s["ttft_p99_s"] for s in found.sweeps] == [0.3, 5.2]
    assert "no unit" in " ".join(found.report.notes)


def test_a_table_with_times_is_a_series() -> None:
    text = "t,running,waiting,kv_cache_pct,preemptions\n5.0,3,0,0.9,0\n6.0,4,1,97.0,2\n8.0,4,2,99.5,5\n"

    found = table(text)

    assert found.report.family == "series"
    assert [s["t_s"] for s in found.samples] == [0.0, 1.0, 3.0]
    assert [s["kv_usage_frac"] for s in found.samples] == pytest.approx([0.009, 0.97, 0.995])
    assert [s.get("num_preempted") for s in found.samples] == [None, 2, 3]
    assert found.samples[2]["preemptions_total"] == 5
    assert found.samples[2]["line"] == 4


def test_counts_that_fall_are_per_row_and_no_counter() -> None:
    found = table("step,running,preempted\n1,4,0\n2,3,1\n3,3,0\n")

    assert [s["num_preempted"] for s in found.samples] == [0, 1, 0]
    assert "preemptions_total" not in found.samples[0]
    assert [s["step"] for s in found.samples] == [1, 2, 3]


def test_a_series_may_have_dates_and_ranks() -> None:
    text = (
        "timestamp,rank,running,waiting\n2026-03-01 10:00:00,0,8,0\n2026-03-01 10:00:00,1,0,0\n"
        "2026-03-01 10:00:30,0,9,4\n"
    )

    found = table(text)

    assert [(s["t_s"], s["engine_rank"]) for s in found.samples] == [
        (0.0, 0),
        (0.0, 1),
        (30.0, 0),
    ]
    assert found.first_time == "2026-03-01 10:00:00"


def test_columns_that_are_not_known_are_named() -> None:
    found = table("concurrency,running,colour\n8,8,red\n")

    assert "nothing is known of: colour" in " ".join(found.report.notes)


@pytest.mark.parametrize(
    "text",
    [
        "timestamp,input_length,output_length,hash_ids\n1,2,3,[]\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n",
        "name,colour\na,red\n",
        "just a line of text, with a comma\nand another, one\n",
        "INFO 11-26 14:43:02 x.py:1] Running: 3 reqs, Waiting: 2 reqs, usage: 3.0%\n",
        '{"a": 1}\n',
    ],
)
def test_other_tables_are_not_ours(text: str) -> None:
    assert tables.sniff(text, "x.csv") < 0.5


def result(**more: Any) -> dict[str, Any]:
    return {
        "model_id": "m",
        "num_prompts": 100,
        "request_rate": "inf",
        "max_concurrency": 16,
        "duration": 50.0,
        "completed": 98,
        "failed": 2,
        "total_input_tokens": 98_000,
        "total_output_tokens": 9_800,
        "request_throughput": 1.96,
        "output_throughput": 196.0,
        "mean_ttft_ms": 250.0,
        "p99_ttft_ms": 4000.0,
        "median_itl_ms": 20.0,
        **more,
    }


def test_a_result_of_bench_serve_is_a_run() -> None:
    text = json.dumps(result())

    found = bench.read(Source.from_text("r.json", text))

    (run,) = found.sweeps
    assert run == {
        "clients": 16,
        "num_requests": 100,
        "failed_requests": 2,
        "duration_s": 50,
        "requests_per_s": 1.96,
        "generation_tokens_per_s": 196,
        "prompt_mean_tokens": 1000.0,
        "output_mean_tokens": 100.0,
        "ttft_mean_s": 0.25,
        "ttft_p99_s": 4.0,
        "itl_p50_s": 0.02,
    }
    assert bench.sniff(text, "r.json") == 1.0
    assert {f.name: f.value for f in found.facts}["ttft_p99_s"] == 4.0


@pytest.mark.parametrize("join", ["", "\n", ",\n"])
def test_several_results_in_a_file_are_several_runs(join: str) -> None:
    parts = [json.dumps(result(max_concurrency=c, request_rate=5)) for c in (8, 16, 32)]

    found = bench.read(Source.from_text("r.json", join.join(parts)))

    assert [s["clients"] for s in found.sweeps] == [8, 16, 32]
    assert found.sweeps[0]["request_rate_per_s"] == 5


def test_pretty_printed_results_and_lists_are_read_too() -> None:
    text = json.dumps([result(), result(max_concurrency=32)], indent=2)

    found = bench.read(Source.from_text("r.json", text))

    assert [s["clients"] for s in found.sweeps] == [16, 32]


def test_lists_of_a_detailed_result_give_lengths_and_the_longest_gap() -> None:
    detailed = result(
        input_lens=[10, 30, 20], output_lens=[5, 0, 9], itls=[[0.1, 2.5], [], [0.2]]
    )

    (run,) = bench.read(Source.from_text("r.json", json.dumps(detailed))).sweeps

    assert (run["prompt_p50_tokens"], run["prompt_max_tokens"]) == (20, 30)
    assert run["output_max_tokens"] == 9
    assert run["itl_max_s"] == 2.5


def test_a_result_that_is_cut_off_is_read_as_far_as_it_is_whole() -> None:
    text = json.dumps(result(), indent=1) + json.dumps(result(), indent=1)[:100]

    found = bench.read(Source.from_text("r.json", text))

    assert len(found.sweeps) == 1
    assert "cut off at line 16" in " ".join(found.report.notes)


def test_statistics_nested_by_other_tools_are_not_bench_serve() -> None:
    text = json.dumps({"request_throughput": {"avg": 1.0}, "output_throughput": {"avg": 2.0}})

    assert bench.sniff(text, "x.json") == 0.0


TRACE = """\
# my trace; block_size=16 max_model_len=512 num_gpu_blocks=21 (1 null) request: prompt=200 max_tokens=50
step 0 sched= 128 computed= 128 out= 0 free=12 RUNNING preempt=0
step 1 sched=  73 computed= 201 out= 1 free= 7 RUNNING preempt=0
step 2 sched=   0 computed=   0 out= 1 free=20 PREEMPTED preempt=1
step 3 sched=   0 computed=   0 out= 1 free=20 WAITING preempt=1
"""


def test_each_line_of_a_step_trace_is_a_sample() -> None:
    found = steps.read(Source.from_text("steps.txt", TRACE))

    assert [s["step"] for s in found.samples] == [0, 1, 2, 3]
    assert [s["used_blocks"] for s in found.samples] == [8, 13, 0, 0]
    assert [s["kv_usage_frac"] for s in found.samples] == [0.4, 0.65, 0.0, 0.0]
    assert [s["num_running"] for s in found.samples] == [1, 1, 0, 0]
    assert [s["num_waiting"] for s in found.samples] == [0, 0, 1, 1]
    assert [s["preemptions_total"] for s in found.samples] == [0, 0, 1, 1]
    assert [s["iteration_tokens"] for s in found.samples] == [128, 73, 0, 0]
    assert found.samples[2]["recomputed_tokens"] == 201
    assert "used_blocks" in found.samples[0]["inferred"]
    assert [(n.kind, n.at.number, n.count) for n in found.notices] == [("preemption", 4, 1)]
    assert {f.name: f.value for f in found.facts} == {
        "block_size": 16,
        "max_model_len": 512,
        "prompt_tokens": 200,
        "output_tokens": 50,
        "pool_blocks": 20,
        "null_blocks": 1,
    }
    assert found.report.family == "step-trace"
    assert steps.sniff(TRACE, "x") > 0.9


def test_a_trace_of_counts_a_step_is_no_counter_and_usage_may_be_per_cent() -> None:
    lines = [
        "iter=1 running=4 waiting=0 usage=80 preempted=0",
        "iter=2 running=3 waiting=1 usage=99 preempted=1",
        "iter=3 running=3 waiting=1 usage=97 preempted=0",
    ]

    found = steps.read(Source.from_text("t", "\n".join(lines)))

    assert [s["num_preempted"] for s in found.samples] == [0, 1, 0]
    assert [s["kv_usage_frac"] for s in found.samples] == [0.8, 0.99, 0.97]
    assert "preemptions_total" not in found.samples[0]
    assert len(found.notices) == 1


def test_several_requests_of_a_step_are_one_sample() -> None:
    lines = [
        "step=1 req=a computed=40 free=3 RUNNING",
        "step=1 req=b computed=30 free=3 RUNNING",
        "step=2 req=a computed=41 free=5 RUNNING",
        "step=2 req=b computed=0 free=5 PREEMPTED",
    ]

    found = steps.read(Source.from_text("t", "\n".join(lines)))

    assert [(s["num_running"], s["num_waiting"]) for s in found.samples] == [(2, 0), (1, 1)]
    assert found.samples[1]["recomputed_tokens"] == 30
    assert found.samples[1]["line"] == 3
    assert found.samples[1]["num_lines"] == 2


def test_the_pool_is_at_least_the_most_that_was_ever_free() -> None:
    found = steps.read(
        Source.from_text("t", "step=1 free=30 running=1\nstep=2 free=12 running=1\n")
    )

    (pool,) = [f for f in found.facts if f.name == "pool_blocks"]
    assert (pool.value, pool.inferred) == (30, True)


def test_a_markdown_table_may_stand_between_sentences() -> None:
    text = (
        "I ran a few, all with the same flags:\n\n| clients | preemptions | p99 TTFT (s) |\n|---|---|---|\n"
        "| 8 | 0 | 0.4 |\n| 32 | 77 | 9.5 |\n\nand it was the same on the next day, | think.\n"
    )

    assert table(text).sweeps == (
        {"clients": 8, "preemptions": 0, "ttft_p99_s": 0.4},
        {"clients": 32, "preemptions": 77, "ttft_p99_s": 9.5},
    )


@pytest.mark.parametrize(
    "text",
    [
        "concurrency   running   preemptions\n-----------------------\n8             8         0\n64            40        12\n",
        "concurrency running preemptions\n8 8 0\n64 40 12\n",
        "concurrency=8 running=8 preemptions=0\nconcurrency=64 running=40 preemptions=12\n",
    ],
)  # fmt: skip
def test_columns_may_be_set_with_blanks_and_rows_may_name_their_values(text: str) -> None:
    assert [s["preemptions"] for s in table(text, "x.txt").sweeps] == [0, 12]
    assert [s["clients"] for s in table(text, "x.txt").sweeps] == [8, 64]


def test_sentences_around_a_table_are_read_as_notes() -> None:
    text = (
        "vLLM 0.9.1, `--max-num-seqs 64`, prompts of 3000 tokens, 500 output tokens\n\n| Concurrency | Preemptions |\n|--|--|\n"
        "| 8 | 0 |\n| 32 | 9 |\n"
    )

    found = table(text, "issue.md")

    assert {f.name: f.value for f in found.facts} == {
        "version": "0.9.1",
        "max_num_seqs": 64,
        "prompt_tokens": 3000,
        "output_tokens": 500,
    }
    assert [s["preemptions"] for s in found.sweeps] == [0, 9]


def test_a_table_set_with_blanks_may_be_a_series() -> None:
    text = "iter  running waiting  used  free  preempted\n100   12      0        980   44    0\n101   11      1        940   84    1\n102   11      1        950   74    0\n"

    found = table(text, "x.txt")

    assert [(s["step"], s["num_running"], s["used_blocks"]) for s in found.samples] == [
        (100, 12, 980),
        (101, 11, 940),
        (102, 11, 950),
    ]
    assert [s["num_preempted"] for s in found.samples] == [0, 1, 0]
    assert [(f.name, f.value, f.inferred) for f in found.facts] == [("pool_blocks", 1024, True)]


def test_the_pool_of_a_step_trace_is_used_and_free_together() -> None:
    found = steps.read(
        Source.from_text("t", "step=1 used=10 free=30\nstep=2 used=28 free=12\n")
    )

    assert [(f.name, f.value, f.inferred) for f in found.facts] == [("pool_blocks", 40, True)]
    assert [s["kv_usage_frac"] for s in found.samples] == [0.25, 0.7]


def test_steps_may_stand_in_brackets_and_have_times() -> None:
    text = (
        "[step 0001] t=0.00s running=16 waiting=0 free_blocks=90 preemptions=0\n"
        "[step 0002] t=0.25s running=14 waiting=2 free_blocks=4 preemptions=2\n"
    )

    assert steps.sniff(text, "x") > 0.9
    found = steps.read(Source.from_text("t", text))

    assert [s["t_s"] for s in found.samples] == [0.0, 0.25]
    assert found.samples[1]["num_preempted"] == 2
    assert found.notices[0].t_s == 0.25
