"""The panel in which the two sides' engine settings are chosen, and what it gives back.

It knows the settings' names, labels and which values a person may choose. What a setting does,
and whether values fit together, is the engine's business: it raises SettingsError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from analyzer.pages.parts.settings import GROUPS, MODES, Setting

SAME = "as A"
ALL_SETTINGS = "all_settings"
DEFAULT = "default"  # left to the engine


@dataclass(frozen=True)
class Shape:
    """How the requests are cut and sped up before they are replayed.

    window_s: [start, end) of arrivals, end None for the rest; rate_scale: times as fast; spread:
    share out arrivals within a tick of a coarse clock; seed: of that spreading.
    """

    window_s: tuple[float, float | None] = (0.0, None)
    rate_scale: float = 1.0
    spread: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Choice:
    """What Apply gives: engine settings of A and B by name, and how the requests are shaped."""

    a: Mapping[str, Any]
    b: Mapping[str, Any]
    shape: Shape = field(default_factory=Shape)


def set_pool(num_gpu_blocks: int, preset: str) -> None:
    """Put a pool size into the panel; for a button's callback, before the panel is drawn."""
    st.session_state[ALL_SETTINGS] = True
    st.session_state[_key("num_gpu_blocks", preset)] = num_gpu_blocks


def _key(name: str, preset: str) -> str:
    return f"set_a_{name}@{preset}"


def settings_form(
    defaults: Mapping[str, Any], models: Sequence[str], devices: Sequence[str], preset: str
) -> tuple[Choice, bool]:
    """Draw the panel. Returns the choice as it stands, and whether Apply was pressed.

    defaults: name -> value to start from; models, devices: names to choose from; preset: names the
    defaults, since a widget that is there keeps its value when its default changes.
    """
    choices = {"model": tuple(models), "device": tuple(devices)}
    all_settings = st.toggle(
        "All settings",
        key=ALL_SETTINGS,
        help="Off: the defaults apply, apart from the two modes.",
    )
    with st.form("settings", border=False):
        left, right = st.columns(2)
        mode_a = left.selectbox(
            "A preempts by",
            MODES,
            index=0,
            key="set_a_preemption_mode",
            help="What happens to a victim's KV in run A.",
        )
        mode_b = right.selectbox(
            "B preempts by",
            MODES,
            index=1,
            key="set_b_preemption_mode",
            help="What happens to a victim's KV in run B.",
        )
        pressed = st.form_submit_button(
            "Apply and replay both", type="primary", width="stretch"
        )
        a: dict[str, Any] = {"preemption_mode": mode_a}
        differs: dict[str, Any] = {}
        shape = Shape()
        if all_settings:
            a |= _all_fields(defaults, choices, preset)
            with st.expander("B differs in"):
                st.caption("Left alone, B is set like A.")
                differs = _differences(choices)
            with st.expander("Requests"):
                shape = _shape_fields()
    base = one_pool({**defaults, **a}, a)
    other = one_pool({**base, "preemption_mode": mode_b, **differs}, differs)
    return Choice(base, other, shape), pressed


def _all_fields(
    defaults: Mapping[str, Any], choices: Mapping[str, tuple[Any, ...]], preset: str
) -> dict[str, Any]:
    """A's widgets, group by group, and their values."""
    found: dict[str, Any] = {}
    for title, group in GROUPS.items():
        with st.expander(title, expanded=title == "KV pool"):
            for setting in group:
                found[setting.name] = _field(
                    setting, defaults.get(setting.name), choices, preset
                )
    return found


def one_pool(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with one size of the pool: blocks come before tokens, what was given before
    what was there."""
    if given.get("num_gpu_blocks") is not None:
        return {**settings, "kv_tokens": None}
    if given.get("kv_tokens") is not None:
        return {**settings, "num_gpu_blocks": None}
    return dict(settings)


def _field(
    setting: Setting, default: Any, choices: Mapping[str, tuple[Any, ...]], preset: str
) -> Any:
    """A's widget of one setting, and its value; None for what the engine is to choose."""
    key = _key(setting.name, preset)
    if setting.kind == "bool":
        return st.toggle(setting.label, value=bool(default), key=key, help=setting.help)
    if setting.kind == "choice":
        options = choices.get(setting.name, setting.choices)
        if setting.optional:
            options = (DEFAULT, *options)
        index = options.index(default) if default in options else 0
        value = st.selectbox(setting.label, options, index=index, key=key, help=setting.help)
        return None if value == DEFAULT else value
    return _number(setting, default, key, DEFAULT)


def _number(setting: Setting, value: Any, key: str, placeholder: str) -> Any:
    as_type = int if setting.kind == "int" else float

    def cast(v: float | None) -> Any:
        return None if v is None else as_type(v)

    return st.number_input(
        setting.label, min_value=cast(setting.least), max_value=cast(setting.greatest), value=cast(value),
        step=cast(setting.step), key=key, help=setting.help, placeholder=placeholder,
        format="%d" if setting.kind == "int" else None,
    )  # fmt: skip


def _differences(choices: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """B's widgets; only what was set to something comes back."""
    found: dict[str, Any] = {}
    for group in GROUPS.values():
        for setting in group:
            if not setting.for_b:
                continue
            key = f"set_b_{setting.name}"
            if setting.kind in ("bool", "choice"):
                options = (
                    ("on", "off")
                    if setting.kind == "bool"
                    else choices.get(setting.name, setting.choices)
                )
                value = st.selectbox(setting.label, (SAME, *options), key=key)
                if value != SAME:
                    found[setting.name] = value == "on" if setting.kind == "bool" else value
            else:
                number = _number(setting, None, key, SAME)
                if number is not None:
                    found[setting.name] = number
    return found


def _shape_fields() -> Shape:
    left, right = st.columns(2)
    start = left.number_input(
        "From (s)",
        min_value=0.0,
        value=0.0,
        step=60.0,
        key="shape_start",
        help="Requests that arrive earlier are left out.",
    )
    end = right.number_input(
        "To (s)",
        min_value=0.0,
        value=None,
        step=60.0,
        key="shape_end",
        placeholder="the end",
        help="Requests that arrive at this time or later are left out.",
    )
    rate = st.number_input(
        "Rate scale",
        min_value=0.01,
        max_value=1000.0,
        value=1.0,
        step=0.25,
        key="shape_rate",
        help="2 lets the same requests arrive twice as fast.",
    )
    spread = st.toggle(
        "Spread arrivals within a clock tick",
        key="shape_spread",
        help="For traces whose clock is coarser than the arrivals, such as Mooncake's 3 s.",
    )
    seed = st.number_input(
        "Seed",
        min_value=0,
        value=0,
        step=1,
        key="shape_seed",
        help="Of the spreading and of whatever the engine draws at random.",
    )
    return Shape(
        (float(start or 0.0), None if end is None else float(end)),
        float(rate or 1.0),
        bool(spread),
        int(seed or 0),
    )
