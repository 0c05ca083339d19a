"""Published results, simulated again from their set-ups with no tuning: what was said, and what we get.

Each function takes a scratch folder and returns a Section: source, set-up, rows of the table, and sentences
that are worked out from the rows. Numbers that were published are typed here, with where they stand; what
their set-up leaves open is chosen once, and said. `accuracy.py` prints and saves them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analyzer.summary import summarize
from engine.config import EngineSettings
from engine.cost_model import (
    copy_time_s,
    isolated_recompute_time_s,
    make_cost_params,
    recompute_time_s,
)
from engine.devices import load_device
from engine.models import load_model
from engine.simulator import simulate
from traces.recording import Recording, open_recording
from traces.workload import ReadReport, Workload, make_workload

SEED = 0


@dataclass(frozen=True)
class Section:
    """One published result. key: for --only; header, rows: a Markdown table; said: sentences below it;
    short: what the summary says of it; reproduced: "yes", "in part" or "no", by the rule in `said`."""

    key: str
    title: str
    source: str
    set_up: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    said: tuple[str, ...]
    short: str
    reproduced: str


def workload(
    num: int,
    prompt: tuple[int, int],
    output: tuple[int, int],
    *,
    rate: float = 0.0,
    concurrency: int | None = None,
    seed: int = SEED,
) -> Workload:
    """`num` requests with uniform lengths, ends included; all at once, or Poisson at `rate` a second."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, num)) if rate else np.zeros(num)
    return _make(
        arrivals,
        random.integers(prompt[0], prompt[1] + 1, num),
        random.integers(output[0], output[1] + 1, num),
        concurrency,
    )


def _make(
    arrivals: np.ndarray,
    prompts: np.ndarray,
    outputs: np.ndarray,
    concurrency: int | None = None,
) -> Workload:
    return make_workload(
        {"arrival_s": arrivals, "prompt_tokens": prompts, "output_tokens": outputs},
        name="published",
        report=ReadReport("drawn"),
        concurrency=concurrency,
    )


def run(requests: Workload, scratch: Path, **settings: Any) -> Recording:
    """The simulated recording of these requests under these settings."""
    simulate(requests, EngineSettings(**settings), scratch / "run", overwrite=True)
    return open_recording(scratch / "run")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


def _change(new: float, old: float) -> str:
    return f"{100 * (new / old - 1):+.0f} %".replace("-", "−")


# ---- SOSP'23, figure 19 ---------------------------------------------------------------------------

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COPIED_TOKENS = 256
SHAREGPT = (161.31, 337.99)  # mean prompt and output, tokens; the paper's figure 11 [M]
LINKS = {"12.5 GB/s": 12.5e9, "24.8 GB/s": 24.8e9}


