"""The tasks of a study: GLUE's, and other tables under names that say what they are."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mabert.data.glue import TASKS, glue_task, load_glue
from mabert.data.own import load_own
from mabert.data.tasks import Columns, Rows, Task, column
from mabert.files.reading import to_json
from mabert.schema.check import Checked, check, check_part
from mabert.schema.ranges import Count
from mabert.train.recipe import FinetuneRecipe

TITLES = {**{name: task.folder for name, task in TASKS.items()}, "mnli_m": "MNLI-m", "mnli_mm": "MNLI-mm"}

ROWS = {
    "cola": (8551, 1043),
    "sst2": (67349, 872),
    "mrpc": (3668, 408),
    "qqp": (363846, 40430),
    "mnli": (392702, 9815, 9832),
    "qnli": (104743, 5463),
    "rte": (2490, 277),
    "stsb": (5749, 1500),
}
"""Rows of GLUE's official splits, training first; data with other counts is not scored under the task's own name."""

KEYS = {"validation_matched": "mnli_m", "validation_mismatched": "mnli_mm"}  # columns of MNLI by validation split
IN_PAPER = ("cola", "sst2", "mrpc", "qqp", "mnli_m", "mnli_mm", "qnli", "rte")  # columns of the paper's tables


@dataclass
class TableFile(Checked):
    """One split of a table."""

    path: str  # relative to the folder of the tasks' data
    text_a: str = "text"  # the column of the text, or of a pair's first text
    text_b: str | None = None
    label: str = "label"


@dataclass
class StudyTask(Checked):
    """A task as specified in a scale."""

    name: str  # GLUE's, or the user's own
    title: str | None = None  # of its column; default, GLUE's title or the name
    files: dict[str, TableFile] = field(default_factory=dict)  # `train` and `validation`, if not GLUE's official files
    sample: str | None = None  # what the rows are, such as `13k-row sample`; required with `files`
    # The paper's column to compare the user's own table with. If that is scored by F1, the classes must have GLUE's
    # names, or 0 and 1: F1 is that of the second.
    paper: str | None = None
    finetune: dict[str, Any] = field(default_factory=dict)  # fields of `FinetuneRecipe` that override the scale's
    rows: Count | None = None  # training rows to use, from the first, if all would take too long

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"tasks.{self.name}"
        if self.files and set(self.files) != {"train", "validation"}:
            raise ValueError(f"{where}.files are {', '.join(self.files)}; train and validation are needed")
        if bool(self.files) != bool(self.sample):
            raise ValueError(f"{where}: files and sample belong together; sample says what the rows are")
        if self.paper is not None and self.paper not in IN_PAPER:
            raise ValueError(f"{where}.paper is {self.paper!r}; the paper's columns are {', '.join(IN_PAPER)}")
        if not self.files:
            glue_task(self.name)
            for field_name in ("title", "paper"):
                if (given := getattr(self, field_name)) is not None:
                    raise ValueError(f"{where}.{field_name} is {given!r}; a GLUE task has its own, it goes with files")
        elif self.name in TASKS:
            raise ValueError(f"{where} has files of its own; only GLUE's official ones may go by that name")
        elif (self.title or "").casefold() in (title.casefold() for title in TITLES.values()):
            raise ValueError(
                f"{where}.title is {self.title!r}, an official task's name; it must say what these rows are, such as "
                f"'{self.title}, {self.sample}'"
            )

    @classmethod
    def of(cls, name: str, content: Any) -> "StudyTask":
        where = f"tasks.{name}"
        task: StudyTask = check(cls, {**(check(dict | None, content, where) or {}), "name": name}, where)
        check_part(FinetuneRecipe, task.finetune, f"{where}.finetune")
        return task

    def load(self, data: str) -> "LoadedTask":
        """Reads the examples from GLUE's folder or `hub:NAME`. FileNotFoundError or ValueError if it cannot."""
        if self.files:
            task, splits = self._tables(Path(data).expanduser())
        else:
            task = glue_task(self.name)
            splits = load_glue(self.name, data, [split for split in task.splits if not split.startswith("test")])
        if self.rows is not None:
            train = splits["train"]
            splits = {**splits, "train": train.select(range(min(self.rows, len(train))))}
        return LoadedTask(self, task, splits, data)

    def _tables(self, folder: Path) -> tuple[Task, dict[str, Rows]]:
        columns = {split: Columns(file.text_a, file.text_b, file.label) for split, file in self.files.items()}
        files = {split: folder / file.path for split, file in self.files.items()}
        task, splits = load_own(files, columns, name=self.name)
        if self.paper is None:
            return task, splits
        official = glue_task("mnli" if self.paper in KEYS.values() else self.paper)
        metric = official.main_metric
        if metric not in task.metrics:
            raise ValueError(
                f"tasks.{self.name} is to stand beside the paper's {self.paper}, which is scored by {metric}; "
                f"a table of {len(task.label_names)} classes has {', '.join(task.metrics)}"
            )
        if metric == "f1" and task.label_names != official.spelled:
            if set(task.label_names) != set(official.label_names):
                raise ValueError(
                    f"tasks.{self.name} has the classes {' and '.join(task.label_names)}; the paper's {self.paper} is "
                    f"scored by the F1 of {official.positive}, so they must be {' and '.join(official.label_names)}, "
                    f"or {' and '.join(official.spelled)}"
                )
            task, splits = load_own(files, columns, name=self.name, label_names=official.label_names)
        return replace(task, main_metric=metric), splits


