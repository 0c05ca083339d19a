"""Every grammar reads its own examples, and what engines' lines say comes out in our words."""

from __future__ import annotations

import pytest

from tests.evidence_log_builders import read, v1_line
from traces.evidence.evidence import FACTS, NOTICES
from traces.evidence.grammars import GRAMMARS, SILENT, Grammar
from traces.evidence.grammars.requests import without_prompts
from traces.telemetry_schema import SAMPLES, VALUE_NAMES

EXAMPLES = [(g, e) for g in GRAMMARS for e in g.examples]
COLUMNS = {c.name for c in SAMPLES.columns}


def first_to_match(line: str) -> Grammar | None:
    return next((g for g in GRAMMARS if g.read(line) is not None), None)


@pytest.mark.parametrize(("grammar", "line"), EXAMPLES, ids=[g.name for g, _ in EXAMPLES])
def test_an_example_is_read_by_its_own_grammar_first(grammar: Grammar, line: str) -> None:
    hit = grammar.read(line)

    assert first_to_match(line) is grammar
    assert hit is not None
    assert hit.sample or hit.facts or grammar.notice


@pytest.mark.parametrize(
    "grammar", [g for g in GRAMMARS if g.examples], ids=lambda g: str(g.name)
)
def test_each_field_of_a_grammar_is_found_in_some_example(grammar: Grammar) -> None:
    if grammar.name in ("arguments", "engine-config", "received"):
        pytest.skip("its fields are flags, of which a line prints those that were given")
    hits = [grammar.read(line) for line in grammar.examples]
    found = {k for h in hits if h for d in (h.sample, h.facts, h.values) for k in d}

    optional = {
        "trtllm-limits": {"max_num_batched_tokens", "max_model_len"},
        "trtllm-statistics": {"max_num_seqs"},
        "v1-transfer": {"store_failures"},
        "v1-preempting": {"computed_tokens"},
        "sglang-args": {"pool_tokens", "max_model_len"},
        "sglang-retract": {"aborted", "gained_tokens"},
    }
    named = {*grammar.sample, *grammar.facts, *grammar.values} - optional.get(
        grammar.name, set()
    )
    assert named <= found


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: str(g.name))
def test_a_grammar_names_only_columns_facts_and_notices_that_exist(grammar: Grammar) -> None:
    assert set(grammar.sample) <= COLUMNS
    assert set(grammar.facts) <= set(FACTS)
    assert not grammar.notice or grammar.notice in NOTICES
    assert not grammar.also or grammar.also in NOTICES
    assert grammar.source


def test_grammars_have_names_of_their_own() -> None:
    assert len({g.name for g in GRAMMARS}) == len(GRAMMARS)


def test_what_is_said_to_be_silent_is_a_column() -> None:
    assert {c for columns in SILENT.values() for c in columns} <= set(VALUE_NAMES)


def test_fields_that_a_patched_engine_adds_are_passed_over() -> None:
    (row,) = read(
        [
            "INFO 02-01 06:36:05 llm_engine.py:921] Avg prompt throughput: 382.6 tokens/s, Avg generation throughput: "
            "118.5 tokens/s, Max iteration time: 386.7 ms, New: 3, Running: 35 reqs, Swapped: 2 reqs, Odd: x, "
            "Pending: 115 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 1.5%"
        ]
    ).samples.to_dicts()

    assert row["num_running"] == 35
    assert row["num_swapped"] == 2
    assert row["num_waiting"] == 115
    assert row["kv_usage_frac"] == 0.99
    assert row["host_usage_frac"] == 0.015


def test_a_warning_of_v0_carries_its_counter_and_not_a_count_of_lines() -> None:
    found = read(
        [
            "WARNING 11-26 14:43:22 scheduler.py:1481] Sequence group a is preempted by PreemptionMode.SWAP mode because "
            f"there is not enough KV cache space. total_num_cumulative_preemption={n}"
            for n in (1, 51, 101)
        ]
    )

    assert [n.count for n in found.notices] == [1, 51, 101]
    assert {n.kind for n in found.notices} == {"preemption"}
    assert [f.value for f in found.facts if f.name == "preemption_mode"] == ["swap"]


def test_ranks_of_one_log_stay_apart() -> None:
    lines = [v1_line(0), v1_line(0).replace("Engine 000", "Engine 003")]

    assert read(lines).samples["engine_rank"].to_list() == [0, 3]


def test_an_aggregated_line_says_of_how_many_ranks() -> None:
    found = read([v1_line(0).replace("Engine 000:", "4 Engines Aggregated:")])

    assert found.samples["num_ranks"].to_list() == [4]
    assert "engine_rank" not in found.samples.columns


