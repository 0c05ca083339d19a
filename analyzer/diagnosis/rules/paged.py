"""What vLLM says of a hybrid model at the start: pages of states as blocks, sizes that do not agree."""

from __future__ import annotations

from analyzer.diagnosis.capping import cost_of_cap
from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from traces.evidence.evidence import Fact

SAME_FRAC = 0.05
LARGE_BLOCK = 256  # tokens; larger blocks than attention alone has
MAMBA_KNOB = (
    "--mamba-block-size (a state kept less often), or --mamba-cache-mode without alignment"
)


def _page(q: Quantities) -> Fact | None:
    """The line that makes blocks as large as a state page, or None."""
    fact = q.fact("block_size")
    if fact is None or not isinstance(fact.value, int | float) or fact.at is None:
        return None
    said = "attention block size" in fact.at.text
    return fact if said and fact.value > LARGE_BLOCK else None


def find_state_blocks(q: Quantities) -> Finding | None:
    """The engine refuses more requests than it has state blocks for."""
    said = [n for n in q.evidence.all_notices("too_small") if "state_blocks" in n.values]
    if not said or q.main is not None:
        return None
    limit, blocks = said[0].values.get("max_num_seqs"), said[0].values.get("state_blocks")
    text = f"max_num_seqs {limit:,} is above the {blocks:,} state blocks that there are"
    return Finding(
        "HYBRID_OVERHEAD",
        "medium",
        f"A request needs a state block of its own: {text}, so the engine did not start.",
        (
            Proof(
                text[0].upper() + text[1:],
                {"max_num_seqs": limit, "state_blocks": blocks},  # type: ignore[dict-item]  # integers, as the grammar reads them
                tuple(n.at for n in said[:2]),
            ),
        ),
        (
            Step(
                f"--max-num-seqs {blocks}",
                "each request has its state block, and the engine starts",
                {"max_num_seqs": blocks},  # type: ignore[dict-item]  # an integer
            ),
            Step(
                "a higher gpu_memory_utilization, or a smaller max_model_len",
                "more state blocks",
            ),
        ),
        ("fp8 KV: it shrinks attention pages, not states",),
        (),
        (),
        {"starts": False, "slot_limit": blocks},
    )


