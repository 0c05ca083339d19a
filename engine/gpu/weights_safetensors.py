"""Weights from the safetensors files of a Hugging Face directory, one tensor at a time.

It knows which files belong to a checkpoint, and says which is missing, cut off or damaged, which
tensors are missing, superfluous or of another shape. It does not know the model (weights).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.models import ModelConfigFile
from traces.errors import SettingsError

INDEX = "model.safetensors.index.json"
READABLE = ("F64", "F32", "F16", "BF16")
DOWNLOAD_AGAIN = "Download it again."


def refuse_quantised(found: ModelConfigFile) -> None:
    """Raises: SettingsError if the config says that the checkpoint is quantised."""
    quantisation = found.keys.get("quantization_config")
    if quantisation:
        method = "?"
        if isinstance(quantisation, dict):
            method = str(quantisation.get("quant_method", "?"))
        raise SettingsError(
            f"{found.file}: the checkpoint of {found.name} is quantised ({method}), which the torch engine cannot read. "
            "Give the unquantised checkpoint, or a GGUF file, which is dequantised while it is loaded."
        )


def fill_from_safetensors(slots: dict[str, torch.Tensor], directory: Path) -> None:
    """Copy every tensor of the directory's checkpoint into its slot; slots is emptied.

    Raises: SettingsError that names the file, the tensor, the fault and the next step.
    """
    files = checkpoint_files(directory)
    all_names = frozenset(slots)
    for path in files:
        _fill_from_file(slots, all_names, path)
    if slots:
        raise SettingsError(
            f"{directory.name}: {len(slots)} tensors are missing, among them {_some(slots)}. "
            "The weights do not belong to this config.json, or a file of the checkpoint is missing."
        )


def checkpoint_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those of its index, else all. Raises: SettingsError."""
    index = directory / INDEX
    if index.is_file():
        names = _indexed(index)
        missing = [n for n in names if not (directory / n).is_file()]
        if missing:
            raise SettingsError(
                f"{directory.name}: {len(missing)} of the {len(names)} weight files that {INDEX} lists are missing, "
                f"among them {_some(missing)}. Download them too."
            )
        return [directory / n for n in names]
    single = directory / "model.safetensors"
    files = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if not files:
        pickles = sorted(directory.glob("pytorch_model*.bin"))
        why = (
            f"it holds {pickles[0].name}, which is a pickle and is not read"
            if pickles
            else "none is there"
        )
        raise SettingsError(
            f"{directory.name}: weights are read from *.safetensors, but {why}. Download the model's safetensors files."
        )
    return files


def _indexed(index: Path) -> list[str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise SettingsError(
            f"{index.name}: no weight_map can be read in it. {DOWNLOAD_AGAIN}"
        ) from e
    if not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
        raise SettingsError(
            f"{index.name}: weight_map must name files of the same directory. {DOWNLOAD_AGAIN}"
        )
    return names


def _fill_from_file(
    slots: dict[str, torch.Tensor], all_names: frozenset[str], path: Path
) -> None:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118 - the file is no mapping
                _fill_one(slots, all_names, path, file, key)
    except SafetensorError as e:
        raise SettingsError(
            f"{path.name}: the file is cut off or damaged ({e}). {DOWNLOAD_AGAIN}"
        ) from e
    except OSError as e:
        raise SettingsError(
            f"{path.name}: the file cannot be read ({e}). {DOWNLOAD_AGAIN}"
        ) from e


def _fill_one(
    slots: dict[str, torch.Tensor],
    all_names: frozenset[str],
    path: Path,
    file: Any,
    key: str,
) -> None:
    name = key.removeprefix("model.")
    if name.endswith("rotary_emb.inv_freq"):  # old checkpoints keep what the config says
        return
    if name == "lm_head.weight" and name not in all_names:  # tied: the embedding serves
        return
    slot = slots.pop(name, None)
    if slot is None:
        why = (
            "occurs twice" if name in all_names else "has no place in the model of config.json"
        )
        raise SettingsError(
            f"{path.name}, tensor {key!r}: it {why}. Check that weights and config.json belong together."
        )
    part = file.get_slice(key)
    shape, kind = list(part.get_shape()), part.get_dtype()
    if shape != list(slot.shape):
        raise SettingsError(
            f"{path.name}, tensor {key!r}: its shape is {shape}, config.json asks for {list(slot.shape)}. "
            "Check that weights and config.json belong together."
        )
    if kind not in READABLE:
        raise SettingsError(
            f"{path.name}, tensor {key!r}: its type is {kind}, which is not read. Supported: {', '.join(READABLE)}; "
            "give the unquantised checkpoint."
        )
    slot.copy_(file.get_tensor(key))


def _some(names: Any) -> str:
    return ", ".join(sorted(names)[:3])
