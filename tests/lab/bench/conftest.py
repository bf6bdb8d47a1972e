"""Models that answer in this process, where what is tested is not the process."""

import pytest

from mabert.machine.processes import described
from mabert_lab.bench import worker
from mabert_lab.bench.worker import Answers, CellError, Worker, status_of


class Local(Worker):
    """A worker without a process."""

    def __init__(self, name):
        super().__init__(name)
        self.answers = Answers(name)

    def ask(self, question, *arguments, limit=0.0):
        try:
            return getattr(self.answers, question)(*arguments)
        except Exception as error:
            raise CellError(status_of(error), described(error)[:200]) from error

    def release(self):
        self.answers.task = None


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(worker, "Worker", Local)
    monkeypatch.setattr(worker, "limit_memory", lambda allowed: None)
    monkeypatch.setattr(Answers, "release", lambda answers: None)  # which takes long where much is imported
