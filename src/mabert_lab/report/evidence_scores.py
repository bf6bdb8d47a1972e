"""Judges claims by the scores of studies: paired differences of arms, decided by a test."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import pandas as pd

from mabert_lab.report import paper
from mabert_lab.report.judge import Claim, Comparison, Verdict, verdict_on
from mabert_lab.report.statistics import LEAST_PAIRS, NO_SCORES, above, averages, difference
from mabert_lab.report.studies import Arm, Study, percent

DEARER = 1.25
"""Factor in pretraining time that counts as dearer; it is large because each run was timed once."""

UNLEARNT = "no better than one answer for all"
"""Outcome of a comparison of two models that learnt nothing."""


def of_studies(claim: Claim, studies: Sequence[Study], exact: bool = False) -> Iterator[Verdict]:
    """Yields a verdict for each study of the claim's question and each variant of its arms, over all budgets that the
    claim names, or for each budget if it names none. Differences of `exact` numbers count without a test."""
    rule = claim.rule
    own = [study for study in studies if study.question in rule["asks"]]
    for study in own:
        title = f"{study.title}, " if len(own) > 1 else ""
        if rule.get("form") in ("rising", "steady"):
            compared = (_rising if rule["form"] == "rising" else _steady)(claim, study, exact)
            yield verdict_on(claim, f"{title}at {study.size(rule.get('budgets', ()))}", compared)
            continue
        for budgets, variant in _places(claim, study):
            gaps = [gap for budget in budgets for gap in _pairs(claim, study, budget, variant)]
            together = _together(claim)
            compared = _compared(study, gaps, exact, together - together // 2)
            if rule.get("form") == "trade":
                compared = [_traded(*each) for each in zip(gaps, compared, strict=True)]
            place = f"{title}at {study.size(budgets)}"
            yield verdict_on(claim, f"{variant}, {place}" if variant else place, compared, together)


def _places(claim: Claim, study: Study) -> Iterator[tuple[Sequence[float], str]]:
    """Yields the budgets and the variant of the arms at each place."""
    named = claim.rule.get("budgets")
    for budgets in [named] if named else [[budget] for budget in study.budgets]:
        yield budgets, ""
        for variant in dict.fromkeys(filter(None, map(study.variant, study.arms))):
            if any(study.by_paper(budget, variant) for budget in budgets):
                yield budgets, variant


def _together(claim: Claim) -> int:
    """Returns of how many comparisons the majority decides: two arms on each task, or one arm's average over each
    other's."""
    return len(claim.rule.get("tasks") or claim.rule["second"]) if claim.rule.get("most") else 1


class _Gap(NamedTuple):
    """A difference that a claim needs: its name, the gaps by seed, the tasks, what is missing, and the arms."""

    name: str
    gaps: pd.Series
    columns: tuple[str, ...]
    lacking: list[tuple[str, str]]
    arms: Sequence[Arm | None]


def _pairs(claim: Claim, study: Study, budget: float, variant: str) -> list[_Gap]:
    """Compares arms of `first` with arms of `second` at one budget, on average or on each task."""
    rule, gaps, arms = claim.rule, [], study.by_paper(budget, variant)
    tasks = rule.get("tasks", ())
    meet = zip if rule.get("paired") else product
    pairs = [(first, second) for first, second in meet(rule["first"], rule["second"]) if first != second]
    columns = _averaged(study, [arms[key] for pair in pairs for key in pair if key in arms])
    at = f" at {percent(budget)}" if len(rule.get("budgets", ())) > 1 else ""
    for pair in pairs:
        both = [arms.get(key) for key in pair]
        ours, theirs = map(_scores, both)
        name = " over ".join(study.label_of(arms[key].name if key in arms else key) for key in pair)
        lacking = [("models", study.label_of(key)) for key in pair if key not in arms]
        if not arms:
            lacking = [("budgets", percent(budget))]
        if not tasks:
            told = f"{name}{_on_some(study, columns)}{at}"
            gaps.append(_Gap(told, averages(ours, columns) - averages(theirs, columns), columns, lacking, both))
        for task in tasks:
            on = [rule["widest"], task] if "widest" in rule else [task]
            gaps.append(_on(study, on, f"{name}{at} on ", ours - theirs, lacking, both))
    return gaps


