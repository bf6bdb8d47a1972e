"""Numbers within what a person can mean: a range is declared beside each field and option.

A range stands in a field's annotation, `steps: Annotated[int, Range(1, 10**9)]`, which `mabert.train.fields` looks at,
or in a table by the field's name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mabert.reading import shown


@dataclass(frozen=True)
class Range:
    """What a number may be; it must be finite in any case.

    Attributes:
        least: The smallest.
        most: The largest.
        above: Whether it must be above `least`.
        below: Whether it must be below `most`.
    """

    least: float
    most: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        enough = value > self.least if self.above else value >= self.least
        return math.isfinite(value) and enough and (value < self.most if self.below else value <= self.most)

    def __str__(self) -> str:
        # A bound is written as its numbers are: 4294967295, not 4.29e+09.
        least, most = (f"{bound}" if isinstance(bound, int) else f"{bound:g}" for bound in (self.least, self.most))
        return f"{'above' if self.above else 'at least'} {least} and {'below' if self.below else 'at most'} {most}"

    def check(self, value: Any, name: str) -> None:
        """Refuses what is no number, or none within the range.

        Raises:
            ValueError: Naming the field, the value and what would be right.
        """
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{name} is {shown(value)}; it must be a number, {self}")
        if value not in self:
            raise ValueError(f"{name} is {shown(value)}; it must be {self}")


def check_ranges(fields: Mapping[str, Any], ranges: Mapping[str, Range], where: str = "") -> None:
    """Checks numbers by name: within the range that there is for it, or within `ANY`.

    Raises:
        ValueError: Naming the field, the value and what would be right.
    """
    for name, value in fields.items():
        if name in ranges:
            ranges[name].check(value, where + name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            ANY.check(value, where + name)


COUNT = Range(1, 10**9)
"""Of steps, epochs and the like."""

TOKENS = Range(1, 2**24)
"""Of a text, a window or a batch: the Bible has a million."""

ROWS = Range(1, 2**20)
"""Of a batch: the largest that anyone trains with are some ten thousand."""

RATE = Range(0, 1, below=True)
"""A share that must leave something, such as dropout."""

SHARE = Range(0, 1)

SECONDS = Range(0, 10**6, above=True)
"""Of a measurement."""

LEARNING_RATE = Range(0, 1e38)
"""Wide, since a rate that is too large shows as divergence, which is told."""

SEED = Range(0, 2**32 - 1)

MOST_SEEDS = 10_000

TO_LEARN = Range(1000, 10**12)
"""Tokens that a conversion learns from."""

LONGEST = Range(16, 2**20)
"""Tokens of the longest text that a conversion learns from."""

EXPANSION = Range(0, 64, above=True)
"""Channels of a Mamba core, in widths of the model."""

ANY = Range(-(2**31), 2**31)
"""Of fields that have no range of their own."""