def sosp_overhead(scratch: Path) -> Section:
    """Figure 19a: time to swap a request out and in, and to recompute it, over block sizes."""
    model, device = load_model("opt-13b"), load_device("a100-40")
    swaps: dict[str, list[float]] = {name: [] for name in LINKS}
    rows = []
    whole = added = 0.0
    for size in BLOCK_SIZES:
        for name, rate in LINKS.items():
            p = make_cost_params(
                model, device, block_size=size, copy_path="loop",
                overrides={"link_in_bytes_per_s": rate, "link_out_bytes_per_s": rate},
            )  # fmt: skip
            num = COPIED_TOKENS // size
            both = copy_time_s(p, num, num, True) + copy_time_s(p, num, num, False)
            swaps[name].append(1e3 * both)
            whole = 1e3 * isolated_recompute_time_s(p, COPIED_TOKENS, 0)
            added = 1e3 * recompute_time_s(p, COPIED_TOKENS, 0)
        published = {1: "about 135", 256: "about 10 to 20"}.get(size, "")
        cells = [f"{swaps[name][-1]:.0f}" for name in LINKS]
        rows.append((str(size), published, *cells, f"{added:.0f} to {whole:.0f}"))
    slow, fast = swaps.values()
    medium = [BLOCK_SIZES.index(b) for b in (16, 32, 64)]
    most = {name: whole / min(found) for name, found in swaps.items()}
    steep = all(found == sorted(found, reverse=True) for found in (slow, fast))
    comparable = all(added / f[i] >= 0.5 and whole / f[i] <= 2.0 for f in (slow, fast) for i in medium)  # fmt: skip
    within = any(most[name] <= 1.2 and found[-1] <= 20 for name, found in swaps.items())
    low, high = min(added / slow[i] for i in medium), max(whole / fast[i] for i in medium)
    return Section(
        "sosp-overhead",
        "Recompute against swap over block sizes, overhead",
        "Kwon et al., SOSP 2023 (PagedAttention), section 7.3 and figure 19a; bar values as a third party read them off the figure",
        (
            "OPT-13B on an A100 of 40 GB. Copies as vLLM V0 made them: one a block, layer and K or V, 5 us each.",
            f"How long the request was is not in what we have: {COPIED_TOKENS} tokens are taken, whose recompute is at about the published level. "
            "Nor is the link: 12.5 GB/s was measured on such cloud machines, 24.8 GB/s is the board's.",
            "Recompute is given as what it adds to a busy engine, to what it takes alone.",
        ),
        ("block size", "published swap in + out, ms", *(f"ours, {n}, ms" for n in LINKS), "recompute, ms (published flat, about 20 to 30)"),
        tuple(rows),
        (
            f"Swap falls with the block size, from {slow[0]:.0f} to {slow[-1]:.0f} ms at 12.5 GB/s and from {fast[0]:.0f} to {fast[-1]:.0f} ms at 24.8 GB/s "
            "(published: 135 to 10-20); recompute does not depend on it, as published.",
            f"Recompute alone is at most {most['12.5 GB/s']:.2f} of swap at 12.5 GB/s and {most['24.8 GB/s']:.2f} at 24.8 GB/s (published: never above 1.2): the claim holds on the slow link and not on the fast one, "
            "whose level of swap at large blocks is the published one.",
            f"At blocks of 16 to 64 the ratio is {low:.2f} to {high:.2f} (published: comparable).",
            "Small blocks come out dearer than published: 5 us a copy is the middle of what was measured (3 to 10); with 2.5 us the first bar would be met.",
        ),
        f"swap {slow[0] / slow[-1]:.0f} to {fast[0] / fast[-1]:.0f} times dearer at blocks of 1 than of 256 (published 7 to 13), recompute flat; recompute / swap at most {most['12.5 GB/s']:.2f} on the slow link, {most['24.8 GB/s']:.2f} on the fast one (published 1.2)",
        "yes" if steep and within else "in part" if steep and comparable else "no",
    )  # fmt: skip


