"""Writes a study's results so far to one JSON file for `mabert report`."""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mabert.files.reading import read_json_if_there, to_json
from mabert.files.writing import write_json
from mabert.train.finetune_run import epochs_of
from mabert.train.pretrain_run import TRAINED
from mabert_lab.bench.results import measured_on
from mabert_lab.study.cells import Cell, CellFiles, without
from mabert_lab.study.conversions import BLOCK
from mabert_lab.study.plan import TOKENIZERS, Plan, PlannedModel, cells_of
from mabert_lab.study.runner import Status

VERSION = 1
STATES = ("failed", "missing", "running", "done")  # an arm of several conversions has the first that any of them has
OUTCOME = ("steps", "tokens", "held_out_loss", "held_out_accuracy", "parameters", "history")


def results_file(plan: Plan, root: Path) -> Path:
    """Returns the file for a plan's results; each plan has its own."""
    return root / f"{plan.name}-{plan.scale_name}.json"


def write_results(plan: Plan, root: Path, states: dict[str, Status]) -> None:
    write_json(results_file(plan, root), gathered(plan, root, states), indent=1)


def gathered(plan: Plan, root: Path, states: dict[str, Status]) -> dict[str, Any]:
    """Collects a plan's results, with what is missing and what failed, in the form that `mabert report` reads. Each of
    the ``rows`` is an ``arm`` at a ``budget`` with its ``pretraining``, the ``scores`` of finished seeds by column,
    metric and seed, and the ``rates`` that fine-tuning chose. If arms are conversions, `settings` has the
    ``conversion``, ``pretraining`` describes it, and ``scores`` are by conversion."""
    environments = where_run(plan, root)
    columns = [column for name, task in plan.tasks.items() for column in task.columns(tuning(plan, name)["epochs"])]
    by_arm = itertools.groupby(plan.rows, key=lambda row: (row.arm, row.budget))  # a row, or one for each conversion
    asked = plan.scale.convert if plan.study.converts else None
    start = {"conversion": dataclasses.asdict(asked)} if asked else {"pretraining": plan.scale.pretrain}
    differs = ("convert" if plan.study.converts else "pretrain", "finetune")
    return {
        "kind": "study",
        "version": VERSION,
        "study": plan.name,
        **{name: getattr(plan.study, name) for name in ("title", "label", "note", "reference", "learnt_below")},
        "scale": plan.scale_name,
        "environment": environments[-1] if environments else measured_on(),
        "environments": environments,
        "settings": {
            **start,
            "finetuning": plan.scale.finetune,
            "arms": {title: {name: getattr(arm, name) for name in differs} for title, arm in plan.study.arms.items()},
            "tasks": {name: tuning(plan, name) for name in plan.tasks},
            "seeds": plan.scale.seeds,
        },
        "columns": [without(column, ("split", "task")) for column in columns],
        "rows": [row_of(plan, root, list(rows), columns, states) for _, rows in by_arm],
    }


def where_run(plan: Plan, root: Path) -> list[dict[str, Any]]:
    """Returns the distinct machines and versions that finished anything, latest last."""
    found: dict[str, dict[str, Any]] = {}
    for _, files in cells_of(plan, root):
        seeds = files.results().values()
        # A cell that was continued with other seeds names only the last machine, so seeds name their own.
        dated = [result for result in seeds if "environment" in result]
        whole = files.result()
        if whole is not None and (not seeds or len(dated) < len(seeds)):
            dated.append(whole)
        for result in dated:
            about = {key: value for key, value in result["environment"].items() if key != "load_average"}
            key = to_json(about, sort_keys=True)
            date = max(result["finished"].replace("Z", "+00:00"), found.get(key, {"date": ""})["date"])
            found[key] = {"date": date, **about}
    return sorted(found.values(), key=lambda about: about["date"])


def tuning(plan: Plan, name: str) -> dict[str, Any]:
    """Returns how the reference arm is fine-tuned on a task."""
    task = plan.tasks[name]
    recipe = plan.scale.finetuning(plan.study.arms[plan.study.reference], task.asked)
    epochs = epochs_of(recipe, task.task, len(task.splits["train"]))
    return {**without(dataclasses.asdict(recipe), ("report_to",)), "epochs": epochs}


