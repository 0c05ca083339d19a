"""Sweeps on a Ray cluster: two nodes' worth of workers of which one dies, and addresses that do not answer.

The cluster is Ray's own for tests: nodes are processes of this machine. Skipped where Ray is not installed.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.sweep import run_sweep
from engine.sweep_cell import CellTask, Outcome
from engine.sweep_command import FIGURES
from engine.sweep_ray import RayTasks, check_address, import_ray
from engine.sweep_workers import Processes
from tests import sweep_faults
from tests.sweep_builders import NOT_COMPARED, small_sweep, table
from traces.errors import SettingsError
from traces.recording import open_recording

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install -r requirements-ray.txt")
ROOT = Path(__file__).parent.parent
STORE_BYTES = 100 * 2**20


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the workers count their calls; they inherit it from the cluster."""
    folder = tmp_path_factory.mktemp("count")
    patch = pytest.MonkeyPatch()
    patch.setenv(sweep_faults.COUNT, str(folder))
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def cluster(count: Path) -> Iterator[Any]:
    """A head that runs nothing, to which a test adds nodes of one CPU."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False},
    )  # fmt: skip
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def two_nodes(cluster: Any) -> list[Any]:
    """The nodes of one CPU that are up: those of the test before, and new ones for those that died."""
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    return [n for n in cluster.list_all_nodes() if n is not cluster.head_node]


class KillsANode(RayTasks):
    """Kills a node in the middle of a cell: once a call there hangs, and others have ended."""

    def __init__(self, cluster: Any, node: Any, hangs: Path, *args: Any) -> None:
        super().__init__(*args)
        self._cluster, self._node, self._hangs = cluster, node, hangs
        self.num_ended = 0
        self.ended_before = -1

    def wait(self, timeout_s: float) -> list[tuple[CellTask, Outcome]]:
        ended = super().wait(timeout_s)
        self.num_ended += len(ended)
        if self.ended_before < 0 and self.num_ended >= 4 and self._hangs.exists():
            self.ended_before = self.num_ended
            self._cluster.remove_node(self._node, allow_graceful=False)
        return ended


def test_a_node_killed_in_mid_sweep_loses_nothing_and_doubles_nothing(
    cluster: Any, two_nodes: list[Any], count: Path, tmp_path: Path
) -> None:
    spec = small_sweep(
        tmp_path, "num_gpu_blocks=5,6,7,9", "preemption=recompute,swap", "max_num_seqs=2,8"
    )
    run_sweep(spec, tmp_path / "here", lambda _: Processes(2), figures=FIGURES)
    made: list[KillsANode] = []
    before = sweep_faults.counted(count)
    (count / "doomed").write_text(two_nodes[1].node_id)

    def executor(_: Any) -> KillsANode:
        made.append(KillsANode(cluster, two_nodes[1], count / "hangs", cluster.address, spec))
        return made[0]

    result = run_sweep(
        spec, tmp_path / "ray", executor, figures=f"{sweep_faults.HERE}:hangs_where_it_is_told"
    )

    here, there = (table(tmp_path / name).drop(NOT_COMPARED) for name in ("here", "ray"))
    assert 4 <= made[0].ended_before < 16  # in mid-sweep
    assert sweep_faults.counted(count) - before == 17  # the cell that the node was at ran again
    assert there["cell"].n_unique() == there.height == 16
    assert there.rows() == here.rows()
    assert (result.num_run, result.num_failed) == (16, 0)


def test_a_killed_worker_process_costs_a_try_and_no_cell(
    cluster: Any, two_nodes: list[Any], count: Path, tmp_path: Path
) -> None:
    spec = small_sweep(tmp_path, "num_gpu_blocks=5,9")
    run_sweep(spec, tmp_path / "here", lambda _: Processes(1), figures=FIGURES)

    run_sweep(
        spec, tmp_path / "ray", lambda s: RayTasks(cluster.address, s),
        figures=f"{sweep_faults.HERE}:kills_its_process_once",
    )  # fmt: skip

    here, there = (table(tmp_path / name).drop(NOT_COMPARED) for name in ("here", "ray"))
    assert (count / "killed").exists()
    assert there.rows() == here.rows()


@pytest.mark.parametrize("share", ["store", "path"])
def test_recordings_come_back_by_store_or_by_path(
    cluster: Any, two_nodes: list[Any], tmp_path: Path, share: str
) -> None:
    spec = small_sweep(tmp_path, "num_gpu_blocks=5,9")

    run_sweep(
        spec, tmp_path / "out", lambda s: RayTasks(cluster.address, s, share=share),
        figures=FIGURES, keep=True,
    )  # fmt: skip

    rows = table(tmp_path / "out")
    assert rows["status"].to_list() == ["completed"] * 2
    opened = [open_recording(tmp_path / "out" / r) for r in rows["recording"]]
    assert [r.steps["num_preempted"].sum() for r in opened] == [1, 0]


# ---- addresses -------------------------------------------------------------------------------------


def sweep_on(address: str, folder: Path) -> subprocess.CompletedProcess[str]:
    small_sweep(folder, "num_gpu_blocks=5")
    return subprocess.run(
        [sys.executable, "-m", "engine", "sweep", str(folder / "trace.jsonl"), "--out", str(folder / "out"),
         "--grid", "num_gpu_blocks=9", "--ray", address],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_an_address_where_nobody_answers_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    done = sweep_on(f"127.0.0.1:{port}", tmp_path)

    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2
    assert last.startswith(
        f"error: no Ray cluster answers at 127.0.0.1:{port} (Connection refused)"
    )
    assert "Traceback" not in done.stderr


def test_an_address_that_is_no_cluster_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sweep_ray.JOIN_S", 8.0)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"

        with pytest.raises(
            SettingsError, match=r"did not let a Ray driver in|cannot be joined"
        ):
            check_address(address)


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:99999", "ray://host"])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(SettingsError, match=r"is no address\. Give HOST:PORT of the head node"):
        check_address(address)


def test_a_device_file_of_this_machine_must_be_said_to_lie_on_all(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    spec = small_sweep(tmp_path, f"device={tmp_path / 'mine.json'}")

    with pytest.raises(
        SettingsError, match=r"mine\.json is a file of this machine.*--ray-share path"
    ):
        RayTasks("127.0.0.1:1", spec)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(SettingsError, match=r"pip install -r requirements-ray\.txt"):
        import_ray()
