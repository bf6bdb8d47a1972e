"""`make gpu` as far as it can be seen without a GPU: what it refuses, skips and records; what floors are made of."""

import functools
import json
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from transformers import BertConfig

from mabert import MaBertConfig
from mabert.bench import lengths, models, rounds
from mabert.bench.gpu import __main__ as gpu
from mabert.bench.gpu import models as whole
from mabert.bench.gpu import operators
from mabert.bench.operators import CHANNELS, STATE, conv_inputs, scan_inputs
from mabert.bench.results import measured_on, write
from mabert.bench.tasks import SMALL, Cell
from mabert.environment import installed


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["gpu", *arguments])
    return gpu.main()


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch)
    assert stop.value.code == 2
    assert "no GPU is visible to torch" in capsys.readouterr().err


def test_an_unknown_step_is_named(monkeypatch, capsys, with_gpu):
    with pytest.raises(SystemExit):
        run(monkeypatch, "everything")
    assert "no such step: everything; there are tests, sanitizer, operators" in capsys.readouterr().err


def test_steps_are_processes_and_those_with_a_result_are_skipped(monkeypatch, tmp_path, capsys, with_gpu):
    started = []

    killed = []

    class Launch:
        def __init__(self, command, start_new_session, env):
            assert start_new_session
            self.pid = len(started)
            self.step = command[command.index("--here") + 1]
            started.append(self.step)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def wait(self, limit):
            if self.step == "operators":
                raise subprocess.TimeoutExpired(self.step, limit)
            return 3 if self.step == "training" else 0

    monkeypatch.setattr(gpu.subprocess, "Popen", Launch)
    monkeypatch.setattr(gpu.os, "killpg", lambda pid, _: killed.append(started[pid]))
    environment = {"device": "a GPU", "packages": {"torch": installed("torch"), "triton": installed("triton")}}
    done = {"sources": gpu.sources(), "environment": environment}
    (tmp_path / "2026-01-01T000000-gpu-tests.json").write_text(json.dumps(done))
    (tmp_path / "2026-01-01T000000-gpu-sanitizer.json").write_text(json.dumps({**done, "skipped": "no tool"}))
    (tmp_path / "2026-01-01T000000-gpu-training.json").write_text(json.dumps({**done, "sources": "other"}))
    assert run(monkeypatch, "tests", "sanitizer", "operators", "training", "-o", str(tmp_path)) == 1
    assert started == ["sanitizer", "operators", "training"]
    assert killed == ["operators"]
    out, err = capsys.readouterr()
    assert "tests: done before" in out
    assert "operators: out of time" in out
    assert "training: exit code 3" in out
    assert err == "failed: operators, training; run again to try these once more\n"


def test_a_step_leaves_its_result_and_a_failed_one_counts_as_not_done(monkeypatch, tmp_path, with_gpu):
    monkeypatch.setitem(gpu.STEPS, "operators", lambda _: {"rows": [1]})
    monkeypatch.setitem(gpu.STEPS, "tests", lambda _: {"exit_code": 1, "output": ["1 failed"]})
    run(monkeypatch, "--here", "operators", "-o", str(tmp_path))
    assert gpu._is_done("operators", tmp_path)
    with pytest.raises(SystemExit):
        run(monkeypatch, "--here", "tests", "-o", str(tmp_path))
    assert not gpu._is_done("tests", tmp_path)
    (failed,) = tmp_path.glob("*-gpu-tests.failed.json")
    assert json.loads(failed.read_text())["output"] == ["1 failed"]


@pytest.mark.parametrize("profile", ["best", "paper"])
@pytest.mark.parametrize("measure", ["latency", "memory", "training"])
def test_a_step_of_all_seven_leaves_what_it_has_until_its_result_is_there(
    monkeypatch, tmp_path, with_gpu, profile, measure
):
    step, plans = f"{profile}_{measure}", []

    def measured(plan, output, name):
        plans.append(plan)
        path = write({"environment": measured_on(), "rows": []}, output, name)
        assert path.name.endswith(f"-gpu-{step}.partial.json")
        assert not gpu._is_done(step, output)
        return {"rows": [1]}

    monkeypatch.setattr(models, "run", measured)
    others = tmp_path / f"2026-01-01T000000-gpu-{step}.partial.json"
    others.write_text("{}")
    run(monkeypatch, "--here", step, "-o", str(tmp_path))
    others.unlink()  # what another try has left stays until a person takes it away
    (plan,) = plans
    assert {(cell.profile, cell.measure, cell.device) for cell in plan.cells()} == {(profile, measure, "cuda")}
    assert 4096 in plan.lengths
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["rows"] == [1]
    assert gpu._is_done(step, tmp_path)


@pytest.fixture
def pretended(monkeypatch):
    """The measurements of whole models, with small ones, on a processor that is taken for a GPU."""
    for kind in (torch.Tensor, torch.nn.Module):
        monkeypatch.setattr(kind, "cuda", lambda self: self)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    of_cpu = {"device": "cpu", "small": True}
    monkeypatch.setattr(whole, "Cell", lambda *asked: Cell(*asked[:4], **of_cpu))
    monkeypatch.setattr(whole, "MaBertConfig", functools.partial(MaBertConfig, **SMALL))
    sizes = {name: value for name, value in SMALL.items() if name != "layer_pattern"}
    monkeypatch.setattr(whole, "BertConfig", functools.partial(BertConfig, num_hidden_layers=1, **sizes))
    monkeypatch.setattr(whole, "_spare", lambda: None)
    monkeypatch.setattr(whole, "peak_bytes", lambda call: call() is None)
    monkeypatch.setattr(whole, "interleave", lambda sides, **_: rounds.interleave(sides, least=1, most=1, budget=0.0))
    monkeypatch.setattr(whole, "compile_all", lambda models: models)
    monkeypatch.setattr(whole, "LENGTHS", (16, 32))
    monkeypatch.setattr(whole, "TRAINED_LENGTHS", (16, 32))
    monkeypatch.setattr(whole, "LARGEST_BATCH_TOKENS", 64)