def find_pages(q: Quantities) -> Finding | None:
    """Blocks as large as a state page: what a request holds is counted in pages, not in its tokens."""
    fact = _page(q)
    if fact is None:
        return None
    size = int(fact.value)  # type: ignore[arg-type]  # a number, looked at in _page
    queued = q.main is not None and q.has("waiting") and float(q.main.waiting[-1]) > 0
    pressed = queued or (q.max_usage or 0.0) >= 0.5
    held, pool = q.held, q.pool.tokens
    text = f"a block is {size:,} tokens, as large as a page of the model's state"
    proofs = [
        Proof(
            f"{text[0].upper()}{text[1:]}: each request holds whole pages of every group, however short it is",
            {"block_size": size},
            (fact.at,) if fact.at is not None else (),
        )
    ]
    fit = None
    if held is not None and q.main is not None and pressed:
        fit = int(1 / held.frac + 1e-6)
        each = f" ({held.tokens:,.0f} tokens of the printed size)" if held.tokens else ""
        proofs.append(
            Proof(
                f"{percent(held.usage)} are held by {held.running} running: {percent(held.frac)}{each} a request, so {times(fit, 'request')} fit",
                {"held_frac": round(held.frac, 4), "fit": fit},
                q.main.lines(held.sample),
            )
        )
    elif pool:
        proofs.append(
            Proof(
                f"The printed {pool:,} tokens are {pool // size:,} blocks, shared by states and attention",
                {"pool_tokens": pool, "blocks": pool // size},
                q.pool.lines,
            )
        )
    steps = [
        Step(
            MAMBA_KNOB,
            "fewer state pages a request, and prefixes are shared in smaller units",
        )
    ]
    if fit:
        cap = Step(
            f"at most {fit} at once (--max-num-seqs {fit})",
            "what the pages carry" + cost_of_cap(q, fit),
            {"max_num_seqs": fit},
        )
        steps.insert(0, cap)
    return Finding(
        "HYBRID_OVERHEAD",
        "medium" if pressed else "low",
        f"The printed size misleads: {text}"
        + (f", and each running request holds {percent(held.frac)}" if held and fit else "")
        + ".",
        tuple(proofs),
        tuple(steps),
        (
            "the printed size over the prompt length: pages and states are left out",
            "fp8 KV: the state page stays as large, and with it the block",
        ),
        (),
        (
            Missing(
                "pages that a request holds",
                "usage at two concurrencies, or usage with one short request running",
            ),
        ),
        {"page_tokens": size, **({"safe_concurrency": fit} if fit else {})},
    )


def _of_one_start(q: Quantities) -> bool:
    """Whether size and concurrency were printed together: the size just before the concurrency."""
    size, many = q.fact("pool_tokens"), q.fact("max_concurrency")
    if size is None or many is None or size.at is None or many.at is None or size.inferred:
        return False
    return size.at.source == many.at.source and 0 <= many.at.number - size.at.number <= 3


def find_sizes_disagree(q: Quantities) -> Finding | None:
    """The printed tokens and the printed concurrency are of different pools."""
    tokens, many, length = (
        q.number("pool_tokens"),
        q.number("max_concurrency"),
        q.number("max_concurrency_tokens"),
    )
    if not tokens or not many or not length or many < 0.2 or not _of_one_start(q):
        return None
    size = q.pool.block_size or 16
    rounded = -(-length // size) * size
    rounding = 0.006 / many
    if any(abs(many * n / tokens - 1) <= SAME_FRAC + rounding for n in (length, rounded)):
        return None
    by_many = many * length
    text = (
        f"{tokens:,.0f} tokens are printed, and {many:g} requests of {length:,.0f} are {by_many:,.0f} tokens "
        f"(x {by_many / tokens:.2f})"
    )
    return Finding(
        "HYBRID_OVERHEAD",
        "low",
        f"The printed size misleads: {text}, as hybrid models print it.",
        (
            Proof(
                text,
                {"pool_tokens": tokens, "by_concurrency": round(by_many)},
                q.lines("pool_tokens", "max_concurrency"),
            ),
        ),
        (
            Step(
                f"plan with {int(many)} requests of {length:,.0f} tokens, not with {tokens:,.0f} tokens",
                "the engine counts its groups of layers for that number",
                {"safe_concurrency": int(many)},
            ),
        ),
        ("the printed size over the length: it leaves out how groups of layers share blocks",),
        (),
        (Missing("what a shorter request holds", "usage at two concurrencies or two lengths"),),
        {"pool_tokens_by_concurrency": round(by_many)},
    )


_CALM = ("NO_PRESSURE_YET", "HOL_CAPACITY", "SLOT_LIMIT", "NOT_KV")

RULES = (
    Rule(
        "state-blocks",
        "HYBRID_OVERHEAD",
        19,
        ("notices",),
        find_state_blocks,
        "A request of a model with states needs a state block of its own, and the engine refuses more requests than it has.",
        "kaito#2319, vllm#49064, vllm PR#38270",
        None,
        ("OVERSIZE_REQUEST", "INSUFFICIENT_EVIDENCE", *_CALM),
    ),
    Rule(
        "pages-as-blocks",
        "HYBRID_OVERHEAD",
        84,
        (),
        lambda q: find_pages(q) if _pages_bind(q) else None,
        "vLLM makes attention blocks as large as a page of states; every request holds whole pages of each group, so few run "
        "and the queue waits before what looks like room.",
        "vllm#54458, #47430, club-3090 PR#1170",
        None,
        _CALM,
    ),
    Rule(
        "pages-at-start",
        "HYBRID_OVERHEAD",
        140,
        (),
        find_pages,
        "The same, where nothing waits: what was printed is no number of tokens to plan with.",
        "vllm#54458",
    ),
    Rule(
        "sizes-disagree",
        "HYBRID_OVERHEAD",
        141,
        ("pool",),
        find_sizes_disagree,
        "Older versions print num_blocks over groups as tokens, and a concurrency that is right: they disagree for hybrid models only.",
        "vllm#40691, PR#38364",
    ),
)


def _pages_bind(q: Quantities) -> bool:
    """Whether requests wait although there seems to be room, where blocks are pages."""
    series = q.main
    if series is None or not q.has("waiting") or q.held is None:
        return False
    return (
        float(series.waiting[-1]) > 0 and (q.max_usage or 1.0) < 0.95 and q.held.running <= 16
    )
