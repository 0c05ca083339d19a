"""Under what two runs were made: the setup they share, and what tells the sides apart.

It knows metadata and words for it; it reads no table and judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.recording import Meta, Recording

# what goes without saying; None: the writer did not set it, so that its engine's default held
USUAL: Mapping[str, tuple[Any, ...]] = {
    "model": (None, "llama-3.1-8b"),
    "device": (None, "h100-sxm"),
    "policy": (None, "fcfs"),
    "enable_prefix_caching": (None, True),
    "enable_chunked_prefill": (None, True),
    "async_scheduling": (None, False),
    "watermark": (None, 0),
    "tensor_parallel_size": (None, 1),
    "pipeline_parallel_size": (None, 1),
    "kv_cache_dtype": (None, "auto"),
    "weight_dtype": (None, "auto"),
    "compat": (None,),
    "cost_overrides": (None, {}),
}
_SAID = {
    "policy": "policy {}",
    "enable_prefix_caching": "no prefix cache",
    "enable_chunked_prefill": "no chunked prefill",
    "async_scheduling": "asynchronous scheduling",
    "watermark": "watermark {}",
    "tensor_parallel_size": "tensor parallel {}",
    "pipeline_parallel_size": "{} pipeline stages",
    "kv_cache_dtype": "KV cache in {}",
    "weight_dtype": "weights in {}",
    "compat": "the faults of {}",
    "cost_overrides": "changed cost parameters",
}
_USUAL_VICTIM = {"fcfs": "last", "priority": "priority"}  # by policy, as in vLLM
_COPYING = ("swap", "offload", "cheapest")  # modes that move KV to the host
# settings without effect on a run in another mode
_COPIES = ("copy_path", "link_gb_per_s", "host_gib", "num_host_blocks")
_SWAPS = ("copy_mode",)  # a host cache is always copied beside the computing
_OFFLOADS = ("offload_connector", "offload_prompt_only", "lazy_offload", "load_steps", "store_steps")  # fmt: skip
_IN_CONDITION = ("model", "device", "num_gpu_blocks", "kv_tokens")
MOST_NAMED = 3


Rates = tuple[float | None, float | None]


def describe_condition(
    a: Meta,
    b: Meta,
    pool_a: int,
    pool_b: int,
    *,
    copies: bool = True,
    rates: Rates = (None, None),
) -> str:
    """The setup in words: pool, then model, device and settings where they are unusual or differ,
    and copy path and link where a side moves KV to the host.

    Of two sides that copy, only what they share is said here; settings that differ are in their
    names (`side_names`). copies: False where nothing was preempted, so that nothing was copied.
    rates: of A and B, bytes/s that their copies were measured at, which a measured run gives in place of
    its preset's link.
    """
    parts = [
        f"{pool_a:,} block{'' if pool_a == 1 else 's'}"
        if pool_a == pool_b
        else f"{pool_a:,} (A) and {pool_b:,} (B) blocks"
    ]
    parts[0] += _unusual_name("device", "on", a, b)
    parts[0] += _unusual_name("model", "with", a, b)
    parts += _shared_settings(a, b)
    if a.clock == "step":
        return ", ".join([*parts, "in steps"])
    text = ", ".join(parts)
    copying = [m for m in (a, b) if m.preemption_mode in _COPYING]
    if not copies or not copying:
        return text
    measured = any(m.clock == "measured" for m in copying)
    link = _measured(rates) if measured else _link(copying)
    return f"{text}{_copies(copying)}{link}"


def _unusual_name(kind: str, word: str, a: Meta, b: Meta) -> str:
    """' on rtx-4090', or '' for the usual one; both where they differ."""
    left, right = _name_of(a, kind), _name_of(b, kind)
    if left and right and left != right:
        return f" {word} {left} (A) and {right} (B)"
    name = left or right
    return "" if name in USUAL[kind] else f" {word} {name}"


def _name_of(meta: Meta, kind: str) -> str | None:
    said = meta.get(kind) or meta.settings.get(kind)
    name = said.get("name") if isinstance(said, Mapping) else said
    return str(name) if name else None


def _shared_settings(a: Meta, b: Meta) -> list[str]:
    """Words for settings that both sides have and that are not the usual ones."""
    left, right = a.settings, b.settings
    words = [
        phrase.format(left.get(key))
        for key, phrase in _SAID.items()
        if left.get(key) == right.get(key) and left.get(key) not in USUAL[key]
    ]
    victims = [_victim(s) for s in (left, right)]
    if victims[0] == victims[1] and victims[0] != _USUAL_VICTIM.get(str(a.policy or "fcfs")):
        words.append(f"victim {victims[0]}")
    return words


def _victim(settings: Mapping[str, Any]) -> Any:
    """The victim rule in force: the one set, or the policy's own."""
    return settings.get("victim") or _USUAL_VICTIM.get(str(settings.get("policy") or "fcfs"))


