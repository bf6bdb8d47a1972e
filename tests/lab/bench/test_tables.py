"""Bounds of times lie apart by chance as rarely as is said, and contenders are named alike."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert_lab.bench import tables
from mabert_lab.bench.tables import CHANCE, bounds_of, chance_apart, left_out, split, titled


@given(st.integers(1, 60))
def test_bounds_leave_out_as_many_as_chance_allows_the_slowest_first(count):
    slowest, fastest = left_out(count)
    assert bounds_of(range(count)[::-1]) == (fastest, count - 1 - slowest)
    assert slowest - fastest in (0, 1)
    more = (fastest + 1, fastest) if slowest == fastest else (slowest, fastest + 1)
    assert sum(more) >= count or tables._chance(count, more[0], count, more[1]) >= CHANCE
    assert chance_apart(count, count) < CHANCE or count < 5
    assert (slowest > 0) == (count >= 7)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (4, 4), (4, 5), (3, 9), (7, 7), (8, 7), (9, 8), (11, 5)])
def test_the_chance_that_bounds_lie_apart_is_the_share_of_orders_in_which_they_do(first, second):
    orders = list(combinations(range(first + second), first))
    theirs = [sorted(set(range(first + second)) - set(order)) for order in orders]
    own, others = (np.array([bounds_of(times) for times in side]) for side in (orders, theirs))
    either = [(own[:, 1] < others[:, 0]).mean(), (others[:, 1] < own[:, 0]).mean()]
    assert chance_apart(first, second) == chance_apart(second, first) == pytest.approx(max(either), rel=1e-12)


@pytest.mark.parametrize("calls", [7, 8, 9, 14])
def test_one_disturbed_call_of_seven_hides_no_difference(calls):
    fast, slow = [1.0] * calls, [1.2] * (calls - 1) + [9.0]
    assert bounds_of([*fast[1:], 9.0])[1] < bounds_of(slow)[0]


def test_a_contender_is_a_model_and_an_engine_and_a_path_may_have_a_colon():
    assert [split(name) for name in ("bert", "bert:openvino", "a:b/c")] == [
        ("bert", ""),
        ("bert", "openvino"),
        ("a:b/c", ""),
    ]
    titles = {"bert": "BERT"}
    assert [titled(name, titles) for name in ("bert", "bert:openvino", "runs/own")] == ["BERT", "BERT, openvino", "own"]
