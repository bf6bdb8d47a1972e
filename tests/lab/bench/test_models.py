"""What `mabert bench models` plans, and that the report reads what it writes."""

import json
import re

import pytest

from mabert_lab import cli
from mabert_lab.bench import lengths, models, worker
from mabert_lab.bench.models import Plan
from mabert_lab.bench.turns import Protocol
from mabert_lab.report.found import find
from mabert_lab.report.whole import efficiency_page

PROFILES = ("paper", "stock", "best")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"measures": ["speed"]}, "measures[0] is 'speed'; it must be one of 'memory', 'latency', 'training'"),
        ({"profiles": ["fast"]}, "profiles[0] is 'fast'; it must be one of 'paper', 'stock', 'best'"),
        ({"dtypes": ["float16"]}, "dtypes[0] is 'float16'"),
        ({"budget": 0.0}, "budget is 0.0; it must be above 0 and at most 1000000"),
        ({"lengths": [0]}, "lengths[0][1] is 0; it must be at least 1"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        (Protocol if {*fields} <= {"budget", "limit"} else Plan)(**fields)


@pytest.mark.parametrize(
    ("given", "warm_seconds", "least", "number"),
    [
        ("", 2.0, 5, 7),
        ("--profile paper", 10**6, 100, 5),
        ("--profile paper --lengths 512", 10**6, 100, 1),
        ("--profile paper --budget 9", 2.0, 5, 5),
        ("--profile best paper", 2.0, 5, 7),
    ],
)
def test_the_papers_profile_alone_is_its_whole_protocol(monkeypatch, tmp_path, given, warm_seconds, least, number):
    plans = []
    monkeypatch.setattr(models, "run", lambda plan, *_: plans.append(plan) or {"rows": []})
    assert cli.main(["bench", "models", "--limit", "60", *given.split(), "-o", str(tmp_path)]) == 0
    (plan,) = plans
    budget = {"budget": 9.0} if "budget" in given else {}
    assert plan.protocol == Protocol(least=least, warm_seconds=warm_seconds, limit=60.0, **budget)
    assert len(plan.lengths) == number


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_default_dtype_is_the_fast_one(monkeypatch, dtype):
    monkeypatch.setattr(models, "fast_dtype", lambda device: {"cpu": dtype}[device])
    assert Plan().dtypes == (dtype,)
    assert {each.dtype for each in Plan().quick().cells()} == {dtype}
    assert Plan(dtypes=["bfloat16", "float32"]).dtypes == ["bfloat16", "float32"]


def test_a_plan_has_every_combination_once():
    plan = Plan(measures=("latency", "memory"), profiles=("paper", "best"), dtypes=("float32",), lengths=(9, 3))
    cells = list(plan.cells())
    assert len(set(cells)) == len(cells) == 8
    assert [each.length for each in cells] == [3, 9] * 4
    assert all(each.small for each in plan.quick().cells())


def test_batches_have_their_rows_in_every_cell_and_a_kind_of_their_own():
    plan = Plan(models=("bert",), measures=("latency", "training"), dtypes=("float32",), lengths=[(2, 9), 5, (4, 3)])
    cells = list(plan.cells())
    assert [(each.length, each.texts) for each in cells] == [(3, (3,) * 4), (5, ()), (9, (9, 9))] * 2
    assert {each.layout for each in cells if each.texts} == {"together"}
    assert plan.kind == models.OF_BATCHES
    assert Plan(models=("bert",), lengths=[5]).kind == "efficiency"
    assert {each.device for each in Plan(device="cuda", dtypes=("float32",)).cells()} == {"cuda"}


def test_a_run_of_batches_counts_tokens(tmp_path, in_this_process, capsys):
    plan = Plan(models=("bert", "mabert"), measures=("latency", "training"), lengths=[(3, 16)], dtypes=("float32",))
    result = models.run(plan, quick=True, output=tmp_path)
    assert len(result["rows"]) == 4
    for row in result["rows"]:
        assert (row["batch"], row["status"]) == (3, "measured")
        assert row["tokens_per_second"] == pytest.approx(1e3 * 3 * 16 / row["median_ms"])
    assert "3 x 16" in capsys.readouterr().out


def test_nothing_is_timed_on_a_gpu_that_computes_wrong(monkeypatch, tmp_path):
    def refuse(device):
        raise RuntimeError(f"selective_scan is off on {device}")

    monkeypatch.setattr(worker, "refuse_unless_correct", refuse)
    monkeypatch.setattr(worker, "Worker", lambda name: pytest.fail("a model was started"))
    with pytest.raises(RuntimeError, match="off on cuda"):
        models.run(Plan(device="cuda", dtypes=("float32",)), output=tmp_path)
    with pytest.raises(RuntimeError, match="off on cuda"):
        lengths.run(device="cuda", dtype="float32", output=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_writes_what_the_report_reads(tmp_path, in_this_process):
    plan = Plan(models=("bert", "mabert"), lengths=(16, 32, 64), profiles=PROFILES)
    result = models.run(plan, quick=True, output=tmp_path)
    (path,) = tmp_path.glob("*-models.json")
    assert json.loads(path.read_text()) == result
    assert {row["length"] for row in result["rows"]} == {16, 32}
    assert {row["status"] for row in result["rows"]} == {"measured"}
    assert len(result["rows"]) == 2 * 2 * 3 * len(PROFILES)
    with pytest.raises(ValueError, match="a quick trial run, whose numbers say nothing"):
        find([path])
    path.write_text(json.dumps({**result, "quick": False}))
    results = find([path])[0].costs
    assert len(results.rows) == len(result["rows"])
    assert efficiency_page(results).figures
