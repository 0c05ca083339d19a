"""One cell of a sweep: what names it, and running it to its figures.

It knows one trace under one choice of settings, and nothing of the other cells or of who runs it. The
figures come from a function that the caller names: the engine knows no analysis.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import VERSION
from engine.config import EngineSettings
from engine.devices import load_device
from engine.models import load_model
from engine.sweep_spec import Choice, split_values
from engine.sweep_traces import from_key, open_trace, shaped
from traces.errors import SettingsError, WorkloadError
from traces.schema import SCHEMA_VERSION
from traces.sweep_schema import COMPLETED, FAILED, REFUSED, SWEEP_VERSION

if TYPE_CHECKING:
    from traces.workload import Workload

MAX_ERROR = 600  # characters of a reason that are kept
# One thread a process: cells run side by side.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS"), "1")  # fmt: skip
# Sources that decide what a run does; with the core's own, a cell's name holds what they say.
_DECIDING = ("config.py", "cost_model.py", "cost_params.py", "memory.py", "models.py", "hf_config.py", "devices.py", "simulator.py", "recorder.py")  # fmt: skip


@dataclass(frozen=True)
class CellTask:
    """Everything that a process needs to run a cell.

    cell: its name; trace: key of a TraceSpec; settings: of the engine; shape: what is done to the trace;
    figures: "module:function" that takes (recording, bounds) and gives column -> number; keep: folder
    for the recording, "" to throw it away; attempt: 1 for the first.
    """

    cell: str
    trace: str
    seed: int
    settings: Mapping[str, Any]
    shape: Mapping[str, Any]
    bounds: Mapping[str, float]
    figures: str
    keep: str = ""
    attempt: int = 1


@dataclass(frozen=True)
class Outcome:
    """What became of a cell. figures: column -> number; again: whether another try may go better;
    recording: of a cell that ran elsewhere, the packed recording, else None."""

    status: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    wall_s: float = 0.0
    again: bool = False
    recording: bytes | None = None


# ---- its name --------------------------------------------------------------------------------------


def cell_id(choice: Choice, fixed: Mapping[str, Any], bounds: Mapping[str, float], digest: str) -> str:  # fmt: skip
    """32 hex digits of what makes a cell: requests, settings, seed, bounds and engine.

    fixed: settings of every cell; digest: of the trace's requests under this seed.
    """
    settings, shape = split_values({**fixed, **choice.values})
    said = {
        "workload": digest,
        "settings": {k: _told(k, v) for k, v in sorted(settings.items())},
        "shape": shape,
        "seed": choice.seed,
        "bounds": dict(sorted(bounds.items())),
        "engine": engine_stamp(),
    }
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _told(name: str, value: Any) -> Any:
    """A value by content: of models and devices what they are, not what they are called."""
    if name in ("model", "device"):
        return _content(name, str(value))
    return value


@lru_cache(maxsize=256)
def _content(name: str, value: str) -> Any:
    load: Callable[[str], Any] = load_model if name == "model" else load_device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return json.dumps(asdict(load(value)), sort_keys=True, default=str)
        except SettingsError:
            return value  # refused when it is run


@lru_cache(maxsize=1)
def engine_stamp() -> str:
    """Version of the engine, and a digest of the sources that decide what a run does."""
    here = Path(__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for path in [here / name for name in _DECIDING] + sorted((here / "core").glob("*.py")):
        digest.update(path.read_bytes())
    return f"{VERSION}+{digest.hexdigest()}/{SCHEMA_VERSION}/{SWEEP_VERSION}"


# ---- running it ------------------------------------------------------------------------------------


def run_cell(task: CellTask, workload: Workload | None = None) -> Outcome:
    """Run a cell and give its figures; whatever goes wrong is an Outcome with its reason.

    workload: the trace's requests, where they are at hand; else the trace is opened. A setting or a
    trace that cannot be is refused; other faults are failures, which another try may mend.
    """
    started = time.perf_counter()
    try:
        found = _run(task, workload)
    except (SettingsError, WorkloadError) as error:
        return Outcome(REFUSED, error=reason(error), wall_s=time.perf_counter() - started)
    except Exception as error:  # a cell's fault must not end the sweep
        wall_s = time.perf_counter() - started
        return Outcome(FAILED, error=reason(error), wall_s=wall_s, again=True)
    status, figures = found
    return Outcome(status, figures, wall_s=time.perf_counter() - started)


def _run(task: CellTask, workload: Workload | None) -> tuple[str, dict[str, Any]]:
    """(how the run ended, its figures)."""
    from engine.simulator import simulate
    from traces.recording import open_recording

    settings = EngineSettings(**{**task.settings, "seed": task.seed})
    if workload is None:
        workload = open_trace(from_key(task.trace), task.seed)
    asked = shaped(workload, task.shape, task.seed)
    with _place(task.keep) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same for every cell; checked before they start
        done = simulate(asked, settings, folder)
        with open_recording(folder) as recording:
            figures = _figures(task.figures)(recording, task.bounds)
        if task.keep:
            _move(folder, Path(task.keep))
    return (done.status or COMPLETED), figures


@contextlib.contextmanager
def _place(keep: str) -> Any:
    """A folder for the recording while it is made, beside where it is kept; gone afterwards."""
    beside = Path(keep).parent if keep else None
    if beside is not None:
        beside.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".part-", dir=beside))
    try:
        yield folder / "recording"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, target: Path) -> None:
    """Put a finished recording in its place; one of an earlier try makes room."""
    shutil.rmtree(target, ignore_errors=True)
    os.replace(folder, target)


@lru_cache(maxsize=4)
def _figures(name: str) -> Callable[[Any, Mapping[str, float]], dict[str, Any]]:
    module, _, function = name.partition(":")
    found: Callable[[Any, Mapping[str, float]], dict[str, Any]] = getattr(
        importlib.import_module(module), function
    )
    return found


def reason(error: BaseException) -> str:
    """One line of what went wrong."""
    text = " ".join(str(error).split())
    if not isinstance(error, (SettingsError, WorkloadError)):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 1]}…"
