"""Advice: scripted worlds in which the answer is typed, and the real engine on small ones and the sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from analyzer.advice import advise
from analyzer.advice_parts import Advice, Answer
from analyzer.advice_text import as_text
from analyzer.goals import parse_goals
from analyzer.lever_facts import Facts, facts_of
from analyzer.lever_price import price_of
from analyzer.outcome import Outcome, Simulate, outcome_of
from engine.config import EngineSettings
from engine.trial_facts import machine_facts
from engine.trials import Trials
from tests.engine_builders import make_request, make_settings, make_trace
from traces.errors import SettingsError
from traces.open import open_workload
from traces.workload import Workload

# 100 usable blocks of 16 tokens, where all at once would need 139.
CARD = EngineSettings(model="llama-3.1-8b", device="rtx-4090", num_gpu_blocks=101)
LOAD = make_trace(
    make_request("a", 1_400, 100), make_request("b", 500, 100, 1), make_request("c", 90, 10, 9)
)
Law = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def facts(settings: EngineSettings = CARD, load: Workload = LOAD) -> Facts:
    return facts_of(load, machine_facts(settings, load.concurrency))


def world(law: Law) -> Simulate:
    """A world whose figures follow from the changes; whatever the law leaves out is calm."""

    def simulate(changes: Mapping[str, Any]) -> Outcome:
        figures = {
            "num_requests": 3, "num_finished": 3, "num_refused": 0, "num_unfinished": 0, "num_preemptions": 0,
            "recomputed_frac": 0.0, "output_tokens_per_s": 100.0, "num_gpu_blocks": 101, "max_running": 3,
            "duration_s": 9.0, "peak_used_frac": 0.75, "ttft_s": {"p50": 1.0, "p99": 1.0},
            "tpot_s": {"p50": 0.1, "p99": 0.1}, "e2e_s": {"p50": 3.0, "p99": 3.0},
            "queue_s": {"p50": 0.0},
        }  # fmt: skip
        return Outcome(dict(changes), figures | dict(law(changes)), (Path(repr(changes)),))

    return simulate


def asked(law: Law, *goals: str, levers: tuple[str, ...], **more: Any) -> Advice:
    return advise(world(law), facts(), parse_goals(goals), levers=levers, **more)


def of(advice: Advice, *levers: str) -> Answer:
    return next(a for a in (*advice.answers, *advice.pairs) if a.levers == levers)


def changes(answer: Answer) -> Mapping[str, Any]:
    assert answer.option is not None
    return answer.option.changes


def blocks(changes: Mapping[str, Any]) -> int:
    return int(changes.get("num_gpu_blocks", 101))


# ---- one lever suffices --------------------------------------------------------------------------


def test_the_smallest_pool_that_suffices_and_the_one_below_that_does_not() -> None:
    advice = asked(
        lambda c: {"num_preemptions": max(0, 130 - blocks(c))},
        "no-preemption",
        levers=("num_gpu_blocks",),
    )

    answer = of(advice, "num_gpu_blocks")
    assert (advice.state, answer.verdict) == ("reached", "enough")
    assert changes(answer) == {"num_gpu_blocks": 130}
    assert answer.below is not None
    assert answer.below.changes == {"num_gpu_blocks": 129}
    assert answer.is_monotone
    assert answer.sentence == (
        "enough with a KV pool of 130 blocks (0 preemptions), not with a KV pool of 129 blocks (1 preemption)"
    )
    assert answer.option is not None
    assert answer.option.flag == "--num-gpu-blocks-override 130"
    assert answer.option.command == "--num-gpu-blocks 130"


def test_where_a_larger_pool_fails_again_the_answer_is_the_size_from_which_none_does() -> None:
    # 131 is the next one after what is found, and 130 + 1 of the neighbourhood is always run.
    advice = asked(
        lambda c: {"num_preemptions": int(blocks(c) < 130 or blocks(c) == 131)},
        "no-preemption",
        levers=("num_gpu_blocks",),
    )

    answer = of(advice, "num_gpu_blocks")
    assert changes(answer) == {"num_gpu_blocks": 132}
    assert not answer.is_monotone
    assert answer.below is not None
    assert answer.below.changes == {"num_gpu_blocks": 131}
    assert answer.happens is not None
    assert answer.happens.changes == {"num_gpu_blocks": 130}
    assert answer.option is not None
    assert answer.option.flag == "--num-gpu-blocks-override 132"
    assert answer.sentence == (
        "enough with a KV pool of 132 blocks (0 preemptions), not with a KV pool of 131 blocks (1 preemption), and no "
        "larger one that was tried fails; a KV pool of 130 blocks happens to be enough too, but some larger ones fail again"
    )
    assert answer.happens in advice.proofs()
    document = advice.as_json()["answers"][0]
    assert document["happens"]["changes"] == {"num_gpu_blocks": 130}
    assert document["option"]["changes"] == {"num_gpu_blocks": 132}


def test_least_memory_upwards_gives_the_size_from_which_none_fails_too() -> None:
    advice = asked(
        lambda c: {
            "num_preemptions": int(blocks(c) < 130 or blocks(c) == 131),
            "num_gpu_blocks": blocks(c),
        },
        "least-memory",
        levers=("num_gpu_blocks",),
    )

    pool = of(advice, "num_gpu_blocks")
    assert changes(pool) == {"num_gpu_blocks": 132}
    assert pool.below is not None
    assert pool.below.changes == {"num_gpu_blocks": 131}
    assert pool.happens is not None
    assert pool.happens.changes == {"num_gpu_blocks": 130}
    assert "a KV pool of 130 blocks happens to be enough too" in pool.sentence


def test_what_cannot_run_is_passed_over_and_shown_where_nothing_else_is_left() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        if c.get("tensor_parallel_size", 1) > 1:
            raise SettingsError("No second GPU is there.")
        return {"num_preemptions": 0 if c.get("weight_dtype") == "int4" else 5}

    advice = asked(law, "no-preemption", levers=("tensor_parallel_size", "weight_dtype"))

    assert of(advice, "tensor_parallel_size").verdict == "cannot run"
    assert "No second GPU is there." in of(advice, "tensor_parallel_size").sentence
    assert changes(of(advice, "weight_dtype")) == {"weight_dtype": "int4"}


def test_answers_are_ranked_by_their_dearest_price() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        slow = {"output_tokens_per_s": 90.0} if "max_num_seqs" in c else {}
        return {"num_preemptions": 0 if c else 5, **slow}

    levers = ("replicas", "max_num_seqs", "kv_cache_dtype", "gpu_memory_utilization", "watermark", "victim")  # fmt: skip
    advice = asked(law, "no-preemption", levers=levers)

    assert [a.levers[0] for a in advice.answers] == [
        "watermark", "gpu_memory_utilization", "kv_cache_dtype", "max_num_seqs", "replicas", "victim",
    ]  # fmt: skip
    assert [a.option.price.kind for a in advice.answers if a.option] == [
        "free", "memory", "quality", "slower", "money", "other engine",
    ]  # fmt: skip
    assert advice.summary.startswith("6 changes of 6 reach it. First: Watermark, enough with")
    assert advice.summary.endswith("Its price: none but the flag.")


def test_a_flag_that_makes_requests_wait_is_no_free_one_and_the_headline_says_so() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        slow = {"ttft_s": {"p50": 1.186, "p99": 1.029}} if "watermark" in c else {}
        return {"num_preemptions": 0 if c else 5, **slow}

    both = asked(law, "no-preemption", levers=("watermark", "max_num_seqs"))
    alone = asked(law, "no-preemption", levers=("watermark", "gpu_memory_utilization"))

    assert [a.levers[0] for a in both.answers] == ["max_num_seqs", "watermark"]
    assert [a.option.price.kind for a in both.answers if a.option] == ["free", "trade"]
    assert [a.levers[0] for a in alone.answers] == ["watermark", "gpu_memory_utilization"]
    assert alone.summary.endswith(
        "Preemption ends, and requests wait longer: TTFT p50 +18.6 %, TTFT p99 +2.9 %."
    )


def test_less_than_a_tenth_of_the_way_hardly_helps() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        num = {"watermark": 163, "block_size": 158, "enable_chunked_prefill": 175}
        return {"num_preemptions": next((num[k] for k in c if k in num), 176)}

    advice = asked(
        law, "no-preemption", levers=("watermark", "block_size", "enable_chunked_prefill")
    )

    # A tenth of 176 are 17.6: 158 is 18 fewer, 163 is 13, 175 within 1 %.
    assert [(a.levers[0], a.verdict) for a in advice.answers] == [
        ("block_size", "helps"),
        ("watermark", "hardly helps"),
        ("enable_chunked_prefill", "no change"),
    ]
    assert advice.answers[1].sentence.startswith("hardly helps: 163 preemptions with watermark")


def test_a_pipeline_says_that_it_is_a_best_case_and_replicas_how_they_were_routed() -> None:
    levers = ("pipeline_parallel_size", "replicas")
    advice = asked(lambda c: {"num_preemptions": 0 if c else 5}, "no-preemption", levers=levers)

    notes = {a["levers"][0]: " ".join(a["option"]["notes"]) for a in advice.as_json()["answers"]}  # fmt: skip
    assert "best case" in notes["pipeline_parallel_size"]
    assert "held against no measured run (docs/cost-model.md)" in notes["pipeline_parallel_size"]  # fmt: skip
    assert "shared out by the router rule round-robin" in notes["replicas"]
    lines = as_text(of(advice, "pipeline_parallel_size"), False)
    assert any("best case" in line for line in lines)


def test_levers_that_do_not_help_are_shown_with_the_figure_that_shows_it() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        num = {"block_size": 200, "enable_chunked_prefill": 201, "enable_prefix_caching": 250, "watermark": 120}  # fmt: skip
        return {"num_preemptions": next((num[k] for k in c if k in num), 200)}

    levers = ("block_size", "enable_chunked_prefill", "enable_prefix_caching", "watermark", "copy_path")  # fmt: skip
    advice = asked(law, "no-preemption", levers=levers)

    assert {a.levers[0]: a.verdict for a in advice.answers} == {
        "watermark": "helps", "block_size": "no change", "enable_chunked_prefill": "no change",
        "enable_prefix_caching": "worse", "copy_path": "idle",
    }  # fmt: skip
    assert of(advice, "enable_prefix_caching").sentence == (
        "makes it worse: 250 preemptions with prefix caching off, 200 preemptions at the base"
    )
    assert "nothing is copied to the host" in of(advice, "copy_path").sentence


def test_a_bound_met_by_a_stretch_of_values_is_found_there() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        threshold = c.get("long_prefill_token_threshold", 0)
        return {"ttft_s": {"p99": 1.5 if threshold in (256, 512) else 5.0}}

    advice = asked(law, "ttft-p99=2", levers=("long_prefill_token_threshold",))

    answer = of(advice, "long_prefill_token_threshold")
    assert changes(answer) == {"long_prefill_token_threshold": 512}
    assert answer.below is not None
    assert answer.below.changes == {"long_prefill_token_threshold": 1_024}


# ---- two levers ----------------------------------------------------------------------------------


def test_two_levers_suffice_together_where_none_does_and_both_are_made_small() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        left = 100 - 500 * c.get("watermark", 0) if c.get("watermark", 0) <= 0.1 else 50
        left -= 1000 * (c.get("gpu_memory_utilization", 0.92) - 0.92)
        return {"num_preemptions": max(0, round(left))}

    advice = asked(law, "no-preemption", levers=("gpu_memory_utilization", "watermark"))

    # Alone 0.98 leaves 40 and any watermark 50. Together 0.97 and 0.1 leave none; 0.96 leaves 10.
    pair = advice.pairs[0]
    assert advice.state == "reached"
    assert pair.verdict == "enough"
    assert changes(pair) == {"watermark": 0.1, "gpu_memory_utilization": 0.97}
    assert pair.option is not None
    assert set(pair.option.flag.split()) == {
        "--watermark", "0.1", "--gpu-memory-utilization", "0.97",
    }  # fmt: skip
    assert pair.below is not None
    assert advice.summary.startswith("1 pair of changes of 3 reach it.")


def test_where_nothing_suffices_the_nearest_and_what_stands_in_the_way_are_said() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ttft_s": {"p50": 1.0, "p99": 0.6 + 4 * c.get("rate_scale", 1.0)}}

    advice = asked(law, "ttft-p99=0.5", levers=("rate_scale", "watermark"))

    assert advice.state == "not reached"
    assert advice.summary == (
        "Nothing that was tried reaches it. The nearest is 0.01 × the arrivals (0.003 requests/s): "
        "TTFT p99 640 ms, TTFT p99 4.60 s at the base."
    )
    assert advice.obstacles[0] == (
        "Compute: even at 0.01 × the arrivals, when a request has the machine nearly to itself, "
        "TTFT p99 is 640 ms, above 500 ms."
    )


def test_arrivals_above_what_is_served_are_named_with_both_rates() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "duration_s": 90.0, "num_gpu_blocks": blocks(c), "ttft_s": {"p50": 30.0, "p99": 60.0},
            "queue_s": {"p50": 30.0}, "e2e_s": {"p50": 40.0, "p99": 80.0},
        }  # fmt: skip

    advice = asked(law, "ttft-p99=2", levers=("num_gpu_blocks",))

    # Three requests come in 9 s and leave in 90 s.
    assert any(
        "0.333 requests/s arrive and 0.033 leave even in a pool of 140 blocks" in s
        for s in advice.obstacles
    )


# ---- other goals ---------------------------------------------------------------------------------


def test_a_goal_that_is_met_says_how_much_room_there_is() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"num_preemptions": int(blocks(c) < 80 or c.get("rate_scale", 1.0) > 1.3)}

    advice = asked(law, "no-preemption", levers=())

    assert advice.state == "met"
    assert advice.summary == (
        "The goal is met already (0 preemptions; the pool was at most 75 % full): no change is needed."
    )
    assert changes(of(advice, "num_gpu_blocks")) == {"num_gpu_blocks": 80}
    assert changes(of(advice, "rate_scale")) == {"rate_scale": 1.3}
    assert "not with 1.32 × the arrivals" in of(advice, "rate_scale").sentence


def test_most_goodput_takes_the_smallest_value_that_gives_about_the_most() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        good = {1: 1.0, 2: 1.9, 3: 2.0}.get(c.get("replicas", 1), 2.01)
        return {"goodput_rps": 0.995 if "block_size" in c else good}

    advice = asked(law, "max-goodput", "ttft=2", levers=("block_size", "replicas"))

    assert [(a.levers[0], a.verdict) for a in advice.answers] == [
        ("replicas", "helps"),
        ("block_size", "no change"),
    ]
    assert changes(advice.answers[0]) == {"replicas": 3}
    assert advice.summary == (
        "3 replicas gives most: 2 good requests/s, against 1 good requests/s at the base. "
        "Its price: 2 more GPUs."
    )


def test_least_memory_goes_down_while_the_goal_is_kept_and_counts_fp8_at_half() -> None:
    def law(c: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"num_preemptions": int(blocks(c) < 60), "num_gpu_blocks": blocks(c)}

    advice = advise(world(law), facts(), parse_goals(["least-memory"]))

    # 60 blocks of 2 MiB are 0.117 GiB; in fp8 60 blocks take half.
    best, pool = advice.answers[0], of(advice, "num_gpu_blocks")
    assert best.levers == ("kv_cache_dtype", "num_gpu_blocks")
    assert changes(pool) == {"num_gpu_blocks": 60}
    assert pool.below is not None
    assert pool.below.changes == {"num_gpu_blocks": 59}
    assert "0.06 GiB of KV on each GPU, 0.20 at the base" in best.sentence
    assert "0.12 GiB of KV on each GPU" in pool.sentence


# ---- limits --------------------------------------------------------------------------------------


def test_runs_that_are_used_up_leave_levers_untried_and_say_so() -> None:
    advice = asked(
        lambda c: {"num_preemptions": 9},
        "no-preemption",
        levers=("num_gpu_blocks", "block_size", "watermark"),
        most_runs=3,
    )

    assert (advice.state, advice.num_runs) == ("stopped", 3)
    assert of(advice, "watermark").verdict == "not tried"
    assert any("Allow more runs" in n for n in advice.notes)


def test_no_run_is_no_advice_and_a_base_that_cannot_run_says_why() -> None:
    with pytest.raises(SettingsError, match="at least 1"):
        asked(lambda c: {}, "no-preemption", levers=(), most_runs=0)

    def refuse(c: Mapping[str, Any]) -> Mapping[str, Any]:
        raise SettingsError("the model does not fit.")

    with pytest.raises(SettingsError, match="the model does not fit"):
        asked(refuse, "no-preemption", levers=())


def test_every_claim_has_its_recordings() -> None:
    advice = asked(
        lambda c: {"num_preemptions": max(0, 130 - blocks(c))},
        "no-preemption",
        levers=("num_gpu_blocks", "watermark"),
    )

    document = advice.as_json()
    proved = [a["option"]["recordings"] for a in document["answers"]]
    assert all(proved)
    assert document["answers"][0]["below"]["recordings"] == ["{'num_gpu_blocks': 129}"]
    assert document["base"]["recordings"] == ["{}"]
    assert document["answers"][0]["option"]["price"]["gpu_gib"] == pytest.approx(29 * 2 / 1024)


# ---- prices --------------------------------------------------------------------------------------


def priced(change: Mapping[str, Any], costs: Mapping[str, float] | None = None, **now: Any) -> Any:  # fmt: skip
    run = world(lambda c: now if c else {})
    return price_of(change, facts(), run({}), run(change), costs)


def test_prices_are_these() -> None:
    assert priced({"watermark": 0.05}).kinds == ("free",)
    assert priced({"gpu_memory_utilization": 0.95}).gpu_gib == pytest.approx(0.7056, abs=1e-3)
    assert priced({"kv_cache_dtype": "fp8"}).kind == "quality"
    assert priced({"preemption_mode": "offload"}).host_gib == 16.0
    assert priced({"preemption_mode": "swap"}).kind == "other engine"
    assert priced({"rate_scale": 0.8}).sentences() == ["20 % fewer arrivals"]
    assert priced({"max_num_seqs": 2}, output_tokens_per_s=97.0).kind == "slower"
    assert priced({"max_num_seqs": 2}, output_tokens_per_s=99.0).kind == "free"
    assert priced({"max_num_seqs": 2}, ttft_s={"p99": 1.2}).sentences() == ["TTFT p99 +20.0 %"]
    assert priced({"max_model_len": 1_000}).cut_requests == 1


@pytest.mark.parametrize(
    ("now", "kind", "said"),
    [
        ({"ttft_s": {"p50": 1.186, "p99": 1.029}}, "trade", ["TTFT p50 +18.6 %", "TTFT p99 +2.9 %"]),
        ({"ttft_s": {"p50": 1.019, "p99": 1.019}}, "free", []),
        ({"ttft_s": {"p50": 1.0, "p99": 1.11}}, "slower", ["TTFT p99 +11.0 %"]),
        ({"tpot_s": {"p50": 0.1, "p99": 0.15}}, "trade", ["TPOT p99 +50.0 %"]),
        ({"e2e_s": {"p50": 3.09, "p99": 3.0}}, "trade", ["E2E p50 +3.0 %"]),
        ({"output_tokens_per_s": 97.0}, "slower", ["3.0 % less throughput"]),
    ],
)  # fmt: skip
def test_every_figure_that_gets_over_2_percent_worse_is_named(
    now: Mapping[str, Any], kind: str, said: list[str]
) -> None:
    price = priced({"watermark": 0.05}, **now)

    assert (price.kind, price.sentences()) == (kind, said)


def test_goodput_that_falls_is_a_price_where_bounds_were_given() -> None:
    run = world(lambda c: {"goodput_rps": 0.939 if c else 1.0})

    price = price_of({"watermark": 0.05}, facts(), run({}), run({"watermark": 0.05}), None)

    assert (price.kind, price.sentences()) == ("trade", ["6.1 % less goodput"])


def test_a_pool_that_the_gpu_has_no_room_for_costs_hardware() -> None:
    # 6 % of 23.5 GiB are 1.41 GiB: 721 blocks of 2 MiB.
    assert priced({"num_gpu_blocks": 101 + 721}).kind == "memory"
    assert priced({"num_gpu_blocks": 101 + 723}).kind == "money"


def test_money_counts_gpus_and_other_devices_at_their_own_price() -> None:
    costs = {"rtx-4090": 0.5, "h200": 4.0}

    assert priced({"replicas": 3}, costs).per_hour == 1.0
    assert priced({"device": "h200"}, costs).per_hour == 3.5
    assert priced({"device": "b200"}, costs).per_hour is None
    # 0.5 an hour for 100 tokens a second are 0.36 million tokens: 1.39 a million.
    assert priced({"replicas": 2}, costs).per_million_tokens == pytest.approx((1.3889, 2.7778), abs=1e-3)  # fmt: skip


# ---- the real engine -----------------------------------------------------------------------------


def real(
    workload: Workload, base: EngineSettings, folder: Path
) -> tuple[Simulate, Facts, list[Mapping[str, Any]]]:
    trials = Trials(workload, base, lambda id_: folder / id_)
    ran: list[Mapping[str, Any]] = []

    def simulate(change: Mapping[str, Any]) -> Outcome:
        ran.append(change)
        trial = trials.run(change)
        assert trial is not None
        return outcome_of(change, trial.paths, trial.num_gpu_blocks)

    return simulate, facts(base, workload), ran


def test_two_requests_that_do_not_fit_together_need_six_blocks(tmp_path: Path) -> None:
    # Each ends with 12 tokens: 3 blocks of 4. In 5 the younger is preempted, in 6 both fit.
    load = make_trace(make_request("a", 6, 6), make_request("b", 6, 6, arrival=1))
    simulate, f, _ = real(load, make_settings(5), tmp_path)

    advice = advise(
        simulate, f, parse_goals(["no-preemption"]), levers=("num_gpu_blocks", "max_num_seqs")
    )

    pool = of(advice, "num_gpu_blocks")
    assert changes(pool) == {"num_gpu_blocks": 7}  # with the null block
    assert pool.below is None  # one less is the base
    assert changes(of(advice, "max_num_seqs")) == {"max_num_seqs": 1}
    for answer in advice.answers:
        assert answer.option is not None
        assert all((p / "closed").exists() or p.is_dir() for p in answer.option.outcome.recordings)  # fmt: skip


def test_one_request_larger_than_the_pool_is_named_with_its_blocks(tmp_path: Path) -> None:
    load = make_trace(make_request("a", 30, 2), make_request("b", 6, 2, arrival=1))
    simulate, f, _ = real(load, make_settings(4), tmp_path)

    advice = advise(simulate, f, parse_goals(["no-preemption"]), levers=("watermark",))
    wider = advise(simulate, f, parse_goals(["no-preemption"]), levers=("num_gpu_blocks",))

    assert advice.state == "not reached"
    assert advice.obstacles[0].startswith(
        "One request is larger than the pool: the longest has 32 tokens and needs 8 blocks, the pool has 4."
    )
    assert changes(of(wider, "num_gpu_blocks")) == {"num_gpu_blocks": 9}


def test_a_trace_of_one_request_without_pressure_is_met(tmp_path: Path) -> None:
    load = make_trace(make_request("a", 6, 6))
    simulate, f, _ = real(load, make_settings(5), tmp_path)

    advice = advise(simulate, f, parse_goals(["no-preemption"]))

    assert advice.state == "met"
    assert changes(of(advice, "num_gpu_blocks")) == {
        "num_gpu_blocks": 4
    }  # 3 and the null block


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> tuple[Advice, Simulate]:
    base = EngineSettings(model="llama-3.1-8b", device="rtx-4090", kv_tokens=41_408)
    simulate, f, _ = real(open_workload("sample:chat"), base, tmp_path_factory.mktemp("chat"))
    levers = ("num_gpu_blocks", "watermark", "kv_cache_dtype", "gpu_memory_utilization")
    return advise(simulate, f, parse_goals(["no-preemption"]), levers=levers), simulate


def test_the_pool_that_ends_preemption_on_the_sample_is_checked_by_running_it_and_one_block_less(
    chat: tuple[Advice, Simulate],
) -> None:
    advice, simulate = chat
    num = changes(of(advice, "num_gpu_blocks"))["num_gpu_blocks"]

    enough = simulate({"num_gpu_blocks": num})
    less = simulate({"num_gpu_blocks": num - 1})

    assert enough.figures["num_preemptions"] == 0
    assert less.figures["num_preemptions"] > 0
    assert enough.figures["num_finished"] == 2_000


def test_on_the_sample_a_watermark_is_the_cheapest_and_fp8_nearly_suffices(
    chat: tuple[Advice, Simulate],
) -> None:
    advice, simulate = chat

    first = advice.answers[0]
    assert first.levers == ("watermark",)
    assert first.option is not None
    assert first.option.price.kind == "trade"
    assert first.option.price.sentences()[0] == "TTFT p50 +18.6 %"
    assert "Preemption ends, and requests wait longer: TTFT p50 +18.6 %" in advice.summary
    assert first.option.outcome.figures["num_preemptions"] == 0
    assert advice.base.figures["num_preemptions"] > 100
    assert of(advice, "kv_cache_dtype").verdict == "helps"
    assert of(advice, "gpu_memory_utilization").verdict == "helps"
    assert first.below is not None
    assert simulate(first.below.changes).figures["num_preemptions"] > 0
