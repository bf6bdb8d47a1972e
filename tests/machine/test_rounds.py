"""Taking turns: how many rounds there are, in which order, and what they are summed up to."""

import math

from hypothesis import given
from hypothesis import strategies as st

from mabert.machine import rounds
from mabert.machine.rounds import Spread, interleave

SECONDS = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9)


class Clock:
    """Seconds that pass only where a side takes them, and what was called."""

    def __init__(self, monkeypatch, **costs):
        self.now, self.calls = 0.0, []
        monkeypatch.setattr(rounds.time, "perf_counter", lambda: self.now)
        self.sides = {side: lambda side=side: self.spend(side, costs[side]) for side in costs}

    def spend(self, side, seconds):
        self.calls.append(side)
        self.now += seconds


def test_sides_take_turns_after_a_call_that_does_not_count(monkeypatch):
    clock = Clock(monkeypatch, ours=1.0, theirs=2.0)
    spreads = interleave(clock.sides, least=3, most=3, budget=0.0)
    assert clock.calls == ["ours", "theirs"] * 4
    assert spreads == {"ours": Spread(1e3, 1e3, 1e3, 3, 1e3, 1e3), "theirs": Spread(2e3, 2e3, 2e3, 3, 2e3, 2e3)}


def test_the_budget_decides_between_the_least_and_the_most_rounds(monkeypatch):
    for budget, expected in ((0.0, 2), (7.5, 3), (9.5, 4), (1e9, 5)):
        clock = Clock(monkeypatch, ours=1.0, theirs=2.0)
        spreads = interleave(clock.sides, least=2, most=5, budget=budget)
        assert {spread.samples for spread in spreads.values()} == {expected}


@given(SECONDS)
def test_a_spread_is_of_milliseconds_and_in_order(seconds):
    spread = Spread.of(seconds)
    assert 1e3 * min(seconds) == spread.fastest_ms <= spread.median_ms <= spread.slowest_ms == 1e3 * max(seconds)
    assert spread == Spread.of(seconds[::-1])
    assert spread.samples == len(seconds)


@given(st.integers(1, 200))
def test_bounds_miss_the_median_in_half_a_percent_of_cases_and_are_no_wider_than_that(count):
    spread = Spread.of([each / 1e3 for each in range(count)])
    left_out = round(spread.low_ms)
    assert round(spread.high_ms) == count - 1 - left_out
    # All calls but the bounds' outer ones lie on one side of the median in so many of 2 ** count cases.
    missed = [2 * sum(math.comb(count, each) for each in range(few + 1)) / 2**count for few in (left_out, left_out + 1)]
    assert missed[0] < 0.005 or (left_out == 0 and count < 9)
    assert missed[1] >= 0.005