def sosp_end_to_end(scratch: Path) -> Section:
    """Figure 19b: end-to-end latency under both modes over block sizes."""
    requests = _sharegpt(rate=2.5, num=1_000)
    rows = []
    ratios: dict[int, float] = {}
    for size in BLOCK_SIZES:
        found: dict[str, tuple[float, int]] = {}
        for mode in ("recompute", "swap"):
            recording = run(
                requests, scratch, model="opt-13b", device="a100-40", kv_tokens=15_700, block_size=size,
                max_num_seqs=256, max_num_batched_tokens=2_560, max_model_len=2_048, watermark=0.01,
                enable_prefix_caching=False, enable_chunked_prefill=False, preemption_mode=mode,
                copy_path="loop", copy_mode="blocking", host_gib=64.0,
            )  # fmt: skip
            done = recording.requests.filter(pl.col("finish_s").is_not_null())
            each = (done["finish_s"] - done["arrival_s"]) / done["output_tokens"]
            found[mode] = float(each.mean()), int(done["num_preemptions"].sum())  # type: ignore[arg-type]  # a Float64 column
        ratios[size] = found["recompute"][0] / found["swap"][0]
        cells = [f"{1e3 * found[m][0]:.1f} ({found[m][1]:,})" for m in ("recompute", "swap")]
        rows.append((str(size), *cells, f"{ratios[size]:.2f}"))
    medium = [ratios[b] for b in (16, 32, 64)]
    comparable = all(0.8 <= r <= 1.2 for r in medium)
    small = ratios[1] < 0.8
    large = ratios[256] > 1.0
    return Section(
        "sosp-latency",
        "Recompute against swap over block sizes, end to end",
        "Kwon et al., SOSP 2023, section 7.3 and figure 19b",
        (
            "OPT-13B on an A100 of 40 GB, 15.7 thousand slots of KV (table 1), blocking copies one a block, layer and K or V, no prefix cache, no chunked prefill, watermark 0.01.",
            "1,000 requests with ShareGPT's mean lengths (161 and 338 tokens), log-normal, Poisson at 2.5 a second: the load at which this pool overflows. The paper's rate is not in what we have.",
        ),
        ("block size", "recompute, ms a token (preemptions)", "swap, ms a token (preemptions)", "recompute / swap"),
        tuple(rows),
        (
            f"Small blocks: recompute is far better ({ratios[1]:.2f} of swap's latency at blocks of 1), as published.",
            f"Blocks of 16 to 64: {min(medium):.3f} to {max(medium):.3f} (published: comparable end-to-end performance).",
            f"Recompute is never above {max(ratios.values()):.2f} of swap's latency (published: 1.2).",
            f"Large blocks: the paper finds swap more efficient; here recompute stays ahead ({ratios[256]:.2f} at 256). Blocks of 256 leave "
            "so much of a pool of 15.7 thousand slots unused that preemptions multiply, and at 12.5 GB/s each copy stops the engine for longer than computing takes."
            if not large
            else f"Large blocks: swap is more efficient ({ratios[256]:.2f} at 256), as published.",
        ),
        f"recompute / swap {ratios[1]:.2f} at blocks of 1, {min(medium):.2f} to {max(medium):.2f} at 16 to 64, {ratios[256]:.2f} at 256 (published: below 1, about 1, up to 1.2)",
        "yes" if small and comparable and large else "in part" if small and comparable else "no",
    )  # fmt: skip


def _sharegpt(rate: float, num: int) -> Workload:
    random = np.random.default_rng(SEED)
    arrivals = np.cumsum(random.exponential(1 / rate, num))

    def lengths(mean: float) -> np.ndarray:
        drawn = random.lognormal(0.0, 1.0, num)
        return np.clip(np.rint(drawn / drawn.mean() * mean), 1, 1_020).astype(np.int64)

    return _make(arrivals, lengths(SHAREGPT[0]), lengths(SHAREGPT[1]))


# ---- vLLM: watermark ------------------------------------------------------------------------------

# watermark -> preemptions, output tokens/s, TTFT p50 and p99 in s, ITL p99 in ms, E2E p50 in s
WATERMARK: Mapping[float, tuple[float, ...]] = {
    0.0: (1065, 11_582, 6.56, 25.51, 40.62, 51.6),
    0.02: (400, 12_134, 11.80, 26.49, 18.80, 48.4),
    0.05: (187, 12_167, 11.20, 28.94, 17.70, 47.9),
    0.10: (168, 11_835, 8.96, 31.02, 17.57, 48.6),
}
WATERMARK_FIGURES = ("preemptions", "output tokens/s", "TTFT p50, s", "TTFT p99, s", "ITL p99, ms", "E2E p50, s")  # fmt: skip


