"""`make gpu` as far as it can be seen without a GPU: what it refuses, skips and records; what floors are made of."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import BertConfig

from mabert import MaBertConfig, rounds
from mabert.baselines.registry import FAMILIES
from mabert.environment import installed
from mabert.processes import end_with_parent
from mabert_lab.bench import lengths, models, throughput
from mabert_lab.bench.gpu import __main__ as gpu
from mabert_lab.bench.gpu import clock, operators
from mabert_lab.bench.gpu import models as whole
from mabert_lab.bench.gpu import pieces as kept
from mabert_lab.bench.gpu.pieces import GPU_LOST, Pieces
from mabert_lab.bench.operators import CHANNELS, STATE, conv_inputs, scan_inputs
from mabert_lab.bench.profiles import SMALL, Cell
from mabert_lab.bench.results import measured_on


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(gpu, "refuse_unless_correct", lambda _: None)
    here = measured_on()
    for module in (gpu, kept):
        monkeypatch.setattr(module, "measured_on", lambda: here)


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
    assert "no such step: everything; there are tests, operators, training" in capsys.readouterr().err


def test_steps_are_processes_and_those_with_a_result_are_skipped(monkeypatch, tmp_path, capsys, with_gpu):
    started, ended, codes = [], [], {"training": [3], "forwards": [GPU_LOST, GPU_LOST, 0], "uneven": [0]}

    class Launch:
        def __init__(self, command, start_new_session, env, preexec_fn):
            assert start_new_session
            assert preexec_fn is end_with_parent
            self.step = command[command.index("--here") + 1]
            self.returncode = None
            started.append(self.step)

        def wait(self, limit):
            if self.step == "operators":
                raise subprocess.TimeoutExpired(self.step, limit)
            self.returncode = codes[self.step].pop(0)
            return self.returncode

    monkeypatch.setattr(gpu.subprocess, "Popen", Launch)
    monkeypatch.setattr(gpu, "_end", lambda process: ended.append(process.step))
    environment = {"device": "a GPU", "packages": {"torch": installed("torch"), "triton": installed("triton")}}
    done = {"sources": gpu.sources(), "environment": environment}
    (tmp_path / "2026-01-01T000000-gpu-tests.json").write_text(json.dumps(done))
    (tmp_path / "2026-01-01T000000-gpu-uneven.json").write_text(json.dumps({**done, "skipped": "no tool"}))
    (tmp_path / "2026-01-01T000000-gpu-operators.json").write_text(json.dumps({"rows": []}))
    (tmp_path / "2026-01-01T000000-gpu-training.json").write_text(json.dumps({**done, "sources": "other"}))
    assert run(monkeypatch, "tests", "uneven", "operators", "training", "forwards", "-o", str(tmp_path)) == 1
    assert started == ["uneven", "operators", "training", *["forwards"] * 3], "a lost GPU is one of a process"
    assert ended == ["operators"]
    out, err = capsys.readouterr()
    assert "tests: done before" in out
    assert "operators: out of time" in out
    assert "training: exit code 3" in out
    assert "forwards: done" in out
    assert err == "failed: operators, training; run again to try these once more\n"


INTERRUPTED = """#!/bin/sh
trap 'echo interrupted > {said}; exit 1' INT
sleep 60 &
echo $! > {pid}
wait
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for a process in /proc")
@pytest.mark.parametrize("asked", ["time", "Ctrl-C", "SIGTERM"])
def test_a_step_is_interrupted_and_then_killed_with_all_it_started(monkeypatch, tmp_path, asked):
    said, pid, program = (tmp_path / name for name in ("said", "pid", "program"))
    program.write_text(INTERRUPTED.format(said=said, pid=pid))
    program.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(program))
    before = signal.getsignal(signal.SIGTERM)

    def has_begun():
        for _ in range(1200):
            if pid.is_file() and pid.read_text().endswith("\n"):
                return
            time.sleep(0.05)
        pytest.fail("the step did not begin")

    if asked == "time":
        wait = subprocess.Popen.wait

        def waited(process, seconds=None):
            if process.args[0] == str(program) and not said.exists() and seconds == 30.0:
                has_begun()
                raise subprocess.TimeoutExpired(process.args, seconds)
            return wait(process, seconds)

        monkeypatch.setattr(subprocess.Popen, "wait", waited)
        assert gpu._in_a_process("tests", tmp_path, 30.0) is None
    else:
        number = signal.SIGINT if asked == "Ctrl-C" else signal.SIGTERM
        main = os.getpid()
        sender = threading.Thread(target=lambda: (has_begun(), os.kill(main, number)))
        sender.start()
        with pytest.raises(KeyboardInterrupt if asked == "Ctrl-C" else SystemExit):
            gpu._in_a_process("tests", tmp_path, 120.0)
        sender.join()
    assert said.read_text() == "interrupted\n"
    for _ in range(100):
        if not is_running(int(pid.read_text())):
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the step had started goes on")
    assert signal.getsignal(signal.SIGTERM) == before


