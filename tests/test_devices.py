"""Device presets and device files."""

import json

import pytest

from engine.cost_model import make_cost_params, step_time_s
from engine.devices import VALUE_NAMES, known_devices, load_device
from engine.models import load_model
from traces.errors import SettingsError

# bf16 TFLOP/s (CPU: fp32), TB/s of device memory, GB/s from the host.
PUBLISHED = {
    "a100-80": (312, 2.04, 24.8),
    "a100-40": (312, 1.56, 12.5),
    "h100-sxm": (989, 3.35, 53),
    "h100-pcie": (756, 2.0, 53),
    "h200": (989, 4.8, 53),
    "b200": (2250, 7.7, 53),
    "l4": (121, 0.30, 24.8),
    "l40s": (362, 0.864, 24.8),
    "a10": (125, 0.60, 24.8),
    "rtx-4090": (165, 1.01, 24.8),
    "mi300x": (1307, 5.3, 50),
    "gh200": (989, 4.0, 377),
    "rtx-pro-6000": (504, 1.79, 53),
    "cpu": (0.15, 0.02, 6),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_peaks_are_the_published_ones(name):
    tflops, terabytes, link = PUBLISHED[name]

    d = load_device(name)

    assert d.peak_flops / 1e12 == pytest.approx(tflops, rel=0.003)
    assert d.memory_bytes_per_s / 1e12 == pytest.approx(terabytes, rel=0.004)
    assert d.link_in_bytes_per_s / 1e9 == pytest.approx(link)


def test_presets_are_exactly_the_published_devices():
    assert set(known_devices()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_number_says_where_it_comes_from(name):
    d = load_device(name)

    assert set(d.sources) == set(VALUE_NAMES)
    assert all(len(s) > 10 for s in d.sources.values())


def test_both_directions_at_once_halve_the_inbound_link_of_gen_4():
    gen4, gen5, c2c = load_device("a100-80"), load_device("h100-sxm"), load_device("gh200")

    assert (gen4.contention_in, gen5.contention_in, c2c.contention_in) == (0.45, 0.8, 1.0)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("H100", "h100-sxm"), ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("A100-SXM4-80GB", "a100-80"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("RTX PRO 6000 Blackwell", "rtx-pro-6000")],
)  # fmt: skip
def test_names_are_matched_as_drivers_and_people_write_them(spelling, name):
    assert load_device(spelling).name == name


def test_an_unknown_device_lists_the_presets():
    with pytest.raises(SettingsError, match=r"'tpu' is not known.*a100-80, .*rtx-4090"):
        load_device("tpu")


def test_the_nearest_tp_gives_the_all_reduce():
    d = load_device("l40s")

    assert [d.allreduce_at(tp).bytes_per_s / 1e9 for tp in (2, 4, 8, 16)] == [20, 5.5, 1.3, 1.3]


def write_device(path, values, **rest):
    file = path / "mine.json"
    file.write_text(json.dumps({"name": "mine", "values": values} | rest))
    return file


def test_a_device_file_changes_what_it_names_and_keeps_its_base(tmp_path):
    file = write_device(tmp_path, {"knee": [3.0, "measured here"]}, base="h100-sxm")

    d = load_device(file)

    assert (d.name, d.knee, d.peak_flops) == ("mine", 3.0, 989e12)
    assert d.sources["knee"] == "measured here"


def test_a_device_file_from_before_tiles_stands_without_them(tmp_path):
    h100 = load_device("h100-sxm")
    later = ("linear_tile_tokens", "mixed_decode_rows")
    values = {n: [getattr(h100, n), "x"] for n in VALUE_NAMES if n not in later}

    d = load_device(write_device(tmp_path, values))

    assert (d.linear_tile_tokens, d.mixed_decode_rows) == (1.0, 1.0)
    assert d.memory_bytes == h100.memory_bytes


@pytest.mark.parametrize(
    ("values", "rest", "message"),
    [
        ({"speed": [1, "x"]}, {}, "mine.json: unknown values speed. Known: peak_flops"),
        ({"knee": 2.0}, {"base": "h200"}, "mine.json, knee: 2.0 is not a pair"),
        ({"knee": [0.5, "x"]}, {"base": "h200"}, "mine.json, knee: 0.5 is out of range. It must be 1 or more"),
        ({"linear_tile_tokens": [0, "x"]}, {"base": "h200"}, "linear_tile_tokens: 0 is out of range. It must be 1 or more"),
        ({"linear_efficiency": [1.5, "x"]}, {"base": "h200"}, "linear_efficiency: 1.5 is out of range. It must be between 0 and 1"),
        ({"peak_flops": ["fast", "x"]}, {"base": "h200"}, "peak_flops: 'fast' is out of range"),
        ({"allreduce": [[], "x"]}, {"base": "h200"}, "allreduce: [] needs at least one row"),
        ({"allreduce": [[[2, 1e-6]], "x"]}, {"base": "h200"}, "allreduce: [[2, 1e-06]] is not a list of"),
        ({"knee": [2.0, "x"]}, {"base": "h900"}, "mine.json, base: 'h900' is not a preset"),
        ({"knee": [2.0, "x"]}, {}, "mine.json: values are missing: peak_flops"),
    ],
)  # fmt: skip
def test_a_device_file_that_cannot_be_used_says_what_is_wrong(tmp_path, values, rest, message):
    with pytest.raises(SettingsError) as e:
        load_device(write_device(tmp_path, values, **rest))
    assert message in str(e.value)


def test_weights_of_32_bits_widen_head_embeddings_and_activations_and_kv_its_own_way():
    model, cpu = load_model("smollm2-135m"), load_device("cpu")

    half = make_cost_params(model, cpu)
    full = make_cost_params(model, cpu, weight_dtype="float32", kv_dtype="float32")

    for name in ("always_read_s", "head_read_s", "prefill_token_s", "context_read_s"):
        assert getattr(full, name) == pytest.approx(2 * getattr(half, name)), name
    assert full.kv_block_bytes == 2 * half.kv_block_bytes == 737_280
    assert full.token_compute_s == half.token_compute_s


def test_weights_in_32_bits_take_twice_the_memory():
    model = load_model("smollm2-135m")

    assert model.weights_bytes() / 1e6 == pytest.approx(269, abs=1)
    assert model.weights_bytes(weight_dtype="float32") / 1e6 == pytest.approx(538, abs=1)


def test_a_device_that_attends_request_by_request_pays_for_each_in_every_layer():
    model = load_model("smollm2-135m")
    batched = make_cost_params(model, load_device("h200"))
    singly = make_cost_params(
        model, load_device("h200"), overrides={"request_overhead_s": 1e-4}
    )

    def seconds(p, num_decode, num_chunks):
        return step_time_s(p, num_decode, 4000.0, 0.0, 64 * num_chunks, 0.0, 0.0, num_chunks, 4)

    for requests, extra_s in (((4, 0), 0.012), ((4, 2), 0.018), ((0, 1), 0.003)):
        assert seconds(singly, *requests) - seconds(batched, *requests) == pytest.approx(
            extra_s
        )
