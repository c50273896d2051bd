"""The benchmarks' statistics: intervals that hold what they say."""

from __future__ import annotations

import math
import random

import pytest
import stats


def test_quantiles_interpolate():
    assert stats.quantile([3, 1, 2], 0.5) == 2
    assert stats.quantile([0, 10], 0.99) == pytest.approx(9.9)
    assert stats.quantile([7], 0.99) == 7


@pytest.mark.parametrize("of", [stats.typical_ratio, stats.median_ratio])
def test_the_interval_holds_the_ratio_and_narrows_to_it_without_noise(of):
    ratio = of([(10, 11), (20, 22), (10, 11)])
    assert ratio[:3] == pytest.approx((1.1, 1.1, 1.1))
    ratio = of([(10, 11), (11, 10), (9, 12), (10, 9)])
    assert ratio.low < ratio.median < ratio.high


@pytest.mark.parametrize("of", [stats.typical_ratio, stats.median_ratio])
def test_swapped_sides_give_the_inverse(of):
    pairs = [(10, 11), (11, 10), (9, 12), (10, 9), (8, 9), (7, 11), (9, 9.5)]
    one, other = of(pairs), of([(b, a) for a, b in pairs])
    assert (1 / other.high, 1 / other.low) == pytest.approx((one.low, one.high))
    assert 1 / other.median == pytest.approx(one.median)


@pytest.mark.parametrize(
    "count, left_out",
    [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52), (30, 137)],
)
def test_the_signed_rank_distribution_has_its_published_critical_values(count, left_out):
    place, confidence = stats._signed_rank(count)
    assert place == left_out
    assert 0.95 <= confidence < 0.97


def test_above_sixty_pairs_the_normal_distribution_takes_over_smoothly(monkeypatch):
    exact = {}
    monkeypatch.setattr(stats, "_EXACT", 120)
    for count in (61, 120):
        exact[count] = stats._signed_rank(count)[0]
    monkeypatch.setattr(stats, "_EXACT", 60)
    for count, place in exact.items():
        assert abs(stats._signed_rank(count)[0] - place) <= 1


@pytest.mark.parametrize("count, confidence", [(1, 0.0), (3, 0.75), (5, 0.9375)])
@pytest.mark.parametrize("of", [stats.typical_ratio, stats.median_ratio])
def test_too_few_pairs_do_not_claim_95_percent(of, count, confidence):
    pairs = [(10, 10 + number) for number in range(1, count + 1)]
    ratio = of(pairs)
    assert ratio.confidence == pytest.approx(confidence)
    assert (ratio.low, ratio.high) == pytest.approx((1.1, 1 + count / 10))


@pytest.mark.parametrize("count", [6, 9, 100, 401, 3000])
def test_the_sign_tests_interval_has_the_confidence_it_says(count):
    pairs = [(1, 1 + number / count) for number in range(count)]
    ratio = stats.median_ratio(pairs)
    place = round((ratio.low - 1) * count)
    inside = sum(math.comb(count, k) for k in range(place + 1, count - place))
    assert ratio.confidence == pytest.approx(inside / 2**count)
    wider = inside - 2 * math.comb(count, place + 1)
    assert wider / 2**count < 0.95 <= ratio.confidence


@pytest.mark.parametrize("of", [stats.typical_ratio, stats.median_ratio])
def test_nine_pairs_hold_the_truth_as_often_as_they_say(of):
    """A machine that drifts, and starts that are late by much now and then."""
    chance = random.Random(7)

    def seconds(middle, pace):
        return middle * pace * (1 + chance.expovariate(40) + 0.2 * (chance.random() < 0.1))

    held, experiments = 0, 1500
    for _ in range(experiments):
        paces = [1 + chance.random() / 2 for _ in range(9)]
        pairs = [(seconds(20, pace), seconds(8, pace)) for pace in paces]
        ratio = of(pairs)
        held += ratio.low <= 0.4 <= ratio.high
    assert ratio.confidence == pytest.approx(0.961, abs=0.001)
    assert held / experiments > 0.945
