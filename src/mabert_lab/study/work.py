"""Runs one cell in its own process, so that its failure does not affect the runner and the other cells.

The process holds the cell's lock, so that no other runs the same cell, however many runners there are and however they
end. When its runner ends, the process saves its state and stops.
"""

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
from typing import Any

from filelock import Timeout

from mabert.conversion.convert import convert
from mabert.conversion.recipe import ConversionRecipe
from mabert.conversion.teacher import Teacher, weights_hash
from mabert.data.corpus import identities
from mabert.data.tokenizer import fingerprint, load_tokenizer
from mabert.files.reading import read_json
from mabert.files.writing import write_json
from mabert.machine.processes import described, interrupting_once, keep_freed_memory
from mabert.schema.check import check
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe, PretrainRecipe
from mabert_lab.study.cells import CellFiles
from mabert_lab.study.conversions import keep, text_of
from mabert_lab.study.tasks import StudyTask

BUSY = 75  # exit code if another process runs the cell (EX_TEMPFAIL)
STOPPED = 130  # exit code after a requested stop


def do_pretraining(files: CellFiles, order: dict[str, Any]) -> None:
    recipe, planned = check(PretrainRecipe, order["recipe"]), order["content"]
    check_unchanged("the text", planned["text"], identities(recipe.data.readable()))
    check_unchanged("the vocabulary", planned["vocabulary"], fingerprint(load_tokenizer(str(recipe.tokenizer))))
    recipe.training.micro_batch_size = min(recipe.training.micro_batch_size, recipe.training.batch_size)
    pretrain(recipe, files.run, resume=files.begun, trusted=True)
    remove_checkpoints(files)


def do_conversion(files: CellFiles, order: dict[str, Any]) -> None:
    recipe, planned = check(ConversionRecipe, order["recipe"]), order["content"]
    known = Teacher.of(order["teacher"])
    check_unchanged("the teacher", planned["teacher"], weights_hash(known.copy))
    check_unchanged("the vocabulary", planned["vocabulary"], fingerprint(known.opened.tokenizer))
    if "text" not in planned:  # nothing is trained
        keep(known, recipe, files.run, files.begun)
        return
    texts, text_column = order["texts"], order["text_column"]
    check_unchanged("the text", planned["text"], text_of(texts, text_column))
    convert(order["teacher"], texts, files.run, resume=files.begun, text_column=text_column, **order["recipe"])


def remove_checkpoints(files: CellFiles) -> None:
    """Removes the checkpoints of a finished pretraining, which has a model and nothing to resume."""
    for checkpoint in files.run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)


def do_finetuning(files: CellFiles, order: dict[str, Any], seeds: Sequence[int]) -> None:
    recipe = check(FinetuneRecipe, order["recipe"])
    loaded = StudyTask.of(order["task"]["name"], order["task"]).load(order["data"])
    check_unchanged(f"the data of {loaded.title}", order["content"]["data"], loaded.digest())
    start, source = CellFiles(files.root, order["start"]).run, {"data": order["data"]}
    work = loaded.task, loaded.splits, files.run, recipe, seeds
    finetune(start, *work, source=source, resume=files.begun, trusted=True, keep_models=False)


def check_unchanged(what: str, planned: Any, found: Any) -> None:
    """Refuses to run a cell on data that differs from what its name stands for."""
    if planned != found:
        raise ValueError(f"{what} changed since this start of the study; start it again for cells of what is there now")


def serve(root: str, name: str, order: dict[str, Any], seeds: tuple[int, ...]) -> None:
    """Main function of a cell's process: takes the lock, does the work or records why not, and exits with a code."""
    files = CellFiles(Path(root), name)
    os.setpgrp()  # Ctrl-C goes to the runner, which passes it on as SIGTERM
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupting_once())  # the runner passes on what a scheduler sent to both
    keep_freed_memory()
    lock = files.claim()
    try:
        lock.acquire(timeout=0)
        if files.finished(seeds):  # by another runner meanwhile: not this one's to tell
            sys.exit(BUSY)
        stop_with(multiprocessing.parent_process())
        files.failure.unlink(missing_ok=True)
        write_json(files.order, order, indent=1)
        with files.log.open("a", encoding="utf-8") as log:  # takes all further output
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    except Timeout:
        sys.exit(BUSY)
    except OSError as error:
        record_failure(files, described(error))
        sys.exit(1)
    code = attempt(files, seeds)
    lock.release()
    sys.exit(code)


def attempt(files: CellFiles, seeds: Sequence[int]) -> int:
    """Does the work of a cell, resuming it if it has begun, and records any failure; returns the exit code."""
    try:
        order = read_json(files.order)
        kind = order["content"]["kind"]
        if kind == "pretraining":
            do_pretraining(files, order)
        elif kind == "conversion":
            do_conversion(files, order)
        else:
            do_finetuning(files, order, seeds)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        traceback.print_exc()
        record_failure(files, described(error))
        return 1
    return 0


def record_failure(files: CellFiles, reason: str) -> None:
    """Writes the reason of a failure; if the disk is full, only the log has it."""
    try:
        write_json(files.failure, {"reason": reason[:500], "time": time.time()})
    except OSError as error:
        sys.stderr.write(f"cannot record that: {error}\n")


def stop_with(parent: Any) -> None:
    """Interrupts this process when its parent ends."""

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
