"""Settings of a recorded run, so that its requests can be run again as they were.

It knows which metadata are settings of ours. What the requests were is in traces/replay.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from engine.config import COMPAT, EngineSettings
from engine.devices import load_device
from engine.models import load_model
from traces.errors import SettingsError
from traces.recording_meta import Meta

_VLLM_BASELINE = "0.26.0"


def settings_of(meta: Meta, **changes: Any) -> EngineSettings:
    """The settings under which a recording was made, with `changes`.

    Of a recording from vLLM 0.26.0, compat is that version, so that its known faults are replayed
    too, and the device is the one that the server found. A model or device that is no preset is
    replaced by the default one, with a warning: it changes modelled times and bytes, no decision.

    Raises: SettingsError where the metadata hold a setting that cannot be.
    """
    said = {
        f.name: meta.settings[f.name] for f in fields(EngineSettings) if f.name in meta.settings
    }
    values = {name: _plain(value) for name, value in said.items()}
    if meta.executor == "vllm":
        values |= _of_a_server(meta)
    values |= changes
    # Metadata name the pool's blocks whatever it was derived from; a change in tokens replaces them.
    pool = "num_gpu_blocks" if changes.get("kv_tokens") is not None else "kv_tokens"
    if values.get("num_gpu_blocks") is not None and pool not in changes:
        values.pop(pool, None)
    for name, load in (("model", load_model), ("device", load_device)):
        value = values.get(name)
        if isinstance(value, str) and not _is_known(load, value):
            default = getattr(EngineSettings(), name)
            warnings.warn(
                f"{name} {values[name]!r} is not known here: times and bytes are those of {default}",
                stacklevel=2,
            )
            values[name] = default
    return EngineSettings(**values)


def _of_a_server(meta: Meta) -> dict[str, Any]:
    """Settings that a live vLLM's metadata hold elsewhere."""
    found: dict[str, Any] = {}
    if meta.get("vllm_baseline") == _VLLM_BASELINE:
        found["compat"] = COMPAT[0]
    device = meta.get("device")
    if isinstance(device, Mapping) and device.get("name"):
        found["device"] = str(device["name"])
    return found


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_known(load: Callable[[Any], Any], name: Any) -> bool:
    try:
        load(name)
    except SettingsError:
        return False
    return True
