"""Runs a model in its own process, so that one that takes too long or too much memory ends alone."""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import platform
import signal
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from mabert.machine.memory import field_of, is_out_of_memory, memory_left
from mabert.machine.processes import LARGEST_KEPT, context, described
from mabert_lab.bench.engines import contender
from mabert_lab.bench.operators import refuse_unless_correct
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.tasks import Sample, make


def kept() -> int:
    """Returns the bytes of freed memory that the C library keeps, also its threshold for mapping blocks separately."""
    name, version = platform.libc_ver()
    # The oldest glibc seen to keep blocks of any size; older ones may silently refuse more than 32 MiB.
    recent = name == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 36)
    return LARGEST_KEPT[0] if recent else LARGEST_KEPT[1]


ALLOCATION = {
    "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={kept()}"
    f":glibc.malloc.trim_threshold={kept()}"
}
"""Makes the C library request huge pages and keep freed memory. Otherwise a rival's new score matrices in every layer
are touched page by page: DeBERTa took 4.1 instead of 2.4 s for 1,024 tokens. Without keeping freed memory, BERT took 7
% longer for 4,096 tokens in bf16 on a processor with AMX, and MaBERT 3 to 6 %."""

SHARE = 0.85  # share of the free memory at the start of a cell that its model may take
STATUS = "/proc/self/status"
START = 300.0  # maximum seconds to start a process, or to build a model in it, not counting its first call
ENDING = 10.0  # seconds that an idle process may take to end


def free_memory() -> int | None:
    """Returns the bytes that one model may take now; None if the free memory is unknown."""
    left = memory_left()
    return None if left is None else int(SHARE * left)


def limit_memory(allowed: int | None) -> None:
    """Limits this process to `allowed` more bytes, so that too large a model fails alone; None sets no limit."""
    if allowed is None or sys.platform != "linux":
        return
    import resource  # not on every system

    bound = field_of(STATUS, "VmData") + allowed
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (bound if hard < 0 else min(bound, hard), hard))


def trim() -> None:
    """Returns freed memory to the system if the C library supports it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> bool:
    """Returns freed memory to the system and resets this process's peak size; False if that is not supported."""
    trim()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


class CellError(Exception):
    """A cell without a number: status, reason in one line, and the lower bound of a call that took too long."""

    def __init__(self, status: str, reason: str, seconds: float | None = None) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason, self.seconds = status, reason, seconds


class Worker:
    """The parent's side of the process of a contender, see `mabert_lab.bench.engines.contender`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: Any = None
        self._pipe: Connection | None = None

    def ask(self, question: str, *arguments: Any, limit: float = START) -> Any:
        """Calls a method of `Answers` in the process, begun if need be; CellError for its error or after `limit` s."""
        pipe = self._pipe or self._start()
        try:
            pipe.send((question, arguments))
            if not pipe.poll(limit):
                self._kill()
                seconds = limit if question == "call" else None
                raise CellError("too slow", f"one {question} took more than {limit:g} s", seconds)
            status, answer = pipe.recv()
        except (EOFError, ConnectionError):
            raise self._ended() from None
        if status != "ok":
            raise CellError(status, answer)
        return answer

    def release(self) -> None:
        """Drops the model."""
        if self._process is not None:
            with contextlib.suppress(CellError):
                self.ask("release")

    def close(self) -> None:
        """Ends the process; an idle one exits by itself and releases what it holds."""
        if self._process is not None:
            if self._pipe is not None:
                self._pipe.close()
            self._process.join(ENDING)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None

    def _start(self) -> Connection:
        here, there = multiprocessing.Pipe()
        process = context(__name__, **ALLOCATION).Process
        self._process = process(target=serve, args=(there, self.name), daemon=True, name=f"bench-{self.name}")
        self._process.start()
        there.close()
        self._pipe = here
        return here

    def _ended(self) -> CellError:
        self._process.join()
        code = self._process.exitcode
        self._kill()
        # The system kills processes that take too much memory.
        return CellError("out of memory" if code == -9 else "failed", f"the process ended with exit code {code}")


@contextlib.contextmanager
def workers_of(contenders: Mapping[str, str], device: str) -> Iterator[dict[str, Worker]]:
    """Yields a worker per side until the block ends. RuntimeError if an operator is wrong on the GPU."""
    if device == "cuda":
        refuse_unless_correct(device)
    with contextlib.ExitStack() as stack:
        yield {side: stack.enter_context(contextlib.closing(Worker(name))) for side, name in contenders.items()}


def serve(pipe: Connection, name: str) -> None:
    """Answers questions in the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    logging.set_verbosity_error()
    gc.freeze()  # collections after each model need not scan imported objects
    answers = Answers(name)
    while True:
        try:
            question, arguments = pipe.recv()
        except (EOFError, ConnectionError):  # the latter if an answer was never read
            return
        try:
            answer = ("ok", getattr(answers, question)(*arguments))
        except Exception as error:
            answer = (status_of(error), described(error)[:200])
            with contextlib.suppress(Exception):
                answers.release()
        try:
            pipe.send(answer)
        except ConnectionError:  # the parent has ended
            return
        if answer[0] == "failed" and gpu_is_lost():
            return  # the next question starts a process that has a GPU


def status_of(error: Exception) -> str:
    """Returns ``out of memory`` or ``failed``."""
    return "out of memory" if is_out_of_memory(error) else "failed"


def gpu_is_lost() -> bool:
    """Checks whether the GPU answers with an error to everything, as it does to a process after an illegal access."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError as answer:
        return not is_out_of_memory(answer)
    return False


class Answers:
    """The questions that a process answers, see `Worker`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.task: Any = None

    def prepare(self, cell: Cell) -> dict[str, Any]:
        """Builds the model for a cell; returns its `setting`, and the rows of the whole and of a call."""
        self.release()
        if cell.device == "cpu":  # a GPU's driver reserves more addresses than there is memory
            limit_memory(free_memory())
        self.task = make(self.name, cell)
        if cell.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        return {name: getattr(self.task, name) for name in ("setting", "batch", "micro_batch")}

    def call(self) -> Sample:
        return self.task.sample()

    def bound(self, allowed: int | None) -> None:
        limit_memory(allowed)

    def memory(self) -> dict[str, int | None]:
        """Returns bytes: torch's `peak`, `weights`, and `resident`, the process's growth in a pass, or None."""
        peak, grown = self.task.peak(), None
        if self.task.device == "cpu" and forget_peak():
            before = field_of(STATUS, "VmRSS")
            self.task.run()
            grown = field_of(STATUS, "VmHWM") - before
        return {"peak": peak, "weights": self.task.weights(), "resident": grown}

    def peak(self) -> int:
        """Returns torch's peak bytes on the GPU since the model was built."""
        return torch.cuda.max_memory_allocated()

    def variables(self) -> dict[str, str | None]:
        """Returns this process's values of the variables in `ALLOCATION`."""
        return {name: os.environ.get(name) for name in ALLOCATION}

    def parameters(self) -> int:
        """Counts the parameters of the model as a classifier of two labels."""
        from mabert.opening.uses import build

        family, _, own = contender(self.name)
        with torch.device("meta"):
            return build("classifier", own or family.base_config()).num_parameters()

    def release(self) -> None:
        self.task = None
        gc.collect()
        trim()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
