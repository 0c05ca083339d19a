"""What the keys of a Hugging Face `config.json` mean for the shape of a model.

It knows the spellings that families use, their defaults where a key is left out, which layers are
MoE or have a sliding window, and how quantisation is declared. It reads no file and counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.errors import SettingsError

# Families whose layers are plain attention + MLP / MoE, which is all that the cost model knows.
SUPPORTED = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2",
    "deepseek_v3", "kimi_k2", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "opt",
    "gpt_neox", "gpt2", "falcon", "phi3", "granite", "olmo2", "smollm3", "starcoder2", "glm4_moe",
    "mistral3", "qwen2_5_vl", "qwen2_vl",
)  # fmt: skip
TWO_MATRIX_MLP = ("opt", "gpt_neox", "gpt2", "falcon", "starcoder2")
TIED_BY_DEFAULT = (
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "opt",
    "gpt2",
    "falcon",
    "starcoder2",
)
MLA_FAMILIES = ("deepseek_v2", "deepseek_v3", "kimi_k2")
# Where a family's default differs from the general one; published configs leave some of them out.
# They stand for keys that are absent: a null says something else (no window, one KV head per head).
FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "sliding_window": 4096,
    },
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gemma": {"head_dim": 256},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen3": {"head_dim": 128},
}

_ALIASES = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token", "num_experts_per_token"),
}

_MOST = 1_000_000_000  # larger than any width, count or context length
_MOST_LAYERS = 10_000  # each is looked at by itself


def shape_fields(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Fields of ModelShape that the config gives; `file` names it in errors. Alters nothing.

    Raises: SettingsError that names the file, the missing keys or what is supported.
    """
    c, kind = _text_config(config, file)
    missing = [n for n in ("num_layers", "hidden", "num_heads", "vocab") if _get(c, n) is None]
    if kind not in TWO_MATRIX_MLP and _get(c, "ffn") is None:
        missing.append("ffn")
    if missing:
        keys = "; ".join(" or ".join(_ALIASES[m]) for m in missing)
        raise SettingsError(
            f"{file}: these keys are missing: {keys}. Give the whole config.json of a text model."
        )
    hidden, heads = _count(c, "hidden", file), _count(c, "num_heads", file)
    head_dim = _whole(c, "head_dim", file) or hidden // heads
    fields: dict[str, Any] = {
        "num_layers": _num_layers(c, file),
        "hidden": hidden,
        "num_heads": heads,
        "num_kv_heads": _kv_heads(c, kind, heads, file),
        "head_dim": head_dim,
        "v_head_dim": head_dim,
        "ffn": _count(c, "ffn", file) if _get(c, "ffn") is not None else 4 * hidden,
        "vocab": _count(c, "vocab", file),
        "gated_mlp": kind not in TWO_MATRIX_MLP,
        "tied_embeddings": bool(
            c.get(
                "tie_word_embeddings",
                config.get("tie_word_embeddings", kind in TIED_BY_DEFAULT),
            )
        ),
        "max_model_len": _whole(c, "max_position_embeddings", file)
        or _whole(c, "n_positions", file)
        or None,
    }
    fields |= _moe(c, fields["num_layers"], fields["ffn"], file)
    fields |= _mla(c, kind, file)
    fields |= _window(c, kind, fields["num_layers"], file)
    fields |= _quantization(
        config.get("quantization_config") or c.get("quantization_config"), file
    )
    return fields


def _get(c: Mapping[str, Any], name: str) -> Any:
    return next((c[k] for k in _ALIASES[name] if c.get(k) is not None), None)


