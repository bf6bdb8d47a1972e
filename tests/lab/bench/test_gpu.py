"""`make gpu` as far as it can be seen without a GPU: its rows, that it goes on, and what its files say."""

import json
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from mabert.baselines.registry import FAMILIES
from mabert.ops import selective_scan
from mabert_lab.bench import gpu, lengths
from mabert_lab.bench.gpu import Asked
from mabert_lab.bench.operators import CHANNELS, STATE, conv_inputs, scan_inputs
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.results import measured_on
from mabert_lab.bench.turns import Bounded, Row
from mabert_lab.report.sources import find

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"

SPREAD = {"median_ms", "fastest_ms", "slowest_ms", "samples", "low_ms", "high_ms"}


@pytest.fixture(scope="module")
def here():
    return measured_on()


@pytest.fixture(autouse=True)
def measured_here(monkeypatch, here):
    monkeypatch.setattr(gpu, "measured_on", lambda: here)


@pytest.fixture
def on_a_processor(monkeypatch):
    """Small models and short calls, on a processor that is taken for a GPU."""
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "SECONDS", 1e-3)
    monkeypatch.setattr(gpu, "SAMPLES", 1)
    monkeypatch.setattr(gpu, "Cell", partial(Cell, small=True))
    monkeypatch.setattr(gpu, "_peak_bytes", lambda call: 1)
    monkeypatch.setattr(gpu, "_COPIED_BYTES", 1 << 10)
    monkeypatch.setattr(gpu, "SHAPES", ((2, 8),))
    for name in ("GPU_LENGTHS", "PAPER_LENGTHS", "TRAINED_LENGTHS"):
        monkeypatch.setattr(gpu, name, (16,))
    monkeypatch.setattr(gpu, "MORE_TEXTS", 1)
    monkeypatch.setattr(lengths, "NORMAL", {"short": (6, 1, 16, 2)})


def asked(rows, monkeypatch, name="operators"):
    """Makes a step of what gives numbers or fails; returns the names as they are measured."""
    log = []

    def measure(row, answer):
        log.append(row)
        if isinstance(answer, BaseException):
            raise answer
        return {"number": answer}

    made = {row: Asked({"of": row}, partial(measure, row, answer)) for row, answer in rows.items()}
    monkeypatch.setitem(gpu.STEPS, name, lambda: made)
    return log


def rows_of(folder, step="operators"):
    (path,) = folder.glob(f"*-gpu-{step}.json")
    return {row["row"]: row for row in json.loads(path.read_text())["rows"]}


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu", "operators"])
    with pytest.raises(SystemExit) as stop:
        gpu.main()
    assert stop.value.code == 2
    assert "no GPU is visible to torch" in capsys.readouterr().err


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """The command's words and a GPU; gives the devices on which operators were checked."""
    devices = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "refuse_unless_correct", devices.append)
    monkeypatch.setattr("sys.argv", ["gpu", "operators", "-o", str(tmp_path)])
    return devices


@pytest.mark.parametrize(
    ("rows", "code", "left"),
    [
        ({"mabert": 1, "bert": ValueError("odd")}, 0, ""),
        ({"mabert": ValueError("odd"), "bert": 1}, 1, "operators: 1 rows of MaBERT failed, 0 are left; run again"),
    ],
    ids=["a rival may fail", "MaBERT may not"],
)
def test_a_failure_of_mabert_is_one_of_the_step(checked, monkeypatch, tmp_path, capsys, rows, code, left):
    asked(rows, monkeypatch)
    assert gpu.main() == code
    assert left in capsys.readouterr().err
    assert checked == ["cuda"]
    assert rows_of(tmp_path)[next(name for name in rows if rows[name] != 1)]["reason"] == "ValueError: odd"


def test_nothing_is_timed_where_the_operators_are_wrong(checked, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "refuse_unless_correct", Mock(side_effect=RuntimeError("selective_scan: output is off")))
    log = asked({"mabert": 1}, monkeypatch)
    with pytest.raises(RuntimeError, match="is off"):
        gpu.main()
    assert not log
    assert not list(tmp_path.iterdir())


