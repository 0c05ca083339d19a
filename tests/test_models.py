"""Shapes, KV bytes and FLOPs of models, from data files and from Hugging Face configs."""

import json
import subprocess
import sys

import numpy as np
import pytest

from engine.hf_config import layer_windows
from engine.models import (
    known_models,
    kv_bytes_per_block,
    kv_bytes_per_token,
    load_model,
)
from traces.errors import SettingsError

KIB = 1024

# Published shapes: nominal KiB a token, KiB a token averaged over 32k with windows, GFLOP a token
# without the LM head, parameters in billions.
PUBLISHED = {
    "llama-3.1-8b": (128, 128, 14.0, 8.03),
    "llama-3.1-70b": (320, 320, 136.9, 70.6),
    "qwen3-8b": (144, 144, 13.9, 8.19),
    "qwen3-32b": (256, 256, 62.4, 32.8),
    "qwen3-30b-a3b": (96, 96, 5.5, 30.5),
    "mistral-7b-v0.3": (128, 128, 14.0, 7.25),
    "llama-2-7b": (512, 512, 13.0, 6.74),
    "llama-2-13b": (800, 800, 25.4, 13.0),
    "opt-13b": (800, 800, 25.2, 12.9),
    "deepseek-v3": (68.6, 68.6, 73.0, 671),
    "gpt-oss-120b": (72, 36.1, 9.0, 117),
    "gemma-3-27b": (496, 93, 51.2, 27.0),
    "gemma-3-12b": (384, 74, 21.5, 11.8),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_kv_bytes_flops_and_parameters_are_the_published_ones(name):
    nominal_kib, windowed_kib, gflop, billions = PUBLISHED[name]

    model = load_model(name)

    assert kv_bytes_per_token(model) / KIB == pytest.approx(nominal_kib, rel=0.002)
    windowed = kv_bytes_per_token(model, context_tokens=32768)
    assert windowed / KIB == pytest.approx(windowed_kib, rel=0.005)
    assert 2 * model.active_params / 1e9 == pytest.approx(gflop, rel=0.025)
    assert model.total_params / 1e9 == pytest.approx(billions, rel=0.01)


def test_every_data_file_loads_and_says_its_source():
    models = [load_model(n) for n in known_models()]

    assert len(models) >= 20
    assert all(m.source.startswith("[") for m in models)


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("llama-3.1-8b", 2.0),
        ("llama-3.1-70b", 5.0),
        ("llama-2-13b", 12.5),
        ("qwen3-30b-a3b", 1.5),
    ],
)
def test_a_block_of_16_tokens_holds_all_layers(name, mib):
    assert kv_bytes_per_block(load_model(name)) == mib * 2**20


def test_fp8_kv_halves_the_block():
    assert kv_bytes_per_block(load_model("llama-3.1-8b"), kv_dtype="fp8") == 2**20


def test_tensor_parallelism_splits_kv_heads_until_each_gpu_has_one():
    model = load_model("llama-3.1-70b")  # 64 heads, 8 KV heads

    per_gpu = [kv_bytes_per_token(model, tp=tp) / KIB for tp in (1, 4, 8, 16)]

    assert per_gpu == [320, 80, 40, 40]  # at 16 each head is kept twice


def test_the_latent_of_mla_is_copied_to_every_gpu():
    model = load_model("deepseek-v3")

    assert kv_bytes_per_token(model, tp=8) == kv_bytes_per_token(model) == 70272


def test_a_tp_that_does_not_divide_the_heads_is_refused_with_those_that_do():
    with pytest.raises(SettingsError, match=r"tp 3 .* Choose one of 1, 2, 4, 8, 16"):
        kv_bytes_per_token(load_model("llama-3.1-8b"), tp=3)


def test_experts_dominate_the_weights_of_a_moe_model():
    model = load_model("qwen3-30b-a3b")

    assert model.expert_params == 28_991_029_248  # 48 x 128 x 3 x 2048 x 768
    assert model.active_params < model.total_params / 10


