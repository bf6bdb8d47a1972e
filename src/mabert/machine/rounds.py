"""Times several sides against each other in turns, so that other load on the machine affects all of them alike."""

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

Side = TypeVar("Side", bound=Hashable)

_MISSED = 0.005  # share of cases in which the bounds may miss the median


@dataclass(frozen=True)
class Spread:
    """Times of one side, in milliseconds.

    Attributes:
        median_ms: Median of all samples.
        fastest_ms: Shortest sample.
        slowest_ms: Longest sample.
        samples: Number of samples.
        low_ms: Lower bound of the median, one of the samples: it and ``high_ms`` miss the median in less than 0.5 % of
            cases, whatever the distribution (the interval of the sign test). Of fewer than nine samples, the shortest.
        high_ms: Upper bound.
    """

    median_ms: float
    fastest_ms: float
    slowest_ms: float
    samples: int
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Spread":
        """Summarises samples given in seconds."""
        times, count = sorted(1e3 * each for each in seconds), len(seconds)
        below = accumulate(math.comb(count, few) / 2**count for few in range(count))  # chances that so few are below it
        left_out = max(sum(chance < _MISSED / 2 for chance in below) - 1, 0)
        return cls(statistics.median(times), times[0], times[-1], count, times[left_out], times[-1 - left_out])


def timed(function: Callable[[], object]) -> float:
    """Calls a function once; returns the seconds it took."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def interleave(
    sides: Mapping[Side, Callable[[], object]], *, least: int, most: int, budget: float
) -> dict[Side, Spread]:
    """Times the sides in turns, after one call of each that is not counted.

    Args:
        sides: The functions to time, by name.
        least: Minimum number of rounds, whatever they cost.
        most: Maximum number of rounds.
        budget: Seconds after which no round past ``least`` starts.

    Returns:
        One spread per side.
    """
    for function in sides.values():
        function()
    samples: dict[Side, list[float]] = {side: [] for side in sides}
    started = time.perf_counter()
    for done in range(most):
        if done >= least and time.perf_counter() - started > budget:
            break
        for side, function in sides.items():
            samples[side].append(timed(function))
    return {side: Spread.of(seconds) for side, seconds in samples.items()}
