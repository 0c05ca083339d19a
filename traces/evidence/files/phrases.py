"""Statements in free text: numbers with their noun, as people write them about a load.

It takes "36 concurrent", "8 clients", "inputs of about 20k tokens", "prompt ~500 tokens", "512 prompt tokens",
"10000 prompts, ~330 tokens each", "2k in / 500 out", "block size 128", "device utilisation 0 %", "2 x 80 GB
class GPU". A number without its noun says nothing. It knows no flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from traces.evidence.evidence import Value
from traces.evidence.files.flags import FLAGS, read_count

_N = r"(\d[\d,_]*(?:\.\d+)?\s?[kK]?)(?![\w%.]*\d)(?!\w)"
_ABOUT = r"(?:\s*(?:of|is|are|was|were|with|about|around|roughly|approx\.?|ca\.?|up to|~|≈|:|=|-|at|each|between|from|ranging|in the range)\s*)*\s*"
_TO = r"(?:\s*(?:-|–|to|\.\.\.?|and)\s*" + _N + r")?"
_SENDERS = r"(?:client connections|clients?|users|virtual users|VUs|connections|workers|streams|sessions|threads|agents)"
_SPELLED = "|".join(
    sorted(
        (re.escape(n).replace("_", "[_ -]") for n in FLAGS if len(n) > 3), key=len, reverse=True
    )
)


@dataclass(frozen=True)
class Phrase:
    """What a statement says."""

    fact: str
    value: Value
    inferred: bool = False
    note: str = ""


@dataclass(frozen=True)
class _Form:
    fact: str
    pattern: re.Pattern[str]


def _form(fact: str, pattern: str) -> _Form:
    return _Form(fact, re.compile(pattern, re.IGNORECASE))


# In this order: what one form took is not read by the next.
_FORMS = (
    _form("lengths", rf"{_N}\s*(?:tokens? )?(?:in|input)\b\s*(?:/|,|and|->|→|x|;)?\s*{_N}\s*(?:tokens? )?(?:out|output)\b"),
    _form("lengths", rf"{_N}\s*(?:tokens? )?prompts?\s*(?:/|,|and|->|→|x|;|plus|\+)\s*{_N}\s*(?:tokens? )?outputs?\b"),
    _form("lengths", rf"\bISL\s*{_ABOUT}{_N}\s*(?:tokens?)?\s*[,/;]?\s*OSL\s*{_ABOUT}{_N}"),
    _form("kv_bytes_per_token", r"(\d[\d,]*)\s*(?:B|bytes)\s*(?:/|per|a)\s*token"),
    _form("blocks", rf"{_N}\s*blocks\s*(?:of|x|×)\s*{_N}"),
    _form("pool_blocks", rf"\bpool{_ABOUT}{_N}\s*blocks\b"),
    _form("pool_tokens", rf"\b(?:pool|KV cache)(?: size)?(?:\s*(?:of|is|has|holds|:|=|about|~))*\s*{_N}\s*tokens\b"),
    _form("lengths", rf"\binput{_ABOUT}{_N}\s*(?:tokens?)?\s*[,/;]?\s*output{_ABOUT}{_N}\s*(?:tokens?)?"),
    _form("clients", rf"{_N}\s*(?:concurrent|parallel|simultaneous)\b(?:\s+\w+)?"),
    _form("clients", rf"{_N}\s*{_SENDERS}\b"),
    _form("clients", rf"\bconcurrency{_ABOUT}{_N}"),
    _form("clients", rf"{_N}\s*(?:requests?|prompts?)\s+(?:at once|at a time|at the same time|in parallel|concurrently|in flight)"),
    _form("clients", rf"\b(?:fired|sent|sends|firing)\s+{_N}\s+at once"),
    _form("prompt_tokens", rf"{_N}{_TO}[\s-]*(?:prompt|input|context)[\s-]+tokens?\b"),
    _form("prompt_tokens", rf"{_N}{_TO}[\s-]*tokens?[\s-]+(?:long\s+)?(?:prompts?|inputs?|contexts?)\b"),
    _form("prompt_tokens", rf"\b(?:prompts?|inputs?|contexts?)(?:\s+(?:lengths?|sizes?))?{_ABOUT}{_N}{_TO}\s*(?:tokens?|tok)\b"),
    _form("prompt_tokens", rf"\b(?:prompt|input|context)\s+lengths?{_ABOUT}{_N}{_TO}"),
    _form("num_requests and prompt", rf"{_N}\s*(?:prompts|requests)\s*,?\s*(?:of|with|~|≈|about|each)*\s*{_N}{_TO}\s*tokens?\s*(?:each|long)?"),
    _form("output_tokens", rf"{_N}{_TO}[\s-]*(?:output|generated|completion|new)[\s-]+tokens?\b"),
    _form("output_tokens", rf"\b(?:outputs?|completions?|answers?|replies|generates?|generating)(?:\s+lengths?)?{_ABOUT}{_N}{_TO}\s*tokens?\b"),
    _form("block_size", rf"\bblock[ _-]?size{_ABOUT}{_N}"),
    _form("preemptions", rf"{_N}\s*preemptions?\b"),
    _form("num_requests", rf"(?<![/\d]){_N}\s*(?:requests|prompts)\b(?!\s*(?:/|per)\s*s)"),
    _form("request_rate_per_s", r"(\d+(?:\.\d+)?)\s*(?:req(?:uest)?s?\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b|rps\b|qps\b)"),
)  # fmt: skip
_DEVICE = re.compile(
    r"(?:(\d+)\s*[x×]\s*)?(?:\w+[- ])?(\d{1,4})\s?(GB|GiB|G)\b[^,;.]{0,20}?(?:GPU|card|device|VRAM|HBM|A100|H100|H200)"
    r"|(?:A100|H100|H200|A6000|L40S?|L4|A30|A10G?|T4|V100|MI300X?|RTX ?\d{4})[- (]*(\d{2,3})\s?(GB|GiB)",
    re.IGNORECASE,
)
_KV_SIZE = re.compile(
    r"\bKV(?: cache)?(?: pool| memory| size)?[^\d,;.]{0,12}(\d+(?:\.\d+)?)\s?(GB|GiB)\b",
    re.IGNORECASE,
)
# what nobody says, and what patterns of numbers would try again from each of its characters
_ENDLESS = re.compile(r"[\d,_.]{25,}|\s{25,}|\w{200,}")
_KV_TYPE = re.compile(r"\b(fp8(?:_e\dm\d)?|int8|fp4|nvfp4)[ -]KV\b", re.IGNORECASE)
_IDLE = re.compile(
    r"(?:\b(?:device|gpu|npu|sm)[ -]+(?:utili[sz]ation|usage|use|util|load)\b|利用率)[^,;.\d]{0,20}(?<![\d.])0(?:\.0)?\s?%",
    re.IGNORECASE,
)
_SETTING = re.compile(
    rf"(?<![\w-])({_SPELLED})\s+(?:of\s+|is\s+|=\s*)?([\d.][\w.,%]*)(?![\w.,%])"
    r"(?!\s*(?:-|–|to)\s*\d)",
    re.IGNORECASE,
)


def find_phrases(text: str) -> Iterator[Phrase]:
    """The statements of a line."""
    text = _ENDLESS.sub(" ; ", text)
    if not any(c.isdigit() for c in text):
        return
    if _IDLE.search(text):
        yield Phrase("idle_device", True)
    if kind := _KV_TYPE.search(text):
        yield Phrase("kv_cache_dtype", kind[1].lower())
    if said := _KV_SIZE.search(text):
        scale = 2**30 if said[2].lower() == "gib" else 10**9
        yield Phrase(
            "kv_bytes", round(float(said[1]) * scale), True, "rounded as it is written"
        )
        text = text.replace(said[0], " ; ")
    for m in _DEVICE.finditer(text):
        size, unit = (m[2], m[3]) if m[2] else (m[4], m[5])
        yield Phrase(
            "device_bytes",
            int(size) * (2**30 if unit.lower() == "gib" else 10**9),
            True,
            "as the device is called",
        )
    text = _DEVICE.sub(" ; ", text)
    yield from _settings(text)
    text = _SETTING.sub(" ; ", text)
    for form in _FORMS:
        while found := form.pattern.search(text):
            yield from _said(form.fact, [g for g in found.groups() if g])
            text = f"{text[: found.start()]} ; {text[found.end() :]}"


def _settings(text: str) -> Iterator[Phrase]:
    """A setting's name and its value behind a blank: "max_tokens 1024"."""
    for m in _SETTING.finditer(text):
        name = re.sub(r"[ -]", "_", m[1]).lower()
        value = FLAGS[name].read(m[2].rstrip(".,"))
        if value is not None:
            yield Phrase(FLAGS[name].fact, value, FLAGS[name].inferred, FLAGS[name].note)


def _said(fact: str, numbers: list[str]) -> Iterator[Phrase]:
    if fact == "request_rate_per_s":
        yield Phrase(fact, float(numbers[0]))
        return
    values = [
        v for v in (read_count(n.replace(" ", "").lower()) for n in numbers) if v is not None
    ]
    if not values:
        return
    if fact == "blocks" and len(values) == 2:
        yield Phrase("pool_blocks", values[0])
        yield Phrase("block_size", values[1])
    elif fact == "lengths":
        if len(values) == 2:
            yield Phrase("prompt_tokens", values[0])
            yield Phrase("output_tokens", values[1])
    elif fact == "num_requests and prompt":
        yield Phrase("num_requests", values[0])
        yield Phrase("prompt_tokens", values[1] if len(values) == 2 else (values[1], values[2]))
    elif len(values) == 2:
        yield Phrase(fact, (min(values), max(values)))
    else:
        yield Phrase(fact, values[0])
