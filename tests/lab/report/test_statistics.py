"""Means, deviations and paired differences of seeds: what changes them, and what must not."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from mabert_lab.report.statistics import (
    LEAST_PAIRS,
    Difference,
    average_difference,
    averages,
    difference,
    interval,
    p_value,
    summary,
)

scores = st.floats(-1, 1, allow_nan=False, width=32)
arms = st.integers(1, 5).flatmap(lambda count: st.tuples(*[st.lists(scores, min_size=count, max_size=count)] * 2))


def by_seed(values, first=0):
    return dict(enumerate(values, start=first))


def test_a_summary_has_the_sample_deviation():
    assert summary([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, np.std([1, 2, 4], ddof=1), 3))
    assert summary([0.5]) == (0.5, None, 1)
    assert summary([]) is None


@pytest.mark.parametrize("values", [[0.3, 0.1], [0.1, -0.2, 0.5], [1.0, 2.0, 2.5, 7.0], [3.0, 1.0, 4.0, 1.0, 5.0]])
def test_the_interval_is_that_of_every_resample(values):
    means = [np.mean(each) for each in product(values, repeat=len(values))]
    assert interval(values) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_drawn_resamples_are_the_same_each_time_and_near_the_normal_interval():
    values = list(np.random.default_rng(1).normal(3.0, 1.0, 40))
    low, high = interval(values)
    assert (low, high) == interval(values[::-1])
    half = 1.96 * np.std(values) / 40**0.5
    assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.03)


def test_one_value_has_no_interval():
    assert interval([1.0]) is None


@given(arms, st.randoms())
def test_the_order_of_seeds_does_not_matter(arms, shuffle):
    ours, theirs = map(by_seed, arms)
    seeds = list(ours)
    shuffle.shuffle(seeds)
    assert difference({seed: ours[seed] for seed in seeds}, theirs) == difference(ours, theirs)


@given(arms, st.floats(-3, 3))
def test_shifting_both_arms_changes_nothing(arms, shift):
    ours, theirs = arms
    shifted = difference(by_seed(each + shift for each in ours), by_seed(each + shift for each in theirs))
    plain = difference(by_seed(ours), by_seed(theirs))
    assert shifted.mean == pytest.approx(plain.mean, abs=1e-9)
    assert (shifted.low is None) == (plain.low is None)
    if plain.low is not None:
        assert (shifted.low, shifted.high) == pytest.approx((plain.low, plain.high), abs=1e-9)
    assert shifted.pairs == plain.pairs


@given(arms)
def test_swapping_the_arms_flips_the_sign(arms):
    ours, theirs = map(by_seed, arms)
    forth, back = difference(ours, theirs), difference(theirs, ours)
    assert forth.mean == pytest.approx(-back.mean, abs=1e-12)
    assert forth.sign() == -back.sign()
    assert forth.p_value == back.p_value or forth.p_value == pytest.approx(back.p_value, rel=1e-6)
    if forth.low is not None:
        assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=1e-12)
        assert forth.low <= forth.mean + 1e-12
        assert forth.mean <= forth.high + 1e-12


def test_only_seeds_of_both_are_paired():
    found = difference(by_seed([1.0, 2.0, 3.0]), by_seed([1.0, 1.0, 9.0], first=1))
    assert (found.mean, found.pairs) == (1.5, 2)
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_one_pair_has_a_mean_and_decides_nothing():
    assert difference({0: 2.0}, {0: 1.0}) == Difference(1.0, None, None, None, 1)
    assert difference({0: 2.0}, {0: 1.0}).sign() == 0


@pytest.mark.parametrize(("pairs", "sign"), [(LEAST_PAIRS - 1, 0), (LEAST_PAIRS, 1)])
def test_too_few_pairs_decide_nothing(pairs, sign):
    found = difference(by_seed([1.0] * pairs), by_seed([0.5] * pairs))
    assert (found.low, found.sign()) == (0.5, sign)


@pytest.mark.parametrize(
    ("gaps", "sign"),
    [([0.1] * 5, 1), ([-0.1] * 5, -1), ([0.0] * 5, 0), ([1e-17] * 5, 0), ([0.1, -0.1, 0.1, -0.1, 0], 0)],
)
def test_the_sign_is_told_where_the_gaps_agree(gaps, sign):
    assert difference(by_seed(gaps), by_seed([0.0] * 5)).sign() == sign


def test_the_p_value_is_that_of_the_paired_t_test():
    gaps = [0.1, 0.3, -0.05, 0.2, 0.02]
    assert p_value(gaps) == pytest.approx(ttest_1samp(gaps, 0.0).pvalue)
    assert (p_value([0.1]), p_value([0.1, 0.1]), p_value([0.0, 0.0])) == (None, 0.0, 1.0)


def test_arms_that_are_alike_are_seldom_told_apart():
    draws = np.random.default_rng(0).normal(size=(1500, 2, 5))
    found = [difference(by_seed(ours), by_seed(theirs)) for ours, theirs in draws]
    told = [each.sign() for each in found]
    assert np.mean(np.abs(told)) == pytest.approx(0.05, abs=0.015)
    assert np.mean([each.sign(25) != 0 for each in found]) == pytest.approx(0.002, abs=0.003)
    excluded = np.mean([each.low > 0 or each.high < 0 for each in found])
    assert 0.11 < excluded < 0.19, "the interval is too narrow, as the module says"


def test_averages_are_of_seeds_that_have_every_task():
    found = averages({"a": by_seed([1.0, 2.0, 3.0]), "b": by_seed([5.0, 6.0])}, ["a", "b"])
    assert found == {0: 3.0, 1: 4.0}
    assert averages({"a": {0: 1.0}}, ["a", "b"]) == {}
    assert averages({}, []) == {}


def test_an_average_difference_is_over_the_tasks_of_both():
    ours = {"a": by_seed([1.0] * 5), "b": by_seed([3.0] * 5), "c": by_seed([100.0] * 5)}
    theirs = {"a": by_seed([0.0] * 5), "b": by_seed([1.0] * 5)}
    found = average_difference(ours, theirs)
    assert (found.mean, found.pairs, found.columns) == (1.5, 5, ("a", "b"))
    assert average_difference(ours, {"d": {0: 1.0}}) is None
    assert average_difference({}, theirs) is None


def test_an_average_difference_is_of_the_seeds_that_have_every_task():
    full = {name: by_seed([1.0] * 5) for name in "abc"}
    found = average_difference(full, {**full, "c": by_seed([1.0] * 4)})
    assert (found.columns, found.pairs) == (("a", "b", "c"), 4)
