"""Times several sides against each other in turns, so that other load on the machine affects all of them alike."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Side = TypeVar("Side", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Times of one side, in milliseconds."""

    median_ms: float
    fastest_ms: float
    slowest_ms: float
    samples: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Spread":
        """Summarises samples given in seconds."""
        return cls(1e3 * statistics.median(seconds), 1e3 * min(seconds), 1e3 * max(seconds), len(seconds))


def timed(function: Callable[[], object]) -> float:
    """Calls a function once; returns the seconds it took."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def interleave(
    sides: Mapping[Side, Callable[[], object]], *, least: int, most: int, budget: float
) -> dict[Side, Spread]:
    """Times functions by name in turns, after one call of each that is not counted: `most` rounds, of which none past
    `least` begins after so many seconds (`budget`)."""
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
