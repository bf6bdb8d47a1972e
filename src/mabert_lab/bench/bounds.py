"""Bounds of a side's times, by which a permutation test tells two sides apart."""

import math
from collections.abc import Sequence
from functools import cache

CHANCE = 0.005
"""Largest chance that the bounds of two equally fast sides lie apart, the first below the second."""


def bounds_of(times: Sequence[float]) -> tuple[float, float]:
    """Returns the shortest and the longest of the times that remain when each end loses `left_out`."""
    ordered, few = sorted(times), left_out(len(times))
    return ordered[few], ordered[-1 - few]


@cache
def left_out(count: int) -> int:
    """Returns how many of a side's times lie outside its bounds at each end; 0 of fewer than nine."""
    few = 0
    while 2 * (few + 1) < count and _chance(count, few + 1, count, few + 1) < CHANCE:
        few += 1
    return few


def chance_apart(first: int, second: int) -> float:
    """Returns how likely the bounds of a side of `first` times lie below those of a side of `second` times where both
    are equally fast: all orders of their times are then equally likely, whatever the distribution."""
    return _chance(first, left_out(first), second, left_out(second))


def _chance(first: int, out_of_first: int, second: int, out_of_second: int) -> float:
    orders = (  # by how many times of the one side lie below the other's lower bound
        math.comb(out_of_second + below, below) * math.comb(second - out_of_second - 1 + first - below, first - below)
        for below in range(first - out_of_first, first + 1)
    )
    return sum(orders) / math.comb(first + second, first)