def _on(
    study: Study,
    tasks: Sequence[str],
    name: str,
    found: pd.DataFrame,
    lacking: list[tuple[str, str]],
    arms: Sequence[Arm | None],
) -> _Gap:
    """Returns the gap on one of the paper's tasks, or the gap on the first of two minus that on the second. Samples of
    a task do not count."""
    keys = {column.paper: column.key for column in study.columns if not column.sample}
    first, *second = (found.get(keys.get(task, ""), NO_SCORES) for task in tasks)
    absent = [("tasks", paper.TASKS[task]["title"]) for task in tasks if task not in keys]
    used = tuple(keys[task] for task in tasks if task in keys)
    told = name + " less that on ".join(paper.TASKS[task]["title"] for task in tasks)
    return _Gap(told, first - second[0] if second else first, used, lacking + absent, arms)


def _traded(gap: _Gap, compared: Comparison) -> Comparison:
    """Adjusts a comparison for cost: a second arm that is dearer does not refute the claim."""
    if compared.sign in (1, None) or gap.gaps.count() < LEAST_PAIRS or compared.outcome == UNLEARNT:
        return compared
    first, second = (arm.pretraining.get("seconds") for arm in gap.arms if arm is not None)
    if not first or not second:
        return compared._replace(sign=None, needs=(("times of pretraining", gap.name),))
    told = f"{compared.told} at {first / second:.2f} times the time"
    if second < DEARER * first:
        return compared._replace(told=told)
    return compared._replace(sign=1, told=told, outcome="cheaper")


def _rising(claim: Claim, study: Study, exact: bool) -> list[Comparison]:
    """Compares each budget's average with that of the previous one."""
    arms = {arm.budget: arm for arm in study.arms if arm.paper in claim.rule["first"]}
    columns, gaps, steps = _averaged(study, list(arms.values())), [], list(pairwise(sorted(paper.GLUE)))
    for earlier, later in [*steps, *(each for each in pairwise(sorted(arms)) if each not in steps)]:
        both = [arms.get(budget) for budget in (later, earlier)]
        lacking = [("budgets", percent(budget)) for budget in (earlier, later) if budget not in arms]
        after, before = (averages(_scores(arm), columns) for arm in both)
        name = f"{percent(later)} over {percent(earlier)}{_on_some(study, columns)}"
        gaps.append(_Gap(name, after - before, columns, lacking, both))
    compared = _compared(study, gaps, exact)
    # Measured neighbours with other budgets of the paper between them can only refute the claim.
    return compared[: len(steps)] + [each for each in compared[len(steps) :] if each.sign == -1]


def _steady(claim: Claim, study: Study, exact: bool) -> list[Comparison]:
    """Compares the lead over its deviation across budgets on one task with that on each other task."""
    (key,), rivals = claim.rule["first"], claim.rule["second"]
    arms = {budget: study.by_paper(budget) for budget in claim.rule["budgets"]}
    lacking = [("budgets", percent(budget)) for budget, found in arms.items() if not found]
    there = [found for found in arms.values() if found]
    lacking += [("models", study.label_of(row)) for row in (key, *rivals) if any(row not in found for found in there)]
    steadiness = pd.DataFrame()
    if not lacking:
        leads = [found[key].scores - sum(found[row].scores for row in rivals) / len(rivals) for found in there]
        by_seed = pd.concat(leads, keys=arms).swaplevel().groupby(level=0)
        # Drops seeds that are missing under any budget.
        steadiness = (by_seed.mean() / (by_seed.std() + 1e-6)).where(by_seed.count() == len(leads))
    every = [arm for found in there for arm in found.values()]
    gaps = [_on(study, [claim.rule["widest"], task], "on ", steadiness, lacking, every) for task in claim.rule["tasks"]]
    return _compared(study, gaps, exact)


