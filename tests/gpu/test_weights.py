"""Weights: what a directory, a GGUF file or a seed gives, and what is said when they cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.gpu import weights
from engine.gpu.weights import load_model, resolve_device, resolve_dtype
from tests.gpu import tiny
from traces.errors import SettingsError

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def message_of(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(SettingsError) as e:
        call(*args, **kwargs)
    return str(e.value)


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_shards_give_the_weights_of_the_single_file(tmp_path: Path) -> None:
    whole = load_model(tiny.llama_dir(tmp_path / "one", "qwen3"))

    sharded = load_model(tiny.llama_dir(tmp_path / "three", "qwen3", shards=3))

    assert same_weights(whole, sharded)


def test_query_key_and_value_lie_in_one_matrix_in_that_order(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama3")
    tensors = load_file(directory / "model.safetensors")

    layer = load_model(directory).layers[1]

    parts = [tensors[f"model.layers.1.self_attn.{n}_proj.weight"] for n in "qkv"]
    assert torch.equal(layer.qkv, torch.cat(parts))
    up = tensors["model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(layer.gate_up[48:], up)


def test_a_checkpoint_without_the_prefix_and_with_old_buffers_is_read(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")
    expected = load_model(directory)
    tensors = load_file(directory / "model.safetensors")
    renamed = {name.removeprefix("model."): t for name, t in tensors.items()}
    renamed["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    save_file(renamed, directory / "model.safetensors")

    assert same_weights(load_model(directory), expected)


@pytest.mark.parametrize("family", ["llama2", "llama-biased", "smollm2", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_weights_and_the_config_of_the_directory(
    family: str, tmp_path: Path
) -> None:
    expected = load_model(tiny.llama_dir(tmp_path, family))

    model = load_model(tiny.gguf_file(tmp_path, family))

    assert same_weights(model, expected)
    ours, theirs = vars(model.config), vars(expected.config)
    assert ours.pop("rms_eps") == pytest.approx(theirs.pop("rms_eps"), rel=1e-6)
    assert ours == theirs


def test_quantised_blocks_are_dequantised(tmp_path: Path) -> None:
    exact = load_model(tiny.gguf_file(tmp_path / "plain", "llama2"))

    model = load_model(tiny.gguf_file(tmp_path, "llama2", quantise=Q8_0))

    largest = exact.layers[0].qkv.abs().max()
    error = (model.layers[0].qkv - exact.layers[0].qkv).abs().max()
    assert 0 < error < largest / 127  # eight bits a weight, one scale for 32


def test_rope_divisors_of_a_gguf_file_stretch_the_frequencies(tmp_path: Path) -> None:
    divisors = np.array([1, 1, 2, 8], np.float32)
    plain = load_model(tiny.gguf_file(tmp_path / "plain", "llama2"))

    model = load_model(
        tiny.gguf_file(tmp_path, "llama2", extra={"rope_freqs.weight": divisors})
    )

    ratio = plain.frequencies / model.frequencies
    assert ratio.tolist() == [1, 1, 2, 8]


@pytest.mark.parametrize("divisors", [[1, 2], 5, "ab"])
def test_divisors_are_not_read_from_a_config_json(divisors: Any, tmp_path: Path) -> None:
    """The key is no Hugging Face key; only GGUF files hold such a tensor."""
    rope = tiny.LLAMA3_ROPE | {"divisors": divisors}

    model = load_model(tiny.llama_dir(tmp_path, "llama3", rope_parameters=rope))

    assert model.config.rope.divisors == ()


def test_a_dtype_is_applied_while_reading(tmp_path: Path) -> None:
    model = load_model(tiny.llama_dir(tmp_path, "llama2"), dtype="bfloat16")

    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_auto_means_float32_on_a_cpu(tmp_path: Path) -> None:
    assert load_model(tiny.llama_dir(tmp_path, "llama2")).dtype == torch.float32


def test_one_seed_gives_one_set_of_random_weights(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "qwen3")
    (directory / "model.safetensors").unlink()

    models = [load_model(directory, random_seed=seed) for seed in (7, 7, 8)]

    assert same_weights(models[0], models[1])
    assert not torch.equal(models[0].embedding, models[2].embedding)
    assert models[0].layers[0].qkv.std().item() == pytest.approx(0.02, rel=0.1)
    assert models[0].norm.unique().tolist() == [1.0]


def test_a_known_name_with_a_seed_has_its_published_shape() -> None:
    model = load_model("HuggingFaceTB/SmolLM2-135M", random_seed=0, dtype="bfloat16")

    assert (model.config.num_layers, model.config.head_dim) == (30, 64)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008


@pytest.mark.parametrize(
    ("name", "billions", "theta"),
    [
        ("llama-2-7b", 6.738, 1e4),
        ("llama-3.1-8b", 8.030, 5e5),
        ("llama-3.1-70b", 70.554, 5e5),
        ("llama-3.2-1b", 1.236, 5e5),
        ("mistral-7b-v0.3", 7.248, 1e6),
        ("qwen2.5-7b", 7.616, 1e6),
        ("qwen2.5-72b", 72.706, 1e6),
        ("qwen3-8b", 8.191, 1e6),
        ("qwen3-32b", 32.762, 1e6),
        ("smollm2-135m", 0.1345, 1e5),
    ],
)
def test_presets_of_the_family_can_be_drawn_and_have_their_published_size(
    name: str, billions: float, theta: float
) -> None:
    from engine.gpu.model_config import model_config
    from engine.models import read_config

    found = read_config(name)
    config = model_config(found.keys, found.name, found.file)

    assert config.num_parameters / 1e9 == pytest.approx(billions, abs=6e-4)
    assert config.rope.theta == theta
    assert set(config.windows) == {0}


# What is wrong with a directory, and what is said.


def test_a_directory_without_config_says_so(tmp_path: Path) -> None:
    message = message_of(load_model, tmp_path)

    assert message.endswith(
        "holds no config.json. Give a Hugging Face model directory, with config.json, weights and tokenizer."
    )


def test_a_directory_of_gguf_files_points_to_the_file(tmp_path: Path) -> None:
    file = tiny.gguf_file(tmp_path, "llama2")

    assert f"Give the GGUF file itself, for example {file.name}" in message_of(
        load_model, tmp_path
    )


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    message = message_of(load_model, tmp_path / "gone")

    assert message.startswith("the model directory gone does not exist. Give the path of")


def test_an_unknown_name_lists_the_known_ones() -> None:
    message = message_of(load_model, "llama-9")

    assert "the model 'llama-9' is not known" in message
    assert "llama-3.1-8b" in message


def test_a_preset_without_a_seed_has_no_weights() -> None:
    message = message_of(load_model, "llama-3.1-8b")

    assert message.startswith("the weights of llama-3.1-8b do not come with the project")
    assert "--random-weights" in message


def test_missing_weight_files_are_named(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")
    (directory / "model.safetensors").unlink()
    assert "weights are read from *.safetensors, but none is there" in message_of(
        load_model, directory
    )

    (directory / "pytorch_model.bin").touch()
    assert "pytorch_model.bin, which is a pickle" in message_of(load_model, directory)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2", shards=3)
    (directory / "model-00002-of-00003.safetensors").unlink()

    message = message_of(load_model, directory)

    assert "1 of the 3 weight files" in message
    assert "model-00002-of-00003.safetensors" in message


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../b"}}'])  # fmt: skip
def test_a_damaged_index_is_named(text: str, tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2", shards=2)
    (directory / "model.safetensors.index.json").write_text(text)

    assert message_of(load_model, directory).startswith("model.safetensors.index.json: ")


@pytest.mark.parametrize("keep", [0, 5, 100, 20_000, -1])
def test_a_cut_off_safetensors_file_is_named(keep: int, tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])

    message = message_of(load_model, directory)

    assert message.startswith("model.safetensors: the file is cut off or damaged (")
    assert message.endswith("Download it again.")


def test_a_safetensors_file_of_other_bytes_is_named(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")
    (directory / "model.safetensors").write_bytes(b"\x10" + b"\x00" * 7 + b"not json, at all")

    assert "cut off or damaged" in message_of(load_model, directory)


def rewrite(directory: Path, change: Any) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def test_missing_tensors_are_counted_and_named(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")
    rewrite(directory, lambda t: [t.pop(f"model.layers.1.mlp.{n}_proj.weight") for n in ("up", "down")])  # fmt: skip

    message = message_of(load_model, directory)

    assert "2 tensors are missing, among them layers.1.mlp.down_proj.weight, layers.1.mlp.up_proj.weight" in message  # fmt: skip


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")
    rewrite(directory, lambda t: t.update({"model.norm.weight": torch.ones(31)}))

    assert "tensor 'model.norm.weight': its shape is [31], config.json asks for [32]" in message_of(load_model, directory)  # fmt: skip


def test_a_tensor_that_config_does_not_know_is_refused(tmp_path: Path) -> None:
    """A bias that is dropped would give wrong text without a word."""
    directory = tiny.llama_dir(tmp_path, "llama2")
    name = "model.layers.0.self_attn.q_proj.bias"
    rewrite(directory, lambda t: t.update({name: torch.ones(32)}))

    assert f"tensor {name!r}: it has no place in the model of config.json" in message_of(
        load_model, directory
    )


def test_eight_bit_tensors_are_refused(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(directory, lambda t: t.update({name: t[name].to(torch.float8_e4m3fn)}))

    assert "its type is F8_E4M3, which is not read. Supported: F64, F32, F16, BF16" in message_of(load_model, directory)  # fmt: skip


def test_a_quantised_checkpoint_is_refused_with_its_method(tmp_path: Path) -> None:
    directory = tiny.llama_dir(
        tmp_path, "llama2", quantization_config={"quant_method": "awq", "bits": 4}
    )

    message = message_of(load_model, directory)

    assert "is quantised (awq), which the torch engine cannot read" in message
    assert "a GGUF file, which is dequantised" in message


def test_an_unknown_architecture_lists_what_runs(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")
    (directory / "config.json").write_text(json.dumps({"model_type": "mamba"}))

    assert "model_type 'mamba' is not known. It runs Llama 2 and 3" in message_of(
        load_model, directory
    )


# Device, type and memory.


def test_a_type_that_torch_models_do_not_have_lists_those_they_have() -> None:
    for dtype in ("int4", torch.int8):
        message = message_of(resolve_dtype, dtype, torch.device("cpu"))
        assert "is not supported by the torch engine. Choose one of auto, float64, float32, bfloat16, float16" in message  # fmt: skip


def test_an_old_gpu_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    gpu = torch.device("cuda")

    message = message_of(resolve_dtype, "bfloat16", gpu)

    assert message.startswith("Tesla T4 has no bfloat16")
    assert resolve_dtype("auto", gpu) == torch.float16


def test_devices_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "Choose --torch-device cpu" in message_of(resolve_device, "cuda")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "cuda:5 does not exist: there are 2" in message_of(resolve_device, "cuda:5")
    assert "'gpu' is not known. Choose cpu or cuda" in message_of(resolve_device, "gpu")
    assert "meta is not supported. Choose cpu or cuda" in message_of(resolve_device, "meta")


def test_weights_that_do_not_fit_say_how_much_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "available_host_bytes", lambda: 2**30)

    message = message_of(load_model, "llama-3.1-8b", random_seed=0, dtype="float32")

    assert message == (
        "the weights of llama-3.1-8b take 29.92 GiB as float32 and do not fit on cpu, which has 1.00 GiB free. "
        "Choose a smaller model, a 16-bit --dtype, or free memory."
    )


def test_memory_that_runs_out_while_loading_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")

    def no_room(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(weights, "fill_from_safetensors", no_room)

    message = message_of(load_model, directory)
    assert "do not fit on cpu. Choose a smaller model" in message


def test_a_cpu_allocator_that_gives_up_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")

    def refuse(*_: Any, **__: Any) -> None:  # the words of torch's CPU allocator
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")

    monkeypatch.setattr(weights, "CausalLM", refuse)

    assert "the weights of tiny-llama2 take 0.00 GiB as float32 and do not fit" in message_of(load_model, directory)  # fmt: skip


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed: int, tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama2")

    assert "from 0 to 2**63 - 1" in message_of(load_model, directory, random_seed=seed)