def is_running(pid):
    try:
        return (pathlib.Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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


@pytest.mark.parametrize(("step", "checked"), [("operators", True), ("best_latency", True), ("tests", False)])
def test_nothing_is_timed_where_the_operators_are_wrong(monkeypatch, tmp_path, with_gpu, step, checked):
    def wrong(device):
        assert device == "cuda"
        raise RuntimeError("selective_scan: output is off")

    monkeypatch.setattr(gpu, "refuse_unless_correct", wrong)
    monkeypatch.setitem(gpu.STEPS, step, lambda _: {"rows": [1]})
    with pytest.raises(RuntimeError, match="is off") if checked else contextlib.nullcontext():
        run(monkeypatch, "--here", step, "-o", str(tmp_path))
    assert gpu._is_done(step, tmp_path) is not checked


@pytest.mark.slow
def test_it_needs_no_package_that_measuring_does_without(tmp_path):
    """A machine with a GPU may be bare but for torch and transformers."""
    program = (
        "import sys\n"
        "for name in ('zstandard', 'datasets', 'accelerate', 'submitit', 'mambapy', 'matplotlib', 'numba'):\n"
        "    sys.modules[name] = None\n"
        "import mabert_lab.bench.gpu.__main__, mabert_lab.bench.gpu.operators, mabert_lab.bench.gpu.models\n"
        "import mabert_lab.bench.models, mabert_lab.bench.throughput\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_step_goes_on_from_the_pieces_it_has_and_keeps_them_when_one_fails(monkeypatch, tmp_path, capsys, with_gpu):
    broken, measured = {"second": "odd"}, []

    def piece(name):
        measured.append(name)
        if name in broken:
            raise ValueError(broken[name])
        return [{"of": name}]

    names = ("first", "second", "third")
    parts = {name: functools.partial(piece, name) for name in names}
    monkeypatch.setitem(gpu.STEPS, "operators", lambda pieces: {"rows": list(pieces.measure(parts))})
    with pytest.raises(SystemExit):
        run(monkeypatch, "--here", "operators", "-o", str(tmp_path))
    assert measured == list(names)
    assert "operators, second: ValueError: odd" in capsys.readouterr().out
    assert not gpu._is_done("operators", tmp_path)
    (failed,) = tmp_path.glob("*-gpu-operators.failed.json")
    assert json.loads(failed.read_text())["rows"] == ["first", "third"]
    assert json.loads(failed.read_text())["errors"] == {"second": "ValueError: odd"}
    measured.clear()
    broken.clear()
    parts["fourth"] = functools.partial(piece, "fourth")
    run(monkeypatch, "--here", "operators", "-o", str(tmp_path))
    assert measured == ["fourth", "second"], "what failed before comes last"
    assert gpu._is_done("operators", tmp_path)
    (done,) = tmp_path.glob("*-gpu-operators.json")
    assert json.loads(done.read_text())["rows"] == [*names, "fourth"]
    assert not list(tmp_path.glob("*.partial.json"))


def test_pieces_of_other_sources_or_machines_are_not_taken_over(tmp_path):
    here = Pieces("operators", tmp_path, ["sources", "a GPU"])
    assert here.measure({"first": lambda: 1}) == {"first": 1}
    assert Pieces("operators", tmp_path, ["sources", "a GPU"]).measure({"first": lambda: 2}) == {"first": 1}
    assert Pieces("operators", tmp_path, ["others", "a GPU"]).measure({"first": lambda: 2}) == {"first": 2}
    assert Pieces("training", tmp_path, ["sources", "a GPU"]).measure({"first": lambda: 3}) == {"first": 3}


def test_a_lost_gpu_ends_the_process_while_there_is_something_untried(monkeypatch, tmp_path):
    measured = []

    def piece(name):
        measured.append(name)
        if name == "bad":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return name

    monkeypatch.setattr(kept, "gpu_is_lost", lambda: measured[-1] == "bad")
    parts = {name: functools.partial(piece, name) for name in ("good", "bad", "other")}
    with pytest.raises(SystemExit) as stop:
        Pieces("operators", tmp_path, []).measure(parts)
    assert stop.value.code == GPU_LOST
    again = Pieces("operators", tmp_path, [])
    assert again.measure(parts) == {"good": "good", "other": "other"}
    assert measured == ["good", "bad", "other", "bad"]
    assert "illegal memory access" in again.errors["bad"]


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["best", "paper"])
@pytest.mark.parametrize("measure", ["latency", "memory", "training"])
def test_all_seven_are_measured_one_by_one_each_kept_as_it_comes(monkeypatch, tmp_path, with_gpu, profile, measure):
    step, plans = f"{profile}_{measure}", []

    def measured(plan):
        (model,) = plan.models
        if len(plans) == 3:
            plans.append(None)
            raise KeyboardInterrupt
        plans.append(plan)
        row = {"model": model, "status": "failed" if model == "deberta" else "measured", "reason": "no such kernel"}
        return {"environment": gpu.measured_on(), "parameters": {model: 7}, "rows": [row]}

    monkeypatch.setattr(models, "run", measured)
    others = tmp_path / f"2026-01-01T000000-gpu-{step}.partial.json"
    others.write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, "--here", step, "-o", str(tmp_path))
    run(monkeypatch, "--here", step, "-o", str(tmp_path))
    others.unlink()  # what another try has left stays until a person takes it away
    assert [plan.models[0] for plan in plans if plan] == list(FAMILIES)
    for plan in filter(None, plans):
        assert {(cell.profile, cell.measure, cell.device) for cell in plan.cells()} == {(profile, measure, "cuda")}
        assert 4096 in plan.lengths
    (path,) = tmp_path.iterdir()
    result = json.loads(path.read_text())
    assert [row["model"] for row in result["rows"]] == list(result["parameters"]) == list(FAMILIES)
    assert gpu._is_done(step, tmp_path), "a rival may fail"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["best_latency", "many_texts"])
