"""Results are checked and merged: the later measurement stays, and what is not a result is refused by name."""

import json

import pytest

from mabert.report.efficiency.results import curve, load_results
from tests.report.rows import CPU, GPU, efficiency_report, raw


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
    assert table["bert"][128].limit == limit
    assert table["albert"][128].limit is None


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
    ("changed", "message"),
    [
        ({"processor": "another"}, "measured on one, 2 threads, torch None and on another, 2 threads"),
        ({"threads": 4}, "measured on one, 2 threads, torch None and on one, 4 threads"),
        ({"packages": {"torch": "3"}}, "torch None and on one, 2 threads, torch 3"),
    ],
)
def test_machines_are_not_mixed(tmp_path, changed, message):
    for file, differs in (("a", {}), ("b", {"date": "2026-01-02T00:00:00+00:00", **changed})):
        measured(tmp_path / file, **differs)
    with pytest.raises(ValueError, match=message):
        load_results([tmp_path / "a", tmp_path / "b"])
    assert len(load_results([tmp_path / "a"]).rows) == 1


def measured(file, **told):
    """A file with one row, of a model of the file's own."""
    environment = {"date": "2026-01-01T00:00:00+00:00", "processor": "one", "threads": 2, **told}
    rows = [raw("latency", {"a": "bert", "b": "mabert", "c": "albert"}[file.name], 128, 1.0)]
    content = {"kind": "efficiency", "quick": False, "parameters": {}, "environment": environment, "rows": rows}
    file.write_text(json.dumps(content))


def test_processors_of_one_name_and_other_instructions_are_not_mixed(tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    measured(files[0], instructions="AVX512")
    measured(files[1], instructions="AVX2")
    with pytest.raises(ValueError, match=r"measured on one \(AVX512\), 2 threads.* and on one \(AVX2\), 2 threads"):
        load_results(files)
    measured(files[0])  # as before it was recorded
    assert len(load_results(files).rows) == 2
    measured(tmp_path / "c", instructions="AVX512", date="2026-01-03T00:00:00+00:00")
    with pytest.raises(ValueError, match=r"measured on one \(AVX(2|512)\), 2 threads.* and on one \(AVX(2|512)\)"):
        load_results([*files, tmp_path / "c"])
