"""Weights into a model: from a Hugging Face directory, a GGUF file, or drawn by a seed.

It knows what a name or path can mean, whether device and type fit together, how much memory the
weights take, and which part of a fused matrix each published tensor fills. How the two file formats
are read is in weights_safetensors and weights_gguf; what the weights are for, in model.
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine.gpu.host_memory import GIB, available_host_bytes
from engine.gpu.model import CausalLM
from engine.gpu.model_config import ModelConfig, model_config
from engine.gpu.model_files import KNOWN, downloadable, model_file
from engine.gpu.weights_gguf import add_rope_divisors, fill_from_gguf
from engine.gpu.weights_safetensors import fill_from_safetensors, refuse_quantised
from engine.models import ModelConfigFile, read_config
from traces.errors import SettingsError

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Standard deviation of drawn weights. Source: initializer_range of Llama's, Mistral's and Qwen's configs.
RANDOM_STD = 0.02


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    random_seed: int | None = None,
) -> CausalLM:
    """The model, its weights on the device in dtype.

    name_or_path: a Hugging Face directory (config.json and safetensors), a .gguf file (dequantised),
    or a name that model_files can fetch. With a random_seed no weight is read: the shape comes from
    the directory, file, config.json or any Llama-family name of engine.models, and weights are drawn
    on the device (equal for equal seed, device kind and dtype). dtype "auto": bfloat16 on CUDA,
    float32 on a CPU. Tensors are streamed: beside the model no more than one of them is held.

    Raises: SettingsError for anything that is missing, damaged, unsupported or does not fit.
    """
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place)
    found = _find(name_or_path, random_seed)
    config = model_config(found.keys, found.name, found.file)
    is_gguf = found.path.suffix.lower() == ".gguf"
    if is_gguf:
        config = add_rope_divisors(config, found.path)
    elif random_seed is None:
        refuse_quantised(found)
    model = _room(config, kind, place)
    try:
        if random_seed is not None:
            fill_at_random(model, random_seed)
        elif is_gguf:
            fill_from_gguf(model, weight_slots(model), found.path)
        else:
            fill_from_safetensors(weight_slots(model), found.path.parent)
    except torch.OutOfMemoryError as e:
        raise _no_room(config, kind, place, None) from e
    return model.eval()


def _find(name_or_path: str | Path, random_seed: int | None) -> ModelConfigFile:
    """Where the config is, and with it the weights, if they are wanted."""
    if (
        random_seed is None
        and downloadable(str(name_or_path))
        and not Path(name_or_path).exists()
    ):
        return read_config(model_file(str(name_or_path)))
    found = read_config(name_or_path)
    if random_seed is None and found.preset:
        raise SettingsError(
            f"the weights of {found.name} do not come with the project, only its shape. Give a Hugging Face directory "
            "or a GGUF file with its weights, a seed for random ones (--random-weights SEED), or a model that can be "
            f"fetched: {', '.join(KNOWN)}."
        )
    return found


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The torch type of a name, "auto" included. Raises: SettingsError if the device lacks it."""
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
        if device.type == "cuda" and not _has_bfloat16(device):
            dtype = "float16"
    kind = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if kind not in DTYPES.values():
        raise SettingsError(
            f"dtype {str(dtype).removeprefix('torch.')!r} is not supported by the torch engine. Choose one of auto, {', '.join(DTYPES)}."
        )
    if kind == torch.bfloat16 and device.type == "cuda" and not _has_bfloat16(device):
        name = torch.cuda.get_device_name(device)
        raise SettingsError(
            f"{name} has no bfloat16 (it came with compute capability 8.0). Choose --dtype float16 or float32."
        )
    return kind