def row_of(
    plan: Plan, root: Path, rows: Sequence[PlannedModel], columns: list[dict[str, Any]], states: dict[str, Status]
) -> dict[str, Any]:
    scores: dict[str, dict[str, dict[str, float]]] = {}
    rates, failed = {}, []
    for column, row in itertools.product(columns, rows):
        name = row.finetunings[column["task"]]
        for seed, result in CellFiles(root, name).results().items():
            rates[column["key"]] = result["learning_rate"]
            for metric, value in result["metrics"][column["split"]].items():
                if value is not None:  # None if the labels leave it undefined
                    scores.setdefault(column["key"], {}).setdefault(metric, {})[str(seed)] = value
        status = states.get(name, Status())
        if status.state in ("failed", "blocked"):
            failed.append({"cell": name, "column": column["key"], "seed": None, "reason": status.reason})
    made = [started(plan, root, row.pretraining, states) for row in rows]
    start = made[0]
    if plan.study.converts:
        state = min(made, key=lambda each: STATES.index(each["status"]))
        start = {**{name: state[name] for name in ("cell", "parameters", "status", "reason")}, "conversions": made}
        scores = {
            key: {metric: by_conversion(seeds, plan.scale.seeds) for metric, seeds in metrics.items()}
            for key, metrics in scores.items()
        }
    return {
        "arm": rows[0].arm,
        "paper": plan.study.arms[rows[0].arm].paper,
        "budget": rows[0].budget,
        "pretraining": start,
        "scores": scores,
        "rates": rates,
        "failed": failed,
    }


def by_conversion(scores: Mapping[str, float], seeds: Sequence[int]) -> dict[str, float]:
    """Averages scores by conversion, the unit of variation, for those whose fine-tunings are all finished."""
    made = sorted({int(seed) // BLOCK for seed in scores})
    wanted = {str(which): [str(BLOCK * which + seed) for seed in seeds] for which in made}
    whole = {which: own for which, own in wanted.items() if scores.keys() >= set(own)}
    return {which: statistics.mean(scores[seed] for seed in own) for which, own in whole.items()}


def started(plan: Plan, root: Path, name: str, states: dict[str, Status]) -> dict[str, Any]:
    """Returns the record of a pretraining or a conversion: its outcome, or why there is none."""
    cell, result, status = plan.cells[name], CellFiles(root, name).result(), states.get(name, Status())
    converts = cell.kind == "conversion"
    seed = {"seed": cell.content["recipe"]["seed"]} if converts else {}
    known = {"cell": name, **seed, "parameters": cell.parameters}
    if result is None:
        shown = {"failed": "failed", "elsewhere": "running"}.get(status.state, "missing")
        return {**known, "status": shown, "reason": status.reason}
    outcome = converted(result) if converts else pretrained(cell, root, result)
    return {**known, "status": "done", "reason": None, **outcome, "seconds": result["seconds"]}


def converted(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a conversion's schedule, and the cosine to the teacher of it and of a constant (the floor), or None."""
    bands = result["outcome"].get("agreement", {"bands": {}})["bands"].values()
    weights = [band["texts"] for band in bands]
    sides = [[band[side]["cosine"] for band in bands] for side in ("student", "floor")]
    cosine, floor = (statistics.fmean(side, weights) if weights else None for side in sides)
    return {"pattern": result["outcome"]["pattern"], "cosine": cosine, "floor": floor}


PEAKS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}  # operations a second of a GPU's dense bf16 products


def speed_of(cell: Cell, result: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns a pretraining's tokens a second, and their share of the GPU's peak, None if unknown, by six operations a
    token and parameter outside the vocabulary's table; scores of attention and the decoder's product do not count."""
    rate = result["outcome"]["tokens"] / result["seconds"] if result["seconds"] else None
    model = cell.content["recipe"]["model"]
    table = model["vocab_size"] * (model.get("embedding_size") or model["hidden_size"])
    operations = 6 * (cell.parameters - table)
    peak = PEAKS.get(result["environment"]["device"])
    return {"tokens_per_second": rate, "share_of_peak": rate * operations / peak if rate and peak else None}


def pretrained(cell: Cell, root: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    # Found by name in this folder, because the recorded path is that of the machine that ran the cell.
    tokenizer = root / TOKENIZERS / Path(result["request"]["tokenizer"]).name / "origin.json"
    origin = (read_json_if_there(tokenizer) or {}).get("tokenizer")
    return {
        **{key: result["outcome"][key] for key in OUTCOME},
        **speed_of(cell, result),
        "tokenizer": origin,
        "tokenizer_trained": (origin or "").startswith(TRAINED),
        "commit": result["environment"]["commit"],
    }
