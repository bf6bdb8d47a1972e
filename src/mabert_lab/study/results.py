"""What a study has found so far, as one JSON file that `mabert report` reads."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from mabert.reading import read_json_if_there
from mabert.train.classifier import epochs_of
from mabert.train.vocabulary import TRAINED
from mabert.writing import write_text
from mabert_lab.bench.results import measured_on
from mabert_lab.study.cells import CellFiles
from mabert_lab.study.plan import TOKENIZERS, Plan, Row
from mabert_lab.study.runner import Status
from mabert_lab.study.tasks import FROM_MNLI, MNLI

VERSION = 1

OUTCOME = ("steps", "tokens", "held_out_loss", "held_out_accuracy", "parameters", "history")


def results_file(plan: Plan, root: Path) -> Path:
    """Where the results of a plan are written; each plan has a file of its own."""
    return root / f"{plan.name}-{plan.scale_name}.json"


def write_results(plan: Plan, root: Path, states: dict[str, Status]) -> Path:
    """Writes what there is of a plan; returns the file."""
    path = results_file(plan, root)
    write_text(path, json.dumps(gathered(plan, root, states), indent=1) + "\n")
    return path


def gathered(plan: Plan, root: Path, states: dict[str, Status]) -> dict[str, Any]:
    """The results of a plan, with what is missing and what failed.

    Returns:
        ``kind``, ``version``, ``study``, ``title``, ``label``, ``note``, ``reference``, ``scale``, ``environment`` of
        what ended last, ``environments`` of all, ``settings``, ``columns`` and ``rows``; each row an ``arm`` at a
        ``budget`` with its ``pretraining``, its ``scores`` by column, metric and seed, of all seeds that are finished,
        and the ``rates`` by column that fine-tuning chose.
    """
    environments = where_run(plan, root)
    columns = [column for name, task in plan.tasks.items() for column in task.columns(tuning(plan, name)["epochs"])]
    shown = [{key: value for key, value in column.items() if key not in ("split", "task")} for column in columns]
    for column, about in zip(shown, columns, strict=True):
        column["start"] = MNLI if plan.scale.from_mnli and about["task"] in FROM_MNLI else None
    return {
        "kind": "study",
        "version": VERSION,
        "study": plan.name,
        "title": plan.study.title,
        "label": plan.study.label,
        "note": plan.study.note,
        "reference": plan.study.reference,
        "scale": plan.scale_name,
        "environment": environments[-1] if environments else measured_on(),
        "environments": environments,
        "settings": {
            "pretraining": plan.scale.pretrain,
            "finetuning": plan.scale.finetune,
            "arms": {
                name: {"pretrain": arm.pretrain, "finetune": arm.finetune} for name, arm in plan.study.arms.items()
            },
            "tasks": {name: tuning(plan, name) for name in plan.tasks},
            "seeds": plan.scale.seeds,
            "from_mnli": plan.scale.from_mnli,
        },
        "columns": shown,
        "rows": [found(plan, root, row, columns, states) for row in plan.rows],
    }


def where_run(plan: Plan, root: Path) -> list[dict[str, Any]]:
    """The machines and versions that the finished cells and seeds ran on, each once with the time its last one ended,
    the last one last."""
    found: dict[str, dict[str, Any]] = {}
    for name in plan.cells:
        files = CellFiles(root, name)
        seeds = [result for seed in files.seeds() if (result := files.result(seed)) is not None]
        # A cell that goes on with other seeds names the last machine only; so seeds name their own.
        told = [result for result in seeds if "environment" in result]
        whole = files.result()
        if whole is not None and (not seeds or len(told) < len(seeds)):
            told.append(whole)
        for result in told:
            about = {key: value for key, value in result["environment"].items() if key != "load_average"}
            key = json.dumps(about, sort_keys=True)
            date = max(result["finished"].replace("Z", "+00:00"), found.get(key, {"date": ""})["date"])
            found[key] = {"date": date, **about}
    return sorted(found.values(), key=lambda about: about["date"])


def tuning(plan: Plan, name: str) -> dict[str, Any]:
    """How the reference arm is fine-tuned on a task."""
    task = plan.tasks[name]
    recipe = plan.scale.finetuning(plan.study.arms[plan.study.reference], task.asked)
    return {**dataclasses.asdict(recipe), "epochs": epochs_of(recipe, task.task)}


def found(plan: Plan, root: Path, row: Row, columns: list[dict[str, Any]], states: dict[str, Status]) -> dict[str, Any]:
    """One row of the results."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    rates, failed = {}, []
    for column in columns:
        name = row.finetunings[column["task"]]
        files = CellFiles(root, name)
        for seed in files.seeds():
            result = files.result(seed)
            if result is None:  # listed, and not to be seen yet on a file system of a network
                continue
            rates[column["key"]] = result["learning_rate"]
            for metric, value in result["metrics"][column["split"]].items():
                if value is not None:  # which the labels leave undefined
                    scores.setdefault(column["key"], {}).setdefault(metric, {})[str(seed)] = value
        status = states.get(name, Status())
        if status.state in ("failed", "blocked"):
            failed.append({"cell": name, "column": column["key"], "seed": None, "reason": status.reason})
    arm = plan.study.arms[row.arm]
    return {
        "arm": row.arm,
        "paper": arm.paper,
        "budget": row.budget,
        "pretraining": pretrained(plan, root, row.pretraining, states),
        "scores": scores,
        "rates": rates,
        "failed": failed,
    }


def pretrained(plan: Plan, root: Path, name: str, states: dict[str, Status]) -> dict[str, Any]:
    """What came of a pretraining."""
    files, status = CellFiles(root, name), states.get(name, Status())
    result = files.result()
    known = {"cell": name, "parameters": plan.cells[name].parameters}
    if result is None:
        shown = {"failed": "failed", "elsewhere": "running"}.get(status.state, "missing")
        return {**known, "status": shown, "reason": status.reason}
    outcome = {key: result["outcome"][key] for key in OUTCOME}
    # By its name in this folder: the path is that of the machine that ran the cell, and another may mount it elsewhere.
    tokenizer = root / TOKENIZERS / Path(result["request"]["tokenizer"]).name / "origin.json"
    origin = (read_json_if_there(tokenizer) or {}).get("tokenizer")
    return {
        **known,
        "status": "done",
        "reason": None,
        **outcome,
        "seconds": result["seconds"],
        "tokenizer": origin,
        "tokenizer_trained": (origin or "").startswith(TRAINED),
        "commit": result["environment"]["commit"],
    }
