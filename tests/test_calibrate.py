"""Recordings to a device file and back, and recordings that cannot calibrate."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from engine.calibrate import calibrate, calibrate_sources, check_out
from engine.calibrate_errors import cross_validate, predict_steps, summary
from engine.calibrate_samples import clean_steps, read_source
from engine.devices import VALUE_NAMES, load_device
from tests.builders import make_steps
from tests.calibrate_builders import (
    CPU,
    MACHINE,
    make_setup,
    time_copies,
    time_steps,
    work,
    write_run,
)
from traces.errors import RecordingError, SettingsError

SMALL = {"decode": 150, "prefill": 40, "mixed": 40}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three recordings of one machine under unlike workloads."""
    folder = tmp_path_factory.mktemp("runs")
    setup = make_setup()
    shapes = [(16, 1500, 512), (4, 700, 300), (8, 400, 400)]
    return [
        write_run(
            folder / f"r{i}",
            setup,
            time_steps(setup, MACHINE, work(**SMALL, batch=b, context=c, chunk=n, seed=i), seed=i),
            copies=time_copies(setup, MACHINE, 40, seed=i),
            workload=f"w{i}",
        )
        for i, (b, c, n) in enumerate(shapes)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def calibration(runs):
    return calibrate(runs, name="bench", bootstraps=25)


def test_the_device_file_gives_back_the_fitted_device(calibration, tmp_path):
    path = calibration.write(tmp_path / "device.json")

    device = load_device(path)

    assert device == calibration.device
    assert device.name == "bench"
    setup, rows = make_setup(), work(50, 20, 20, seed=9)
    true = predict_steps(MACHINE, setup, time_steps(setup, MACHINE, rows))
    again = predict_steps(device, setup, time_steps(setup, MACHINE, rows))
    assert np.median(np.abs(again / true - 1)) < 0.015


def test_the_device_file_says_where_each_number_is_from(calibration):
    d = calibration.document()

    source = {n: v[1] for n, v in d["values"].items()}
    assert set(source) == set(VALUE_NAMES)
    digest = calibration.sources[0].digest[:8]
    assert source["knee"].startswith("[P] measured: fitted 20")
    assert digest in source["knee"]
    assert "95 % interval" in source["knee"]
    assert source["memory_bytes"] == CPU.sources["memory_bytes"]


def test_the_device_file_keeps_errors_residuals_and_what_was_not_fitted(calibration):
    c = json.loads(json.dumps(calibration.document()["calibration"]))

    assert c["base"] == "cpu"
    assert [r["workload"] for r in c["recordings"]] == ["w0", "w1", "w2"]
    assert c["recordings"][0]["left_out"] == {"the first 20 steps of a run": 20}
    assert c["samples"]["decode"] == pytest.approx(450, abs=9)
    assert c["cross_validation"]["left_out"] == "workload"
    assert [f["left_out"] for f in c["cross_validation"]["folds"]] == ["r0", "r1", "r2"]
    assert all(f["errors"]["median"] < 0.03 for f in c["cross_validation"]["folds"])
    assert len(c["residuals"][0]["step"]) == 230
    assert c["residuals"][0]["step"][0] == 20
    assert "moe_knee" in c["kept"]
    assert c["kept"]["batch_copy_s"] == "no copies on that path"


def test_intervals_hold_the_number_and_are_narrow(calibration):
    value, low, high = calibration.fitted["linear_efficiency"]

    assert low < 0.5 < high
    assert low * 0.98 < value < high * 1.02
    assert high / low < 1.15


def test_the_report_names_what_was_fitted_what_was_kept_and_the_errors(calibration):
    text = "\n".join(calibration.lines())

    assert "bench: fitted to 690 clean steps of 3 recordings" in text
    assert "predicted, r1 left out" in text
    assert "note: batch_copy_s is that of cpu: no copies on that path" in text
    assert "taken over from cpu: peak_flops" in text


def test_one_seed_gives_one_calibration(runs, calibration):
    assert calibrate(runs, name="bench", bootstraps=25).document() == calibration.document()


def test_a_machine_faster_than_its_base_raises_the_peaks_and_keeps_every_rate(tmp_path):
    fast = replace(MACHINE, peak_flops=2 * CPU.peak_flops, linear_efficiency=0.9, memory_bytes_per_s=2 * CPU.memory_bytes_per_s)  # fmt: skip
    setup = make_setup()
    steps = time_steps(setup, fast, work(**SMALL), noise=0.002)

    c = calibrate([write_run(tmp_path / "r", setup, steps)], bootstraps=0)

    d = c.device
    assert d.linear_efficiency == 1.0
    assert d.linear_efficiency * d.peak_flops == pytest.approx(0.9 * 3e11, rel=0.03)
    reads = d.weight_read_efficiency * d.memory_bytes_per_s
    assert reads == pytest.approx(0.9 * 4e10, rel=0.15)
    rate = d.prefill_io_efficiency * d.memory_bytes_per_s
    assert rate == pytest.approx(CPU.prefill_io_efficiency * CPU.memory_bytes_per_s)
    assert c.errors["all"].median < 0.03
    assert "raised until no efficiency exceeds 1" in c.document()["values"]["peak_flops"][1]
    assert load_device(c.write(tmp_path / "d.json")) == d


def test_one_workload_is_cross_validated_by_blocks_of_time_and_called_weaker(tmp_path):
    setup = make_setup()
    run = write_run(tmp_path / "r", setup, time_steps(setup, MACHINE, work(**SMALL)))

    c = calibrate([run], bootstraps=0)

    assert [f.left_out for f in c.folds] == [f"block {k} of 5 in time" for k in range(1, 6)]
    assert all(f.errors.num_steps == 46 for f in c.folds)
    assert any("one workload only" in w for w in c.warnings)


def test_a_workload_recorded_twice_is_left_out_whole(runs):
    sources = [read_source(p) for p in runs]
    twin = replace(sources[0], label="twin", digest="other")
    seen = []

    folds, cut_by = cross_validate(
        [*sources, twin], lambda rest: seen.append([s.label for s in rest]) or MACHINE
    )

    assert cut_by == "workload"
    assert folds[0].left_out == "r0 + twin"
    assert seen[0] == ["r1", "r2"]


def test_a_workload_without_which_nothing_can_be_fitted_is_named(runs):
    sources = [read_source(p) for p in runs[:2]]

    def refuse(rest):
        raise SettingsError("all the same batch.")

    folds, _ = cross_validate(sources, refuse)

    assert folds[0].errors is None
    assert folds[0].why_not == "the others alone do not calibrate: all the same batch."


def test_few_samples_are_taken_with_a_warning_that_says_how_many_are_wanted(tmp_path):
    setup = make_setup()
    steps = time_steps(setup, MACHINE, work(decode=60, prefill=30, mixed=20))
    run = write_run(tmp_path / "r", setup, steps, copies=time_copies(setup, MACHINE, 40))

    c = calibrate([run], bootstraps=0)

    assert any("60 decode (about 300)" in w for w in c.warnings)
    assert any("20 in, 20 out (about 60 each way" in w for w in c.warnings)


def test_errors_are_summed_up_by_median_mean_p95_and_bias():
    e = summary(np.array([-0.1, 0.1, 0.1, 0.2, 0.5]))

    assert (e.num_steps, e.median, e.bias) == (5, 0.1, 0.1)
    assert e.mean == pytest.approx(0.2)
    assert e.p95 == pytest.approx(0.44)
    assert summary(np.zeros(0)) is None


# ---- what is no sample ----


def table_of(**columns):
    n = len(columns["num_decode"])
    given = {"decode_ctx_tokens": [9] * n, "num_chunks": [0] * n, "chunk_tokens": [0] * n, "prefill_qk": [0.0] * n, "num_logit_rows": [1] * n}  # fmt: skip
    return pl.from_arrow(make_steps([0] * n, **(given | columns)))


def test_steps_with_copies_stalls_or_nothing_to_compute_are_left_out_and_counted():
    frame = table_of(
        num_decode=[1, 1, 1, 0, 1, 1, 1, None],
        swap_out_bytes=[0, 0, 8, 0, 0, 0, 0, 0],
        stall_s=[0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0],
        link_in_busy_s=[0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0],
        num_padded=[None, None, None, None, None, None, 4, None],
    )

    steps, dropped = clean_steps(frame, 1)

    assert steps.step.tolist() == [1, 6]
    assert steps.num_padded.tolist() == [1, 4]
    assert np.isnan(steps.compute_s).all()
    assert dropped == {
        "the first 1 steps of a run": 1,
        "a copy ran beside them, or they waited": 3,
        "nothing was computed": 1,
        "what they computed was not recorded": 1,
    }


def test_a_step_is_decode_prefill_or_mixed():
    frame = table_of(num_decode=[2, 0, 3], num_chunks=[0, 1, 1], chunk_tokens=[0, 5, 5])

    steps, _ = clean_steps(frame, 0)

    assert steps.kind.tolist() == [0, 1, 2]


# ---- refusals ----


def small_run(path, **more):
    setup = make_setup()
    return write_run(path, setup, time_steps(setup, MACHINE, work(40, 20, 20)), **more)


def test_modelled_times_are_refused_as_circular_unless_a_test_asks_for_them(tmp_path):
    run = small_run(tmp_path / "sim", meta={"clock": "modelled"})

    with pytest.raises(RecordingError, match=r"sim, metadata, clock: its times were computed by the cost model"):  # fmt: skip
        calibrate([run])
    assert calibrate([run], allow_modelled=True, bootstraps=0).errors["all"].median < 0.05


def test_a_clock_of_steps_has_no_seconds_at_all(tmp_path):
    run = small_run(tmp_path / "r", meta={"clock": "step"})

    with pytest.raises(RecordingError, match="holds no measured seconds"):
        calibrate([run], allow_modelled=True)


def test_a_recording_that_does_not_say_what_its_steps_computed_is_refused(tmp_path):
    run = small_run(tmp_path / "vllm", prefill_qk=[None] * 100, num_chunks=[None] * 100)

    with pytest.raises(RecordingError, match=r"vllm, table steps: .*\(num_chunks, prefill_qk not recorded\)"):  # fmt: skip
        calibrate([run])


def test_columns_that_the_metadata_call_not_recorded_are_not_believed(tmp_path):
    run = small_run(tmp_path / "r", meta={"not_recorded": ["steps.num_decode"]})

    with pytest.raises(RecordingError, match=r"num_decode not recorded"):
        calibrate([run])


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"model": None}, "the model's shape is missing or incomplete"),
        ({"model": {"name": "x"}}, "the model's shape is missing or incomplete"),
        ({"settings": {"block_size": 16, "num_gpu_blocks": 11, "tensor_parallel_size": 2}}, "used tensor parallelism 2"),
        ({"settings": {"block_size": 16, "num_gpu_blocks": 11, "kv_cache_dtype": "int3", "weight_dtype": "auto", "copy_path": "loop"}}, "kv_dtype 'int3' is not known"),
    ],
)  # fmt: skip
def test_metadata_that_calibration_cannot_use_are_refused(tmp_path, meta, message):
    run = small_run(tmp_path / "r", meta=meta)

    with pytest.raises(RecordingError, match=message):
        calibrate([run], base_device="cpu")


