"""What goes wrong in a sweep, on purpose: functions of figures that die, fail or dawdle.

A sweep looks them up by name in its processes. They count their calls as files in the folder that
COUNT names, which processes and Ray's workers inherit.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.sweep_figures import sweep_figures
from traces.recording import Recording

COUNT = "KV_REPLAY_TEST_COUNT"
HERE = "tests.sweep_faults"


def counted(folder: Path) -> int:
    """How many calls there were."""
    return len(list(folder.glob("call-*")))


def _count() -> Path:
    folder = Path(os.environ[COUNT])
    (folder / f"call-{uuid.uuid4().hex}").touch()
    return folder


def hangs_where_it_is_told(recording: Recording, bounds: Mapping[str, float]) -> dict[str, Any]:
    """The figures; on the Ray node that the file "doomed" names, never."""
    import ray

    folder = _count()
    if ray.get_runtime_context().get_node_id() == (folder / "doomed").read_text():
        (folder / "hangs").touch()
        time.sleep(3600)
    return sweep_figures(recording, bounds)


def kills_its_process_once(recording: Recording, bounds: Mapping[str, float]) -> dict[str, Any]:
    """The first call of all ends its process as the system would that runs out of memory."""
    folder = _count()
    try:
        (folder / "killed").touch(exist_ok=False)
    except FileExistsError:
        return sweep_figures(recording, bounds)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def kills_its_process_always(
    recording: Recording, bounds: Mapping[str, float]
) -> dict[str, Any]:
    """Each call ends its process."""
    _count()
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def fails_with_swap(recording: Recording, bounds: Mapping[str, float]) -> dict[str, Any]:
    """Cells that swap fail; others do not."""
    _count()
    if recording.meta.preemption_mode == "swap":
        raise OSError("the disk is on fire")
    return sweep_figures(recording, bounds)
