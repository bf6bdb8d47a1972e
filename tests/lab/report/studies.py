"""Made-up studies as `mabert study` writes them."""

import json
import random

from mabert_lab.report import paper
from mabert_lab.report.study.results import QUESTIONS, read_study

ENVIRONMENT = {
    "date": "2026-01-01T00:00:00+00:00",
    "processor": "processor",
    "device": "cpu",
    "threads": 2,
    "packages": {"torch": "2.0"},
    "commit": "abc",
}
SETTINGS = {
    "pretraining": {
        "data": {"sources": ["text_one.txt"]},
        "stages": [{"length": 128, "share": 0.9}, {"length": 512, "share": 0.1}],
        "training": {"steps": 1000, "batch_size": 32, "learning_rate": 0.003},
    },
    "finetuning": {"learning_rates": [2e-4], "select": "last"},
    "seeds": [0, 1, 2, 3, 4],
    "from_mnli": False,
}
COLUMNS = {
    "cola": ("CoLA", "matthews_correlation", "cola", None),
    "rte": ("RTE", "accuracy", "rte", None),
    "mnli_sample": ("MNLI-m", "accuracy", "mnli_m", "13k-row sample"),
}
LABELS = {question: label for label, question in QUESTIONS.items()}
REFERENCES = {"pattern": "MMTMMTMMTMMT", "components": "full", "pooling": "map"}


def seeds(*scores):
    """Scores by seed as the file has them."""
    return {str(seed): score for seed, score in enumerate(scores)}


def column(key):
    title, metric, in_paper, sample = COLUMNS[key]
    return {
        "key": key,
        "title": title,
        "metric": metric,
        "paper": in_paper,
        "sample": sample,
        "train": 12988,
        "validation": 277,
        "epochs": 5,
        "source": "GLUE folder",
    }


def row(arm, scores, in_paper=None, budget=0.1, pretraining=None, failed=()):
    """One row; ``scores`` by column, each a list over seeds, by the column's own metric."""
    done = {
        "cell": arm,
        "status": "done",
        "reason": None,
        "steps": 100,
        "tokens": 409600,
        "held_out_loss": 7.1,
        "held_out_accuracy": 0.1,
        "parameters": 4_100_000,
        "seconds": 90.0,
        "tokenizer": "vocab.txt",
        "commit": "abc",
        "history": [{"step": 10, "loss": 9.1}, {"step": 20, "eval_loss": 8.8}, {"step": 40, "eval_loss": 8.1}],
    }
    return {
        "arm": arm,
        "paper": in_paper,
        "budget": budget,
        "pretraining": done if pretraining is None else pretraining,
        "scores": {key: {COLUMNS[key][1]: seeds(*values)} for key, values in scores.items()},
        "failed": list(failed),
    }


def study(rows, name="pattern", columns=tuple(COLUMNS), **changes):
    """The content of a file."""
    content = {
        "kind": "study",
        "version": 1,
        "study": name,
        "title": f"Study of {name}",
        "label": LABELS.get(name),
        "reference": REFERENCES.get(name, "mabert"),
        "scale": "tiny",
        "environment": ENVIRONMENT,
        "settings": SETTINGS,
        "columns": [column(key) for key in columns],
        "rows": rows,
    }
    return {**content, **changes}


def read(rows, name="pattern", columns=tuple(COLUMNS), **changes):
    """The same as a record."""
    return read_study(json.loads(json.dumps(study(rows, name, columns, **changes))), f"{name}.json")


def like_the_paper(table, budget=0.1, noise=0.0, columns=("cola", "rte"), count=5):
    """A row for each of a table's, its scores the paper's means with seeded noise around them."""
    draw = random.Random(0)
    return [
        row(
            key,
            {each: [scores[COLUMNS[each][2]].mean + draw.gauss(0, noise) for _ in range(count)] for each in columns},
            key,
            budget,
        )
        for key, scores in table.rows.items()
    ]


def whole_experiment(noise=0.004):
    """A study of each kind, as the paper has them, with every task that the made-up columns have."""
    every = tuple(COLUMNS)
    budgets = [each for budget, table in paper.GLUE.items() for each in like_the_paper(table, budget, noise, every)]
    return [
        study(like_the_paper(paper.PATTERNS, 0.1, noise, every), "pattern"),
        study(like_the_paper(paper.INTEGRATION, 1.0, noise, every), "components"),
        study(like_the_paper(paper.POOLING, 1.0, noise, every), "pooling"),
        study(budgets, "budget"),
    ]
