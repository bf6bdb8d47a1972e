"""Taking turns: how many rounds there are, in which order, and what they are summed up to."""

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
    assert spreads == {"ours": Spread(1e3, 1e3, 1e3, 3), "theirs": Spread(2e3, 2e3, 2e3, 3)}


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
