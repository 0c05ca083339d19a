"""Seeded cases for both sides: settings by the golden cases' names, and rows of a trace.

The same seed and number give the same case on every machine (the standard library's generator,
seeded by text). Each case draws every setting anew; pools are small, so that most cases preempt. It
knows what vLLM accepts and stays just inside: what its front end refuses is not asked of its core,
save a prompt of max_model_len, which the core takes when it schedules synchronously (asynchronously
it fails an assertion of its own).
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MAX_MODEL_LEN = 131_072
_LONGEST_OUTPUT = 400


@dataclass(frozen=True)
class Case:
    """A trace and settings, and how to come by them again."""

    name: str
    settings: dict[str, Any]
    rows: list[Row]
    again: str  # the arguments of `python -m tests.parity` that run it

    def write(self, folder: Path) -> None:
        """Put trace.jsonl and settings.json there, as a golden case has them."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in self.rows)
        (folder / "trace.jsonl").write_text(lines, encoding="utf-8")
        text = json.dumps(self.settings, indent=1) + "\n"
        (folder / "settings.json").write_text(text, encoding="utf-8")


def make_case(seed: int, number: int, *, offload: bool = False) -> Case:
    """Case `number` of that seed; with offload, one that has a CPU pool behind the GPU's."""
    rng = random.Random(f"parity {seed} {number} {'offload' if offload else ''}".strip())
    settings = _settings(rng)
    if offload:
        settings |= _offload(rng, settings)
    rows = _rows(rng, settings)
    flag = " --offload" if offload else ""
    name = f"seed {seed} case {number}{' offload' if offload else ''}"
    return Case(name, settings, rows, f"--seed {seed} --case {number}{flag}")


def case_from_files(trace: Path, settings: Path) -> Case:
    """A case of a JSON-lines trace and a settings JSON, such as a golden case's."""
    rows = [json.loads(line) for line in trace.read_text("utf-8").splitlines() if line.strip()]
    document = json.loads(settings.read_text("utf-8"))
    return Case(trace.parent.name, document, rows, f"--trace {trace} --settings {settings}")


def _settings(rng: random.Random) -> dict[str, Any]:
    """Settings that vLLM accepts together."""
    block_size = rng.choice([1, 2, 4, 4, 8, 16, 16, 32])
    blocks = rng.choice([2, 3, 5, 6, 9, 12, 17, 24, 33, 65])
    pool = (blocks - 1) * block_size
    seqs = rng.choice([1, 2, 3, 4, 8, 16, 64, 64])
    length = rng.choice(
        [MAX_MODEL_LEN] * 3
        + [pool // 2 + 1, pool, pool + rng.randint(1, 2 * block_size), pool * 2]
    )
    length = max(8, length)
    chunked = rng.random() < 0.85
    budget = rng.choice([1, 2, block_size, 2 * block_size + 1, 64, 2048])
    if not chunked:
        length = min(length, pool + block_size + 8)
        budget = max(budget if rng.random() < 0.5 else 0, length)
    return {
        "num_blocks": blocks,
        "block_size": block_size,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(budget, seqs),
        "max_model_len": length,
        "enable_prefix_caching": rng.random() < 0.65,
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": min(
            length, rng.choice([0, 0, 0, 0, 1, 3, block_size, 2 * block_size + 1])
        ),
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.01, 0.1, 0.3, 0.5]),
        "scheduler_reserve_full_isl": rng.random() < 0.7,
        "async_scheduling": rng.random() < 0.45,
        "clock": "latency" if rng.random() < 0.1 else "step",
        "latency_ms": [rng.choice([0.0, 5.0]), 0.05, rng.choice([0.1, 1.0])],
        "livelock_steps": 150,
    }


