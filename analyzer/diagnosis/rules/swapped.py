"""Swapped requests that fill the host pool or never come back."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.advice import (
    costly_cap,
    present,
    remove_override,
    small_cap,
)
from analyzer.diagnosis.capping import simulate_first
from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent
from analyzer.diagnosis.rules.signs import OTHER_CAUSES


def find_swap_stall(q: Quantities) -> Finding | None:
    series = q.main
    ended = q.evidence.all_notices("out_of_host_blocks")
    swapped = series.swapped if series is not None else np.array([])
    most = float(np.nanmax(swapped)) if np.isfinite(swapped).any() else 0.0
    host = series.col("host_usage_frac") if series is not None else np.array([])
    top = float(np.nanmax(host)) if np.isfinite(host).any() else None
    running = series.running if series is not None else np.array([])
    stuck = bool(len(swapped) and ((swapped > 0) & (running == 0)).sum() >= 2)
    full = top is not None and top >= 0.9 and most > 0
    if not ended and not full and not stuck:
        return None
    proofs = []
    if most and series is not None:
        index = int(np.nanargmax(swapped))
        proofs.append(
            Proof(
                f"{most:.0f} are swapped while {running[index]:.0f} run"
                + (f", the host pool is {percent(top)} full" if top is not None else ""),
                {"swapped": int(most), "host_usage_frac": top},
                series.lines(index),
            )
        )
    if ended:
        what = str(ended[0].values.get("what", ended[0].at.text))[:120]
        proofs.append(Proof(f"The host pool is full: {what}", {}, (ended[0].at,)))
    each = q.lengths.blocks(q.pool)
    groups = q.fits.at.get("stated")
    if each and groups is not None and q.lengths.sequences > 1:
        proofs.append(
            Proof(
                f"A group of {q.lengths.sequences} sequences ends with {each} blocks: {groups} fit {q.pool.usable_blocks:,} blocks",
                {"blocks_per_group": each, "groups": groups},
                q.lengths.lines,
            )
        )
    facts: dict[str, object] = {
        "swapped_max": int(most),
        "cpu_kv_usage_max": round(100 * top, 2) if top is not None else None,
    }
    if ended:
        facts["fatal"] = str(ended[0].values.get("what", "out of host blocks"))
    if groups is not None and q.lengths.sequences > 1:
        facts["safe_concurrency_groups"] = groups
        facts["blocks_per_group"] = each
    steps = present(simulate_first(q), small_cap(q), remove_override(q), costly_cap(q)) or (
        Step(
            "lower the number that runs at once until nothing is swapped",
            "the host pool stays empty; the others wait in the queue",
        ),
    )
    more = []
    if q.lengths.sequences > 1:
        more.append(
            Step(
                f"n=1 with {q.lengths.sequences} requests",
                "victims are recomputed, no host pool is needed",
            )
        )
        if q.word("enable_chunked_prefill") == "true":
            more.append(
                Step(
                    "turn chunked prefill off",
                    "this version admits prefills while groups are swapped; the default scheduler does not",
                )
            )
    return Finding(
        "SWAP_STALL",
        "high",
        f"Swapped requests fill the host pool: {most:.0f} swapped"
        + (f", {percent(top)} of it" if top is not None else "")
        + (", and the run ends there." if ended else "."),
        tuple(proofs),
        (*steps, *more),
        ("more swap space: it only postpones the same end",),
        (),
        () if each else (Missing("blocks of a group", "n, prompt and output tokens"),),
        facts,
    )


RULES = (
    Rule(
        "host-pool-full",
        "SWAP_STALL",
        40,
        (),
        find_swap_stall,
        "Swapped groups pile up in the host pool until it is full or nothing comes back.",
        "vllm#5578; vllm/core/scheduler.py _swap_out (V0)",
        lambda q: (
            "nothing was ever swapped"
            if q.main is not None
            and q.main.has("num_swapped")
            and np.nanmax(q.main.swapped) == 0
            else None
        ),
        (*OTHER_CAUSES, "ENGINE_BUG"),
    ),
)
