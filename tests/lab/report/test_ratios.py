"""A ratio is the mean of rivals over one model, within the spread of their calls; it tells of rivals without number."""

import math
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mabert_lab.report.efficiency.ratios import ratio
from mabert_lab.report.efficiency.results import NAMES
from tests.lab.report.rows import CPU, SLOW, raw

RIVALS = [name for name in NAMES if name != "mabert"]
TIMES = st.floats(1e-3, 1e6)


def table_of(load, rows):
    return load(rows).table(CPU, rows[0]["measure"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(RIVALS), TIMES, min_size=1), TIMES)
def test_a_mean_over_all_is_exact_and_within_the_spread(load, numbers, ours):
    rows = [raw("latency", name, 128, value) for name, value in numbers.items()] + [raw("latency", "mabert", 128, ours)]
    found = ratio(table_of(load, rows), 128, list(numbers))
    mean = sum(numbers.values()) / len(numbers) / ours
    assert found.value == pytest.approx(mean)
    assert (found.counted, found.wanted, found.at_least) == (len(numbers), len(numbers), None)
    assert found.spread[:2] == pytest.approx((mean * 0.9 / 1.5, mean * 1.5 / 0.9))


def test_rivals_without_a_number_are_counted_and_bound_the_mean_from_below(load):
    rows = [raw("latency", "mabert", 128, 2000.0), raw("latency", "bert", 128, 4000.0)]
    rows += [
        raw("latency", "albert", 128, 8000.0),
        raw("latency", "deberta", 128, **SLOW),
        raw("latency", "bigbird", 128),
    ]
    table = table_of(load, rows)
    three = ratio(table, 128, ["bert", "albert", "deberta"])
    assert (three.value, three.counted, three.wanted, three.at_least) == (3.0, 2, 3, 22.0)
    assert three.spread[:2] == (pytest.approx((3600 + 7200 + 120_000) / 3 / 3000), float("inf"))
    for more in ("bigbird", "modernbert"):
        assert ratio(table, 128, ["bert", "albert", "deberta", more]) == (3.0, 2, 4, None, None)
    assert ratio(table, 128, ["bigbird"]) == (None, 0, 1, None, None)
    assert ratio(table, 128, ["deberta"])[:4] == (None, 0, 1, 60.0)
    assert ratio(table, 512, ["bert"]) is None


def test_without_a_number_of_the_one_there_is_no_ratio(load):
    rows = [raw("latency", "mabert", 128, **SLOW), raw("latency", "bert", 128, 1.0)]
    assert ratio(table_of(load, rows), 128, ["bert"]) is None


def test_seconds_bound_times_and_not_memory(load):
    for measure, bound in (("latency", 60_000.0), ("memory", None)):
        table = table_of(load, [raw(measure, "mabert", 128, 2.0), raw(measure, "bert", 128, **SLOW)])
        assert ratio(table, 128, ["bert"]).at_least == bound


def test_memory_has_no_spread(load):
    table = table_of(load, [raw("memory", "mabert", 128, 200.0), raw("memory", "bert", 128, 300.0)])
    assert ratio(table, 128, ["bert"]).spread == (1.5, 1.5, None, 0.0)


def test_few_calls_part_by_chance(load):
    times = [("mabert", 100.0, 4), ("bert", 300.0, 3), ("albert", 400.0, 9), ("deberta", None, None)]
    rows = [raw("latency", name, 128, value, samples=calls) for name, value, calls in times[:3]]
    table = table_of(load, [*rows, raw("latency", "deberta", 128, **SLOW)])
    assert ratio(table, 128, ["bert"]).spread[2:] == (3, pytest.approx(2 / 35))
    assert ratio(table, 128, ["albert"]).spread[2:] == (4, pytest.approx(2 / 715))
    assert ratio(table, 128, ["albert", "bert"]).spread[2:] == (3, pytest.approx(2 / 35))
    assert ratio(table, 128, ["deberta"]).spread[2:] == (4, 0.0)


@pytest.mark.parametrize("calls", [2, 3])
def test_the_chance_is_that_of_all_orders_of_the_calls_that_part_either_way(load, calls):
    rows = [raw("latency", name, 128, value, samples=calls) for name, value in (("mabert", 1.0), ("bert", 9.0))]
    orders = set(permutations("a" * calls + "b" * calls))
    parted = [order for order in orders if len(set(order[:calls])) == 1]
    assert ratio(table_of(load, rows), 128, ["bert"]).spread.chance == pytest.approx(len(parted) / len(orders))


def test_what_took_turns_with_mabert_alone_is_set_beside_mabert_in_those_turns(load):
    rows = [raw("training", "mabert", 512, 10.0), raw("training", "bert", 512, 30.0, anchor_ms=20.0)]
    table = table_of(load, [*rows, raw("training", "albert", 512, 9.0, anchor_ms=6.0)])
    assert ratio(table, 512, ["bert"]).value == pytest.approx(1.5)
    assert ratio(table, 512, ["bert", "albert"]).value == pytest.approx(1.5)
    assert ratio(table, 512, ["mabert"], ours="bert").value == pytest.approx(1 / 3)


def test_in_turns_of_their_own_mabert_has_no_more_calls_than_it_had_in_those(load):
    def spread(**changes):
        rows = [raw("training", "mabert", 512, 10.0, samples=18)]
        rows.append(raw("training", "bert", 512, 90.0, samples=3, anchor_ms=20.0, **changes))
        return ratio(table_of(load, rows), 512, ["bert"]).spread

    assert spread(anchor_samples=4)[2:] == (3, 2 / math.comb(7, 3))
    assert spread()[2:] == (3, 2 / math.comb(6, 3)), "a file that does not tell has three at least"
