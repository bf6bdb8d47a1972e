"""Reads the results of `mabert study`, and summarises scores over seeds.

Differences are paired. The interval is the bootstrap's percentile interval (Efron 1979) of the mean difference. With
five pairs it is too narrow: if nothing differs, it excludes 0 about once in seven. So differences are decided by the
paired t test (Student 1908). Neither covers the variation of pretraining itself, since the seeds of an arm share one
pretrained model.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from mabert_lab.report import paper

LEVEL = 0.95
LEAST_PAIRS = 5  # for a verdict: if arms were alike, four pairs would all point one way in one case of eight
NO_SCORES = pd.Series(dtype=float)
_ROUNDING = 1e-12


class Difference(NamedTuple):
    """The difference of two arms, or of two such differences."""

    mean: float  # mean over the pairs
    low: float | None  # lower end of the interval; None for one pair
    high: float | None  # upper end; None for one pair
    p_value: float | None  # p-value of the two-sided paired t test; None for one pair
    pairs: int  # number of seeds that both arms have

    @property
    def equal(self) -> bool:
        """Whether both arms have the same score in every pair."""
        return self.mean == 0 and self.low in (None, 0) and self.high in (None, 0)

    def sign(self, comparisons: int = 1) -> int:
        """Returns 1 if above, -1 if below, 0 if undecided; the number of comparisons divides the level (Bonferroni)."""
        if self.p_value is None or self.pairs < LEAST_PAIRS or self.p_value > (1 - LEVEL) / comparisons:
            return 0
        return 1 if self.mean > 0 else -1


def summary(scores: Iterable[float]) -> tuple[float, float, int]:
    """Returns mean (NaN for no score), sample standard deviation (NaN for fewer than two) and number of scores."""
    values = pd.Series(scores, dtype=float).dropna().sort_values()
    return float(values.mean()), float(values.std()), len(values)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Returns the percentile interval of the mean, over all resamples of up to six values, or over 20,000, always the
    same ones, of more; None for fewer than two values."""
    if len(values) < 2:
        return None
    ordered = np.sort(np.array(values))  # so that the draws do not depend on the order of the values
    if len(values) > 6:  # 6 ** 6 are 46,656
        drawn = stats.bootstrap((ordered,), np.mean, n_resamples=20_000, method="percentile", rng=0)
        return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
    means = ordered[np.indices((len(values),) * len(values)).reshape(len(values), -1)].mean(axis=0)
    return tuple(np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist())


def difference(gaps: pd.Series) -> Difference | None:
    """Summarises the gaps of two arms by seed; None if there are none."""
    values = gaps.dropna().sort_index().to_numpy(float)
    if not values.size:
        return None
    low, high = interval(values) or (None, None)
    p_value = None
    if values.size > 1:  # where all gaps are equal, the test would divide by zero
        equal = values.std() <= _ROUNDING
        p_value = float(abs(values.mean()) <= _ROUNDING if equal else stats.ttest_1samp(values, 0).pvalue)
    return Difference(float(values.mean()), low, high, p_value, values.size)


def above(scores: pd.Series, floor: float) -> bool:
    """Checks whether scores are above a number, by the t test; below `LEAST_PAIRS` scores, by their mean."""
    found = difference(scores - floor)
    if found is None:
        return False
    return found.mean > 0 if found.pairs < LEAST_PAIRS else found.sign() == 1


def averages(scores: pd.DataFrame, columns: Iterable[str]) -> pd.Series:
    """Averages scores (rows are seeds) over some tasks by seed, for seeds that have all of them."""
    wanted = list(columns)
    if not wanted or not set(wanted) <= set(scores):
        return NO_SCORES
    found = scores[wanted].dropna()
    return pd.Series(np.ascontiguousarray(found).mean(axis=1), found.index)


VERSION = 1
METRICS = {"matthews_correlation": "MCC", "accuracy": "accuracy", "f1": "F1"}

QUESTIONS = {
    "tab:pattern_glue": "pattern",
    "tab:glue_full_budget": "baselines",
    "fig:glue_budget_avg": "budget",
    "tab:ablation_integration": "components",
    "tab:pooling_pred_100pct": "pooling",
}
"""Questions of studies that the paper asks too, by the labels of its tables and figure, in the page's order."""


