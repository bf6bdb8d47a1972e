"""Fine-tuning on a task: a grid of learning rates, several seeds, one record."""

import contextlib
import logging
import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from mabert.data.encode import EncodingSettings
from mabert.data.glue import GlueTask
from mabert.data.tasks import Rows, Task, column
from mabert.files.reading import read_json, read_json_if_there
from mabert.files.tables import tsv_line
from mabert.files.writing import filling, write_json, write_text
from mabert.machine.environment import EXTRAS, check_installed
from mabert.machine.memory import size_of
from mabert.opening.opened import Model
from mabert.train.finetune_once import finetune_once
from mabert.train.finetune_run import FREE, FinetuneRun, resolve
from mabert.train.folder import RESULT, RunFolder, grid_file, write_record
from mabert.train.recipe import FinetuneRecipe
from mabert.train.trainer import TrainingDivergedError

logger = logging.getLogger(__name__)


def finetune(
    model: Model,
    task: Task,
    splits: Mapping[str, Rows],
    output: str | Path,
    recipe: FinetuneRecipe,
    seeds: Sequence[int] = (0,),
    *,
    source: dict[str, Any] | None = None,
    resume: bool = False,
    trusted: bool = False,
    progress: bool = True,
    keep_models: bool = True,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Trains one model a seed and measures each on the validation data.

    Under torchrun the processes share each step's batch, and the first one writes.

    Args:
        model: Folder or name of a pretrained model, or what `open_model` returns.
        task: From `load_glue` (by `glue_task`) or `load_own`.
        splits: The task's examples, from the same loader.
        output: Output folder. Each `seed-N` holds a model, its `result.json`, predictions and the leaderboard's file;
            the top `result.json` covers all finished seeds, including those of earlier starts. `history` and
            `tensorboard` hold each training's curves.
        recipe: How to train.
        seeds: Seeds of the head's initialisation, order and dropout. The first seed of a new folder chooses among
            several learning rates, also for seeds that are added later.
        source: Origin of the examples, for the record.
        resume: Whether to resume in a folder. Finished seeds are kept; an unfinished one continues from its last
            checkpoint, and reaches the same weights if the number of processes is the same.
        trusted: Whether the caller knows that `output` holds this run, as a study does by a cell's name. Then the same
            model and examples may lie at other paths.
        progress: Whether to show progress.
        keep_models: Whether to save the models; results and predictions are always saved.
        callbacks: Additional transformers callbacks.

    Returns:
        The content of `result.json`; an empty dict in all processes but the first.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If model, data and recipe do not fit, the folder holds another run or seeds trained at another
            learning rate, or a package of the extra `train` is missing.
        MemoryError: If a batch does not fit the memory; finished seeds are kept.
        KeyboardInterrupt: After Ctrl-C, once the current training is saved.
    """
    check_installed(*EXTRAS["train"])
    with RunFolder(output, resume, free=FREE, trusted=trusted) as folder:
        run = resolve(model, task, splits, folder, recipe, seeds, source=source, progress=progress, callbacks=callbacks)
        try:
            rate, scores = best_rate(run)
            results = run_seeds(run, rate, keep_models)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(str(stop) or "finished seeds are kept; go on with --resume") from stop
        return write_outcome(run, rate, scores, results) if run.processes.is_main_process else {}


def write_outcome(
    run: FinetuneRun, rate: float, scores: dict[str, float | None], results: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Writes `result.json` over all seeds at one learning rate, including those of earlier starts."""
    before = map(read_json, run.folder.path.glob(f"seed-*/{RESULT}"))
    found = {each["seed"]: each for each in (*before, *results) if each["learning_rate"] == rate}
    whole, metric = [found[seed] for seed in sorted(found)], run.kind.task.main_metric
    outcome = {"learning_rate": rate, "tried": scores, "main_metric": metric, "scores": spread(run, whole)}
    grid = [read_json_if_there(grid_file(run.folder.path, each)) or {} for each in run.recipe.learning_rates or []]
    seconds = sum(each.get("seconds", 0.0) for each in [*grid, *whole])  # over all starts
    run.log_long_texts()
    return run.folder.write_result(outcome, seconds, seeds=[each["seed"] for each in whole])


def best_rate(run: FinetuneRun) -> tuple[float, dict[str, float | None]]:
    """Returns the learning rate with the best main metric under one seed, and every rate's score, which is None if
    training diverged or the metric is undefined."""
    seed, tried = run.chooser, run.tried
    if len(tried) == 1:
        return next(iter(tried)), {}
    # Scores under another seed are not comparable.
    found = {
        rate: before if before is not None and before["seed"] == seed else try_rate(run, rate, seed)
        for rate, before in tried.items()
    }
    # An undefined score ranks last; a rate that diverged gives no model.
    whole = {
        rate: -math.inf if each["score"] is None else each["score"]
        for rate, each in found.items()
        if each.get("diverged") is None
    }
    if not whole:
        causes = "; ".join(f"at {rate:g} {each['diverged']}" for rate, each in found.items())
        raise TrainingDivergedError(f"training diverged at every learning rate: {causes}")
    best = max(whole, key=whole.__getitem__)
    for rate in found.keys() - {best}:  # left if an earlier start was killed before it removed them
        leave_no_checkpoints(run, rate, seed)
    return best, {f"{rate:g}": each["score"] for rate, each in found.items()}


def try_rate(run: FinetuneRun, rate: float, seed: int) -> dict[str, Any]:
    """Trains at one learning rate of the grid; writes and returns its record."""
    began, spent, score, diverged = time.time(), 0.0, None, None
    try:
        trained = finetune_once(run, rate, seed)
        score, spent = run.scores(trained.model)[run.kind.task.main_metric], trained.stopwatch.before
    except TrainingDivergedError as error:
        if run.processes.num_processes > 1:  # the others wait for this one
            raise
        diverged = str(error)
    record = {"learning_rate": rate, "seed": seed, "score": score, "diverged": diverged}
    record["seconds"] = round(spent + time.time() - began, 1)
    if run.processes.is_main_process:
        grid_file(run.folder.path, rate).parent.mkdir(exist_ok=True)
        write_json(grid_file(run.folder.path, rate), record)
    leave_no_checkpoints(run, rate, seed)
    return record


def run_seeds(run: FinetuneRun, rate: float, keep_models: bool) -> list[dict[str, Any]]:
    """Returns the result of every seed, training those that are not done. Reports diverged seeds after the last one;
    ValueError if a finished seed was trained at another learning rate."""
    for seed, before in run.done.items():
        if before is None:
            continue
        if before["learning_rate"] != rate:
            there = f"{run.folder.path / f'seed-{seed}'} was trained at a learning rate of {before['learning_rate']:g}"
            raise ValueError(f"{there}, the grid chose {rate:g}; use another folder for one of them")
        leave_no_checkpoints(run, rate, seed)  # left if an earlier start was killed before it removed them
    results, diverged = [], {}
    for seed, before in run.done.items():
        try:
            results.append(before or run_seed(run, rate, seed, keep_models))
        except TrainingDivergedError as error:
            if run.processes.num_processes > 1:  # the others wait for this one
                raise
            diverged[seed] = str(error)
            leave_no_checkpoints(run, rate, seed)
    if diverged:
        causes = "; ".join(f"under seed {seed} {cause}" for seed, cause in diverged.items())
        kept = "; the other seeds are finished and kept; leave out those that diverged" if results else ""
        raise TrainingDivergedError(causes + kept)
    return results


def run_seed(run: FinetuneRun, rate: float, seed: int, keep_model: bool) -> dict[str, Any]:
    """Trains under one seed, saves the model if wanted, and measures it."""
    began, place, metrics = time.time(), run.folder.path / f"seed-{seed}", {}
    trained = finetune_once(run, rate, seed)
    model, recipe, writes = trained.model, run.recipe, run.processes.is_main_process
    if writes and keep_model:
        with filling(place, size_of(model), "make room and train it again by --resume") as staging:
            model.save_pretrained(staging)
            run.model.tokenizer.save_pretrained(staging)
            EncodingSettings(recipe.max_length, recipe.truncate, run.examples["train"].pairs).save(staging)
    # Each process computes its part.
    found = {split: run.predictions(model, split) for split in run.splits if split != "train"}
    if not writes:
        return {}
    place.mkdir(parents=True, exist_ok=True)
    for split, predictions in found.items():
        if split in run.labels:
            metrics[split] = run.kind.scores(predictions, run.labels[split])
            warn_of_a_constant(run, split, metrics[split], seed, rate)
        write_predictions(place, run, split, predictions)
    about = {"seed": seed, "learning_rate": rate, "metrics": metrics, "history": trained.history}
    result = write_record(place / RESULT, about, trained.stopwatch.before + time.time() - began)
    leave_no_checkpoints(run, rate, seed)
    return result


def warn_of_a_constant(
    run: FinetuneRun, split: str, scores: Mapping[str, float | None], seed: int, rate: float
) -> None:
    """Warns if a model's score on a split is not above that of one answer to all of its examples."""
    kind, labels = run.kind, run.labels[split]
    metric = kind.task.main_metric
    fixed = {text: kind.scores(answers, labels)[metric] or 0.0 for text, answers in kind.constants(labels).items()}
    text, best = max(fixed.items(), key=lambda item: item[1], default=("", -math.inf))
    if (scores[metric] or 0.0) <= best:
        logger.warning(
            "seed %d: %s on %s is %.4f, and answering %r to all of its %d examples gives %.4f; a higher "
            "--learning-rate (now %g) or more --epochs may help",
            *(seed, metric, split, scores[metric] or 0.0, text, len(labels), best, rate),
        )


def leave_no_checkpoints(run: FinetuneRun, rate: float, seed: int) -> None:
    """Removes the checkpoints of a training that has a result or diverged."""
    if run.processes.is_main_process:
        place = run.checkpoints(rate, seed)
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds others' checkpoints, or does not exist
            place.parent.rmdir()


def write_predictions(folder: Path, run: FinetuneRun, split: str, predictions: Sequence[Any]) -> None:
    """Writes a table of predictions, with the truth if known; for GLUE's test splits in the leaderboard's format."""
    task, name = run.kind.task, f"{split}.tsv"
    columns = {"index": column(run.splits[split], "index"), "prediction": map(run.kind.written, predictions)}
    if split in run.labels:
        columns["label"] = map(run.kind.written, run.labels[split])
    elif isinstance(task, GlueTask):
        name, columns["prediction"] = task.submissions[split], task.submitted(predictions)
    lines = map(tsv_line, [list(columns), *zip(*columns.values(), strict=True)])
    write_text(folder / name, "\n".join(lines) + "\n")


def spread(run: FinetuneRun, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns mean, standard deviation (over seeds, n - 1) and values of every metric on every validation split.

    Metrics that seeds of an earlier version lack are left out. An undefined metric is None.
    """
    summary: dict[str, Any] = {split: {} for split in run.labels}
    for split, measured in summary.items():
        for metric in run.kind.task.metrics:
            if any(metric not in each["metrics"][split] for each in results):
                continue
            values = [each["metrics"][split][metric] for each in results]
            defined = None not in values
            mean = statistics.mean(values) if defined else None
            deviation = statistics.stdev(values) if defined and len(values) > 1 else None
            measured[metric] = {"mean": mean, "std": deviation, "values": values}
    return summary
