"""Settings of a recorded run, so that its requests can be run again as they were.

It knows which metadata are settings of ours. What the requests were is in traces/replay.py.
"""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

from engine.config import COMPAT, EngineSettings
from engine.models import load_model
from traces.errors import SettingsError
from traces.recording_meta import Meta

_VLLM_BASELINE = "0.26.0"


def settings_of(meta: Meta, **changes: Any) -> EngineSettings:
    """The settings under which a recording was made, with `changes`.

    Of a recording from vLLM 0.26.0, compat is that version, so that its known faults are replayed
    too. A model that is no preset is replaced by the default one, with a warning: it changes
    modelled times and bytes, no decision.

    Raises: SettingsError where the metadata hold a setting that cannot be.
    """
    said = {
        f.name: meta.settings[f.name] for f in fields(EngineSettings) if f.name in meta.settings
    }
    values = {name: _plain(value) for name, value in said.items()}
    if meta.executor == "vllm" and meta.get("vllm_baseline") == _VLLM_BASELINE:
        values["compat"] = COMPAT[0]
    values |= changes
    if "model" in values and not _is_known(values["model"]):
        default = EngineSettings().model
        warnings.warn(
            f"model {values['model']!r} is not known here: times and bytes are those of {default}",
            stacklevel=2,
        )
        values["model"] = default
    return EngineSettings(**values)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_known(model: Any) -> bool:
    try:
        load_model(model)
    except SettingsError:
        return False
    return True
