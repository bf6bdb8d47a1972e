"""Measurements are checked, merged, and shown: the later stays, ratios are bounded, what lacks a number says why."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mabert_lab.bench.tables import chance_apart
from mabert_lab.report.costs import NAMES, ratio
from mabert_lab.report.costs_page import headlines, measured_table, ratio_table
from mabert_lab.report.paper import BASELINES
from mabert_lab.report.whole import efficiency_page
from tests.lab.report.rows import CPU, GPU, SLOW, cells, efficiency, raw, whole

BERT = ("bert", 128)
TURNS = {BERT: 1.0, ("mabert", 128): 2.0}


def numbers(table):
    """The measured numbers of a table by model and length."""
    return table["value"].dropna().to_dict()


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ({BERT: 1.0}, {BERT: 3.0}, {BERT: 3.0}),
        (TURNS, {BERT: 9.0, ("bert", 512): 4.0}, {**TURNS, ("bert", 512): 4.0}),
        (TURNS, {BERT: 9.0, ("albert", 128): 3.0}, {**TURNS, BERT: 9.0, ("albert", 128): 3.0}),
    ],
    ids=["later", "more took turns", "as many took turns, so the later"],
)
def test_of_two_rows_for_the_same_thing_one_stays(load, earlier, later, expected):
    files = ([raw("latency", *about, value) for about, value in each.items()] for each in (earlier, later))
    assert numbers(load(*files).tables[CPU]["latency"]) == expected


def test_what_differs_in_measure_precision_or_device_stays_apart(load):
    other = CPU._replace(dtype="bfloat16")
    alike = [raw("latency", "bert", 128, value, at) for value, at in ((1.0, CPU), (2.0, GPU), (3.0, other))]
    results = load(alike, [raw("training", "bert", 128, 4.0)])
    assert list(results.tables) == [other, CPU, GPU]
    found = [list(results.tables[at]["latency"]["value"]) for at in (CPU, GPU, other)]
    assert found == [[1.0], [2.0], [3.0]]
    assert list(results.tables[CPU]["training"]["value"]) == [4.0]


@pytest.mark.slow
def test_each_condition_names_the_files_that_it_is_of(load):
    results = load([raw("latency", "bert", 128, 1.0, GPU)], [raw("latency", "bert", 128, 3.0)])
    for name, there in (("1.json", [False, True]), ("2.json", [True, False])):
        sections = efficiency_page(results).text.split("\n## ")[1:3]
        assert [f"`{name}`: " in part for part in sections] == there


def test_a_rival_that_trained_again_in_turns_with_mabert_replaces_what_it_took(load):
    def pair(rival, time, ours):
        return [raw("training", rival, 128, time, anchor_ms=ours), raw("training", "mabert", 128, ours)]

    results = load([*pair("bert", 9.0, 3.0), *pair("albert", 6.0, 3.0)[:1]], pair("bert", 4.0, 2.0))
    expected = {("bert", 128): 4.0, ("albert", 128): 6.0, ("mabert", 128): 3.0}
    assert numbers(results.tables[CPU]["training"]) == expected
    assert ratio(results.tables[CPU]["training"], 128, ("bert",)).value == 2.0


def test_a_model_that_was_too_slow_is_bounded_by_what_its_row_says(load):
    unknown = raw("training", "albert", 128, **{**SLOW, "at_least_ms": None})
    table = load([raw("training", "bert", 128, **SLOW), unknown, raw("training", "mabert", 128, 5.0)]).tables[CPU]
    assert table["training"]["at_least"].dropna().to_dict() == {("bert", 128): 120}


def test_dates_of_other_time_zones_are_compared_as_moments(load):
    dates = ("2026-01-01T12:00:00+05:00", "2026-01-01T08:00:00")
    files = (efficiency([raw("latency", "bert", 128, float(n))], date=date) for n, date in enumerate(dates, 1))
    assert numbers(load(*files).tables[CPU]["latency"]) == {("bert", 128): 2.0}


def of_one(model, **environment):
    """A file with one row."""
    return efficiency([raw("latency", model, 128, 1.0)], **environment)


@pytest.mark.parametrize(
    ("changed", "there"),
    [
        ({"processor": "another"}, "another, 2 threads, torch None"),
        ({"threads": 4}, "one, 4 threads, torch None"),
        ({"packages": {"torch": "3"}}, "one, 2 threads, torch 3"),
        ({"instructions": "AVX2"}, "one (AVX2), 2 threads, torch None"),
    ],
)
def test_machines_are_not_mixed(load, changed, there):
    results = load(of_one("bert"), of_one("mabert", date="2026-01-02T00:00:00+00:00", **changed))
    tables = {condition.machine: list(results.tables[condition]["latency"]["model"]) for condition in results.tables}
    assert tables == {"one, 2 threads, torch None": ["bert"], there: ["mabert"]}
    assert [condition.machine for condition in load(of_one("bert")).tables] == [""]


RIVALS = [name for name in NAMES if name != "mabert"]


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.dictionaries(st.sampled_from(RIVALS), st.floats(1e-3, 1e6), min_size=1), st.floats(1e-3, 1e6))
def test_a_mean_over_all_is_exact_and_within_the_spread(load, numbers, ours):
    rows = [raw("latency", name, 128, value) for name, value in {**numbers, "mabert": ours}.items()]
    found = ratio(load(rows).tables[CPU]["latency"], 128, list(numbers))
    mean = sum(numbers.values()) / len(numbers) / ours
    assert found.value == pytest.approx(mean)
    assert (found.counted, found.at_least, found.calls) == (len(numbers), None, 15)
    assert found.chance == chance_apart(15, 15)
    assert found.span == pytest.approx((mean * 0.9 / 1.5, mean * 1.5 / 0.9))


def test_rivals_without_a_number_are_counted_and_bound_the_mean_from_below(load):
    rows = [raw("latency", "mabert", 128, 2000.0), raw("latency", "bert", 128, 4000.0)]
    rows += [raw("latency", "albert", 128, 8000.0), raw("latency", "deberta", 128, **SLOW)]
    table = load([*rows, raw("latency", "bigbird", 128)]).tables[CPU]["latency"]
    three = ratio(table, 128, ["bert", "albert", "deberta"])
    assert three[:3] == (3.0, 2, 22.0)
    assert three.span == (pytest.approx((3600 + 7200 + 120_000) / 3 / 3000), float("inf"))
    assert ratio(table, 128, ["bert", "albert", "deberta", "bigbird"])[:4] == (3.0, 2, None, None)
    assert ratio(table, 128, ["deberta"])[:3] == (None, 0, 60.0)
    assert ratio(table, 512, ["bert"]) is None
    assert ratio(table, 128, ["bert"], "deberta")[:4] == (None, 1, None, (0.0, pytest.approx(6000 / 120_000)))


def test_growth_is_the_increase_within_the_spread_of_both_ends(load):
    numbers = (("mabert", 512, 10.0), ("mabert", 4096, 30.0), ("bert", 512, 10.0), ("bert", 4096, 70.0))
    rows = [raw("latency", *each) for each in numbers]
    found = ratio(load(rows).tables[CPU]["latency"], 4096, ["bert"], start=512)
    assert found.value == 3.0
    assert found.span == pytest.approx(((0.9 * 70 - 15) / (45 - 9), (1.5 * 70 - 9) / (0.9 * 30 - 15)))
    fewer = [{**row, "samples": 4} if row["length"] == 512 else row for row in rows]
    assert (found.calls, ratio(load(fewer).tables[CPU]["latency"], 4096, ["bert"], start=512).calls) == (15, 4)
    assert ratio(load(rows[1:]).tables[CPU]["latency"], 4096, ["bert"], start=512) is None
    shrunk = [*rows[:3], raw("latency", "bert", 4096, 5.0)]
    assert ratio(load(shrunk).tables[CPU]["latency"], 4096, ["bert"], start=512).value == 0


def test_what_took_turns_with_mabert_alone_is_set_beside_mabert_in_those_turns(load):
    rows = [raw("training", "mabert", 512, 10.0, samples=18)]
    rows.append(raw("training", "bert", 512, 30.0, anchor_ms=20.0, samples=3, anchor_samples=4))
    table = load(rows).tables[CPU]["training"]
    assert ratio(table, 512, ["bert"]).value == pytest.approx(1.5)
    assert (ratio(table, 512, ["bert"]).calls, ratio(table, 512, ["bert"]).chance) == (3, chance_apart(3, 4))
    assert ratio(table, 512, ["mabert"], "bert").value == pytest.approx(1 / 1.5)


def test_the_paper_measured_again_gives_the_papers_headlines_and_its_lowest_numbers_in_bold(load):
    results = load(whole())
    table = {measure: results.tables[CPU][measure] for measure in ("memory", "latency", "training")}
    assert [list(row) for row in headlines(results).iloc[:, 1:].to_numpy()] == [["0.82", "2.43", "2.36"]] * 2
    shown = measured_table(results, table["latency"], "latency")
    assert list(shown["model"]) == list(NAMES.values())
    assert cells(shown, "BERT")[0] == "**5.220 (4.698-7.830, 15)**"
    assert cells(shown, "ModernBERT")[1] == "\N{EN DASH}"
    ratios = ratio_table(table["latency"], "latency")
    for name in ("mean of the paper's five baselines", "BERT alone"):
        assert cells(ratios, name) == cells(ratios, f"{name}, in the paper")
    assert cells(ratios, "lowest rival, in the paper")[-1] == "1.25 (BERT)"


def test_what_lacks_a_number_says_why(load):
    rows = [raw("latency", "bert", 128, **SLOW), raw("latency", "albert", 128, status="out of memory", reason="x")]
    rows += [raw("latency", "bigbird", 128, reason="no kernel"), raw("latency", "mabert", 128, 60_000.0)]
    results = load(rows)
    shown = measured_table(results, results.tables[CPU]["latency"], "latency")
    found = {row[0]: row[1] for row in shown.itertuples(index=False, name=None)}
    assert found["BERT"] == "too slow (> 120 s)"
    assert (found["ALBERT"], found["BigBird"]) == ("out of memory", "failed: no kernel")
    assert cells(ratio_table(results.tables[CPU]["latency"], "latency"), "BERT alone") == ["≥ 2.00"]


@pytest.mark.parametrize(("setting", "told"), [("sdpa", 0), ("mabert, prepacked", 1), ("sdpa_blockwise", 1)])
def test_rivals_with_attention_that_cannot_be_installed_are_named(load, setting, told):
    rows = [raw("latency", "mabert", 4096, 2000.0), raw("latency", "bigbird", 4096, 4000.0, setting=setting)]
    assert sum("cannot be installed" in note for note in headlines(load(rows)).attrs["notes"]) == told


@pytest.mark.parametrize("slow", [{}, SLOW])
def test_headlines_explain_a_mean_over_fewer_rivals(load, slow):
    rows = [raw("latency", model, 4096, 4000.0) for model in BASELINES if model != "bert"]
    rows += [raw("latency", "mabert", 4096, 2000.0), raw("latency", "bert", 4096, **(slow or {"value": 4000.0}))]
    table = headlines(load(rows))
    assert list(table["latency"])[-1] == ("\N{GREATER-THAN OR EQUAL TO} 13.60 (2.00 over 4 of 5)" if slow else "2.00")
    assert any("stopped as too slow" in note for note in table.attrs["notes"]) == bool(slow)
