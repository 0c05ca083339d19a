"""The fit of steps: a machine whose numbers are known has to be found again."""

import re
from dataclasses import replace

import numpy as np
import pytest

from engine.calibrate_errors import predict_steps
from engine.calibrate_fit import MAX_OVER_PEAK, bounded_nnls, fit_steps
from engine.calibrate_stages import check_stage, condition_number, outliers, spare_variety
from engine.calibrate_work import base_coefficients, make_features, predict
from engine.devices import load_device
from tests.calibrate_builders import CPU, MACHINE, make_setup, time_steps, work
from traces.errors import SettingsError


def fit(setup, steps, base=CPU, known=True):
    return fit_steps(make_features([(setup, steps)], base), base, host_known=known)


def errors(setup, steps, found, base=CPU):
    """Relative errors of what the fit predicts, against the true times."""
    f = make_features([(setup, steps)], base)
    true = predict_steps(MACHINE, setup, steps)
    return np.abs((predict(f, found.coefficients) + found.coefficients.step) / true - 1)


@pytest.mark.parametrize("device", ["cpu", "l40s"])  # the second has tiles, of queries too
def test_the_model_over_columns_is_the_cost_model_step_by_step(device):
    setup, rows, base = make_setup("gemma-3-12b"), work(30, 20, 30), load_device(device)
    steps = time_steps(setup, base, rows)

    columns = predict(make_features([(setup, steps)], base), base_coefficients(base))

    expected = predict_steps(base, setup, steps) - base.step_overhead_s
    np.testing.assert_allclose(columns, expected, rtol=1e-12)


def test_a_machine_is_found_again_within_the_noise_of_its_steps():
    setup = make_setup()
    steps = time_steps(setup, MACHINE, work(), noise=0.03)

    found = fit(setup, steps)

    error = errors(setup, steps, found)
    assert np.median(error) < 0.01
    assert error.max() < 0.04
    c = found.coefficients
    assert 1 / c.linear == pytest.approx(0.5, rel=0.03)
    assert 1 / c.context == pytest.approx(0.12, rel=0.03)
    assert c.step == pytest.approx(2e-3, rel=0.01)
    assert found.merged == ()


def test_without_device_time_host_and_layers_keep_the_ratio_of_the_base():
    setup = make_setup()
    steps = time_steps(setup, MACHINE, work(), noise=0.02, known=False)

    found = fit(setup, steps, known=False)

    assert found.merged == ("step", "layer")
    ratio = found.coefficients.layer / found.coefficients.step
    assert ratio == pytest.approx(CPU.layer_overhead_s / CPU.step_overhead_s)
    assert np.median(errors(setup, steps, found)) < 0.01


def test_two_models_of_unlike_depth_tell_host_time_from_layers():
    shapes = [make_setup(), make_setup("llama-3.2-1b")]
    steps = [time_steps(s, MACHINE, work(), noise=0.001, known=False) for s in shapes]
    f = make_features(list(zip(shapes, steps, strict=True)), CPU)

    found = fit_steps(f, CPU, host_known=False)

    assert found.merged == ()
    assert found.coefficients.layer == pytest.approx(4e-4, rel=0.15)


def test_a_calibration_on_one_model_predicts_another():
    setup, other = make_setup(), make_setup("llama-3.2-1b")
    found = fit(setup, time_steps(setup, MACHINE, work(), noise=0.02))

    error = errors(other, time_steps(other, MACHINE, work(seed=5)), found)

    assert np.median(error) < 0.02


def test_a_gpu_with_a_sharp_knee_is_found_again_too():
    base = load_device("h200")
    true = replace(base, linear_efficiency=0.6, weight_read_efficiency=0.7, knee=2.0, decode_attention_efficiency=0.6)  # fmt: skip
    setup = make_setup("llama-3.1-8b", kv_dtype="auto", weight_dtype="auto")
    rows = work(400, 100, 150, batch=256, chunk=8192, context=32_000)

    found = fit(setup, time_steps(setup, true, rows, noise=0.02), base)

    c = found.coefficients
    assert 1 / c.linear == pytest.approx(0.6, rel=0.02)
    assert 1 / c.context == pytest.approx(0.6, rel=0.02)
    assert 1 / (c.linear * c.ratio) == pytest.approx(0.7, rel=0.05)


