"""One cell in a process of its own: whatever becomes of it, the runner and the other cells go on.

The process holds the cell's lock, so that no other runs the same cell, however many runners there are and however they
end; when the runner that began it ends, it saves what it has and stops.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import Timeout
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mabert.conversion.run import ConversionRecipe, convert
from mabert.conversion.teacher import Teacher, weights_hash
from mabert.data.corpus import identities
from mabert.data.tokenizer import fingerprint, load_tokenizer
from mabert.files.places import place_of
from mabert.files.reading import read_json
from mabert.files.writing import write_text
from mabert.machine.processes import keep_freed_memory
from mabert.train.fields import build
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe, PretrainRecipe
from mabert.train.run import grid_file
from mabert_lab.study.cells import CellFiles
from mabert_lab.study.conversions import keep, text_of
from mabert_lab.study.tasks import StudyTask

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


def do(files: CellFiles, seeds: Sequence[int]) -> None:
    """Does the work of a cell, from where it was left if it has begun."""
    order, begun = read_json(files.order), files.begun
    if order["content"]["kind"] == "pretraining":
        do_pretraining(files, order, begun)
    elif order["content"]["kind"] == "conversion":
        do_conversion(files, order, begun)
    else:
        do_finetuning(files, order, seeds, begun)


def do_pretraining(files: CellFiles, order: dict[str, Any], begun: bool) -> None:
    """Does the work of a pretraining's cell."""
    recipe, planned = build(PretrainRecipe, order["recipe"], ""), order["content"]
    check_unchanged("the text", planned["text"], identities(recipe.data.readable()))
    check_unchanged("the vocabulary", planned["vocabulary"], fingerprint(load_tokenizer(str(recipe.tokenizer))))
    recipe.training.micro_batch_size = min(recipe.training.micro_batch_size, recipe.training.batch_size)
    pretrain(recipe, files.run, resume=begun, trusted=True, callbacks=[Beat(files.progress)])
    leave_no_checkpoints(files)


def do_conversion(files: CellFiles, order: dict[str, Any], begun: bool) -> None:
    """Does the work of a conversion's cell."""
    recipe, planned = build(ConversionRecipe, order["recipe"], ""), order["content"]
    known = Teacher.at(place_of(order["teacher"]))
    check_unchanged("the teacher", planned["teacher"], weights_hash(known.copy))
    check_unchanged("the vocabulary", planned["vocabulary"], fingerprint(known.tokenizer))
    if "text" not in planned:  # nothing is learnt
        keep(known, recipe, files.run, begun)
        return
    texts, text_column = order["texts"], order["text_column"]
    check_unchanged("the text", planned["text"], text_of(texts, text_column))
    convert(order["teacher"], texts, files.run, resume=begun, text_column=text_column, **order["recipe"])


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
    rates = recipe.learning_rates or []
    if len(rates) > 1:
        runs += sum(not grid_file(files.run, rate).is_file() for rate in rates)
    finetune(
        CellFiles(files.root, start).run / place,
        loaded.task,
        loaded.splits,
        files.run,
        recipe,
        seeds,
        source={"data": order["data"]},
        resume=begun,
        trusted=True,
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


def serve(root: str, name: str, order: dict[str, Any], seeds: tuple[int, ...]) -> None:
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
    code = attempt(files, seeds)
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


def attempt(files: CellFiles, seeds: Sequence[int]) -> int:
    """Does the work, and records a failure; returns the exit code."""
    try:
        do(files, seeds)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        traceback.print_exc()
        record_failure(files, reason_of(error))
        return 1
    return 0


def reason_of(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


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
