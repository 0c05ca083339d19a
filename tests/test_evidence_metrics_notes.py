"""Notes of a user become facts: flags by every spelling, statements with their numbers and nouns."""

from __future__ import annotations

from typing import Any

import pytest

from traces.evidence.files import notes
from traces.evidence.source import Source


def facts(text: str) -> dict[str, Any]:
    found = notes.read(Source.from_text("notes.txt", text))
    assert not found.samples
    return {f.name: f.value for f in found.facts}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "vllm serve acme/chat-7b --max-model-len 8192 --gpu-memory-utilization=0.93 -tp 2 -dp 4",
            {
                "model": "acme/chat-7b",
                "max_model_len": 8192,
                "gpu_memory_utilization": 0.93,
                "tensor_parallel_size": 2,
                "data_parallel_size": 4,
            },
        ),
        (
            "python -m sglang.launch_server --model-path /m --mem-fraction-static 0.85 "
            "--max-running-requests 64 --context-length 32768 --disable-radix-cache --page-size 16",
            {
                "model": "/m",
                "gpu_memory_utilization": 0.85,
                "max_num_seqs": 64,
                "max_model_len": 32768,
                "enable_prefix_caching": False,
                "block_size": 16,
            },
        ),
        (
            "trtllm-serve acme/chat --max_batch_size 32 --max_seq_len 4096 --max_num_tokens 8192",
            {
                "model": "acme/chat",
                "max_num_seqs": 32,
                "max_model_len": 4096,
                "max_num_batched_tokens": 8192,
            },
        ),
        (
            "docker run --gpus all vllm/vllm-openai:v0.9.2 --max-num-seqs 48 --kv-cache-dtype fp8",
            {"version": "0.9.2", "max_num_seqs": 48, "kv_cache_dtype": "fp8"},
        ),
        ("--max-model-len 32K --kv-cache-memory 9G", {"max_model_len": 32768, "kv_bytes": 9663676416}),
        ("--no-enable-chunked-prefill --disable-log-stats", {"enable_chunked_prefill": False, "log_stats": False}),
        ("--enable-prefix-caching --max-num-seqs 8", {"enable_prefix_caching": True, "max_num_seqs": 8}),
        (
            "LLM(model='m', max_model_len=2048, num_gpu_blocks_override=512)",
            {"model": "m", "max_model_len": 2048, "pool_blocks": 512},
        ),
        ("SamplingParams(n=4, max_tokens=256)", {"sequences_per_request": 4, "output_tokens": 256}),
        ("vllm bench serve --random-input-len 2048 --random-output-len 128 --max-concurrency 64 --num-prompts 500",
         {"prompt_tokens": 2048, "output_tokens": 128, "clients": 64, "num_requests": 500}),
    ],
)  # fmt: skip
def test_command_lines(line: str, expected: dict[str, Any]) -> None:
    assert facts(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("client: 36 concurrent, prompt ~500 tokens, max_tokens 1024, ignore_eos",
         {"clients": 36, "prompt_tokens": 500, "output_tokens": 1024}),
        ("8 clients with inputs of about 20k tokens", {"clients": 8, "prompt_tokens": 20_000}),
        ("64 parallel requests from a load tool", {"clients": 64}),
        ("200 users", {"clients": 200}),
        ("concurrency 32, 1000 requests", {"clients": 32, "num_requests": 1000}),
        ("256 requests at once", {"clients": 256}),
        ("400-600 prompt tokens, 50 output tokens", {"prompt_tokens": (400, 600), "output_tokens": 50}),
        ("prompts of 47k to 56k tokens", {"prompt_tokens": (47_000, 56_000)}),
        ("10000 prompts, ~330 tokens each", {"num_requests": 10_000, "prompt_tokens": 330}),
        ("2k in / 500 out", {"prompt_tokens": 2000, "output_tokens": 500}),
        ("about 5 req/s", {"request_rate_per_s": 5.0}),
        ("block size 32; GPU utilisation drops to 0 %", {"block_size": 32, "idle_device": True}),
        ("57,344 bytes per token of KV; KV cache 15.5 GB on a 24 GB card; fp8 KV",
         {"kv_bytes_per_token": 57_344, "kv_bytes": 15_500_000_000, "device_bytes": 24_000_000_000,
          "kv_cache_dtype": "fp8"}),
        ("each 6k prompt and 1k output", {"prompt_tokens": 6000, "output_tokens": 1000}),
        ("a pool of 4,096 tokens", {"pool_tokens": 4096}),
        ("it has 69 blocks of 16", {"pool_blocks": 69, "block_size": 16}),
        ("2 x 80 GB class GPU", {"device_bytes": 80_000_000_000}),
        ("vLLM 0.10.1.post1 on one card", {"version": "0.10.1.post1"}),
        ("it got slow after 3 minutes on 2 nodes", {}),
        ("we saw 99.1 % usage", {}),
    ],
)  # fmt: skip
def test_statements(line: str, expected: dict[str, Any]) -> None:
    assert facts(line) == expected


