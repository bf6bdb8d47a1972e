"""What `mabert study` wrote of a study: read and checked."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mabert.reading import shown
from mabert_lab.report import paper
from mabert_lab.report.study.statistics import Seeds

VERSION = 1
METRICS = {"matthews_correlation": "MCC", "accuracy": "accuracy", "f1": "F1"}
MODELS = {**paper.NAMES, "modernbert": "ModernBERT"}

STARTED = "\N{DAGGER}"
"""Marks a task that started from the model fine-tuned on another."""

QUESTIONS = {
    "tab:pattern_glue": "pattern",
    "tab:glue_full_budget": "baselines",
    "fig:glue_budget_avg": "budget",
    "tab:ablation_integration": "components",
    "tab:pooling_pred_100pct": "pooling",
}
"""What studies ask that the paper asks too, by the labels of its tables and figure, in the order of the page."""

_STUDY = ("study", "title", "reference", "scale", "environment", "settings", "columns", "rows")
_COLUMN = ("key", "title", "metric")
_ROW = ("arm", "budget", "pretraining", "scores")


@dataclass(frozen=True)
class Column:
    """A task of a study.

    Attributes:
        key: In the scores.
        title: What it is called.
        metric: Key of the metric that it is scored by.
        paper: The paper's column of this task; None where it has none.
        sample: What rows it has, where they are not the official ones; None where they are.
        train: Training rows; None where not told.
        validation: Rows it is scored on; None where not told.
        epochs: Passes over the training rows; None where not told.
        constant: The best score that one class for all could have; None where there is none, or not told.
        start: The task whose fine-tuned model it started from; None where it was the pretrained one.
        source: Where the data came from.
    """

    key: str
    title: str
    metric: str
    paper: str | None = None
    sample: str | None = None
    train: int | None = None
    validation: int | None = None
    epochs: int | None = None
    constant: float | None = None
    start: str | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """The title, which for a sample says so."""
        return f"{self.title}, {self.sample}" if self.sample and self.sample not in self.title else self.title

    @property
    def marked(self) -> str:
        """The name, marked where it did not start from the pretrained model."""
        return f"{self.name}{STARTED if self.start else ''}"

    @property
    def heading(self) -> str:
        """The same with its metric."""
        return f"{self.marked} ({METRICS.get(self.metric, self.metric)})"


@dataclass(frozen=True)
class Failure:
    """A run that broke off.

    Attributes:
        column: Its task.
        seed: Its seed; None where the file does not tell.
        reason: Why, in one line.
    """

    column: str
    seed: int | None
    reason: str


@dataclass(frozen=True)
class Row:
    """One pretrained model of a study and its scores.

    Attributes:
        arm: What it differs in.
        paper: Key of its row in the paper's table; None where it has none.
        budget: Share of the pretraining steps.
        pretraining: As the file has it: ``status``, ``reason``, ``steps``, ``tokens``, ``held_out_loss`` in nats,
            ``parameters``, ``seconds``, ``history`` and so on; any of them may be missing.
        scores: By task, metric and seed.
        failed: Fine-tuning runs that broke off.
    """

    arm: str
    paper: str | None
    budget: float
    pretraining: Mapping[str, Any]
    scores: Mapping[str, Mapping[str, Seeds]]
    failed: tuple[Failure, ...]


@dataclass(frozen=True)
class Study:
    """One study at one scale.

    Attributes:
        name: ``pattern``, ``components``, ``pooling``, ``budget``, ``baselines``, or that of a file of one's own.
        title: What it is called.
        label: Of the paper's table, by which rows and claims are set beside it; None where it has none.
        note: What a reader must know to read the numbers; may be empty.
        reference: Arm that the others are compared with.
        scale: Name of the size of its runs.
        environments: Machines, versions and commits of its cells, the last one last.
        settings: ``pretraining``, ``finetuning``, ``arms``, ``tasks`` with the fine-tuning of each, ``seeds`` and
            ``from_mnli``; any of them may be missing.
        columns: Its tasks.
        rows: Its models.
        file: Name of the file that it stood in.
        finished: When its last cell was finished; empty before the first one was.
    """

    name: str
    title: str
    label: str | None
    note: str
    reference: str
    scale: str
    environments: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    file: str
    finished: str = ""

    @property
    def question(self) -> str | None:
        """What it asks, of `QUESTIONS`; None where the paper does not ask it."""
        return QUESTIONS.get(self.label or "")

    @property
    def slug(self) -> str:
        """What the names of its files begin with."""
        return f"{self.name}-{self.scale}"

    @property
    def budgets(self) -> list[float]:
        """Those of its rows, smallest first."""
        return sorted({row.budget for row in self.rows})

    def scores(self, row: Row) -> dict[str, Seeds]:
        """A row's scores by task, each by its own metric; without the tasks that have none."""
        found = {column.key: row.scores.get(column.key, {}).get(column.metric, {}) for column in self.columns}
        return {column: seeds for column, seeds in found.items() if seeds}

    def row(self, arm: str, budget: float) -> Row | None:
        """A row by its arm and budget."""
        return next((row for row in self.rows if row.arm == arm and row.budget == budget), None)

    def reference_of(self, row: Row) -> Row | None:
        """What a row is compared with: the reference arm of its budget and variant."""
        variant = self.variant(row)
        return self.row(f"{self.reference}, {variant}" if variant else self.reference, row.budget)

    def variant(self, row: Row) -> str:
        """What sets a row apart from one that the paper has: of ``none, both directions`` the second part.

        Empty for a row of the paper's own, and where the reference has no such variant at this budget, or the row is
        that itself: these are compared with the plain reference.
        """
        variant = row.arm.partition(", ")[2]
        reference = self.row(f"{self.reference}, {variant}", row.budget)
        return variant if row.paper is None and reference is not None and reference is not row else ""

    def rows_by_paper(self, budget: float, variant: str = "") -> dict[str, Row]:
        """Rows of one budget by their keys in the paper's table, or the same of a variant."""
        own = {row.arm: row.paper for row in self.rows if row.paper is not None}
        if not variant:
            return {row.paper: row for row in self.rows if row.paper is not None and row.budget == budget}
        found = {paper_key: self.row(f"{arm}, {variant}", budget) for arm, paper_key in own.items()}
        return {paper_key: row for paper_key, row in found.items() if row is not None}

    def named(self, columns: Iterable[str]) -> str:
        """Names of tasks as a sentence has them, in the order of the study."""
        wanted = set(columns)
        names = [column.name for column in self.columns if column.key in wanted]
        return ("; " if any("," in name for name in names) else ", ").join(names) or "no task yet"

    def papers(self, columns: Iterable[str]) -> tuple[str, ...]:
        """The paper's columns of tasks, of those that it has."""
        wanted = set(columns)
        own = [column.paper for column in self.columns if column.key in wanted]
        return tuple(name for name in own if name is not None and name in paper.TASKS)

    def label_of(self, arm: str) -> str:
        """How an arm is shown."""
        known = {"components": paper.INTEGRATIONS, "pooling": paper.POOLINGS}.get(self.question or "", MODELS)
        return known.get(arm, arm)


