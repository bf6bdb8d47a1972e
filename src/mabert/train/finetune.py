"""Fine-tuning on a text classification or regression task: a grid of learning rates, several seeds, one record."""

import contextlib
import dataclasses
import json
import logging
import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, TrainerCallback

from mabert.baselines.load import load_config, weights_digest
from mabert.baselines.registry import family_of
from mabert.data.encode import Encoding
from mabert.data.glue import GlueTask
from mabert.data.leaderboard import write_leaderboard
from mabert.data.metrics import compute
from mabert.data.rows import tsv_line
from mabert.data.task import Rows, Task
from mabert.data.tokenizer import load_tokenizer
from mabert.environment import environment
from mabert.precision import resolve_precision, warn_of_emulation
from mabert.reading import read_json, read_json_if_there
from mabert.train.classifier import (
    Job,
    TaskData,
    checkpoints_of,
    encode_task,
    new_classifier,
    rate_for,
    train_classifier,
)
from mabert.train.recipe import FinetuneRecipe, check_seeds
from mabert.train.run import RESULT, RunFolder, grid_file, now
from mabert.train.trainer import TrainingDivergedError, joined, size_of
from mabert.writing import filling, write_text

logger = logging.getLogger(__name__)

FREE = ("resolved.processes", "resolved.chosen_under")
"""What a resumed run may change."""


