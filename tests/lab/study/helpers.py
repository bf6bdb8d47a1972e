"""A tiny text, vocabulary, task and scale for the tests of studies."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import yaml

from mabert.conversion import pieces, training
from mabert.schema.check import check
from mabert.train import trainer
from mabert_lab.study.grid import Scale, Study
from mabert_lab.study.plan import Planner
from mabert_lab.study.work import serve
from tests.train.helpers import MODEL, TRAINING, WORDS, corpus, tokenizer
from tests.train.tasks import RECIPE as FINETUNE


def cola(folder, train=48, validation=16):
    """A CoLA in the official layout whose sentences are acceptable where they have a bird; returns GLUE's folder."""
    draw = np.random.default_rng(0)
    place = folder / "glue/CoLA"
    place.mkdir(parents=True)
    for name, count in (("train", train), ("dev", validation)):
        lines = []
        for number in range(count):
            words = list(draw.choice([word for word in WORDS if word != "bird"], size=draw.integers(3, 9)))
            if number % 2:
                words[0] = "bird"
            lines.append(f"src\t{number % 2}\t\t{' '.join(words)}")
        (place / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder / "glue"


def pairs(folder, train=30, validation=10):
    """A table of pairs beside GLUE's folders, its two files with columns of their own."""
    lines = [f"{WORDS[i % 9]}\t{WORDS[i % 7]}\t{'same' if i % 3 else 'other'}" for i in range(train)]
    (folder / "pairs.tsv").write_text("\n".join(["first\tsecond\tkind", *lines]) + "\n")
    rows = [{"a": WORDS[i % 9], "b": WORDS[i % 7], "label": "same" if i % 3 else "other"} for i in range(validation)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return {
        "title": "Pairs, 30 rows",
        "sample": "30 rows",
        "files": {
            "train": {"path": "pairs.tsv", "text_a": "first", "text_b": "second", "label": "kind"},
            "validation": {"path": "pairs.jsonl", "text_a": "a", "text_b": "b", "label": "label"},
        },
    }


def world(folder, documents=60):
    """A folder with text, vocabulary and tasks, and the fields of a scale on them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save_pretrained(folder / "vocabulary")
    cola(folder)
    return {
        "pretrain": {
            "model": dict(MODEL),
            "data": {"sources": [str(corpus(folder / "text.txt", documents))], "held_out": 0.1},
            "stages": [{"length": 12, "share": 0.75}, {"length": 24, "share": 0.25}],
            "training": TRAINING,
        },
        "finetune": FINETUNE,
        "tasks": {"cola": {}},
        "seeds": [0, 1],
        "tokenizers": {"mabert": str(folder / "vocabulary"), "bert": str(folder / "vocabulary")},
    }


def scale(fields, **changes):
    return check(Scale, {**json.loads(json.dumps(fields)), **changes})


def study(arms=None, **fields):
    arms = {"map": {"paper": "map"}} if arms is None else arms
    return check(Study, {"title": "A study", "arms": arms, "reference": next(iter(arms), ""), **fields})


def changed(fields, path, value):
    """A copy of nested fields in which one has another value."""
    copy = json.loads(json.dumps(fields))
    place = copy
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    return copy


def planned(folder, root, arms=None, fields=None, budgets=("100%",), glue=None, **changes):
    """A plan in the world of a folder."""
    given = world(folder) if fields is None else fields
    planner = Planner(root, scale(given, **changes), str(glue or folder / "glue"))
    return planner.plan("test", "small", study(arms, budgets=list(budgets)))


def written(folder, fields, arms):
    """Files of a scale and a study, for the command line."""
    (folder / "small.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(fields))))
    content = {"title": "A study", "label": "tab:pooling_pred_100pct", "arms": arms, "reference": next(iter(arms))}
    (folder / "test.yaml").write_text(yaml.safe_dump(content))
    return ["grid", str(folder / "test.yaml"), "--scale", str(folder / "small.yaml"), "--data", str(folder / "glue")]


def begun(cell, root, target=serve):
    """The process of a cell, begun."""
    arguments = (str(root), cell.name, {**cell.order, "content": cell.content}, cell.seeds)
    process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments)
    process.start()
    return process


def ended(cell, root, target=serve):
    """The exit code of a cell's process."""
    process = begun(cell, root, target)
    process.join()
    return process.exitcode


def serve_until(root, name, *arguments):
    """A cell's process that saves after each step, and is killed at the checkpoint that a file `last` names."""
    pieces.SHORTEST = 16
    training.ConversionTrainer.save_seconds = trainer.MaBertTrainer.save_seconds = 0.0
    publish, last = trainer.publish, Path(root) / "last"
    wanted = last.read_text() if last.is_file() else None

    def killed(written, place):
        publish(written, place)
        if wanted is not None and str(place).endswith(wanted):
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.publish = killed
    serve(root, name, *arguments)
