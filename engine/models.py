"""Model shapes: what a model's weights, KV cache and arithmetic cost in bytes and FLOPs.

It knows layer shapes (dense and MoE, MHA / GQA / MLA, sliding-window layers), reads the data files
in `data/models/` and any Hugging Face `config.json` (`hf_config.py` knows the keys), and counts
parameters, KV bytes and FLOPs from the shape. It does not know devices, time or scheduling.

What a block of a sliding-window model holds. vLLM's hybrid allocator groups the layers so that
window layers give back blocks that slid out of their window; a request then holds a different
number of blocks per group. The scheduler of this project has one group, so here a block is
*nominal*: `block_size` tokens of every layer, window layers included. That is vLLM with
`--disable-hybrid-kv-cache-manager`; it understates how many tokens the hybrid allocator would fit
(Gemma-3-27B at 32k tokens: 496 KiB a token nominal, 93 KiB with the window applied). Where the
windowed figure is wanted, give `context_tokens`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.hf_config import shape_fields
from traces.errors import SettingsError

DATA_DIR = Path(__file__).parent / "data" / "models"

KV_DTYPE_BYTES = {
    "auto": 2.0,  # the model's 16-bit type
    "float64": 8.0,  # the torch engine on a CPU
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
}
# Bytes per parameter of the linear layers. int4 and mxfp4 carry a scale per group of 128 / 32.
WEIGHT_DTYPE_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.53,
    "mxfp4": 0.53125,
}


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer.

    num_layers; hidden, ffn, vocab: widths; num_heads, num_kv_heads: per layer; head_dim: of query
    and key; v_head_dim: of value; gated_mlp: three FFN matrices instead of two; tied_embeddings:
    the LM head is the embedding.
    num_moe_layers of the layers have num_experts routed experts of width expert_ffn, of which
    experts_per_token run, and always-on shared experts of width shared_ffn in all; 0: dense.
    kv_lora_rank + rope_dim: MLA's latent per token and layer, 0: no MLA; q_lora_rank: 0 where the
    query is one matrix; nope_dim: MLA's key part that is rebuilt from the latent.
    num_window_layers of the layers see only the last window_tokens tokens; 0: none.
    weight_bytes, expert_weight_bytes: bytes per parameter of linear layers and of routed experts;
    weight_dtype, expert_weight_dtype: their names; embeddings, head and the KV cache have 16 bits
    (embeddings and head 32 where the linear layers have).
    max_model_len: longest context, None if unknown; source: where the shape was read.
    """

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    ffn: int
    vocab: int
    gated_mlp: bool = True
    tied_embeddings: bool = False
    num_moe_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    kv_lora_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    q_lora_rank: int = 0
    window_tokens: int = 0
    num_window_layers: int = 0
    weight_dtype: str = "bfloat16"
    expert_weight_dtype: str = "bfloat16"
    max_model_len: int | None = None
    source: str = ""

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def is_moe(self) -> bool:
        return self.num_moe_layers > 0

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's attention matrices."""
        h, n = self.hidden, self.num_heads
        if self.is_mla:
            query_width = n * (self.nope_dim + self.rope_dim)
            query = h * query_width
            if self.q_lora_rank:
                query = h * self.q_lora_rank + self.q_lora_rank * query_width
            latent = h * (self.kv_lora_rank + self.rope_dim)
            rebuilt = self.kv_lora_rank * n * (self.nope_dim + self.v_head_dim)
            return query + latent + rebuilt + n * self.v_head_dim * h
        kv = h * self.num_kv_heads * (self.head_dim + self.v_head_dim)
        return h * n * self.head_dim + kv + n * self.v_head_dim * h

    @property
    def always_read_params(self) -> int:
        """Linear parameters that every step reads: attention, dense MLPs, routers, shared experts."""
        matrices = 3 if self.gated_mlp else 2
        dense = (self.num_layers - self.num_moe_layers) * matrices * self.hidden * self.ffn
        shared = self.num_moe_layers * 3 * self.hidden * self.shared_ffn
        router = self.num_moe_layers * self.hidden * self.num_experts
        return self.num_layers * self.attention_params + dense + shared + router

    @property
    def expert_params(self) -> int:
        """Parameters of all routed experts of all layers."""
        return self.num_moe_layers * self.num_experts * 3 * self.hidden * self.expert_ffn

    @property
    def active_params(self) -> int:
        """Linear parameters one token passes through, embedding and LM head left out (P_act)."""
        routed = (
            self.num_moe_layers * self.experts_per_token * 3 * self.hidden * self.expert_ffn
        )
        return self.always_read_params + routed

    @property
    def head_params(self) -> int:
        return self.vocab * self.hidden

    @property
    def total_params(self) -> int:
        """All weight matrices (norms, biases and position tables, under 0.1 %, left out)."""
        tables = self.head_params * (1 if self.tied_embeddings else 2)
        return self.always_read_params + self.expert_params + tables

    @property
    def attention_flops_per_pair(self) -> float:
        """FLOPs of one layer per (query token, key token) pair in prefill: QK and PV products.

        Source: 4 * n_h * d for plain attention; MLA's key and value differ in width.
        """
        qk = self.nope_dim + self.rope_dim if self.is_mla else self.head_dim
        return 2.0 * self.num_heads * (qk + self.v_head_dim)

    @property
    def attention_io_elements(self) -> int:
        """Elements per token that one layer's prefill attention reads (q, k, v) and writes (out)."""
        keys = self.num_heads if self.is_mla else self.num_kv_heads
        return (self.num_heads + keys) * (self.head_dim + self.v_head_dim)

    @property
    def decode_flops_per_context_token(self) -> float:
        """FLOPs of one layer per context token of a decoding request.

        MLA decodes in the latent space (weights absorbed): every head reads the whole latent.
        """
        if self.is_mla:
            return 2.0 * self.num_heads * (2 * self.kv_lora_rank + self.rope_dim)
        return self.attention_flops_per_pair

    @property
    def num_full_layers(self) -> int:
        return self.num_layers - self.num_window_layers

    def weights_bytes(self, tp: int = 1, weight_dtype: str = "auto") -> float:
        """Bytes of weights on each of `tp` GPUs (linear layers, embedding and head all sharded)."""
        linear, expert = weight_bytes_per_param(self, weight_dtype)
        tables = self.head_params * (1 if self.tied_embeddings else 2) * max(2.0, linear)
        return (self.always_read_params * linear + self.expert_params * expert + tables) / tp