def test_copies_of_tensor_parallel_ranks_are_one_event() -> None:
    def line(second: int, rank: int, ratio: str) -> str:
        return (
            f"[2025-03-07 21:49:{second} TP{rank}] Decode out of memory happened. #retracted_reqs: 1, "
            f"#new_token_ratio: {ratio} -> 0.1845"
        )

    found = read(
        [line(33, r, "0.1474") for r in (13, 12, 10)]
        + [line(45, r, "0.0980") for r in range(8)]
        + [line(46, 0, "0.0980")]
    )

    assert [n.values.get("copies") for n in found.notices] == [3, 8, None]
    assert [n.t_s for n in found.notices] == [0.0, 12.0, 13.0]


def test_data_parallel_ranks_of_sglang_are_no_copies() -> None:
    line = "[2025-10-14 10:00:01 DP{} TP{}] Decode batch. #running-req: 5, #token: 10, token usage: 0.50, #queue-req: 0"

    found = read([line.format(0, 0), line.format(1, 1), line.format(1, 2)])

    assert found.samples["engine_rank"].to_list() == [0, 1]


def test_values_of_a_second_line_join_the_sample_of_the_same_second() -> None:
    found = read(
        [
            "2025-11-10T11:15:08.046875Z  INFO vllm_rs::core::engine: Decoding: 3 active request(s), avg. 39 tokens/s per request",
            "2025-11-10T11:15:08.046898Z  INFO vllm_rs::core::scheduler: GPU Kvcache: 63 blocks (4032 tokens) free, used 79.8% (0.73GB/0.91GB); CPU swap used 0.0% (0.00GB/4.57GB)",
            "2025-11-10T11:15:13.051234Z  INFO vllm_rs::core::engine: Decoding: 4 active request(s), avg. 39 tokens/s per request",
        ]
    )

    assert found.samples["num_running"].to_list() == [3, 4]
    assert found.samples["kv_usage_frac"].to_list() == [0.798, None]
    assert found.samples["num_lines"].to_list() == [2, 1]
    assert found.samples["inferred"].to_list() == [["generation_tokens_per_s"]] * 2
    facts = {f.name: (f.value, f.inferred) for f in found.facts}
    assert facts["block_size"] == (64, True)
    assert facts["pool_blocks"] == (312, True)


def test_a_swap_out_that_the_runner_tells_again_is_one_event() -> None:
    found = read(
        [
            "2025-11-10T11:15:33.736883Z  WARN vllm_rs::core::block_manager: Swap out sequence 21 (14 blocks) to CPU memory",
            "2025-11-10T11:15:33.736934Z  INFO runner: Received KVCacheSwap message: 14 kv cache blocks need to swap out!",
            "2025-11-10T11:15:33.836883Z  WARN vllm_rs::core::block_manager: Swap out sequence 20 (9 blocks) to CPU memory",
            "2025-11-10T11:15:33.836934Z  INFO runner: Received KVCacheSwap message: 9 kv cache blocks need to swap out!",
        ]
    )

    assert [(n.kind, n.values["request"], n.values["blocks"]) for n in found.notices] == [
        ("swap_out", "21", 14),
        ("swap_out", "20", 9),
    ]


def test_an_older_swap_out_with_its_numbers_in_swapped_order_is_put_right_by_the_runner() -> (
    None
):
    found = read(
        [
            "2025-11-10T11:15:33.736883Z  WARN vllm_rs::core::block_manager: Swap out sequence 14 (21 blocks) to CPU memory",
            "2025-11-10T11:15:33.736934Z  INFO runner: Received KVCacheSwap message: 14 kv cache blocks need to swap out!",
        ]
    )

    (notice,) = found.notices
    assert (notice.values["request"], notice.values["blocks"]) == ("21", 14)


def test_ray_copies_become_a_notice_of_their_own() -> None:
    found = read(
        [
            "(WorkerDict pid=1, ip=192.0.2.1) WARNING 04-14 20:06:19 scheduler.py:1484] Sequence group 63 is preempted by "
            "PreemptionMode.RECOMPUTE mode. total_num_cumulative_preemption=1 [repeated 3x across cluster]"
        ]
    )

    assert [(n.kind, n.count) for n in found.notices] == [("preemption", 1), ("repeated", 2)]
    assert found.notices[0].values["process"] == "WorkerDict pid=1, ip=192.0.2.1"


def test_prompts_and_token_ids_are_counted_and_not_kept() -> None:
    line = (
        "INFO 02-01 06:36:05 async_llm_engine.py:436] Received request cmpl-2-0: prompt: 'my secret, isn\\'t it', "
        "sampling_params: SamplingParams(n=1, best_of=1, max_tokens=512), prompt_token_ids: [1, 319, 13563, 29871], "
        "lora_request: None."
    )

    found = read([line, line.replace("Received request", "Odd line of")])

    (notice,) = found.notices
    assert notice.values["prompt_tokens"] == 4
    assert "secret" not in notice.at.text
    assert "13563" not in notice.at.text
    assert "secret" not in str(found.report) + str(found.left_over)


