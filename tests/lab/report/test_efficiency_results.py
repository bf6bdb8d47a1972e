"""Results are checked and merged: the later measurement stays, and what is not a result is refused by name."""

import json

import pytest

from mabert_lab.report.claims.efficiency import efficiency_verdicts
from mabert_lab.report.document import Drawing, Heading, unfolded
from mabert_lab.report.efficiency.ratios import ratio
from mabert_lab.report.efficiency.report import efficiency_document
from mabert_lab.report.efficiency.results import curve, load_results
from mabert_lab.report.grid import Grid
from tests.lab.report.rows import CPU, GPU, SLOW, efficiency_report, raw


def test_of_two_rows_for_the_same_thing_the_later_stays(load):
    old = [raw("latency", "bert", 128, 1.0), raw("latency", "bert", 512, 2.0), raw("latency", "bert", 128, 9.0, GPU)]
    other = raw("latency", "bert", 128, 5.0, CPU._replace(dtype="bfloat16"))
    results = load(old, [raw("latency", "bert", 128, 3.0), raw("training", "bert", 128, 4.0), other])
    assert len(results.rows) == 5
    assert curve(results.table(CPU, "latency")["bert"]) == {128: 3.0, 512: 2.0}
    assert curve(results.table(CPU, "training")["bert"]) == {128: 4.0}
    assert curve(results.table(GPU, "latency")["bert"]) == {128: 9.0}
    assert results.conditions() == [CPU._replace(dtype="bfloat16"), CPU, GPU]
    report = efficiency_report(results)
    half, both, gpu = report.split("\n## ")[1:]
    assert ["`1.json`" in part for part in (half, both)] == [False, True]
    assert ["`2.json`" in part for part in (half, both)] == [True, True]
    assert ["`1.json`" in gpu, "`2.json`" in gpu] == [True, False]


def test_a_model_that_is_measured_again_alone_does_not_part_those_that_took_turns(load):
    turns = [raw("latency", model, 128, number) for model, number in (("bert", 1.0), ("mabert", 2.0))]
    results = load(
        turns, [raw("latency", "bert", 128, 9.0), raw("latency", "albert", 128, 3.0), raw("latency", "bert", 512, 4.0)]
    )
    both = {model: curve(rows) for model, rows in results.table(CPU, "latency").items()}
    assert both == {"bert": {128: 9.0, 512: 4.0}, "albert": {128: 3.0}, "mabert": {128: 2.0}}, "of as many, the later"
    results = load(turns, [raw("latency", "bert", 128, 9.0), raw("latency", "bert", 512, 4.0)])
    assert curve(results.table(CPU, "latency")["bert"]) == {128: 1.0, 512: 4.0}


def test_a_rival_that_trained_again_in_turns_with_mabert_replaces_what_it_took(load):
    def pair(rival, time, ours):
        return [raw("training", rival, 128, time, anchor_ms=ours), raw("training", "mabert", 128, ours)]

    results = load([*pair("bert", 9.0, 3.0), *pair("albert", 6.0, 3.0)[:1]], pair("bert", 4.0, 2.0))
    table = {model: curve(rows) for model, rows in results.table(CPU, "training").items()}
    assert table == {"bert": {128: 4.0}, "albert": {128: 6.0}, "mabert": {128: 3.0}}
    assert ratio(results.table(CPU, "training"), 128, ("bert",)).value == 2.0


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("one call took more than 120 s", 120.0),
        ("one call took more than 1,200.5s", 1200.5),
        ("one call took more than 120 s at 2,048 tokens", 120.0),
        ("one prepare took more than 300 s", None),
        ("two minutes", None),
        ("one call took more than 3 samples", None),
        (None, None),
    ],
)
def test_a_reason_tells_the_seconds_that_were_too_few(load, reason, limit):
    slow = raw("latency", "bert", 128, status="too slow", reason=reason)
    failed = raw("latency", "albert", 128, status="failed", reason=reason)
    table = load([slow, failed]).table(CPU, "latency")
    assert table["bert"][128].at_least == limit
    assert table["albert"][128].at_least is None


def test_a_step_that_was_too_slow_is_bounded_by_all_its_calls(load):
    rows = [
        raw("training", "bert", 128, **SLOW, micro_batch=8),
        raw("training", "albert", 128, **SLOW, micro_batch=1, at_least_ms=3_840_000.0),
        raw("training", "bert", 512, **{**SLOW, "batch": 1}, micro_batch=1, at_least_ms=480_000.0),
    ]
    table = load(rows).table(CPU, "training")
    assert [table[model][128].at_least for model in ("bert", "albert")] == [4 * 120, 32 * 120]
    assert table["bert"][512].at_least == 480


