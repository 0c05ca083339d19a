"""The levers of the What-if page: a widget each, and what was changed as chips that take it back.

It knows widgets. What a lever is, and its values, is known in `analyzer.levers`; what was changed, in
`what_if_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from analyzer.levers import GROUPS, LEVERS, MODES, Lever, flag_of, levers_of
from analyzer.pages.parts import what_if_state
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.what_if_bench import Bench
from analyzer.what_if import is_number, say_value
from traces.errors import KVReplayError

GROUP = "levers"
EXACT = "exact_levers"


@dataclass(frozen=True)
class Setting:
    """A lever as it stands. base, now: its values; is_changed: by the user, not by what follows from another."""

    lever: Lever
    base: Any
    now: Any
    is_changed: bool


def settings_now(bench: Bench) -> dict[str, Setting]:
    """Every lever of this base, with what it is set to. A pool that follows from a change of memory
    has the blocks that come out."""
    changes = what_if_state.changes()
    found = {}
    for lever in levers_of(bench.facts):
        if lever.name == what_if_state.MODE:
            continue
        base = lever.base(bench.facts)
        is_changed = lever.name in changes
        now = changes.get(lever.name, base)
        if lever.name == "num_gpu_blocks" and not is_changed:
            now = derived_pool(bench, changes)
        found[lever.name] = Setting(lever, base, now, is_changed)
    return found


def derived_pool(bench: Bench, changes: Mapping[str, Any]) -> int:
    """Blocks of the pool under these changes; the base's where they cannot be."""
    from engine.config import resolve

    try:
        settings = bench.settings(changes)
        return resolve(settings, concurrency=bench.workload.concurrency).num_gpu_blocks
    except KVReplayError:
        return bench.facts.num_gpu_blocks


def levers_section(bench: Bench, modes: tuple[str, str]) -> dict[str, Setting]:
    """The groups, the widgets of the chosen one, and the chips. Returns every lever as it stands."""
    found = settings_now(bench)
    first = first_changed(found)
    what_if_state.follow_choice(GROUP, GROUPS, first)
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="lever_groups"
    ):
        group = st.segmented_control(
            "Levers", list(GROUPS), required=True, key=GROUP, label_visibility="collapsed"
        )
        st.toggle(
            "Type values",
            key=EXACT,
            persist_state="session",
            help="Number fields in place of sliders, for any value.",
        )
    what_if_state.keep_choice(GROUP, first if first == GROUPS[0] else "")
    exact = bool(st.session_state.get(EXACT))
    with st.container(key="lever_grid"):
        if group == LEVERS[what_if_state.MODE].group:
            _policies(modes)
        for setting in found.values():
            if setting.lever.group == group:
                _widget(setting, bench, modes, exact)
    _chips(found, bench, modes)
    return found


def first_changed(found: Mapping[str, Setting]) -> str:
    """The first group that has a change, which a link opens; the first of all where there is none."""
    changed = {s.lever.group for s in found.values() if s.is_changed}
    return next((g for g in GROUPS if g in changed), GROUPS[0])


def _policies(modes: tuple[str, str]) -> None:
    """What the two policies are."""
    for i, side in enumerate("AB"):
        key = f"wi_policy_{side}"
        st.session_state[key] = modes[i]
        st.selectbox(
            f"{side} preempts by",
            MODES,
            key=key,
            on_change=_policy_chosen,
            args=(modes,),
            help=LEVERS[what_if_state.MODE].help
            + " Two are always simulated beside each other. vLLM has recompute, and offload with a connector.",
        )


def _policy_chosen(before: tuple[str, str]) -> None:
    a, b = (str(st.session_state[f"wi_policy_{side}"]) for side in "AB")
    if a == b:  # the other takes what this one had
        a, b = before[1], before[0]
    what_if_state.set_policies((a, b))


# ---- widgets -------------------------------------------------------------------------------------


