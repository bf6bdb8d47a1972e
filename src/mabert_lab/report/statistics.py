"""Scores over seeds: mean and deviation, and paired differences with an interval and a test.

The interval is the bootstrap's percentile interval (Efron 1979) of the mean difference. With five pairs it is too
narrow: if nothing differs, it excludes 0 about once in seven. So differences are decided by the paired t test (Student
1908). Neither covers the variation of pretraining itself, since the seeds of an arm share one pretrained model.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
LEAST_PAIRS = 5
"""Minimum pairs for a verdict: if both arms were alike, four pairs would all point one way in one case of eight."""

NO_SCORES = pd.Series(dtype=float)
_ENUMERATED = 6  # pairs up to which all resamples are taken: 6 ** 6 are 46,656
_ROUNDING = 1e-12


class Difference(NamedTuple):
    """The difference of two arms, or of two such differences.

    Attributes:
        mean: Mean over the pairs.
        low: Lower end of the interval; None for one pair.
        high: Upper end; None for one pair.
        p_value: p-value of the two-sided paired t test; None for one pair.
        pairs: Number of seeds that both arms have.
    """

    mean: float
    low: float | None
    high: float | None
    p_value: float | None
    pairs: int

    @property
    def equal(self) -> bool:
        """Whether both arms have the same score in every pair."""
        return self.mean == 0 and self.low in (None, 0) and self.high in (None, 0)

    def sign(self, comparisons: int = 1) -> int:
        """Returns 1 if the arm is above the other, -1 if below, 0 if undecided.

        Args:
            comparisons: Number of comparisons among which this one was selected; divides the level (Bonferroni).
        """
        if self.p_value is None or self.pairs < LEAST_PAIRS or self.p_value > (1 - LEVEL) / comparisons:
            return 0
        return 1 if self.mean > 0 else -1


def summary(scores: Iterable[float]) -> tuple[float, float | None, int] | None:
    """Returns mean, sample standard deviation (None for one score) and number of scores; None if there are none."""
    values = pd.Series(scores, dtype=float).dropna().sort_values().to_numpy()
    if not values.size:
        return None
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else None, values.size


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Returns the percentile interval of the mean; None for fewer than two values.

    It takes all resamples of up to six values; for more values, 20,000 resamples are drawn, always the same.
    """
    if len(values) < 2:
        return None
    ordered = np.sort(np.array(values))  # so that the draws do not depend on the order of the values
    if len(values) > _ENUMERATED:
        drawn = stats.bootstrap((ordered,), np.mean, n_resamples=20_000, method="percentile", rng=0)
        return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
    means = ordered[np.indices((len(values),) * len(values)).reshape(len(values), -1)].mean(axis=0)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def difference(gaps: pd.Series) -> Difference | None:
    """Summarises the gaps of two arms by seed; None if there are none."""
    values = gaps.dropna().sort_index().to_numpy(float)
    if not values.size:
        return None
    low, high = interval(values) or (None, None)
    if values.size < 2:
        p_value = None
    elif values.std() <= _ROUNDING:  # the test would divide by zero
        p_value = float(abs(values.mean()) <= _ROUNDING)
    else:
        p_value = float(stats.ttest_1samp(values, 0).pvalue)
    return Difference(float(values.mean()), low, high, p_value, values.size)


def above(scores: pd.Series, floor: float) -> bool:
    """Checks whether scores are above a number, by the t test; below `LEAST_PAIRS` scores, by their mean."""
    found = difference(scores - floor)
    if found is None:
        return False
    return found.mean > 0 if found.pairs < LEAST_PAIRS else found.sign() == 1


def averages(scores: pd.DataFrame, columns: Iterable[str]) -> pd.Series:
    """Averages scores (rows are seeds) over some tasks by seed, for seeds that have all of them."""
    wanted = list(columns)
    if not wanted or not set(wanted) <= set(scores):
        return NO_SCORES
    found = scores[wanted].dropna()
    return pd.Series(np.ascontiguousarray(found).mean(axis=1), found.index)