def test_a_step_in_which_mabert_failed_is_not_done(monkeypatch, tmp_path, capsys, with_gpu, step):
    def measured(models):
        row = {"model": models[0], "status": "failed", "reason": "RuntimeError: a kernel"}
        fine = {"model": models[0], "status": "measured", "reason": None}
        return {"rows": [row if models[0] in ("mabert", "bert") else fine, fine]}

    monkeypatch.setattr(models, "run", lambda plan: measured(plan.models))
    monkeypatch.setattr(throughput, "run", lambda models, **_: measured(models))
    with pytest.raises(SystemExit):
        run(monkeypatch, "--here", step, "-o", str(tmp_path))
    assert not gpu._is_done(step, tmp_path)
    (failed,) = tmp_path.glob(f"*-gpu-{step}.failed.json")
    assert len(json.loads(failed.read_text())["rows"]) == 2 * len(FAMILIES)
    out = capsys.readouterr().out
    assert f"{step}: bert: RuntimeError: a kernel" in out
    assert f"{step}, mabert: mabert: RuntimeError: a kernel" in out


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
    monkeypatch.setattr(whole, "TRAINED_LENGTHS", (2, 4))
    monkeypatch.setattr(whole, "LARGEST_BATCH_TOKENS", 64)


@pytest.fixture
def pieces(tmp_path):
    return Pieces("step", tmp_path, [])


WITHOUT_GPU = pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")