def weight_bytes_per_param(
    model: ModelShape, weight_dtype: str = "auto"
) -> tuple[float, float]:
    """Bytes per parameter of (linear layers, routed experts). Raises SettingsError."""
    if weight_dtype == "auto":
        return WEIGHT_DTYPE_BYTES[model.weight_dtype], WEIGHT_DTYPE_BYTES[
            model.expert_weight_dtype
        ]
    if weight_dtype not in WEIGHT_DTYPE_BYTES:
        raise SettingsError(
            f"weight_dtype {weight_dtype!r} is not known. Choose one of auto, {', '.join(WEIGHT_DTYPE_BYTES)}."
        )
    return WEIGHT_DTYPE_BYTES[weight_dtype], WEIGHT_DTYPE_BYTES[weight_dtype]


def check_tp(model: ModelShape, tp: int) -> None:
    """Raise SettingsError unless the heads can be split over `tp` GPUs, as vLLM asks."""
    heads_ok = tp >= 1 and model.num_heads % tp == 0
    kv_ok = model.is_mla or (
        tp >= 1 and (model.num_kv_heads % tp == 0 or tp % model.num_kv_heads == 0)
    )
    if not (heads_ok and kv_ok):
        fits = [
            t
            for t in (1, 2, 4, 8, 16)
            if model.num_heads % t == 0
            and (model.is_mla or model.num_kv_heads % t == 0 or t % model.num_kv_heads == 0)
        ]
        raise SettingsError(
            f"tp {tp} does not divide the {model.num_heads} heads and {model.num_kv_heads} KV heads of "
            f"{model.name}. Choose one of {', '.join(map(str, fits))}."
        )


def kv_dtype_bytes(kv_dtype: str) -> float:
    """Bytes per KV element. Raises SettingsError that lists the types."""
    if kv_dtype not in KV_DTYPE_BYTES:
        raise SettingsError(
            f"kv_dtype {kv_dtype!r} is not known. Choose one of {', '.join(KV_DTYPE_BYTES)}."
        )
    return KV_DTYPE_BYTES[kv_dtype]


