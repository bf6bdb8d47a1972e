"""Bounds of a side's times, by which a permutation test tells two sides apart."""

import math
from collections.abc import Sequence
from functools import cache

CHANCE = 0.005  # largest chance that the bounds of two equally fast sides lie apart, the first below the second


def bounds_of(times: Sequence[float]) -> tuple[float, float]:
    """Returns the shortest and the longest of the times that remain without those in `left_out`."""
    ordered, (slowest, fastest) = sorted(times), left_out(len(times))
    return ordered[fastest], ordered[-1 - slowest]


@cache
def left_out(count: int) -> tuple[int, int]:
    """Returns how many of a side's slowest and fastest times lie outside its bounds; none of fewer than seven. The
    slowest go first, for whatever disturbs a measurement slows it."""
    slowest, fastest = 0, 0
    while True:
        more = (slowest + 1, fastest) if slowest == fastest else (slowest, fastest + 1)
        if sum(more) >= count or _chance(count, more[0], count, more[1]) >= CHANCE:
            return slowest, fastest
        slowest, fastest = more


def chance_apart(first: int, second: int) -> float:
    """Returns how likely the bounds of two equally fast sides lie apart, the likelier of both ways, if all orders of
    their times (`first` and `second` are the numbers of these) are equally likely, whatever the distribution."""
    pairs = ((first, second), (second, first))
    return max(_chance(less, left_out(less)[0], more, left_out(more)[1]) for less, more in pairs)


def _chance(first: int, out_of_first: int, second: int, out_of_second: int) -> float:
    orders = (  # by how many times of the one side lie below the other's lower bound
        math.comb(out_of_second + below, below) * math.comb(second - out_of_second - 1 + first - below, first - below)
        for below in range(first - out_of_first, first + 1)
    )
    return sum(orders) / math.comb(first + second, first)