def watermark(scratch: Path) -> Section:
    """The table of the pull request that brought vLLM's KV watermark."""
    requests = workload(450, (800, 1_200), (4_000, 6_000), concurrency=128)
    rows = []
    errors: dict[str, list[float]] = {name: [] for name in WATERMARK_FIGURES}
    for share, published in WATERMARK.items():
        found = summarize(
            run(
                requests, scratch, model="qwen2.5-7b", device="b200", kv_tokens=299_584, max_model_len=8_192,
                max_num_seqs=256, enable_prefix_caching=False, watermark=share, async_scheduling=True,
            )
        )  # fmt: skip
        ours = (
            found["num_preemptions"], found["output_tokens_per_s"], found["ttft_s"]["p50"], found["ttft_s"]["p99"],
            1e3 * found["itl_s"]["p99"], found["e2e_s"]["p50"],
        )  # fmt: skip
        for name, theirs, mine in zip(WATERMARK_FIGURES, published, ours, strict=True):
            errors[name].append(mine / theirs - 1)
            rows.append(
                (f"{share:g}", name, _shown(theirs), _shown(mine), _change(mine, theirs))
            )
    speed = max(abs(e) for e in errors["output tokens/s"])
    e2e = max(abs(e) for e in errors["E2E p50, s"])
    tail = max(abs(e) for e in errors["TTFT p99, s"])
    first = errors["preemptions"][0]
    num = [
        w[0] * (1 + e) for w, e in zip(WATERMARK.values(), errors["preemptions"], strict=True)
    ]
    return Section(
        "watermark",
        "vLLM's KV watermark: preemptions, throughput, latency",
        "vllm-project/vllm pull request 44594 (merged), table of its description",
        (
            "Qwen2.5-7B on one GB200, simulated as `b200` (a GB200's memory is some 4 % faster); pool of 299,584 tokens, no prefix cache, max_model_len 8,192, max_num_seqs 256.",
            "450 requests, 128 at a time, prompts of 1,000 and outputs of 5,000 tokens, each +- 20 %, drawn anew (the request's own lengths are not published).",
        ),
        ("watermark", "figure", "published", "ours", "off by"),
        tuple(rows),
        (
            f"Preemptions without a watermark: {100 * abs(first):.1f} % off. A watermark of 0.02 takes away {100 * (1 - WATERMARK[0.02][0] / WATERMARK[0.0][0]):.0f} % of them as published, {100 * (1 - num[1] / num[0]):.0f} % here; at 0.10 {100 * (1 - WATERMARK[0.10][0] / WATERMARK[0.0][0]):.0f} and {100 * (1 - num[3] / num[0]):.0f} %.",
            f"Throughput is within {100 * speed:.1f} %, E2E p50 within {100 * e2e:.1f} %, TTFT p99 within {100 * tail:.1f} % at every watermark.",
            "TTFT p50 is not met: it depends on which requests are drawn (another seed moves ours by 20 %). Nor is ITL p99: about 1 % of the gaps hold a prefill, so "
            "the 99th percentile jumps between a decode step and one with a prompt in it.",
        ),
        f"preemptions 1,065 measured, {1065 * (1 + first):,.0f} simulated; throughput within {100 * speed:.1f} %, E2E p50 within {100 * e2e:.1f} %, TTFT p99 within {100 * tail:.0f} %; TTFT p50 and ITL p99 not met",
        "in part" if speed <= 0.1 and e2e <= 0.1 and abs(first) <= 0.25 else "no",
    )  # fmt: skip


# ---- vLLM: the full-prompt gate -------------------------------------------------------------------