def test_models_with_experts_are_refused(tmp_path):
    setup = make_setup("mixtral-8x7b")
    run = write_run(tmp_path / "r", setup, time_steps(setup, CPU, work(40, 20, 20)))

    with pytest.raises(RecordingError, match="a model with experts or MLA, and calibration fits dense"):  # fmt: skip
        calibrate([run])


def test_recordings_of_unlike_devices_are_not_mixed(tmp_path):
    runs = [small_run(tmp_path / n, device=n) for n in ("cpu", "h200")]

    with pytest.raises(SettingsError, match=r"different devices \(cpu, h200\)"):
        calibrate(runs)


def test_a_device_that_is_no_preset_needs_a_base(tmp_path):
    run = small_run(tmp_path / "r", device="Abacus 9000")

    with pytest.raises(
        SettingsError, match=r"\(Abacus 9000\) is no preset. Give --base-device"
    ):
        calibrate([run])
    assert calibrate([run], base_device="cpu", bootstraps=0).device.name == "cpu-calibrated"


def test_the_same_recording_twice_is_refused(tmp_path):
    runs = [small_run(tmp_path / n) for n in ("a", "b")]

    with pytest.raises(SettingsError, match="b holds the same steps as a"):
        calibrate(runs)


def test_no_recording_is_a_sentence():
    with pytest.raises(SettingsError, match="no recording was given"):
        calibrate([])