@dataclass
class LoadedTask:
    """A task with its examples."""

    asked: StudyTask  # as specified in the scale
    task: Task
    splits: Mapping[str, Rows]  # without test splits
    data: str  # folder of the examples, or `hub:NAME`

    @property
    def title(self) -> str:
        return self.asked.title or TITLES.get(self.task.name, self.task.name)

    def digest(self) -> str:
        """A hash of all texts and labels, which identifies the examples."""
        sha, there = hashlib.sha256(), next(iter(self.splits["train"]))
        for name, rows in self.splits.items():
            sha.update(f"{name} {len(rows)}\n".encode())
            for field_name in filter(there.__contains__, ("text_a", "text_b", "label")):
                sha.update(to_json(column(rows, field_name)).encode())
        return sha.hexdigest()[:16]

    def unofficial_rows(self, split: str) -> str | None:
        """Returns the number of rows if it differs from GLUE's; None if it is GLUE's."""
        official = ROWS.get(self.task.name)
        if self.asked.files or official is None:
            return None
        there = {name: len(self.splits[name]) for name in ("train", split)}
        wanted = dict(zip(("train", *(name for name in self.splits if name != "train")), official, strict=True))
        differing = [f"{there[name]:,} {name} rows" for name in there if there[name] != wanted[name]]
        return " and ".join(differing).replace("_", " ") or None

    @cached_property
    def constants(self) -> dict[str, float | None]:
        """Returns the best score of a constant prediction by split; None for regression."""
        from mabert.data.metrics import compute  # loads scikit-learn and SciPy

        found: dict[str, float | None] = {}
        for split, rows in self.splits.items():
            labels = np.asarray(column(rows, "label"))
            answers = () if self.task.is_regression else range(len(self.task.label_names))
            scores = (compute(self.task, np.full_like(labels, answer), labels) for answer in answers)
            known = [score[self.task.main_metric] for score in scores]
            found[split] = max((score for score in known if score is not None), default=None)
        return found

    def columns(self, epochs: int) -> list[dict[str, Any]]:
        """Returns the task's columns in the results, for the report."""
        return [
            {
                "key": (key := KEYS.get(split, self.task.name)),
                "title": self.asked.title or TITLES.get(key, key),
                "metric": self.task.main_metric,
                "paper": self.asked.paper or (key if key in IN_PAPER else None),
                "sample": self.asked.sample or self.unofficial_rows(split),
                "train": len(self.splits["train"]),
                "validation": len(self.splits[split]),
                "epochs": epochs,
                "constant": self.constants[split],
                "source": self.data,
                "split": split,
                "task": self.task.name,
            }
            for split in self.splits
            if split != "train"
        ]
