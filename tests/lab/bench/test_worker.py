"""A model's process: what it answers, how it ends, and what it may take."""

import multiprocessing
import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

from mabert.machine import memory as machine_memory
from mabert_lab.bench import worker as worker_module
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.worker import CellError, serve, status_of
from tests.patience import HANG


def cell(measure="latency", profile="best"):
    return Cell(measure, profile, "bfloat16", 24, small=True)


def test_memory_that_a_group_of_processes_may_take_bounds_a_model(tmp_path, monkeypatch):
    def write(group, content):
        group.mkdir(parents=True, exist_ok=True)
        for name, text in content.items():
            (group / name).write_text(text)

    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    assert machine_memory.group_memory(groups, root) == []
    groups.write_text("0::/outer/inner\n")
    stat = "anon 5\ninactive_file 50\n"
    write(root / "outer", {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": stat})
    write(root / "outer/inner", {"memory.max": "max\n", "memory.current": "600\n", "memory.stat": ""})
    write(root, {"memory.stat": ""})
    assert machine_memory.group_memory(groups, root) == [350]
    with monkeypatch.context() as patched:
        patched.setattr(machine_memory, "group_memory", lambda: [350])
        assert worker_module.free_memory() == int(worker_module.SHARE * 350)
        patched.setattr(machine_memory, "group_memory", lambda: [0])
        assert worker_module.free_memory() == 0
        with pytest.raises(ValueError, match=r"needs at least 1.0 GiB of memory; 0.0 GiB are free"):
            machine_memory.check_fits("the model", 1 << 28, 4)
        patched.setattr(machine_memory, "group_memory", list)
        patched.setattr(machine_memory, "field_of", lambda file, name: 0)
        assert worker_module.free_memory() is None
        machine_memory.check_fits("the model", 1 << 60, 4)
    groups.write_text("12:cpu,cpuacct:/job\n9:memory:/job\n")
    sizes = {"memory.limit_in_bytes": "900\n", "memory.usage_in_bytes": "950\n"}
    write(root / "memory/job", {**sizes, "memory.stat": "total_inactive_file 20\n"})
    assert machine_memory.group_memory(groups, root) == [0]


def test_a_field_that_linux_does_not_tell_is_zero(tmp_path):
    file = tmp_path / "status"
    file.write_text("VmRSS:\t 3 kB\n")
    assert [machine_memory.field_of(str(file), name) for name in ("VmRSS", "VmHWM")] == [3 << 10, 0]
    assert machine_memory.field_of(str(tmp_path / "none"), "VmRSS") == 0


@pytest.mark.parametrize(
    ("library", "size"), [(("glibc", "2.36"), 1 << 30), (("glibc", "2.9"), 32 << 20), (("", ""), 32 << 20)]
)
def test_an_older_c_library_is_asked_for_what_it_takes(monkeypatch, library, size):
    monkeypatch.setattr(worker_module.platform, "libc_ver", lambda: library)
    assert worker_module.kept() == size


@pytest.fixture
def worker():
    with worker_module.workers_of({"side": "bert"}, "cpu") as workers:
        yield workers["side"]


@pytest.mark.slow
def test_a_worker_measures_and_says_why_it_cannot(worker):
    assert worker.ask("parameters") == 109_483_778
    assert worker.ask("prepare", cell(profile="paper")) == {"setting": "sdpa_plain", "batch": 1, "micro_batch": 1}
    assert worker.ask("call").whole > 0
    held = worker.ask("memory")
    assert held["peak"] > held["weights"] > 0
    process = worker._process
    os.kill(process.pid, signal.SIGSTOP)  # or it may answer before it is asked whether it has
    with pytest.raises(CellError, match="too slow: one call took more than 0 s") as slow:
        worker.ask("call", limit=0.0)
    assert slow.value.seconds == 0
    assert not process.is_alive()
    assert worker.ask("prepare", cell("training"))["micro_batch"] == 32, "a new process begins"
    with pytest.raises(CellError, match="failed: AttributeError"):
        worker.ask("nothing_of_the_kind")
    with pytest.raises(CellError, match="failed: AttributeError"):
        worker.ask("call")
    worker.ask("prepare", cell())
    worker._process.kill()
    with pytest.raises(CellError, match="out of memory: the process ended with exit code -9"):
        worker.ask("call")


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_that_is_asked_nothing_more_leaves_by_itself_or_is_ended(worker, monkeypatch, stopped):
    monkeypatch.setattr(worker_module, "ENDING", 0.1 if stopped else HANG)
    assert worker.ask("variables")
    process = worker._process
    if stopped:
        os.kill(process.pid, signal.SIGSTOP)
    worker.close()
    assert process.exitcode == (-signal.SIGKILL if stopped else 0)
    assert worker._process is None


@pytest.mark.slow
def test_a_worker_whose_answer_nobody_waits_for_ends_without_a_word(worker, capfd):
    assert worker.ask("variables")
    process, pipe = worker._process, worker._pipe
    os.kill(process.pid, signal.SIGSTOP)
    pipe.send(("variables", ()))
    pipe.close()
    os.kill(process.pid, signal.SIGCONT)
    process.join(HANG)
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_the_next_cell_has_a_new_process(worker):
    assert worker.ask("variables")
    first = worker._process
    first.terminate()  # as one that ends by itself
    first.join()
    worker.release()
    assert worker.ask("variables"), "which a cell asks after it released the last one"
    assert worker._process is not first


@pytest.mark.slow
def test_a_process_is_bounded_in_its_memory():
    def allocate(pipe):
        worker_module.limit_memory(0)
        try:
            torch.ones(1 << 30)
        except Exception as error:
            pipe.send(status_of(error))

    forked = multiprocessing.get_context("fork")  # torch is there
    here, there = forked.Pipe()
    process = forked.Process(target=allocate, args=(there,))
    process.start()
    assert here.poll(HANG)
    assert here.recv() == "out of memory"
    process.join()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_a_lack_of_memory_is_told_from_other_errors(error):
    assert (status_of(error), status_of(ValueError("odd"))) == ("out of memory", "failed")


def answered(monkeypatch, error, **further):
    """What a process answers that is asked for a call, which raises an error, and then for something else."""
    answering = Mock(call=Mock(side_effect=error), variables=lambda: "still here", **further)
    pipe = Mock(recv=Mock(side_effect=[("call", ()), ("variables", ()), EOFError]))
    monkeypatch.setattr(worker_module, "Answers", lambda name: answering)
    monkeypatch.setattr(worker_module.signal, "signal", lambda *_: None)
    serve(pipe, "bert")
    return [sent.args[0] for sent in pipe.send.call_args_list]


@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError("can't allocate memory")])
def test_after_an_error_it_goes_on_even_where_memory_cannot_be_released(monkeypatch, error):
    answers = answered(monkeypatch, error, release=Mock(side_effect=error))
    assert answers == [(status_of(error), f"{type(error).__name__}: {error}"), ("ok", "still here")]


ILLEGAL = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("answer", "lost"),
    [(RuntimeError(ILLEGAL), True), (RuntimeError("CUDA error: out of memory"), False), (None, False)],
)
def test_a_process_whose_gpu_is_lost_answers_and_ends(monkeypatch, answer, lost):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=answer))
    states = [state for state, _ in answered(monkeypatch, RuntimeError(ILLEGAL))]
    assert states == ["failed", "ok"][: 1 if lost else 2]


@pytest.mark.slow
def test_measuring_on_a_gpu_needs_torch_and_transformers_alone(tmp_path):
    program = (
        "import sys\n"
        "for name in ('zstandard', 'datasets', 'accelerate', 'mambapy', 'matplotlib', 'numba', 'pandas', 'jinja2'):\n"
        "    sys.modules[name] = None\n"
        "import mabert_lab.cli, mabert_lab.bench.models, mabert_lab.bench.lengths, mabert_lab.bench.operators\n"
        "from mabert.cli.command import load_libraries; load_libraries()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