def _widget(setting: Setting, bench: Bench, modes: tuple[str, str], exact: bool) -> None:
    lever, now = setting.lever, setting.now
    idle = bench.idle(lever.name, modes, what_if_state.changes())
    key = f"wi_{lever.name}"
    common: dict[str, Any] = {
        "label": _label(setting, bool(idle)),
        "key": key,
        "help": _help(setting, idle),
        "on_change": _chosen,
        "args": (lever.name, key, setting.base),
    }
    if lever.kind == "switch":
        st.session_state[key] = bool(now)
        with st.container(key=f"wi_cell_{lever.name}", vertical_alignment="center"):
            st.toggle(**common)
        return
    options = list(lever.choices(bench.facts))
    for value in (setting.base, now):
        if value is not None and value not in options:
            options.append(value)
    if lever.kind == "choice":
        st.session_state[key] = now
        st.selectbox(options=options, format_func=say_value, **common)
    elif exact:
        _number(lever, now, common)
    else:
        st.session_state[key] = now
        options = sorted(options)
        st.select_slider(options=options, format_func=partial(_with_unit, lever.unit), **common)


def _with_unit(unit: str, value: Any) -> str:
    """'2 GPUs', '1 GPU', '0.92'."""
    if value == 1 and unit.endswith("s"):
        unit = unit[:-1]
    return f"{say_value(value)} {unit}".rstrip()


def _number(lever: Lever, now: Any, common: dict[str, Any]) -> None:
    """A field for any value; what cannot be is said by the engine."""
    whole = lever.kind == "whole"
    key = f"{common['key']}_exact"
    st.session_state[key] = int(now) if whole else float(now)
    common = common | {"key": key, "args": (lever.name, key, common["args"][2])}
    st.number_input(step=1 if whole else 0.01, format="%d" if whole else "%g", **common)


def _chosen(name: str, key: str, base: Any) -> None:
    what_if_state.change(name, st.session_state[key], base)


def _label(setting: Setting, is_idle: bool) -> str:
    label = setting.lever.label + (f" ({setting.lever.unit})" if setting.lever.unit else "")
    if setting.is_changed:
        return f"**{label}, changed** from {say_value(setting.base)}"
    if setting.now != setting.base:
        return f"{label}, follows from the change"
    return f"{label}, idle" if is_idle else label


def _help(setting: Setting, idle: str) -> str:
    lever = setting.lever
    flag = flag_of(lever.name, setting.now, {what_if_state.MODE: "offload"}).split(" ")[0]
    said = [lever.help]
    said.append(f"vLLM: `{flag}`." if flag else f"`{lever.name}`; vLLM has no such flag.")
    said.append(f"Base: {plain(say_value(setting.base))}.")
    if idle:
        said.append(f"Changes nothing here: {plain(idle)}.")
    return " ".join(said)


# ---- chips ---------------------------------------------------------------------------------------


def _chips(found: Mapping[str, Setting], bench: Bench, modes: tuple[str, str]) -> None:
    """What was changed, each with a way back."""
    changed = [s for s in found.values() if s.is_changed]
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="lever_chips"
    ):
        if not changed:
            st.caption(
                "Nothing is changed: move a lever, and both policies are simulated again."
            )
            return
        st.markdown("**Changed:**", width="content")
        for setting in changed:
            name = setting.lever.name
            st.button(
                f"{setting.lever.label} {plain(say_change(setting))}",
                icon=":material/close:",
                key=f"wi_reset_{name}",
                on_click=what_if_state.reset,
                args=(name,),
                help=f"Put {setting.lever.label} back to {plain(say_value(setting.base))}.",
            )
        st.button(
            "Reset all", key="wi_reset_all", type="tertiary", on_click=what_if_state.reset
        )


def say_change(setting: Setting) -> str:
    """'2,589 → 3,500 blocks (+35 %)'."""
    base, now, unit = setting.base, setting.now, setting.lever.unit
    share = ""
    if is_number(base) and is_number(now) and base:
        share = f" ({(now / base - 1) * 100:+,.0f} %)".replace("-", "−")
    return f"{say_value(base)} → {_with_unit(unit, now)}{share}"