def test_a_step_goes_on_with_what_is_missing_and_failed_rows_come_last(monkeypatch, tmp_path):
    rows = {"a": 1, "b": ValueError("odd"), "c": MemoryError("too large"), "d": KeyboardInterrupt()}
    asked(rows, monkeypatch)
    with pytest.raises(KeyboardInterrupt):  # as when its time is over
        gpu.run("operators", tmp_path)
    found = rows_of(tmp_path)
    assert {name: row["status"] for name, row in found.items()} == {
        "a": "measured",
        "b": "failed",
        "c": "out of memory",
    }
    assert (found["a"]["number"], found["a"]["of"], found["b"]["reason"]) == (1, "a", "ValueError: odd")
    log = asked({**rows, "b": 2, "d": 4}, monkeypatch)
    assert gpu.run("operators", tmp_path) == (0, 0)
    assert log == ["d", "b"], "a lack of memory is a result"
    found = rows_of(tmp_path)
    assert list(found) == list("abcd")
    assert (found["b"]["status"], found["b"]["number"], found["b"].get("reason")) == ("measured", 2, None)
    assert asked(rows, monkeypatch) == []
    gpu.run("operators", tmp_path)
    assert rows_of(tmp_path) == found


def test_no_row_is_begun_when_the_time_is_over(monkeypatch, tmp_path):
    log = asked(dict.fromkeys("abc", 1), monkeypatch)
    assert gpu.run("operators", tmp_path, limit=-1.0) == (0, 3)
    assert not log


def test_after_an_error_that_loses_the_gpu_nothing_else_is_measured(monkeypatch, tmp_path):
    log = asked({"bad": RuntimeError("CUDA error: an illegal memory access"), "other": 1}, monkeypatch)
    assert gpu.run("operators", tmp_path) == (0, 1)
    assert gpu.run("operators", tmp_path) == (0, 0)
    assert log == ["bad", "other", "bad"]


@pytest.mark.parametrize("change", ["sources", "device", "versions"])
def test_rows_of_other_sources_or_machines_are_not_taken_over(monkeypatch, tmp_path, here, change):
    log = asked({"a": 1}, monkeypatch)
    gpu.run("operators", tmp_path)
    after = {**here, "date": "2030-01-01T00:00:00+00:00"}
    if change == "sources":
        monkeypatch.setattr(gpu, "sources", lambda: "others")
    elif change == "device":
        after["device"] = "another GPU"
    else:
        after["packages"] = {**here["packages"], "triton": "0"}
    monkeypatch.setattr(gpu, "measured_on", lambda: after)
    gpu.run("operators", tmp_path)
    assert log == ["a", "a"]
    assert len(list(tmp_path.iterdir())) == 2


def test_rows_of_operators_have_times_rates_and_memory(on_a_processor, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "_exponentials", lambda: {"exponentials_per_second": 1e6})
    monkeypatch.setattr(gpu, "DTYPES", ("bfloat16",))
    assert gpu.run("operators", tmp_path) == (0, 0)
    found = rows_of(tmp_path)
    assert found.pop("exponentials")["exponentials_per_second"] == 1e6
    assert found.pop("copy")["bytes_per_second"] > 0
    assert {(row["operator"], row["task"]) for row in found.values()} == {
        (operator, task)
        for operator in ("selective_scan", "depthwise_conv1d")
        for task in ("forward", "forward+backward")
    }
    for row in found.values():
        assert row["status"] == "measured"
        assert {"bytes_per_second", "exponentials_per_second", "peak_bytes"} | SPREAD < set(row)