def gate(scratch: Path) -> Section:
    """A fifth long prompt admitted into a pool that four others fill, with and without the gate."""
    num, pool, prompt = 40, 444_000, 100_000
    requests = _make(
        np.arange(num) * 1e-3, np.full(num, prompt), np.full(num, 1_000), concurrency=8
    )
    found, rates = {}, {}
    for on in (False, True):
        recording = run(
            requests, scratch, model="qwen3-235b-a22b", device="h200", tensor_parallel_size=8, kv_tokens=pool,
            max_model_len=131_072, enable_prefix_caching=False, scheduler_reserve_full_isl=on,
            weight_dtype="fp8", max_num_batched_tokens=8_192,
        )  # fmt: skip
        found[on] = summarize(recording)
        rates[on] = _rates(recording)
    worst, best = float(np.median(rates[False])) / 8, float(rates[True].max()) / 8
    rows = tuple(
        (name, published, *(show(found[on]) for on in (False, True)))
        for name, published, show in (
            ("preemptions", "in a loop without the gate", lambda f: f"{f['num_preemptions']:,}"),
            ("recomputed, of all computed tokens", "", lambda f: f"{100 * (f['recomputed_frac'] or 0):.0f} %"),
            ("output tokens/s, whole run", "", lambda f: f"{f['output_tokens_per_s']:.0f}"),
            ("TPOT p50, ms", "", lambda f: f"{1e3 * f['tpot_s']['p50']:.0f}"),
            ("duration, s", "", lambda f: f"{f['duration_s']:,.0f}"),
        )
    )  # fmt: skip
    speed = (
        "output tokens/s a GPU: median 10 s off, best 10 s on",
        "as low as 1.5, about 100",
        f"{worst:.1f}",
        f"{best:.0f}",
    )
    return Section(
        "gate",
        "The full-prompt gate (`scheduler_reserve_full_isl`)",
        "vllm-project/vllm pull request 37307 (merged), its description; the same loop is told in 21793",
        (
            "Told: prompts of 100 thousand tokens, four of which hold about 90 % of the pool; a fifth is admitted by its first chunk, preempted half way, and again.",
            f"Here: Qwen3-235B-A22B with FP8 weights on 8 H200 (the model and the number of GPUs of the request's test; its GPU is not named), a pool of {pool:,} tokens, 40 prompts of 100,000 with 1,000 output tokens, 8 at a time, no prefix cache.",
        ),
        ("figure", "published", "gate off", "gate on"),
        (speed, *rows),
        (
            f"Without the gate the engine decodes {worst:.1f} tokens/s a GPU while it computes the same prompt again and again ({found[False]['num_preemptions']:,} preemptions, {100 * found[False]['recomputed_frac']:.0f} % of all computed tokens); with it there is no preemption and decoding reaches {best:.0f}.",
            f"The loss is {best / worst:.0f}-fold here, 67-fold as told (\"about 100\" to \"as low as 1.5\", with lengths that its author calls mocked and a batch that is not given): the mechanism and its size are reproduced, the factor is not.",
        ),
        f"generation falls {best / worst:.0f}-fold without the gate ({found[False]['num_preemptions']:,} preemptions), none with it (published: from about 100 to 1.5 tokens/s a GPU)",
        "in part" if best / worst >= 5 and not found[True]["num_preemptions"] else "no",
    )  # fmt: skip


def _rates(recording: Recording, every_s: float = 10.0) -> np.ndarray:
    """Decoded tokens a second in each interval of the run, the first one left out."""
    steps = recording.steps.with_columns(slot=(pl.col("t_start_s") / every_s).floor())
    each = steps.group_by("slot").agg(pl.col("decode_tokens").sum() / every_s).sort("slot")
    return each["decode_tokens"].to_numpy()[1:-1]


# ---- vLLM: which victim ---------------------------------------------------------------------------

POOLS = (16_000, 24_000, 40_000, 64_000, 96_000)
LENGTHS = {
    "prompts 512 and outputs 256, each +- 50 %": ((256, 768), (128, 384)),
    "prompts 512 and outputs 512, each +- 50 %": ((256, 768), (256, 768)),
    "prompts of 512 exactly, outputs 512 +- 50 %": ((512, 512), (256, 768)),
}
RULES = (None, "fewest-computed", "most-blocks")


