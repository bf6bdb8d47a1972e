"""The GLUE tasks (Wang et al. 2019), from a folder in the official layout or from the hub."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mabert.data import GLUE, LabelKind
from mabert.data.corpus import HubSource
from mabert.data.tasks import Rows, Task, as_rows, row_label
from mabert.files import tables
from mabert.files.places import check_source, expanded

logger = logging.getLogger(__name__)

_SPLITS = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
_MNLI_SPLITS = {
    "train": "train.tsv",
    "validation_matched": "dev_matched.tsv",
    "validation_mismatched": "dev_mismatched.tsv",
    "test_matched": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}


@dataclass(frozen=True)
class GlueTask(Task):
    """A GLUE task with the layout of its files and of its hub configuration."""

    folder: str = ""  # the official folder's name
    texts: tuple[str, ...] = ("sentence",)  # the text columns in the files, one or two
    label: str = "label"  # column of the label
    spelled: tuple[str, ...] = ("0", "1")  # spelling of the classes in the files, in the order of their ids
    hub_texts: tuple[str, ...] = ("sentence",)  # columns of the texts on the hub
    # the file of each split, by the split's name on the hub
    splits: Mapping[str, str] = field(default_factory=lambda: _SPLITS)
    submissions: Mapping[str, str] = field(default_factory=dict)  # the leaderboard's file of each test split
    # the columns of train and dev files without a header line; None if they have one
    header: tuple[str, ...] | None = None
    skip_short: bool = False  # skip rows with missing columns, as the official loader does, instead of raising an error

    def submitted(self, answers: Sequence[Any]) -> list[str]:
        """Formats class ids or scores `(examples,)` for the leaderboard; clips scores to 0 to 5."""
        if self.is_regression:
            return [f"{score:.3f}" for score in np.clip(answers, 0, 5)]
        return [self.spelled[answer] for answer in answers]


def _task(
    folder: str,
    label_names: tuple[str, ...],
    metrics: tuple[str, ...],
    texts: tuple[str, ...] = ("sentence",),
    **more: Any,
) -> GlueTask:
    name = folder.lower().replace("-", "")
    more = {"hub_texts": texts, "submissions": {"test": f"{folder}.tsv"}} | more
    main = metrics[0] if label_names else "correlation"
    kind: LabelKind = "classification" if label_names else "regression"
    return GlueTask(name, label_names, metrics, main, kind, folder=folder, texts=texts, **more)


_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")
_F1, _PAIR = ("f1", "accuracy"), ("sentence1", "sentence2")
_ALL = (
    _task(
        "CoLA",
        ("unacceptable", "acceptable"),
        ("matthews_correlation", "accuracy"),
        header=("source", "label", "mark", "sentence"),
    ),
    _task("SST-2", ("negative", "positive"), ("accuracy",)),
    _task("MRPC", ("not_equivalent", "equivalent"), _F1, ("#1 String", "#2 String"), hub_texts=_PAIR, label="Quality"),
    _task(
        "QQP", ("not_duplicate", "duplicate"), _F1, ("question1", "question2"), label="is_duplicate", skip_short=True
    ),
    _task(
        "MNLI",
        _INFERENCE,
        ("accuracy",),
        _PAIR,
        hub_texts=("premise", "hypothesis"),
        label="gold_label",
        spelled=_INFERENCE,
        splits=_MNLI_SPLITS,
        submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
    ),
    _task("QNLI", _ENTAILMENT, ("accuracy",), ("question", "sentence"), spelled=_ENTAILMENT),
    _task("RTE", _ENTAILMENT, ("accuracy",), _PAIR, spelled=_ENTAILMENT),
    _task("STS-B", (), ("pearson", "spearman", "correlation"), _PAIR, label="score", spelled=()),
)
TASKS: Mapping[str, GlueTask] = MappingProxyType({task.name: task for task in _ALL})


def glue_task(name: str) -> GlueTask:
    """Returns the task of that name; raises ValueError if there is none."""
    if name not in TASKS:
        raise ValueError(f"unknown GLUE task {name!r}; known are {', '.join(TASKS)}")
    return TASKS[name]


def load_glue(task: str, source: str | Path = GLUE, splits: Sequence[str] | None = None) -> dict[str, Rows]:
    """Loads a GLUE task: `cola`, `sst2`, `mrpc`, `qqp`, `mnli`, `qnli`, `rte` or `stsb`.

    `source` is a folder of GLUE (`CoLA/`, `SST-2/`, ...) or of the task itself in the official layout, or `hub:NAME`
    for a data set on the hub with one configuration per task. By default all splits are loaded; a folder must have the
    training and validation files, and may lack the test files.

    Returns a data set per split, by the split's name on the hub (`train`, `validation`, `test`; `validation_matched`,
    `validation_mismatched`, ... of MNLI), with `text_a`, `text_b` (pair tasks only), `label` (class id or score; not in
    test splits) and `index` (row number from 0; in test splits the file's own, for the leaderboard).

    Raises FileNotFoundError if a folder or file is missing, and ValueError for an unknown task or split, or if a file
    is empty, not UTF-8, lacks a column or has an unknown label.
    """
    known = glue_task(task)
    for split in splits or ():
        if split not in known.splits:
            raise ValueError(f"{task} has no split {split!r}; its splits are {', '.join(known.splits)}")
    wanted = list(known.splits if splits is None else splits)
    if str(source).startswith("hub:"):
        name = str(source).removeprefix("hub:") or GLUE.removeprefix("hub:")
        return {split: _from_hub(known, name, split) for split in wanted}
    folder = _task_folder(known, expanded(source))
    if splits is None:
        wanted = [name for name in wanted if not name.startswith("test") or (folder / known.splits[name]).exists()]
    return {split: _from_file(known, folder / known.splits[split], split.startswith("test")) for split in wanted}


def _task_folder(task: GlueTask, source: Path) -> Path:
    check_source(source, GLUE)
    if (source / task.folder).is_dir():
        return source / task.folder
    if any((source / file).exists() for file in task.splits.values()):
        return source
    raise FileNotFoundError(f"{source}: no folder {task.folder}, nor any of {', '.join(task.splits.values())}")


def _from_file(task: GlueTask, path: Path, test: bool) -> Rows:
    columns = dict(zip(("text_a", "text_b"), task.texts, strict=False)) | ({} if test else {"label": task.label})
    own_header = task.header if not test else None
    header, lines = (own_header, tables.fields_of(path)) if own_header else tables.header_and_fields(path)
    tables.check_columns(path, header, columns.values())
    if own_index := [name for name in ("index", "id") if test and name in header]:
        columns["index"] = own_index[0]
    data: dict[str, list[Any]] = {name: [] for name in {**columns, "index": ""}}
    short = 0
    for number, fields in lines:
        where, row = f"{path}, line {number}", dict(zip(header, fields, strict=False))
        if not row.keys() >= set(columns.values()):
            short += 1
            if task.skip_short:
                continue
            raise ValueError(f"{where}: {len(fields)} columns where {len(header)} are expected")
        found: dict[str, Any] = {"index": str(len(data["index"]))} | {name: row[of] for name, of in columns.items()}
        if not found["index"].isdecimal():
            raise ValueError(f"{where}: the index {found['index']!r} is not a number")
        found["index"] = int(found["index"])
        if not test:
            found["label"] = row_label(task, task.spelled, found["label"], where)
        for name, value in found.items():
            data[name].append(value)
    if short:
        logger.warning("%s: left out %d rows with missing columns, as the official loader does", path, short)
    if not data["index"]:
        raise ValueError(f"{path}: a header line but no rows")
    return as_rows(data)


def _from_hub(task: GlueTask, name: str, split: str) -> Rows:
    loaded = HubSource(name, task.name, split).dataset()
    new = dict(zip(task.hub_texts, ("text_a", "text_b"), strict=False))
    new |= ({} if split.startswith("test") else {"label": "label"}) | {"idx": "index"}
    for column in new:
        if column not in loaded.column_names:
            raise ValueError(f"hub:{name}:{task.name}: no column {column!r}; there is {', '.join(loaded.column_names)}")
    names = getattr(loaded.features.get("label"), "names", None)
    if names is not None and tuple(names) != task.label_names:
        raise ValueError(f"hub:{name}:{task.name}: the classes are {names}, not {list(task.label_names)}")
    renamed = {old: name for old, name in new.items() if old != name}
    return loaded.select_columns(list(new)).rename_columns(renamed)
