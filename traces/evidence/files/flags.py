"""Flags and settings of serving engines and their clients, by all their spellings, as facts.

It knows names, units, negations ("--no-enable-prefix-caching", "--disable-radix-cache") and how people write
numbers ("20k", "131,072", "9 GiB"). It does not know where a flag stands: notes.py finds them.

Sources: `vllm serve --help` 0.4 to 0.26, sglang `server_args`, `trtllm-serve`, text-generation-launcher,
`vllm bench serve`, LiteLLM's proxy configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from traces.evidence.evidence import Value
from traces.evidence.meant import is_meant

_NUMBER = re.compile(
    r"^[~≈<>=]*\s*(\d[\d,_]*(?:\.\d+)?)\s*(k|K|ki|Ki|m|M|Mi|B|[kKMGT]i?B?|bytes)?(?:\s*tokens?)?$"
)
_TIMES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES_1024 = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def read_count(text: str) -> int | None:
    """A count of tokens, requests or blocks: "20k" is 20,000, "32K" of a flag 32,768; None: no count."""
    m = _NUMBER.match(text.strip())
    if m is None:
        return None
    value = float(m[1].replace(",", "").replace("_", ""))
    if not is_meant(value):
        return None
    suffix = m[2] or ""
    if suffix in ("K", "Ki", "ki", "Mi"):
        value *= _TIMES_1024[suffix[0].lower()]
    elif suffix in ("k", "m", "M"):
        value *= _TIMES[suffix[0].lower()]
    elif suffix:
        return None
    return round(value) if abs(value - round(value)) < 1e-6 else None


def read_bytes(text: str) -> int | None:
    """A size: plain bytes, "9 GiB", "9G" (2^30, as vLLM reads it), "24 GB" (10^9)."""
    m = _NUMBER.match(text.strip())
    if m is None:
        return None
    value = float(m[1].replace(",", "").replace("_", ""))
    if not is_meant(value):
        return None
    suffix = (m[2] or "").strip()
    if not suffix or suffix in ("B", "bytes"):
        return round(value)
    scale = _TIMES if suffix.endswith("B") and "i" not in suffix else _TIMES_1024
    return round(value * scale[suffix[0].lower()])


def read_number(text: str) -> float | None:
    """A plain number or a percentage as a share."""
    text = text.strip().rstrip(",;")
    percent = text.endswith("%")
    try:
        value = float(text.rstrip("%"))
    except ValueError:
        return None
    if not is_meant(value):
        return None
    return value / 100 if percent else value


def read_switch(text: str) -> bool | None:
    """On or off; a flag without a value is on."""
    word = text.strip().lower()
    if word in ("", "true", "1", "yes", "on", "enabled"):
        return True
    return False if word in ("false", "0", "no", "off", "disabled") else None


def _read_not(text: str) -> bool | None:
    value = read_switch(text)
    return None if value is None else not value


def _read_word(text: str) -> str | None:
    word = text.strip().strip("'\",;")
    return word.lower() if re.fullmatch(r"[\w.+-]+", word) and word != "auto" else None


def _read_name(text: str) -> str | None:
    word = text.strip().strip("'\",;")
    return word if word and " " not in word and not word.startswith("-") else None


@dataclass(frozen=True)
class Flag:
    """fact: its name; read: text -> value or None; inferred, note: where it only follows."""

    fact: str
    read: Callable[[str], Value | None]
    inferred: bool = False
    note: str = ""


_OVERRIDE = Flag(
    "pool_blocks",
    read_count,
    True,
    "num_gpu_blocks_override; one block fewer where the engine keeps a null block",
)
_STATIC = Flag(
    "gpu_memory_utilization",
    read_number,
    False,
    "SGLang's mem_fraction_static: weights and pool together",
)


def _all(flag: Flag, *names: str) -> dict[str, Flag]:
    return dict.fromkeys(names, flag)


FLAGS: dict[str, Flag] = {
    **_all(Flag("model", _read_name), "model", "model_path", "model_id", "model_tag"),
    **_all(
        Flag("max_model_len", read_count),
        "max_model_len",
        "max_seq_len",
        "context_length",
        "max_sequence_length",
    ),
    **_all(Flag("gpu_memory_utilization", read_number), "gpu_memory_utilization", "gmu"),
    **_all(_STATIC, "mem_fraction_static"),
    **_all(
        Flag("max_num_seqs", read_count),
        "max_num_seqs",
        "max_running_requests",
        "max_batch_size",
        "triton_max_batch_size",
        "max_concurrent_sequences",
    ),
    **_all(
        Flag("max_num_batched_tokens", read_count),
        "max_num_batched_tokens",
        "chunked_prefill_size",
        "max_num_tokens",
        "max_batch_prefill_tokens",
    ),
    **_all(
        Flag("tensor_parallel_size", read_count),
        "tensor_parallel_size",
        "tp",
        "tp_size",
        "num_shard",
    ),
    **_all(Flag("data_parallel_size", read_count), "data_parallel_size", "dp", "dp_size"),
    **_all(Flag("block_size", read_count), "block_size", "page_size", "tokens_per_block"),
    **_all(
        Flag("enable_prefix_caching", read_switch),
        "enable_prefix_caching",
        "enable_block_reuse",
        "enable_kv_cache_reuse",
        "prefix_caching",
    ),
    **_all(
        Flag("enable_prefix_caching", _read_not),
        "no_enable_prefix_caching",
        "disable_radix_cache",
        "no_prefix_caching",
    ),
    **_all(
        Flag("enable_chunked_prefill", read_switch),
        "enable_chunked_prefill",
        "enable_chunked_context",
    ),
    **_all(Flag("enable_chunked_prefill", _read_not), "no_enable_chunked_prefill"),
    **_all(Flag("log_stats", _read_not), "disable_log_stats"),
    **_all(Flag("kv_cache_dtype", _read_word), "kv_cache_dtype"),
    **_all(
        Flag("kv_bytes", read_bytes), "kv_cache_memory", "kv_cache_memory_bytes", "kv_bytes"
    ),
    **_all(Flag("kv_bytes_per_token", read_bytes), "kv_bytes_per_token", "bytes_per_token"),
    **_all(_OVERRIDE, "num_gpu_blocks_override"),
    **_all(Flag("pool_blocks", read_count), "pool_blocks", "max_kv_cache_blocks"),
    **_all(Flag("host_pool_blocks", read_count), "num_cpu_blocks"),
    **_all(
        Flag("pool_tokens", read_count),
        "kv_pool_tokens",
        "pool_tokens",
        "max_total_num_tokens",
        "kv_cache_size_tokens",
        "kv_cache_tokens",
        "kv_tokens",
        "gpu_kv_cache_size",
        "max_batch_total_tokens",
        "max_tokens_in_paged_kv_cache",
    ),
    **_all(Flag("preemption_mode", _read_word), "preemption_mode"),
    **_all(
        Flag("policy", _read_word),
        "scheduling_policy",
        "schedule_policy",
        "batch_scheduler_policy",
        "capacity_scheduler_policy",
    ),
    **_all(
        Flag("output_tokens", read_count),
        "max_tokens",
        "max_new_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "output_len",
        "output_length",
        "output_tokens",
        "random_output_len",
        "sharegpt_output_len",
        "osl",
    ),
    **_all(
        Flag("prompt_tokens", read_count),
        "prompt_tokens",
        "prompt",
        "prompt_len",
        "prompt_length",
        "input_len",
        "input_length",
        "input_tokens",
        "random_input_len",
        "isl",
    ),
    **_all(Flag("sequences_per_request", read_count), "n", "best_of", "num_return_sequences"),
    **_all(
        Flag("clients", read_count),
        "max_concurrency",
        "concurrency",
        "num_concurrent",
        "clients",
        "num_clients",
        "num_users",
        "users",
        "fired_concurrency",
    ),
    **_all(Flag("client_caps", read_count), "max_parallel_requests", "max_concurrent_requests"),
    **_all(Flag("num_requests", read_count), "num_prompts", "num_requests", "requests"),
    **_all(Flag("request_rate_per_s", read_number), "request_rate", "rps", "qps"),
    **_all(
        Flag("preemptions", read_count),
        "num_preemptions_total",
        "num_preemptions",
        "preemptions",
    ),
    **_all(Flag("version", _read_name), "version", "vllm_version", "sglang_version"),
    **_all(Flag("state_blocks", read_count), "state_blocks"),
    **_all(Flag("null_blocks", read_count), "null_blocks"),
}
SHORT = {"tp": "tp", "dp": "dp", "n": "n", "c": "concurrency"}  # with one dash


# spellings that mean different things in different engines
_OF_ENGINE: dict[tuple[str, str | None], Flag] = {
    ("max_total_tokens", "sglang"): Flag("pool_tokens", read_count, True, "max_total_tokens: the most that the pool may hold"),
    ("max_total_tokens", "tgi"): Flag("max_model_len", read_count),
}  # fmt: skip


def flag_of(name: str, engine: str | None = None) -> Flag | None:
    """The flag of that spelling: dashes and underscores alike, any case. engine: where it is known."""
    plain = name.strip().strip("-'\"").replace("-", "_").replace(" ", "_").lower()
    return _OF_ENGINE.get((plain, engine)) or FLAGS.get(plain)
