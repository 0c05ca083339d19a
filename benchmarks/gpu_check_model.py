"""GPU check, model: recompute against swap by length, and what copies cost the steps beside them.

One model with random weights (8B-shaped on a card), one executor; requests are written by hand, so that nothing
but the work is timed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from gpu_check_copies import Pump
from gpu_check_table import Check

from engine.gpu.attention import get_backend
from engine.gpu.batch import StepInputs
from engine.gpu.executor import Executor
from engine.gpu.kv_cache import HostPool, KVCache
from engine.gpu.model import CausalLM
from engine.gpu.sampling import Sampling
from engine.gpu.swap import Copier
from engine.gpu.weights import load_model

MODEL, SMALL_MODEL = (
    "llama-3.1-8b",
    "llama-3.2-1b",
)  # the latter on cards that cannot hold 16 GB + KV
ROOMY_GIB = 40
BLOCK, BUDGET = 16, 8192
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
QUICK_LENGTHS = (32, 64)
MOST_INFLATION = 0.02
PATHS = ("loop", "batch", "coalesced")
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def model_name(check: Check) -> str:
    """What load_model is given: a preset on a card, a tiny configuration for a quick run."""
    if not check.quick:
        return MODEL if check.facts.get("memory_gib", 0) >= ROOMY_GIB else SMALL_MODEL
    folder = check.out / "tiny-model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    return str(folder)


def budget_of(check: Check) -> int:
    """Tokens that a step may compute."""
    return 32 if check.quick else BUDGET


class Bench:
    """A model, a pool and an executor; `decode` requests that stand still, and one that is prefilled."""

    def __init__(self, check: Check) -> None:
        began = time.perf_counter()
        self.check = check
        self.name = model_name(check)
        self.model: CausalLM = load_model(self.name, random_seed=0, device=check.device)
        self.longest = max(QUICK_LENGTHS if check.quick else LENGTHS)
        self.decodes, self.context = (2, 40) if check.quick else (32, 1024)
        self.budget = budget_of(check)
        own = -(-(self.context + 1) // BLOCK)
        width = -(-(self.longest + 1) // BLOCK)
        num_blocks = 2 * width + self.decodes * own
        config = self.model.config
        self.kv = KVCache(
            num_blocks, config.num_layers, BLOCK, config.num_kv_heads, config.head_dim,
            dtype=self.model.dtype, device=check.device,
        )  # fmt: skip
        backend = get_backend(
            "auto", self.kv, config.num_heads, windows=config.windows,
            max_num_seqs=self.decodes, max_model_len=self.longest + 1,
        )  # fmt: skip
        self.table = np.zeros((self.decodes + 1, width), np.int32)
        ids = np.random.default_rng(4).permutation(num_blocks)
        for row in range(self.decodes):
            self.table[row, :own] = ids[row * own : (row + 1) * own]
        self.free = ids[self.decodes * own :]
        self.table[self.decodes] = self.free[:width]
        self.executor = Executor(
            self.model, self.kv, backend, num_slots=len(self.table), table_width=width,
            max_num_seqs=self.decodes, token_budget=self.budget, max_model_len=self.longest + 1,
            sampling=Sampling(),
        )  # fmt: skip
        self.vocab = config.vocab
        self.load_s = time.perf_counter() - began

    def step(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: int,
        *,
        sample: bool,
        new: bool,
    ) -> tuple[float, float]:
        """Device and host seconds of a step of `tokens` each for these rows. new: their blocks are news."""
        num = len(slots)
        slot, start = np.array(slots, np.int64), np.array(starts, np.int64)
        blocks = -(-(start + tokens) // BLOCK)
        step = StepInputs(
            slot, slot, start, np.full(num, tokens, np.int64), np.full(num, sample),
            np.zeros(num, np.int64) if new else blocks, blocks, self.table,
        )  # fmt: skip
        began = time.perf_counter()
        outputs = self.executor.wait(self.executor.submit(step))
        return outputs.compute_s, time.perf_counter() - began

    def prefill(self, slot: int, tokens: int) -> tuple[float, float]:
        """Device and host seconds of computing a request from nothing, a token budget at a time."""
        known = np.random.default_rng(slot).integers(0, self.vocab, tokens)
        self.executor.load_tokens(slot, known)
        taken = np.zeros(2)
        for start in range(0, tokens, self.budget):
            n = min(self.budget, tokens - start)
            taken += self.step([slot], [start], n, sample=start + n == tokens, new=True)
        return float(taken[0]), float(taken[1])

    def decode(self) -> tuple[float, float]:
        """Device and host seconds of one decode step of the standing requests."""
        rows = range(self.decodes)
        return self.step(list(rows), [self.context - 1] * len(rows), 1, sample=True, new=False)


def bench(check: Check) -> Bench:
    """The model of this check, loaded once."""
    if "bench" not in check.shared:
        made = Bench(check)
        check.shared["bench"] = made
        check.row(
            f"{Path(made.name).name} with random weights",
            made.load_s,
            "s",
            note="load and graphs",
        )
    found: Bench = check.shared["bench"]
    return found


def inflation(check: Check) -> None:
    """Decode steps with and without an asynchronous copy under way, each direction."""
    b = bench(check)
    for slot in range(b.decodes):
        b.prefill(slot, b.context)
    for _ in range(5):
        b.decode()
    steps = 5 if check.quick else 60
    num = min(len(b.free), 8 if check.quick else 256)  # two copies outlast a step
    host = HostPool(b.kv, num)
    for way in ("out", "in"):
        check.need_time(2.0)
        with Copier(b.kv, host, asynchronous=True) as copier:
            alone, beside, pump = _interleaved(b, copier, b.free[-num:], way, steps)
        for kind, k in (("device time", 0), ("host time, copies handed over", 1)):
            a, c = (statistics.median(t[k] for t in times) for times in (alone, beside))
            gb = pump.num_bytes / 1e9
            check.held(
                f"decode step beside a copy {way}, {kind}", c / a - 1.0, "more", most=MOST_INFLATION,
                note=f"{a * 1e3:.3f} ms alone, {c * 1e3:.3f} ms beside; {gb:.2f} GB moved",
                counts=check.on_cuda and k == 0,
            )  # fmt: skip
    host.close()


def _interleaved(
    b: Bench, copier: Copier, gpu: np.ndarray, way: str, steps: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], Pump]:
    """Step times alone and beside copies, in turns of ten, so that a drifting clock meets both alike."""
    pump = Pump(copier, gpu, way)
    alone: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    for _ in range(0, steps, 10):
        pump.drain()
        alone += [b.decode() for _ in range(min(10, steps))]
        for _ in range(min(10, steps)):
            began = time.perf_counter()
            copier.order_step()
            pump()
            handed_over = time.perf_counter() - began
            device, host = b.decode()
            copier.after_step()
            beside.append((device, host + handed_over))
    pump.drain()
    return alone, beside, pump


# --- recompute against swap -----------------------------------------------------------------------


@dataclass
class Lengths:
    """Seconds by length in tokens: of recomputing, and of swapping out and in along each path."""

    recompute: dict[int, float] = field(default_factory=dict)
    swap: dict[str, dict[int, float]] = field(default_factory=lambda: {p: {} for p in PATHS})


def crossover(check: Check) -> None:
    """Measured recompute, and swap out and in along each path, by length; beside the cost model."""
    b = bench(check)
    lengths = QUICK_LENGTHS if check.quick else LENGTHS
    b.prefill(b.decodes, lengths[-1])  # compiles and warms up what the lengths need
    dtype = str(b.model.dtype).removeprefix("torch.")
    check.shared["lengths"], check.shared["dtype"] = Lengths(), dtype
    said = cost_model(check, preset(check), lengths)
    with ExitStack() as stack:
        host = HostPool(b.kv, -(-b.longest // BLOCK))
        stack.callback(host.close)
        copiers = {p: stack.enter_context(Copier(b.kv, host, p)) for p in PATHS}
        try:
            for n in lengths:
                check.need_time(3.0)
                _one_length(check, b, copiers, n, said)
        finally:
            compare(check, "cost model", said)


def _one_length(
    check: Check, b: Bench, copiers: dict[str, Copier], n: int, said: Lengths | None
) -> None:
    """Rows of one length: the recompute, and a swap along each path."""
    seen: Lengths = check.shared["lengths"]
    repeats = 1 if check.quick else 3
    seen.recompute[n] = min(b.prefill(b.decodes, n)[0] for _ in range(repeats))
    note = f"{n / seen.recompute[n]:.0f} tokens/s"
    if said:
        note += f"; cost model {said.recompute[n] * 1e3:.2f} ms"
    check.row(f"recompute of {n} tokens", seen.recompute[n] * 1e3, "ms", note=note)
    for path, copier in copiers.items():
        taken = seen.swap[path][n] = _swap_s(b, copier, -(-n // BLOCK), repeats)
        note = f"recompute takes {seen.recompute[n] / taken:.2f} of it"
        if said:
            note += f"; cost model {said.swap[path][n] * 1e3:.2f} ms"
        check.row(f"swap of {n} tokens out and in, {path}", taken * 1e3, "ms", note=note)


def compare(check: Check, who: str, said: Lengths | None) -> None:
    """Where recompute is faster than swap, as measured and as `who` says, a row a path."""
    seen: Lengths = check.shared["lengths"]
    for path in PATHS if len(seen.recompute) > 1 else ():
        note = "measured " + ranges(
            {n: seen.recompute[n] / t for n, t in seen.swap[path].items()}
        )
        if said:
            predicted = {n: said.recompute[n] / said.swap[path][n] for n in seen.swap[path]}
            note += f"; {who}: {ranges(predicted)}"
        check.row(f"recompute is faster than swap, {path}", note=note)


def _swap_s(b: Bench, copier: Copier, blocks: int, repeats: int) -> float:
    """Seconds out and in of a request's scattered blocks, to a run on the host."""
    gpu, there = b.table[b.decodes, :blocks].astype(np.int64), np.arange(blocks)
    times = []
    for _ in range(repeats):
        out = copier.copy_out(gpu, there)
        back = copier.copy_in(there, gpu)
        times.append(out.seconds + back.seconds)
    return statistics.median(times)