def test_only_an_older_device_file_is_replaced_and_only_when_asked(calibration, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens\n")
    device = calibration.write(tmp_path / "device.json")

    before = device.read_bytes()
    with pytest.raises(SettingsError, match=r"device.json: a device file of that name exists.*--overwrite"):  # fmt: skip
        calibration.write(device)
    assert device.read_bytes() == before
    assert calibration.write(device, overwrite=True) == device
    with pytest.raises(SettingsError, match=r"trace.csv: a file of that name exists and is no device file"):  # fmt: skip
        calibration.write(trace, overwrite=True)
    with pytest.raises(SettingsError, match="this is a directory"):
        check_out(tmp_path)
    with pytest.raises(SettingsError, match="cannot write there"):
        calibration.write(tmp_path / "nowhere" / "d.json")


def test_samples_read_elsewhere_can_be_fitted_too(runs):
    sources = [read_source(p) for p in runs]

    c = calibrate_sources(sources, CPU, bootstraps=0)

    assert c.fitted["knee"][1:] == (None, None)
    assert c.device.linear_efficiency == pytest.approx(0.5, rel=0.05)


def test_the_base_is_the_device_that_ran_it_not_the_one_that_was_modelled(tmp_path):
    run = small_run(tmp_path / "r", device="h100-sxm", meta={"torch": {"device_name": "CPU"}})

    c = calibrate([run], bootstraps=0)

    assert c.base.name == "cpu"
    assert c.sources[0].machine == "CPU"