def idle_settings(a: Meta, b: Meta) -> frozenset[str]:
    """Settings that do nothing in one of the runs, in its preemption mode, and so tell nothing apart."""
    modes = (a.preemption_mode, b.preemption_mode)
    idle: set[str] = set()
    for names, used_by in (
        (_COPIES, _COPYING),
        (_SWAPS, ("swap", "cheapest")),
        (_OFFLOADS, ("offload",)),
    ):
        if any(mode not in used_by for mode in modes):
            idle |= set(names)
    return frozenset(idle)


def copies_beside_computing(meta: Meta) -> bool:
    """Whether a run's copies to and from the host hold up nobody by themselves."""
    mode = meta.preemption_mode
    if mode == "offload":
        return True
    return mode in ("swap", "cheapest") and meta.settings.get("copy_mode") == "async"


def _copies(copying: list[Meta]) -> str:
    waited = [m for m in copying if m.preemption_mode != "offload"]
    shared = (
        _shared([m.settings.get("copy_mode") for m in waited]) if waited else None,
        _shared([m.settings.get("copy_path") for m in copying]),
    )
    said = " ".join(str(w) for w in shared if w)
    text = f" and {said} copies" if said else ""
    # With a host cache on one side only, how it copies is not how the other does.
    if not waited:
        text += _connector(copying)
    return text


def _link(copying: list[Meta]) -> str:
    """' over a 25 GB/s link', of the preset that all share; else ''."""
    link = _shared([_link_bytes_per_s(m) for m in copying])
    return "" if link is None else f" over a {link / 1e9:.3g} GB/s link"


def _measured(rates: Rates) -> str:
    """' at a measured 1.79 GB/s', both where they differ; '' where no copy was timed."""
    said = {s: f"{r / 1e9:.3g}" for s, r in zip("AB", rates, strict=True) if r is not None}
    if not said:
        return ""
    if len(set(said.values())) == 1:
        return f" at a measured {next(iter(said.values()))} GB/s"
    return f" at a measured {' and '.join(f'{r} ({s})' for s, r in said.items())} GB/s"


def _connector(offloading: list[Meta]) -> str:
    """' by the native connector, prompt blocks only', where all that offload do it so; else ''."""
    name, prompts, late = (
        _shared([m.settings.get(key) for m in offloading]) if offloading else None
        for key in _OFFLOADS[:3]
    )
    words = f" by the {name} connector" if name else ""
    if prompts and name == "native":
        words += ", prompt blocks only,"
    if late and name == "simple":
        words += ", late,"
    return words


def _shared(values: list[Any]) -> Any:
    """The value, if all are the same; else None."""
    return values[0] if all(v == values[0] for v in values) else None


def _link_bytes_per_s(meta: Meta) -> float | None:
    device = meta.get("device")
    return device.get("link_out_bytes_per_s") if isinstance(device, Mapping) else None


def side_names(a: Recording, b: Recording) -> tuple[str, str]:
    """What to call the sides: by preemption mode and other settings that differ (MOST_NAMED at
    most), or by label where nothing does.

    Left out: what the condition says, and what does nothing in one of the modes (`idle_settings`).
    """
    left, right = a.meta.settings, b.meta.settings
    modes = (a.meta.preemption_mode, b.meta.preemption_mode)
    by_mode = None not in modes and modes[0] != modes[1]
    hidden = {"preemption_mode", *_IN_CONDITION} if by_mode else {"model", "device"}
    hidden |= idle_settings(a.meta, b.meta)
    keys = [
        k for k in sorted({*left, *right}) if left.get(k) != right.get(k) and k not in hidden
    ]
    if not by_mode and not keys:
        return f"A ({a.label})", f"B ({b.label})"
    names = []
    for side, settings, mode in (("A", left, modes[0]), ("B", right, modes[1])):
        words = [str(mode)] if by_mode else []
        in_force = {**settings, "victim": _victim(settings)}
        words += [f"{k} {_value(in_force.get(k))}" for k in keys[:MOST_NAMED]]
        if len(keys) > MOST_NAMED:
            words.append(f"{len(keys) - MOST_NAMED} more")
        names.append(f"{side} ({', '.join(words)})")
    return names[0], names[1]


def _value(value: Any) -> str:
    if value is None:
        return "default"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