def test_yaml_with_ranges_caps_and_counters() -> None:
    text = """\
# typed in
engine_flags: "--max-num-seqs 16 --enable-prefix-caching"
kv_pool_tokens: 123456
prompt_tokens:
  low: 1000
  high: 3000
proxy:
  a: {max_parallel_requests: 4}
  b: {max_parallel_requests: 6}
observed:
  num_preemptions_total: {before: 10, after: 12}
"""

    assert facts(text) == {
        "max_num_seqs": 16,
        "enable_prefix_caching": True,
        "pool_tokens": 123456,
        "prompt_tokens": (1000, 3000),
        "client_caps": (4, 6),
        "preemptions": (10, 12),
    }


def test_arguments_of_a_manifest() -> None:
    text = """\
        args:
          - --model=acme/chat
          - --max-num-seqs
          - "24"
          - --max-model-len=4096
        image: vllm/vllm-openai:v0.11.0
"""

    assert facts(text) == {
        "model": "acme/chat",
        "max_num_seqs": 24,
        "max_model_len": 4096,
        "version": "0.11.0",
    }


def test_arguments_as_a_json_list() -> None:
    text = 'command: ["vllm", "serve", "--max-model-len", "4096", "--max-num-seqs", "24"]'

    assert facts(text) == {"max_model_len": 4096, "max_num_seqs": 24}


def test_a_command_over_several_lines_keeps_its_line_numbers() -> None:
    found = notes.read(
        Source.from_text(
            "run.sh", "vllm serve m \\\n  --max-num-seqs 24 \\\n  --max-model-len 4096\n"
        )
    )

    assert {f.name: f.at.number for f in found.facts if f.at} == {
        "model": 1,
        "max_num_seqs": 2,
        "max_model_len": 3,
    }
    assert found.report.engine == "vllm"
    assert found.report.family == "config-only"


def test_an_override_is_only_inferred_as_the_pool() -> None:
    found = notes.read(Source.from_text("x", "--num-gpu-blocks-override 512"))

    assert [(f.name, f.value, f.inferred) for f in found.facts] == [("pool_blocks", 512, True)]


@pytest.mark.parametrize(
    ("text", "name", "mine"),
    [
        ("vllm serve m --max-num-seqs 24", "paste", True),
        ("32 clients, inputs of about 20k tokens", "config.txt", True),
        ("kv_pool_tokens: 123\nprompt_tokens: 400\n", "facts.yaml", True),
        (
            "INFO 11-26 14:43:02 api_server.py:1] args: max_model_len=20000\n" * 3,
            "server.log",
            False,
        ),
        ("2026-01-01 10:00:00,123 INFO x max_tokens=5\n" * 3, "config.txt", False),
        ("the weather is fine today\n", "paste", False),
    ],
)
def test_notes_are_told_from_logs(text: str, name: str, mine: bool) -> None:
    assert (notes.sniff(text, name) >= 0.5) is mine


def test_settings_as_json() -> None:
    text = '{"server_args": {"context_length": 8192, "max_running_requests": 48}, "max_total_num_tokens": 60000}'

    assert notes.sniff(text, "server_info.json") >= 0.5
    assert facts(text) == {"max_model_len": 8192, "max_num_seqs": 48, "pool_tokens": 60000}
