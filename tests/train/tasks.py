"""Tasks of every kind to fine-tune on, small and learnable, and runs on them."""

import json

import numpy as np
from datasets import Dataset

from mabert.data.entities import metric_names
from mabert.data.tasks import Task, table_task
from mabert.train.finetune import finetune
from mabert.train.recipe import FinetuneRecipe
from tests.train.helpers import WORDS, rows

RECIPE = {"learning_rates": [2e-2], "epochs": 1, "batch_size": 16, "dropout": 0.0, "precision": "fp32"}


def measured(count, seed):
    """Texts of `rows` and, as a number, their length."""
    part = rows(count, seed)
    return Dataset.from_dict({**part[:], "label": [len(text.split()) / 4 for text in part["text_a"]]})


THINGS = {"river": "PLACE", "house": "PLACE", "bird": "ANIMAL"}


def tagged(count, seed):
    """Sentences in which some words name places and animals, `old` before one being a part of its name."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word not in (*THINGS, "old")]
    sentences = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(draw.integers(2, 6)):
            thing = draw.choice([*THINGS, ""], p=[0.15, 0.15, 0.2, 0.5])
            if thing and draw.random() < 0.3:
                words += ["old", thing]
                tags += [f"B-{THINGS[thing]}", f"I-{THINGS[thing]}"]
            else:
                words.append(thing or str(draw.choice(plain)))
                tags.append(f"B-{THINGS[thing]}" if thing else "O")
        sentences.append((words, tags))
    columns = {"tokens": [words for words, _ in sentences], "tags": [tags for _, tags in sentences]}
    texts = [" ".join(words) for words in columns["tokens"]]
    return Dataset.from_dict({"text_a": texts, **columns, "index": list(range(count))})


def labelled(count, seed):
    """Texts that are of every topic whose word is in them."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word not in TOPICS]
    texts, labels = [], []
    for _ in range(count):
        holds = [float(draw.random() < 0.4) for _ in TOPICS]
        words = [*draw.choice(plain, size=4), *(topic for topic, held in zip(TOPICS, holds, strict=True) if held)]
        texts.append(" ".join(draw.permutation(words)))
        labels.append(holds)
    return Dataset.from_dict({"text_a": texts, "label": labels, "index": list(range(count))})


def asked(count, seed):
    """What is old, in contexts that say so or do not; some are longer than the model."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word != "old"]
    columns = {name: [] for name in ("text_a", "text_b", "answers", "starts")}
    for number in range(count):
        words = [str(word) for word in draw.choice(plain, size=draw.integers(3, 16))]
        place, known = draw.integers(len(words)), number % 4 > 0
        words.insert(place, "old" if known else "small")
        thing = words[place + 1 :][:1]
        columns["text_a"].append("the old")
        columns["text_b"].append(" ".join(words))
        columns["answers"].append(thing if known else [])
        columns["starts"].append([len(" ".join(words[: place + 1])) + 1] if known else [])
    return Dataset.from_dict({**columns, "index": [f"id-{number}" for number in range(count)]})


NAMES = ("O", "B-ANIMAL", "B-PLACE", "I-ANIMAL", "I-PLACE")
TOPICS = ("bird", "house", "river")
CLASSES, NUMBERS = table_task("birds", ("no", "yes")), table_task("lengths", ())
SEVERAL = table_task("topics", TOPICS, several=True)
TOKENS = Task("things", NAMES, metric_names(["ANIMAL", "PLACE"]), "f1", "tokens")
ANSWERS = Task("words", (), ("f1", "exact_match"), "f1", "answers")
TASKS = {
    "classes": (CLASSES, rows),
    "numbers": (NUMBERS, measured),
    "several": (SEVERAL, labelled),
    "tokens": (TOKENS, tagged),
    "answers": (ANSWERS, asked),
}
"""Kinds of tasks: one of each, and what makes its examples of their number and a seed."""


def splits(kind="classes", sizes=(160, 40)):
    make = TASKS[kind][1]
    return {"train": make(sizes[0], 0), "validation": make(sizes[1], 1)}


def go(
    model,
    output,
    kind="classes",
    sizes=(160, 40),
    *,
    seeds=(0,),
    task=None,
    data=None,
    callbacks=(),
    resume=False,
    keep_models=True,
    **changes,
):
    """A run without a sign of progress; `changes` are fields of the recipe."""
    recipe = FinetuneRecipe(**{**RECIPE, **changes})
    how = {"resume": resume, "progress": False, "callbacks": callbacks, "keep_models": keep_models}
    return finetune(model, task or TASKS[kind][0], data or splits(kind, sizes), output, recipe, seeds, **how)


def record(folder, seed=0):
    return json.loads((folder / f"seed-{seed}/result.json").read_text())


def losses(folder, seed=0):
    return [entry["loss"] for entry in record(folder, seed)["history"] if "loss" in entry]
