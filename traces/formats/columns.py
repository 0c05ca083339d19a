"""Which column of an unknown table is which: a guess from names, always shown.

Knows the names that engines, gateways and benchmark tools use. Looks at names only, never at values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from traces.errors import WorkloadError
from traces.formats.cells import COUNT, IDS, INTEGER, NUMBER, TEXT, TIME
from traces.formats.source import Source

KINDS: Mapping[str, str] = {
    "request_id": TEXT,
    "arrival_s": TIME,
    "prompt_tokens": COUNT,
    "output_tokens": COUNT,
    "priority": INTEGER,
    "prefix_ids": IDS,
    "prefix_block_tokens": INTEGER,
    "session_id": TEXT,
    "arrival_step": INTEGER,
    "abort_step": INTEGER,
    "abort_s": NUMBER,
    "status": TEXT,
    "error": TEXT,
}
NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")

# In order of preference; compared without case, blanks, dots, dashes, underscores and units.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "arrival_s": (
        "arrival_s",
        "arrival_time_s",
        "arrival_time",
        "arrival",
        "arrived_at",
        "arrival_timestamp",
        "arrival_ts",
        "request_received_ms",
        "received_at",
        "request_start_time",
        "request_start",
        "start_time",
        "started_at",
        "start_ts",
        "startTimeUnixNano",
        "timestamp_start_unix_ms",
        "launch_time",
        "submit_time",
        "submitted_at",
        "send_time",
        "sent_at",
        "queued_at",
        "queued_ts",
        "enqueue_time",
        "timestamp",
        "@timestamp",
        "created_at",
        "created",
        "inferenceTime",
        "time_generated",
        "date_time",
        "datetime",
        "start",
        "ts",
        "time",
        "date",
        "t",
        "gmt_create",
        "request_time",
        "relative_time",
        "offset",
    ),
    "prompt_tokens": (
        "prompt_tokens",
        "prompt_token",
        "num_prompt_tokens",
        "n_prompt_tokens",
        "prompt_token_count",
        "usage_prompt_tokens",
        "input_tokens",
        "input_token",
        "num_input_tokens",
        "n_input_tokens",
        "input_token_count",
        "usage_input_tokens",
        "tokens_in",
        "tokens_prompt",
        "num_prefill_tokens",
        "prefill_tokens",
        "context_tokens",
        "request_tokens",
        "input_length",
        "input_len",
        "inputs_len",
        "prompt_length",
        "prompt_len",
        "prompt_size",
        "input_toks",
        "prompt_toks",
        "input_sequence_length",
        "isl",
        "context_length",
        "reported_token_input",
        "number_input_tokens",
        "in_tokens",
        "gen_ai_usage_prompt_tokens",
        "gen_ai_usage_input_tokens",
        "prefill_length",
        "prefill_len",
        "input",
        "prompt",
        "in",
        "it",
    ),
    "output_tokens": (
        "output_tokens",
        "output_token",
        "num_output_tokens",
        "n_output_tokens",
        "output_token_count",
        "usage_output_tokens",
        "completion_tokens",
        "completion_token",
        "num_completion_tokens",
        "n_completion_tokens",
        "completion_token_count",
        "usage_completion_tokens",
        "tokens_out",
        "tokens_completion",
        "num_decode_tokens",
        "decode_tokens",
        "generated_tokens",
        "generation_tokens",
        "num_generated_tokens",
        "n_generated_tokens",
        "num_generation_tokens",
        "response_tokens",
        "output_length",
        "output_len",
        "outputs_len",
        "completion_length",
        "completion_len",
        "response_length",
        "response_len",
        "generation_length",
        "generation_len",
        "token_size",
        "output_toks",
        "output_sequence_length",
        "osl",
        "reported_token_output",
        "number_output_tokens",
        "out_tokens",
        "gen_ai_usage_completion_tokens",
        "gen_ai_usage_output_tokens",
        "max_new_tokens",
        "decode_length",
        "decode_len",
        "gen_tokens",
        "output",
        "completion",
        "out",
        "ot",
    ),
    "request_id": (
        "request_id",
        "req_id",
        "id",
        "uuid",
        "x_request_id",
        "invocation_id",
        "rid",
        "span_id",
    ),
    "priority": ("priority", "prio"),
    "prefix_ids": (
        "prefix_hash_ids",
        "prefix_ids",
        "hash_ids",
        "block_hashes",
        "input_sequence_hashes",
        "total_hashes",
    ),
    "prefix_block_tokens": (
        "prefix_hash_block",
        "prefix_block_tokens",
        "trace_block_size",
        "hash_block_size",
        "block_size",
    ),
    "session_id": (
        "session_id",
        "conversation_id",
        "chat_id",
        "user_id",
        "session",
        "thread_id",
        "provided_session_id",
        "x_correlation_id",
    ),
    "arrival_step": ("arrival_step",),
    "abort_step": ("abort_step",),
    "abort_s": ("abort_s", "abort_time_s"),
    "status": (
        "status",
        "status_code",
        "state",
        "success",
        "is_success",
        "finish_status",
        "finish_reason",
    ),
    "error": ("error", "error_str", "errors", "error_message", "error_msg", "exception"),
}
_UNIT_TAIL = re.compile(
    r"(?:_|\s|\(|\[)(?:ns|us|ms|s|sec|secs|seconds|utc)[\])]?$", re.IGNORECASE
)


def squeezed(name: str) -> str:
    """A name without what writers disagree on: case, separators, a unit at its end."""
    return re.sub(r"[^a-z0-9]", "", _UNIT_TAIL.sub("", name.strip()).lower())


def guess(names: Iterable[str]) -> dict[str, str]:
    """role -> column for the roles whose column is there; each column is used once."""
    names = list(names)
    exact = {n.strip().lower(): n for n in reversed(names)}
    loose = {squeezed(n): n for n in reversed(names)}
    for n in names:  # the last part of a dotted name, where nothing else is called so
        loose.setdefault(squeezed(n.rpartition(".")[2]), n)
    found: dict[str, str] = {}
    for role, synonyms in SYNONYMS.items():
        for word in synonyms:
            column = exact.get(word.lower()) or loose.get(squeezed(word))
            if column is not None and column not in found.values():
                found[role] = column
                break
    return found


def checked_mapping(source: Source, mapping: Mapping[str, str]) -> dict[str, str]:
    """The caller's mapping. Raises WorkloadError for roles and columns that do not exist."""
    for role, column in mapping.items():
        if role not in KINDS:
            raise WorkloadError(
                source.name,
                f"mapping {role}",
                "there is no such role",
                f"Roles are {', '.join(KINDS)}.",
            )
        if column not in source.columns:
            raise WorkloadError(
                source.name,
                f"column {column}",
                f"the mapping of {role} names it, and the file has no such column",
                f"Its columns are {', '.join(source.columns[:40])}.",
            )
    return dict(mapping)
