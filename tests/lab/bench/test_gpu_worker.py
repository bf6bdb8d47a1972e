"""What a model's process says when the GPU fails under it, and that it does not go on with one that is lost."""

from types import SimpleNamespace

import pytest
import torch

from mabert_lab.bench import worker
from mabert_lab.bench.worker import CellError, Worker, gpu_is_lost, is_of_gpu, serve

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"


class Answers:
    """Answers a call with an error, and cannot release its memory after it."""

    error: Exception

    def __init__(self, name):
        pass

    def call(self):
        raise self.error

    def name(self):
        return "still here"

    def release(self):
        raise self.error


def answers_to(questions, monkeypatch, error):
    """What the process answers to some questions, as far as it goes on."""
    Answers.error = error
    monkeypatch.setattr(worker, "Answers", Answers)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    waiting, answers = [(question, ()) for question in questions], []

    def recv():
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    serve(SimpleNamespace(recv=recv, send=answers.append), "bert")
    return answers


@pytest.mark.parametrize("error", [torch.AcceleratorError(ILLEGAL), RuntimeError(f"Triton Error [CUDA]: {ILLEGAL}")])
def test_the_reason_of_a_lost_gpu_is_told_and_its_process_ends(monkeypatch, error):
    ((status, reason),) = answers_to(["call", "name"], monkeypatch, error)
    assert status == "failed"
    assert "illegal memory access was encountered CUDA kernel errors" in reason


def test_an_error_that_the_gpu_tells_only_when_asked_ends_the_process_too(monkeypatch):
    monkeypatch.setattr(worker, "gpu_is_lost", lambda: True)
    assert len(answers_to(["call", "name"], monkeypatch, RuntimeError("cuBLAS has no words"))) == 1


@pytest.mark.parametrize("error", [ValueError("odd"), RuntimeError("CUDA error: out of memory")])
def test_after_another_error_it_goes_on_even_where_memory_cannot_be_released(monkeypatch, error):
    status = "failed" if isinstance(error, ValueError) else "out of memory"
    assert answers_to(["call", "name"], monkeypatch, error) == [
        (status, f"{type(error).__name__}: {error}"),
        ("ok", "still here"),
    ]


def test_a_gpu_is_lost_where_it_answers_with_errors(monkeypatch):
    def fails():
        raise RuntimeError(message)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    message = ILLEGAL
    assert gpu_is_lost()
    message = "CUDA error: out of memory"
    assert not gpu_is_lost()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not gpu_is_lost()
    assert not is_of_gpu(ValueError("odd"))


@pytest.mark.slow
def test_the_next_cell_has_a_new_process():
    asked = Worker("bert")
    try:
        assert asked.variables()
        first = asked._process
        first.terminate()  # as one that ends by itself
        first.join()
        asked.release()
        assert asked.variables(), "which a cell asks after it released the last one"
        assert asked._process is not first
    except CellError as error:
        pytest.fail(f"the next cell failed for the last one: {error}")
    finally:
        asked.close()
