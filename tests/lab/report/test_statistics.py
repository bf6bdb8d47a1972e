"""Means, deviations and paired differences of seeds: what changes them, and what must not."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from mabert_lab.report.studies import LEAST_PAIRS, Difference, above, averages, difference, interval, summary

gaps = st.lists(st.floats(-1, 1, allow_nan=False, width=32), min_size=1, max_size=5).map(pd.Series)


def test_a_summary_has_the_sample_deviation():
    assert summary([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, np.std([1, 2, 4], ddof=1), 3))
    assert summary([0.5, None]) == pytest.approx((0.5, np.nan, 1), nan_ok=True)
    assert summary([]) == pytest.approx((np.nan, np.nan, 0), nan_ok=True)


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


@given(gaps, st.randoms())
def test_the_order_of_seeds_does_not_matter(gaps, shuffle):
    seeds = list(gaps.index)
    shuffle.shuffle(seeds)
    assert difference(gaps[seeds]) == difference(gaps)


@given(gaps)
def test_swapping_the_arms_flips_the_sign(gaps):
    forth, back = difference(gaps), difference(-gaps)
    assert (forth.mean, forth.sign()) == (-back.mean, -back.sign())
    assert forth.p_value == back.p_value or forth.p_value == pytest.approx(back.p_value, rel=1e-6)
    if forth.low is not None:
        assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=1e-12)
        assert forth.low - 1e-12 <= forth.mean <= forth.high + 1e-12


def test_only_seeds_of_both_are_paired_and_one_pair_decides_nothing():
    found = difference(pd.Series([1.0, 2.0, 3.0]) - pd.Series([1.0, 1.0, 9.0], index=[1, 2, 3]))
    assert (found.mean, found.pairs) == (1.5, 2)
    assert difference(pd.Series({0: 1.0}) - pd.Series({1: 1.0})) is None
    assert difference(pd.Series([1.0])) == Difference(1.0, None, None, None, 1)
    assert difference(pd.Series([1.0])).sign() == 0


@pytest.mark.parametrize(
    ("gaps", "sign"),
    [
        ([0.5] * (LEAST_PAIRS - 1), 0),
        ([0.5] * LEAST_PAIRS, 1),
        ([-0.1] * 5, -1),
        ([0.0] * 5, 0),
        ([1e-17] * 5, 0),
        ([0.1, -0.1, 0.1, -0.1, 0], 0),
    ],
)
def test_the_sign_is_told_where_enough_gaps_agree(gaps, sign):
    assert difference(pd.Series(gaps)).sign() == sign


def test_the_p_value_is_that_of_the_paired_t_test():
    gaps = pd.Series([0.1, 0.3, -0.05, 0.2, 0.02])
    assert difference(gaps).p_value == pytest.approx(ttest_1samp(gaps, 0.0).pvalue)


def test_arms_that_are_alike_are_seldom_told_apart():
    found = [difference(pd.Series(gaps)) for gaps in np.random.default_rng(0).normal(size=(1500, 5))]
    told = [each.sign() for each in found]
    assert np.mean(np.abs(told)) == pytest.approx(0.05, abs=0.015)
    assert np.mean([each.sign(25) != 0 for each in found]) == pytest.approx(0.002, abs=0.003)
    excluded = np.mean([each.low > 0 or each.high < 0 for each in found])
    assert 0.11 < excluded < 0.19, "the interval is too narrow, as the module says"


def test_of_few_scores_only_the_mean_must_lie_above_a_floor():
    assert above(pd.Series([0.4, 0.7]), 0.5)
    assert not above(pd.Series([0.4, 0.7, 0.5, 0.5, 0.5]), 0.5)
    assert above(pd.Series([0.7, 0.7, 0.8, 0.7, 0.7]), 0.5)
    assert not above(pd.Series(dtype=float), 0.5)


def test_averages_are_of_seeds_that_have_every_task():
    scores = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [5.0, 6.0, None]})
    assert averages(scores, ["a", "b"]).to_dict() == {0: 3.0, 1: 4.0}
    assert averages(scores, ["a", "c"]).empty
    assert averages(scores, []).empty
    assert averages(pd.DataFrame(), ["a"]).empty