def finetune(
    model: str | Path,
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
    """Trains one classifier a seed and measures each on the validation data.

    Args:
        model: Folder or hub name of a pretrained model, with its tokenizer.
        task: From `load_glue` (by `glue_task`) or `load_tables`.
        splits: Its examples, from the same.
        output: Folder: `seed-N` with the model, its `result.json`, its predictions and the leaderboard's file; and
            `result.json` over all seeds that are finished, those of earlier starts too.
        recipe: How.
        seeds: Of initialisation of the head, order and dropout. The first that a folder is begun with chooses from
            several learning rates, for those that are added later too.
        source: Where the examples come from, for the record.
        resume: Whether to go on in a folder, keeping the seeds that are finished; one that was under way goes on from
            its last checkpoint, to the same weights where the processes are as many.
        trusted: Whether the caller knows the run in `output` to be this one, as a study does by a cell's name; model
            and examples may lie elsewhere then, being the same.
        progress: Whether to show progress.
        keep_models: Whether the classifiers are saved; their results and predictions always are.
        callbacks: transformers callbacks beside ours.

    Under torchrun each step's batch is divided among the processes; the first one writes.

    Returns:
        The content of `result.json`; in the other processes of several, nothing.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If model, data and recipe do not fit, or the folder holds another run, or seeds that were trained at
            another learning rate.
        MemoryError: If a batch does not fit the memory; finished seeds are kept.
        KeyboardInterrupt: After Ctrl-C, when a training that was under way is saved.
    """
    check_seeds(seeds)
    processes = joined(recipe.precision)
    check_divides(recipe, processes.num_processes)
    config = load_config(model)  # tells what is wrong with the folder better than the tokenizer's absence does
    tokenizer = load_tokenizer(str(model))
    recipe = dataclasses.replace(recipe, learning_rates=(rates := recipe.learning_rates or [rate_for(config)]))
    longest = longest_input(config, tokenizer, recipe.max_length)
    folder = RunFolder(output, FREE, trusted)
    request: dict[str, Any] = {"model": str(model), "task": task.name, "source": source, **dataclasses.asdict(recipe)}
    if processes.is_main_process:
        warn_of_emulation(recipe.precision)
        folder.check(request, resume)
    data = encode_task(task, splits, tokenizer, longest, recipe.truncate)
    job = Job(model, tokenizer, data, recipe, progress, callbacks)
    # Other seeds that are added to a run are trained at the rate that its first ones were.
    chooser = folder.resolved().get("chosen_under", seeds[0]) if resume else seeds[0]
    request["resolved"] = {
        "weights": weights_digest(model),
        "examples": {name: len(examples) for name, examples in data.splits.items()},
        "data": data.digest(),
        "precision": resolve_precision(recipe.precision),
        "processes": processes.num_processes,
        **({"chosen_under": chooser} if len(rates) > 1 else {}),
    }
    new_classifier(job)
    if processes.is_main_process:
        folder.claim(request, resume)
    # All processes must see the same runs as finished, whatever the first one finishes meanwhile.
    tried = {rate: kept_record(grid_file(folder.path, rate), "score") for rate in rates}
    done = {seed: kept_record(folder.path / f"seed-{seed}" / RESULT, "metrics") for seed in seeds}
    processes.wait_for_everyone()
    if processes.is_main_process:
        for result in filter(None, done.values()):  # a kill may have come before this
            leave_no_checkpoints(folder.path, result["learning_rate"], result["seed"])
    try:
        rate, scores = best_rate(job, folder.path, chooser, tried, processes)
        check_rate(folder.path, rate, done)
        runs = run_seeds(job, folder.path, rate, done, keep_models, processes)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(str(stop) or "finished seeds are kept; go on with --resume") from stop
    if not processes.is_main_process:
        return {}
    return write_record(folder, job.data, rates, rate, scores, all_runs(folder.path, rate, runs))


def write_record(
    folder: RunFolder, data: Any, rates: Sequence[float], rate: float, scores: Any, runs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Writes `result.json` over all seeds.

    Args:
        folder: Of the run.
        data: The task's examples.
        rates: Learning rates that were tried.
        rate: The chosen one.
        scores: By learning rate, where there were several.
        runs: The records of the seeds.
    """
    outcome = {
        "learning_rate": rate,
        "tried": scores,
        "main_metric": data.task.main_metric,
        "scores": spread(data, runs),
    }
    grid = [read_json_if_there(grid_file(folder.path, each)) or {} for each in rates]
    seconds = sum(each.get("seconds", 0.0) for each in [*grid, *runs])  # over all starts
    return folder.write_result(outcome, seconds, seeds=[run["seed"] for run in runs])


def kept_record(file: Path, *fields: str) -> dict[str, Any] | None:
    """What an earlier start wrote of a training; None where there is nothing.

    Raises:
        ValueError: If it is damaged; names the file.
    """
    record = read_json_if_there(file)
    missing = [name for name in ("seed", "learning_rate", *fields) if record is not None and name not in record]
    if missing:
        raise ValueError(f"{file}: damaged: it lacks {', '.join(missing)}; remove it, and --resume makes it anew")
    return record


def longest_input(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, asked: int | None) -> int:
    """Tokens of the longest example; the tokenizer is told what the model takes.

    Raises:
        ValueError: If more are asked for.
    """
    limit = family_of(config).longest(config)
    longest = asked or limit or config.max_position_embeddings
    if limit is not None and longest > limit:
        raise ValueError(f"max_length is {longest}, the model has positions for {limit} tokens")
    if limit is not None:
        tokenizer.model_max_length = limit
    return int(longest)


def check_divides(recipe: FinetuneRecipe, processes: int) -> None:
    """Refuses batches that so many processes cannot share.

    Raises:
        ValueError: Saying which.
    """
    if recipe.batch_tokens is None and recipe.batch_size % processes:
        raise ValueError(f"batch_size is {recipe.batch_size}, not a multiple of {processes} processes")


def best_rate(
    job: Job, folder: Path, seed: int, tried: Mapping[float, dict[str, Any] | None], processes: PartialState
) -> tuple[float, dict[str, float | None]]:
    """The learning rate of the grid with the best main metric under one seed, and what each gave: None where it
    diverged, or where the metric is not defined.

    Raises:
        TrainingDivergedError: If every rate did, or one in one of several processes, for which the others wait.
    """
    if len(tried) == 1:
        return next(iter(tried)), {}
    found: dict[float, dict[str, Any]] = {}
    for rate, before in tried.items():
        if before is not None and before["seed"] == seed:  # what was tried under another seed is not compared with this
            found[rate] = before
            continue
        began, spent, diverged = time.time(), 0.0, None
        try:
            trained = train_classifier(job, folder, rate, seed)
            score, spent = job.scores(trained.classifier)[job.data.task.main_metric], trained.before
        except TrainingDivergedError as error:
            if processes.num_processes > 1:
                raise
            score, diverged = None, str(error)
        found[rate] = {"learning_rate": rate, "seed": seed, "score": score, "diverged": diverged}
        found[rate]["seconds"] = round(spent + time.time() - began, 1)
        if processes.is_main_process:
            grid_file(folder, rate).parent.mkdir(exist_ok=True)
            write_text(grid_file(folder, rate), json.dumps(found[rate]) + "\n")
            leave_no_checkpoints(folder, rate, seed)
    # A score that is not defined is no better than any other; one that diverged gives no model.
    whole = {
        rate: -math.inf if each["score"] is None else each["score"]
        for rate, each in found.items()
        if each.get("diverged") is None
    }
    if not whole:
        causes = "; ".join(f"at {rate:g} {each['diverged']}" for rate, each in found.items())
        raise TrainingDivergedError(f"training diverged at every learning rate: {causes}")
    best = max(whole, key=whole.__getitem__)
    if processes.is_main_process:
        for rate in found.keys() - {best}:  # a kill may have come before this
            leave_no_checkpoints(folder, rate, seed)
    return best, {f"{rate:g}": each["score"] for rate, each in found.items()}


def check_rate(folder: Path, rate: float, done: Mapping[int, dict[str, Any] | None]) -> None:
    """Refuses to set seeds beside each other that were trained at different learning rates.

    Raises:
        ValueError: Naming the seed and both rates.
    """
    for seed, result in done.items():
        if result is not None and result["learning_rate"] != rate:
            there = f"{folder / f'seed-{seed}'} was trained at a learning rate of {result['learning_rate']:g}"
            raise ValueError(f"{there}, the grid chose {rate:g}; use another folder for one of them")


def run_seeds(
    job: Job,
    folder: Path,
    rate: float,
    done: Mapping[int, dict[str, Any] | None],
    keep_models: bool,
    processes: PartialState,
) -> list[dict[str, Any]]:
    """The result of every seed, of those that are done as it is.

    Raises:
        TrainingDivergedError: If any did, naming them, when the others are finished; of several processes, at once.
    """
    runs, diverged = [], {}
    for seed, before in done.items():
        place = folder / f"seed-{seed}"
        try:
            runs.append(before or run_seed(job, place, rate, seed, keep_models, processes.is_main_process))
        except TrainingDivergedError as error:
            if processes.num_processes > 1:  # the others wait for this one
                raise
            diverged[seed] = str(error)
            leave_no_checkpoints(folder, rate, seed)
    if diverged:
        causes = "; ".join(f"under seed {seed} {cause}" for seed, cause in diverged.items())
        kept = "; the other seeds are finished and kept; leave out those that diverged" if runs else ""
        raise TrainingDivergedError(causes + kept)
    return runs


def all_runs(folder: Path, rate: float, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of some seeds and of those that earlier starts finished at the same learning rate, by seed."""
    before = map(read_json, folder.glob(f"seed-*/{RESULT}"))
    found = {run["seed"]: run for run in (*before, *runs) if run["learning_rate"] == rate}
    return [found[seed] for seed in sorted(found)]


def run_seed(job: Job, place: Path, rate: float, seed: int, keep_model: bool, writes: bool) -> dict[str, Any]:
    """Trains, saves if it is to be kept, and measures under one seed."""
    began = time.time()
    trained = train_classifier(job, place.parent, rate, seed)
    if writes and keep_model:
        with filling(place, size_of(trained.classifier), "make room and train it again by --resume") as staging:
            trained.classifier.save_pretrained(staging)
            job.tokenizer.save_pretrained(staging)
            Encoding(job.recipe.max_length, job.recipe.truncate, job.data.splits["train"].pairs).save(staging)
    data, metrics = job.data, {}
    # By every process, each a part.
    found = {split: job.logits(trained.classifier, split) for split in data.splits if split != "train"}
    if not writes:
        return {}
    place.mkdir(parents=True, exist_ok=True)
    for split, logits in found.items():
        if split in data.labels:
            metrics[split] = compute(data.task, logits, data.labels[split])
            warn_of_one_answer(data, split, logits, seed, rate)
            write_predictions(place / f"{split}.tsv", data, split, logits)
        elif isinstance(data.task, GlueTask):
            write_leaderboard(data.task, decided(data.task, logits), place, split=split, index=data.indices[split])
        else:
            write_predictions(place / f"{split}.tsv", data, split, logits)
    result = {
        "seed": seed,
        "learning_rate": rate,
        "metrics": metrics,
        "history": trained.history,
        "environment": environment(),
        "finished": now(),
        "seconds": round(trained.before + time.time() - began, 1),
    }
    write_text(place / RESULT, json.dumps(result, indent=2) + "\n")
    leave_no_checkpoints(place.parent, rate, seed)
    return result


def warn_of_one_answer(data: TaskData, split: str, logits: np.ndarray, seed: int, rate: float) -> None:
    """Says so where a classifier gives all validation examples, which differ, one class: it has learnt nothing else."""
    answers = np.unique(decided(data.task, logits))
    if not data.task.is_regression and len(answers) == 1 < len(np.unique(data.labels[split])):
        logger.warning(
            "seed %d answers %r to all %d examples of %s; a higher --learning-rate (now %g) or more --epochs may help",
            seed,
            data.task.label_names[int(answers[0])],
            len(logits),
            split,
            rate,
        )


def leave_no_checkpoints(folder: Path, rate: float, seed: int) -> None:
    """Removes those of a training that is not gone on with: its result is written, or it diverged."""
    place = checkpoints_of(folder, rate, seed)
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):  # there are others', or none
        place.parent.rmdir()


def decided(task: Task, logits: np.ndarray) -> np.ndarray:
    """Class ids, or scores of a regression, (examples,)."""
    return logits[:, 0] if task.is_regression else logits.argmax(1)


def write_predictions(path: Path, data: TaskData, split: str, logits: np.ndarray) -> None:
    """A table of predictions, with the truth beside them where it is known."""
    names = data.task.label_names

    def shown(value: float) -> str:
        return names[int(value)] if names else f"{value:.4f}"

    columns = [data.indices[split], [shown(value) for value in decided(data.task, logits)]]
    header = ["index", "prediction"]
    if split in data.labels:
        columns.append([shown(value) for value in data.labels[split]])
        header.append("label")
    lines = map(tsv_line, [header, *zip(*columns, strict=True)])
    write_text(path, "\n".join(lines) + "\n")


def spread(data: TaskData, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation (over seeds, n - 1) and single values of every metric on every validation split.

    What seeds that were finished under an earlier version were not measured by is left out. A metric that the labels
    leave undefined is None.
    """
    summary: dict[str, Any] = {}
    for split in data.validations:
        summary[split] = {}
        measured = [metric for metric in data.task.metrics if all(metric in run["metrics"][split] for run in runs)]
        for metric in measured:
            values = [run["metrics"][split][metric] for run in runs]
            defined = None not in values
            mean = statistics.mean(values) if defined else None
            deviation = statistics.stdev(values) if defined and len(values) > 1 else None
            summary[split][metric] = {"mean": mean, "std": deviation, "values": values}
    return summary
