"""Bounds of times lie apart by chance as rarely as is said."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert_lab.bench import bounds
from mabert_lab.bench.bounds import CHANCE, bounds_of, chance_apart, left_out


@given(st.integers(1, 60))
def test_bounds_leave_out_as_many_as_chance_allows(count):
    few = left_out(count)
    assert bounds_of(range(count)[::-1]) == (few, count - 1 - few)
    assert 2 * (few + 1) >= count or bounds._chance(count, few + 1, count, few + 1) >= CHANCE
    assert chance_apart(count, count) < CHANCE or count < 5


@pytest.mark.parametrize(("first", "second"), [(1, 1), (4, 4), (4, 5), (3, 9), (9, 9), (9, 11), (11, 8)])
def test_the_chance_that_bounds_lie_apart_is_the_share_of_orders_in_which_they_do(first, second):
    orders = list(combinations(range(first + second), first))
    own = np.array(orders)[:, first - 1 - left_out(first)]
    others = np.array([sorted(set(range(first + second)) - set(order))[left_out(second)] for order in orders])
    assert chance_apart(first, second) == pytest.approx((own < others).mean(), rel=1e-12)
