"""A column's groups answer as a look at every value would."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from analyzer import stats
from analyzer.align import means_on_grid, on_grid, sums_on_grid
from analyzer.column import Area, Column, Groups, group_size
from analyzer.downsample import bucket_sums, downsample, sums_in_buckets, thin
from traces import column_groups

SEEDS = range(60)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of a few thousand values are looked at in several pieces."""
    monkeypatch.setattr(column_groups, "PIECE", 512)


def world(seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """A generator, edges [n + 1] with ties and gaps, and values [n], whole or real numbers."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 4_000))
    widths = rng.exponential(0.02, n) * rng.choice([0, 1, 1, 1, 200], n)
    edges = rng.random() * 5 + np.concatenate([[0.0], np.cumsum(widths)])
    if seed % 3 == 0:
        values = rng.integers(0, 5, n).astype(np.int32)  # many ties
    elif seed % 3 == 1:
        values = rng.integers(0, 2**31 - 1, n).astype(np.int32)  # whose sums need 64 bits
    else:
        values = rng.random(n) * rng.choice([1e-3, 1.0, 1e4], n)
    return rng, edges, values


def stretches(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """First and stop of random stretches that are not empty, the shortest and the longest too."""
    first = rng.integers(0, n, 50)
    stop = first + 1 + (rng.random(50) * (n - first)).astype(np.int64)
    return np.append(first, [0, 0, n - 1]), np.append(np.minimum(stop, n), [n, 1, n])


def windows(rng: np.random.Generator, edges: np.ndarray) -> Iterator[tuple[float, float]]:
    """The whole axis, and parts of it down to a few steps."""
    low, high = float(edges[0]), float(edges[-1])
    yield low, max(high, low + 1e-6)
    for share in (0.5, 0.1, 0.01):
        start = low + rng.random() * (high - low) * (1 - share)
        yield start, start + max((high - low) * share, 1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_and_extremes_of_any_stretch_are_those_of_its_values(seed: int) -> None:
    rng, _, values = world(seed)
    column = Column(values)
    first, stop = stretches(rng, len(values))

    sums = column.sums_to(stop) - column.sums_to(first)
    least, greatest = column.least_in(first, stop), column.greatest_in(first, stop)
    lowest, highest = column.rows_of_extremes(first, stop)

    for i, (a, b) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        part = values[a:b]
        if values.dtype.kind == "i":
            assert sums[i] == sum(part.tolist())
            assert column.sum(a, b) == sum(part.tolist())
        else:
            assert sums[i] == pytest.approx(float(part.sum()), rel=1e-9, abs=1e-7)
        assert least[i] == part.min()
        assert greatest[i] == part.max()
        assert lowest[i] == a + int(np.argmin(part))
        assert highest[i] == a + int(np.argmax(part))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_grid_of_groups_equals_a_grid_of_every_value(seed: int) -> None:
    rng, edges, values = world(seed)
    column = Column(values)

    for low, high in windows(rng, edges):
        grid = np.linspace(low - (high - low) * 0.1 * (seed % 2), high, 41)
        sums = sums_on_grid(edges, column, grid)
        means = means_on_grid(Area(column, edges), grid)

        everything = values.astype(np.float64)
        wanted = on_grid(edges, everything, grid, level=False)
        if values.dtype.kind == "i":
            np.testing.assert_array_equal(sums, wanted)
        else:
            np.testing.assert_allclose(sums, wanted, rtol=1e-9, atol=1e-7)
        level = on_grid(edges, everything, grid, level=True)
        scale = max(1.0, float(values.max()))
        np.testing.assert_allclose(means, level, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("seed", SEEDS)
def test_bucket_sums_of_groups_equal_those_of_every_value(seed: int) -> None:
    rng, edges, values = world(seed)
    x = edges[:-1]

    for low, high in windows(rng, edges):
        found = sums_in_buckets(x, Column(values), start=low, end=high, buckets=17)
        wanted = bucket_sums(x, values.astype(np.float64), start=low, end=high, buckets=17)

        assert found["start"].to_list() == wanted["start"].to_list()
        np.testing.assert_allclose(found["total"], wanted["total"], rtol=1e-9, atol=1e-7)


def full_scan(
    x: np.ndarray, y: np.ndarray, low: float, high: float, points: int
) -> set[tuple[float, float]]:
    """What of a window must be drawn: its ends, and the first least and greatest value of each of
    (points - 2) / 2 stretches."""
    rows = [i for i in range(len(x)) if low <= x[i] <= high]
    if len(rows) <= points:
        return {(float(x[i]), float(y[i])) for i in rows}
    places = np.linspace(x[rows[0]], x[rows[-1]], (points - 2) // 2 + 1)
    kept = {rows[0], rows[-1]}
    for k in range(len(places) - 1):
        last = k == len(places) - 2
        inside = [
            i for i in rows
            if (k == 0 or x[i] >= places[k]) and (last or x[i] < places[k + 1])
        ]  # fmt: skip
        if inside:
            kept |= {min(inside, key=lambda i: y[i]), max(inside, key=lambda i: y[i])}
    return {(float(x[i]), float(y[i])) for i in kept}


@pytest.mark.parametrize("seed", range(24))
def test_a_thinned_line_holds_what_a_full_scan_would_keep(seed: int) -> None:
    rng, edges, values = world(seed)
    x = edges[:-1]

    for low, high in windows(rng, edges):
        xs, ys = thin(x, Column(values), start=low, end=high, points=40)

        drawn = set(zip(xs.tolist(), ys.astype(np.float64).tolist(), strict=True))
        wanted = full_scan(x, values, low, high, 40)
        assert wanted <= drawn
        assert {p for p in drawn - wanted if low < p[0] < high} == set()
        assert len(xs) <= 42


def test_a_short_line_is_the_same_however_it_is_thinned() -> None:
    x, y = np.arange(30) * 0.5, np.arange(30) % 7

    found = thin(x, Column(y), start=1.2, end=20.0, points=40)
    wanted = downsample(x, y, start=1.2, end=20.0, points=40)

    assert found[0].tolist() == wanted[0].tolist()
    assert found[1].tolist() == wanted[1].tolist()


def test_a_single_spike_among_many_steps_survives_every_zoom_that_holds_it() -> None:
    n, at = 300_000, 123_457
    values = np.zeros(n, np.int32)
    values[at] = 9
    column, x = Column(values), np.arange(n) * 0.025

    for share in (1.0, 0.1, 0.01, 0.001, 0.0001):
        width = n * 0.025 * share
        start = max(0.0, at * 0.025 - width / 3)
        xs, ys = thin(x, column, start=start, end=start + width, points=900)
        sums = sums_in_buckets(x, column, start=start, end=start + width, buckets=150)

        assert ys.max() == 9
        assert xs[int(ys.argmax())] == pytest.approx(3086.425)
        assert sums["total"].sum() == 9
        assert len(xs) <= 902


def test_groups_stay_few_however_many_values_there_are() -> None:
    assert group_size(0) == 64
    assert group_size(3_200_000) == 64
    assert group_size(3_200_001) == 128
    assert group_size(10_050_560) == 256


def test_groups_hold_extremes_and_running_sums() -> None:
    values = np.repeat(np.array([3, 1, 7], np.int32), 64)
    values[70] = 5

    groups = Groups.of(values)

    assert groups.least.tolist() == [3, 1, 7]
    assert groups.greatest.tolist() == [3, 5, 7]
    assert groups.upto.tolist() == [0, 192, 260, 708]


def test_an_empty_column_has_no_sums_and_nothing_great() -> None:
    column = Column(np.empty(0, np.int32))

    assert column.greatest == 0
    assert column.sum(0, 0) == 0
    assert np.isnan(sums_on_grid(np.empty(0), column, np.array([0.0, 1.0]))).all()
    assert np.isnan(means_on_grid(Area(column, np.empty(0)), np.array([0.0, 1.0]))).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_percentiles_of_a_long_weighted_sample_are_those_of_it_written_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "_PIECE", 100)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 1_000))
    values = rng.choice([-2.0, -0.0, 0.0, 1e-300, 0.025, 0.0250001, 3e5], n) * rng.random(n)
    weights = rng.integers(0, 4, n).astype(np.int32)
    weights[int(rng.integers(n))] = 1
    shares = (0.0, 0.5, 0.9, 0.99, 1.0)

    found = stats.weighted_percentiles(values, weights, shares)

    wanted = np.quantile(np.repeat(values, weights), shares)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=0)