def _has_bfloat16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def resolve_device(device: str | torch.device) -> torch.device:
    """The device of that name. Raises: SettingsError if it is unknown or not there."""
    try:
        place = torch.device(device)
    except RuntimeError as e:
        raise SettingsError(
            f"the torch device {device!r} is not known. Choose cpu or cuda."
        ) from e
    if place.type not in ("cpu", "cuda"):
        raise SettingsError(f"the torch device {place} is not supported. Choose cpu or cuda.")
    if place.type == "cuda":
        if not torch.cuda.is_available():
            built = torch.version.cuda or torch.version.hip
            why = (
                "torch finds no usable GPU"
                if built
                else "this torch is built without CUDA support"
            )
            raise SettingsError(
                f"--torch-device {place} cannot be used: {why}. Choose --torch-device cpu, or install a torch for your GPU."
            )
        if place.index is not None and place.index >= torch.cuda.device_count():
            raise SettingsError(
                f"the torch device {place} does not exist: there are {torch.cuda.device_count()}, counted from 0."
            )
    return place


def _room(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """The model with its weights undefined. Raises: SettingsError if they do not fit."""
    needed = config.num_parameters * dtype.itemsize
    if device.type == "cuda":
        free: int | None = torch.cuda.mem_get_info(device)[0]
    else:
        free = available_host_bytes()
    if free is not None and needed > free:
        raise _no_room(config, dtype, device, free)
    try:
        return CausalLM(config, dtype=dtype, device=device)
    except torch.OutOfMemoryError as e:
        raise _no_room(config, dtype, device, free) from e
    except RuntimeError as e:  # what the CPU's allocator raises
        if "allocate" not in str(e):
            raise
        raise _no_room(config, dtype, device, free) from e


def _no_room(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, free: int | None
) -> SettingsError:
    needed = config.num_parameters * dtype.itemsize / GIB
    have = "" if free is None else f", which has {free / GIB:.2f} GiB free"
    remedy = "Choose a smaller model" + (", a 16-bit --dtype" if dtype.itemsize > 2 else "")
    return SettingsError(
        f"the weights of {config.name} take {needed:.2f} GiB as {str(dtype).removeprefix('torch.')} and do not fit on {device}"
        f"{have}. {remedy}, or free memory."
    )


def weight_slots(model: CausalLM) -> dict[str, torch.Tensor]:
    """Hugging Face's tensor names, without "model.", to the part of the model that each fills."""
    c = model.config
    heads = [n * c.head_dim for n in (c.num_heads, c.num_kv_heads, c.num_kv_heads)]
    slots = {"embed_tokens.weight": model.embedding, "norm.weight": model.norm}
    if not c.tied_embeddings:
        slots["lm_head.weight"] = model.head
    for i, layer in enumerate(model.layers):
        fused = {
            "self_attn.{}_proj.weight": ("qkv", layer.qkv.split(heads)),
            "mlp.{}_proj.weight": (("gate", "up"), layer.gate_up.split(c.ffn)),
        }
        if layer.qkv_bias is not None:
            fused["self_attn.{}_proj.bias"] = ("qkv", layer.qkv_bias.split(heads))
        if layer.gate_up_bias is not None:
            fused["mlp.{}_proj.bias"] = (("gate", "up"), layer.gate_up_bias.split(c.ffn))
        whole = {
            "input_layernorm.weight": layer.attention_norm,
            "self_attn.q_norm.weight": layer.query_norm,
            "self_attn.k_norm.weight": layer.key_norm,
            "self_attn.o_proj.weight": layer.out,
            "self_attn.o_proj.bias": layer.out_bias,
            "post_attention_layernorm.weight": layer.mlp_norm,
            "mlp.down_proj.weight": layer.down,
            "mlp.down_proj.bias": layer.down_bias,
        }
        for pattern, (letters, parts) in fused.items():
            whole |= {pattern.format(a): part for a, part in zip(letters, parts, strict=True)}
        slots |= {f"layers.{i}.{k}": t for k, t in whole.items() if t is not None}
    return slots


def fill_at_random(model: CausalLM, seed: int) -> None:
    """Draw every weight from a normal of RANDOM_STD on the model's device; norms are 1, biases too drawn."""
    if not 0 <= seed < 2**63:
        raise SettingsError(f"the seed {seed} of random weights must be from 0 to 2**63 - 1.")
    generator = torch.Generator(device=model.device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(0.0, RANDOM_STD, generator=generator)