@dataclass(frozen=True)
class Column:
    """A task of a study."""

    key: str  # in the scores
    title: str
    metric: str
    paper: str | None = None  # the paper's column of this task; None if there is none
    sample: str | None = None  # description of its rows; None for the official ones
    train: int | None = None  # number of training rows; None if unknown, like the next three
    validation: int | None = None  # number of rows it is scored on
    epochs: int | None = None  # passes over the training rows
    constant: float | None = None  # best score of a constant answer
    source: str = ""  # origin of the data

    @property
    def name(self) -> str:
        """The title, with a remark for a sample."""
        return f"{self.title}, {self.sample}" if self.sample and self.sample not in self.title else self.title

    @property
    def heading(self) -> str:
        return f"{self.name} ({METRICS.get(self.metric, self.metric)})"


@dataclass(frozen=True, eq=False)
class ArmRun:
    """One pretrained model of a study and its scores."""

    name: str  # what distinguishes it
    paper: str | None  # key of its row in the paper's table; None if there is none
    budget: float  # share of the pretraining steps
    pretraining: Mapping[str, Any]  # as in the file: ``status``, ``held_out_loss`` in nats and so on, if known
    scores: pd.DataFrame  # scores with seeds or conversions as rows and tasks as columns, each by its own metric
    further: pd.DataFrame = field(default_factory=pd.DataFrame)  # by other metrics; a column is a task and a metric
    failed: tuple[tuple[str, int | None, str], ...] = ()  # column, seed (None for all) and reason of each


@dataclass(frozen=True, eq=False)
class StudyRun:
    """One study at one scale."""

    name: str  # ``pattern``, ``components``, ``pooling``, ``budget``, ``baselines``, or the name of the user's own file
    title: str
    label: str | None  # label of the paper's table, with whose arms and claims it is compared; None if there is none
    note: str  # explanation for readers of the numbers; may be empty
    reference: str  # arm that the others are compared with
    scale: str  # name of the size of its runs
    environments: tuple[Mapping[str, Any], ...]  # machines, versions and commits of its cells, the last one last
    settings: Mapping[str, Any]  # ``pretraining`` or ``conversion``, ``finetuning``, ``tasks``, ``seeds``, if known
    columns: tuple[Column, ...]
    arms: tuple[ArmRun, ...]  # its models, by budget
    finished: str = ""  # time at which its last cell finished; empty before the first one
    learnt_below: float = paper.LEARNT_BELOW  # held-out loss in nats a masked token
    exact: bool = False  # whether differences count without a test, as those of the paper's means do

    @property
    def question(self) -> str | None:
        """Its question, a value of `QUESTIONS`; None if the paper does not ask it."""
        return QUESTIONS.get(self.label or "")

    @property
    def converts(self) -> bool:
        """Whether its arms are conversions of one encoder; scores are then by conversion and not by seed."""
        return "conversion" in self.settings

    @property
    def unit(self) -> str:
        """What varies within an arm: seed or conversion."""
        return "conversion" if self.converts else "seed"

    @property
    def budgets(self) -> list[float]:
        """Budgets of its arms, smallest first."""
        return sorted({arm.budget for arm in self.arms})

    def size(self, budgets: Sequence[float] = ()) -> str:
        """Describes its models at some budgets (default, the largest), or its scale if nothing is recorded."""
        named = ", ".join(map(percent, budgets))
        share = [f"{named} of the steps"] if budgets and self.budgets != list(budgets) else []
        arms = [arm.pretraining for arm in self.arms if arm.budget in (budgets or self.budgets[-1:])]
        found = []
        for name in ("parameters", "tokens"):
            if own := sorted(arm[name] for arm in arms if arm.get(name)):
                ends = dict.fromkeys(f"{end * 1e-6:,.1f}" for end in (own[0], own[-1]))
                found.append(f"{' to '.join(ends)} M {name}")
        return ", ".join([*share, *found] or [f"scale {self.scale}"])

    @property
    def seeds(self) -> int:
        """Number of fine-tuning seeds, done or planned."""
        return len({seed for arm in self.arms for seed in arm.scores.index}.union(self.settings.get("seeds") or []))

    @property
    def scored(self) -> list[Column]:
        """Tasks for which any arm has a score."""
        return [column for column in self.columns if any(column.key in arm.scores for arm in self.arms)]

    @property
    def averaged(self) -> list[str]:
        """Keys of the scored tasks to average: those that the paper has too, if it asks the question, else all."""
        both = [column.key for column in self.scored if column.paper in paper.TASKS and self.question]
        return both or [column.key for column in self.scored]

    def arm(self, name: str, budget: float, variant: str = "") -> ArmRun | None:
        name = f"{name}, {variant}" if variant else name
        return next((arm for arm in self.arms if arm.name == name and arm.budget == budget), None)

    def variant(self, arm: ArmRun) -> str:
        """Returns the part of an arm's name that is not the paper's: the second part of ``none, both directions``.
        Empty for a row of the paper, and if the reference has no such variant at this budget or the arm is that
        variant: these are compared with the plain reference."""
        variant = arm.name.partition(", ")[2]
        reference = self.arm(self.reference, arm.budget, variant)
        return variant if arm.paper is None and reference is not None and reference is not arm else ""

    def by_paper(self, budget: float, variant: str = "") -> dict[str, ArmRun]:
        """Returns the arms of one budget, or their variants, by key in the paper's table."""
        names = {arm.paper: arm.name for arm in self.arms if arm.paper is not None}
        found = {key: self.arm(name, budget, variant) for key, name in names.items()}
        return {key: arm for key, arm in found.items() if arm is not None}

    def table(self, budget: float) -> paper.Table | None:
        """Returns the paper's table to compare a budget's arms with; None if there is none."""
        if self.question in ("budget", "baselines"):
            return paper.BY_SHARE.get(budget)
        return paper.TABLES.get(self.question or "")

    @property
    def printed(self) -> list[paper.Table]:
        """Returns the paper's tables to compare its arms with, each once."""
        found = map(self.table, self.budgets)
        return list({each.label: each for each in found if each is not None}.values())

    def named(self, columns: Iterable[str]) -> str:
        """Lists names of tasks for a sentence, in the order of the study."""
        wanted = set(columns)
        names = [column.name for column in self.columns if column.key in wanted]
        return ("; " if any("," in name for name in names) else ", ").join(names) or "no task yet"

    def label_of(self, name: str) -> str:
        return paper.NAMES.get(name, name)