def test_leaving_prompts_out_keeps_the_rest() -> None:
    assert without_prompts("a prompt: 'x y', params: SamplingParams(n=2)") == (
        "a prompt: 'left out', params: SamplingParams(n=2)"
    )


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "fault"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out_of_memory"),
        ("ERROR 08-06 09:41:10 [core.py:700] EngineCore encountered a fatal error.", "fatal"),
        ("INFO:     Shutting down", "killed"),
        ("^CINFO:     Shutting down", "killed"),
        ("(EngineCore_DP0 pid=9) ERROR 08-06 09:41:10 [core.py:700] KeyError: 'x'", "fault"),
        ("[rank0]:[E806 09:41:10 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout", "fault"),
    ],
)  # fmt: skip
def test_an_end_is_noticed(line: str, kind: str) -> None:
    assert [n.kind for n in read([line]).notices] == [kind]


def test_an_error_of_one_request_is_no_fault_of_the_engine() -> None:
    found = read(
        [
            "ERROR 10-14 16:59:26 [serving_chat.py:251] ValueError: This model's maximum context length is 32768 tokens. "
            "However, your request has 41877 input tokens. Please reduce the length of the input messages."
        ]
    )

    (notice,) = found.notices
    assert notice.kind == "request_refused"
    assert notice.values == {"limit_tokens": 32768, "prompt_tokens": 41877}


def test_v1_counts_the_null_block_of_an_override() -> None:
    found = read(
        [
            "INFO 11-29 15:50:38 [kv_cache_utils.py:2115] Overriding num_gpu_blocks=10240 with num_gpu_blocks_override=480"
        ]
    )

    facts = {f.name: (f.value, f.inferred) for f in found.facts}
    assert facts == {
        "available_pool_blocks": (10240, False),
        "pool_blocks": (479, True),
        "null_blocks": (1, True),
    }


def test_a_rise_of_paused_requests_is_that_many_preemptions_at_least() -> None:
    line = (
        'I1014 14:43:0{}.000000 160 model_instance_state.cc:813] {{"Active Request Count":9,"Iteration Counter":{},'
        '"Paused Requests":{},"Scheduled Requests":4,"Max KV cache blocks":157,"Used KV cache blocks":150}}'
    )

    steps = ((1, 7, 0), (2, 8, 3), (3, 9, 1), (4, 40, 2), (5, 80, 2))
    found = read([line.format(*step) for step in steps])

    assert found.samples["num_preempted"].to_list() == [None, 3, 0, 1, None]
    assert "num_preempted" in found.samples["inferred"].to_list()[1]


def test_of_several_usages_of_a_hybrid_model_the_fullest_pool_counts() -> None:
    found = read(
        [
            "[2026-01-07 10:00:01 TP0] Decode batch, #running-req: 4, #full token: 9000, full token usage: 0.31, "
            "#swa token: 1200, swa token usage: 0.95, mamba num: 3, mamba usage: 0.40, cuda graph: True, "
            "gen throughput (token/s): 312.31, #queue-req: 0"
        ]
    )

    assert found.samples["kv_usage_frac"].to_list() == [0.95]


def test_two_servers_in_one_log_are_told_apart() -> None:
    lines = [f"vllm-{n}  | {v1_line(i)}" for i in range(3) for n in (1, 2)]

    found = read(
        [
            "vllm-1  | INFO 10-14 14:42:00 [kv_cache_utils.py:716] GPU KV cache size: 1,600 tokens",
            "vllm-2  | INFO 10-14 14:42:00 [kv_cache_utils.py:716] GPU KV cache size: 3,200 tokens",
            *lines,
            "vllm-2  | INFO 10-14 14:44:00 [async_llm.py:702] Request cmpl-1 aborted.",
        ]
    )

    assert found.samples["engine_rank"].to_list() == [0, 1, 0, 1, 0, 1]
    assert [(f.rank, f.value) for f in found.facts] == [(0, 1600), (1, 3200)]
    assert found.notices[0].rank == 1
    assert any("2 servers write into this log" in n for n in found.report.notes)


def test_engines_of_ray_workers_are_told_apart_by_their_process() -> None:
    lines = [
        f"(WorkerDict pid={pid}, ip=192.0.2.1) {v1_line(i)}" for i in range(3) for pid in (7, 8)
    ]

    assert read(lines).samples["engine_rank"].to_list() == [0, 1, 0, 1, 0, 1]


def test_a_server_that_was_started_again_is_one_server() -> None:
    lines = [f"(APIServer pid={7 if i < 2 else 99}) {v1_line(i)}" for i in range(4)]

    found = read(lines)

    assert found.samples["engine_rank"].to_list() == [0, 0, 0, 0]


def test_a_prefix_of_no_known_kind_is_passed_over_and_names_the_server() -> None:
    lines = [f"vllm-7f9c-{n} server {v1_line(i)}" for i in range(3) for n in ("abc", "xyz")]

    found = read(lines)

    assert found.samples["engine_rank"].to_list() == [0, 1, 0, 1, 0, 1]
    assert found.report.skipped == 0
