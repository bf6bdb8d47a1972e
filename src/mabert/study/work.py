"""One cell in a process of its own: whatever becomes of it, the runner and the other cells go on.

The process holds the cell's lock, so that no other runs the same cell, however many runners there are and however they
end; when the runner that began it ends, it saves what it has and stops.

`python -m mabert.study.work ROOT CELL begun|new [SEED ...]` does the work of a cell as one of torchrun's processes.
"""

import contextlib
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from filelock import Timeout
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mabert.data.corpus import identities
from mabert.data.tokenizer import fingerprint, load_tokenizer
from mabert.processes import SAVING, end_with_parent, keep_freed_memory, variables
from mabert.reading import read_json
from mabert.study.cells import CellFiles
from mabert.study.tasks import StudyTask
from mabert.train.fields import build
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe, PretrainRecipe, TrainingRecipe
from mabert.train.run import grid_file
from mabert.writing import write_text

BUSY = 75
"""Exit code where another process runs the cell (EX_TEMPFAIL)."""

STOPPED = 130
"""Exit code after a stop that was asked for."""

BEAT = 1.0
"""Seconds between two notes of how far a run is."""


class Beat(TrainerCallback):
    """Notes how far a run is.

    Args:
        file: Where.
        runs: Trainings that come one after the other.
    """

    def __init__(self, file: Path, runs: int = 1) -> None:
        self.file, self.runs = file, runs
        self.before, self.last = 0, 0.0
        self.began: tuple[float, int] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the clock, at the step of the checkpoint."""
        if self.began is None:
            self.began = (time.time(), state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Writes now and then."""
        now = time.time()
        if not state.is_world_process_zero or now - self.last < BEAT or self.began is None:
            return
        self.last = now
        since, first = self.began
        step = self.before + state.global_step
        rate = (step - first) / max(now - since, 1e-9)
        note = {"step": step, "steps": self.runs * state.max_steps, "rate": rate, "time": now, "pid": os.getpid()}
        with contextlib.suppress(OSError):  # a full disk is a matter for what must be written
            write_text(self.file, json.dumps(note) + "\n", lasting=False)  # a step must not wait for the disk

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts on in the next training."""
        self.before += state.global_step


def do(files: CellFiles, seeds: Sequence[int], begun: bool) -> None:
    """Does the work of a cell, from where it was left if it has begun."""
    order = read_json(files.order)
    if order["content"]["kind"] == "pretraining":
        do_pretraining(files, order, begun)
    else:
        do_finetuning(files, order, seeds, begun)


def do_pretraining(files: CellFiles, order: dict[str, Any], begun: bool) -> None:
    """Does the work of a pretraining's cell."""
    recipe, planned = build(PretrainRecipe, order["recipe"], ""), order["content"]
    check_unchanged("the text", planned["text"], identities(recipe.data.readable()))
    check_unchanged("the vocabulary", planned["vocabulary"], fingerprint(load_tokenizer(str(recipe.tokenizer))))
    recipe.training.micro_batch_size = micro_batch(recipe.training, int(os.environ.get("WORLD_SIZE", "1")))
    pretrain(recipe, files.run, resume=begun, vouched=True, callbacks=[Beat(files.progress)])
    if int(os.environ.get("RANK", "0")) == 0:
        leave_no_checkpoints(files)


def micro_batch(training: TrainingRecipe, processes: int) -> int:
    """Windows at once in each of several processes: those asked for, or its share of the batch where that is less.

    Raises:
        ValueError: A step is no whole number of them over all processes.
    """
    size = min(training.micro_batch_size, max(1, training.batch_size // processes))
    if training.batch_size % (size * processes):
        raise ValueError(
            f"training.batch_size is {training.batch_size}, not a multiple of {processes} process(es) times a "
            f"micro-batch of {size}"
        )
    return size


def leave_no_checkpoints(files: CellFiles) -> None:
    """Removes those of a pretraining that is finished: the model is there, and nothing is left to resume."""
    for checkpoint in files.run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)


def do_finetuning(files: CellFiles, order: dict[str, Any], seeds: Sequence[int], begun: bool) -> None:
    """Does the work of a fine-tuning's cell under some seeds."""
    recipe = build(FinetuneRecipe, order["recipe"], "")
    start, place = order["start"]
    loaded = StudyTask.of(order["task"]["name"], order["task"]).load(order["data"])
    check_unchanged(f"the data of {loaded.title}", order["content"]["data"], loaded.digest())
    runs = sum(files.result(seed) is None for seed in seeds)
    if len(recipe.learning_rates) > 1:
        runs += sum(not grid_file(files.run, rate).is_file() for rate in recipe.learning_rates)
    finetune(
        CellFiles(files.root, start).run / place,
        loaded.task,
        loaded.splits,
        files.run,
        recipe,
        seeds,
        source={"data": order["data"]},
        resume=begun,
        vouched=True,
        keep_models=order["keeps"],
        callbacks=[Beat(files.progress, runs)],
    )


def check_unchanged(what: str, planned: Any, found: Any) -> None:
    """Refuses to do a cell's work with other things than those that it is named by.

    Raises:
        ValueError: They are not what they were when the study was planned.
    """
    if planned != found:
        raise ValueError(f"{what} changed since this start of the study; start it again for cells of what is there now")


def serve(root: str, name: str, order: dict[str, Any], seeds: tuple[int, ...], processes: int) -> None:
    """A cell's process: takes the lock, does the work, says why where it cannot; ends with an exit code."""
    files = CellFiles(Path(root), name)
    os.setpgrp()  # Ctrl-C is for the runner, which passes it on as SIGTERM
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, Once(signal.SIGINT))
    keep_freed_memory()
    lock = files.claim()
    try:
        lock.acquire(timeout=0)
    except Timeout:
        sys.exit(BUSY)
    except OSError as error:
        record_failure(files, reason_of(error))
        sys.exit(1)
    if files.finished(seeds):  # by another since the runner looked
        sys.exit(0)
    stop_with(multiprocessing.parent_process())
    try:
        begin(files, order)
    except OSError as error:
        record_failure(files, reason_of(error))
        sys.exit(1)
    code = attempt(files, seeds, processes)
    files.progress.unlink(missing_ok=True)
    lock.release()
    sys.exit(code)


