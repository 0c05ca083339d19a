"""GGUF files: what their header says, and what is said when they are damaged or not supported."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.gguf_config import gguf_config
from engine.gguf_header import read_gguf_header
from engine.gpu.weights import load_model
from tests.gpu import tiny
from traces.errors import SettingsError


def message_of(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(SettingsError) as e:
        call(*args, **kwargs)
    return str(e.value)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.gguf_file(tmp_path_factory.mktemp("gguf"), "llama2")


@pytest.fixture
def file(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path))


def test_the_header_is_what_ggufs_own_reader_finds(file: Path) -> None:
    header = read_gguf_header(file)

    reader = gguf.GGUFReader(file)
    fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    ours = {k: list(v) if isinstance(v, np.ndarray) else v for k, v in header.metadata.items()}
    assert ours == fields
    tensors = [(t.name, [int(n) for n in t.shape][::-1], t.data_offset) for t in reader.tensors]
    assert [(t.name, list(t.shape), t.offset) for t in header.tensors.values()] == tensors


def test_metadata_become_the_keys_of_a_config_json(file: Path) -> None:
    config = gguf_config(read_gguf_header(file))

    assert config.pop("rms_norm_eps") == pytest.approx(1e-5, rel=1e-6)
    assert config == {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "vocab_size": 256,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "_source": "read from tiny-llama2.gguf",
    }


def test_a_file_cut_off_anywhere_says_so_and_never_more_than_that(file: Path) -> None:
    whole = file.read_bytes()
    header = read_gguf_header(file)
    first = min(t.offset for t in header.tensors.values())
    cuts = [*range(0, first, 97), *range(first, len(whole) - 1, 4001)]

    for cut in cuts:
        file.write_bytes(whole[:cut])
        message = message_of(load_model, file)
        assert message.startswith("tiny-llama2.gguf"), cut
        if cut >= 24:
            assert "bytes ends " in message, (cut, message)


def test_a_damaged_header_never_gives_a_traceback(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    first = min(t.offset for t in read_gguf_header(file).tensors.values())
    random = np.random.default_rng(3)

    refused = 0
    for place in random.integers(4, first, 150):
        damaged = whole.copy()
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        try:
            load_model(file)
        except SettingsError:
            refused += 1

    assert refused > 20  # the others only changed a letter of a token


@pytest.mark.parametrize(
    ("version", "words"),
    [(1, "GGUF version 1 cannot be read. Supported: 2 and 3."), (3 << 24, "GGUF big-endian files")],
)  # fmt: skip
def test_other_versions_are_refused(version: int, words: str, file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + struct.pack("<I", version) + whole[8:])

    assert words in message_of(load_model, file)


def test_a_file_that_is_no_gguf_says_so(file: Path) -> None:
    file.write_bytes(b"PK\x03\x04" + b"\x00" * 100)

    assert message_of(load_model, file) == (
        "tiny-llama2.gguf: this is no GGUF file (it does not begin with GGUF). Download or convert the file again."
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    message = message_of(load_model, tmp_path / "gone.gguf")

    assert message == "the model file gone.gguf does not exist. Check the path."


def test_missing_tensors_are_counted_and_named(tmp_path: Path) -> None:
    file = tiny.gguf_file(tmp_path, "llama2", drop=("blk.1.ffn_up.weight", "output_norm.weight"))  # fmt: skip

    message = message_of(load_model, file)

    assert "2 tensors are missing, among them blk.1.ffn_up.weight, output_norm.weight" in message  # fmt: skip


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    file = tiny.gguf_file(tmp_path, "llama2", extra=extra)

    assert "tensor 'blk.0.attn_sinks.weight': it has no place" in message_of(load_model, file)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    extra = {"output_norm.weight": np.ones(31, np.float32)}
    file = tiny.gguf_file(tmp_path, "llama2", extra=extra)

    assert "tensor 'output_norm.weight': its shape is [31], the metadata asks for [32]" in message_of(load_model, file)  # fmt: skip


def test_rope_divisors_that_are_not_positive_are_refused(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.array([1, 0, 1, 1], np.float32)}
    file = tiny.gguf_file(tmp_path, "llama2", extra=extra)

    assert "tensor 'rope_freqs.weight': its values are not all positive" in message_of(load_model, file)  # fmt: skip


@pytest.mark.parametrize(
    ("type_id", "words"),
    [(9999, "its type 9999 is not known to the installed gguf package"),
     (28, "tensors of type F64 cannot be dequantised")],
)  # fmt: skip
def test_tensor_types_that_cannot_be_read_are_named(
    type_id: int, words: str, tmp_path: Path
) -> None:
    file = tiny.gguf_file(tmp_path, "llama2")
    whole = bytearray(file.read_bytes())
    name = b"blk.0.attn_norm.weight"
    at = (
        whole.index(name) + len(name) + 4 + 8
    )  # past name, number of dimensions and one of them
    whole[at : at + 4] = struct.pack("<I", type_id)
    file.write_bytes(whole + bytes(300))

    message = message_of(load_model, file)

    assert f"tensor 'blk.0.attn_norm.weight': {words}" in message


def test_an_architecture_that_is_not_known_lists_those_that_are(tmp_path: Path) -> None:
    file = tmp_path / "bert.gguf"
    writer = gguf.GGUFWriter(file, "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    assert message_of(load_model, file) == (
        "bert.gguf: the architecture 'bert' is not supported. Supported in GGUF: llama, qwen2, qwen3, qwen2moe, qwen3moe."
    )


def test_a_mixture_of_experts_can_be_sized_but_not_run(tmp_path: Path) -> None:
    from engine.models import load_model as load_shape

    file = tmp_path / "moe.gguf"
    writer = gguf.GGUFWriter(file, "qwen3moe")
    tiny._write_gguf_keys(writer, tiny.config_of("qwen3"))
    writer.add_expert_count(8)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(24)
    writer.add_tensor("token_embd.weight", np.zeros((256, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    shape = load_shape(file)

    assert (shape.num_experts, shape.experts_per_token, shape.expert_ffn) == (8, 2, 24)
    assert "is a mixture of experts (MoE), which is not supported by the torch engine" in message_of(load_model, file)  # fmt: skip


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16"])
def test_kinds_of_blocks_are_read_to_within_their_precision(kind: str, tmp_path: Path) -> None:
    quantise = gguf.GGMLQuantizationType[kind]
    exact = load_model(tiny.gguf_file(tmp_path / "exact", "qwen2"))

    model = load_model(tiny.gguf_file(tmp_path, "qwen2", quantise=quantise))

    bound = {"Q4_0": 0.15, "Q4_1": 0.1, "Q5_0": 0.08, "Q8_0": 0.01, "F16": 1e-3, "BF16": 4e-3}
    error = (model.layers[0].gate_up - exact.layers[0].gate_up).abs().max()
    assert 0 < error < bound[kind] * exact.layers[0].gate_up.abs().max()
    assert torch.equal(model.layers[0].qkv_bias, exact.layers[0].qkv_bias)
