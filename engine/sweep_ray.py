"""Cells of a sweep as tasks of a Ray cluster that exists already; the only code that imports Ray.

It knows the cluster's address, what travels to its nodes and what comes back. A task that a dead worker
or node takes with it is given out again by Ray, and by us where Ray gives up; as the process that began
the sweep writes down every cell by its name, none is lost and none counted twice.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.sweep_cell import ONE_THREAD, CellTask, Outcome, reason, run_cell
from engine.sweep_spec import SweepSpec
from engine.sweep_traces import from_key, open_trace
from traces.errors import SettingsError
from traces.sweep_schema import FAILED

if TYPE_CHECKING:
    from traces.workload import Workload

ROOT = Path(__file__).resolve().parents[1]
KNOCK_S = 5.0  # to open a connection
JOIN_S = 60.0  # to join the cluster
AHEAD = 2  # tasks given out for each CPU of the cluster
TASK_RETRIES = 3  # by Ray, of tasks whose worker or node died
KEPT_TRACES = 8  # in the object store at once
_JOIN = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False); print('joined', ray.__version__)"


def import_ray() -> Any:
    """Ray. Raises SettingsError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise SettingsError(
            "--ray needs Ray, which is an extra: pip install -r requirements-ray.txt."
        ) from None
    return ray


def check_address(address: str) -> None:
    """Raise SettingsError unless a Ray cluster of our version answers there.

    A process of its own joins first: where what answers is no such cluster, Ray waits for minutes or
    ends the process that asked.
    """
    host, port = _host_and_port(address)
    if port is not None:
        try:
            socket.create_connection((host, port), KNOCK_S).close()
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error) or "no answer"
            raise SettingsError(
                f"no Ray cluster answers at {address} ({why}). Check the address (`ray status` on the head node shows it), or leave --ray away to run here."
            ) from None
    try:
        done = subprocess.run(
            [sys.executable, "-c", _JOIN, address], capture_output=True, text=True, timeout=JOIN_S,
            check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SettingsError(
            f"what answers at {address} did not let a Ray driver in within {JOIN_S:.0f} s. Check that it is the head node of a Ray cluster, or leave --ray away to run here."
        ) from None
    if done.returncode or "joined" not in done.stdout:
        raise SettingsError(
            f"the Ray cluster at {address} cannot be joined ({_last_words(done.stderr)}). Check the address and that both have one version of Ray and Python, or leave --ray away to run here."
        )


def _host_and_port(address: str) -> tuple[str, int | None]:
    """('10.0.0.1', 6379); the port is None for auto and local. Raises SettingsError."""
    if address in ("auto", "local"):
        return "", None
    plain = address.removeprefix("ray://")
    host, colon, port = plain.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise SettingsError(
            f"--ray {address!r} is no address. Give HOST:PORT of the head node (such as 10.0.0.1:6379), ray://HOST:10001, or auto."
        )
    return host.strip("[]"), int(port)


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "it said nothing")[:300]


