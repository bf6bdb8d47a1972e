"""Growth, crossings and ratios are what algebra says of power laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert_lab.report.efficiency.scaling import below, growth, slope

LENGTHS = (128, 512, 1024, 2048, 4096)
SCALES = st.floats(1e-3, 1e6)
EXPONENTS = st.floats(-1, 4)


def law(scale, exponent, lengths=LENGTHS):
    return {length: scale * length**exponent for length in lengths}


@given(SCALES, EXPONENTS, st.sets(st.integers(512, 65536), min_size=2, max_size=8))
def test_a_power_law_gives_its_exponent(scale, exponent, lengths):
    fit = growth(law(scale, exponent, lengths))
    assert fit.exponent == pytest.approx(exponent, abs=1e-6)
    assert fit[1:] == (len(lengths), min(lengths), max(lengths))


@given(SCALES, EXPONENTS)
def test_lengths_below_the_start_do_not_count(scale, exponent):
    fit = growth(law(scale, exponent) | {128: 1e9})
    assert fit.exponent == pytest.approx(exponent, abs=1e-6)
    assert fit.points == 4


def test_short_curves_are_fitted_from_their_shortest_length():
    assert growth({128: 1.0, 512: 4.0}) == (pytest.approx(1.0), 2, 128, 512)
    assert growth({64: 1.0, 128: 4.0}) == (pytest.approx(2.0), 2, 64, 128)
    assert growth({4096: 1.0}) is None
    assert growth({}) is None


def test_slope_is_that_of_the_two_longest_lengths():
    assert slope({4096: 130.0, 128: 500.0, 2096: 100.0}) == (pytest.approx(15.0), 2096, 4096)
    assert slope({128: 1.0}) is None


@given(SCALES, EXPONENTS, st.floats(0.1, 2), st.floats(129, 4095))
def test_two_power_laws_cross_where_algebra_says(scale, exponent, steeper, crossing):
    ours = law(scale, exponent)
    rival = {length: value * (length / crossing) ** steeper for length, value in ours.items()}
    assert below(ours, rival) == [(pytest.approx(crossing, rel=1e-6), None)]
    assert below(rival, ours) == [(None, pytest.approx(crossing, rel=1e-6))]


def test_stretches_that_end_inside_come_in_order():
    ours = {1: 1.0, 2: 4.0, 4: 1.0, 8: 4.0, 16: 1.0}
    found = below(ours, dict.fromkeys(ours, 2.0))
    root = 2**0.5
    assert found == [
        (None, pytest.approx(root)),
        (pytest.approx(2 * root), pytest.approx(4 * root)),
        (pytest.approx(8 * root), None),
    ]


def test_everywhere_nowhere_and_nothing_to_compare():
    assert below({1: 1.0, 2: 1.0}, {1: 2.0, 2: 2.0}) == [(None, None)]
    assert below({1: 2.0, 2: 2.0}, {1: 2.0, 2: 1.0}) == []
    assert below({1: 1.0}, {2: 1.0}) is None


def test_only_lengths_of_both_curves_are_compared():
    assert below({128: 1.0, 256: 9.0, 512: 1.0}, {128: 2.0, 512: 2.0, 1024: 0.1}) == [(None, None)]