def kv_bytes_per_layer_token(model: ModelShape, kv_dtype: str = "auto", tp: int = 1) -> float:
    """KV bytes of one token in one layer on each GPU.

    KV heads are split over the GPUs; with fewer heads than GPUs each keeps one whole head
    (replicated). MLA's latent has no heads and is copied to every GPU.
    """
    check_tp(model, tp)
    element = kv_dtype_bytes(kv_dtype)
    if model.is_mla:
        return (model.kv_lora_rank + model.rope_dim) * element
    heads = max(1, model.num_kv_heads // tp)
    return heads * (model.head_dim + model.v_head_dim) * element


def kv_bytes_per_token(
    model: ModelShape, kv_dtype: str = "auto", tp: int = 1, context_tokens: int | None = None
) -> float:
    """KV bytes of one token over all layers on each of `tp` GPUs.

    Nominal (every layer keeps every token) unless context_tokens is given: then the average over
    a request of that length whose window layers keep only their window.
    """
    per_layer = kv_bytes_per_layer_token(model, kv_dtype, tp)
    kept = 1.0
    if context_tokens is not None and model.num_window_layers:
        kept = min(1.0, model.window_tokens / max(1, context_tokens))
    return per_layer * (model.num_full_layers + model.num_window_layers * kept)


def kv_bytes_per_block(
    model: ModelShape, block_size: int = 16, kv_dtype: str = "auto", tp: int = 1
) -> int:
    """Bytes of one nominal block (all layers, `block_size` tokens) on each of `tp` GPUs."""
    if block_size < 1:
        raise SettingsError(
            f"block_size {block_size} is not a positive number of tokens. vLLM's default is 16."
        )
    return int(kv_bytes_per_token(model, kv_dtype, tp) * block_size)


def known_models() -> list[str]:
    """Names of the models that come with the project, sorted."""
    return sorted(p.stem for p in DATA_DIR.glob("*.json"))


def _normal(name: str) -> str:
    base = name.strip().lower().rsplit("/", 1)[-1]
    base = re.sub(r"[-_](instruct|chat|it|hf|base|bf16)(?=$|[-_])", "", base)
    base = re.sub(r"[-_](2507|v0\.\d|0528|0324)(?=$|[-_])", "", base)
    return re.sub(r"[^a-z0-9]", "", base.replace("meta-llama-", "llama-"))


def load_model(name_or_path: str | Path) -> ModelShape:
    """The shape of the model of that name, Hugging Face directory, config.json or GGUF file.

    Names are matched without organisation, case, punctuation and suffixes such as -Instruct.

    Raises: SettingsError that lists the known names, or names the file and its missing keys.
    """
    found = read_config(name_or_path)
    source = str(found.keys.get("_source", f"read from {found.file}"))
    return ModelShape(name=found.name, source=source, **shape_fields(found.keys, found.file))


@dataclass(frozen=True)
class ModelConfigFile:
    """keys: of a Hugging Face config.json; name: of the model; file: what to call it in errors.

    path: where the keys were read; preset: whether it is a data file of this project, without weights.
    """

    keys: dict[str, Any]
    name: str
    file: str
    path: Path
    preset: bool


def read_config(name_or_path: str | Path) -> ModelConfigFile:
    """The config of the model of that name, Hugging Face directory, config.json or GGUF file.

    Of a GGUF file only the header is read. Raises: SettingsError as load_model does.
    """
    path = Path(name_or_path)
    if path.is_dir():
        return _read_directory(path)
    if path.suffix.lower() == ".gguf":
        return _read_gguf(path)
    text = str(name_or_path)
    preset = find_preset(text)
    if preset is not None:
        return ModelConfigFile(_read_json(preset), preset.stem, preset.name, preset, True)
    if path.is_file():
        name = path.absolute().parent.name if path.name == "config.json" else path.stem
        return ModelConfigFile(_read_json(path), name or "model", path.name, path, False)
    if path.suffix == ".json":
        raise SettingsError(f"the model file {path.name} does not exist. {_choices()}")
    if len(path.parts) > 2 or path.is_absolute():  # organisation/model is a name
        raise SettingsError(f"the model directory {path.name} does not exist. {_choices()}")
    raise SettingsError(f"the model {text!r} is not known. {_choices()}")


def find_preset(name: str) -> Path | None:
    """The data file of the known model that people may mean by `name`."""
    wanted = _normal(name)
    wanted = _ALIASES.get(wanted, wanted)
    return next((p for p in sorted(DATA_DIR.glob("*.json")) if _normal(p.stem) == wanted), None)


_ALIASES = {"smollm2": "smollm2135m"}


def _choices() -> str:
    return (
        "Give the path of a Hugging Face model directory, its config.json or a GGUF file, or one of: "
        f"{', '.join(known_models())}."
    )


def _read_directory(path: Path) -> ModelConfigFile:
    file = path / "config.json"
    if file.is_file():
        return ModelConfigFile(
            _read_json(file), path.absolute().name, "config.json", file, False
        )
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs:
        remedy = f"Give the GGUF file itself, for example {ggufs[0].name}."
    else:
        remedy = "Give a Hugging Face model directory, with config.json, weights and tokenizer."
    raise SettingsError(f"the directory {path.name} holds no config.json. {remedy}")


def _read_gguf(path: Path) -> ModelConfigFile:
    from engine.gguf_config import gguf_config
    from engine.gguf_header import read_gguf_header

    if not path.exists():
        raise SettingsError(f"the model file {path.name} does not exist. Check the path.")
    keys = gguf_config(read_gguf_header(path))
    return ModelConfigFile(keys, path.stem, path.name, path, False)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise SettingsError(
            f"{path.name}: this is not JSON ({e}). Give a Hugging Face config.json."
        ) from e
    if not isinstance(config, dict):
        raise SettingsError(
            f"{path.name}: the file holds no JSON object. Give a Hugging Face config.json."
        )
    return config
