from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.permutation import Permutation, mix64


@settings(deadline=None)
@given(size=st.integers(1, 400), keys=st.lists(st.integers(0, 2**63), max_size=3))
def test_every_value_comes_once_and_keys_alone_decide(size, keys):
    order = Permutation(size, *keys)
    assert sorted(order) == list(range(size))
    assert order.order().tolist() == list(order)
    assert [Permutation(size, *keys)[i] for i in (0, size - 1)] == [order[0], order[size - 1]]


def test_other_keys_give_other_orders():
    orders = [list(Permutation(1000, *keys)) for keys in [(), (0,), (1,), (0, 0), (0, 1), (1, 0)]]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            assert sum(a == b for a, b in zip(first, second, strict=True)) < 10


@pytest.mark.slow
def test_orders_are_uniform():
    # All 24 orders of 4 values over 2,400 seeds: chi-squared with 23 degrees of freedom is below 49.7 in 99.9 %.
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2400):
        order = tuple(Permutation(4, seed))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 49.7


def test_no_drift_along_a_large_order():
    values = np.array([Permutation(10**9, 3)[i] for i in range(5000)])
    assert abs(values.mean() / 1e9 - 0.5) < 0.02
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05


def test_hash_is_a_bijection_that_depends_on_the_seed():
    values = np.arange(10000, dtype=np.uint64)
    hashed = mix64(values, 1)
    assert len(np.unique(hashed)) == len(values)
    assert not np.intersect1d(hashed, mix64(values, 2)).size
    assert abs((hashed >> np.uint64(63)).mean() - 0.5) < 0.03


def test_limits():
    with pytest.raises(ValueError, match="at least one value, not 0"):
        Permutation(0)
    with pytest.raises(IndexError, match="position 3 of a permutation of 3 values"):
        Permutation(3)[3]
