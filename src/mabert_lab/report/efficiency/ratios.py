"""Models held against one another: the mean of several over one, with what the spread of their calls allows."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from mabert_lab.report.efficiency.results import Row, factor
from mabert_lab.report.efficiency.tables import Rows


class Spread(NamedTuple):
    """What a ratio lies between.

    Attributes:
        low: The rivals' fastest calls over the slowest of the one.
        high: Their slowest over its fastest; infinite where a rival is only known to exceed a number.
        calls: Fewest timed calls of any side, of MaBERT's in the turns of a rival that took turns with it alone; None
            for memory, which is the same each time.
        chance: How likely both ends lie on one side of 1, whichever, where the two take equally long: of so many calls
            there are so many ways to say which are whose, and two of them have all of one side first. Two-sided, as the
            t test of scores is. The greatest of any rival; 0 for memory and for bounds.
    """

    low: float
    high: float
    calls: int | None
    chance: float


class Ratio(NamedTuple):
    """The mean of rivals over one model.

    Attributes:
        value: Of the medians, or of peak memory, over the rivals that have a number; None where none has.
        counted: How many those are.
        wanted: How many rivals the mean is of.
        at_least: Lower bound of the mean over all, where each rival without a number is known to exceed one.
        spread: None where a rival has neither a number nor a bound.
    """

    value: float | None
    counted: int
    wanted: int
    at_least: float | None
    spread: Spread | None


class _Span(NamedTuple):
    """What a number lies between; the timed calls behind it, and those of the one that it is held against where they
    took turns by themselves."""

    low: float
    middle: float | None
    high: float
    calls: int | None
    beside: int | None = None


def ratio(rows: Rows, length: int, rivals: Sequence[str], ours: str = "mabert") -> Ratio | None:
    """How many times one model's number the mean of its rivals' is.

    Times have a spread, from the fastest call to the slowest; memory has none. A rival that took turns with MaBERT
    alone is set beside MaBERT's own number as `mabert_lab.report.efficiency.results.factor` says.

    Args:
        rows: Of one table.
        length: Tokens.
        rivals: Models to average over.
        ours: The model that they are held against.

    Returns:
        The ratio, which tells of rivals that have no number; None where ``ours`` has none.
    """
    mine = rows.get(ours, {}).get(length)
    own = _span(mine)
    if own is None or own.middle is None:
        return None
    turns = mine if ours == "mabert" else None
    found = [_span(rows.get(rival, {}).get(length), turns) for rival in rivals]
    spans = [span for span in found if span is not None]
    middles = [span.middle for span in spans if span.middle is not None]
    whole = len(spans) == len(rivals)
    return Ratio(
        fmean(middles) / own.middle if middles else None,
        len(middles),
        len(rivals),
        fmean(span.middle or span.low for span in spans) / own.middle if whole and len(middles) < len(spans) else None,
        _spread(own, spans) if whole else None,
    )


def _spread(own: _Span, rivals: Sequence[_Span]) -> Spread:
    pairs = [(span.calls, span.beside or own.calls) for span in rivals]
    counted = [calls for pair in [*pairs, (own.calls,)] for calls in pair if calls is not None]
    timed = [(calls, beside) for calls, beside in pairs if calls is not None and beside is not None]
    return Spread(
        fmean(span.low for span in rivals) / own.high,
        fmean(span.high for span in rivals) / own.low,
        min(counted, default=None),
        max((2 / math.comb(beside + calls, calls) for calls, beside in timed), default=0.0),
    )


def has_bound(row: Row | None) -> bool:
    """Whether a row has a number, or is known to exceed one."""
    return _span(row) is not None


def _span(row: Row | None, beside: Row | None = None) -> _Span | None:
    """What a row lies between, scaled to the turns of the one that it is held against where it had others; of one that
    was too slow, only the lower end is known."""
    if row is not None and row.value is not None:
        low, high = row.numbers.get("fastest_ms", row.value), row.numbers.get("slowest_ms", row.value)
        scale = factor(row, beside)
        return _Span(scale * low, scale * row.value, scale * high, row.samples, row.anchor_samples if beside else None)
    if row is not None and row.at_least is not None and row.measure != "memory":
        return _Span(1000 * row.at_least, None, math.inf, None)
    return None