def _compared(study: Study, gaps: Sequence[_Gap], exact: bool, together: int = 1) -> list[Comparison]:
    """Makes comparisons of paired differences.

    Equal scores in every pair refute a claim, since neither arm is above the other. If all differences must support a
    claim, none needs a correction. If a majority must, the level is divided by one more than the number of differences
    that may fail (Benjamini and Heller 2008). A difference that refutes the claim is corrected for all differences.
    """
    comparisons = sum(gap.gaps.notna().any() for gap in gaps)
    return [_compare(study, gap, exact, comparisons, together) for gap in gaps]


def _compare(study: Study, gap: _Gap, exact: bool, comparisons: int, together: int) -> Comparison:
    found = difference(gap.gaps)
    if found is None:
        return Comparison(gap.name, None, needs=tuple(gap.lacking) or (("scores", study.named(gap.columns)),))
    ends = "" if found.low is None else f" [{found.low:+.3f}, {found.high:+.3f}] ({found.pairs})"
    name = gap.name
    more = f"{LEAST_PAIRS} or more" if found.pairs < LEAST_PAIRS else f"more than {found.pairs}"
    need = ("seeds", more)
    if exact:
        sign = 0 if abs(found.mean) < 1e-9 else int(math.copysign(1, found.mean))
        outcome = ("equal", "above", "below")[sign]
    elif not _learnt(study, gap.arms, gap.columns):
        sign, outcome = 0, UNLEARNT
        need = ("longer pretraining, for neither model beats one answer for all on", study.named(gap.columns))
    elif found.equal:
        sign, outcome = -int(found.pairs >= LEAST_PAIRS), "equal in every pair"
        name += _why_equal(study, gap.arms)
    else:
        sign = 1 if found.sign(together) == 1 else min(found.sign(comparisons), 0)
        outcome = ("not told apart", "above", "below")[sign]
    return Comparison(name, sign, outcome, f"{found.mean:+.3f}{ends}", found.mean, (need,))


def _why_equal(study: Study, arms: Sequence[Arm | None]) -> str:
    """Explains equal scores of two arms if their records show that they are one model."""
    first, second = (arm for arm in arms if arm is not None)
    cells = [arm.pretraining.get("cell") for arm in (first, second)]
    if None in cells or cells[0] != cells[1] or not first.scores.equals(second.scores):
        return ""
    asked = study.settings.get("arms") or {}
    ours, theirs = (asked.get(arm.name, {}).get("finetune", {}) for arm in (first, second))
    apart = [f"`{name}` {value} and {theirs.get(name)}" for name, value in ours.items() if theirs.get(name) != value]
    told = f" with {', '.join(apart)}" if apart else ""
    return f"; one pretraining, and the same scores{told}"


def _averaged(study: Study, arms: Sequence[Arm]) -> tuple[str, ...]:
    """Returns the paper's tasks to average arms over: those on which any arm learnt something, or if there are none,
    all with scores."""
    scored = [column for column in study.columns if any(column.key in arm.scores for arm in arms)]
    keys = [column.key for column in scored if column.paper in paper.TASKS]
    return tuple([key for key in keys if _learnt(study, arms, [key])] or keys)


def _on_some(study: Study, keys: Sequence[str]) -> str:
    """Names the tasks of an average that leaves out some of the study's."""
    whole = [column.key for column in study.columns if column.paper in paper.TASKS]
    return "" if set(keys) >= set(whole) else f" on {study.named(keys)}"


def _learnt(study: Study, arms: Iterable[Arm | None], keys: Iterable[str]) -> bool:
    """Checks whether any arm beats a constant answer on any of some tasks, or that answer's score is unknown."""
    floors = {column.key: column.constant for column in study.columns}
    found = [(_scores(arm)[key].dropna(), floors[key]) for arm in arms for key in keys if key in _scores(arm)]
    return any(len(seeds) > 0 and (floor is None or above(seeds, floor)) for seeds, floor in found)


def _scores(arm: Arm | None) -> pd.DataFrame:
    return pd.DataFrame() if arm is None else arm.scores
