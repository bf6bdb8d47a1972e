"""The file of a measurement: what it holds after each job, and that the same request goes on with it."""

import json

import pytest

from mabert_lab.bench import results
from mabert_lab.bench.results import in_short, measured_on, record
from mabert_lab.bench.tables import digits


@pytest.fixture(scope="module")
def here():
    return measured_on()


def run(folder, environment, answers, resume=True, **asked):
    """Runs a job per answer: the rows of sides, or an error; returns the titles that ran and the file's rows."""
    log = []
    result = {"environment": environment, "rows": [], "ratios": {}, "quick": False, **asked}

    def job(title, answer):
        log.append(title)
        if isinstance(answer, BaseException):
            raise answer
        result["rows"] += [dict(row) for row in answer]

    jobs = {title: lambda title=title, answer=answer: job(title, answer) for title, answer in answers.items()}
    try:
        record(result, jobs, lambda console, result: None, folder, "trial", resume)
    except KeyboardInterrupt:
        log.append("stopped")
    return log, {
        row["job"]: row for path in folder.glob("*-trial.json") for row in json.loads(path.read_text())["rows"]
    }


def measured(number):
    return [{"model": "mabert", "status": "measured", "reason": None, "median_ms": number}]


FAILED = [{"model": "mabert", "status": "failed", "reason": "odd", "median_ms": None}]
TOO_LARGE = [{"model": "mabert", "status": "out of memory", "reason": "too large", "median_ms": None}]


def test_a_request_goes_on_with_what_is_missing_and_what_failed_comes_last(tmp_path, here, capsys):
    log, rows = run(tmp_path, here, {"a": FAILED, "b": TOO_LARGE, "c": measured(5.0), "d": KeyboardInterrupt()})
    assert (log, list(rows)) == (["a", "b", "c", "d", "stopped"], ["a", "b", "c"])
    assert "c: mabert 5.00 ms" in capsys.readouterr().out.splitlines()
    again = dict.fromkeys("abcd", measured(7.0))
    log, rows = run(tmp_path, {**here, "date": "2030-01-01T00:00:00+00:00"}, again)
    assert log == ["d", "a"], "a lack of memory is a result"
    assert {job: row["median_ms"] for job, row in rows.items()} == {"b": None, "c": 5.0, "d": 7.0, "a": 7.0}
    assert run(tmp_path, here, again)[0] == []
    assert run(tmp_path, here, {"e": measured(1.0)})[0] == ["e"], "a plan with more jobs goes on too"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("change", ["resume", "sources", "device", "processor", "versions", "request"])
def test_rows_of_another_request_are_not_taken_over(tmp_path, here, change):
    run(tmp_path, here, {"a": measured(1.0)})
    after = {**here, "date": "2030-01-01T00:00:00+00:00"}
    if change in ("sources", "device", "processor"):
        after[change] = "another"
    elif change == "versions":
        after["packages"] = {**here["packages"], "triton": "0"}
    asked = {"quick": True} if change == "request" else {}
    assert run(tmp_path, after, {"a": measured(2.0)}, change != "resume", **asked)[0] == ["a"]
    assert len(list(tmp_path.iterdir())) == 2


def test_the_sources_are_known_by_their_content(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(results.mabert, "__file__", str(tmp_path / "a.py"))
    before = results.sources()
    assert results.sources() == before
    (tmp_path / "a.py").write_text("x = 2\n")
    assert results.sources() != before


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"side": "torch", "task": "forward", "median_ms": 0.01234}, "torch, forward 0.0123 ms"),
        ({"model": "bert", "median_ms": 12.0, "peak_mib": 2048, "status": "measured"}, "bert 12.0 ms, 2,048 MiB"),
        ({"model": "bert", "status": "too slow", "reason": "one call"}, "bert too slow: one call"),
    ],
)
def test_a_row_in_short_has_its_numbers_or_why_it_has_none(row, said):
    assert in_short(row) == said


def test_numbers_have_digits_enough_and_all_before_the_point():
    assert [digits(number) for number in (0.00123, 1.234, 12.34, 1234.5)] == ["0.00123", "1.23", "12.3", "1,234"]
    assert [digits(number, 4) for number in (0.012345, 5.2199, 123.456)] == ["0.01235", "5.220", "123.5"]
    assert digits(98765.4, 4) == "98,765"
