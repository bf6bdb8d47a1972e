"""How numbers grow with length, and where one curve crosses another.

A curve maps lengths in tokens to positive numbers, milliseconds or MiB; lower is better.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import linear_regression
from typing import NamedTuple

Curve = Mapping[int, float]
Stretch = tuple[float | None, float | None]
"""Lengths between which one curve lies below another; None where it does so up to the end of what was compared."""


class Growth(NamedTuple):
    """A power law fitted to a curve: ``value = constant * length ** exponent``.

    Attributes:
        exponent: 1 is linear growth, 2 quadratic.
        points: How many lengths it was fitted to.
        first: Shortest of them.
        last: Longest of them.
    """

    exponent: float
    points: int
    first: int
    last: int


class Slope(NamedTuple):
    """Growth between two lengths.

    Attributes:
        value: Units of the curve a 1,000 tokens.
        first: The shorter length.
        last: The longer.
    """

    value: float
    first: int
    last: int


def growth(curve: Curve, start: int = 512) -> Growth | None:
    """Fit an exponent by least squares, logarithm over logarithm.

    Args:
        curve: The numbers.
        start: Shortest length to fit, below which fixed costs hide the growth. Where fewer than two lengths are as
            long, all are fitted.

    Returns:
        The fit; None for fewer than two points.
    """
    lengths = sorted(length for length in curve if length >= start)
    if len(lengths) < 2:
        lengths = sorted(curve)
    if len(lengths) < 2:
        return None
    fit = linear_regression([math.log(length) for length in lengths], [math.log(curve[length]) for length in lengths])
    return Growth(fit.slope, len(lengths), lengths[0], lengths[-1])


def slope(curve: Curve) -> Slope | None:
    """Growth a 1,000 tokens between the two longest lengths; None for fewer than two."""
    if len(curve) < 2:
        return None
    first, last = sorted(curve)[-2:]
    return Slope(1000 * (curve[last] - curve[first]) / (last - first), first, last)


def below(ours: Curve, rival: Curve) -> list[Stretch] | None:
    """The stretches of length over which ours is lower.

    Between two lengths both curves are taken for power laws, straight lines in logarithms, which cross once at most.

    Args:
        ours: One curve.
        rival: The other; only lengths of both are compared.

    Returns:
        Stretches in order, each from one length to another. ``[(None, None)]`` is everywhere, ``[]`` nowhere. None
        where the curves have no length in common.
    """
    lengths = sorted(ours.keys() & rival.keys())
    if not lengths:
        return None
    gaps = [math.log(ours[length] / rival[length]) for length in lengths]
    ends: list[float | None] = [None] if gaps[0] < 0 else []
    for (left, right), (gap, next_gap) in zip(pairwise(lengths), pairwise(gaps), strict=True):
        if (gap < 0) != (next_gap < 0):
            ends.append(left * (right / left) ** (gap / (gap - next_gap)))
    if gaps[-1] < 0:
        ends.append(None)
    return list(zip(ends[::2], ends[1::2], strict=True))
