"""The panel in which the two sides' engine settings are chosen, and what it gives back.

It knows the settings' names, labels and which values a person may choose. What a setting does,
and whether values fit together, is the engine's business: it raises SettingsError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import streamlit as st

from analyzer.look import three_digits
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.settings import ALL, FIRST, GROUPS, MODES, USUAL_PAIR, Setting

SAME = "as A"
ALL_SETTINGS = "all_settings"
DEFAULT = "default"  # left to the engine
MODE = "preemption_mode"
LINK = "link_gb_per_s"
LINK_WAYS = ("link_in_bytes_per_s", "link_out_bytes_per_s")
_STARTS = "form_starts"  # preset -> what its panel starts from
_TURN = "form_turn"  # a new number gives every widget its start value anew
Choices = Mapping[str, tuple[Any, ...]]


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
    """What Apply gives: engine settings of A, B and where there is one C by name, and how the
    requests are shaped."""

    a: Mapping[str, Any]
    b: Mapping[str, Any]
    shape: Shape = field(default_factory=Shape)
    c: Mapping[str, Any] | None = None

    @property
    def sides(self) -> dict[str, Mapping[str, Any]]:
        """Side -> its settings, A first."""
        return {"A": self.a, "B": self.b, **({"C": self.c} if self.c is not None else {})}


@dataclass(frozen=True)
class Start:
    """What the panel starts from. a: A's settings; differs: those of B that are not A's; third:
    the preemption mode of C, which is set like A else; "" for no third run."""

    a: Mapping[str, Any]
    differs: Mapping[str, Any]
    shape: Shape = field(default_factory=Shape)
    third: str = ""


# ---- what the panel starts from -------------------------------------------------------------------


def engine_settings(recorded: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """A recording's settings as the panel has them; known: names of the engine's settings.

    The recording holds the pool's blocks even where tokens were asked for: tokens come first here.
    """
    found = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in recorded.items()
        if name in known
    }
    if found.get("kv_tokens") is not None:
        found["num_gpu_blocks"] = None
    overrides = dict(found.get("cost_overrides") or {})
    there, back = (overrides.get(way) for way in LINK_WAYS)
    if there is not None and there == back:
        found[LINK] = there / 1e9  # how recordings said it before the engine had the setting
        overrides = {k: v for k, v in overrides.items() if k not in LINK_WAYS}
    return {**found, "cost_overrides": overrides}


def start_from(
    a: Mapping[str, Any], b: Mapping[str, Any], preset: str, third: str = ""
) -> None:
    """Let the panel of that preset show these settings; before it is drawn. third: C's mode."""
    differs = {k: v for k, v in b.items() if k not in a or a[k] != v}
    _keep(Start(a, differs, Shape(seed=int(a.get("seed") or 0)), third), preset)
    _turn_over()


def exchange_sides() -> None:
    """Let every panel have B's settings for A and A's for B; for a button's callback."""
    for preset, start in st.session_state.get(_STARTS, {}).items():
        b = {**start.a, **start.differs}
        back = {k: start.a.get(k) for k in start.differs}
        _keep(Start(b, back, start.shape, start.third), preset)
    _turn_over()


def set_pool(num_gpu_blocks: int, preset: str) -> None:
    """Put a pool size of both sides into the panel; for a button's callback."""
    start = st.session_state.get(_STARTS, {}).get(preset)
    if start is not None:
        differs = {
            k: v for k, v in start.differs.items() if k not in ("num_gpu_blocks", "kv_tokens")
        }
        pool = {"num_gpu_blocks": num_gpu_blocks, "kv_tokens": None}
        _keep(Start({**start.a, **pool}, differs, start.shape, start.third), preset)
        _turn_over()


def _keep(start: Start, preset: str) -> None:
    st.session_state.setdefault(_STARTS, {})[preset] = start


def _turn_over() -> None:
    st.session_state[_TURN] = st.session_state.get(_TURN, 0) + 1


def _key(side: str, name: str, preset: str) -> str:
    turn = st.session_state.get(_TURN, 0)
    return f"set_{side}_{name}@{preset}" + (f"#{turn}" if turn else "")


# ---- the panel ------------------------------------------------------------------------------------


