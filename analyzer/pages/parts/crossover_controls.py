"""The Crossover page's controls, and what they start from: the opened run's own set-up.

It knows widgets. What is chosen is kept by `crossover_state`; what it costs is the engine's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from analyzer.crossover import Setup
from analyzer.crossover_victims import OwnVictims, victims_of
from analyzer.look import Side
from analyzer.pages.parts import crossover_state as kept
from analyzer.pages.parts.crossover_costs import Own, devices, models
from analyzer.pages.parts.crossover_state import Chosen, Names
from analyzer.pages.parts.preempted import told_of
from analyzer.run import Run
from traces.recording import Meta

_COPYING = ("swap", "cheapest", "offload")
NOT_GPUS = ("cpu",)  # presets that are drawn only where a run is on them


def shown_side(runs: Mapping[Side, Run]) -> Side | None:
    """The run whose set-up the page starts from: the first that moves KV to the host, else A."""
    for side, run in runs.items():
        if run.meta.preemption_mode in _COPYING:
            return side
    return next(iter(runs), None)


@st.cache_resource(max_entries=12, show_spinner=False)
def own_victims(ref: str, stamp: str, _run: Run) -> OwnVictims:
    """A run's victims, worked out once per content."""
    knows = "steps.num_running" not in _run.meta.not_recorded
    return victims_of(told_of(_run), _run.steps, knows)


def names_of(own: Own) -> Names:
    """The known models and devices, the run's own first where they are none of them."""
    return Names(
        _with_own(list(models()), own.model.name if own.model else None),
        _with_own(
            [d for d in devices() if d not in NOT_GPUS], own.device.name if own.device else None
        ),
    )


def _with_own(names: list[str], own: str | None) -> list[str]:
    return names if own is None or own in names else [own, *names]


def defaults_of(meta: Meta | None, own: Own, victims: Mapping[Side, OwnVictims]) -> Chosen:
    """The set-up of the run; where it says nothing, the usual one.

    The cached share is the median of whichever run's victims came back by recompute, the length and the
    batch are the medians of the first run with victims.
    """
    if meta is None:
        return Chosen()
    s: Mapping[str, Any] = meta.settings
    usual = Setup()
    told = next((v for v in victims.values() if v.median_tokens is not None), None)
    found = next((v.found_frac for v in victims.values() if v.found_frac is not None), 0.0)
    setup = Setup(
        model=own.model.name if own.model else usual.model,
        device=own.device.name if own.device else usual.device,
        tp=_known(s, "tensor_parallel_size", int, usual.tp),
        kv_dtype=_known(s, "kv_cache_dtype", str, usual.kv_dtype),
        copy_path=_one(s.get("copy_path"), kept.COPY_PATHS, usual.copy_path),
        copy_mode=_one(s.get("copy_mode"), kept.COPY_MODES, usual.copy_mode),
        # already in the device that the run recorded
        link_gb_per_s=None,
        beside=min(told.beside or 0, kept.MOST_BESIDE) if told else 0,
        weight_dtype=_known(s, "weight_dtype", str, usual.weight_dtype),
        pp=_known(s, "pipeline_parallel_size", int, usual.pp),
        block_size=_known(s, "block_size", int, usual.block_size),
        budget=_known(s, "max_num_batched_tokens", int, 0) or None,
        long_prefill=_known(s, "long_prefill_token_threshold", int, 0),
    )
    tokens = told.median_tokens if told and told.median_tokens else Chosen().tokens
    return Chosen(
        setup, round(100 * min(max(found or 0.0, 0.0), 1.0)), min(tokens, kept.LONGEST)
    )


def _known(s: Mapping[str, Any], name: str, kind: type, usual: Any) -> Any:
    value = s.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) else usual


def _one(value: Any, choices: Sequence[str], usual: str) -> str:
    return value if value in choices else usual


