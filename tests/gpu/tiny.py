"""Tiny seeded random models on disk: Hugging Face directories and GGUF files, made in milliseconds.

Shapes are small enough for a test and odd enough to catch a mix-up: heads are shared (grouped), and
head_dim is not hidden / heads. The weights are random, so the text is noise, but greedy decoding of it
depends on every KV entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.gpu.model import CausalLM
from engine.gpu.weights import load_model

VOCAB = 256
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 255,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# What each family adds to CONFIG.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": {"num_key_value_heads": 4, "head_dim": 8},
    "llama3": {"rope_parameters": LLAMA3_ROPE},
    "llama-biased": {"attention_bias": True, "mlp_bias": True},
    "smollm2": {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48, "tie_word_embeddings": True,
                "rope_theta": 100000.0},
    "mistral": {"model_type": "mistral", "sliding_window": 8},
    "qwen2": {"model_type": "qwen2", "head_dim": 8, "tie_word_embeddings": True, "rope_theta": 1e6},
    "qwen3": {"model_type": "qwen3", "rms_norm_eps": 1e-6},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
                                 "original_max_position_embeddings": 64}},
}  # fmt: skip


def config_of(family: str = "llama3", **keys: Any) -> dict[str, Any]:
    """The config.json of a tiny model of the family; a key given as None is left out."""
    config = CONFIG | FAMILIES[family] | keys
    if config["model_type"] in ("qwen2",):
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    return {k: v for k, v in config.items() if v is not None or k == "sliding_window"}


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face's tensor names and shapes for a config of this file."""
    c = config
    hidden, ffn, width = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    query, kv = c["num_attention_heads"] * width, c["num_key_value_heads"] * width
    kind = c["model_type"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, hidden)}
    linear = {
        "self_attn.q_proj": (query, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, query), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }  # fmt: skip
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, shape in linear.items():
            shapes[f"{layer}{name}.weight"] = shape
            qkv = name.endswith(("q_proj", "k_proj", "v_proj"))
            biased = c.get("attention_bias") if "self_attn" in name else c.get("mlp_bias")
            if biased or (kind == "qwen2" and qkv):
                shapes[f"{layer}{name}.bias"] = (shape[0],)
        norms = ["input_layernorm", "post_attention_layernorm"]
        shapes |= {f"{layer}{n}.weight": (hidden,) for n in norms}
        if kind == "qwen3":
            shapes |= {f"{layer}self_attn.{n}_norm.weight": (width,) for n in "qk"}
    shapes["model.norm.weight"] = (hidden,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, hidden)
    return shapes


def tensors_of(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights, large enough that the greedy token is seldom close to the second."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator)
        return 1 + 0.1 * noise if "norm" in name else 0.25 * noise

    return {name: draw(name, shape) for name, shape in tensor_shapes(config).items()}


def llama_dir(
    path: Path, family: str = "llama3", *, seed: int = 0, shards: int = 1, **keys: Any
) -> Path:
    """A Hugging Face directory under `path`: config.json, safetensors (sharded with an index), tokenizer.

    family: one of FAMILIES; keys change config.json. Returns the directory.
    """
    directory = path / f"tiny-{family}"
    directory.mkdir(parents=True, exist_ok=True)
    config = config_of(family, **keys)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = tensors_of(config, seed)
    if shards == 1:
        save_file(tensors, directory / "model.safetensors")
    else:
        _save_shards(tensors, directory, shards)
    write_tokenizer(directory)
    return directory


def tiny_model(
    path: Path, family: str = "llama3", dtype: str = "float32", **keys: Any
) -> CausalLM:
    """A loaded tiny model on the CPU; see llama_dir."""
    return load_model(llama_dir(path, family, **keys), dtype=dtype)


def _save_shards(tensors: dict[str, torch.Tensor], directory: Path, shards: int) -> None:
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[i::shards]}
        save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def byte_tokens() -> list[str]:
    """249 of the letters that byte-level BPE writes bytes with, one merged pair, six special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*letters[:249], "qq", *(f"<|special_{i}|>" for i in range(5)), "<|end|>"]


CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer of VOCAB tokens, tokenizer_config.json with a chat template."""
    vocab = {token: i for i, token in enumerate(byte_tokens())}
    tokenizer = Tokenizer(models.BPE(vocab, [("q", "q")], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


GGUF_ARCHITECTURE = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_GGUF_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, index, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{index}.{_GGUF_NAMES[stem]}.{kind}"


def gguf_file(
    path: Path,
    family: str = "llama2",
    *,
    seed: int = 0,
    quantise: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    drop: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    **keys: Any,
) -> Path:
    """A GGUF file of the same weights as llama_dir's, written as llama.cpp's converter lays them out.

    quantise: the type of all matrices whose rows it divides; drop: tensors to leave out; extra: to add.
    """
    config = config_of(family, **keys)
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"tiny-{family}.gguf"
    arch = GGUF_ARCHITECTURE[config["model_type"]]
    writer = gguf.GGUFWriter(file, arch)
    _write_gguf_keys(writer, config)
    _write_gguf_tokenizer(writer)
    tensors = {gguf_name(n): t.numpy() for n, t in tensors_of(config, seed).items()}
    for name, values in (tensors | (extra or {})).items():
        if name in drop:
            continue
        heads = {"attn_q.": "num_attention_heads", "attn_k.": "num_key_value_heads"}
        for part, key in heads.items():
            if arch == "llama" and part in name:
                values = _interleaved(values, config[key])
        fits = values.ndim == 2 and values.shape[1] % gguf.GGML_QUANT_SIZES[quantise][0] == 0
        if fits and quantise != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, gguf.quantize(values, quantise), raw_dtype=quantise)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head in the order 0, D/2, 1, D/2 + 1, ...: pairs that turn together are neighbours."""
    width = len(values) // heads
    order = [h * width + half * (width // 2) + i for h in range(heads) for i in range(width // 2) for half in (0, 1)]  # fmt: skip
    return values[order]


def _write_gguf_keys(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))


def _write_gguf_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(byte_tokens())
    writer.add_token_types([1] * 250 + [3] * 6)
    writer.add_token_merges(["q q"])  # the writer leaves out an empty list
    writer.add_eos_token_id(255)
    writer.add_chat_template(CHAT_TEMPLATE)
