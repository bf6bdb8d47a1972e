"""Made-up studies as `mabert study` writes them."""

import json

from mabert_lab.report import paper
from mabert_lab.report.studies import QUESTIONS, read_study

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
}
COLUMNS = {
    "cola": ("CoLA", "matthews_correlation", "cola", None),
    "rte": ("RTE", "accuracy", "rte", None),
    "mnli_sample": ("MNLI-m", "accuracy", "mnli_m", "13k-row sample"),
}
LABELS = {question: label for label, question in QUESTIONS.items()}
REFERENCES = {"pattern": "MMTMMTMMTMMT", "components": "full", "pooling": "map"}


def column(key, **changes):
    title, metric, in_paper, sample = COLUMNS[key]
    about = {"key": key, "title": title, "metric": metric, "paper": in_paper, "sample": sample}
    return {**about, "train": 12988, "validation": 277, "epochs": 5, "source": "GLUE folder", **changes}


def row(arm, scores, in_paper=None, budget=0.1, pretraining=None, failed=()):
    """One row; ``scores`` by column, each a list over seeds, by the column's own metric."""
    done = {
        "cell": arm,
        "status": "done",
        "steps": 100,
        "tokens": 409600,
        "held_out_loss": 5.1,
        "held_out_accuracy": 0.1,
        "parameters": 4_100_000,
        "seconds": 90.0,
        "tokenizer": "vocab.txt",
        "commit": "abc",
        "history": [{"step": 10, "loss": 9.1}, {"step": 20, "eval_loss": 8.8}, {"step": 40, "eval_loss": 8.1}],
    }
    own = {key: {COLUMNS[key][1]: {str(seed): each for seed, each in enumerate(of)}} for key, of in scores.items()}
    about = {"arm": arm, "paper": in_paper, "budget": budget, "scores": own, "failed": list(failed)}
    return {**about, "pretraining": done if pretraining is None else pretraining}


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
    return read_study(json.loads(json.dumps(study(rows, name, columns, **changes))))


def like_the_paper(table, budget=0.1, columns=("cola", "rte")):
    """A row for each of a table's, its scores the paper's means with noise over seeds around them."""
    noise = (0.0, 0.002, -0.002, 0.001, -0.001)
    means = paper.TABLES[table].mean
    return [
        row(key, {each: [means.loc[key, COLUMNS[each][2]] + more for more in noise] for each in columns}, key, budget)
        for key in means.index
    ]


def of_all_budgets(columns=("cola", "rte"), shares=tuple(paper.BY_SHARE)):
    """Such rows at each share of the steps."""
    return [each for share in shares for each in like_the_paper(f"glue_{100 * share:g}", share, columns)]
