"""The validation badge without a browser: what is drawn, what is allowed, the job, and what is kept."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts.store import Store
from tests.validation_worlds import machine_run, seen

TIMEOUT_S = 120


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return machine_run(tmp_path_factory.mktemp("machine") / "run")


def badge_alone() -> None:
    """The badge of the run that the URL names, and what it allows."""
    import streamlit as st

    from analyzer.pages.parts.runs import load
    from analyzer.pages.parts.store import Store, default_root
    from analyzer.pages.parts.validation_badge import badge_section

    store = Store(default_root())
    found = badge_section(load(str(st.query_params["a"]), store), store)
    if found is None:
        st.write("allowed: nothing")
    else:
        device = str(found.settings.device).rpartition("/")[2]
        st.write(
            f"allowed: {device}, calibrated {found.calibrated}, {len(found.workload)} requests"
        )


def shown(store: Store, path: Path) -> AppTest:
    """The badge once its job has ended."""
    app = AppTest.from_function(badge_alone, default_timeout=TIMEOUT_S)
    app.query_params["a"] = f"file:{store.link(path).id}"
    return until_done(app.run())


def until_done(app: AppTest) -> AppTest:
    end = time.monotonic() + TIMEOUT_S
    while any(b.key == "cancel_validation" for b in app.button):
        assert time.monotonic() < end
        time.sleep(0.2)
        app.run()
    assert not app.exception
    return app


def words(app: AppTest) -> str:
    kinds = ("markdown", "caption", "warning", "error")
    return "\n".join(str(e.value) for kind in kinds for e in app.get(kind))


def kept(store: Store) -> list[str]:
    return sorted(p.name for p in (store.root / "validations").glob("*/*.json"))


def test_a_simulated_recording_needs_no_badge(store: Store, machine: Path) -> None:
    app = shown(store, machine.with_name("run-made"))

    assert "the simulator's own" in words(app)
    assert "allowed: cpu, calibrated False, 160 requests" in words(app)
    assert not app.button


def test_a_preset_that_is_far_off_allows_no_what_if_until_it_is_calibrated(
    store: Store, machine: Path
) -> None:
    app = shown(store, machine)

    assert "Poor" in words(app)
    assert "allowed: nothing" in words(app)
    assert "No what-ifs on this recording" in words(app)
    assert kept(store) == ["plain.json"]

    app = until_done(app.button(key="calibrate_on_it").click().run())

    assert "Good" in words(app)
    assert "Calibrated on this recording" in words(app)
    assert "second half, by a fit to the first" in words(app)
    assert "allowed: device.json, calibrated True, 160 requests" in words(app)
    assert kept(store) == ["calibrated.json", "device.json", "plain.json"]

    app = app.button(key="uncalibrate").click().run()

    assert "allowed: nothing" in words(app)
    assert kept(store) == ["plain.json"]


def test_a_second_visit_reads_what_is_kept_also_of_a_copy_elsewhere(
    store: Store, machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(store, machine)
    copied = tmp_path / "copied"
    shutil.copytree(machine, copied)

    def refuse(*_: object) -> None:
        raise AssertionError("simulated again")

    monkeypatch.setattr("analyzer.validate_command.simulate_plan", refuse)

    assert "Poor" in words(shown(store, copied))


def test_the_table_shows_both_sides_and_what_was_not_recorded(
    store: Store, tmp_path: Path
) -> None:
    blind = ["steps.num_preempted"]
    path = seen(tmp_path / "a", not_recorded=blind, executor="vllm")

    app = shown(store, path)

    table = app.dataframe[0].value
    row = dict(zip(table.columns, table.iloc[2], strict=True))
    assert row["Figure"] == "Preemptions"
    assert row["Observed"] == "not recorded"
    assert row["Grade"] == "not counted"


def test_a_recording_that_cannot_be_run_again_says_why(store: Store, tmp_path: Path) -> None:
    path = seen(tmp_path / "a", settings={"num_gpu_blocks": 11, "policy": "best"})

    app = shown(store, path)

    assert "policy 'best' is not known" in words(app).replace("\\", "")
    assert "allowed: nothing" in words(app)


def test_a_calibration_that_is_refused_says_why_and_leaves_the_badge(
    store: Store, tmp_path: Path
) -> None:
    app = shown(store, seen(tmp_path / "a"))

    app = until_done(app.button(key="calibrate_on_it").click().run())

    assert "the model's shape is missing" in words(app).replace("\\", "")
    assert kept(store) == ["plain.json"]
