"""Turns: who is called when, how often, and what a row says where there is no number."""

import itertools
from dataclasses import replace
from functools import partial
from unittest.mock import Mock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.tasks import Sample
from mabert_lab.bench.turns import Bench, Protocol, take_turns
from mabert_lab.bench.worker import CellError

CELL = Cell("latency", "best", "bfloat16", 24, small=True)
TRAINING = replace(CELL, measure="training", small=False)
SECONDS = st.floats(0.01, 50)


def turns(seconds, protocol):
    """Which of some sides of constant speed is called when."""
    log = []

    def called(side):
        log.append(side)
        return Sample(seconds[side], seconds[side])

    sides = {side: partial(called, side) for side in range(len(seconds))}
    taken = take_turns(sides, protocol, lambda *_: pytest.fail("nothing fails"))
    assert {side: len(samples) for side, samples in taken.items()} == {side: log.count(side) for side in sides}
    return log


@given(st.lists(SECONDS, min_size=1, max_size=5), st.integers(1, 5), st.integers(0, 20), st.floats(0.1, 100))
def test_every_side_has_the_samples_that_its_budget_pays(seconds, least, more, budget):
    protocol = Protocol(least=least, most=least + more, budget=budget)
    log = turns(seconds, protocol)
    for side, each in enumerate(seconds):
        count = log.count(side)
        assert least <= count <= least + more
        assert count == least or (count - 1) * each < budget * (1 + 1e-9)
        assert count == least + more or count * each >= budget * (1 - 1e-9)


@given(st.lists(SECONDS, min_size=2, max_size=4), st.floats(1, 200))
def test_samples_of_all_are_spread_over_the_whole(seconds, budget):
    log = turns(seconds, Protocol(least=3, most=40, budget=budget))
    for side in range(len(seconds)):
        places = [place / len(log) for place, name in enumerate(log) if name == side]
        half = sum(place < 0.5 for place in places)
        assert abs(half - len(places) / 2) <= 1 + 0.1 * len(places), "few or many, before and after the middle"


def test_sides_of_one_number_of_samples_take_turns():
    assert turns([2.0, 0.5, 7.0], Protocol(least=3, most=3)) == [0, 1, 2] * 3


def test_a_side_that_fails_loses_its_samples_and_the_others_go_on():
    odd, failed = CellError("failed", "odd"), Mock()
    sides = {"broken": Mock(side_effect=[Sample(1, 1), odd]), "sound": lambda: Sample(1, 2)}
    assert take_turns(sides, Protocol(least=2, most=2), failed) == {"sound": [(1, 2)] * 2}
    assert failed.call_args_list == [call("broken", odd, [(1, 1)])]


class Scripted:
    """A worker that answers from a list: seconds of a micro-batch of 8 in 32, or an error to raise."""

    def __init__(self, name, answers, log):
        self.name, self.answers, self.log = name, list(answers), log

    def ask(self, question, *arguments, limit=0.0):
        if question == "prepare":
            return {"setting": "sdpa", "batch": 32, "micro_batch": 8}
        if question == "memory":
            return {"peak": 3 << 20, "weights": 2 << 20, "resident": None}
        if question == "bound":
            self.log.append(("bound", *arguments))
            if self.answers[:1] == ["killed"]:
                raise CellError("out of memory", "the process ended with exit code -9")
            return None
        self.log.append(self.name)
        answer = self.answers.pop(0) if self.answers else 1.0
        if isinstance(answer, CellError):
            raise answer
        if answer > limit:
            raise CellError("too slow", f"one call took more than {limit:g} s", limit)
        return Sample(answer + 0.5, 4 * answer + 0.5)

    def release(self):
        pass


@pytest.fixture
def measure(monkeypatch):
    """Measures a cell with scripted workers; every group of models is bound to one number of bytes, another each."""

    def measured(protocol, cell=CELL, **scripts):
        log = []
        bench = Bench(protocol, {name: Scripted(name, answers, log) for name, answers in scripts.items()})
        monkeypatch.setattr("mabert_lab.bench.turns.free_memory", partial(next, itertools.count()))
        rows = {row.model: row for row in bench.measure(cell)}
        assert list(rows) == list(scripts), "rows come in the order of the models"
        for is_bound, entries in itertools.groupby(log, key=lambda entry: entry[0] == "bound"):
            assert not is_bound or len(set(entries)) == 1
        return bench, rows, [entry for entry in log if entry[0] != "bound"]

    return measured


def test_a_row_is_of_whole_steps_after_a_warm_up(measure):
    protocol = Protocol(warm=2, least=2, most=3, warm_seconds=100.0, budget=100.0)
    _, rows, log = measure(protocol, a=[9, 9, 1, 2, 3], b=[9, 9, 4, 4, 4])
    assert log == ["a", "a", "b", "b", *"ababab"]
    assert (rows["a"].median_ms, rows["a"].fastest_ms, rows["a"].slowest_ms) == (8500, 4500, 12500)
    assert (rows["b"].samples, rows["b"].status, rows["b"].setting) == (3, "measured", "sdpa")
    assert (rows["a"].batch, rows["a"].micro_batch) == (32, 8)


def test_a_warm_up_ends_after_its_seconds(measure):
    protocol = Protocol(warm=5, least=2, most=50, warm_seconds=1.0, budget=8.0)
    _, rows, log = measure(protocol, slow=[90, 20, 21], quick=[])
    assert (log.count("slow"), rows["slow"].samples) == (3, 2)
    assert (log.count("quick"), rows["quick"].samples) == (1 + 6, 6), "1.5 s at a time until 8 s are used up"


