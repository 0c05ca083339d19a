"""What the torch engine must know of a Llama-family model to run it.

It reads the keys of a Hugging Face `config.json` (or of the same dictionary made from GGUF metadata)
that decide the arithmetic: shape, biases, norms, windows, rotary embedding. It refuses what the
decoder in `model.py` would compute wrongly. It holds no tensor and reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.hf_config import MLA_FAMILIES, SUPPORTED, layer_windows, shape_fields
from traces.errors import SettingsError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
NAMES = "Llama 2 and 3, SmolLM2 (llama), Mistral (mistral), Qwen2 and Qwen2.5 (qwen2), Qwen3 (qwen3)"
# Longest context where config.json leaves it out. Source: the defaults of transformers 5's configs.
_MAX_MODEL_LEN = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: theta is its base, kind how it is stretched to longer contexts.

    factor: by how much; original_len: context before stretching; low_freq_factor, high_freq_factor:
    llama3; beta_fast, beta_slow, truncate, attention_factor (None: by the paper): yarn; divisors: one
    for each frequency, which only GGUF files give (rope_freqs), empty: none.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """A dense decoder of the Llama family.

    hidden, ffn, vocab: widths; windows: per layer, how many of the last tokens a token sees, itself
    included, 0: all; qkv_bias, out_bias, mlp_bias: which linear layers have one; qk_norm: RMS norm of
    each query and key head before rotation; max_model_len: longest context in tokens.
    """

    name: str
    family: str
    num_layers: int
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    max_model_len: int
    windows: tuple[int, ...]
    rope: RopeConfig
    rms_eps: float = 1e-6
    tied_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def num_parameters(self) -> int:
        """All parameters, norms and biases included."""
        query = self.num_heads * self.head_dim
        both = query + 2 * self.num_kv_heads * self.head_dim
        layer = (both + query + 3 * self.ffn + 2) * self.hidden
        layer += self.qkv_bias * both + self.out_bias * self.hidden
        layer += self.mlp_bias * (2 * self.ffn + self.hidden)
        layer += self.qk_norm * 2 * self.head_dim
        tables = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + tables + self.hidden


def model_config(config: Mapping[str, Any], name: str, file: str) -> ModelConfig:
    """The ModelConfig that a config.json describes; `file` names it in errors. Alters nothing.

    Raises: SettingsError that names the file and the key, and lists what the torch engine runs.
    """
    family = _family(config, file)
    shape = shape_fields(config, file)
    if shape["num_heads"] % shape["num_kv_heads"]:
        raise SettingsError(
            f"{file}: {shape['num_heads']} attention heads cannot share {shape['num_kv_heads']} KV heads evenly. "
            "Check num_attention_heads and num_key_value_heads."
        )
    if shape["head_dim"] % 2:
        raise SettingsError(
            f"{file}, head_dim: {shape['head_dim']} is odd, but rotary embedding turns pairs. Check the file."
        )
    act = config.get("hidden_act") or "silu"
    if act not in ("silu", "swish"):
        raise SettingsError(
            f"{file}, hidden_act: {act!r} is not supported by the torch engine, which knows silu. "
            "Simulate this model instead (python -m engine simulate)."
        )
    max_model_len = shape["max_model_len"] or _MAX_MODEL_LEN[family]
    qkv_bias, out_bias, mlp_bias = _biases(config, family)
    return ModelConfig(
        name=name,
        family=family,
        **{k: shape[k] for k in _SHAPE_KEYS},
        max_model_len=max_model_len,
        windows=layer_windows(config, file),
        rope=rope_config(config, max_model_len, file),
        rms_eps=_number(config, "rms_norm_eps", file, 1e-6),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=mlp_bias,
        qk_norm=family == "qwen3",
    )


_SHAPE_KEYS = (
    "num_layers", "hidden", "ffn", "num_heads", "num_kv_heads", "head_dim", "vocab", "tied_embeddings",
)  # fmt: skip


def _family(config: Mapping[str, Any], file: str) -> str:
    family = str(config.get("model_type") or "")
    if family in FAMILIES:
        return family
    if not family:
        raise SettingsError(f"{file}: the key model_type is missing. Supported: {NAMES}.")
    what = "is not known"
    if family in MLA_FAMILIES:
        what = "has latent attention (MLA), which is not supported by the torch engine"
    elif "moe" in family or family in ("mixtral", "gpt_oss"):
        what = "is a mixture of experts (MoE), which is not supported by the torch engine"
    elif family in SUPPORTED:
        what = "can be simulated but is not supported by the torch engine"
    raise SettingsError(f"{file}: model_type {family!r} {what}. It runs {NAMES}.")


def _biases(config: Mapping[str, Any], family: str) -> tuple[bool, bool, bool]:
    """Whether query/key/value, the output projection and the MLP have a bias."""
    attention = bool(config.get("attention_bias", False))
    if family == "qwen2":
        return True, False, False
    if family == "mistral":
        return False, False, False
    return attention, attention, family == "llama" and bool(config.get("mlp_bias", False))


def rope_config(config: Mapping[str, Any], max_model_len: int, file: str) -> RopeConfig:
    """The rotary embedding, from `rope_parameters` (transformers 5) or rope_theta and rope_scaling.

    Raises: SettingsError that lists the kinds, or names the missing key.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise SettingsError(f"{file}: rope_parameters must be an object, not {found!r}.")
    keys = {**config, **{k: v for k, v in found.items() if v is not None}}
    kind = str(found.get("rope_type") or found.get("type") or "default")
    if kind not in ROPE_TYPES:
        raise SettingsError(
            f"{file}, rope_type: {kind!r} is not supported by the torch engine. Supported: {', '.join(ROPE_TYPES)}."
        )
    if _number(keys, "partial_rotary_factor", file, 1.0) != 1.0:
        raise SettingsError(
            f"{file}, partial_rotary_factor: rotating a part of each head is not supported by the torch engine."
        )
    wanted = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "yarn": ("factor",),
    }
    missing = [k for k in wanted.get(kind, ()) if found.get(k) is None]
    if missing:
        raise SettingsError(
            f"{file}: these keys of rope_type {kind!r} are missing: {', '.join(missing)}. Give the whole config.json."
        )
    theta = _number(keys, "rope_theta", file, 10000.0)
    if theta <= 1:
        raise SettingsError(f"{file}, rope_theta: {theta} is not above 1. Check the file.")
    low, high = (
        _number(found, f"{end}_freq_factor", file, default)
        for end, default in (("low", 1.0), ("high", 4.0))
    )
    if low >= high:
        raise SettingsError(
            f"{file}: low_freq_factor {low} is not below high_freq_factor {high}. Check the file."
        )
    original = int(_number(keys, "original_max_position_embeddings", file, max_model_len))
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=_number(found, "factor", file, 1.0),
        original_len=original,
        low_freq_factor=low,
        high_freq_factor=high,
        beta_fast=_number(found, "beta_fast", file, 32.0),
        beta_slow=_number(found, "beta_slow", file, 1.0),
        truncate=bool(found.get("truncate", True)),
        attention_factor=_attention_factor(found, file),
    )


def _attention_factor(found: Mapping[str, Any], file: str) -> float | None:
    if found.get("mscale") and found.get("mscale_all_dim"):
        raise SettingsError(
            f"{file}: mscale and mscale_all_dim of yarn are not supported by the torch engine. "
            "Give attention_factor instead."
        )
    if found.get("attention_factor") is None:
        return None
    return _number(found, "attention_factor", file, 1.0)


def _number(keys: Mapping[str, Any], key: str, file: str, default: float) -> float:
    """A positive number; the default where the key is left out or null."""
    value = keys.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
        raise SettingsError(
            f"{file}, {key}: {value!r} is not a positive number. Check the file."
        )
    return float(value)
