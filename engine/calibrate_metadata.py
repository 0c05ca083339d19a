"""What a recording's metadata say of the run that calibration needs: model, types, block size, device.

Everything is checked before it is counted with: a value of the wrong kind, missing or absurd refuses
the recording, by the name of the key and with the value. It knows no tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from engine.models import (
    WEIGHT_DTYPE_BYTES,
    ModelShape,
    kv_bytes_per_block,
    weight_bytes_per_param,
)
from traces.errors import RecordingError, SettingsError
from traces.recording import Recording

COPY_PATHS = ("loop", "batch", "coalesced")
# Key of the model's shape -> least and most that is taken for a model, far beyond any there is.
_WIDTH, _SOME = (1, 10**7), (0, 10**7)
_RANGES = {
    "num_layers": (1, 10_000),
    "hidden": _WIDTH,
    "num_heads": (1, 100_000),
    "num_kv_heads": (1, 100_000),
    "head_dim": (1, 100_000),
    "v_head_dim": (1, 100_000),
    "ffn": _WIDTH,
    "vocab": (1, 10**8),
    "num_moe_layers": (0, 10_000),
    "num_experts": _SOME,
    "experts_per_token": _SOME,
    "expert_ffn": _SOME,
    "shared_ffn": _SOME,
    "kv_lora_rank": _SOME,
    "rope_dim": _SOME,
    "nope_dim": _SOME,
    "q_lora_rank": _SOME,
    "window_tokens": (0, 2**31),
    "num_window_layers": (0, 10_000),
}
_MAX_BLOCK_SIZE = 2**20


@dataclass(frozen=True)
class Setup:
    """What a recording ran: the model's shape, data types, and how blocks were copied."""

    model: ModelShape
    kv_dtype: str = "auto"
    weight_dtype: str = "auto"
    block_size: int = 16
    copy_path: str = "coalesced"


def read_setup(recording: Recording) -> Setup:
    """Model and settings from the metadata. Raises RecordingError that names the key and its value."""
    label = recording.label
    model = _model(label, recording.meta.get("model"))
    settings = recording.meta.get("settings")
    if not isinstance(settings, Mapping):
        _refuse(label, "settings", f"the settings of the run are missing ({_shown(settings)})")
    tp = settings.get("tensor_parallel_size", 1)
    pp = settings.get("pipeline_parallel_size", 1)
    if model.is_moe or model.is_mla or tp != 1 or pp != 1:
        what = "a model with experts or MLA"
        if tp != 1:
            what = f"tensor parallelism {_shown(tp)}"
        elif pp != 1:
            what = f"pipeline parallelism {_shown(pp)}"
        raise RecordingError(
            label,
            "metadata",
            f"the run used {what}, and calibration fits dense models on one device",
            "Calibrate with a dense model; numbers of the others stay those of the base device.",
        )
    setup = Setup(
        model,
        _text(label, settings, "kv_cache_dtype"),
        _text(label, settings, "weight_dtype"),
        _whole(label, settings, "settings", "block_size", 1, _MAX_BLOCK_SIZE),
        _text(label, settings, "copy_path"),
    )
    if setup.copy_path not in COPY_PATHS:
        _refuse(label, "settings, copy_path", f"{_shown(setup.copy_path)} is none of {', '.join(COPY_PATHS)}")  # fmt: skip
    for key, count in (
        ("weight_dtype", lambda: weight_bytes_per_param(model, setup.weight_dtype)),
        ("kv_cache_dtype", lambda: kv_bytes_per_block(model, setup.block_size, setup.kv_dtype)),
    ):  # fmt: skip
        try:
            count()
        except SettingsError as error:
            _refuse(label, f"settings, {key}", str(error).rstrip("."))
    return setup


def machine_of(meta: Mapping[str, Any]) -> str:
    """Name of the device that a recording ran on, or ""; metadata `device` may be only what was modelled."""
    torch, device = meta.get("torch"), meta.get("device")
    for said, key in ((torch, "device_name"), (device, "name")):
        if isinstance(said, Mapping) and isinstance(said.get(key), str) and said[key]:
            return str(said[key])
    return ""


def _model(label: str, said: object) -> ModelShape:
    if not isinstance(said, Mapping):
        _refuse(label, "model", f"the model's shape is missing or incomplete ({_shown(said)} is no object)")  # fmt: skip
    names = {f.name for f in fields(ModelShape)}
    try:
        model = ModelShape(**{k: v for k, v in said.items() if k in names})
    except TypeError as error:
        _refuse(label, "model", f"the model's shape is missing or incomplete ({error})")
    values = vars(model)
    for key, (least, most) in _RANGES.items():
        _whole(label, values, "model", key, least, most)
    for key in ("gated_mlp", "tied_embeddings"):
        if not isinstance(values[key], bool):
            _refuse(label, f"model, {key}", f"{_shown(values[key])} is neither true nor false")
    if not isinstance(model.name, str):
        _refuse(label, "model, name", f"{_shown(model.name)} is no name")
    for key in ("weight_dtype", "expert_weight_dtype"):
        if not isinstance(values[key], str) or values[key] not in WEIGHT_DTYPE_BYTES:
            _refuse(label, f"model, {key}", f"{_shown(values[key])} is none of {', '.join(WEIGHT_DTYPE_BYTES)}")  # fmt: skip
    if model.num_window_layers > model.num_layers:
        _refuse(label, "model, num_window_layers", f"{model.num_window_layers} is more than num_layers {model.num_layers}")  # fmt: skip
    return model


def _whole(
    label: str, values: Mapping[str, Any], section: str, key: str, least: int, most: int
) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        _refuse(label, f"{section}, {key}", f"{_shown(value)} is no whole number from {least:,} to {most:,}")  # fmt: skip
    return value


def _text(label: str, settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    if not isinstance(value, str):
        _refuse(label, f"settings, {key}", f"{_shown(value)} is no name")
    return value


def _shown(value: object) -> str:
    """The value for a sentence, cut short; None: not given."""
    if value is None:
        return "nothing given"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(label: str, place: str, fault: str) -> NoReturn:
    raise RecordingError(
        label,
        f"metadata, {place}",
        fault,
        "Record the run again with this version: python -m engine run TRACE --model NAME --out DIR.",
    )