def test_quantised_experts_of_gpt_oss_weigh_about_four_bits():
    model = load_model("gpt-oss-120b")

    assert model.weights_bytes() / 2**30 == pytest.approx(61, abs=1)
    assert model.weights_bytes(weight_dtype="bfloat16") / 2**30 == pytest.approx(217.5, abs=1)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("meta-llama/Llama-2-13b-chat-hf", "llama-2-13b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
    ],
)
def test_names_are_matched_as_people_write_them(spelling, name):
    assert load_model(spelling).name == name


def write_config(path, **keys):
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
    } | keys
    file = path / "config.json"
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return file


def test_a_config_json_gives_a_shape_and_its_folder_the_name(tmp_path):
    folder = tmp_path / "tiny-llama"
    folder.mkdir()

    model = load_model(write_config(folder, num_key_value_heads=2))

    assert model.name == "tiny-llama"
    assert (model.num_layers, model.head_dim, model.num_kv_heads) == (2, 16, 2)
    assert (
        kv_bytes_per_token(model) == 2 * 2 * 2 * 16 * 2
    )  # K and V, layers, heads, width, bytes
    assert model.total_params == 2 * 64 * 1000 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)


def test_a_folder_means_the_config_in_it(tmp_path):
    write_config(tmp_path)

    assert load_model(tmp_path).num_layers == 2


def test_without_kv_heads_a_config_is_multi_head(tmp_path):
    assert load_model(write_config(tmp_path)).num_kv_heads == 4


def test_falcon_shares_one_kv_head_and_has_two_mlp_matrices(tmp_path):
    file = write_config(tmp_path, model_type="falcon", multi_query=True, intermediate_size=None)

    model = load_model(file)

    assert (model.num_kv_heads, model.ffn, model.gated_mlp) == (1, 256, False)


def test_layer_types_say_which_layers_have_a_window(tmp_path):
    types = ["sliding_attention", "full_attention"]
    file = write_config(tmp_path, model_type="gpt_oss", sliding_window=8, layer_types=types)

    model = load_model(file)

    assert (model.num_window_layers, model.window_tokens) == (1, 8)
    assert kv_bytes_per_token(model, context_tokens=16) == 0.75 * kv_bytes_per_token(model)


def test_qwen_ignores_its_window_unless_it_is_switched_on(tmp_path):
    off = write_config(tmp_path, model_type="qwen2", sliding_window=8, use_sliding_window=False)
    assert load_model(off).num_window_layers == 0

    on = write_config(
        tmp_path,
        model_type="qwen2",
        sliding_window=8,
        use_sliding_window=True,
        max_window_layers=1,
    )
    assert load_model(on).num_window_layers == 1


def test_the_text_model_of_a_multimodal_config_is_read(tmp_path):
    text = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 12,
        "hidden_size": 64,
        "intermediate_size": 128,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gemma3", "text_config": text}))

    model = load_model(file)

    assert (model.num_layers, model.num_window_layers) == (12, 10)  # every sixth is global
    assert (model.num_heads, model.head_dim, model.tied_embeddings) == (8, 256, True)


