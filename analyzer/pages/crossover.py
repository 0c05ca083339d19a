"""The Crossover page: when recompute is cheaper than swap, and when not.

It reads downward: the verdict in a sentence, the set-up (the opened run's own until it is changed),
both costs over length with the runs' victims on them, models by devices, and the one ratio that decides.
It works without a recording too. What is set stands in the URL.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from analyzer.crossover_victims import filled
from analyzer.look import Side, three_digits
from analyzer.pages.parts import crossover_state as kept
from analyzer.pages.parts import shell, state
from analyzer.pages.parts.crossover_charts import curves_section, intensity_section, map_section
from analyzer.pages.parts.crossover_controls import (
    controls,
    defaults_of,
    names_of,
    own_victims,
    shown_side,
)
from analyzer.pages.parts.crossover_costs import (
    Own,
    device_of,
    kv_bytes_per_token_of,
    overrides_of,
    own_of,
    ways_of,
)
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.shell import Opened
from analyzer.run import Run, run_names

_STYLE = """
<style>
.st-key-cx_map_frame { overflow-x: auto; }
.st-key-cx_map { min-width: 860px; }
[data-testid="stMain"] h2 { font-size: 1.15rem; padding: 0.3rem 0 0.35rem; }
@media (max-width: 640px) {
.st-key-cx { gap: 0.4rem; }
.st-key-cx > div { flex: 1 1 46%; min-width: 0; }
}
</style>
"""


def page() -> None:
    """Draw the page."""
    opened = None
    with guarded():
        opened = shell.open_pair()
    if opened is not None:
        shell.draw(_body, "Crossover")
        return
    st.title("Crossover · no recording opened", anchor=False)
    with guarded():
        _section({})


def _body(opened: Opened) -> None:
    _section(opened.runs)


@st.fragment
def _section(runs: Mapping[Side, Run]) -> None:
    """Everything below the heading; a control redraws it alone."""
    state.write_url()
    st.html(_STYLE)
    with guarded():
        side = shown_side(runs)
        own = own_of(runs[side].meta) if side else Own()
        victims = {s: own_victims(run.ref, run.stamp, run) for s, run in runs.items()}
        defaults = defaults_of(runs[side].meta if side else None, own, victims)
        names = names_of(own)
        head = st.container(key="verdict")
        now = kept.chosen(defaults, names)
        link = device_of(now.setup, own).link_in_bytes_per_s / 1e9
        chosen = controls(now, defaults, names, f"{three_digits(link)}")
        kept.write()
        for note in kept.notes():
            st.warning(plain(note), icon=":material/link_off:")
        if overrides_of(chosen.setup, own):
            st.caption("With the run's changed cost parameters.")
        if kv_bytes_per_token_of(chosen.setup, own) <= 0:
            st.info(
                plain(f"{chosen.setup.model} has no KV that grows with its tokens: a preemption loses no KV, and there is nothing to swap. Choose another model."),
                icon=":material/info:",
            )  # fmt: skip
            return
        same = {s: _ran_so(run, runs[side], chosen, defaults) if side else False for s, run in runs.items()}  # fmt: skip
        measured = [s for s, run in runs.items() if not run.is_simulated]
        said = run_names(runs) if runs else {}
        if own.model is not None and own.device is not None:
            as_run = ways_of(defaults.setup, own)
            victims = {s: filled(v, as_run) if same[s] else v for s, v in victims.items()}
        curves_section(chosen, own, victims, said, same, measured, head)
        map_section(chosen, own, names)
        intensity_section(chosen, own, names)


_COSTS_REST_ON = ("tensor_parallel_size", "pipeline_parallel_size", "kv_cache_dtype", "weight_dtype", "block_size", "cost_overrides")  # fmt: skip


def _ran_so(run: Run, shown: Run, chosen: kept.Chosen, defaults: kept.Chosen) -> bool:
    """Whether a run's costs belong on the chart: it has the model, device and data types that are set.

    Copy path and mode may differ between a run that swaps and one that recomputes: a victim's cost is
    told by its own mode.
    """
    ours, theirs = run.meta, shown.meta
    if ours.get("model") != theirs.get("model") or ours.get("device") != theirs.get("device"):
        return False
    if any(ours.settings.get(k) != theirs.settings.get(k) for k in _COSTS_REST_ON):
        return False
    names = (
        "model",
        "device",
        "tp",
        "pp",
        "kv_dtype",
        "copy_path",
        "copy_mode",
        "link_gb_per_s",
    )
    return all(chosen.get(n) == defaults.get(n) for n in names)
