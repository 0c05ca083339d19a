"""What calibration makes of metadata and times that cannot be right, and of a fit that predicts badly."""

import warnings
from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.calibration_traces import SIZES, commands, runs
from engine.__main__ import main
from engine.calibrate import calibrate
from engine.calibrate_command import same_types
from engine.calibrate_samples import read_source
from engine.devices import load_device
from tests.calibrate_builders import (
    MACHINE,
    make_setup,
    time_copies,
    time_steps,
    work,
    write_run,
)
from traces.errors import RecordingError, SettingsError

SETTINGS = {"block_size": 16, "kv_cache_dtype": "float32", "weight_dtype": "float32", "copy_path": "coalesced", "num_gpu_blocks": 11}  # fmt: skip


def small_run(path, *, noise=0.02, seed=0, **more):
    setup = make_setup()
    steps = time_steps(setup, MACHINE, work(60, 30, 20, seed=seed), noise=noise, seed=seed)
    return write_run(path, setup, steps, **more)


def model(**changes):
    return {"model": asdict(make_setup().model) | changes}


def settings(**changes):
    return {"settings": {k: v for k, v in (SETTINGS | changes).items() if v is not None}}


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (model(num_layers="x"), r"metadata, model, num_layers: 'x' is no whole number from 1 to 10,000"),
        (model(num_layers=-1), r"model, num_layers: -1 is no whole number"),
        (model(hidden=1.5), r"model, hidden: 1\.5 is no whole number"),
        (model(vocab=True), r"model, vocab: True is no whole number"),
        (model(ffn=10**30), r"model, ffn: 10{30} is no whole number from 1 to 10,000,000"),
        (model(weight_dtype="banana"), r"model, weight_dtype: 'banana' is none of float64"),
        (model(tied_embeddings="no"), r"model, tied_embeddings: 'no' is neither true nor false"),
        ({"model": 5}, r"metadata, model: .*5 is no object"),
        ({"settings": None}, r"metadata, settings: the settings of the run are missing"),
        ({"settings": []}, r"metadata, settings: the settings of the run are missing \(\[\]\)"),
        (settings(block_size=2**30), r"settings, block_size: 1073741824 is no whole number from 1 to 1,048,576"),
        (settings(block_size=None), r"settings, block_size: nothing given is no whole number"),
        (settings(kv_cache_dtype=5), r"settings, kv_cache_dtype: 5 is no name"),
        (settings(weight_dtype=None), r"settings, weight_dtype: nothing given is no name"),
        (settings(copy_path="x"), r"settings, copy_path: 'x' is none of loop, batch, coalesced"),
        (settings(tensor_parallel_size="x"), r"the run used tensor parallelism 'x'"),
    ],
)  # fmt: skip
def test_metadata_of_the_wrong_kind_name_recording_key_and_value(tmp_path, meta, message):
    setup = make_setup()
    run = write_run(
        tmp_path / "odd", setup, time_steps(setup, MACHINE, work(3, 2, 1)), meta=meta
    )

    with pytest.raises(RecordingError, match=message) as refused:
        read_source(run)
    assert str(refused.value).startswith("odd, ")


@pytest.mark.parametrize("seconds", [0.0, 1e-300])
@pytest.mark.parametrize("column", ["duration_s", "compute_s"])
def test_times_of_nothing_everywhere_are_a_sentence_with_the_count(tmp_path, column, seconds):
    run = small_run(tmp_path / "r", **{column: [seconds] * 130})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SettingsError, match=r"no step of the recordings can be used \(.*1\d\d: their time is zero, negligible"):  # fmt: skip
            calibrate([run], bootstraps=0)


