"""Timing several sides against each other: in turns, so that whatever else the machine does falls on all of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """How long one thing took; all in milliseconds.

    Attributes:
        median_ms: The middle of all samples.
        fastest_ms: The shortest.
        slowest_ms: The longest.
        samples: How many there were.
    """

    median_ms: float
    fastest_ms: float
    slowest_ms: float
    samples: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Spread":
        """Summarise samples given in seconds."""
        return cls(1e3 * statistics.median(seconds), 1e3 * min(seconds), 1e3 * max(seconds), len(seconds))


def timed(function: Callable[[], object]) -> float:
    """Call once; return the seconds it took."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def interleave(
    sides: Mapping[str, Callable[[], object]], *, least: int, most: int, budget: float, warm: bool = True
) -> dict[str, Spread]:
    """Time the sides in turns; arguments as of `in_turns`.

    Returns:
        One spread for each side.
    """
    samples = in_turns(sides, least=least, most=most, budget=budget, warm=warm)
    return {side: Spread.of(seconds) for side, seconds in samples.items()}


def in_turns(
    sides: Mapping[str, Callable[[], object]], *, least: int, most: int, budget: float, warm: bool = True
) -> dict[str, list[float]]:
    """Time the sides in turns.

    Args:
        sides: Name to what is timed.
        least: Rounds that are made whatever they cost.
        most: Rounds that are never exceeded.
        budget: Seconds after which no round past ``least`` is begun.
        warm: Whether one call of each comes first that is not counted.

    Returns:
        For each side the seconds of every round, in their order.
    """
    for function in sides.values() if warm else ():
        function()
    samples: dict[str, list[float]] = {side: [] for side in sides}
    started = time.perf_counter()
    for done in range(most):
        if done >= least and time.perf_counter() - started > budget:
            break
        for side, function in sides.items():
            samples[side].append(timed(function))
    return samples