def test_dates_of_other_time_zones_are_compared_as_moments(tmp_path):
    for name, date, value in (("a", "2026-01-01T12:00:00+05:00", 1.0), ("b", "2026-01-01T08:00:00", 2.0)):
        content = {"kind": "efficiency", "environment": {"date": date}, "quick": False, "parameters": {}}
        content["rows"] = [raw("latency", "bert", 128, value)]
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    results = load_results([tmp_path / "b", tmp_path / "a"])
    assert curve(results.table(CPU, "latency")["bert"]) == {128: 2.0}


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"kind": "drift"}, "kind is 'drift'; needed is 'efficiency'"),
        ({"quick": True}, "measure without --quick"),
        ({"environment": {}}, "lacks the date"),
        ({"remarks": "busy"}, "remarks is 'busy'; needed is a list of sentences"),
        ({"rows": [{"measure": "latency"}]}, "a row lacks profile, model, status, dtype, device, length, batch"),
        ({"rows": [raw("latency", "gpt", 128, 1.0)]}, "model 'gpt' of a row is none of bert"),
        (
            {"rows": [raw("latency", "bert", 128, 1.0, median_ms=None)]},
            "of bert at 128 is measured, but its median_ms is None",
        ),
        (
            {"rows": [raw("memory", "bert", 128, 0.0, status="measured")]},
            "memory of bert at 128 is measured, but its peak",
        ),
    ],
)
def test_other_files_are_refused_by_name(load, changes, needed):
    with pytest.raises(ValueError, match=rf"1\.json: .*{needed}"):
        load([], **changes)


def test_what_is_not_json_and_nothing_at_all_are_refused(tmp_path):
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    (tmp_path / "b.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.json: not JSON"):
        load_results([tmp_path / "a.json"])
    with pytest.raises(ValueError, match=r"b\.json: holds list, where an object is needed"):
        load_results([tmp_path / "b.json"])
    with pytest.raises(ValueError, match="no results"):
        load_results([])


@pytest.mark.parametrize(
    ("changed", "there"),
    [
        ({"processor": "another"}, "another, 2 threads, torch None"),
        ({"threads": 4}, "one, 4 threads, torch None"),
        ({"packages": {"torch": "3"}}, "one, 2 threads, torch 3"),
    ],
)
def test_machines_are_not_mixed(tmp_path, changed, there):
    for file, differs in (("a", {}), ("b", {"date": "2026-01-02T00:00:00+00:00", **changed})):
        measured(tmp_path / file, **differs)
    results = load_results([tmp_path / "a", tmp_path / "b"])
    tables = {condition.machine: results.table(condition, "latency") for condition in results.conditions()}
    assert {machine: list(rows) for machine, rows in tables.items()} == {
        "one, 2 threads, torch None": ["bert"],
        there: ["mabert"],
    }
    assert load_results([tmp_path / "a"]).conditions() == [CPU]


def test_what_two_machines_measured_alike_is_shown_twice(tmp_path):
    files = [tmp_path / folder / "of-one-second-models.json" for folder in "ab"]
    for file, processor, value in zip(files, ("one", "another"), (5.0, 7.0), strict=True):
        file.parent.mkdir()
        content = {"kind": "efficiency", "quick": False, "parameters": {}}
        content["environment"] = {"date": "2026-01-01T00:00:00+00:00", "processor": processor, "threads": 2}
        content["rows"] = [raw("latency", model, 128, value) for model in ("bert", "mabert")]
        file.write_text(json.dumps(content))
    results = load_results(files)
    assert len(results.rows) == 4
    document = efficiency_document(results)
    names = [part.name for part in unfolded(document) if isinstance(part, Grid | Drawing)]
    assert len(set(names)) == len(names)
    heads = [part.text for part in document if isinstance(part, Heading) and part.level == 2]
    assert heads == [f"The paper's settings, fp32, cpu on {name}, 2 threads, torch None" for name in ("another", "one")]
    told = [each for each in efficiency_verdicts(results) if each.claim == "BERT has the lowest latency at 128 tokens"]
    assert [each.place for each in told] == [
        f"fp32, cpu on {name}, 2 threads, torch None" for name in ("another", "one")
    ]


def measured(file, **told):
    """A file with one row, of a model of the file's own."""
    environment = {"date": "2026-01-01T00:00:00+00:00", "processor": "one", "threads": 2, **told}
    rows = [raw("latency", {"a": "bert", "b": "mabert", "c": "albert"}[file.name], 128, 1.0)]
    content = {"kind": "efficiency", "quick": False, "parameters": {}, "environment": environment, "rows": rows}
    file.write_text(json.dumps(content))


def test_processors_of_one_name_and_other_instructions_are_not_mixed(tmp_path):
    def machines(*names):
        return [condition.machine for condition in load_results([tmp_path / name for name in names]).conditions()]

    measured(tmp_path / "a", instructions="AVX512")
    measured(tmp_path / "b", instructions="AVX2")
    assert machines("a", "b") == [f"one (AVX{kind}), 2 threads, torch None" for kind in ("2", "512")]
    measured(tmp_path / "a")  # as before it was recorded
    assert machines("a", "b") == [""]
    measured(tmp_path / "c", instructions="AVX512", date="2026-01-03T00:00:00+00:00")
    assert machines("a", "b", "c") == [f"one{kind}, 2 threads, torch None" for kind in (" (AVX2)", " (AVX512)", "")]
