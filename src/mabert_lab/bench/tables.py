"""What tables of measurements need, without torch: bounds of a side's times, by which a permutation test tells two
sides apart, and how contenders and numbers are written."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

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


def split(name: str) -> tuple[str, str]:
    """Splits a contender's name into model and engine; a path may contain a colon too."""
    model, colon, engine = name.rpartition(":")
    return (model, engine) if colon and "/" not in engine else (name, "")


def titled(name: str, titles: Mapping[str, str]) -> str:
    """Returns a contender's title in tables, by those of models: ``bert:openvino`` is BERT, openvino."""
    model, engine = split(name)
    return titles.get(model, Path(model).name) + (f", {engine}" if engine else "")


def digits(number: float, least: int = 3) -> str:
    """Formats a positive number with so many significant digits, and all that stand before the point."""
    return f"{number:,.{max(0, least - 1 - math.floor(math.log10(number)))}f}"
