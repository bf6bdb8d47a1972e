"""`make gpu` as far as it can be seen without a GPU: what it refuses, skips and records; what floors are made of."""

import json
import subprocess

import pytest
import torch

from mabert.bench.gpu import __main__ as gpu
from mabert.bench.gpu import operators
from mabert.bench.operators import CHANNELS, STATE, conv_inputs, scan_inputs
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
        def __init__(self, command, start_new_session):
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
    monkeypatch.setitem(gpu.STEPS, "operators", lambda: {"rows": [1]})
    monkeypatch.setitem(gpu.STEPS, "tests", lambda: {"exit_code": 1, "output": ["1 failed"]})
    run(monkeypatch, "--here", "operators", "-o", str(tmp_path))
    assert gpu._is_done("operators", tmp_path)
    with pytest.raises(SystemExit):
        run(monkeypatch, "--here", "tests", "-o", str(tmp_path))
    assert not gpu._is_done("tests", tmp_path)
    (failed,) = tmp_path.glob("*-gpu-tests.failed.json")
    assert json.loads(failed.read_text())["output"] == ["1 failed"]


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
