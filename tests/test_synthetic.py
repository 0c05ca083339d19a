"""Made-up workloads, and the samples against the published figures they follow."""

from itertools import pairwise

import numpy as np
import pytest

from traces import samples
from traces.errors import SettingsError
from traces.lengths import Fixed, LogNormal, Mixture, Quantiles, Uniform
from traces.synthetic import (
    Arrivals,
    ClosedLoop,
    SessionSpec,
    StreamSpec,
    SystemPrompts,
    percentiles,
    sessions,
    stream,
)


def make_stream(n=1000, **changes):
    spec = {
        "num_requests": n,
        "arrivals": Arrivals(10.0),
        "prompt": Fixed(100),
        "output": Fixed(20),
    }
    return stream(StreamSpec(**(spec | changes)))


def gaps(workload):
    return np.diff(workload.table["arrival_s"].to_numpy())


def test_one_seed_gives_one_workload():
    first, again, other = make_stream(seed=1), make_stream(seed=1), make_stream(seed=2)

    assert first.digest == again.digest
    assert first.digest != other.digest


def test_the_report_says_synthetic_and_the_seed():
    report = make_stream(n=10, seed=42).report

    assert report.format == "synthetic"
    assert "made up with seed 42" in report.notes[0]


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gamma_arrivals_have_the_rate_and_the_burstiness_that_was_asked(burstiness, cv):
    g = gaps(make_stream(n=20_000, arrivals=Arrivals(10.0, burstiness)))

    assert g.mean() == pytest.approx(0.1, rel=0.05)
    assert g.std() / g.mean() == pytest.approx(cv, rel=0.05)


def test_a_closed_loop_has_a_concurrency_and_no_times():
    w = make_stream(n=50, arrivals=ClosedLoop(8))

    assert w.concurrency == 8
    assert w.span_s == 0.0


def test_lengths_follow_their_distributions():
    rng = np.random.default_rng(0)

    assert set(Fixed(7).sample(rng, 5)) == {7}
    assert set(Uniform(3, 5).sample(rng, 200)) == {3, 4, 5}
    assert percentiles(LogNormal(100, 1000).sample(rng, 50_000), (50, 99)) == pytest.approx(
        (100, 1000), rel=0.05
    )
    assert LogNormal(100, 1000, low=90, high=110).sample(rng, 500).max() == 110


def test_quantiles_hold_even_in_a_short_workload():
    shape = Quantiles(((0, 10), (50, 100), (90, 1000), (100, 2000)))

    values = shape.sample(np.random.default_rng(3), 300)

    assert percentiles(values, (50, 90)) == pytest.approx((100, 1000), rel=0.05)


def test_a_mixture_draws_from_its_parts_by_weight():
    mixture = Mixture(((3, Fixed(10)), (1, Fixed(1000))))

    values = mixture.sample(np.random.default_rng(0), 4000)

    assert set(values) == {10, 1000}
    assert (values == 10).mean() == pytest.approx(0.75, abs=0.03)


def test_requests_with_the_same_system_prompt_share_one_segment():
    w = make_stream(system=SystemPrompts(num=3, tokens=512, share_frac=0.5, skew=0.0))

    ids, tokens, prompt = (
        w.table["prefix_ids"].to_list(),
        w.table["prefix_tokens"].to_list(),
        w.table["prompt_tokens"],
    )
    shared = [i for i in ids if i]

    assert 400 < len(shared) < 600
    assert len({i[0] for i in shared}) == 3
    assert all(t == [512] for t, i in zip(tokens, ids, strict=True) if i)
    assert set(prompt.filter(w.table["prefix_ids"].list.len() > 0)) == {
        513
    }  # room for one token of its own


def test_priorities_are_drawn_by_weight():
    w = make_stream(priorities={0: 9, 5: 1})

    counts = dict(w.table["priority"].value_counts().iter_rows())

    assert set(counts) == {0, 5}
    assert counts[5] == pytest.approx(100, abs=35)


def make_sessions(**changes):
    spec = {
        "num_sessions": 6, "starts": Arrivals(0.1), "turns": Uniform(2, 6), "level": Uniform(800, 3000),
        "output": Uniform(10, 200), "prefix_block_tokens": 64, "system": SystemPrompts(num=2, tokens=256),
    }  # fmt: skip
    return sessions(SessionSpec(**(spec | changes)))


def test_a_turn_holds_the_prompt_and_the_answer_before_it():
    w = make_sessions()

    for _, part in w.table.group_by("session_id"):
        prompt, output = part["prompt_tokens"].to_numpy(), part["output_tokens"].to_numpy()
        assert (prompt[1:] > prompt[:-1] + output[:-1]).all()