def test_padded_batches_are_fitted_as_the_device_ran_them():
    setup, rows = make_setup(), work(300, 60, 0, batch=8)
    full = rows.copy()
    decode = rows[:, 2] == 0
    full[decode, 0] = full[decode, 5] = 2.0 ** np.ceil(np.log2(rows[decode, 0]))
    steps = replace(
        time_steps(setup, MACHINE, full, noise=0.01),
        num_decode=rows[:, 0],
        logit_rows=rows[:, 5],
    )  # num_padded stays the full one

    found = fit(setup, steps)

    np.testing.assert_allclose(predict(make_features([(setup, steps)], CPU), found.coefficients), steps.compute_s, rtol=0.06)  # fmt: skip
    seen = make_features([(setup, steps)], CPU).tokens[decode]
    assert set(seen) == {1.0, 2.0, 4.0, 8.0}
    decided = make_features([(setup, steps)], CPU, padded=False).tokens[decode]
    assert set(decided) == set(range(1, 9))


def test_no_coefficient_is_negative_however_wild_the_times_are():
    setup = make_setup()
    steps = time_steps(setup, MACHINE, work(), noise=1.5)

    c = fit(setup, steps).coefficients

    assert min(c.step, c.layer, c.decode_layer, c.prefill_layer) >= 0
    assert min(c.linear, c.context, c.pairs) >= 1 / MAX_OVER_PEAK


def test_bounded_least_squares_stops_at_its_bounds():
    columns = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])

    x = bounded_nnls(columns, np.array([-3.0, 1.0, 2.0]), np.array([0.25, 0.0]))

    np.testing.assert_allclose(x, [0.25, 1.0])


def test_steps_that_their_neighbours_contradict_are_dropped_and_change_nothing():
    setup = make_setup()
    clean = time_steps(setup, MACHINE, work(), noise=0.02)
    spikes = np.arange(0, len(clean), 50)
    compute = clean.compute_s.copy()
    compute[spikes] *= 6
    dirty = replace(clean, compute_s=compute, busy_s=clean.busy_s + compute - clean.compute_s)

    found = fit(setup, dirty)

    assert found.outlier[spikes].all()
    assert found.outlier.sum() <= len(spikes) + 6
    assert np.median(errors(setup, clean, found)) < 0.01


def test_a_regime_that_the_model_misses_is_no_outlier():
    random = np.random.default_rng(0)
    ratio = 1 + 0.01 * random.standard_normal(400)
    ratio[:100] *= 1.5  # a hundred steps in a row that the model makes too cheap
    ratio[300] = 2.0
    kind = np.zeros(400, int)

    out = outliers(ratio, kind, np.zeros(400, int))

    assert out[300]
    assert out.sum() <= 3


def test_few_steps_of_a_kind_leave_its_numbers_at_the_base_and_say_so():
    setup = make_setup()
    steps = time_steps(setup, MACHINE, work(decode=200, prefill=8, mixed=0), noise=0.02)

    found = fit(setup, steps)

    assert found.coefficients.linear == pytest.approx(1 / CPU.linear_efficiency)
    assert found.coefficients.pairs == pytest.approx(1 / CPU.prefill_attention_efficiency)
    assert found.kept["linear"].startswith("only 8 steps of its kind (prefill), at least 15")
    assert "context" not in found.kept


def test_weight_reads_stay_the_bases_where_nothing_decodes():
    setup = make_setup()
    steps = time_steps(setup, MACHINE, work(decode=0, prefill=120, mixed=0), noise=0.02)

    found = fit(setup, steps)

    c = found.coefficients
    assert 1 / (c.linear * c.ratio) == pytest.approx(CPU.weight_read_efficiency, rel=1e-3)
    assert 1 / c.linear == pytest.approx(0.5, rel=0.05)
    assert "0 steps of its kind (decode)" in found.kept["ratio"]
    assert found.kept["decode_layer"] == "no such steps"