def test_mixed_dense_and_moe_layers_are_counted(tmp_path):
    file = write_config(
        tmp_path, model_type="qwen3_moe", num_hidden_layers=4, num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=32, decoder_sparse_step=2, mlp_only_layers=[3],
    )  # fmt: skip

    model = load_model(file)

    assert model.num_moe_layers == 1  # layers 1 and 3 would route, 3 is excepted


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}}, "int8"),
    ],
)  # fmt: skip
def test_quantisation_sets_the_weight_type(tmp_path, quantization, expected):
    file = write_config(tmp_path, quantization_config=quantization)

    assert load_model(file).weight_dtype == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"hidden_size": None},
            "config.json: these keys are missing: hidden_size or n_embd or d_model",
        ),
        (
            {"model_type": "mamba"},
            "config.json: model_type 'mamba' is not supported. Supported: llama, ",
        ),
        ({"model_type": None}, "config.json: the key model_type is missing"),
        (
            {"model_type": "deepseek_v3"},
            "config.json: these keys of latent attention are missing: kv_lora_rank",
        ),
        (
            {"num_hidden_layers": -3},
            "config.json, num_hidden_layers: -3 is not a positive whole number",
        ),
        (
            {"num_key_value_heads": "eight"},
            "config.json, num_key_value_heads: 'eight' is not a positive",
        ),
        (
            {"quantization_config": {"quant_method": "exl2", "bits": 3}},
            "quantization_config: quant_method 'exl2'",
        ),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [1]}}, "config_groups of quantization_config: [1] does not map"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 5}}}}, "does not map names to objects with weights"),
        ({"quantization_config": {"quant_method": "awq", "bits": [4]}}, "with [4] bits is not known"),
        ({"num_hidden_layers": 1_000_000_000}, "config.json: 1,000,000,000 layers are more than the 10,000"),
        ({"num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": 5}, "mlp_only_layers: 5 is no list"),
        (
            {"sliding_window": 4, "layer_types": ["full_attention"]},
            "layer_types: 1 entries for 2 layers",
        ),
        ({"sliding_window": 4, "layer_types": 3}, "layer_types: 3 is no list"),
        ({"sliding_window": 4, "layer_types": [[], 1]}, "of kinds ['1', '[]']"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_used_says_what_is_wrong(tmp_path, keys, message):
    with pytest.raises(SettingsError) as e:
        load_model(write_config(tmp_path, **keys))
    assert message in str(e.value)


def test_a_file_that_is_no_json_is_named(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("layers: 32")

    with pytest.raises(SettingsError, match=r"config.json: this is not JSON"):
        load_model(file)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        SettingsError, match=r"'llama-9' is not known.*llama-3.1-8b, .*qwen3-8b"
    ):
        load_model("llama-9")


def test_smollm2_is_known_by_its_short_name():
    assert (
        load_model("smollm2").name == load_model("SmolLM2-135M-Instruct").name == "smollm2-135m"
    )


def test_a_model_in_32_or_64_bits_has_larger_blocks():
    model = load_model("llama-3.1-8b")

    mib = [kv_bytes_per_block(model, kv_dtype=t) / 2**20 for t in ("float32", "float64")]

    assert mib == [4.0, 8.0]
    assert model.weights_bytes(weight_dtype="float64") > 3.5 * model.weights_bytes()


def test_null_and_absent_keys_of_a_config_differ_where_a_family_has_a_default(tmp_path):
    absent = load_model(write_config(tmp_path, model_type="mistral", num_attention_heads=16))
    assert (absent.num_kv_heads, absent.num_window_layers) == (8, 2)

    file = write_config(tmp_path, model_type="mistral")
    keys = {"num_key_value_heads": None, "sliding_window": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))
    null = load_model(file)
    assert (null.num_kv_heads, null.num_window_layers) == (4, 0)


def test_layers_with_a_window_are_told_one_by_one(tmp_path):
    keys = {
        "model_type": "qwen2",
        "sliding_window": 8,
        "use_sliding_window": True,
        "max_window_layers": 1,
        "num_hidden_layers": 3,
    }
    config = json.loads(write_config(tmp_path, **keys).read_text())

    assert layer_windows(config, "config.json") == (0, 8, 8)


def test_the_header_of_a_gguf_file_gives_the_shape(tmp_path):
    gguf = pytest.importorskip("gguf", reason="only the test writes with it")
    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((256, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model = load_model(file)

    assert (model.name, model.source) == ("tiny", "read from tiny.gguf")
    assert (model.num_layers, model.num_kv_heads, model.head_dim, model.ffn) == (2, 2, 8, 48)
    assert (model.vocab, model.tied_embeddings, model.max_model_len) == (256, True, 512)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.gguf", "the model file gone.gguf does not exist"),
        ("gone/config.json", "the model file config.json does not exist"),
        ("a/b/gone", "the model directory gone does not exist"),
        ("empty", "the directory empty holds no config.json"),
        (
            "cut.gguf",
            "cut.gguf, metadata key 1 of 1099511627776: the file of 30 bytes ends inside this",
        ),
    ],
)
def test_a_model_path_that_leads_nowhere_says_where(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0" + (2**40).to_bytes(8, "little") * 2 + b"\0" * 6)  # fmt: skip

    with pytest.raises(SettingsError) as e:
        load_model(tmp_path / name)

    assert message in str(e.value)


def test_sizing_a_model_imports_no_torch_and_no_gguf():
    code = "import sys, engine.models as m; m.load_model('qwen3-8b'); print({'torch', 'gguf'} & set(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"