def settings_form(
    defaults: Mapping[str, Any], choices: Choices, preset: str
) -> tuple[Choice, bool]:
    """Draw the panel. Returns the choice as it stands, and whether Apply was pressed.

    defaults: name -> value to start from, of every setting that the engine has; choices: the names it
    knows of models, devices and preemption modes; preset: names the defaults, since a widget that is
    there keeps its value when its default changes.
    """
    first = Start({**defaults, MODE: USUAL_PAIR[0]}, {MODE: USUAL_PAIR[1]})
    start = st.session_state.setdefault(_STARTS, {}).setdefault(preset, first)
    all_settings = st.toggle(
        "All settings",
        key=ALL_SETTINGS,
        help="Off: the settings that are not shown keep their values.",
    )
    with st.form("settings", border=False):
        a, differs = _first_fields(start, choices, preset)
        third = _third_field(start, choices, preset)
        pressed = st.form_submit_button("Apply and replay", type="primary", width="stretch")
        shape = start.shape
        if all_settings:
            for title, group in _offered(defaults).items():
                with st.expander(title):
                    a |= {
                        s.name: _field(s, start.a.get(s.name), choices, preset) for s in group
                    }
            with st.expander("B differs in"):
                st.caption("Left alone, B is set like A.")
                differs |= _differences(start.differs, defaults, choices, preset)
            with st.expander("Requests"):
                shape = _shape_fields(start.shape)
        else:
            differs = {**start.differs, **differs}
            _hidden_words(first.a, start)
    base = one_pool({**defaults, **start.a, **a}, a)
    other = one_pool({**base, **differs}, differs)
    if pressed:
        _keep(Start(base, differs, shape, third), preset)
    c = {**base, MODE: third} if third else None
    return Choice(base, other, shape, c), pressed


def _offered(known: Mapping[str, Any]) -> dict[str, list[Setting]]:
    """The groups of settings, of each those that this engine has."""
    found = {title: [s for s in group if s.name in known] for title, group in GROUPS.items()}
    return {title: group for title, group in found.items() if group}


