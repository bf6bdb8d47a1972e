"""The GLUE tasks (Wang et al. 2019), from a folder in the official layout or from the hub."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mabert.data import rows
from mabert.data.hub import HubSource
from mabert.data.task import Task, row_label

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

HUB = "nyu-mll/glue"
_SPLITS = MappingProxyType({"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"})
_MNLI_SPLITS = MappingProxyType(
    {
        "train": "train.tsv",
        "validation_matched": "dev_matched.tsv",
        "validation_mismatched": "dev_mismatched.tsv",
        "test_matched": "test_matched.tsv",
        "test_mismatched": "test_mismatched.tsv",
    }
)
_ZERO_ONE = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class GlueTask(Task):
    """One task of GLUE: what it is, and how its files and its hub configuration are laid out.

    Attributes:
        folder: the official folder's name.
        text_a: column of the first text in the files.
        text_b: column of the second one; None for single sentences.
        label: column of the label.
        spelled: the classes as the files spell them, in the order of their ids.
        hub_text_a: column of the first text on the hub.
        hub_text_b: column of the second one.
        splits: file of each split, by the split's name on the hub.
        submissions: file of each test split on the leaderboard.
        header: columns of train and dev files that have no header line; None where they have one.
        skip_short: leave out rows with missing columns, as the official loader does; elsewhere they are an error.
    """

    folder: str = ""
    text_a: str = "sentence"
    text_b: str | None = None
    label: str = "label"
    spelled: tuple[str, ...] = _ZERO_ONE
    hub_text_a: str = "sentence"
    hub_text_b: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: _SPLITS)
    submissions: Mapping[str, str] = field(default_factory=dict)
    header: tuple[str, ...] | None = None
    skip_short: bool = False

    @property
    def submission_labels(self) -> tuple[str, ...]:
        """How the leaderboard wants each class."""
        return self.spelled


def _pair(text_a: str, text_b: str) -> dict[str, Any]:
    return {"text_a": text_a, "text_b": text_b, "hub_text_a": text_a, "hub_text_b": text_b}


_ACCURACY, _F1 = ("accuracy",), ("f1", "accuracy")
TASKS: Mapping[str, GlueTask] = MappingProxyType(
    {
        task.name: task
        for task in (
            GlueTask(
                "cola",
                ("unacceptable", "acceptable"),
                ("matthews_correlation", "accuracy"),
                "matthews_correlation",
                folder="CoLA",
                submissions={"test": "CoLA.tsv"},
                header=("source", "label", "mark", "sentence"),
            ),
            GlueTask(
                "sst2",
                ("negative", "positive"),
                _ACCURACY,
                "accuracy",
                folder="SST-2",
                submissions={"test": "SST-2.tsv"},
            ),
            GlueTask(
                "mrpc",
                ("not_equivalent", "equivalent"),
                _F1,
                "f1",
                folder="MRPC",
                **(_pair("#1 String", "#2 String") | {"hub_text_a": "sentence1", "hub_text_b": "sentence2"}),
                label="Quality",
                submissions={"test": "MRPC.tsv"},
            ),
            GlueTask(
                "qqp",
                ("not_duplicate", "duplicate"),
                _F1,
                "f1",
                folder="QQP",
                **_pair("question1", "question2"),
                label="is_duplicate",
                submissions={"test": "QQP.tsv"},
                skip_short=True,
            ),
            GlueTask(
                "mnli",
                ("entailment", "neutral", "contradiction"),
                _ACCURACY,
                "accuracy",
                folder="MNLI",
                **(_pair("sentence1", "sentence2") | {"hub_text_a": "premise", "hub_text_b": "hypothesis"}),
                label="gold_label",
                spelled=("entailment", "neutral", "contradiction"),
                splits=_MNLI_SPLITS,
                submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
            ),
            GlueTask(
                "qnli",
                _ENTAILMENT,
                _ACCURACY,
                "accuracy",
                folder="QNLI",
                **_pair("question", "sentence"),
                spelled=_ENTAILMENT,
                submissions={"test": "QNLI.tsv"},
            ),
            GlueTask(
                "rte",
                _ENTAILMENT,
                _ACCURACY,
                "accuracy",
                folder="RTE",
                **_pair("sentence1", "sentence2"),
                spelled=_ENTAILMENT,
                submissions={"test": "RTE.tsv"},
            ),
            GlueTask(
                "stsb",
                (),
                ("pearson", "spearman", "correlation"),
                "correlation",
                folder="STS-B",
                **_pair("sentence1", "sentence2"),
                label="score",
                spelled=(),
                submissions={"test": "STS-B.tsv"},
            ),
        )
    }
)


def glue_task(name: str) -> GlueTask:
    """The task of that name.

    Raises:
        ValueError: there is no such task.
    """
    if name not in TASKS:
        raise ValueError(f"unknown GLUE task {name!r}; known are {', '.join(TASKS)}")
    return TASKS[name]


def load_glue(task: str, source: str | Path = f"hub:{HUB}", splits: Sequence[str] | None = None) -> dict[str, Dataset]:
    """Loads a GLUE task.

    Args:
        task: `cola`, `sst2`, `mrpc`, `qqp`, `mnli`, `qnli`, `rte` or `stsb`.
        source: a folder of GLUE (`CoLA/`, `SST-2/`, ...) or of the task itself in the official layout, or `hub:NAME`
            for the hub's data set of that name with one configuration a task.
        splits: names of the splits to load. By default all: training and validation ones must be there, test ones may
            be missing from a folder.

    Returns:
        By the split's name on the hub (`train`, `validation`, `test`; `validation_matched`, `validation_mismatched`,
        ... of MNLI) a data set with `text_a`, `text_b` (pair tasks only), `label` (class id or score; not in test
        splits) and `index` (row number from 0; in test splits the file's own, which the leaderboard asks for).

    Raises:
        FileNotFoundError: a folder or file is missing.
        ValueError: unknown task or split, or a file is empty, not UTF-8, lacks a column or has an unknown label.
    """
    known = glue_task(task)
    for split in splits or ():
        if split not in known.splits:
            raise ValueError(f"{task} has no split {split!r}; its splits are {', '.join(known.splits)}")
    wanted = list(known.splits if splits is None else splits)
    if str(source).startswith("hub:"):
        return {split: _from_hub(known, str(source).removeprefix("hub:") or HUB, split) for split in wanted}
    folder = _task_folder(known, Path(source).expanduser())
    if splits is None:
        wanted = [name for name in wanted if not name.startswith("test") or (folder / known.splits[name]).exists()]
    return {split: _from_file(known, folder / known.splits[split], split) for split in wanted}


def _task_folder(task: GlueTask, source: Path) -> Path:
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: no such folder (the hub's data set is written hub:{HUB})")
    if (source / task.folder).is_dir():
        return source / task.folder
    if any((source / file).exists() for file in task.splits.values()):
        return source
    raise FileNotFoundError(f"{source}: no folder {task.folder}, nor any of {', '.join(task.splits.values())}")


def _from_file(task: GlueTask, path: Path, split: str) -> Dataset:
    from datasets import Dataset

    test = split.startswith("test")
    columns = [task.text_a, *([task.text_b] if task.text_b else []), *([] if test else [task.label])]
    lines = rows.tsv_lines(path)
    header = list(task.header) if task.header and not test else next(lines)[1]
    rows.check_columns(path, header, columns)
    at = {name: header.index(name) for name in [*columns, *(n for n in ("index", "id") if test and n in header)]}
    data: dict[str, list[Any]] = {name: [] for name in _column_names(task, test)}
    short = 0
    for number, fields in lines:
        where = f"{path}, line {number}"
        if len(fields) <= max(at.values()):
            short += 1
            if task.skip_short:
                continue
            raise ValueError(f"{where}: {len(fields)} columns where {len(header)} are expected")
        data["index"].append(_test_index(fields, at, where) if test and len(at) > len(columns) else len(data["index"]))
        data["text_a"].append(fields[at[task.text_a]])
        if task.text_b:
            data["text_b"].append(fields[at[task.text_b]])
        if not test:
            data["label"].append(row_label(task, task.spelled, fields[at[task.label]], where))
    if short:
        logger.warning("%s: left out %d rows with missing columns, as the official loader does", path, short)
    if not data["index"]:
        raise ValueError(f"{path}: a header line but no rows")
    return Dataset.from_dict(data)


def _column_names(task: GlueTask, test: bool) -> list[str]:
    return ["text_a", *(["text_b"] if task.text_b else []), *([] if test else ["label"]), "index"]


def _test_index(fields: list[str], at: Mapping[str, int], where: str) -> int:
    value = fields[at["index" if "index" in at else "id"]]
    if not value.isdecimal():
        raise ValueError(f"{where}: the index {value!r} is not a number")
    return int(value)


def _from_hub(task: GlueTask, name: str, split: str) -> Dataset:
    loaded = HubSource(name, task.name, split).dataset()
    old = [task.hub_text_a, *([task.hub_text_b] if task.hub_text_b else []), "label", "idx"]
    if split.startswith("test"):
        old.remove("label")
    for column in old:
        if column not in loaded.column_names:
            raise ValueError(f"hub:{name}:{task.name}: no column {column!r}; there is {', '.join(loaded.column_names)}")
    names = getattr(loaded.features.get("label"), "names", None)
    if names is not None and tuple(names) != task.label_names:
        raise ValueError(f"hub:{name}:{task.name}: the classes are {names}, not {list(task.label_names)}")
    new = dict(zip(old, _column_names(task, split.startswith("test")), strict=True))
    return loaded.select_columns(old).rename_columns({name: new[name] for name in old if new[name] != name})
