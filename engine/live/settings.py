"""Settings of the recorders that run inside a vLLM server, from its environment and its flags.

Each setting is an environment variable, or the key of the same name in vLLM's
`--additional-config '{"kv_replay": {"out": "/data/kv", ...}}'`, which wins. Shared by the recording
scheduler (vllm.py) and the stat-logger plugin (stat_logger.py). Layout below `out`: see
traces/run_folders.py. It imports nothing but the standard library.

Note: additional_config is part of the key of vLLM's compile cache, environment variables are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from traces.errors import SettingsError

SECTION = "kv_replay"  # key of vLLM's additional_config
REFUSE, RUN_UNRECORDED = "refuse", "run-unrecorded"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {k + "I": 1024 ** (i + 1) for i, k in enumerate("KMGT")}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
_MOST = 1 << 40


@dataclass(frozen=True)
class LiveSettings:
    """What an operator may say; the environment variable of each is KV_REPLAY_ and its name.

    out: directory below which recorders make their folders (KV_REPLAY_OUT);
    part_steps: steps in a Parquet part; flush_s: longest time that a row stays in memory only;
    disk_cap: bytes that one recorder may keep on disk, the oldest parts are removed first, 0: all
    are kept (text such as 20GiB is taken); blocks: record who holds which block every so many
    steps, 0: never; hash_ids: write keyed hashes in the place of request ids; salt: the key (none:
    a new random one for each run, so that ids cannot be joined with a log afterwards);
    prefix_ids: write 8 bytes of vLLM's salted hash of each full block of a prompt, so that shared
    prefixes can be replayed; queue: rows of a table that may wait for the writer, more are dropped
    and counted;
    unsupported: with a vLLM whose scheduler is another than expected, "refuse" to start, or
    "run-unrecorded".
    """

    out: Path = Path("kv-replay")
    part_steps: int = 16_384
    flush_s: float = 10.0
    disk_cap: int = 20 * 1024**3
    blocks: int = 0
    hash_ids: bool = False
    salt: str = ""
    prefix_ids: bool = True
    queue: int = 65_536
    unsupported: str = REFUSE


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"KV_REPLAY_{name.upper()}"


def load_settings(
    environ: Mapping[str, str] | None = None, additional_config: Any = None
) -> LiveSettings:
    """Settings from the environment, overridden by vLLM's additional_config where that has a section.

    Raises: SettingsError naming the variable or key, the fault and what is valid.
    """
    environ = os.environ if environ is None else environ
    said: dict[str, tuple[str, Any]] = {}
    known = [f.name for f in fields(LiveSettings)]
    for name in known:
        if variable(name) in environ:
            said[name] = (variable(name), environ[variable(name)])
    section = additional_config.get(SECTION) if isinstance(additional_config, Mapping) else None
    if section is not None:
        if not isinstance(section, Mapping):
            raise SettingsError(
                f"additional_config {SECTION} must be an object of settings, not {section!r}."
            )
        for key, value in section.items():
            if key not in known:
                raise SettingsError(
                    f"additional_config {SECTION}: unknown setting {key!r}. Known are {', '.join(known)}."
                )
            said[key] = (f"additional_config {SECTION}.{key}", value)
    return LiveSettings(**{name: _READERS[name](*said[name]) for name in said})


def _path(where: str, value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not str(value) or not _is_text(str(value)):
        raise SettingsError(f"{where} must be a directory, not {value!r}.")
    try:
        return Path(value).expanduser()
    except RuntimeError:  # ~somebody, and there is no somebody
        raise SettingsError(f"{where} must be a directory, not {value!r}.") from None


def _is_text(value: str) -> bool:
    """Whether it can be written as UTF-8 and holds no end-of-string."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _number(where: str, value: Any, least: float, most: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if isinstance(value, bool) or not least <= number <= most:
        raise SettingsError(
            f"{where} must be a number from {least:g} to {most:g}, not {value!r}."
        )
    return number


def _whole(where: str, value: Any, least: int, most: int) -> int:
    number = _number(where, value, least, most)
    if number != int(number):
        raise SettingsError(f"{where} must be a whole number, not {value!r}.")
    return int(number)


def _flag(where: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise SettingsError(f"{where} must be 1 or 0, not {value!r}.")
    return text in _TRUE


def _bytes(where: str, value: Any) -> int:
    text = str(value).strip().upper()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", text)
    if isinstance(value, bool) or not found or found[2] not in _UNITS:
        raise SettingsError(
            f"{where} must be bytes, or a size such as 500MiB or 20GiB, not {value!r}."
        )
    return _whole(where, float(found[1]) * _UNITS[found[2]], 0, 1 << 60)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not _is_text(value):
        raise SettingsError(f"{where} must be text, not {value!r}.")
    return value


def _choice(where: str, value: Any) -> str:
    if value not in (REFUSE, RUN_UNRECORDED):
        raise SettingsError(
            f"{where} {value!r} is not known. Choose {REFUSE} or {RUN_UNRECORDED}."
        )
    return str(value)


_READERS: dict[str, Any] = {
    "out": _path,
    "part_steps": lambda w, v: _whole(w, v, 1, 10_000_000),
    "flush_s": lambda w, v: _number(w, v, 0.05, 3_600),
    "disk_cap": _bytes,
    "blocks": lambda w, v: _whole(w, v, 0, _MOST),
    "hash_ids": _flag,
    "salt": _text,
    "prefix_ids": _flag,
    "queue": lambda w, v: _whole(w, v, 1, 100_000_000),
    "unsupported": _choice,
}