class RayTasks:
    """An Executor whose cells are Ray tasks, one CPU each."""

    def __init__(
        self, address: str, spec: SweepSpec, *, share: str = "store", ship_code: bool = False
    ) -> None:
        """Join the cluster. share: "store": traces and recordings travel through the object store;
        "path": they lie at paths that all nodes see. Raises SettingsError."""
        ray = import_ray()
        if share == "store":
            _refuse_files(spec)
        check_address(address)
        environment: dict[str, Any] = {"env_vars": dict(ONE_THREAD)}
        if ship_code:
            environment["py_modules"] = [
                str(ROOT / room) for room in ("engine", "traces", "analyzer")
            ]
        else:
            environment["env_vars"]["PYTHONPATH"] = str(ROOT)
        ray.init(
            address=address, runtime_env=environment, logging_level="ERROR", log_to_driver=False
        )
        self._ray = ray
        self._address = address
        self._by_path = share == "path"
        self._remote = ray.remote(num_cpus=1, max_retries=TASK_RETRIES)(run_there)
        self._running: dict[Any, CellTask] = {}
        self._traces: OrderedDict[tuple[str, int], Any] = OrderedDict()

    @property
    def where(self) -> str:
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        return f"{cpus:,} CPU{'' if cpus == 1 else 's'} of the Ray cluster at {self._address}"

    @property
    def num_running(self) -> int:
        return len(self._running)

    def has_room(self) -> bool:
        """A cluster may grow and shrink: its CPUs are asked for each time."""
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        return len(self._running) < max(1, cpus * AHEAD)

    def submit(self, task: CellTask) -> None:
        """Give a cell out. A trace that cannot be read here is left to the task, which says why."""
        workload = None if self._by_path else self._workload(task)
        self._running[self._remote.remote(task, workload, self._by_path)] = task

    def wait(self, timeout_s: float) -> list[tuple[CellTask, Outcome]]:
        """Cells that have ended, after at most so many seconds; of tasks that Ray gave up, too."""
        if not self._running:
            return []
        refs = list(self._running)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout_s)
        if ready:  # all others that have ended by now, too
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        return [(self._running.pop(ref), self._outcome(ref)) for ref in ready]

    def close(self) -> None:
        """Take back what is still out, and leave the cluster."""
        for ref in self._running:
            with contextlib.suppress(Exception):
                self._ray.cancel(ref, force=True)
        self._running = {}
        self._traces.clear()
        self._ray.shutdown()

    def _outcome(self, ref: Any) -> Outcome:
        try:
            found: Outcome = self._ray.get(ref)
            return found
        except self._ray.exceptions.RayError as error:
            return Outcome(FAILED, error=_of_ray(error), again=True)

    def _workload(self, task: CellTask) -> Any:
        """Reference of the trace's requests in the object store, put there once."""
        key = (task.trace, task.seed)
        if key in self._traces:
            self._traces.move_to_end(key)
            return self._traces[key]
        self._traces[key] = self._ray.put(open_trace(from_key(task.trace), task.seed))
        while len(self._traces) > KEPT_TRACES:
            self._traces.popitem(last=False)  # tasks that are out hold theirs
        return self._traces[key]


def _refuse_files(spec: SweepSpec) -> None:
    """Raise SettingsError where a model or device is a file here, which other nodes do not have."""
    values = [spec.settings] + [
        dict(zip(a.names, row, strict=True)) for a in spec.axes for row in a.rows
    ]
    for name in ("model", "device"):
        for value in (v[name] for v in values if name in v):
            if Path(str(value)).exists():
                raise SettingsError(
                    f"{name} {value} is a file of this machine. With --ray it must lie at the same path on every node: say so with --ray-share path, and traces and recordings go by path too."
                )


def _of_ray(error: BaseException) -> str:
    """What Ray says of a task that it gave up, in a line."""
    text = str(error).strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if "ModuleNotFoundError" in text or "No module named" in text:
        missing = next(
            (ln.strip() for ln in text.splitlines() if "No module named" in ln), first
        )
        return f"the project cannot be imported on the node ({missing[:200]}). Put it at {ROOT} there, or give --ray-ship-code; its requirements must be installed there"
    return f"{type(error).__name__}: {first[:300]}"


# ---- on a node ---------------------------------------------------------------------------------------


def run_there(task: CellTask, workload: Workload | None, by_path: bool) -> Outcome:
    """Run a cell on the node where this was called; its recording, if kept, comes back packed.

    by_path: the recording goes to its folder, which this node sees.
    """
    with _one_compiles():
        from engine.simulator import warm_up

        warm_up()
    if by_path or not task.keep:
        return run_cell(task, workload)
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as folder:
        kept = Path(folder) / "kept" / "recording"
        outcome = run_cell(replace(task, keep=str(kept)), workload)
        if not kept.is_dir():
            return outcome
        try:
            return replace(outcome, recording=_packed(kept))
        except OSError as error:
            return Outcome(FAILED, error=reason(error), wall_s=outcome.wall_s, again=True)


def _packed(folder: Path) -> bytes:
    """The files of a folder as a zip; Parquet is compressed already."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(path, path.relative_to(folder).as_posix())
    return buffer.getvalue()


@contextlib.contextmanager
def _one_compiles() -> Iterator[None]:
    """Let the processes of a node compile the core one after the other: the first does, the others load it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    name = f"kv-replay-compile-{os.getuid()}.lock"
    with (Path(tempfile.gettempdir()) / name).open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