def test_single_times_of_nothing_are_left_out_and_counted(tmp_path):
    setup = make_setup()
    steps = time_steps(setup, MACHINE, work(60, 30, 20))
    compute = steps.compute_s.tolist()
    compute[7], compute[8], compute[9] = 0.0, 1e-300, 1e9
    copies = time_copies(setup, MACHINE, 40)
    copies.seconds[3] = 0.0
    copies.seconds[4] = 1e-300
    run = write_run(tmp_path / "r", setup, steps, copies=copies, compute_s=[9.0] * 20 + compute)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = calibrate([run], bootstraps=0)

    assert len(c.sources[0].steps) == 107
    assert "3 steps were left out: their time is zero, negligible or absurd." in c.warnings
    assert "2 copies were left out: their time is zero, negligible or absurd." in c.warnings
    assert c.document()["calibration"]["recordings"][0]["left_out"]["their time is zero, negligible or absurd"] == 3  # fmt: skip


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A device file of two workloads of which one ran on a machine three times as slow."""
    folder = tmp_path_factory.mktemp("bad")
    setup = make_setup()
    found = []
    for i, slow in enumerate((1.0, 3.0)):
        steps = time_steps(setup, MACHINE, work(60, 30, 20, seed=i), seed=i)
        slower = {n: [9.0] * 20 + (slow * getattr(steps, v)).tolist() for n, v in (("duration_s", "busy_s"), ("compute_s", "compute_s"))}  # fmt: skip
        found.append(write_run(folder / f"r{i}", setup, steps, workload=f"w{i}", **slower))
    return calibrate(found, bootstraps=0)


def test_bad_predictions_of_what_was_left_out_warn_with_figure_and_advice(bad, tmp_path):
    worst = max(f.errors.median for f in bad.folds)

    assert worst > 0.5
    assert f"r0 {worst:.0%}" in bad.caution
    assert "Record again on a quiet machine" in bad.caution
    assert bad.warnings[-1] == bad.caution
    assert bad.document()["calibration"]["caution"] == bad.caution


def test_a_device_file_that_predicts_badly_says_so_once_where_it_is_used(bad, tmp_path):
    path = bad.write(tmp_path / "bad.json")

    with pytest.warns(UserWarning, match=r"bad.json: step times that the fit had not seen were predicted badly"):  # fmt: skip
        device = load_device(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_device(path) == device
        bad.write(path, overwrite=True)


def test_a_good_calibration_has_no_caution(tmp_path):
    setups = [small_run(tmp_path / f"r{i}", seed=i, workload=f"w{i}") for i in range(2)]

    c = calibrate(setups, bootstraps=0)

    assert max(f.errors.median for f in c.folds) < 0.05
    assert c.caution == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_device(c.write(tmp_path / "good.json"))


def test_the_types_that_a_simulation_of_the_same_run_needs_are_printed(bad):
    assert same_types(bad) == [
        "note: r0, r1 ran with weights in float32 and KV in float32: to simulate the same run, add "
        "--weight-dtype float32 --kv-dtype float32; without, simulate takes the model's 16-bit types."
    ]


def test_a_stage_too_much_alike_is_a_warning_that_names_the_numbers_it_leaves(tmp_path):
    setup, rows = make_setup(), work(150, 60, 0)
    rows[rows[:, 2] > 0] = (0, 0, 1, 256, 256 * 128, 1)
    run = write_run(tmp_path / "r", setup, time_steps(setup, MACHINE, rows))

    c = calibrate([run], bootstraps=0)

    assert c.device.linear_efficiency == load_device("cpu").linear_efficiency
    assert any("linear_efficiency, prefill_attention_efficiency stay the base device's: the 60 prefill steps" in w for w in c.warnings)  # fmt: skip
    assert "decode_attention_efficiency" in c.fitted


def test_the_command_replaces_a_device_file_only_with_overwrite(
    bad, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("engine.calibrate.calibrate", lambda *_, **__: bad)
    out = tmp_path / "d.json"
    command = ["calibrate", "r0", "r1", "--out", str(out)]

    assert main(command) == 0
    assert "add --weight-dtype float32 --kv-dtype float32" in capsys.readouterr().out
    out.write_text(out.read_text().replace(bad.device.name, "mine"))
    assert main(command) == 2
    assert "d.json: a device file of that name exists" in capsys.readouterr().err
    assert load_device(out, warn=False).name == "mine"
    assert main([*command, "--overwrite"]) == 0
    assert load_device(out, warn=False) == bad.device


def test_a_directory_that_is_not_there_is_refused_before_the_work(tmp_path, capsys):
    assert main(["calibrate", "none", "--out", str(tmp_path / "no" / "d.json")]) == 2
    assert (
        "d.json: cannot write there (the directory no does not exist)"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_the_traces_for_calibration_vary_what_each_is_for(on):
    found = {r.name: r for r in runs(SIZES[on])}

    assert len({row[2] for row in found["falls-short"].rows}) == SIZES[on].batch
    assert {row[2] for row in found["prefill-whole"].rows} == {1}
    lengths = np.array([row[1] for row in found["prefill-whole"].rows])
    assert lengths.max() <= SIZES[on].budgets[1]
    assert lengths.max() / lengths.min() > 4
    assert all("--max-num-seqs" in r.flags for r in found.values())
    text = "\n".join(commands(list(found.values()), on, "some model"))
    assert text.count("python -m engine run") == 6
    assert "--model 'some model'" in text
    assert ("--base-device cpu" in text) == (on == "cpu")