@WITHOUT_GPU
@pytest.mark.parametrize("compiled", [False, True])
def test_forwards_have_a_row_a_side_and_length_kept_as_they_come(pretended, pieces, compiled):
    result = whole.measure_forwards(pieces, compiled=compiled)
    rows = {(row["task"], row["side"], row["length"]): row["batch"] for row in result["rows"]}
    expected = {("latency", side, length): 1 for side in ("mabert", "bert") for length in (16, 32)}
    many = {("throughput", side, length): 64 // length for side in ("mabert", "bert") for length in (16, 32)}
    assert rows == (expected if compiled else expected | many)
    assert {name: {row["length"] for row in rows} for name, rows in pieces.done.items()} == {
        "16 tokens": {16},
        "32 tokens": {32},
    }


@pytest.mark.slow
@WITHOUT_GPU
@pytest.mark.parametrize("compiled", [False, True])
def test_steps_have_a_row_a_side_and_length_and_one_is_taken_apart(pretended, monkeypatch, pieces, compiled):
    monkeypatch.setattr(whole, "measure_parts", lambda: {"share": 0.5})
    result = whole.measure_training(pieces, compiled=compiled)
    assert {(row["side"], row["length"]) for row in result["rows"]} == {
        (side, length) for side in ("mabert", "bert") for length in (2, 4)
    }
    assert {(row["batch"], row["micro_batch"]) for row in result["rows"]} == {(32, 32)}
    assert result.get("parts") == (None if compiled else {"share": 0.5})


@pytest.mark.slow
@WITHOUT_GPU
def test_what_a_step_is_made_of_may_fail_alone(pretended, monkeypatch, pieces):
    empty = SimpleNamespace(key_averages=list)
    monkeypatch.setattr("torch.profiler.profile", lambda **_: contextlib.nullcontext(empty))
    monkeypatch.setattr(whole, "_training_step", lambda *_, **__: lambda: None)
    result = whole.measure_training(pieces)
    assert len(result["rows"]) == 4
    assert "parts" not in result
    assert pieces.errors == {"parts": "RuntimeError: torch's profiler saw no kernel on the GPU"}


@pytest.mark.slow
@WITHOUT_GPU
@pytest.mark.parametrize(("most", "found"), [(8, {8}), (1, {1}), (0, set())])
def test_a_micro_batch_is_halved_until_it_fits(pretended, monkeypatch, capsys, pieces, most, found):
    step = whole._training_step

    def hungry(used, model, micro, length):
        def refuse():
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        return refuse if micro > most else step(used, model, micro, length)

    monkeypatch.setattr(whole, "measure_parts", dict)
    monkeypatch.setattr(whole, "_training_step", hungry)
    result = whole.measure_training(pieces)
    assert {row["micro_batch"] for row in result["rows"]} == found
    left_out = "a training step of 4 tokens: bert is left out, because memory ran out"
    assert (left_out in capsys.readouterr().out) == (not found)
    assert not pieces.errors


@pytest.mark.slow
@WITHOUT_GPU
def test_a_compiled_step_that_wants_more_than_the_one_sought_with_is_left_out(pretended, monkeypatch, capsys, pieces):
    class Compiled(torch.nn.Module):
        def forward(self, **_):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(whole, "compile_all", lambda models: {**models, "bert": Compiled()})
    result = whole.measure_training(pieces, compiled=True)
    assert {row["side"] for row in result["rows"]} == {"mabert"}
    assert "bert is left out" in capsys.readouterr().out


@pytest.mark.slow
@WITHOUT_GPU
def test_an_error_that_is_no_want_of_memory_is_told(pretended, monkeypatch, pieces):
    monkeypatch.setattr(whole, "measure_parts", dict)
    monkeypatch.setattr(whole, "_training_step", lambda *_: lambda: [][0])
    assert whole.measure_training(pieces)["rows"] == []
    assert pieces.errors == dict.fromkeys(("2 tokens", "4 tokens"), "IndexError: list index out of range")


@pytest.mark.slow
def test_uneven_texts_are_those_of_the_distributions_and_of_real_ones(pretended, monkeypatch, pieces):
    drawn = {}
    monkeypatch.setattr(lengths, "calls", lambda texts, *_: drawn.setdefault(len(drawn), texts) and {"unpadded": int})
    result = whole.measure_lengths(pieces)
    assert list(result["lengths"]) == [*lengths.NORMAL, *lengths.REAL] == list(pieces.done)
    assert [len(texts) for texts in drawn.values()] == [128, 24, 128, 128, 128]
    assert set(result["speed"]) == set(result["lengths"])


def test_what_tests_print_is_in_a_file_from_the_first_line_on(tmp_path):
    program = "import sys, pathlib; print(pathlib.Path(sys.argv[1]).read_text() + 'seen', sys.argv[-1]); sys.exit(3)"
    log = tmp_path / "new" / "a.log"
    result = gpu._pytest(log, sys.executable, "-u", "-c", program, str(log))
    assert result == {"exit_code": 3, "output": ["seen -v"]}


TESTS = """
import pathlib, pytest
def test_one(): pass
def test_one_more(): pathlib.Path("two").write_text("begun"); assert pathlib.Path("fixed").exists()
@pytest.mark.parametrize("number", [1, 2])
def test_many(number): pathlib.Path(f"ran {number}").open("a").write("x")
"""


@pytest.mark.slow
def test_tests_that_have_passed_are_not_run_again(monkeypatch, tmp_path):
    (tmp_path / "test_a.py").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "_OPERATOR_TESTS", "test_a.py")
    monkeypatch.setattr(gpu, "_MODEL_TESTS", "test_a.py::test_one")
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    results = tmp_path / "results"
    assert gpu.tests(Pieces("tests", results, ["these"]))["exit_code"] == 1
    (tmp_path / "fixed").touch()
    assert gpu.tests(Pieces("tests", results, ["these"]))["exit_code"] == 0
    assert (tmp_path / "ran 2").read_text() == "x"
    assert gpu.tests(Pieces("tests", results, ["these"])) == {"exit_code": 0, "output": ["all have passed before"]}
    assert gpu.tests(Pieces("tests", results, ["others"]))["exit_code"] == 0
    assert (tmp_path / "ran 2").read_text() == "xx", "of other sources"
    log = tmp_path / "of several processes"
    log.write_text("[gw1] [ 50%] PASSED test_a.py::test_many[1] \n[gw0] [ 75%] FAILED test_a.py::test_one_more \n")
    assert gpu.not_passed(log, ["test_a.py"]) == [f"test_a.py::test_{name}" for name in ("one", "one_more", "many[2]")]
    assert gpu.not_passed(log, ["test_b.py"]) == ["test_b.py"], "which cannot be listed"


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