def _first_fields(
    start: Start, choices: Choices, preset: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is always in sight: both modes, model, device and pool; A's values and B's mode."""
    left, right = st.columns(2)
    modes: dict[str, Any] = {}
    modes_known = choices[MODE]
    for side, column, value in (
        ("a", left, start.a.get(MODE)),
        ("b", right, start.differs.get(MODE, start.a.get(MODE))),
    ):
        modes[side] = column.selectbox(
            f"{side.upper()} preempts by",
            modes_known,
            index=modes_known.index(value) if value in modes_known else 0,
            key=_key(side, MODE, preset),
            help=f"What happens to a victim in run {side.upper()}. "
            + " ".join(f"**{mode}**: {MODES[mode]}." for mode in modes_known if mode in MODES),
        )
    a: dict[str, Any] = {MODE: modes["a"]}
    for pair in (FIRST[:2], FIRST[2:]):
        for setting, column in zip(pair, st.columns(2), strict=True):
            with column:
                a[setting.name] = _field(setting, start.a.get(setting.name), choices, preset)
    if a["num_gpu_blocks"] is None and a["kv_tokens"] is None:
        st.caption("Pool: what the model leaves of the device's memory.")
    return a, {MODE: modes["b"]}


def _third_field(start: Start, choices: Choices, preset: str) -> str:
    """The preemption mode of a third run; "" for none."""
    options = ("", *choices[MODE])
    return str(
        st.selectbox(
            "C, a third run, preempts by",
            options,
            index=options.index(start.third) if start.third in options else 0,
            format_func=lambda mode: mode or "no third run",
            key=_key("c", MODE, preset),
            help="Set like A but for this; drawn beside both.",
        )
        or ""
    )


def _hidden_words(defaults: Mapping[str, Any], start: Start) -> None:
    """Say which settings out of sight are not the defaults."""
    said = [
        f"{s.label} {_say(start.a[s.name])}"
        for group in GROUPS.values()
        for s in group
        if s.name in start.a and start.a[s.name] not in (defaults.get(s.name), None)
    ]
    said += [
        f"B: {s.label} {_say(start.differs[s.name])}" for s in ALL if s.name in start.differs
    ]
    if start.shape != Shape():
        said.append("requests cut, sped up or spread")
    if said:
        st.caption(plain(f"Also set: {'; '.join(said)}."))


def _say(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return three_digits(value) if isinstance(value, float) else str(value)


def one_pool(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with one size of the pool: blocks come before tokens, what was given before
    what was there."""
    if given.get("num_gpu_blocks") is not None:
        return {**settings, "kv_tokens": None}
    if given.get("kv_tokens") is not None:
        return {**settings, "num_gpu_blocks": None}
    return dict(settings)


def _options(setting: Setting, value: Any, choices: Choices) -> tuple[Any, ...]:
    """What may be chosen; a value that came from elsewhere, such as a recording, too."""
    options = choices.get(setting.name, setting.choices)
    return options if value is None or value in options else (value, *options)


def _labelled(setting: Setting, value: Any) -> str:
    note = setting.notes.get(str(value))
    return f"{value} ({note})" if note else str(value)


def _field(setting: Setting, default: Any, choices: Choices, preset: str) -> Any:
    """A's widget of one setting, and its value; None for what the engine is to choose."""
    key = _key("a", setting.name, preset)
    if setting.kind == "bool":
        return st.toggle(setting.label, value=bool(default), key=key, help=setting.help)
    if setting.kind == "choice":
        options = _options(setting, default, choices)
        if setting.optional:
            options = (DEFAULT, *options)
        index = options.index(default) if default in options else 0
        value = st.selectbox(
            setting.label,
            options,
            index=index,
            key=key,
            help=setting.help,
            format_func=partial(_labelled, setting),
        )
        return None if value == DEFAULT else value
    return _number(setting, default, key, DEFAULT)


def _number(setting: Setting, value: Any, key: str, placeholder: str) -> Any:
    """A number's widget. Its bounds give way to a value from elsewhere, which the engine took."""
    as_type = int if setting.kind == "int" else float

    def cast(v: float | None) -> Any:
        return None if v is None else as_type(v)

    least, greatest = setting.least, setting.greatest
    if value is not None:
        least = None if least is None else min(least, value)
        greatest = None if greatest is None else max(greatest, value)
    return st.number_input(
        setting.label, min_value=cast(least), max_value=cast(greatest), value=cast(value),
        step=cast(setting.step), key=key, help=setting.help, placeholder=placeholder,
        format="%d" if setting.kind == "int" else None,
    )  # fmt: skip


def _differences(
    start: Mapping[str, Any], known: Mapping[str, Any], choices: Choices, preset: str
) -> dict[str, Any]:
    """B's widgets, one for every setting; only what was set to something comes back."""
    found: dict[str, Any] = {}
    offered = (s for group in _offered(known).values() for s in group)
    for setting in (*FIRST, *offered):
        key, value = _key("b", setting.name, preset), start.get(setting.name)
        if setting.kind in ("bool", "choice"):
            if setting.kind == "bool":
                options: tuple[Any, ...] = ("on", "off")
                value = None if value is None else "on" if value else "off"
            else:
                options = _options(setting, value, choices)
            index = 0 if value is None else options.index(value) + 1
            chosen = st.selectbox(
                setting.label,
                (SAME, *options),
                index=index,
                key=key,
                format_func=partial(_labelled, setting),
            )
            if chosen != SAME:
                found[setting.name] = chosen == "on" if setting.kind == "bool" else chosen
        else:
            number = _number(setting, value, key, SAME)
            if number is not None:
                found[setting.name] = number
    return found


def _shape_fields(start: Shape) -> Shape:
    left, right = st.columns(2)
    from_s = left.number_input(
        "From (s)",
        min_value=0.0,
        value=start.window_s[0],
        step=60.0,
        key="shape_start",
        help="Requests that arrive earlier are left out.",
    )
    end = right.number_input(
        "To (s)",
        min_value=0.0,
        value=start.window_s[1],
        step=60.0,
        key="shape_end",
        placeholder="the end",
        help="Requests that arrive at this time or later are left out.",
    )
    rate = st.number_input(
        "Rate scale",
        min_value=0.01,
        max_value=1000.0,
        value=start.rate_scale,
        step=0.25,
        key="shape_rate",
        help="2 lets the same requests arrive twice as fast.",
    )
    spread = st.toggle(
        "Spread arrivals within a clock tick",
        value=start.spread,
        key="shape_spread",
        help="For traces whose clock is coarser than the arrivals, such as Mooncake's 3 s.",
    )
    seed = st.number_input(
        "Seed",
        min_value=0,
        value=start.seed,
        step=1,
        key="shape_seed",
        help="Of the spreading and of whatever the engine draws at random.",
    )
    return Shape(
        (float(from_s or 0.0), None if end is None else float(end)),
        float(rate or 1.0),
        bool(spread),
        int(seed or 0),
    )