def test_a_rival_that_is_installed_is_a_side_with_the_same_numbers(on_a_processor, monkeypatch):
    def rival(**inputs):
        turned = {name: each.transpose(1, 2) if each.dim() == 3 else each for name, each in inputs.items()}
        return selective_scan(**turned).transpose(1, 2)

    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: name == "selective_scan_cuda")
    monkeypatch.setattr(gpu, "_cuda_scan", rival)
    rows = {name: row for name, row in gpu.operators().items() if "mamba-ssm" in name}
    assert {row.fields["operator"] for row in rows.values()} == {"selective_scan"}
    assert len(rows) == 4
    assert rows["selective_scan, float32, 2, 8, forward+backward, mamba-ssm"].measure()["median_ms"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("step", ["models", "uneven"])
def test_rows_of_models_are_those_of_the_other_benchmarks(on_a_processor, monkeypatch, tmp_path, step):
    monkeypatch.setattr(gpu, "FAMILIES", {name: FAMILIES[name] for name in ("bert", "mabert")})
    assert gpu.run(step, tmp_path) == (0, 0)
    found = rows_of(tmp_path, step)
    assert {row["status"] for row in found.values()} == {"measured"}
    assert all(set(Row.__dataclass_fields__) <= set(row) for row in found.values())
    assert all(row["peak_mib"] if row["measure"] == "memory" else row["median_ms"] for row in found.values())
    if step == "models":
        results = find(tmp_path.glob("*.json")).efficiency
        assert len(results.rows) == len(found) == 2 * (3 + 4)
        assert set(results.parameters) == {"bert", "mabert"}
    else:
        assert {row["side"] for row in found.values()} == set(lengths.sides_of())


def test_every_row_has_a_name_of_its_own_and_the_models_that_matter_most_come_first():
    for step in gpu.STEPS.values():
        fields = [json.dumps(row.fields) for row in step().values() if row.fields]
        assert len(set(fields)) == len(fields) > 0
    assert {row.fields["model"] for row in gpu.compiled().values()} == {"mabert:compiled", "bert:compiled"}
    families = list(dict.fromkeys(row.fields["model"] for row in gpu.models().values()))
    assert set(families[:2]) == {"mabert", "bert"}


@pytest.mark.parametrize("task", ["forward", "forward+backward"])
def test_the_least_work_counts_each_number_once(task):
    work = gpu._work("selective_scan", scan_inputs(10, torch.bfloat16), "forward")
    assert work["exponentials"] == 10 * CHANNELS * STATE
    assert work["bytes"] == 2 * 10 * (4 * CHANNELS + 2 * STATE) + 4 * CHANNELS * (STATE + 2)
    for operator, inputs in (("selective_scan", scan_inputs), ("depthwise_conv1d", conv_inputs)):
        once, twice = (gpu._work(operator, inputs(length, torch.float32), task) for length in (10, 20))
        assert all(once[what] < twice[what] <= 2 * once[what] for what in once)


@pytest.mark.slow
def test_it_needs_no_package_that_measuring_does_without(tmp_path):
    """A machine with a GPU may be bare but for torch and transformers."""
    program = (
        "import sys\n"
        "for name in ('zstandard', 'datasets', 'accelerate', 'mambapy', 'matplotlib', 'numba'):\n"
        "    sys.modules[name] = None\n"
        "import mabert_lab.bench.gpu\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rows", [8, 32])
def test_a_training_step_is_all_its_micro_batches_and_one_update(monkeypatch, rows):
    log = []
    seconds = {"sample": Bounded(5.0, 4.0, 6.0, 7, 4.5, 5.5), "run": Bounded(3.0, 2.0, 4.0, 9, 2.5, 3.5)}
    monkeypatch.setattr(gpu, "spread_of", lambda call: log.append(call) or seconds[call])
    step = SimpleNamespace(batch=32, micro_batch=rows, sample="sample", run="run")
    more = 32 // rows - 1
    found = {"median_ms": 5 + 3 * more, "fastest_ms": 4 + 2 * more, "slowest_ms": 6 + 4 * more, "samples": 7}
    bounds = {"low_ms": 4.5 + 2.5 * more, "high_ms": 5.5 + 3.5 * more}
    assert gpu._whole_step(step) == found | bounds
    assert log == ["sample", "run"][: 1 + bool(more)]


@pytest.mark.parametrize(
    ("error", "answer", "lost"),
    [
        (torch.AcceleratorError(ILLEGAL), None, True),
        (RuntimeError(f"Triton Error [CUDA]: {ILLEGAL}"), None, True),
        (RuntimeError("cuBLAS has no words"), RuntimeError(ILLEGAL), True),
        (RuntimeError("cuBLAS has no words"), RuntimeError("CUDA error: out of memory"), False),
        (RuntimeError("cuBLAS has no words"), None, False),
    ],
)
def test_a_gpu_is_lost_after_an_error_of_its_driver_or_where_it_answers_with_one(monkeypatch, error, answer, lost):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=answer))
    assert gpu.gpu_is_lost(error) == lost