def _count(c: Mapping[str, Any], name: str, file: str) -> int:
    value = _get(c, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        key = next(k for k in _ALIASES[name] if c.get(k) is not None)
        raise SettingsError(
            f"{file}, {key}: {value!r} is not a positive whole number. Check the file."
        )
    return value


def _num_layers(c: Mapping[str, Any], file: str) -> int:
    layers = _count(c, "num_layers", file)
    if layers > _MOST_LAYERS:
        raise SettingsError(
            f"{file}: {layers:,} layers are more than the {_MOST_LAYERS:,} that a model may have. Check the file."
        )
    return layers


def _whole(c: Mapping[str, Any], key: str, file: str, default: int = 0) -> int:
    """The value of an optional key as a whole number; the default where it is left out or null."""
    value = c.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise SettingsError(
            f"{file}, {key}: {value!r} is not a positive whole number. Check the file."
        )
    return value


def _text_config(config: Mapping[str, Any], file: str) -> tuple[Mapping[str, Any], str]:
    """The part of the config that describes the language model, defaults filled in, and its family."""
    inner = config.get("text_config") or config.get("llm_config")
    c = inner if isinstance(inner, Mapping) else config
    kind = str(c.get("model_type") or config.get("model_type") or "")
    if kind not in SUPPORTED:
        fault = (
            f"model_type {kind!r} is not supported" if kind else "the key model_type is missing"
        )
        raise SettingsError(f"{file}: {fault}. Supported: {', '.join(SUPPORTED)}.")
    return {
        **{k: v for k, v in FAMILY_DEFAULTS.get(kind, {}).items() if k not in c},
        **{k: v for k, v in c.items() if v is not None},
    }, kind


def _kv_heads(c: Mapping[str, Any], kind: str, heads: int, file: str) -> int:
    if kind == "falcon" and not c.get("new_decoder_architecture"):
        return 1 if c.get("multi_query", True) else heads
    return heads if _get(c, "num_kv_heads") is None else _count(c, "num_kv_heads", file)


def _moe(c: Mapping[str, Any], layers: int, ffn: int, file: str) -> dict[str, Any]:
    """Which layers route, over how many experts, how wide."""
    if _get(c, "num_experts") is None or _get(c, "experts_per_token") is None:
        return {}
    experts, chosen = _count(c, "num_experts", file), _count(c, "experts_per_token", file)
    if experts < 2:
        return {}
    width = _whole(c, "moe_intermediate_size", file) or ffn
    dense = c.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise SettingsError(f"{file}, mlp_only_layers: {dense!r} is no list. Check the file.")
    first = _whole(c, "first_k_dense_replace", file)
    stride = _whole(c, "decoder_sparse_step", file) or _whole(c, "moe_layer_freq", file) or 1
    routed = sum(
        i >= first
        and i not in dense
        and ((i + 1) % stride == 0 if "decoder_sparse_step" in c else i % stride == 0)
        for i in range(layers)
    )
    shared = _whole(c, "shared_expert_intermediate_size", file)
    shared = shared or _whole(c, "n_shared_experts", file) * width
    return {
        "num_moe_layers": routed,
        "num_experts": experts,
        "experts_per_token": chosen,
        "expert_ffn": width,
        "shared_ffn": shared,
    }


def _mla(c: Mapping[str, Any], kind: str, file: str) -> dict[str, Any]:
    """Latent attention of DeepSeek-V2 / V3 and Kimi-K2."""
    if kind not in MLA_FAMILIES:
        return {}
    keys = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    missing = [k for k in keys if c.get(k) is None]
    if missing:
        raise SettingsError(
            f"{file}: these keys of latent attention are missing: {', '.join(missing)}. Give the whole config.json."
        )
    return {
        "kv_lora_rank": _whole(c, "kv_lora_rank", file),
        "rope_dim": _whole(c, "qk_rope_head_dim", file),
        "nope_dim": _whole(c, "qk_nope_head_dim", file),
        "v_head_dim": _whole(c, "v_head_dim", file),
        "head_dim": _whole(c, "qk_nope_head_dim", file) + _whole(c, "qk_rope_head_dim", file),
        "q_lora_rank": _whole(c, "q_lora_rank", file),
    }


def _window(c: Mapping[str, Any], kind: str, layers: int, file: str) -> dict[str, Any]:
    """How many layers see only a window, and how long it is."""
    windows = _windows(c, kind, layers, file)
    count = sum(w > 0 for w in windows)
    return {"window_tokens": max(windows), "num_window_layers": count} if count else {}


def layer_windows(config: Mapping[str, Any], file: str) -> tuple[int, ...]:
    """Per layer, how many of the last tokens a token sees, itself included; 0: all of them.

    Raises: SettingsError that names the file and the key.
    """
    c, kind = _text_config(config, file)
    return _windows(c, kind, _num_layers(c, file), file)


def _windows(c: Mapping[str, Any], kind: str, layers: int, file: str) -> tuple[int, ...]:
    window = _whole(c, "sliding_window", file)
    if not window or c.get("use_sliding_window") is False:
        return (0,) * layers
    if kind.startswith("qwen") and not c.get("use_sliding_window"):
        return (0,) * layers
    types = c.get("layer_types")
    if types is not None:
        kinds = ("full_attention", "sliding_attention")
        if not isinstance(types, list):
            raise SettingsError(f"{file}, layer_types: {types!r} is no list. Check the file.")
        if len(types) != layers or not all(t in kinds for t in types):
            raise SettingsError(
                f"{file}, layer_types: {len(types)} entries for {layers} layers, of kinds {sorted({str(t) for t in types})}. "
                "Supported are full_attention and sliding_attention, one per layer."
            )
        return tuple(window if t == "sliding_attention" else 0 for t in types)
    if kind == "gemma3_text":
        pattern = _whole(c, "sliding_window_pattern", file) or 6  # every pattern-th is global
        return tuple(0 if (i + 1) % pattern == 0 else window for i in range(layers))
    if kind in ("gemma2", "gpt_oss"):  # local, global, local, ...
        return tuple(0 if i % 2 else window for i in range(layers))
    if kind.startswith("qwen"):
        first = _whole(c, "max_window_layers", file, 28)
        return tuple(window if i >= first else 0 for i in range(layers))
    return (window,) * layers


def _quantization(q: Mapping[str, Any] | None, file: str) -> dict[str, Any]:
    """Weight types that a quantization_config declares; nothing: 16 bits (float32 is served so too)."""
    if not q:
        return {}
    if not isinstance(q, Mapping):
        raise SettingsError(f"{file}: quantization_config must be an object, not {q!r}.")
    method = str(q.get("quant_method") or "")
    if method == "mxfp4":  # gpt-oss: experts only
        return {"expert_weight_dtype": "mxfp4"}
    bits: Any = None
    if method == "fp8":
        bits = 8
    elif method in ("awq", "gptq", "awq_marlin", "gptq_marlin"):
        bits = q.get("bits") or q.get("w_bit")
    elif method == "compressed-tensors":
        groups = _weight_groups(q, file)
        bits = groups[0].get("num_bits") if groups else None
    elif method == "bitsandbytes":
        bits = 4 if q.get("load_in_4bit") else 8
    names = {4: "int4", 8: "int8" if method != "fp8" else "fp8"}
    if method == "compressed-tensors" and bits == 8:
        kinds = [g.get("type") for g in _weight_groups(q, file)]
        names[8] = "fp8" if "float" in kinds else "int8"
    if not isinstance(bits, int) or bits not in names:
        raise SettingsError(
            f"{file}, quantization_config: quant_method {method!r} with {bits!r} bits is not known. Supported: fp8, "
            "mxfp4, and 4 or 8 bits of awq, gptq, compressed-tensors, bitsandbytes; or remove the key and set weight_dtype."
        )
    return {"weight_dtype": names[bits], "expert_weight_dtype": names[bits]}


def _weight_groups(q: Mapping[str, Any], file: str) -> list[Mapping[str, Any]]:
    """What each of compressed-tensors' config_groups says of weights; a null says nothing."""
    groups = q.get("config_groups") or {}
    found = list(groups.values()) if isinstance(groups, Mapping) else [None]
    weights = [(g.get("weights") or {}) if isinstance(g, Mapping) else None for g in found]
    if not all(isinstance(w, Mapping) for w in weights):
        raise SettingsError(
            f"{file}, config_groups of quantization_config: {groups!r} does not map names to objects with weights. Check the file."
        )
    return [w for w in weights if w is not None]
