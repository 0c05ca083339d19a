"""Builders for tests of logs: plain lines of each engine, and what collectors and pastes do to lines."""

from __future__ import annotations

import json
from collections.abc import Callable

import polars as pl

from traces.evidence.log_reader import LogFound, read_log
from traces.evidence.source import Source

START_S = 14 * 3600 + 43 * 60


def clock(i: int) -> str:
    s = START_S + 5 * i
    return f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}"


def v1_line(i: int) -> str:
    return (
        f"INFO 10-14 {clock(i)} [loggers.py:123] Engine 000: Avg prompt throughput: {12.5 * i:.1f} tokens/s, "
        f"Avg generation throughput: {700 + i}.2 tokens/s, Running: {36 - i % 7} reqs, Waiting: {9 + i} reqs, "
        f"GPU KV cache usage: {50 + i % 50}.{i % 10}%, Prefix cache hit rate: 43.{i % 10}%"
    )


def v0_line(i: int) -> str:
    return (
        f"INFO 10-14 {clock(i)} metrics.py:449] Avg prompt throughput: {12.5 * i:.1f} tokens/s, Avg generation "
        f"throughput: {500 + i}.7 tokens/s, Running: {31 + i} reqs, Swapped: {i % 3} reqs, Pending: {i} reqs, "
        f"GPU KV cache usage: {50 + i % 50}.{i % 10}%, CPU KV cache usage: {i % 10}.0%."
    )


def iteration_line(i: int) -> str:
    return (
        f"INFO 10-14 {clock(i)} [loggers.py:213] Engine 001: Iteration({100 + i}): {i % 3} context requests, "
        f"{i % 3 * 512} context tokens, {20 + i} generation requests, {20 + i} generation tokens, iteration elapsed "
        f"time: {8 + i}.03 ms, GPU KV cache usage: {50 + i % 50}.{i % 10}%"
    )


def sglang_line(i: int) -> str:
    return (
        f"[2025-10-14 {clock(i)} TP0] Decode batch. #running-req: {20 + i}, #token: {39000 + 100 * i}, token usage: "
        f"0.{50 + i % 50}, gen throughput (token/s): {800 + i}.31, #queue-req: {i}"
    )


def triton_line(i: int) -> str:
    counts = {
        "Active Request Count": 2 + i,
        "Iteration Counter": 100 + i,
        "Max Request Count": 64,
        "Timestamp": f"10-14-2025 {clock(i)}",
        "Context Requests": 0,
        "Generation Requests": 1,
        "Scheduled Requests": 1,
        "Total Context Tokens": 0,
        "Free KV cache blocks": 100 - i,
        "Max KV cache blocks": 157,
        "Tokens per KV cache block": 128,
        "Used KV cache blocks": 57 + i,
    }
    body = json.dumps(counts, separators=(",", ":"))
    return f"I1014 {clock(i)}.000000 160 model_instance_state.cc:813] {body}"


LINES: dict[str, Callable[[int], str]] = {
    "v1": v1_line,
    "v0": v0_line,
    "iteration": iteration_line,
    "sglang": sglang_line,
    "triton": triton_line,
}


def _docker(line: str, i: int) -> str:
    return f"2025-10-14T{clock(i)}.000000000Z {line}"


PREFIXES: dict[str, Callable[[str, int], str]] = {
    "none": lambda line, i: line,
    "docker": _docker,
    "cri": lambda line, i: f"2025-10-14T{clock(i)}.000000000Z stdout F {line}",
    "docker-zone": lambda line, i: f"2025-10-14T{clock(i)}.000+02:00 {line}",
    "journald": lambda line, i: f"Oct 14 {clock(i)} gpu-1 vllm[4242]: {line}",
    "journald-iso": lambda line, i: f"2025-10-14T{clock(i)}+0000 gpu-1 vllm[4242]: {line}",
    "rsyslog": lambda line, i: f"<14>1 2025-10-14T{clock(i)}.000Z gpu-1 vllm 4242 - - {line}",
    "compose": lambda line, i: f"vllm-server-1  | {line}",
    "ray": lambda line, i: f"(WorkerDict pid=25295, ip=192.0.2.41) {line}",
    "process": lambda line, i: f"(APIServer pid=1) {line}",
    "pod": lambda line, i: f"[pod/vllm-0/server] {line}",
    "docker+ray+process": lambda line, i: _docker(
        f"(RayWorkerWrapper pid=77, ip=192.0.2.1) (APIServer pid=1) {line}", i
    ),
    "loki": lambda line, i: f"2025-10-14 {clock(i)}.000\t{line}",
    "csv": lambda line, i: f'2025-10-14T{clock(i)}Z,"{line}"',
    "stern": lambda line, i: f"vllm-7f9c-abc server {line}",
    "grep": lambda line, i: f"server.log:{i + 7}:{line}",
    "json-file": lambda line, i: json.dumps(
        {"log": line + "\n", "stream": "stderr", "time": f"2025-10-14T{clock(i)}.000000000Z"}
    ),
}

COLOURS: dict[str, Callable[[str], str]] = {
    "escape": lambda line: f"\x1b[1;36m{line[:9]}\x1b[0;0m{line[9:]}",
    "rsyslog": lambda line: f"#033[1;36m{line[:9]}#033[0;0m{line[9:]}",
    "caret": lambda line: f"^[[1;36m{line[:9]}^[[0;0m{line[9:]}",
    "bare": lambda line: f"[1;36m{line[:9]}[0;0m{line[9:]}",
}

ACCESS_LINE = 'INFO:     198.51.100.35:41834 - "POST /v1/completions HTTP/1.1" 200 OK'


def plain(family: str, num: int) -> list[str]:
    return [LINES[family](i) for i in range(num)]


def prefixed(lines: list[str], prefix: str) -> list[str]:
    return [PREFIXES[prefix](line, i) for i, line in enumerate(lines)]


def wrapped(lines: list[str], column: int, *, strip: bool = False) -> list[str]:
    """As a terminal breaks lines; strip: blanks at the end of a screen line are lost in copying."""
    pieces = [line[i : i + column] for line in lines for i in range(0, len(line), column)]
    return [p.rstrip(" ") for p in pieces] if strip else pieces


def read(lines: list[str], name: str = "server.log") -> LogFound:
    return read_log(Source.from_text(name, "\n".join(lines) + "\n"))


def values(found: LogFound) -> pl.DataFrame:
    """Samples without where they stood."""
    return found.samples.drop("line", "num_lines", "engine_rank", strict=False)
