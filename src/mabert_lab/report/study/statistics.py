"""Scores over seeds: mean and deviation, and the difference of two arms, paired by seed, with its interval.

The interval is the bootstrap's percentile interval (Efron 1979, "Bootstrap methods: another look at the jackknife") of
the mean difference. Of five pairs it is too narrow: where nothing differs it excludes 0 about once in seven. So what is
called a difference rests on the paired t test (Student 1908) instead. Neither covers how pretraining itself would
spread: the seeds of an arm vary fine-tuning and share one pretrained model.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr

LEVEL = 0.95
LEAST_PAIRS = 5
"""Pairs that a verdict needs: were both arms alike, four would all point one way in one case of eight."""

_ENUMERATED = 6  # pairs of which all resamples are taken: 6 ** 6 are 46,656
_DRAWS = 20_000
_ROUNDING = 1e-12

Seeds = Mapping[int, float]
"""Scores by seed."""


class Summary(NamedTuple):
    """Scores over seeds.

    Attributes:
        mean: Of the scores.
        std: Sample standard deviation; None for one score.
        number: How many scores.
    """

    mean: float
    std: float | None
    number: int


class Difference(NamedTuple):
    """One arm less another.

    Attributes:
        mean: Over the pairs.
        low: Lower end of the interval; None for one pair.
        high: Upper end; None for one pair.
        chance: Of a mean as far from 0 where the arms are alike, by the paired t test, two-sided; None for one pair.
        pairs: Seeds that both arms have.
        columns: Tasks that the scores are averaged over.
    """

    mean: float
    low: float | None
    high: float | None
    chance: float | None
    pairs: int
    columns: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether both arms have the same score in every pair, as arms have that compute the same."""
        return self.mean == 0 and self.low in (None, 0) and self.high in (None, 0)

    def sign(self, comparisons: int = 1) -> int:
        """1 where the arm is above the other, -1 where below, 0 where that cannot be told.

        Args:
            comparisons: Among which the most telling one is looked for; the level is divided by them (Bonferroni).
        """
        if self.chance is None or self.pairs < LEAST_PAIRS or self.chance > (1 - LEVEL) / comparisons:
            return 0
        return 1 if self.mean > 0 else -1


def summary(scores: Iterable[float]) -> Summary | None:
    """Mean and deviation; None where there are no scores."""
    values = np.array(sorted(scores))
    if not values.size:
        return None
    return Summary(float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else None, values.size)


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Percentile interval of the mean.

    Every resample is enumerated for up to six values; beyond, 20,000 are drawn, the same ones each time.

    Args:
        values: What is resampled.
        level: Share of the resampled means inside.

    Returns:
        Lower and upper end; None for fewer than two values.

    Raises:
        ValueError: The level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"the level is {level}; it must be between 0 and 1")
    if len(values) < 2:
        return None
    # Sorted, so that the draws do not depend on the order in which the values came.
    means = np.sort(np.array(values))[_resamples(len(values))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def chance(gaps: Sequence[float]) -> float | None:
    """How likely a mean as far from 0 is where the true one is 0: Student's t test, two-sided; None for one value."""
    if len(gaps) < 2:
        return None
    mean, spread = abs(float(np.mean(gaps))), float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5
    if spread <= _ROUNDING:
        return 0.0 if mean > _ROUNDING else 1.0
    return float(2 * stdtr(len(gaps) - 1, -mean / spread))


def difference(ours: Seeds, theirs: Seeds, columns: tuple[str, ...] = ()) -> Difference | None:
    """One arm less another over the seeds that both have; None where they share none."""
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    gaps = [ours[seed] - theirs[seed] for seed in shared]
    low, high = interval(gaps) or (None, None)
    return Difference(float(np.mean(gaps)), low, high, chance(gaps), len(gaps), columns)


def above(scores: Seeds, floor: float) -> bool:
    """Whether scores lie above a number, by the t test; of fewer than `LEAST_PAIRS` only their mean is asked."""
    found = difference(scores, dict.fromkeys(scores, floor))
    if found is None:
        return False
    return found.mean > 0 if found.pairs < LEAST_PAIRS else found.sign() == 1


def averages(scores: Mapping[str, Seeds], columns: Sequence[str]) -> dict[int, float]:
    """Average over tasks by seed, of the seeds that have all of them."""
    found = [scores.get(column, {}) for column in columns]
    seeds = set.intersection(*(set(each) for each in found)) if found else set()
    return {seed: float(np.mean([each[seed] for each in found])) for seed in sorted(seeds)}


def average_difference(ours: Mapping[str, Seeds], theirs: Mapping[str, Seeds]) -> Difference | None:
    """One arm's average over tasks less another's, over what both have; None where that is nothing.

    Where cells are missing, the tasks and seeds are those that keep the most cells of which none is missing.
    """
    shared = {column: ours[column].keys() & theirs[column].keys() for column in ours if column in theirs}
    columns = _largest_block({column: seeds for column, seeds in shared.items() if seeds})
    return difference(averages(ours, columns), averages(theirs, columns), columns) if columns else None


def _largest_block(seeds: Mapping[str, Iterable[int]]) -> tuple[str, ...]:
    """The columns whose common seeds times their number is the most; of two such, the more columns; or none."""
    alike: dict[frozenset[int], list[str]] = {}  # mostly all have the same seeds; then there is nothing to choose
    for column, each in seeds.items():
        alike.setdefault(frozenset(each), []).append(column)
    choices = chain.from_iterable(combinations(alike, count) for count in range(len(alike), 0, -1))

    def kept(chosen: tuple[frozenset[int], ...]) -> tuple[int, int]:
        columns = sum(len(alike[each]) for each in chosen)
        return columns * len(frozenset.intersection(*chosen)), columns

    best = {column for each in max(choices, key=kept, default=()) for column in alike[each]}
    return tuple(column for column in seeds if column in best)


@cache
def _resamples(count: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Which of ``count`` values each resample takes, ``(resamples, count)``."""
    if count <= _ENUMERATED:
        return np.indices((count,) * count).reshape(count, -1).T
    return np.random.default_rng(0).integers(count, size=(_DRAWS, count))
