"""GGUF metadata in the words of a Hugging Face `config.json`, so that one reader serves both.

It knows the keys of llama.cpp's dense architectures (and enough of their MoE kin to size them), and
which tensors tell what no key says. It does not read the file (gguf_header) or weigh what the keys
mean (hf_config, gpu.model_config).
"""

from __future__ import annotations

from typing import Any

from engine.gguf_header import GGUFHeader

# llama.cpp's architecture to the model_type of Hugging Face. Mistral and SmolLM2 say "llama".
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}


def gguf_config(header: GGUFHeader) -> dict[str, Any]:
    """The config.json that this file would have.

    Raises: SettingsError for an architecture that is not known, or keys that are missing.
    """
    arch = str(header.metadata.get("general.architecture") or "")
    if arch not in ARCHITECTURES:
        what = f"the architecture {arch!r}" if arch else "a file without general.architecture"
        header.refuse(
            "", f"{what} is not supported", f"Supported in GGUF: {', '.join(ARCHITECTURES)}."
        )
    if "token_embd.weight" not in header.tensors:
        header.refuse("", "the tensor token_embd.weight is missing")
    get = _Keys(header, arch)
    heads = get.first("attention.head_count")
    config = {
        "model_type": ARCHITECTURES[arch],
        "num_hidden_layers": get.first("block_count"),
        "hidden_size": get.first("embedding_length"),
        "intermediate_size": get.first("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": get.first("attention.head_count_kv", heads),
        "head_dim": get.first("attention.key_length", None) or get.first("rope.dimension_count", None),
        "rms_norm_eps": get.first("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": get.first("context_length"),
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
        "rope_parameters": _rope(get),
        "_source": f"read from {header.path.name}",
    }  # fmt: skip
    if get.first("expert_count", 0):
        config |= _experts(get, arch)
    return {k: v for k, v in config.items() if v is not None}


class _Keys:
    """The metadata keys of one architecture."""

    def __init__(self, header: GGUFHeader, arch: str) -> None:
        self.header, self.arch = header, arch

    def first(self, key: str, *default: Any) -> Any:
        """The value; a list with one value per layer counts where all are equal."""
        name = f"{self.arch}.{key}"
        value = self.header.metadata.get(name)
        if value is None:
            if default:
                return default[0]
            self.header.refuse("", f"the metadata key {name} is missing")
        if hasattr(value, "__len__") and not isinstance(value, str):
            if len(set(value)) != 1:
                self.header.refuse(
                    f"metadata key {name!r}",
                    "layers of different shapes are not supported",
                    "Use a model whose layers are alike.",
                )
            return value[0].item()
        return value


def _rope(get: _Keys) -> dict[str, Any]:
    """rope_parameters; a llama3 stretch comes as the tensor rope_freqs.weight, read by weights_gguf."""
    kind = get.first("rope.scaling.type", "none")
    rope = {
        "rope_theta": get.first("rope.freq_base", 10000.0),
        "rope_type": "default" if kind == "none" else kind,
        "factor": get.first("rope.scaling.factor", None),
        "original_max_position_embeddings": get.first(
            "rope.scaling.original_context_length", None
        ),
    }
    return {k: v for k, v in rope.items() if v is not None}


def _experts(get: _Keys, arch: str) -> dict[str, Any]:
    return {
        "model_type": "mixtral" if ARCHITECTURES[arch] == "llama" else ARCHITECTURES[arch],
        "num_experts": get.first("expert_count"),
        "num_experts_per_tok": get.first("expert_used_count"),
        "moe_intermediate_size": get.first("expert_feed_forward_length", None),
        "shared_expert_intermediate_size": get.first("expert_shared_feed_forward_length", None),
    }
