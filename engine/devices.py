"""Device presets: peaks, efficiencies, links and copy constants, each with its source.

It reads the data files in `data/devices/` (and a custom file of the same form, as `calibrate`
writes one) into a frozen DeviceSpec. It does not know models or how the numbers are combined
(`cost_model.py`).

A device file is JSON: `name`, optional `aliases`, optional `base` (another preset whose values it
takes over), and `values`: field of DeviceSpec -> `[value, source]`. Marks in the sources: [V] read
in a named public source, [D] derived from one, [P] measured, [M] from memory, unchecked.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from traces.errors import SettingsError

DATA_DIR = Path(__file__).parent / "data" / "devices"
_WARNED: set[tuple[Path, str]] = set()  # files whose caution this process has passed on
_MAX_BASES = 8  # longest chain of `base`; more is a circle


class AllReduce(NamedTuple):
    """Time of one all-reduce of S bytes over tp GPUs, v = 2 (tp - 1) / tp * S moved by each:
    latency_s + min(v / small_bytes_per_s, switch_s + v / bytes_per_s).

    Without a direct link between the GPUs small messages go another, slower way (NCCL's
    low-latency protocol over host memory); with one, small_bytes_per_s = bytes_per_s, switch_s 0.
    """

    tp: int
    latency_s: float
    bytes_per_s: float
    small_bytes_per_s: float
    switch_s: float


@dataclass(frozen=True)
class DeviceSpec:
    """One kind of GPU and the host link it sits on. Rates are bytes/s and FLOP/s, times seconds.

    peak_flops, peak_fp8_flops: dense tensor rates (0: no such unit); memory_bytes_per_s: HBM or
    GDDR; memory_bytes: what the driver reports as total.
    linear_efficiency, weight_read_efficiency, knee: soft roofline of the linear layers, with
    layer_overhead_s per layer; moe_*: the same for MoE models (moe_linear_factor multiplies
    linear_efficiency). decode_attention_efficiency of memory_bytes_per_s, attention_overhead_s
    per layer; prefill_attention_efficiency of peak_flops for the products, prefill_io_efficiency of
    memory_bytes_per_s for reading queries, keys and values and writing the output, and
    prefill_overhead_s per layer of a step that prefills; request_overhead_s per layer and request of a
    step, where attention takes requests one by one. step_overhead_s: host time of a step that the device does not hide.
    linear_tile_tokens: rows of a tile of the matrix products, 1: no tiles are counted;
    mixed_decode_rows: rows that each query of a decoding request occupies in attention beside a prompt.
    allreduce: one AllReduce a tp, ascending.
    link_in/out_bytes_per_s: large copies from / to the host, one way; contention_in/out: what is
    left of each while the other direction is busy. *_copy_s: fixed time of each copy on that copy
    path; transfer_overhead_s: of each transfer.
    sources: field -> where its value comes from.
    """

    name: str
    peak_flops: float
    peak_fp8_flops: float
    memory_bytes_per_s: float
    memory_bytes: float
    linear_efficiency: float
    weight_read_efficiency: float
    knee: float
    layer_overhead_s: float
    moe_linear_factor: float
    moe_knee: float
    moe_layer_overhead_s: float
    decode_attention_efficiency: float
    attention_overhead_s: float
    prefill_attention_efficiency: float
    prefill_io_efficiency: float
    prefill_overhead_s: float
    request_overhead_s: float
    step_overhead_s: float
    linear_tile_tokens: float
    mixed_decode_rows: float
    allreduce: tuple[AllReduce, ...]
    link_in_bytes_per_s: float
    link_out_bytes_per_s: float
    contention_in: float
    contention_out: float
    loop_copy_s: float
    batch_copy_s: float
    coalesced_copy_s: float
    transfer_overhead_s: float
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def allreduce_at(self, tp: int) -> AllReduce:
        """The all-reduce over `tp` GPUs: that of the nearest tp that is known."""
        return min(self.allreduce, key=lambda row: abs(math.log2(row.tp / tp)))


VALUE_NAMES = tuple(f.name for f in fields(DeviceSpec) if f.name not in ("name", "sources"))
NUMBER_NAMES = tuple(n for n in VALUE_NAMES if n != "allreduce")
_ZERO_ALLOWED = ("peak_fp8_flops", "step_overhead_s", "layer_overhead_s", "moe_layer_overhead_s",
                 "attention_overhead_s", "prefill_overhead_s", "request_overhead_s", "loop_copy_s", "batch_copy_s",
                 "coalesced_copy_s", "transfer_overhead_s")  # fmt: skip
# What files and recordings that are older than these numbers stand for.
LATER_NUMBERS = {"linear_tile_tokens": 1.0, "mixed_decode_rows": 1.0}
_AT_LEAST_1 = ("knee", "moe_knee", "linear_tile_tokens", "mixed_decode_rows")
_SHARES = ("linear_efficiency", "weight_read_efficiency", "moe_linear_factor", "decode_attention_efficiency",
           "prefill_attention_efficiency", "prefill_io_efficiency", "contention_in", "contention_out")  # fmt: skip


def known_devices() -> list[str]:
    """Names of the presets, sorted."""
    return sorted(p.stem for p in DATA_DIR.glob("*.json") if not p.stem.startswith("_"))


def _normal(name: str) -> str:
    text = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|amd)(geforce|instinct)?", "", text)


def load_device(name_or_path: str | Path, *, warn: bool = True) -> DeviceSpec:
    """The preset of that name or alias, or the device that a file describes.

    A file that says of itself that it predicts badly (`calibration`, `caution`) warns, once a process;
    warn: False keeps it silent.

    Raises: SettingsError that lists the presets, or names the file, the value and what is allowed.
    """
    path = _find(str(name_or_path))
    if path is None:
        raise SettingsError(
            f"the device {str(name_or_path)!r} is not known. Give the path of a device file, or one of: "
            f"{', '.join(known_devices())}."
        )
    document = _read(path)
    values: dict[str, Any] = dict(LATER_NUMBERS)
    sources = dict.fromkeys(LATER_NUMBERS, "[D] left out: the file does not say it")
    for level in _with_bases(document, path):
        for key, entry in level["values"].items():
            values[key], sources[key] = entry
    missing = [n for n in VALUE_NAMES if n not in values]
    if missing:
        raise SettingsError(
            f'{path.name}: values are missing: {", ".join(missing)}. Add them, or name a preset to start from with "base".'
        )
    if warn:
        _pass_on_caution(document, path)
    checked = {k: _check(k, v, path.name) for k, v in values.items()}
    return DeviceSpec(name=str(document.get("name", path.stem)), sources=sources, **checked)


def _pass_on_caution(document: dict[str, Any], path: Path) -> None:
    evidence = document.get("calibration")
    caution = evidence.get("caution") if isinstance(evidence, dict) else None
    if isinstance(caution, str) and caution and (path, caution) not in _WARNED:
        _WARNED.add((path, caution))
        warnings.warn(f"{path.name}: {caution}", stacklevel=3)


def _find(text: str) -> Path | None:
    """The file that a name, an alias or a path means; None if there is none."""
    for stem in known_devices():
        path = DATA_DIR / f"{stem}.json"
        aliases = json.loads(path.read_text(encoding="utf-8")).get("aliases", [])
        if _normal(text) in {_normal(n) for n in (stem, *aliases)}:
            return path
    path = Path(text)
    return path if path.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise SettingsError(
            f"{path.name}: this is not JSON ({e}). Give a device file or a preset name."
        ) from e
    values = document.get("values") if isinstance(document, dict) else None
    if not isinstance(values, dict):
        raise SettingsError(
            f'{path.name}: the object "values" is missing. A device file holds name, base and values.'
        )
    unknown = sorted(set(values) - set(VALUE_NAMES))
    if unknown:
        raise SettingsError(
            f"{path.name}: unknown values {', '.join(unknown)}. Known: {', '.join(VALUE_NAMES)}."
        )
    for key, entry in values.items():
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], str)):
            raise SettingsError(
                f"{path.name}, {key}: {entry!r} is not a pair [value, source]. Write the value and where it comes from."
            )
    return document


def _with_bases(document: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """The document and the presets it builds on, most basic first."""
    chain = [document]
    while chain[-1].get("base") is not None:
        base = str(chain[-1]["base"])
        found = DATA_DIR / f"{base}.json"
        if not found.is_file():
            raise SettingsError(
                f"{path.name}, base: {base!r} is not a preset. Choose one of: {', '.join(known_devices())}."
            )
        if len(chain) > _MAX_BASES:
            raise SettingsError(
                f"{path.name}, base: presets build on each other in a circle at {base!r}. Mend the file."
            )
        chain.append(_read(found))
    return chain[::-1]


def _check(key: str, value: Any, file: str) -> Any:
    """The value with its type, or SettingsError."""
    if key == "allreduce":
        return _check_allreduce(value, file)
    return check_number(key, value, file)


def _check_allreduce(value: Any, file: str) -> tuple[AllReduce, ...]:
    """Rows [tp, latency s, bytes/s] or [tp, latency s, bytes/s, small bytes/s, switch s]."""
    fault = f"{file}, allreduce: {value!r} is not a list of [tp, seconds, bytes per second] or of those with [..., small bytes per second, switch seconds]."
    try:
        numbers = [[float(x) for x in row] for row in value]
    except (TypeError, ValueError, OverflowError) as e:
        raise SettingsError(fault) from e
    if not all(len(row) in (3, 5) for row in numbers):
        raise SettingsError(fault)
    rows = sorted(AllReduce(int(r[0]), r[1], r[2], *(r[3:] or (r[2], 0.0))) for r in numbers)
    ok = all(
        r.tp >= 2
        and min(r.latency_s, r.switch_s) >= 0
        and min(r.bytes_per_s, r.small_bytes_per_s) > 0
        for r in rows
    )
    if not rows or not ok:
        raise SettingsError(
            f"{file}, allreduce: {value!r} needs at least one row with tp >= 2, times >= 0 and rates > 0."
        )
    return tuple(rows)


def check_number(key: str, value: Any, place: str) -> float:
    """The value as a float. Raises SettingsError that names place, key and what is allowed."""
    number = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and -1e18 < value < 1e18
    )
    low_ok = number and (value > 1e-15 or (value == 0 and key in _ZERO_ALLOWED))
    high_ok = number and (value <= 1 or key not in _SHARES)
    if not (low_ok and high_ok and (key not in _AT_LEAST_1 or value >= 1)):
        allowed = (
            "between 0 and 1"
            if key in _SHARES
            else "1 or more"
            if key in _AT_LEAST_1
            else "a positive number below 1e18"
        )
        raise SettingsError(f"{place}, {key}: {value!r} is out of range. It must be {allowed}.")
    return float(value)