def percent(share: float) -> str:
    """Formats a budget, such as `10%` or `12.5%`."""
    return f"{100 * share:g}%"


def read_study(content: Mapping[str, Any]) -> StudyRun:
    """Makes a record of a study's file. KeyError if a field is missing; ValueError if a value is wrong."""
    from mabert.files.reading import shown

    if content.get("version") != VERSION:
        raise ValueError(f"version {content.get('version')!r} of a study; it must be {VERSION}")
    for name in ("study", "scale"):  # they name the files of a report
        if not re.fullmatch(r"[^./\\\0-\x1f][^/\\\0-\x1f]*", str(content[name])):
            raise ValueError(f"{name} is {shown(content[name])}; it must be a name, without a path")
    own = Column.__dataclass_fields__
    columns = [Column(**{name: raw[name] for name in own if raw.get(name) is not None}) for raw in content["columns"]]
    here = [content["environment"]]
    ran = here if content.get("environments") is None else content["environments"]  # empty before a cell is finished
    arms = [_arm(raw, columns) for raw in content["rows"]]
    return StudyRun(
        **{name: content[name] for name in ("title", "reference", "scale", "settings")},
        name=content["study"],
        label=content.get("label"),
        note=content.get("note") or "",
        environments=tuple(ran or here),
        columns=tuple(columns),
        arms=tuple(sorted(arms, key=lambda arm: arm.budget)),
        finished=max((str(about.get("date", "")) for about in ran), default=""),
        learnt_below=float(content.get("learnt_below") or paper.LEARNT_BELOW),
    )


def _arm(raw: Mapping[str, Any], columns: Sequence[Column]) -> ArmRun:
    own = {column.key: column.metric for column in columns}
    every = {
        (key, metric): pd.Series({int(seed): float(score) for seed, score in seeds.items()}, dtype=float)
        for key in own
        for metric, seeds in raw["scores"].get(key, {}).items()
    }
    if not all(math.isfinite(score) for seeds in every.values() for score in seeds):
        raise ValueError(f"{raw['arm']}: a score is not finite")  # a claim would fall by it
    scores = pd.DataFrame({key: seeds for (key, metric), seeds in every.items() if metric == own[key] and len(seeds)})
    further = pd.DataFrame({(key, metric): seeds for (key, metric), seeds in every.items() if metric != own[key]})
    failed = tuple(
        (each["column"], each.get("seed"), each.get("reason") or "no reason told") for each in raw.get("failed") or ()
    )
    return ArmRun(raw["arm"], raw.get("paper"), float(raw["budget"]), raw["pretraining"] or {}, scores, further, failed)
