"""Figures in words: labels, units and digits, the same on the page and on the command line.

It knows the names of figures and how a number of each is written. What is good is said in
`compare.py`; colours and the number formats themselves are in `look.py`.
"""

from __future__ import annotations

from collections.abc import Container

from analyzer.look import gib, seconds, three_digits

LABELS = {
    "num_requests": "Requests",
    "num_finished": "Finished",
    "num_refused": "Refused",
    "num_steps": "Steps",
    "duration_s": "Duration",
    "num_preemptions": "Preemptions",
    "num_preempted_requests": "Requests preempted",
    "preemption_cost_s": "Preemption cost",
    "recomputed_tokens": "Tokens recomputed",
    "recomputed_frac": "Recomputed, of all computed",
    "prefix_cached_tokens": "Tokens from the prefix cache",
    "restored_tokens": "Tokens restored from the host",
    "swap_out_bytes": "Copied out to the host",
    "swap_in_bytes": "Copied in from the host",
    "stall_s": "Stalled for copies",
    "peak_used_frac": "Peak use of the pool",
    "full_steps_frac": "Steps at least 98 % full",
    "output_tokens_per_s": "Output tokens per second",
    "num_samples": "Samples",
    "full_samples_frac": "Samples at least 98 % full",
    "mean_used_samples_frac": "Mean use of the pool",
    "max_running": "Most running",
    "max_waiting": "Most waiting",
    "prefix_hit_frac": "Prefix hits, new requests",
    "resumed_hit_frac": "Prefix hits, preempted requests",
    "external_hit_frac": "Connector hits, new requests",
    "max_ttft_s": "Longest TTFT",
    "max_itl_s": "Longest ITL",
    "queued_s": "Queueing",
    "prompt_tokens": "Prompt tokens",
    "prompt_computed_tokens": "Prompt tokens computed",
    "generation_tokens": "Output tokens",
    "load_bytes": "Copied from the host",
    "store_bytes": "Copied to the host",
    "prefill_s": "Prefill",
    "decode_s": "Decode",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2e_s": "E2E",
    "queue_s": "Queueing",
}


NOT_RECORDED = "not recorded"


def label(metric: str) -> str:
    """'ttft_s p99' -> 'TTFT p99'; a figure without a label keeps its key."""
    name, _, which = metric.partition(" ")
    return f"{LABELS.get(name, name)} {which}".strip()


def show(metric: str, value: float | None) -> str:
    """A figure as people read it: '15.4 s', '3.42 GiB', '24.4 %', '1,234', '—' for None."""
    name = metric.split()[0]
    if value is None:
        return "—"
    if name.endswith("_s") and not name.endswith("_per_s"):
        text = seconds(value)
    elif name.endswith("_bytes"):
        text = gib(value)
    elif name.endswith("_frac"):
        text = f"{three_digits(value * 100)} %"
    else:
        text = f"{value:,.0f}" if float(value).is_integer() else three_digits(value)
    return text.replace("-", "−")


def show_delta(metric: str, value: float | None) -> str:
    """A difference, with its sign: '+4.16 ms', '−9', '0'; of shares in points: '−1.35 points'."""
    text = show(metric, value)
    if metric.endswith("_frac"):
        text = text.replace("%", "points")
    return f"{'+' if value and value > 0 else ''}{text}"


def show_change(frac: float | None, *, coarse: bool = False) -> str:
    """A change as a share of A, with its sign and three digits: '−10.7 %'; '' for None.

    coarse: with one decimal below 10 %, for what is no difference, or too little to be judged, so that
    digits of noise are not shown: '−0.2 %'.
    """
    if frac is None:
        return ""
    number = three_digits(frac * 100)
    if coarse and abs(frac) < 0.0995:
        number = f"{frac * 100:.1f}" if abs(frac) >= 5e-4 else "0"
    sign = "+" if frac > 0 and number != "0" else ""
    return f"{sign}{number} %".replace("-", "−")


def show_figure(
    metric: str, value: float | None, missing: Container[str], estimated: Container[str]
) -> str:
    """`show` for one side of a pair: "not recorded" where its executor could not see the figure,
    '160 ms est.' where a model made it in a measured run."""
    name = metric.split()[0]
    if name in missing:
        return NOT_RECORDED
    return f"{show(metric, value)} est." if name in estimated and value else show(metric, value)


def show_verdict(verdict: str | None, reason: str | None) -> str:
    """'better'; or, in brackets, why nothing is said: '(only 4 requests)'."""
    return verdict or (f"({reason})" if reason else "")


def percent(share: float) -> str:
    """A share in per cent with three digits: '1.35 %', '100 %'."""
    return f"{three_digits(share * 100)} %"


def show_time(value: float, in_steps: bool = False) -> str:
    """A time in words of three digits: '17.1 s', '23.4 ms'; of a step clock '17.1 steps'."""
    return f"{three_digits(value)} steps" if in_steps else seconds(value)


def show_move(a: float, b: float, in_steps: bool = False) -> str:
    """Two times with one unit, and with as many digits as tell them apart: '17.1 -> 15.4 s'."""
    unit, factor = ("s", 1.0) if max(abs(a), abs(b)) >= 1 else ("ms", 1000.0)
    if in_steps:
        unit, factor = "steps", 1.0
    for digits in range(3, 7):
        left, right = _digits(a * factor, digits), _digits(b * factor, digits)
        if left != right:
            break
    return f"{left} -> {right} {unit}"


def _digits(value: float, digits: int) -> str:
    """A number of at least so many significant digits, thousands apart."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(digits - whole, 0)}f}" if whole else f"{value:.{digits}g}"
