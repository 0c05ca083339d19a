"""The stat-logger plugin under vLLM itself: its loader, its scheduler, its output processor.

One process of vLLM's interpreter answers all cases: importing vLLM takes half a minute.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.live.vllm_runs import drive, need_vllm
from traces import open_any
from traces.fleet import Fleet, open_fleet
from traces.telemetry import Telemetry, open_telemetry

pytestmark = pytest.mark.parity

ROOT = Path(__file__).parents[1]
POOL = 40
PRESSED = {"num_blocks": POOL + 1, "block_size": 8, "max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": 512}  # fmt: skip


def trace(abort: bool = False) -> list[dict[str, Any]]:
    """24 requests of which a pool of 40 blocks holds about six at a time."""
    draw = random.Random(1)
    rows = [
        {
            "request_id": f"r{i}",
            "prompt_tokens": draw.randint(20, 90),
            "output_tokens": draw.randint(10, 60),
            "arrival_step": i // 3,
        }
        for i in range(24)
    ]
    if abort:
        for row in rows[::4]:
            row["abort_step"] = row["arrival_step"] + 25
    return rows


def install(folder: Path) -> Path:
    """What an installer leaves of this project's entry points, for vLLM's interpreter to find."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "kv_replay-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kv-replay\nVersion: 0\n")
    lines = []
    for group, names in points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


Answers = Mapping[str, dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answers, str]:
    """(folder of the recordings, answers by name, what was said on standard error)."""
    need_vllm()
    root = tmp_path_factory.mktemp("stats")
    (root / "in-the-way").write_text("a file")
    base = {"settings": PRESSED, "rows": trace()}
    cases = [
        {**base, "name": "pressed"},
        {
            **base,
            "name": "asynchronous",
            "settings": PRESSED | {"async_scheduling": True},
            "rows": trace(abort=True),
        },
        {
            **base,
            "name": "offload",
            "settings": PRESSED | {"offload": "native", "cpu_blocks": 200},
        },
        {**base, "name": "ranks", "engines": [0, 1]},
        {**base, "name": "idle", "out": ""},
        {**base, "name": "recorded", "scheduler_cls": "engine.live.vllm.RecordingScheduler"},
        {**base, "name": "wrong-setting", "environ": {"KV_REPLAY_PART_STEPS": "many"}},
        {**base, "name": "no-folder", "out": str(root / "in-the-way" / "below")},
        {**base, "name": "other-stats", "break": "stats"},
    ]
    for case in cases:
        case.setdefault("out", str(root / str(case["name"])))
    environ = {
        "PYTHONPATH": str(install(root / "installed")),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    answers, said = drive(cases, environ=environ, module="tests.live.stats_drive")
    return root, {a["name"]: a for a in answers}, said


def truth_of(answer: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(answer["truth"]).cast(pl.Int64)


@pytest.mark.parametrize("name", ["pressed", "asynchronous", "offload"])
def test_every_step_of_vllm_s_scheduler_is_a_sample(
    runs: tuple[Path, Answers, str], name: str
) -> None:
    root, answers, _ = runs
    assert answers[name]["error"] is None

    telemetry = open_any(root / name)

    assert isinstance(telemetry, Telemetry)
    truth = truth_of(answers[name])
    assert telemetry.samples.select(truth.columns).equals(truth)
    assert telemetry.meta["engine"] == {"name": "vllm", "version": "0.26.0"}


def test_vllm_loads_the_plugin_by_its_entry_point(runs: tuple[Path, Answers, str]) -> None:
    for answer in runs[1].values():
        assert answer["loaded"] == ["engine.live.stat_logger.TelemetryStatLogger"]


def test_preemptions_are_all_reported_where_nothing_is_aborted(
    runs: tuple[Path, Answers, str],
) -> None:
    root, answers, _ = runs

    telemetry = open_telemetry(root / "pressed")

    assert answers["pressed"]["preemptions"] == 12
    assert telemetry.samples["num_preempted"].sum() == 12
    assert telemetry.samples["preemptions_total"][-1] == 12


def test_preemptions_are_never_more_than_there_were(runs: tuple[Path, Answers, str]) -> None:
    root, answers, _ = runs

    telemetry = open_telemetry(root / "asynchronous")

    reported = telemetry.samples["num_preempted"].sum()
    assert 0 < reported <= answers["asynchronous"]["preemptions"]


def test_every_request_that_ended_is_told_with_its_lengths(
    runs: tuple[Path, Answers, str],
) -> None:
    requests = open_telemetry(runs[0] / "pressed").finished_requests

    assert requests is not None
    asked = sorted((r["prompt_tokens"], r["output_tokens"]) for r in trace())
    assert sorted(requests.select("prompt_tokens", "output_tokens").rows()) == asked
    assert requests["reason"].unique().to_list() == ["length"]
    assert requests["request_id"].n_unique() == 24
    assert (requests["e2e_s"] >= requests["queued_s"]).all()


def test_tokens_add_up_to_what_was_asked(runs: tuple[Path, Answers, str]) -> None:
    samples = open_telemetry(runs[0] / "pressed").samples

    assert samples["prompt_tokens"].sum() == sum(r["prompt_tokens"] for r in trace())
    assert samples["generation_tokens"].sum() == sum(r["output_tokens"] for r in trace())
    assert samples["resumed_lookups"].sum() >= 12


def test_what_a_stat_logger_cannot_see_is_marked_missing(
    runs: tuple[Path, Answers, str],
) -> None:
    telemetry = open_telemetry(runs[0] / "pressed")

    for name in ("victims", "block ids", "recomputed_tokens", "num_swapped", "duration_s"):
        assert telemetry.missing[name]
    assert telemetry.state("used_blocks").unique().to_list() == ["inferred"]
    assert telemetry.missing["external_query_tokens"] == "no KV connector is configured"


def test_a_connector_s_look_ups_are_known(runs: tuple[Path, Answers, str]) -> None:
    samples = open_telemetry(runs[0] / "offload").samples

    assert samples["external_query_tokens"].sum() > 0
    assert "external_query_tokens" not in open_telemetry(runs[0] / "offload").missing


def test_two_ranks_lie_beside_each_other_as_a_fleet(runs: tuple[Path, Answers, str]) -> None:
    root, answers, _ = runs

    fleet = open_fleet(root / "ranks")

    assert isinstance(open_any(root / "ranks"), Fleet)
    assert answers["ranks"]["loggers"] == 2
    assert [m.rank for m in fleet.telemetry] == [0, 1]
    assert fleet.telemetry[0].server == fleet.telemetry[1].server
    assert fleet.telemetry[0].open_telemetry().samples["num_running"].max() == 6


@pytest.mark.parametrize("name", ["idle", "recorded"])
def test_a_plugin_that_was_not_asked_or_is_not_needed_writes_nothing(
    runs: tuple[Path, Answers, str], name: str
) -> None:
    root, answers, _ = runs

    assert answers[name]["error"] is None
    assert answers[name]["status"] == "completed"
    assert not (root / name).exists()
    assert not (ROOT / "kv-replay").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong-setting", "KV_REPLAY_PART_STEPS must be a number"),
        ("no-folder", "cannot write to"),
        ("other-stats", "stat logger failed; the server goes on without it"),
    ],
)
def test_a_fault_is_said_once_and_the_server_goes_on(
    runs: tuple[Path, Answers, str], name: str, said: str
) -> None:
    _, answers, errors = runs

    assert answers[name]["error"] is None
    assert answers[name]["status"] == "completed"
    assert answers[name]["preemptions"] == 12
    assert errors.count(said) == 1
