"""One cell in a process of its own: whatever becomes of it, the runner and the other cells go on.

The process holds the cell's lock, so that no other runs the same cell, however many runners there are and however they
end; when the runner that began it ends, it saves what it has and stops.

`python -m mabert.study.work ROOT CELL begun|new [SEED ...]` does the work of a cell as one of torchrun's processes.
"""

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mabert.study.cells import CellFiles
from mabert.study.tasks import StudyTask
from mabert.train.classifier import FinetuneRecipe
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import PretrainRecipe, build
from mabert.train.run import write_text

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
        write_text(self.file, json.dumps(note) + "\n")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts on in the next training."""
        self.before += state.global_step


def do(files: CellFiles, seeds: Sequence[int], begun: bool) -> None:
    """Does the work of a cell, from where it was left if it has begun."""
    order = json.loads(files.order.read_text(encoding="utf-8"))
    if "task" not in order:
        recipe = build(PretrainRecipe, order["recipe"], "")
        pretrain(recipe, files.run, resume=begun, callbacks=[Beat(files.progress)])
        if int(os.environ.get("RANK", "0")) == 0:
            for checkpoint in files.run.glob("checkpoint-*"):  # the model is there, and nothing is left to resume
                shutil.rmtree(checkpoint)
        return
    recipe = build(FinetuneRecipe, order["recipe"], "")
    start, place = order["start"]
    loaded = StudyTask.of(order["task"]["name"], order["task"]).load(order["data"])
    waiting = [seed for seed in seeds if files.result(seed) is None]
    finetune(
        CellFiles(files.root, start).run / place,
        loaded.task,
        loaded.splits,
        files.run,
        recipe,
        seeds,
        source={"data": order["data"]},
        resume=begun,
        keep_models=order["keeps"],
        callbacks=[Beat(files.progress, len(waiting))],
    )


def serve(root: str, name: str, seeds: tuple[int, ...], processes: int) -> None:
    """A cell's process: takes the lock, does the work, says why where it cannot; ends with an exit code."""
    files = CellFiles(Path(root), name)
    os.setpgrp()  # Ctrl-C is for the runner, which passes it on once
    lock = FileLock(files.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        os._exit(BUSY)
    stop_with(multiprocessing.parent_process())
    with files.log.open("a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    code = attempt(files, seeds, processes)
    files.progress.unlink(missing_ok=True)
    sys.stdout.flush()
    lock.release()
    # Threads of a data loader or a watcher must not keep the process.
    os._exit(code)


def attempt(files: CellFiles, seeds: Sequence[int], processes: int) -> int:
    """Does the work, and records a failure; returns the exit code."""
    try:
        if processes > 1:
            spread_out(files, seeds, processes)
        else:
            do(files, seeds, files.begun)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        traceback.print_exc()
        record_failure(files, f"{type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    files.failure.unlink(missing_ok=True)
    return 0


def spread_out(files: CellFiles, seeds: Sequence[int], processes: int) -> None:
    """Does the work of a cell in several processes, one a GPU.

    Raises:
        RuntimeError: One of them failed.
        KeyboardInterrupt: They were asked to stop, and have.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    work = ["-m", __name__, str(files.root), files.name, "begun" if files.begun else "new", *map(str, seeds)]
    started = subprocess.Popen([*launcher, *work])
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
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    root, name, state, *seeds = sys.argv[1:]
    do(CellFiles(Path(root), name), [int(seed) for seed in seeds], state == "begun")
