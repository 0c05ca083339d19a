"""Sampling: which tokens can be drawn, how often, and what a draw depends on.

Statistics come from fixed seeds, so a test gives the same number every time; the bounds are the
quantiles that a fair draw passes in 999 of 1,000 seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.gpu.sampling import (
    Sampling,
    exponential_noise,
    hash_words,
    mixed_ids,
    row_seeds,
    sample,
    smallest_kept,
)
from traces.errors import SettingsError

CPU = torch.device("cpu")
LOGITS = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))


def seeds_of(num, *, seed=7, key=1, first=0):
    keys = np.full(num, key, np.uint64)
    return torch.from_numpy(row_seeds(seed, keys, np.arange(first, first + num)))


def draws(logits, num, **options):
    """Tokens drawn at positions 0 to num - 1 of one request."""
    sampling = Sampling(**{"temperature": 1.0, "seed": 7, **options})
    return sample(logits.expand(num, -1), sampling, seeds_of(num, seed=sampling.seed)).numpy()


def chi_square(counts, expected):
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    return float(((counts - expected) ** 2 / expected).sum())


def test_greedy_takes_the_lowest_id_of_the_largest_logits():
    logits = torch.tensor([[1.0, 5.0, 5.0], [2.0, 2.0, 2.0], [0.0, -1.0, 3.0]])

    assert sample(logits, Sampling(), None).tolist() == [1, 0, 2]


def test_greedy_compares_in_float32():
    logits = torch.tensor([[1.0, 1.0 + 1e-12]], dtype=torch.float64)

    assert sample(logits, Sampling(), None).tolist() == [0]


def test_row_seeds_are_three_steps_of_splitmix64():
    def step(x):  # the published generator, in Python's integers
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    assert step(0) == 0xE220A8397B1DCDAF  # its first number from seed 0
    words = row_seeds(3, np.array([2**64 - 5], np.uint64), np.array([900]))

    want = step(step(step(3) + 2**64 - 5) + 900)
    assert words.view(np.uint64).tolist() == [[want]]


def test_hash_words_are_what_python_integers_give():
    def shift_multiply(x, bits, factor):
        return ((x ^ (x >> bits)) * factor) % 2**32

    def word(first, second, token):
        x = shift_multiply(shift_multiply(token, 16, 0x85EBCA6B), 13, 0xC2B2AE35)
        x = (x ^ (x >> 16)) + first
        x = shift_multiply(x % 2**32, 16, 0x85EBCA6B) ^ second
        x = shift_multiply(x, 13, 0xC2B2AE35)
        return x ^ (x >> 16)

    rows = [(0, 0), (0xFFFFFFFF, 0x80000000), (0x12345678, 0x9ABCDEF0)]
    seeds = torch.from_numpy(np.array(rows, np.uint32).view(np.int32))
    words = hash_words(mixed_ids(5000, CPU), seeds).numpy().view(np.uint32)

    for row, (first, second) in enumerate(rows):
        for token in (0, 1, 2, 31, 4095, 4999):
            assert words[row, token] == word(first, second, token)


@pytest.mark.parametrize("shift", [24, 16, 0])
def test_hash_words_fill_256_bins_evenly(shift):
    words = hash_words(mixed_ids(1024, CPU), seeds_of(512)).numpy().view(np.uint32)
    counts = np.bincount(((words >> shift) & 255).reshape(-1), minlength=256)

    assert 180.0 < chi_square(counts, np.full(256, 2048)) < 330.5  # 255 degrees of freedom


@pytest.mark.parametrize("which", ["tokens", "positions", "keys"])
def test_neighbours_have_unrelated_noise(which):
    if which == "keys":
        keys = np.arange(2000, dtype=np.uint64)
        seeds = torch.from_numpy(row_seeds(7, keys, np.full(2000, 5)))
    else:
        seeds = seeds_of(2000)
    words = hash_words(mixed_ids(65, CPU), seeds).numpy().view(np.uint32) >> 29
    if which == "tokens":
        pairs = words[:, :-1] * 8 + words[:, 1:]
    else:
        pairs = words[:-1] * 8 + words[1:]
    counts = np.bincount(pairs.reshape(-1), minlength=64)

    assert 31.0 < chi_square(counts, np.full(64, pairs.size / 64)) < 103.5  # 63


def test_noise_is_positive_and_finite_at_both_ends():
    ends = torch.tensor([0, -1, 2**31 - 1, -(2**31)], dtype=torch.int32)
    noise = exponential_noise(ends)

    least, most = 2.0**-32, 24 * math.log(2)
    assert noise.tolist() == pytest.approx([least, most, most, least], rel=1e-6)


def test_draws_follow_the_probabilities():
    counts = np.bincount(draws(LOGITS, 40_000), minlength=4)

    assert chi_square(counts, [16_000, 12_000, 8_000, 4_000]) < 16.3  # 3 degrees of freedom


def test_temperature_sharpens_them():
    counts = np.bincount(draws(LOGITS, 40_000, temperature=0.5), minlength=4)

    share = np.array([16, 9, 4, 1]) / 30  # the squares
    assert chi_square(counts, share * 40_000) < 16.3


def test_a_rare_token_is_drawn_as_rarely_as_it_should_be():
    logits = torch.log(torch.tensor([0.999, 0.001]))

    assert 47 < int(draws(logits, 80_000).sum()) < 113  # 80 expected


def test_draws_at_neighbouring_positions_are_independent():
    ids = draws(torch.zeros(4), 40_000)
    counts = np.bincount(ids[:-1] * 4 + ids[1:], minlength=16)

    assert chi_square(counts, np.full(16, 39_999 / 16)) < 37.7  # 15 degrees of freedom


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 1}),
        ({"top_p": 0.91}, {0, 1, 2, 3}),
        ({"top_p": 1e-9}, {0}),
        ({"top_k": 2, "top_p": 0.5}, {0}),  # of two: 0.57 and 0.43
        ({"top_p": 0.5}, {0, 1}),
    ],
)
def test_only_what_top_k_and_top_p_leave_is_drawn(options, ids):
    assert set(draws(LOGITS, 3000, **options).tolist()) == ids


def test_what_is_left_keeps_its_proportions():
    counts = np.bincount(draws(LOGITS, 30_000, top_k=2), minlength=4)

    assert chi_square(counts[:2], [30_000 * 4 / 7, 30_000 * 3 / 7]) < 10.8  # 1


def test_tokens_that_tie_with_the_last_one_kept_are_kept():
    logits = torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0])

    assert set(draws(logits, 2000, top_k=2).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(("fall", "kept"), [(0.4, 6), (0.0005, 1683)])
def test_top_p_finds_its_bound_among_few_and_among_all(fall, kept):
    scores = torch.arange(2000) * -fall  # probabilities fall like e^(-fall i)
    scores = scores[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    bound = smallest_kept(scores[None], Sampling(temperature=1.0, top_p=0.9))

    assert int((scores >= bound).sum()) == kept


def test_a_draw_depends_on_its_own_row_only():
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 300, generator=random)
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=1)
    seeds = seeds_of(5, first=40)
    together = sample(logits, sampling, seeds)
    turned = sample(logits.flip(0), sampling, seeds.flip(0)).flip(0)
    alone = torch.cat([sample(logits[i : i + 1], sampling, seeds[i : i + 1]) for i in range(5)])

    assert together.tolist() == turned.tolist() == alone.tolist()


def test_another_seed_draws_otherwise():
    logits = torch.zeros(50)

    assert (draws(logits, 400, seed=1) == draws(logits, 400, seed=2)).sum() < 25  # 8 expected


def test_logits_are_left_as_they_are():
    logits = LOGITS.expand(3, -1).clone()
    before = logits.clone()
    sample(logits, Sampling(temperature=0.7, top_k=2, top_p=0.9), seeds_of(3))

    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"seed": 1 << 64}, "does not fit in 64 bits"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_remedy(options, words):
    with pytest.raises(SettingsError, match=f"{words}.*Give"):
        Sampling(**options)
