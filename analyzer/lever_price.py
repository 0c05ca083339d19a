"""What a change costs: memory, quality, service, GPUs and money, or an engine that is not vLLM's.

It compares an outcome with the base and knows what each lever takes. Which price is the lower one is
said by `KINDS`, in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analyzer.goals import figure
from analyzer.lever_facts import Facts
from analyzer.lever_flags import is_in_vllm
from analyzer.lever_ladders import HIGHEST_UTILIZATION
from analyzer.outcome import Outcome
from analyzer.words import label

GIB = 2**30
KINDS = ("free", "trade", "memory", "quality", "slower", "money", "other engine")
WORSE_FRAC = 0.02  # of any figure; less is in the noise of the model
LATER_FRAC = 0.10  # of a p99 latency that is waited for
LATENCIES = ("ttft_s p50", "ttft_s p99", "tpot_s p50", "tpot_s p99", "e2e_s p50", "e2e_s p99")
WAITED_FOR = ("ttft_s p99", "e2e_s p99")
_QUALITY = {
    "fp8": "8-bit weights: answers may differ, hold them against an evaluation",
    "int4": "4-bit weights: answers differ, hold them against an evaluation",
}
_KV_QUALITY = (
    "8-bit KV: answers may differ, most on long contexts, hold them against an evaluation"
)


@dataclass(frozen=True)
class Price:
    """What a change costs against the base.

    kinds: of KINDS, the dearest last; gpu_gib: memory that vLLM takes more of each GPU; fits: false
    where that memory is not there; host_gib: host memory more; num_gpus: more in all; device: another
    kind of GPU, "" for the same; quality: what is at risk; cut_requests: ended early or refused for
    their length; throughput_frac, goodput_frac: change of output tokens and of good requests per second,
    None where not known; later: latencies more than WORSE_FRAC above the base's -> by how much of it
    (TPOT alone does not make it "slower": who waits less runs beside more); load_frac: arrivals turned away; per_hour: more money an hour, None where no price was given; per_million_tokens: money for a
    million output tokens at the base and now.
    """

    kinds: tuple[str, ...]
    gpu_gib: float = 0.0
    fits: bool = True
    host_gib: float = 0.0
    num_gpus: int = 0
    device: str = ""
    quality: tuple[str, ...] = ()
    cut_requests: int = 0
    throughput_frac: float | None = None
    goodput_frac: float | None = None
    later: Mapping[str, float] | None = None
    load_frac: float = 0.0
    per_hour: float | None = None
    per_million_tokens: tuple[float, float] | None = None

    @property
    def kind(self) -> str:
        return self.kinds[-1]

    @property
    def rank(self) -> tuple[float, ...]:
        """Smaller is cheaper: by the dearest kind, then by how much of it."""
        worst = max(
            -(self.throughput_frac or 0.0),
            -(self.goodput_frac or 0.0),
            *(self.later or {}).values(),
            0.0,
        )
        amounts = {
            "free": 0.0,
            "trade": worst,
            "memory": self.gpu_gib + self.host_gib / 100,
            "quality": float(len(self.quality)) + self.cut_requests,
            "slower": max(self.load_frac, worst),
            "money": self.per_hour if self.per_hour is not None else float(self.num_gpus),
            "other engine": 0.0,
        }
        return (float(KINDS.index(self.kind)), amounts[self.kind], float(len(self.kinds)))

    def sentences(self) -> list[str]:
        """Each part of the price in words; empty where it is a flag and nothing else."""
        said = []
        if self.gpu_gib > 0:
            said.append(f"{self.gpu_gib:,.2f} GiB more of each GPU")
        if not self.fits:
            said.append("which these GPUs do not have: more or larger ones are needed")
        if self.host_gib > 0:
            said.append(f"{self.host_gib:,.0f} GiB of host memory")
        said += self.quality
        if self.cut_requests:
            said.append(f"{self.cut_requests:,} requests are refused or end early")
        if self.load_frac:
            said.append(f"{100 * self.load_frac:.0f} % fewer arrivals")
        said += self.traded()
        if self.num_gpus > 0:
            said.append(f"{self.num_gpus} more GPU{'' if self.num_gpus == 1 else 's'}")
        if self.device:
            said.append(f"another device: {self.device}")
        if self.per_hour:
            said.append(f"{self.per_hour:+,.2f} an hour".replace("-", "−"))
        if "other engine" in self.kinds:
            said.append("vLLM has no such setting")
        return said

    def traded(self) -> list[str]:
        """Figures that get worse, in words: 'TTFT p50 +18.6 %', '19.4 % less throughput'. With fewer
        arrivals less is produced: that is said once."""
        said = []
        for frac, what in (
            (self.throughput_frac, "throughput"),
            (self.goodput_frac, "goodput"),
        ):
            if frac is not None and frac < -WORSE_FRAC and not self.load_frac:
                said.append(f"{-100 * frac:.1f} % less {what}")
        return said + [f"{label(k)} +{100 * v:,.1f} %" for k, v in (self.later or {}).items()]


def price_of(
    changes: Mapping[str, Any],
    facts: Facts,
    base: Outcome,
    outcome: Outcome,
    costs: Mapping[str, float] | None = None,
) -> Price:
    """The price of changes. costs: device -> money an hour of one GPU."""
    gpu_gib, fits = _memory(changes, facts)
    gpus_now = _gpus(changes, facts)
    device = str(changes.get("device", ""))
    cut = _cut(changes, facts)
    throughput = _share_more(base, outcome, "output_tokens_per_s")
    later = {
        k: frac
        for k in LATENCIES
        if (frac := _share_more(base, outcome, k)) is not None and frac > WORSE_FRAC
    }
    good = _share_more(base, outcome, "goodput_rps")
    waits = any(later.get(k, 0.0) > LATER_FRAC for k in WAITED_FOR)
    load = max(0.0, 1 - float(changes.get("rate_scale", 1.0)))
    quality = _quality(changes)
    host = _host(changes, facts)
    per_hour, per_million = _money(changes, facts, base, outcome, costs or {})
    has = {
        "trade": bool(later) or (good or 0.0) < -WORSE_FRAC,
        "memory": gpu_gib > 0 or host > 0,
        "quality": bool(quality) or cut > 0,
        "slower": load > 0 or waits or (throughput or 0.0) < -WORSE_FRAC,
        "money": gpus_now > facts.num_gpus or bool(device) or not fits or "link_gb_per_s" in changes,
        "other engine": not all(
            is_in_vllm(k, v, {**facts.settings, **changes}) for k, v in changes.items()
        ),
    }  # fmt: skip
    return Price(
        tuple(k for k in KINDS if has.get(k)) or ("free",),
        gpu_gib,
        fits,
        host,
        gpus_now - facts.num_gpus,
        device,
        quality,
        cut,
        throughput,
        good,
        later,
        load,
        per_hour,
        per_million,
    )


def pool_gib(num_gpu_blocks: int, block_bytes: float) -> float:
    """GiB of a pool over all GPUs of a replica."""
    return num_gpu_blocks * block_bytes / GIB


def _memory(changes: Mapping[str, Any], facts: Facts) -> tuple[float, bool]:
    """(GiB more of each GPU, whether they are there)."""
    share = facts.settings["gpu_memory_utilization"]
    room = max(0.0, HIGHEST_UTILIZATION - share) * facts.gpu_memory_bytes / GIB
    if "gpu_memory_utilization" in changes:
        more = (changes["gpu_memory_utilization"] - share) * facts.gpu_memory_bytes / GIB
        return max(0.0, more), True
    blocks = changes.get("num_gpu_blocks")
    if blocks is None:
        return 0.0, True
    was = pool_gib(facts.num_gpu_blocks, facts.block_bytes)
    more = (pool_gib(blocks, facts.block_bytes_with(changes)) - was) / facts.num_gpus
    return max(0.0, more), more <= room


def _gpus(changes: Mapping[str, Any], facts: Facts) -> int:
    tp = changes.get("tensor_parallel_size", facts.settings["tensor_parallel_size"])
    pp = changes.get("pipeline_parallel_size", facts.settings.get("pipeline_parallel_size", 1))
    return int(tp * pp * changes.get("replicas", 1))


def _host(changes: Mapping[str, Any], facts: Facts) -> float:
    """Host memory more: all of it where the base copies nothing."""
    now = float(changes.get("host_gib", facts.settings["host_gib"]))
    was = facts.settings["preemption_mode"]
    if changes.get("preemption_mode", was) == "recompute":
        return 0.0
    return now - (0.0 if was == "recompute" else float(facts.settings["host_gib"]))


def _quality(changes: Mapping[str, Any]) -> tuple[str, ...]:
    said = []
    if changes.get("kv_cache_dtype", "auto") != "auto":
        said.append(_KV_QUALITY)
    if changes.get("weight_dtype") in _QUALITY:
        said.append(_QUALITY[changes["weight_dtype"]])
    return tuple(said)


def _cut(changes: Mapping[str, Any], facts: Facts) -> int:
    """Requests that a shorter max_model_len ends early or refuses."""
    length = changes.get("max_model_len")
    if length is None or length >= facts.max_model_len:
        return 0
    was = int((facts.total_tokens > facts.max_model_len).sum())
    return int((facts.total_tokens > length).sum()) - was


def _money(
    changes: Mapping[str, Any],
    facts: Facts,
    base: Outcome,
    outcome: Outcome,
    costs: Mapping[str, float],
) -> tuple[float | None, tuple[float, float] | None]:
    """(more an hour, (at the base, now) for a million output tokens); None where a price is not given."""
    was = costs.get(str(facts.settings["device"]))
    now = costs.get(str(changes["device"])) if "device" in changes else was
    if was is None or now is None:
        return None, None
    hours = (facts.num_gpus * was, _gpus(changes, facts) * now)
    rates = [o.figures.get("output_tokens_per_s") for o in (base, outcome)]
    if not all(rates):
        return hours[1] - hours[0], None
    per = tuple(h / (r * 3600 / 1e6) for h, r in zip(hours, rates, strict=True) if r)
    return hours[1] - hours[0], (per[0], per[1])


def _share_more(base: Outcome, outcome: Outcome, key: str) -> float | None:
    was, now = figure(base.figures, key), figure(outcome.figures, key)
    return now / was - 1 if was and now is not None else None