def ranges(ratio: dict[int, float]) -> str:
    """Where recompute / swap is below one, ends interpolated in the logarithms: "from 190 to 3,100 tokens"."""
    lengths = sorted(ratio)
    logs = np.log([ratio[n] for n in lengths])
    if (logs < 0).all():
        return f"at every length from {lengths[0]:,} to {lengths[-1]:,} tokens"
    if (logs >= 0).all():
        return f"at no length from {lengths[0]:,} to {lengths[-1]:,} tokens"
    ends = []
    for (a, la), (b, lb) in pairwise(zip(lengths, logs, strict=True)):
        if (la < 0) != (lb < 0):
            at = np.exp(np.log(a) + la / (la - lb) * (np.log(b) - np.log(a)))
            ends.append(("from" if lb < 0 else "up to") + f" {at:,.0f} tokens")
    return ", ".join(ends)


def preset(check: Check) -> str:
    """The name of the device preset for this card; a row, once, where it is another's."""
    if "preset" not in check.shared:
        check.shared["preset"] = _preset(check)
    return str(check.shared["preset"])


def _preset(check: Check) -> str:
    from engine.devices import load_device
    from traces.errors import SettingsError

    try:
        return load_device(check.facts["device"] if check.on_cuda else "cpu").name
    except SettingsError:
        check.row("cost model", note=f"no preset for {check.facts['device']}: that of h100-sxm")
        return "h100-sxm"


def cost_model(check: Check, device: str | Path, lengths: Sequence[int]) -> Lengths | None:
    """What the cost model says of these lengths on that device; None and a row where it cannot be asked."""
    try:
        from engine.cost_model import copy_time_s, isolated_recompute_time_s, make_cost_params
    except ImportError as why:
        check.row("cost model", note=f"left out: {why}")
        return None
    from engine.devices import load_device
    from engine.models import load_model as load_shape

    shape, dtype, budget = (
        load_shape(model_name(check)),
        check.shared["dtype"],
        budget_of(check),
    )
    said = Lengths()
    for path in PATHS:
        p = make_cost_params(
            shape, load_device(device), copy_path=path, kv_dtype=dtype, weight_dtype=dtype
        )
        for n in lengths:
            blocks = -(-n // BLOCK)
            ways = (copy_time_s(p, blocks, blocks, inward) for inward in (False, True))
            said.swap[path][n] = sum(ways)
            chunks = ((min(budget, n - s), s) for s in range(0, n, budget))
            said.recompute[n] = sum(isolated_recompute_time_s(p, *c) for c in chunks)
    return said


def release(check: Check) -> None:
    """Let go of the model, so that runs have the card for themselves."""
    check.shared.pop("bench", None)
    check.free_memory()
