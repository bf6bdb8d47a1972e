"""`make gpu` as far as it can be seen without a GPU: its phases, that a call goes on, and what it prints."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mabert.ops.backends import interprets_triton
from tests import gpu_kernels
from tests.model import test_gpu
from tests.ops import test_triton

ROOT = Path(__file__).parents[1]
PHASES = re.findall(r"phase (\S+) \d+ ", (ROOT / "Makefile").read_text(encoding="utf-8"))


@pytest.fixture
def make(tmp_path):
    """Calls make in a folder of its own, with a program in place of Python that fails at some words."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("src", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("x = 1\n")
    python, log = tmp_path / "python", tmp_path / "log"

    def call(failing="nothing", body="", **variables):
        python.write_text(f'#!/bin/sh\necho "$*" >> {log}\n{body}\ncase "$*" in *{failing}*) exit 1;; esac\n')
        python.chmod(0o755)
        log.write_text("")
        given = [f"{name}={value}" for name, value in variables.items()]
        done = subprocess.run(
            ["make", "-s", "gpu", f"PYTHON={python}", *given], cwd=tmp_path, capture_output=True, text=True
        )
        return done, [line for line in log.read_text().splitlines() if line.startswith("-m")]

    return call


def test_a_call_goes_on_with_the_phases_that_are_not_done(make, tmp_path):
    done, ran = make(failing="bench?ops")
    assert done.returncode != 0
    assert len(ran) == len(PHASES)
    assert [name for name in PHASES if re.search(rf"phase {name}: \d+ s", done.stdout)] == PHASES
    assert "not done: 5-operators; run again to go on" in done.stdout
    done, ran = make()
    assert done.returncode == 0
    assert [line.split()[2:5] for line in ran] == [["bench", "ops", "--device"]]
    assert make()[1] == []
    (tmp_path / "src/a.py").write_text("x = 2\n")
    assert len(make()[1]) == len(PHASES), "other sources are measured anew"


def test_no_phase_begins_when_the_time_is_over(make):
    done, ran = make(SECONDS=0)
    assert ran == []
    assert f"not done: {' '.join(PHASES)}; run again" in done.stdout


def test_a_phase_that_compiles_says_so_in_a_line(make):
    done, _ = make(body='case "$*" in *"bench ops"*) mkdir -p build/triton/x; echo > build/triton/x/a.cubin;; esac')
    assert re.findall(r"phase (\S+) compiled (\d+) kernels", done.stdout) == [("5-operators", "1")]


def test_the_tests_that_matter_are_there():
    words = re.search(r"THOSE_THAT_MATTER := (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))[1].split(" or ")
    names = [*vars(test_triton), *vars(test_gpu)]
    assert all(any(word in name for name in names) for word in words)


def test_the_page_on_performance_gives_the_seconds_of_each_phase():
    page, make = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/performance.md", "Makefile"))
    most = re.findall(r"phase (\d)-\S+ (\d+) ", make)
    told = re.findall(r"^\| (\d) \|.*\| (\d+) \|$", page, re.MULTILINE)
    assert dict(told) == {phase: str(sum(int(each) for of, each in most if of == phase)) for phase, _ in most}


def test_what_passed_is_not_run_again(pytester, monkeypatch):
    passed = pytester.path / "build/passed"
    monkeypatch.setenv("TESTS_PASSED", str(passed))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # the tests in the test run in one process
    monkeypatch.setattr("tests.once.PASSED", passed)
    pytester.makepyfile("import os\ndef test_a(): pass\ndef test_b(): assert 'FIXED' in os.environ\n")
    pytester.runpytest("-p", "tests.once").assert_outcomes(passed=1, failed=1)
    monkeypatch.setenv("FIXED", "1")
    pytester.runpytest("-p", "tests.once").assert_outcomes(passed=1, deselected=1)
    again = pytester.runpytest("-p", "tests.once")
    again.assert_outcomes(deselected=2)
    assert again.ret == 0


@pytest.mark.slow
@pytest.mark.skipif(interprets_triton(), reason="interpreted kernels are not compiled")
def test_kernels_for_a_gpu_that_is_not_there_are_compiled_and_kept_small(tmp_path, monkeypatch, capsys):
    pytest.importorskip("triton", reason="Triton is not installed")
    program = (
        "import itertools, sys; from tests import gpu_kernels; every = gpu_kernels.calls\n"
        "gpu_kernels.calls = lambda: itertools.islice(every(), 1, 2)\n"
        "sys.exit(gpu_kernels.main())"
    )
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))

    variables = {**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": "build/triton"}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "conv_forward, conv_backward" in done.stdout
    assert {file.suffix for file in (tmp_path / "build/triton").glob("*/*")} == {".cubin", ".json"}
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    assert gpu_kernels.main() == 2
    assert "it must be relative" in capsys.readouterr().err