def test_a_model_that_is_killed_while_others_are_built_ends_alone(measure):
    _, rows, log = measure(Protocol(warm=0, least=2, most=2), a=["killed"], b=[1, 3])
    assert log == ["b", "b"]
    assert (rows["a"].status, rows["a"].median_ms) == ("out of memory", None)
    assert (rows["b"].status, rows["b"].samples) == ("measured", 2)


def test_in_training_each_rival_takes_turns_with_mabert(measure):
    protocol = Protocol(warm=0, least=2, most=2)
    _, rows, log = measure(protocol, TRAINING, a=[], b=[], mabert=[1, 2, 5, 7])
    assert log == ["a", "mabert"] * 2 + ["b", "mabert"] * 2
    assert (rows["mabert"].samples, rows["mabert"].median_ms) == (4, 1000 * (4 * (2 + 5) / 2 + 0.5))
    assert {name: row.anchor_ms for name, row in rows.items()} == {"a": 6500, "b": 24500, "mabert": None}
    assert {name: row.anchor_samples for name, row in rows.items()} == {"a": 2, "b": 2, "mabert": None}
    for cell, models, expected in (
        (replace(TRAINING, measure="latency"), ("a", "b", "mabert"), ["a", "b", "mabert"] * 2),
        (TRAINING, ("a", "b"), ["a", "a", "b", "b"]),
        (TRAINING, ("mabert",), ["mabert"] * 2),
    ):
        _, rows, log = measure(protocol, cell, **dict.fromkeys(models, ()))
        assert log == expected
        assert {row.anchor_ms for row in rows.values()} == {None}


def test_a_model_that_fails_in_one_pair_has_no_number_and_is_left_out_of_the_next(measure):
    too_slow = CellError("too slow", "one call took more than 5 s")
    _, rows, log = measure(Protocol(warm=0, least=1, most=1), TRAINING, a=[], mabert=[1, too_slow], b=[], c=[])
    assert log == ["a", "mabert", "mabert", "b", "c"]
    assert (rows["mabert"].status, rows["mabert"].median_ms, rows["mabert"].samples) == ("too slow", None, None)
    rivals = {name: (row.status, row.anchor_ms) for name, row in rows.items() if name != "mabert"}
    assert rivals == {"a": ("measured", 4500), "b": ("measured", None), "c": ("measured", None)}


@pytest.mark.parametrize("status", ["too slow", "out of memory"])
def test_what_is_too_much_for_a_model_is_not_tried_again_at_longer_inputs(measure, status):
    failing = CellError(status, "one call took more than 5 s", 5.0 if status == "too slow" else None)
    whole = 4 * 5000 if status == "too slow" else None
    bench, rows, log = measure(Protocol(warm=1, least=1, most=1), a=[failing], b=[])
    assert (rows["a"].status, rows["a"].reason, rows["a"].median_ms) == (status, "one call took more than 5 s", None)
    assert (rows["a"].at_least_ms, rows["b"].at_least_ms) == (whole, None)
    assert rows["b"].status == "measured"
    longer, _ = bench.measure(replace(CELL, length=48))
    assert (longer.status, longer.reason) == (status, "one call took more than 5 s at 24 tokens")
    assert longer.at_least_ms == whole
    assert log.count("a") == 1
    assert bench.measure(replace(CELL, length=48, dtype="float32"))[0].status == "measured"


def test_a_failure_of_another_kind_is_tried_again(measure):
    bench, rows, _ = measure(Protocol(warm=1, least=1, most=1), a=[CellError("failed", "ValueError: odd")])
    assert (rows["a"].status, rows["a"].reason) == ("failed", "ValueError: odd")
    assert bench.measure(replace(CELL, length=48))[0].status == "measured"


def test_a_first_call_may_take_longer_and_bounds_nothing_by_that(measure):
    protocol = Protocol(warm=5, least=2, most=2, warm_seconds=1.0, limit=20.0)
    _, rows, log = measure(protocol, a=[29, 19, 18], b=[29, 21], c=[31], d=[19, 15, 21])
    assert {name: row.status for name, row in rows.items()} == {"a": "measured"} | dict.fromkeys("bcd", "too slow")
    assert log.count("c") == 1
    bounds = {name: row.at_least_ms for name, row in rows.items()}
    assert bounds == {"a": None, "b": 80_000, "c": 80_000, "d": 60_500}, "d's sample was faster"


def test_samples_of_an_earlier_pair_bound_what_fails_in_the_next(measure):
    protocol = Protocol(warm=0, least=1, most=1, limit=5.0)
    bench, rows, _ = measure(protocol, TRAINING, a=[], mabert=[1, 9], b=[], c=[])
    assert (rows["mabert"].status, rows["mabert"].at_least_ms) == ("too slow", 4500)
    longer = {row.model: row for row in bench.measure(replace(TRAINING, length=48))}
    assert (longer["mabert"].at_least_ms, longer["mabert"].reason[-12:]) == (4500, "at 24 tokens")


def test_memory_is_in_mebibytes(measure):
    _, rows, log = measure(Protocol(), replace(CELL, measure="memory"), a=[])
    assert (rows["a"].peak_mib, rows["a"].weights_mib, rows["a"].resident_mib) == (3, 2, None)
    assert not log
