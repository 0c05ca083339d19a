"""A workload and each side's settings -> recordings on disk; the bridge from page to engine.

It knows how to name a run by what made it, so that the same question is answered from disk. The
engine is imported when a run is asked for, never when a page opens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from analyzer.pages.parts import warm_core
from analyzer.pages.parts.jobs import Cancelled, Report
from analyzer.pages.parts.settings_form import Choice, Shape
from analyzer.pages.parts.store import Store
from traces.errors import SettingsError
from traces.schema import CLOSED_FILE
from traces.workload import Workload

Say = Callable[[float, str], None]
COMPILING = "compiling the simulator, once for this machine, a minute or so: {:.0f} s"


def engine_choices() -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Name -> default of every engine setting; and setting -> names it knows of models, devices and
    preemption modes."""
    from engine.config import PREEMPTION_MODES, EngineSettings
    from engine.devices import known_devices
    from engine.models import known_models

    defaults = EngineSettings()
    return (
        {f.name: getattr(defaults, f.name) for f in fields(defaults)},
        {
            "model": tuple(known_models()),
            "device": tuple(known_devices()),
            "preemption_mode": PREEMPTION_MODES,
        },
    )


def check(choice: Choice) -> None:
    """Raise the engine's SettingsError for values that do not fit together, side named."""
    from engine.config import EngineSettings

    for side, settings in choice.sides.items():
        try:
            EngineSettings(**{**settings, "seed": choice.shape.seed})
        except SettingsError as error:
            raise SettingsError(f"{side}: {error}") from None


def shaped(workload: Workload, shape: Shape) -> Workload:
    """The workload, spread, cut and sped up as chosen. Raises WorkloadError."""
    if shape.spread:
        workload = workload.spread_ticks(shape.seed)
    if shape.window_s != (0.0, None):
        workload = workload.window(*shape.window_s)
    return workload.scale_rate(shape.rate_scale)


def replay_sides(
    workload: Workload, choice: Choice, store: Store, report: Report, cancelled: Cancelled
) -> tuple[str, ...]:
    """Simulate each side; returns the ids of their recordings in the store, A first.

    Raises what the engine raises: SettingsError, WorkloadError.
    """
    asked = shaped(workload, choice.shape)
    ids = [
        _replay(asked, settings, side, choice.shape.seed, store, report, cancelled)
        for side, settings in choice.sides.items()
    ]
    store.forget_old_runs()
    return tuple(ids)


def run_id(workload: Workload, settings: Mapping[str, Any], seed: int) -> str:
    """The name of that run, the same as a what-if's: 32 hex digits of requests, settings and engine."""
    from engine.config import EngineSettings
    from engine.trials import run_id as named

    return named(workload, asdict(EngineSettings(**{**settings, "seed": seed})))


def _replay(
    workload: Workload,
    settings: Mapping[str, Any],
    side: str,
    seed: int,
    store: Store,
    report: Report,
    cancelled: Cancelled,
) -> str:
    if cancelled():
        return ""
    before = (store.run_dir(run_id(workload, settings, seed)) / CLOSED_FILE).exists()

    def say(done: float, text: str) -> None:
        report(side, done, text)

    made = recorded(workload, {**settings, "seed": seed}, store, say, cancelled)
    if made is None:
        return ""
    say(1.0, "replayed before" if before else "done")
    return made.name


def recorded(
    workload: Workload,
    settings: Mapping[str, Any],
    store: Store,
    say: Say,
    cancelled: Cancelled,
    word: str = "replayed",
) -> Path | None:
    """The recording of that run in the store, simulated where it is not there; None where cancelled.

    settings: engine settings by name; say: is told how far it is; word: for that. Raises SettingsError,
    WorkloadError.
    """
    from engine.config import EngineSettings
    from engine.trials import simulated

    chosen = EngineSettings(**settings)
    target = store.run_dir(run_id(workload, settings, chosen.seed))
    if not (target / CLOSED_FILE).exists():
        if not wait_for_core(say, cancelled):
            return None
        say(0.0, "starting")
    return simulated(
        workload, chosen, store.run_dir,
        progress=lambda p: say(p.fraction_finished, f"{p.steps:,} steps, {p.sim_time_s:,.0f} s {word}"),
        cancelled=cancelled,
    )  # fmt: skip


def wait_for_core(say: Say | None, cancelled: Cancelled | None) -> bool:
    """Whether the simulator is compiled, after waiting for it; False where cancelled."""
    while not warm_core.compiled():
        if say is not None:
            say(0.0, COMPILING.format(warm_core.elapsed_s()))
        if cancelled is not None and cancelled():
            return False
    return True


def engine_stamp() -> str:
    """Newest change of the engine's source, so that a changed engine is asked anew."""
    import engine

    root = Path(str(engine.__file__)).parent
    return str(max(p.stat().st_mtime_ns for p in root.rglob("*.py")))