def controls(now: Chosen, defaults: Chosen, names: Names, device_link: str) -> Chosen:
    """Draw the controls; what they say. device_link: speed of the device's own link, in words."""
    made_of = hashlib.blake2b(repr((defaults, names)).encode(), digest_size=6).hexdigest()
    at = f"{made_of}{kept.turn()}"
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="cx"):
        _choice("model", "Model", names.models, now, defaults, at, 190)
        _choice("device", "Device", names.devices, now, defaults, at, 150)
        _choice(
            "tp",
            "GPUs (TP)",
            kept.TPS,
            now,
            defaults,
            at,
            100,
            "`tensor_parallel_size`: devices that share each layer. Each has its own link.",
        )
        _choice(
            "pp",
            "Stages (PP)",
            kept.PPS,
            now,
            defaults,
            at,
            110,
            "`pipeline_parallel_size`: stages that share the layers out, each on so many GPUs. The pipeline is taken to be full: a batch in flight on each stage.",
        )
        _choice(
            "kv_dtype",
            "KV type",
            kept.KV_DTYPES,
            now,
            defaults,
            at,
            110,
            "`kv_cache_dtype`: fp8 halves the bytes that a swap moves.",
        )
        _choice(
            "copy_path",
            "Copy path",
            kept.COPY_PATHS,
            now,
            defaults,
            at,
            140,
            "loop: a copy a block, layer and K or V (vLLM V0); batch: the same in one call; coalesced: a copy a block of all layers. Neighbouring blocks are not counted on.",
        )
        _choice(
            "copy_mode",
            "Copies",
            kept.COPY_MODES,
            now,
            defaults,
            at,
            130,
            "blocking: the engine waits for both copies; async: it computes on, and loses the share of the batch that is away.",
        )
        _number(
            "link_gb_per_s",
            "Link (GB/s)",
            now,
            defaults,
            at,
            (*kept.LINK_GB_PER_S, 1.0),
            f"Each way, large copies. Empty: the device's, {device_link}.",
            device_link,
        )
        _number(
            "cached_pct",
            "Still cached (%)",
            now,
            defaults,
            at,
            (0, 100, 5),
            "Share of the victim's full blocks that the prefix cache gives back when it returns. Starts from the median of the run's victims.",
        )
        _number(
            "beside",
            "Running beside",
            now,
            defaults,
            at,
            (0, kept.MOST_BESIDE, 8),
            "Requests that decode in the steps in which the victim is recomputed: the weights are read for them anyway. 0: in steps of its own.",
        )
        _number(
            "tokens",
            "Tokens lost",
            now,
            defaults,
            at,
            (1, kept.LONGEST, 256),
            "Length at which models and devices are compared below.",
        )
        if kept.is_changed():
            st.button(
                "Back to the run's own",
                key="cx_back",
                on_click=kept.go_back,
                icon=":material/undo:",
            )
    return kept.chosen(defaults, names)


def _choice(
    name: str,
    label: str,
    choices: Sequence[Any],
    now: Chosen,
    defaults: Chosen,
    at: str,
    width: int,
    help_: str | None = None,
) -> None:
    value = now.get(name)
    options = list(choices) if value in choices else [value, *choices]
    default = defaults.get(name)
    if default not in options:
        options = [default, *options]
    chosen = st.selectbox(
        label,
        options,
        index=options.index(value),
        key=f"cx_{name}@{at}",
        help=help_,
        width=width,
    )
    kept.change(name, chosen, defaults)


def _number(
    name: str,
    label: str,
    now: Chosen,
    defaults: Chosen,
    at: str,
    bounds: tuple[float, float, float],
    help_: str,
    placeholder: str | None = None,
) -> None:
    kind = float if name == "link_gb_per_s" else int
    low, high, step = (kind(b) for b in bounds)
    chosen = st.number_input(
        label,
        min_value=low,
        max_value=high,
        value=now.get(name),
        step=step,
        key=f"cx_{name}@{at}",
        help=help_,
        placeholder=placeholder,
        format="%g" if kind is float else "%d",
        width=132,
    )
    if chosen is None and name != "link_gb_per_s":
        chosen = defaults.get(name)  # emptied
    kept.change(name, chosen, defaults)
