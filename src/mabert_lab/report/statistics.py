"""Scores over seeds: mean and deviation, and paired differences with an interval and a test.

The interval is the bootstrap's percentile interval (Efron 1979) of the mean difference. Of five pairs it is too narrow:
where nothing differs it excludes 0 about once in seven. So what is called a difference rests on the paired t test
(Student 1908). Neither covers how pretraining itself would spread: the seeds of an arm share one pretrained model.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
LEAST_PAIRS = 5
"""Pairs that a verdict needs: were both arms alike, four would all point one way in one case of eight."""

_ENUMERATED = 6  # pairs of which all resamples are taken: 6 ** 6 are 46,656
_ROUNDING = 1e-12

Seeds = Mapping[int, float]
"""Scores by seed."""


class Difference(NamedTuple):
    """One arm less another, or the gap of two such differences.

    Attributes:
        mean: Over the pairs.
        low: Lower end of the interval; None for one pair.
        high: Upper end; None for one pair.
        p_value: Of the paired t test, two-sided; None for one pair.
        pairs: Seeds that both arms have.
        columns: Tasks that the scores are averaged over.
    """

    mean: float
    low: float | None
    high: float | None
    p_value: float | None
    pairs: int
    columns: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether both arms have the same score in every pair."""
        return self.mean == 0 and self.low in (None, 0) and self.high in (None, 0)

    def sign(self, comparisons: int = 1) -> int:
        """1 where the arm is above the other, -1 where below, 0 where that cannot be told.

        Args:
            comparisons: Among which the most telling one is looked for; the level is divided by them (Bonferroni).
        """
        if self.p_value is None or self.pairs < LEAST_PAIRS or self.p_value > (1 - LEVEL) / comparisons:
            return 0
        return 1 if self.mean > 0 else -1


def summary(scores: Iterable[float]) -> tuple[float, float | None, int] | None:
    """Mean, sample standard deviation (None for one score) and number of scores; None where there are none."""
    values = np.array(sorted(scores))
    if not values.size:
        return None
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else None, values.size


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Percentile interval of the mean; None for fewer than two values.

    Every resample of up to six values is taken; beyond, 20,000 are drawn, the same ones each time.
    """
    if len(values) < 2:
        return None
    ordered = np.sort(np.array(values))  # so that the draws do not depend on the order in which the values came
    if len(values) > _ENUMERATED:
        drawn = stats.bootstrap((ordered,), np.mean, n_resamples=20_000, method="percentile", rng=0)
        return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
    means = ordered[np.indices((len(values),) * len(values)).reshape(len(values), -1)].mean(axis=0)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def p_value(gaps: Sequence[float]) -> float | None:
    """How likely a mean as far from 0 is where the true one is 0: the t test, two-sided; None for one value."""
    if len(gaps) < 2:
        return None
    if np.std(gaps) <= _ROUNDING:  # which the test cannot divide by
        return 0.0 if abs(np.mean(gaps)) > _ROUNDING else 1.0
    return float(stats.ttest_1samp(gaps, 0).pvalue)


def difference(ours: Seeds, theirs: Seeds, columns: tuple[str, ...] = ()) -> Difference | None:
    """One arm less another over the seeds that both have; None where they share none."""
    gaps = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not gaps:
        return None
    low, high = interval(gaps) or (None, None)
    return Difference(float(np.mean(gaps)), low, high, p_value(gaps), len(gaps), columns)


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
    """One arm's average over tasks less another's, over the tasks that both have; None where that is none."""
    columns = tuple(column for column in ours if ours[column].keys() & theirs.get(column, {}).keys())
    return difference(averages(ours, columns), averages(theirs, columns), columns)