def test_too_few_steps_of_every_kind_are_refused_with_the_counts_needed():
    setup = make_setup()
    steps = time_steps(
        setup, MACHINE, work(decode=14, prefill=9, mixed=0)
    )  # few of the 9 are large

    with pytest.raises(SettingsError, match=r"14 clean decode steps and \d prefill steps .*at least 15 of one of them.*about 300 and 60"):  # fmt: skip
        fit(setup, steps)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 8.0, 5: 8.0}, r"cannot tell a fixed part from the batch .*--max-num-seqs 1, 4, 16"),
        ({1: None}, r"cannot tell the batch from the contexts .*few long requests and one with many short"),
    ],
)  # fmt: skip
def test_decode_steps_that_cannot_be_told_apart_are_refused_with_the_workload_that_would(
    change, message
):
    setup, rows = make_setup(), work(300, 0, 0)
    for column, value in change.items():
        rows[:, column] = rows[:, 0] * 500 if value is None else value
    steps = time_steps(setup, MACHINE, rows, noise=0.0)

    with pytest.raises(SettingsError, match=message):
        fit(setup, steps)


def test_prefill_steps_of_one_length_keep_the_base_and_name_the_workload_that_would_help():
    setup, rows = make_setup(), work(100, 60, 0)
    prefill = rows[:, 2] > 0
    rows[prefill] = (0, 0, 1, 256, 256 * 128, 1)

    found = fit(setup, time_steps(setup, MACHINE, rows))

    assert re.search("60 prefill steps cannot tell .*prompt", found.ill["prefill"])
    assert found.kept["pairs"].startswith("the 60 prefill steps cannot tell")
    assert found.coefficients.pairs == 1 / CPU.prefill_attention_efficiency
    assert found.coefficients.linear == 1 / CPU.linear_efficiency
    assert 1 / found.coefficients.context == pytest.approx(0.12, rel=0.1)


def test_the_one_step_that_varies_a_stage_is_no_outlier():
    setup, rows = make_setup(), work(100, 60, 0)
    prefill = np.flatnonzero(rows[:, 2] > 0)
    rows[prefill] = (0, 0, 1, 512, 512 * 256, 1)
    rows[prefill, 4] += 512.0 * 25 * np.arange(60)  # chunks of longer and longer prompts
    rows[prefill[30]] = (0, 0, 1, 300, 300 * 150, 1)
    f, base = make_features([(setup, time_steps(setup, MACHINE, rows))], CPU), base_coefficients(CPU)  # fmt: skip
    one, others = np.ones((2, 160), bool)
    one[prefill[[20, 30]]] = False
    others[prefill[[20, 21]]] = False

    assert check_stage(f.take(one & (f.kind == 1)), base, "prefill")[0] > 1e3
    assert spare_variety(f, base, one)[prefill].all()
    assert spare_variety(f, base, others).tolist() == others.tolist()


def test_stages_that_are_all_ill_are_refused_with_all_that_is_missing():
    setup, rows = make_setup(), work(100, 60, 0)
    decode = rows[:, 2] == 0
    rows[decode] = (8, 8000, 0, 0, 0.0, 8)
    rows[~decode] = (0, 0, 1, 256, 256 * 128, 1)

    with pytest.raises(SettingsError, match=r"100 decode steps cannot tell.*The 60 prefill steps cannot"):  # fmt: skip
        fit(setup, time_steps(setup, MACHINE, rows))


def test_the_condition_number_does_not_depend_on_units():
    columns = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 5.0]])

    plain, scaled = condition_number(columns)[0], condition_number(columns * [1e9, 1e-9])[0]

    assert plain == pytest.approx(scaled)
    assert condition_number(np.ones((3, 2)))[0] > 1e12