def test_a_mamba_ssm_built_for_another_torch_is_left_out(monkeypatch, tmp_path, capsys):
    package = tmp_path / "mamba_ssm"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('undefined symbol')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mamba_ssm", raising=False)
    assert operators._cuda_scan_version() is None
    assert capsys.readouterr().out == "mamba-ssm is left out: RuntimeError: undefined symbol\n"


@pytest.fixture
def small_operators(monkeypatch):
    """The measurements of operators on a processor, with a rival that fails where there is bf16."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(operators, "copy_rate", lambda: 1e9)
    monkeypatch.setattr(operators, "_exponential_rate", lambda: 1e6)
    monkeypatch.setattr(operators, "SHAPES", ((2, 8),))
    monkeypatch.setattr(operators, "_cuda_scan_version", lambda: "2.3.1")
    monkeypatch.setattr(operators, "peak_bytes", lambda call: 1)
    one = {"least": 1, "most": 1, "budget": 0.0}
    monkeypatch.setattr(operators, "interleave", lambda sides, queued: rounds.interleave(sides, **one))

    def rival(u, **_):
        if u.dtype == torch.bfloat16:
            raise RuntimeError("no kernel image")
        return u.float().sum(1)

    monkeypatch.setattr(operators, "_cuda_scan", rival)
    monkeypatch.setattr(operators, "TASKS", ("forward",))
    operators._inputs.cache_clear()
    yield
    operators._inputs.cache_clear()


@pytest.mark.slow
def test_a_combination_that_fails_costs_no_other(small_operators, monkeypatch, pieces):
    def convolution(u, **_):
        raise ValueError("a kernel")

    monkeypatch.setitem(operators.OPERATORS, "depthwise_conv1d", convolution)
    result = operators.measure(pieces)
    found = {(row["operator"], row["dtype"], row["side"]): row.get("error") for row in result["rows"]}
    scan, conv = "selective_scan", "depthwise_conv1d"
    assert found == {
        (scan, "bfloat16", "mabert"): None,
        (scan, "bfloat16", "mamba-ssm"): "RuntimeError: no kernel image",
        (conv, "bfloat16", "mabert"): "ValueError: a kernel",
        (scan, "float32", "mabert"): None,
        (scan, "float32", "mamba-ssm"): None,
        (conv, "float32", "mabert"): "ValueError: a kernel",
    }
    assert len(pieces.errors) == 3
    assert all(row["floor_ms"] > 0 for row in result["rows"] if "error" not in row)


@pytest.mark.slow
def test_a_limit_that_fails_is_left_out_of_the_floors(small_operators, monkeypatch, pieces):
    def fails():
        raise RuntimeError("a kernel")

    monkeypatch.setattr(operators, "_exponential_rate", fails)
    result = operators.measure(pieces)
    assert result["limits"] == {"bytes_per_second": 1e9}
    times = [row for row in result["rows"] if "error" not in row]
    assert len(times) == 5
    for row in times:
        least = row["bytes_per_second"] * row["median_ms"] / 1e9
        assert row["floor_ms"] == pytest.approx(least)
    assert pieces.errors["exponentials_per_second"] == "RuntimeError: a kernel"
    monkeypatch.setattr(operators, "_exponential_rate", lambda: 1e3)
    again = operators.measure(pieces)
    assert all(row["floor_ms"] > 1e3 * 2 * 8 for row in again["rows"] if "error" not in row), "kept rows have new ones"


def test_a_sample_counts_where_the_gpu_waits_for_the_queue(monkeypatch):
    waited, queued_in_time, synchronised = [], iter([False, False, True]), []

    class Event:
        def __init__(self, enable_timing):
            self.recorded = 0

        def record(self):
            pass

        def query(self):
            return not next(queued_in_time)

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 5.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", waited.append, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronised.append(len(calls)))
    calls = []
    flush = torch.empty(1)
    assert clock._sample(lambda: calls.append(1), flush, queued=True) == 5e-3
    assert len(calls) == 3
    assert waited == [clock._SLEEP_CYCLES, 2 * clock._SLEEP_CYCLES, 4 * clock._SLEEP_CYCLES]
    assert not synchronised
    assert clock._sample(lambda: calls.append(1), flush, queued=False) == 5e-3
    assert synchronised == [3], "before the clock starts, so that the host's time counts"
    queued_in_time = itertools.repeat(False)
    with pytest.raises(RuntimeError, match="cannot be timed alone"):
        clock._sample(lambda: calls.append(1), flush, queued=True)


def test_a_floor_is_the_larger_of_bytes_and_exponentials():
    inputs = scan_inputs(10, torch.bfloat16)
    work = operators._work("selective_scan", inputs, "forward")
    assert work["exponentials"] == 10 * CHANNELS * STATE
    parameters = 4 * CHANNELS * (STATE + 2)
    assert work["bytes"] == 2 * 10 * (4 * CHANNELS + 2 * STATE) + parameters
    limits = {"bytes_per_second": 1e9, "exponentials_per_second": 1e6}
    floors = operators._against_limits({"work": work, "median_ms": 1000.0}, limits)
    assert floors["floor_ms"] == pytest.approx(1e3 * work["exponentials"] / 1e6)
    assert floors["floor_share"] == pytest.approx(floors["floor_ms"] / 1000)
    assert floors["bytes_per_second"] == pytest.approx(work["bytes"])
    assert operators._against_limits({"work": work, "median_ms": 1000.0}, {})["floor_ms"] is None
    whole = operators._work("depthwise_conv1d", conv_inputs(10, torch.float32), "forward+backward")
    assert whole["bytes"] > 2 * operators._work("depthwise_conv1d", conv_inputs(10, torch.float32), "forward")["bytes"]
