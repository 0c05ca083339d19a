"""The bridge from the Fleet page to the engine: a fleet's requests, routed and simulated into the store.

The engine is imported when a run is asked for, never when a page opens. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analyzer.fleet_figures import figures_of_folder, fleet_figures
from analyzer.fleet_routing import (
    AS_RECORDED,
    RECORDED,
    Goal,
    Needed,
    Variant,
    how_known,
    replicas_needed,
)
from analyzer.pages.parts.fleet_open import Shown
from analyzer.pages.parts.jobs import Cancelled
from analyzer.pages.parts.replay import wait_for_core
from analyzer.pages.parts.store import Store
from traces.fleet_requests import FleetRequests, requests_of
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.config import EngineSettings
    from engine.fleet_trials import FleetTrials

Told = Callable[[float, str], None]
_BASELINE = "round-robin"


class _Stopped(Exception):
    """Somebody pressed Cancel."""


@dataclass(frozen=True, eq=False)
class FleetRequest:
    """A fleet to simulate as given: who takes which request, and each rank's settings."""

    workload: Workload
    replica_of: np.ndarray
    settings: tuple[EngineSettings, ...]


@dataclass(frozen=True, eq=False)
class Routed:
    """Variants beside each other, recorded first and the rule last; paths: key -> folder of the simulated
    ones; notes: sentences."""

    variants: tuple[Variant, ...]
    paths: dict[str, Path]
    notes: tuple[str, ...]


def simulate_into(
    store: Store, asked: FleetRequest, told: Told, cancelled: Cancelled
) -> str | None:
    """The id of the fleet in the store, simulated or found; None where cancelled."""
    from engine.fleet_trials import FleetTrials

    requests = FleetRequests(asked.workload, asked.replica_of, (), (), ())
    trials = FleetTrials(requests, asked.settings, store.run_dir)
    path = trials.run(len(asked.settings), AS_RECORDED, report=told, cancelled=cancelled)
    return None if path is None else path.name


@st.cache_resource(max_entries=2, show_spinner=False)
def _requests(ref: str, _shown: Shown) -> FleetRequests:
    return requests_of(_shown.series.clock, _shown.series.label)


def _trials(shown: Shown, store: Store, told: Told, cancelled: Cancelled) -> FleetTrials:
    from engine.fleet_trials import FleetTrials, settings_of_ranks

    if not wait_for_core(told, cancelled):
        raise _Stopped
    told(0.0, "reading the requests of all ranks")
    requests = _requests(shown.ref, shown)
    return FleetTrials(requests, settings_of_ranks(requests), store.run_dir)


def route_fleet(
    shown: Shown, num_replicas: int, rule: str, store: Store, told: Told, cancelled: Cancelled
) -> Routed | None:
    """Recorded, simulated as recorded, round-robin and the rule, side by side; None where cancelled."""
    try:
        trials = _trials(shown, store, told, cancelled)
        how = how_known(m.clock for m in trials.requests.metas)
        told(0.05, "figures of the recorded fleet")
        variants = [Variant(RECORDED, how, fleet_figures(shown.series))]
        paths: dict[str, Path] = {}
        runs = [(AS_RECORDED, len(trials.settings))]
        runs += [(r, num_replicas) for r in dict.fromkeys((_BASELINE, rule))]
        for i, (key, number) in enumerate(runs):
            begin, share = 0.1 + 0.9 * i / len(runs), 0.9 / len(runs)
            path = _run(trials, number, key, _part(told, begin, share, key), cancelled)
            paths[key] = path
            variants.append(Variant(key, "modelled", figures_of_folder(path)))
        store.forget_old_runs()
        return Routed(tuple(variants), paths, _notes(trials))
    except _Stopped:
        return None


def search_replicas(
    shown: Shown,
    rule: str,
    goal: Goal,
    start: int,
    store: Store,
    told: Told,
    cancelled: Cancelled,
) -> tuple[Needed, dict[str, Any]] | None:
    """The fewest replicas, and the figures of the recorded split for before and after; None: cancelled."""
    try:
        trials = _trials(shown, store, told, cancelled)
        done = 0

        def run(number: int) -> dict[str, Any]:
            nonlocal done
            begin = 1 - 0.8**done  # how many runs a search takes is not known before
            path = _run(trials, number, rule, _part(told, begin, 0.2 * 0.8**done, f"{number} replicas"), cancelled)  # fmt: skip
            done += 1
            return figures_of_folder(path)

        again = _run(trials, len(trials.settings), AS_RECORDED, _part(told, 0.0, 0.1, AS_RECORDED), cancelled)  # fmt: skip
        before = figures_of_folder(again)
        found = replicas_needed(run, goal, start)
        store.forget_old_runs()
        return found, before
    except _Stopped:
        return None


def _run(trials: FleetTrials, number: int, rule: str, told: Told, cancelled: Cancelled) -> Path:
    path = None if cancelled() else trials.run(number, rule, report=told, cancelled=cancelled)
    if path is None:
        raise _Stopped
    return path


def _part(told: Told, begin: float, share: float, what: str) -> Told:
    """Progress of one run as that of the whole job."""
    return lambda done, text: told(begin + share * done, f"{what}: {text}")


def _notes(trials: FleetTrials) -> tuple[str, ...]:
    notes = list(trials.requests.workload.report.notes)
    if len(set(map(repr, trials.settings))) > 1:
        notes.append(
            "The ranks differ in their settings: new splits run with those of the first, the recorded split with each rank's own."
        )
    return tuple(notes)
