"""The bench on which what-ifs are made: one workload, one base, and what was simulated of them so far.

It brings engine and analyzer together: the run on the page becomes a workload and base settings, a
change becomes recordings in the store and figures. The engine is imported when a bench is made, never when a
page opens. What is asked, and how it is drawn, is elsewhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from analyzer.lever_facts import Facts, facts_of
from analyzer.levers import MODES
from analyzer.outcome import Outcome, Simulate, outcome_of
from analyzer.pages.parts import shell, state
from analyzer.pages.parts.jobs import Cancelled
from analyzer.pages.parts.replay import wait_for_core
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.store import Store, default_root
from analyzer.pages.parts.trace_panel import read_trace
from analyzer.pages.parts.validation_badge import Validated, badge_section
from analyzer.run import Run
from traces import samples
from traces.errors import KVReplayError, SettingsError, WorkloadError
from traces.schema import CLOSED_FILE
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.config import EngineSettings
    from engine.trials import Trials

MODE = "preemption_mode"
Say = Callable[[float, str], None]


class Stopped(Exception):
    """The user has cancelled what was being simulated."""


@dataclass(frozen=True, eq=False)
class Bench:
    """What what-ifs on the page are made of. key: names workload and base, for caches; workload: the
    requests; base: settings that changes are made to; modes: the two policies that the opened pair
    compares; facts: of the base, as levers read them; sentence: how near the simulator is to the run,
    "" where the run is its own."""

    key: str
    workload: Workload
    base: EngineSettings
    modes: tuple[str, str]
    facts: Facts
    store: Store
    trials: Trials
    sentence: str
    _made: dict[Any, Outcome] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def outcome(
        self,
        changes: Mapping[str, Any],
        mode: str,
        bounds: Mapping[str, float] | None = None,
        say: Say | None = None,
        cancelled: Cancelled | None = None,
    ) -> Outcome | None:
        """Figures of the workload with these changes under that policy; None where cancelled.

        Settings that cannot be give an Outcome that says why. say: how far it is, 0 to 1, and in words.
        """
        asked = (_frozen(changes), mode, _frozen(bounds or {}))
        with self._lock:
            known = self._made.get(asked)
        if known is not None and all((p / CLOSED_FILE).exists() for p in known.recordings):
            return known
        made = self._run(changes, mode, bounds, say, cancelled)
        if made is not None:
            with self._lock:
                self._made[asked] = made
        return made

    def _run(
        self,
        changes: Mapping[str, Any],
        mode: str,
        bounds: Mapping[str, float] | None,
        say: Say | None,
        cancelled: Cancelled | None,
    ) -> Outcome | None:
        if not wait_for_core(say, cancelled):
            return None
        try:
            trial = self.trials.run(
                {**changes, MODE: mode},
                progress=None
                if say is None
                else lambda p: say(p.fraction_finished, f"{p.steps:,} steps, {p.sim_time_s:,.0f} s simulated"),
                cancelled=cancelled,
            )  # fmt: skip
        except (SettingsError, WorkloadError) as error:
            return Outcome(dict(changes), {}, (), str(error))
        if trial is None:
            return None
        return outcome_of(changes, trial.paths, trial.num_gpu_blocks, bounds)

    def simulate(
        self, bounds: Mapping[str, float] | None = None, cancelled: Cancelled | None = None
    ) -> Simulate:
        """Changes -> their outcome, as searches ask for it: a preemption mode may be among them, else
        it is the first policy's. The function raises Stopped where it was cancelled."""

        def simulate(changes: Mapping[str, Any]) -> Outcome:
            others = {k: v for k, v in changes.items() if k != MODE}
            mode = str(changes.get(MODE, self.modes[0]))
            found = self.outcome(others, mode, bounds, None, cancelled)
            if found is None:
                raise Stopped
            return replace(found, changes=dict(changes))

        return simulate

    def settings(self, changes: Mapping[str, Any]) -> EngineSettings:
        """The base's settings with these changes. Raises SettingsError."""
        return self.trials.settings(changes)

    def idle(self, name: str, modes: tuple[str, str], changes: Mapping[str, Any]) -> str:
        """Why a lever changes nothing under either policy, "" where it may."""
        from analyzer.levers import LEVERS

        if name == "router" and changes.get("replicas", 1) != 1:
            return ""
        said = [
            LEVERS[name].idle(replace(self.facts, settings={**self.facts.settings, MODE: mode}))
            for mode in modes
        ]
        return said[0] if all(said) else ""


def bench_of(opened: Opened) -> Bench | None:
    """The bench of the run in place A, how far it may be trusted drawn; None: no what-ifs on it (yet)."""
    store = Store(default_root())
    allowed = badge_section(opened.a, store)
    if allowed is None:
        return None
    for ref in (opened.pair.a, opened.pair.b):
        _touch(ref, store)
    key = f"{opened.a.ref}\0{opened.a.stamp}\0{allowed.settings!r}"
    trace = state.trace() if opened.source == "trace" else None
    source = trace.key if trace is not None else ""
    return _bench(
        key, _modes(opened), str(store.root), source, opened.source, opened.a, allowed
    )


@st.cache_resource(max_entries=4, show_spinner="Reading the requests")
def _bench(
    key: str,
    modes: tuple[str, str],
    root: str,
    trace: str,
    source: str,
    _run: Run,
    _allowed: Validated,
) -> Bench:
    from engine.trial_facts import machine_facts
    from engine.trials import Trials

    store = Store(Path(root))
    workload = _exact(_run, source, store) or _allowed.workload
    base = _allowed.settings
    facts = facts_of(workload, machine_facts(base, workload.concurrency))
    sentence = "" if _allowed.badge is None else _allowed.sentence
    return Bench(
        key, workload, base, modes, facts, store, Trials(workload, base, store.run_dir), sentence
    )  # fmt: skip


def _exact(run: Run, source: str, store: Store) -> Workload | None:
    """The trace that a simulated run was made from: it has what refused requests asked for, which the
    recording has not. None where it is not at hand."""
    digest = run.meta.workload_digest
    try:
        if source == "sample":
            found = samples.load(shell.sample_name())
        elif source == "trace" and (ref := state.trace()) is not None:
            found = read_trace(ref, store)
        else:
            return None
    except KVReplayError:
        return None
    return found if found.digest == digest else None


def _modes(opened: Opened) -> tuple[str, str]:
    """The policies of the pair; recompute and swap where it does not compare two."""
    a, b = (str(run.meta.preemption_mode) for run in (opened.a, opened.b))
    if a in MODES and b in MODES and a != b:
        return a, b
    if a not in MODES:
        return "recompute", "swap"
    return (a, "recompute") if a == "swap" else (a, "swap")


def _touch(ref: str, store: Store) -> None:
    """Note a simulated run as used, so that many what-ifs do not push it out of the store."""
    kind, _, id_ = ref.partition(":")
    if kind == "run" and (path := store.run_dir(id_)).exists():
        os.utime(path)


def _frozen(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, repr(v)) for k, v in values.items()))
