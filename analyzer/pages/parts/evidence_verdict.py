"""The diagnosis in words: verdict, next step, facts as cards, what is excluded, inferred and missing.

It knows how findings are said to a person. Sentences come from the rules; text that came from a source is
never markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from analyzer.diagnosis.capping import SIMULATED
from analyzer.diagnosis.findings import WORDS, Diagnosis, Step, Verdict
from analyzer.diagnosis.rule import times
from analyzer.pages.parts import shell
from analyzer.pages.parts.evidence_reading import Reading
from analyzer.pages.parts.messages import plain
from traces.evidence.evidence import Evidence, SourceReport

_FLAG = re.compile(r"--[a-z][a-z0-9-]+(?:[= ](?:\{[^}]*\}|[\w.:/{}\"'-]*\w))?")
TONES = {"high": "bad", "medium": "warn", "low": "calm"}
CALM_WORDS = ("NO_PRESSURE_YET", "NOT_KV", "INSUFFICIENT_EVIDENCE")
LIMIT = 8  # of a list before the rest is folded
_CSS = """
<style>
.kv-d {{ color: {text}; line-height: 1.4; }}
.kv-d p {{ margin: 0; }}
.kv-d code, .kv-word {{ font-family: "Source Code Pro", ui-monospace, monospace; }}
.kv-verdict {{ border: 1px solid {grid}; border-left: 5px solid var(--tone); border-radius: 0.5rem; padding: 0.6rem 0.9rem 0.7rem; }}
.kv-word {{ font-size: 1.12rem; font-weight: 700; color: var(--tone-text); overflow-wrap: anywhere; }}
.kv-verdict .kv-meaning {{ font-size: 0.86rem; color: {muted}; }}
.kv-verdict .kv-said {{ font-size: 1.05rem; margin-top: 0.15rem; }}
.kv-verdict ol {{ margin: 0.5rem 0 0 !important; padding: 0.45rem 0 0 !important; border-top: 1px solid {grid}; list-style: none; }}
.kv-verdict li {{ font-size: 0.9rem; margin: 0.15rem 0 0 !important; padding: 0 !important; }}
.kv-verdict li .kv-word {{ font-size: 0.82rem; }}
.kv-pill {{ display: inline-block; font-size: 0.72rem; border: 1px solid var(--tone); border-radius: 1rem; padding: 0 0.5rem; margin-left: 0.45rem; color: var(--tone-text); vertical-align: 2px; }}
.kv-bad {{ --tone: {preempt}; --tone-text: {bad}; }} .kv-warn {{ --tone: {b}; --tone-text: {text}; }} .kv-calm {{ --tone: {a}; --tone-text: {chosen}; }}
.kv-facts {{ display: grid; gap: 0.6rem; grid-template-columns: repeat(3, 1fr); }}
.kv-fact {{ border: 1px solid {grid}; border-radius: 0.5rem; padding: 0.45rem 0.7rem; min-width: 0; }}
.kv-fact h2 {{ margin: 0; padding: 0; font-size: 0.8rem; font-weight: 400; color: {muted}; }}
.kv-fact .kv-value {{ font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.3; overflow-wrap: anywhere; }}
.kv-fact .kv-how {{ font-size: 0.78rem; color: {muted}; line-height: 1.3; overflow-wrap: anywhere; }}
.kv-kind {{ font-size: 0.72rem; font-weight: 600; }} .kv-known {{ color: {good}; }} .kv-inferred {{ color: {chosen}; }} .kv-unknown {{ color: {muted}; }}
ul.kv-list {{ margin: 0 !important; padding: 0 !important; list-style: none; font-size: 0.88rem; }}
.kv-list li {{ margin: 0 !important; padding: 0.28rem 0; border-top: 1px solid {grid}; overflow-wrap: anywhere; }}
.kv-list li:first-child {{ border-top: 0; }}
.kv-list b.kv-word {{ font-size: 0.8rem; color: {text}; }} .kv-list b {{ font-weight: 600; }} .kv-list .kv-muted {{ color: {muted}; }}
.kv-list li.kv-alert {{ border-left: 3px solid {b}; padding-left: 0.6rem; }}
.st-key-evidence_proofs {{ gap: 0.45rem; }} .st-key-evidence_proofs [data-testid="stVerticalBlock"] {{ gap: 0.1rem; }}
.st-key-evidence_proofs [data-testid="stCheckbox"] p {{ font-size: 0.82rem; color: {muted}; }}
.kv-reasons {{ display: grid; gap: 0.4rem 1.6rem; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); align-items: start; }}
.kv-reasons h3 {{ font-size: 0.98rem; font-weight: 600; margin: 0.4rem 0 0.1rem; padding: 0; }}
.kv-num {{ display: inline-block; min-width: 1.25em; text-align: center; border: 1px solid {muted}; border-radius: 0.25rem; font-size: 0.76rem; font-weight: 600; margin-right: 0.45rem; line-height: 1.35; }}
.kv-raw {{ font-family: "Source Code Pro", ui-monospace, monospace; font-size: 0.74rem; line-height: 1.45; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; padding: 0.4rem 0.55rem; border: 1px solid {grid}; border-radius: 0.4rem; max-height: 15rem; overflow-y: auto; color: {text}; }}
.kv-raw i {{ color: {muted}; font-style: normal; user-select: none; }}
.st-key-evidence_next [data-testid="stCode"] pre {{ padding: 0.45rem 0.7rem; }}
.st-key-evidence_next, .st-key-evidence_simulate {{ padding: 0.6rem 0.9rem; }}
@media (max-width: 640px) {{
.kv-facts {{ gap: 0.35rem; grid-template-columns: repeat(2, 1fr); }}
.kv-fact {{ padding: 0.3rem 0.45rem; }} .kv-fact .kv-value {{ font-size: 1.02rem; }} .kv-fact .kv-how {{ font-size: 0.72rem; }}
.kv-verdict {{ padding: 0.45rem 0.6rem; }} .kv-word {{ font-size: 0.95rem; }} .kv-verdict .kv-said {{ font-size: 0.94rem; }}
}}
</style>
"""


def style(theme: Any) -> None:
    """The page's own style sheet, beside the frame's."""
    st.html(
        _CSS.format(
            text=theme.text, grid=theme.grid, muted=theme.muted, preempt=theme.preempt, bad=theme.bad_text,
            a=theme.a, b=theme.b, chosen=theme.chosen_text, good=theme.good_text,
        )
    )  # fmt: skip


def _safe(text: object) -> str:
    return html.escape(" ".join(str(text).split()))


def _count(num: float | None) -> str:
    if num is None:
        return "—"
    return f"{num:,.0f}" if float(num).is_integer() or abs(num) >= 100 else f"{num:,.3g}"


# ---- verdict and next step ------------------------------------------------------------------------


def heading(reading: Reading, found: Diagnosis, evidence: Evidence) -> None:
    """What was read, and its set-up in one line."""
    shown = evidence if len(reading.parts) > 1 else reading.evidence
    page_title(f"Diagnosis of {_short(shown.label)}")
    facts = found.facts
    parts = [
        " ".join(str(v) for v in (facts.get("engine"), facts.get("version")) if v) or "engine unknown",
        evidence.family and f"grammar {evidence.family}",
        facts.get("model"),
        times(facts["samples"], "sample") if facts.get("samples") else "no samples",
        facts.get("period_s") and f"every {facts['period_s']:,.3g} s",
        facts.get("first") and f"{facts['first']} to {facts.get('last')}",
    ]  # fmt: skip
    with st.container(key="set_up"):
        st.caption(plain(" · ".join(str(p) for p in parts if p)))


def page_title(text: str) -> None:
    """The heading, as on the other pages."""
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.title(plain(text), anchor=False, width="content")


def _short(label: str, most: int = 90) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def verdict_card(found: Diagnosis) -> None:
    """The word, what it means, the sentence; further verdicts in order with why."""
    first, *others = found.verdicts
    more = "".join(
        f'<li class="kv-{_tone(v)}"><span class="kv-word">{v.word}</span><span class="kv-pill">{v.severity}</span><br>{_safe(v.statement)}</li>'
        for v in others
    )
    st.html(
        f'<section class="kv-d kv-verdict kv-{_tone(first)}" aria-label="Verdict"><p><span class="kv-word">{first.word}</span>'
        f'<span class="kv-pill">{first.severity}</span></p><p class="kv-meaning">{_safe(WORDS[first.word])}</p>'
        f'<p class="kv-said">{_safe(first.statement)}</p>{f"<ol>{more}</ol>" if more else ""}</section>'
    )


def _tone(verdict: Verdict) -> str:
    return "calm" if verdict.word in CALM_WORDS else TONES[verdict.severity]


def next_step_card(found: Diagnosis) -> None:
    """The smallest next step with its effect and the flag to copy; alternatives and useless knobs below."""
    step = found.next_step
    with st.container(border=True, key="evidence_next"):
        st.markdown("**Smallest next step**")
        _step(step.first, True)
        if step.alternatives or step.useless:
            title = f"{len(step.alternatives)} alternatives" if len(step.alternatives) > 1 else "An alternative" if step.alternatives else "What does not help"  # fmt: skip
            if step.alternatives and step.useless:
                title += ", and what does not help"
            with st.expander(title):
                for other in step.alternatives:
                    _step(other, False)
                if step.useless:
                    items = "".join(f'<li><span class="kv-muted">does not help:</span> {_safe(u)}</li>' for u in step.useless)  # fmt: skip
                    st.html(f'<ul class="kv-d kv-list">{items}</ul>')


def _step(step: Step, first: bool) -> None:
    flags = _FLAG.findall(step.change)
    flag_is_all = len(flags) == 1 and flags[0].strip() == step.change.strip()
    if not flag_is_all:
        said = step.change if step.change.startswith("-") else step.change[:1].upper() + step.change[1:]  # fmt: skip
        st.markdown(plain(said) if first else f"- {plain(said)}")
    if flags:
        st.code(" ".join(f.strip() for f in flags), language=None, wrap_lines=True)
    st.caption(plain(f"Effect: {step.effect}"))
    if step.change == SIMULATED:
        _to_what_if()


def _to_what_if() -> None:
    """What-ifs start from the run in place A: where run B is diagnosed, the two change places."""
    now = st.query_params
    swapped = now.get("side") == "B" and "a" in now and "b" in now
    label, icon = "Find it on What-if", ":material/tune:"
    if swapped:
        shell.link_to("what-if", label, icon, a=now["b"], b=now["a"])
    else:
        shell.link_to("what-if", label, icon)


# ---- cards ----------------------------------------------------------------------------------------


def fact_cards(facts: Mapping[str, Any]) -> None:
    """Pool, preemptions, safe concurrency, the wall, recomputed tokens, queue and throughput."""
    cards = [_pool(facts), _preemptions(facts), _concurrency(facts), _wall(facts), _recomputed(facts), _load(facts)]  # fmt: skip
    st.html(f'<section class="kv-d kv-facts" aria-label="Key facts">{"".join(cards)}</section>')


def _fact(title: str, value: str, kind: str = "", how: str = "", full: str = "") -> str:
    mark = f' <span class="kv-kind kv-{kind}">{kind}</span>' if kind else ""
    title_of = f' title="{_safe(full)}"' if full else ""
    return (
        f'<article class="kv-fact"{title_of}><h2>{_safe(title)}{mark}</h2><p class="kv-value">{_safe(value)}</p>'
        f'<p class="kv-how">{_safe(how)}</p></article>'
    )


def _pool(facts: Mapping[str, Any]) -> str:
    blocks, tokens = facts.get("pool_blocks"), facts.get("pool_tokens")
    between = facts.get("pool_tokens_estimate") or facts.get("pool_tokens_estimated_from_slope")
    value = "unknown"
    how = [str(facts.get("pool_how") or "")]
    if tokens:
        value = f"{_count(tokens)} tokens"
        if blocks:
            size = f"{_count(blocks)} blocks of {_count(facts.get('block_size'))}"
            how = [size, *(h for h in how if not h.startswith(size))]
    elif blocks:
        value = f"{_count(blocks)} blocks"
    elif between:
        value = f"{_count(between[0])} to {_count(between[1])} tokens"
    checks = list(facts.get("pool_checks") or [])
    disputes = list(facts.get("pool_disputes") or [])
    if checks:
        how.append(f"checked: {checks[0]}")
    how += [f"disputed: {d}" for d in disputes]
    kind = str(facts.get("pool_kind") or "unknown")
    return _fact("KV pool", value, kind, "; ".join(filter(None, how)), "; ".join((*checks, *disputes)))  # fmt: skip


def _preemptions(facts: Mapping[str, Any]) -> str:
    p = facts.get("preemptions") or {}
    low, high, kind = p.get("low"), p.get("high"), str(p.get("kind") or "unknown")
    value = "unknown"
    if p.get("value") is not None:
        value = _count(p["value"])
    elif low is not None and high is not None:
        value = f"{_count(low)} to {_count(high)}"
    elif low is not None:
        value = f"at least {_count(low)}"
    elif high is not None:
        value = f"at most {_count(high)}"
    rate = facts.get("preemption_rate_per_s")
    how = str(p.get("how") or "")
    if rate:
        per = f"{rate[0]:,.3g}" if rate[0] == rate[1] else f"{rate[0]:,.3g} to {rate[1]:,.3g}"
        how = f"{per} a second; {how}"
    if p.get("since_start") and "since the start" not in how:
        how += "; since the server's start"
    return _fact("Preemptions", value, kind, _short(how, 190), how)


_LENGTHS = {
    "stated": "the longest request as stated",
    "stated_low": "the shortest as stated",
    "p50": "the median length",
    "p95": "the 95th percentile of requests that finished",
    "max": "the longest that finished",
    "held_mean": "the mean that running requests held when the pool was fullest",
    "max_model_len": "max_model_len",
}


def _concurrency(facts: Mapping[str, Any]) -> str:
    value, basis = facts.get("safe_concurrency"), facts.get("safe_concurrency_basis")
    others = {k: v for k, v in (facts.get("safe_concurrency_at") or {}).items() if v is not None and k in _LENGTHS}  # fmt: skip
    held = str(basis or "").startswith("the mean that running requests held")
    how = [f"to their end at {basis}"]
    if value is None:
        how = [str(basis or "neither lengths nor what a request holds are known")]
    elif held:
        how = [f"at {basis}; fewer where they grow longer"]
    how += [f"{_count(v)} at {_LENGTHS[k]}" for k, v in others.items() if _LENGTHS[k] != basis]
    if facts.get("held_tokens_per_running"):
        how.append(f"a running request holds {_count(facts['held_tokens_per_running'])} tokens")
    shown = "unknown" if value is None else f"{_count(value)} requests"
    title = "Fit at what they held" if held and value is not None else "Safe concurrency"
    return _fact(title, shown, "" if value is not None else "unknown", "; ".join(how))  # fmt: skip


def _wall(facts: Mapping[str, Any]) -> str:
    at, kind, eta = (
        facts.get("first_full_at"),
        facts.get("first_full_kind"),
        facts.get("eta_full"),
    )
    peak = facts.get("usage_max")
    how = [f"usage up to {peak:,.4g} %"] if isinstance(peak, int | float) else []
    if at:
        if kind == "inferred" and facts.get("eta_full_how"):
            how.append(str(facts["eta_full_how"]))
        return _fact("Pool first full", str(at), str(kind or ""), "; ".join(how))
    if eta:
        return _fact("Pool full at this rate", str(eta), "inferred", "; ".join([*how, str(facts.get("eta_full_how") or "")]))  # fmt: skip
    full = isinstance(peak, int | float) and peak < 98
    evicted = (facts.get("preemptions") or {}).get("low")
    if full and evicted:
        how.append("it was full when requests were evicted, between or before the samples")
        return _fact("Pool first full", "in no sample", "unknown", "; ".join(how))
    return _fact("Pool first full", "in no sample" if full else "unknown", "known" if full else "unknown", "; ".join(how))  # fmt: skip


def _recomputed(facts: Mapping[str, Any]) -> str:
    r = facts.get("recomputed_tokens") or {}
    low, high, kind = r.get("low"), r.get("high"), str(r.get("kind") or "unknown")
    value = "unknown"
    if low is not None and high is not None:
        value = _count(low) if low == high else f"{_count(low)} to {_count(high)}"
    elif low is not None:
        value = f"at least {_count(low)}"
    hidden = facts.get("hidden_prefill_tokens")
    how = f"hidden prefill seen: {_count(hidden)}" if hidden else "KV computed before and lost"
    return _fact("Recomputed tokens", value, kind, how)


def _load(facts: Mapping[str, Any]) -> str:
    running, waiting = facts.get("running_range"), facts.get("waiting_range")
    if not running and not waiting:
        limit = facts.get("max_num_seqs")
        return _fact("Running and waiting", "unknown", "unknown", f"max_num_seqs {_count(limit)}" if limit else "no samples")  # fmt: skip
    both = [f"{_count(r[0])} to {_count(r[1])}" if r and r[0] != r[1] else _count(r[1]) if r else "—" for r in (running, waiting)]  # fmt: skip
    how = []
    if facts.get("max_num_seqs"):
        how.append(f"max_num_seqs {_count(facts['max_num_seqs'])}")
    growth = facts.get("queue_growth_per_s")
    if isinstance(growth, int | float) and growth > 0:
        how.append(f"the queue grows by {growth * 60:,.3g} a minute")
    swapped = facts.get("swapped_max")
    if swapped:
        how.append(f"swapped up to {_count(swapped)}")
    return _fact("Running · waiting", " · ".join(both), "known", "; ".join(how))


# ---- what else is said --------------------------------------------------------------------------


def notes_section(notes: Sequence[str], label: str) -> None:
    """Traps or notices, plainly."""
    if not notes:
        return
    items = [f'<li class="kv-alert">{_safe(n)}</li>' for n in notes]
    st.html(f'<ul class="kv-d kv-list" aria-label="{label}">{"".join(items[:LIMIT])}</ul>')
    if len(items) > LIMIT:
        with st.expander(f"{len(items) - LIMIT} more"):
            st.html(f'<ul class="kv-d kv-list">{"".join(items[LIMIT:])}</ul>')


def reasons_section(found: Diagnosis, sources: Sequence[SourceReport]) -> None:
    """What is missing, excluded, inferred, and what was read, side by side."""
    blocks: list[tuple[str, list[str]]] = [
        ("Missing, and what would settle it", [f"<b>{_safe(m.what)}</b><br>{_safe(m.settle)}" for m in found.missing]),
        (
            "Excluded, and why",
            [f'<b class="kv-word">{_safe(w)}</b><br>{_safe(why)}' for w, why in found.excluded.items()],
        ),
        ("Inferred, and how", [f"<b>{_safe(w)}</b><br>{_safe(how)}" for w, how in found.inferred.items()]),
        ("What was read", [_source(s) for s in sources]),
    ]  # fmt: skip
    parts = [
        f'<div><h3>{title}</h3><ul class="kv-list">{"".join(f"<li>{i}</li>" for i in items)}</ul></div>'
        for title, items in blocks
        if items
    ]
    st.html(f'<section class="kv-d kv-reasons">{"".join(parts)}</section>')
    skipped = [(s.name, line) for s in sources for line in s.skipped_examples]
    if skipped:
        with st.expander("Lines that were skipped, for example"):
            rows = [
                f"<i>{_safe(name)}</i>  {html.escape(line[:300])}\n" for name, line in skipped
            ]
            st.html(f'<pre class="kv-raw">{"".join(rows)}</pre>')


def _source(s: SourceReport) -> str:
    """A source: kind, grammar, what was recognised and skipped, how sure the reader is."""
    told = [
        f"{s.recognised:,} recognised, {s.skipped:,} skipped of {s.num_lines:,} lines",
        *s.notes,
    ]
    what = " · ".join(_safe(w) for w in (s.kind, s.engine, s.family) if w)
    sure = f"{100 * s.sure:.0f} % sure of engine and grammar"
    return (
        f'<b>{_safe(s.name)}</b> <span class="kv-muted">{what} · {sure}</span><br>'
        + "; ".join(map(_safe, told))
    )