def victims(scratch: Path) -> Section:
    """Least computed first against last admitted first, over pools."""
    rows, total, each, tax, speed = [], [], [], [], []
    worse = []
    fixed = []
    for name, (prompt, output) in LENGTHS.items():
        requests = workload(800, prompt, output)
        for pool in POOLS:
            last, least, most = (_waste(requests, pool, rule, scratch) for rule in RULES)
            change = least.tokens / last.tokens - 1
            per = (least.tokens / least.num) / (last.tokens / last.num) - 1
            worse.append(most.tokens / last.tokens - 1)
            if prompt[0] == prompt[1]:
                fixed.append(change)
            elif 0.10 <= last.share <= 0.23:  # the published range
                total.append(change)
                each.append(per)
                tax.append(last.share)
                speed.append(least.tokens_per_s / last.tokens_per_s - 1)
            rows.append(
                (
                    name,
                    f"{pool:,}",
                    f"{100 * last.share:.0f} %",
                    _change(1 + change, 1),
                    _change(1 + per, 1),
                    _change(1 + worse[-1], 1),
                )
            )
    ordered = min(worse) > 0 and max(total) < 0
    return Section(
        "victims",
        "Which victim: least computed first against last admitted first",
        "vllm-project/vllm issue 54644 and pull request 53723: online runs of a 7B model, 800 prompts (`--random-range-ratio 0.5`)",
        (
            "Qwen2.5-7B on an A100, 800 prompts at once, no prefix cache, gate off, 256 sequences; five pools.",
            "Prompts of 512 tokens are told for the even case; output lengths, pool and GPU are not. So rows are compared where the share of recomputed tokens is the published one (10 to 23 %).",
        ),
        ("lengths", "pool, tokens", "recomputed, of all computed (last admitted)", "recomputed tokens, least computed", "a preemption", "recomputed tokens, most blocks"),
        tuple(rows),
        (
            f"At a published share of recomputed tokens ({100 * min(tax):.0f} to {100 * max(tax):.0f} % here, 10 to 23 % published) least computed first recomputes {_range(total)} (published: −24 to −30 %), "
            f"{_range(each)} a preemption (published: −35 to −41 %), and throughput changes by {_range(speed)} (published: unchanged).",
            f"With even prompts the sum is the same ({_range(fixed)}; published: unchanged).",
            f"Order of the rules: least computed, then last admitted, then most blocks ({_range(worse)} against last admitted), as in the published ablation (least computed, last, random, most computed).",
            "The offline sweep of the same issue (a 0.5B model, 300 requests, 2,800 to 400 blocks) is not reproduced: its lengths and limits are not published, and with lengths of the mean that its totals imply (560 tokens) "
            "we find 20 to 45 % recomputed at 400 blocks where it has 79 %.",
        ),
        f"recomputed tokens {_range(total)} (published −24 to −30 %), a preemption {_range(each)} (−35 to −41 %); even prompts {_range(fixed)} (unchanged)",
        "yes" if ordered and min(each) >= -0.45 and max(each) <= -0.30 else "in part",
    )  # fmt: skip


@dataclass(frozen=True)
class _Waste:
    tokens: float
    num: int
    share: float
    tokens_per_s: float


def _waste(requests: Workload, pool: int, rule: str | None, scratch: Path) -> _Waste:
    found = summarize(
        run(
            requests, scratch, model="qwen2.5-7b", device="a100-80", kv_tokens=pool, max_num_seqs=256,
            max_num_batched_tokens=2_048, max_model_len=4_096, enable_prefix_caching=False, victim=rule,
            scheduler_reserve_full_isl=False, async_scheduling=True,
        )
    )  # fmt: skip
    return _Waste(
        found["recomputed_tokens"],
        max(found["num_preemptions"], 1),
        found["recomputed_frac"],
        found["output_tokens_per_s"],
    )


def _range(changes: Sequence[float]) -> str:
    """'−29 to −12 %' of changes; one number where they round to one."""
    low, high = (f"{100 * c:+.0f}".replace("-", "−").replace("+0", "0") for c in (min(changes), max(changes)))  # fmt: skip
    return f"{low} %" if low == high else f"{low} to {high} %"


SECTIONS = {
    "sosp-overhead": sosp_overhead,
    "sosp-latency": sosp_end_to_end,
    "gate": gate,
    "victims": victims,
    "watermark": watermark,
}