def begin(files: CellFiles, order: dict[str, Any]) -> None:
    """Writes what is to be done, and lets the log have what is printed from here on."""
    for stale in (files.failure, files.progress):
        stale.unlink(missing_ok=True)
    write_text(files.order, json.dumps(order, indent=1) + "\n")
    with files.log.open("a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


class Once:
    """Handles a signal by raising another, the first time that it comes.

    Whatever ends a job may signal each of its processes, and the runner passes the signal on as well; what is saving
    must not be interrupted again.

    Args:
        signal: The other.
    """

    def __init__(self, signal: int) -> None:
        self.signal: int | None = signal

    def __call__(self, number: int, frame: FrameType | None) -> None:
        wanted, self.signal = self.signal, None
        if wanted is not None:
            signal.raise_signal(wanted)


def attempt(files: CellFiles, seeds: Sequence[int], processes: int) -> int:
    """Does the work, and records a failure; returns the exit code."""
    try:
        with alone(files, processes) as group:
            if files.finished(seeds):
                return 0
            if group is not None and processes > 1:
                spread_out(files, seeds, processes, group)
            else:
                do(files, seeds, files.begun)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        traceback.print_exc()
        if not files.failure.is_file():  # one of torchrun's processes may have said why already
            record_failure(files, reason_of(error))
        return 1
    return 0


def reason_of(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextlib.contextmanager
def alone(files: CellFiles, processes: int) -> Iterator[TextIO | None]:
    """Waits until the processes of an attempt that was killed have saved and ended, where a cell had several.

    Yields:
        What several processes have to hold until they end; None where neither this attempt nor one before has several.
    """
    if processes == 1 and not files.group.exists():
        yield None
        return
    with files.group.open("w", encoding="utf-8") as group:
        fcntl.flock(group, fcntl.LOCK_EX)
        yield group


def spread_out(files: CellFiles, seeds: Sequence[int], processes: int, group: TextIO) -> None:
    """Does the work of a cell in several processes, one a GPU, which end with this one and hold `group` until then.

    Raises:
        RuntimeError: One of them failed.
        KeyboardInterrupt: They were asked to stop, and have.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    work = ["-m", __name__, str(files.root), files.name, "begun" if files.begun else "new", *map(str, seeds)]
    with variables({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SAVING)}):
        started = subprocess.Popen([*launcher, *work], pass_fds=[group.fileno()], preexec_fn=end_with_parent)
    try:
        code = started.wait()
    except KeyboardInterrupt:
        started.send_signal(signal.SIGINT)
        started.wait()
        raise
    if code:
        raise RuntimeError(f"torchrun ended with exit code {code}; see {files.log.name}")


def record_failure(files: CellFiles, reason: str) -> None:
    """Leaves the reason beside the cell; where the disk is full, only the log has it."""
    try:
        write_text(files.failure, json.dumps({"reason": reason[:500], "time": time.time()}) + "\n")
    except OSError as error:
        sys.stderr.write(f"cannot record that: {error}\n")


def stop_with(parent: Any) -> None:
    """Interrupts this process when its parent has ended."""
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(root: str, name: str, state: str, *seeds: str) -> None:
    """One of torchrun's processes; the first to fail says why."""
    files = CellFiles(Path(root), name)
    keep_freed_memory()
    try:
        do(files, [int(seed) for seed in seeds], state == "begun")
    except Exception as error:
        if not files.failure.is_file():  # the first to fail has the cause; the others lose it as a partner
            record_failure(files, reason_of(error))
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