def test_a_turn_shares_every_full_block_of_the_turn_before():
    w = make_sessions()

    for _, part in w.table.group_by("session_id"):
        ids = part["prefix_ids"].to_list()
        assert [len(i) for i in ids] == [p // 64 for p in part["prompt_tokens"]]
        assert all(b[: len(a)] == a for a, b in pairwise(ids))


def test_sessions_share_their_system_prompt_and_nothing_else():
    w = make_sessions(system=SystemPrompts(num=1, tokens=256))
    first = [part["prefix_ids"][0].to_list() for _, part in w.table.group_by("session_id")]

    assert len({tuple(i[:4]) for i in first}) == 1
    assert len({i[4] for i in first}) == len(first)


def test_a_turn_comes_after_the_answer_of_the_turn_before():
    w = make_sessions(token_s=0.03, gap_s=(1.0, 2.0))

    for _, part in w.table.group_by("session_id"):
        pause = (
            np.diff(part["arrival_s"].to_numpy()) - part["output_tokens"].to_numpy()[:-1] * 0.03
        )
        assert (pause > 0.999).all()
        assert (pause < 2.001).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_stream(n=0), "num_requests 0 must be 1 or more"),
        (
            lambda: make_stream(arrivals=Arrivals(0.0)),
            "rate_per_s: 0.0 is not a positive number",
        ),
        (
            lambda: make_stream(arrivals=Arrivals(1.0, -1)),
            "burstiness: -1 is not a positive number",
        ),
        (lambda: make_stream(arrivals=ClosedLoop(0)), "concurrency 0 must be 1 or more"),
        (lambda: make_stream(prompt=Uniform(5, 3)), "low 5 is above high 3"),
        (lambda: make_stream(prompt=LogNormal(100, 50)), "need 0 < p50 <= p99"),
        (
            lambda: make_stream(prompt=Quantiles(((0, 5), (90, 9)))),
            "percents must rise from 0 to 100",
        ),
        (lambda: make_stream(prompt=Mixture(())), "weights must be 0 or more and not all 0"),
        (
            lambda: make_stream(system=SystemPrompts(1, 5, share_frac=2.0)),
            "share_frac must be between 0 and 1",
        ),
        (
            lambda: make_sessions(growth_frac=1.0),
            "growth_frac 1.0 must be 0 or more and below 1",
        ),
        (
            lambda: samples.load("poetry"),
            "no sample 'poetry'. Choose one of chat, long-outputs, agents",
        ),
    ],
)
def test_parameters_that_cannot_be_say_so(make, message):
    with pytest.raises(SettingsError) as e:
        make()
    assert message in str(e.value)


# ---- samples: published figures are typed here, with the tolerance of each ----


def lengths(name):
    table = samples.load(name).table
    return table["prompt_tokens"].to_numpy(), table["output_tokens"].to_numpy()


def share(values, low, high):
    return ((values >= low) & (values <= high)).mean()


def test_the_chat_sample_has_the_percentiles_of_azure_conversation():
    prompt, output = lengths("chat")

    assert len(prompt) == 2000
    assert percentiles(prompt) == pytest.approx((1020, 2735, 4142), rel=0.02)
    assert percentiles(output) == pytest.approx((129, 424, 601), rel=0.02)
    assert prompt.max() <= 14_050
    assert output.max() <= 1000
    g = gaps(samples.load("chat"))
    assert g.std() / g.mean() == pytest.approx(1.09, rel=0.05)


def test_the_chat_sample_has_two_humps_of_output_and_two_piles_of_prompts():
    prompt, output = lengths("chat")

    # Tokens around each hump are several times as common as those between them.
    assert share(output, 85, 129) / 45 > 4 * share(output, 200, 320) / 121
    assert share(output, 395, 450) / 56 > 4 * share(output, 200, 320) / 121
    assert share(prompt, 990, 1050) > 0.15
    assert share(prompt, 4040, 4142) > 0.07


def test_the_long_output_sample_has_the_percentiles_of_its_two_sources():
    prompt, output = lengths("long-outputs")

    assert len(prompt) == 2000
    assert percentiles(prompt) == pytest.approx((732, 1460, 2765), rel=0.02)
    assert percentiles(output) == pytest.approx((874, 11_809, 15_039), rel=0.02)
    assert (output.min(), output.max()) == pytest.approx((234, 15_890), rel=0.01)


def test_the_agents_sample_has_an_eighth_of_wekas_prompts_and_its_outputs():
    prompt, output = lengths("agents")

    assert 500 < len(prompt) < 2000
    assert percentiles(prompt) == pytest.approx(
        (103_659 / 8, 233_633 / 8, 498_519 / 8), rel=0.15
    )
    assert percentiles(output) == pytest.approx((216, 898, 3686), rel=0.03)
    assert output.max() <= 18_195


def test_an_ideal_cache_finds_95_percent_of_an_agents_prompts():
    hits = []
    for _, part in samples.load("agents").table.group_by("session_id"):
        seen, found, total = set(), 0, 0
        for ids in part["prefix_ids"].to_list():
            found += sum(i in seen for i in ids)
            total += len(ids)
            seen.update(ids)
        hits.append(found / total)

    assert np.median(hits) == pytest.approx(0.95, abs=0.03)
    assert min(hits) > 0.55
    assert max(hits) < 0.99


@pytest.mark.parametrize("name", samples.names())
def test_a_sample_says_what_it_follows_and_fits_its_pool(name):
    about, workload = samples.info(name), samples.load(name)

    longest = (workload.table["prompt_tokens"] + workload.table["output_tokens"]).max()

    assert about.follows
    assert about.departs
    assert longest < about.pool_tokens
    assert f"seed {about.seed}" in workload.report.notes[0]


def test_the_samples_are_pinned():
    digests = {n: samples.load(n).digest for n in samples.names()}

    assert digests == DIGESTS, (
        "a sample changed: say so in the changelog and rebuild the recordings"
    )


DIGESTS = {
    "chat": "5307e21df77d984f7c52b96baea98d4e",
    "long-outputs": "8fdfa3fa6e393536380e60f209f3c180",
    "agents": "681ec5e0bb0318c4ba68ee77e28971e3",
    "smollm2": "98470d79f6151f6080db2707b13e434e",
}