def kept_by(measure, **options):
    kept = []
    result = measure(lambda so_far: kept.append(json.dumps(so_far)), **options)
    return result, [json.loads(each) for each in kept]


WITHOUT_GPU = pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")


@WITHOUT_GPU
@pytest.mark.parametrize("compiled", [False, True])
def test_forwards_and_steps_have_a_row_a_side_and_length_kept_as_they_come(pretended, compiled):
    result, kept = kept_by(whole.measure_forwards, compiled=compiled)
    rows = {(row["task"], row["side"], row["length"]): row["batch"] for row in result["rows"]}
    expected = {("latency", side, length): 1 for side in ("mabert", "bert") for length in (16, 32)}
    many = {("throughput", side, length): 64 // length for side in ("mabert", "bert") for length in (16, 32)}
    assert rows == (expected if compiled else expected | many)
    assert [{row["length"] for row in each["rows"]} for each in kept] == [{16}, {16, 32}]
    result, kept = kept_by(whole.measure_training, compiled=compiled)
    assert len(result["rows"]) == 4
    assert {(row["batch"], row["micro_batch"]) for row in result["rows"]} == {(32, 32)}
    assert kept[-1]["rows"] == result["rows"]


@WITHOUT_GPU
def test_a_micro_batch_is_halved_until_it_fits(pretended, monkeypatch):
    step = whole._training_step

    def hungry(used, model, micro, length):
        def refuse():
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        return refuse if micro > 8 else step(used, model, micro, length)

    monkeypatch.setattr(whole, "_training_step", hungry)
    result, _ = kept_by(whole.measure_training)
    assert {row["micro_batch"] for row in result["rows"]} == {8}
    monkeypatch.setattr(whole, "_training_step", lambda *_: lambda: [][0])
    with pytest.raises(IndexError):
        kept_by(whole.measure_training)


def test_uneven_texts_are_those_of_the_distributions_and_of_real_ones(pretended, monkeypatch):
    drawn = {}
    monkeypatch.setattr(lengths, "calls", lambda texts, *_: drawn.setdefault(len(drawn), texts) and {"unpadded": int})
    result, kept = kept_by(whole.measure_lengths)
    assert list(result["lengths"]) == [*lengths.NORMAL, *lengths.REAL]
    assert [len(texts) for texts in drawn.values()] == [128, 24, 128, 128, 128]
    assert len(kept) == 5


def test_what_tests_print_is_in_a_file_from_the_first_line_on(tmp_path):
    program = "import sys, pathlib; print(pathlib.Path(sys.argv[1]).read_text() + 'seen', sys.argv[2]); sys.exit(3)"
    log = tmp_path / "new" / "a.log"
    result = gpu._pytest(log, sys.executable, "-u", "-c", program, str(log))
    assert result == {"exit_code": 3, "output": ["seen -v"]}


def test_the_cuda_scan_takes_part_only_where_it_was_built(monkeypatch):
    package, ops, interface = (ModuleType(name) for name in ("mamba_ssm", "ops", "selective_scan_interface"))
    package.__version__, package.ops, ops.selective_scan_interface = "2.3.1", ops, interface
    for hidden in ("mamba_ssm", "selective_scan_cuda"):
        monkeypatch.setitem(sys.modules, hidden, None)
    assert operators._cuda_scan_version() is None
    for name, module in (("", package), (".ops", ops), (".ops.selective_scan_interface", interface)):
        monkeypatch.setitem(sys.modules, f"mamba_ssm{name}", module)
    assert operators._cuda_scan_version() is None, "its Python alone was installed"
    monkeypatch.setitem(sys.modules, "selective_scan_cuda", ModuleType("selective_scan_cuda"))
    assert operators._cuda_scan_version() == "2.3.1"


def test_a_floor_is_the_larger_of_bytes_and_exponentials():
    inputs = scan_inputs(10, torch.bfloat16)
    work = operators._work("selective_scan", inputs, "forward")
    assert work["exponentials"] == 10 * CHANNELS * STATE
    parameters = 4 * CHANNELS * (STATE + 2)
    assert work["bytes"] == 2 * 10 * (4 * CHANNELS + 2 * STATE) + parameters
    floors = operators._against_floor(work, {"bytes_per_second": 1e9, "exponentials_per_second": 1e6}, 1000.0)
    assert floors["floor_ms"] == pytest.approx(1e3 * work["exponentials"] / 1e6)
    assert floors["floor_share"] == pytest.approx(floors["floor_ms"] / 1000)
    assert floors["bytes_per_second"] == pytest.approx(work["bytes"])
    whole = operators._work("depthwise_conv1d", conv_inputs(10, torch.float32), "forward+backward")
    assert whole["bytes"] > 2 * operators._work("depthwise_conv1d", conv_inputs(10, torch.float32), "forward")["bytes"]