def read_study(content: Mapping[str, Any], file: str) -> Study:
    """Check a study and make it a record.

    Args:
        content: Of the file.
        file: Its name, for errors and for the page.

    Raises:
        ValueError: Of another version, incomplete, or with scores that cannot be; naming the file and the place.
    """
    if content.get("version") != VERSION:
        raise ValueError(f"{file}: version {content.get('version')!r} of a study; needed is {VERSION}")
    _need(content, _STUDY, file)
    for name in ("study", "scale"):  # which name the files of a report
        if not re.fullmatch(r"[^./\\\0-\x1f][^/\\\0-\x1f]*", str(content[name])):
            raise ValueError(f"{file}: {name} is {shown(content[name])}; it must be a name, without a path")
    columns = tuple(_column(raw, file) for raw in content["columns"])
    known = {column.key for column in columns}
    here = [content["environment"]]
    ran = here if content.get("environments") is None else content["environments"]  # empty before a cell is finished
    return Study(
        name=content["study"],
        title=content["title"],
        label=content.get("label"),
        note=content.get("note") or "",
        reference=content["reference"],
        scale=content["scale"],
        environments=tuple(ran or here),
        settings=content["settings"],
        columns=columns,
        rows=tuple(_row(raw, known, file) for raw in content["rows"]),
        file=file,
        finished=max((str(about.get("date", "")) for about in ran), default=""),
    )


def _column(raw: Mapping[str, Any], file: str) -> Column:
    _need(raw, _COLUMN, f"{file}: a column")
    known = {name: raw[name] for name in Column.__dataclass_fields__ if raw.get(name) is not None}
    return Column(**known)


def _row(raw: Mapping[str, Any], columns: set[str], file: str) -> Row:
    _need(raw, _ROW, f"{file}: a row")
    place = f"{file}: {raw['arm']}"
    unknown = sorted(raw["scores"].keys() - columns)
    if unknown:
        raise ValueError(f"{place} has scores of {', '.join(unknown)}; the columns are {', '.join(sorted(columns))}")
    return Row(
        arm=raw["arm"],
        paper=raw.get("paper"),
        budget=float(raw["budget"]),
        pretraining=raw["pretraining"] or {},
        scores={
            column: {name: _seeds(seeds, f"{place}, {column}, {name}") for name, seeds in metrics.items()}
            for column, metrics in raw["scores"].items()
        },
        failed=tuple(map(_failure, raw.get("failed") or ())),
    )


def _failure(raw: Mapping[str, Any]) -> Failure:
    reason = " ".join((raw.get("reason") or "no reason told").split())
    return Failure(raw.get("column", "?"), raw.get("seed"), reason)


def _seeds(raw: Mapping[str, Any], place: str) -> dict[int, float]:
    for seed, score in raw.items():
        if not str(seed).isdigit():
            raise ValueError(f"{place}: the seed is {seed!r}; it must be a whole number")
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise ValueError(f"{place}, seed {seed}: the score is {score!r}; it must be a finite number")
    return {int(seed): float(score) for seed, score in raw.items()}


def _need(raw: Mapping[str, Any], names: Iterable[str], place: str) -> None:
    absent = [name for name in names if name not in raw]
    if absent:
        raise ValueError(f"{place} lacks {', '.join(absent)}")