def _offload(rng: random.Random, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a CPU pool, from one that holds next to nothing to one that holds all."""
    kind = rng.choice(["native", "native", "simple"])
    blocks = settings["num_blocks"]
    return {
        # The native connector cannot store all of a request whose blocks hold one token (it asserts a
        # block for the token sampled last); the simple one turns itself off without a prefix cache.
        "block_size": max(2, settings["block_size"]),
        "enable_prefix_caching": kind == "simple" or settings["enable_prefix_caching"],
        "offload": kind,
        "cpu_blocks": rng.choice([blocks * 64, blocks * 64, blocks * 2, blocks, 4]),
        "offload_prompt_only": rng.random() < 0.5,
        "lazy_offload": kind == "simple" and rng.random() < 0.5,
        "load_steps": rng.choice([1, 1, 2, 3]),
        "store_steps": rng.choice([1, 1, 2, 3]),
        "clock": "step",
    }


@dataclass(frozen=True)
class _Plan:
    """What the requests of one case have in common.

    span: arrivals lie within that many steps (0: a burst); prefix_block: tokens of a prefix id, 0:
    the block size; oversize: how likely a request is one that cannot fit; pressed: short prompts with
    long outputs, so that many are admitted and outgrow the pool together.
    """

    pool: int
    longest: int
    span: int
    prefix_block: int
    groups: list[list[int]]
    shared: float
    oversize: float
    aborted: float
    pressed: bool


def _plan(rng: random.Random, s: dict[str, Any]) -> _Plan:
    block_size = s["block_size"]
    shared = rng.random() < 0.6
    offload = s.get("offload")
    return _Plan(
        pool=(s["num_blocks"] - 1) * block_size,
        longest=min((s["num_blocks"] - 1) * block_size, s["max_model_len"]),
        span=rng.choice([0, 1, 5, 20, 60]),
        prefix_block=rng.choice([0, 0, 1, 2, 3, block_size, block_size + 1, 2 * block_size, 5]),
        groups=[[rng.randrange(3) for _ in range(40)] for _ in range(rng.choice([1, 1, 2, 3]))],
        shared=0.85 if shared else 0.0,
        oversize=0.15 if rng.random() < 0.08 else 0.0,
        # Aborts break the native connector (vllm_side/__main__.py), so few cases with it have any.
        aborted=rng.choice(
            [0.0, 0.0, 0.0, 0.1] if offload == "native" else [0.0, 0.1, 0.1, 0.4]
        ),
        pressed=rng.random() < (0.8 if offload else 0.5),
    )


def _rows(rng: random.Random, s: dict[str, Any]) -> list[Row]:
    plan = _plan(rng, s)
    count = rng.randint(1, 14) if rng.random() < 0.7 else rng.randint(15, 40)
    rows = []
    for i in range(count):
        prompt, output = _lengths(rng, s, plan)
        row: Row = {
            # Ids whose order as text is not that of the file: aborts at one time go by id.
            "request_id": f"r{i:03d}" if rng.random() < 0.97 else f"a{i:03d}",
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
        if s["policy"] == "priority" or rng.random() < 0.1:
            row["priority"] = rng.choice([0, 0, 1, 2, -1, 5])
        row |= _prefix(rng, s, plan, prompt) | _times(rng, s, plan, first=i == 0)
        rows.append(row)
    return rows


def _lengths(rng: random.Random, s: dict[str, Any], plan: _Plan) -> tuple[int, int]:
    """Prompt and output tokens of one request."""
    most = s["max_model_len"]
    if rng.random() < plan.oversize:
        prompt = rng.randint(1, int(plan.pool * 1.5) + 2)
        output = rng.randint(1, 2 * s["block_size"] + 4)
    elif plan.pressed:
        total = rng.randint(2, max(2, plan.longest))
        prompt = rng.randint(1, max(1, total // 4))
        output = total - prompt
    else:
        top = plan.longest if rng.random() < 0.6 else plan.longest // 3 + 2
        total = rng.randint(2, max(2, top))
        prompt = rng.randint(1, max(1, total - 1))
        output = total - prompt
        if rng.random() < 0.2:
            prompt = prompt // s["block_size"] * s["block_size"]
        if rng.random() < 0.03:
            output += 3 * s["block_size"]
    if most <= plan.pool and rng.random() < 0.05:
        prompt = most - (0 if rng.random() < 0.5 else 1)
    most -= s["async_scheduling"]
    return max(1, min(prompt, most)), max(1, min(output, _LONGEST_OUTPUT))


def _prefix(rng: random.Random, s: dict[str, Any], plan: _Plan, prompt: int) -> Row:
    """Prefix ids: a few families that agree for a while, some that end inside the prompt or beyond."""
    if rng.random() >= plan.shared:
        return {"prefix_hash_block": plan.prefix_block} if plan.shared else {}
    segment = plan.prefix_block or s["block_size"]
    count = rng.randint(0, -(-prompt // segment) + 1)
    family = rng.choice(plan.groups)
    ids = (family * (count // len(family) + 1))[:count]
    if ids and rng.random() < 0.3:
        ids[-1] = rng.randrange(5)
    row: Row = {"prefix_hash_ids": ids} if ids else {}
    return row | {"prefix_hash_block": plan.prefix_block}


def _times(rng: random.Random, s: dict[str, Any], plan: _Plan, *, first: bool) -> Row:
    """Arrival, and perhaps an abort at, after or before it, in steps or in seconds."""
    arrival = rng.randint(0, plan.span) if plan.span else 0
    if rng.random() < 0.03:
        arrival += rng.randint(100, 400)
    abort = None
    if rng.random() < plan.aborted:
        abort = max(0, arrival + rng.randint(0, 30) - (2 if rng.random() < 0.1 else 0))
    if s["clock"] == "step":
        row: Row = {"arrival_step": arrival}
        return row if abort is None else row | {"abort_step": abort}
    # Seconds count from the first arrival: one at 0, so that both sides add the same numbers.
    row = {"arrival_time_s": 0.0 if first else arrival * 0.0061}
    if abort is not None:
        row["abort_s"] = max(abort * 0.0061, row["arrival_time_s"])
    return row
