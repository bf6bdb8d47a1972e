"""Evidence on claims: scores of studies, drift under padding, memory and times, each compared as the claim asks."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import pandas as pd

from mabert_lab.bench.bounds import chance_apart
from mabert_lab.report import paper
from mabert_lab.report.drift import MASKINGS, SITUATIONS, STABLE, VECTORS, Drifts, farthest, names_of, written
from mabert_lab.report.efficiency import (
    DTYPES,
    MAY_LACK,
    MEASURES,
    NAMES,
    Condition,
    Ratio,
    Results,
    Source,
    ratio,
    spans,
)
from mabert_lab.report.judge import UNMEASURED, Claim, Comparison, Verdict, claims, verdict_on
from mabert_lab.report.statistics import LEAST_PAIRS, LEVEL, NO_SCORES, above, averages, difference
from mabert_lab.report.studies import QUESTIONS, Arm, Column, Study, percent

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


STRONGLY, HARDLY = 0.1, 0.5
"""Shares of the drift without masks. Masks suppress drift strongly if at most the first is left, and do not if more
than the second is."""

LEAST = 16
"""Minimum texts for a decision."""

Curves = Mapping[str, Mapping[str, Any]]
"""Rows of one situation by masking: for each kind of vector, the distances at increasing padding, starting at none."""


def of_drifts(claim: Claim, drifts: Drifts) -> Iterator[Verdict]:
    """Yields a verdict for each model and situation."""
    for name, (_, result) in zip(names_of(drifts), drifts, strict=True):
        trained = [row for row in result["rows"] if row["weights"] == "trained"]
        scans = dict.fromkeys(row["direction"] for row in trained)
        for scan, (side, attention) in product(scans, SITUATIONS):
            where = (scan, side, attention)
            rows = [row for row in trained if (row["direction"], row["side"], row["attention"]) == where]
            papers = where == ("forward", *SITUATIONS[0])
            place = f"{scan} scan, padding {side}, attention {attention}" + ", the paper's text" * papers
            place += f", {name}" if len(drifts) > 1 else ""
            group = "in the paper's text" if papers else f"attention {attention}"
            verdict = verdict_on(
                claim, place, _compared_curves(claim, {row["masking"]: row for row in rows}, result["texts"])
            )
            yield replace(verdict, group=group)


def _compared_curves(claim: Claim, curves: Curves, texts: int) -> list[Comparison]:
    """Compares the curves of one situation by the claim's rule; too few texts decide nothing."""
    rule = claim.rule["rule"]
    compared = _grows(curves) if rule == "grows" else [_farthest(rule, curves)]
    if texts >= LEAST:
        return compared
    needs = (("texts", f"{LEAST} at least, not {texts}"),)
    return [each if each.sign is None else each._replace(sign=0, value=0, needs=needs) for each in compared]


def _farthest(rule: str, curves: Curves) -> Comparison:
    """Compares the largest distances of any vector under a rule's maskings."""
    maskings, sign, need = _RULES[rule]
    if not set(maskings) <= curves.keys():
        return Comparison("", None, needs=(("curves of", ", ".join(maskings)),))
    far = {masking: farthest(curves[masking]) for masking in maskings}
    told = ", ".join(f"{MASKINGS[masking][0]} {written(distance)}" for masking, distance in far.items())
    needs = ("a situation", "in which padding moves anything") if max(far.values()) <= STABLE else need
    return Comparison("", sign(*far.values()), told=told, needs=(needs,))


def _grows(curves: Curves) -> list[Comparison]:
    """Checks by vector whether longer padding always moves it further, or the longest no further than the shortest."""
    if "none" not in curves:
        return [Comparison("", None, needs=(("curves of", "none"),))]
    signs, ends = [], []
    for kind, title in VECTORS.items():
        _, *distances = curves["none"][kind]
        falls = len(distances) > 1 and distances[-1] <= distances[0]
        rises = len(distances) > 1 and all(less < more for less, more in pairwise(distances))
        signs.append(-1 if falls or max(distances, default=0.0) <= STABLE else int(rises))
        ends.append(f"{title} {written(distances[0])} to {written(distances[-1])}" if distances else "")
    told = ", ".join(ends)
    needs = (("curves", "of more lengths or texts"),)
    return [Comparison("", sign, told=told, value=sign, needs=needs) for sign in signs]


def _moves(none: float) -> int:
    return 1 if none > 10 * STABLE else -int(none <= STABLE)


def _suppressed(none: float, both: float) -> int:
    """Returns the sign of strong suppression: 0 if nothing drifts, or if a tenth to half of the drift is left."""
    return 0 if none <= STABLE else int(both <= STRONGLY * none) - int(both > HARDLY * none)


def _ordered(*far: float) -> int:
    """Returns the sign of the claimed order; 0 if none of the maskings drifts."""
    pre, post, both = (max(each, STABLE) for each in far)
    return 0 if pre == post == both else 1 if both <= post < pre else -1


_RULES: dict[str, tuple[tuple[str, ...], Callable[..., int], tuple[str, str]]] = {
    "moves": (("none",), _moves, ("a distance", "farther from rounding")),
    "suppressed": (("none", "pre+post"), _suppressed, ("the paper's word", "how much is strongly")),
    "ordered": (("pre", "post", "pre+post"), _ordered, ("curves", "farther from rounding")),
}
"""Rules of claims on drift except growth: the maskings compared, the sign, and what a decision would need if padding
moves something."""


ALIKE = 0.01
"""Relative difference of peak memory that counts, and share of it that growth must be."""

SUBSTANTIAL, SLIGHT = 1.25, 1.1
"""Ratios of costs: from the first on the rivals need substantially more, below the second they do not."""

LEAST_CALLS = 4
"""Minimum timed calls of each model for a decision."""


def of_results(claim: Claim, results: Results) -> Iterator[Verdict]:
    """Yields a verdict for each machine, device and precision in the paper's settings, over all lengths of the claim;
    if none of those can be judged, in any settings. Places that lack a number are told only if no place can be judged.
    """
    rule = claim.rule
    found = {each: tables[rule["measure"]] for each, tables in results.tables.items() if rule["measure"] in tables}
    reach = {
        each: rows
        for each, rows in found.items()
        if any(len(spans(rows, length, rule["less"], rule.get("from"))) for length in rule["at"])
    }
    verdicts = {each: _judged(claim, each, rows) for each, rows in (reach or found).items()}
    papers = [verdict for each, verdict in verdicts.items() if each.profile == "paper"]
    every = list(verdicts.values())
    told = ([each for each in among if each.verdict != UNMEASURED] for among in (papers, every))
    yield from next(filter(None, told), papers or every)


def _judged(claim: Claim, condition: Condition, rows: pd.DataFrame) -> Verdict:
    """Judges a claim under one condition by every comparison at every length."""
    rule = claim.rule
    asked = list(product(rule["at"], rule["less"], rule["than"]))
    compared = [_held(rows, rule, *each, of=len(asked)) for each in asked]
    start = f"{rule['from']:,} to " if "from" in rule else "at "
    length = f"{start}{rule['at'][0]:,} tokens, " if len(rule["at"]) == 1 else ""
    settings = "" if condition.profile == "paper" else f"{condition.profile} settings, "
    on = f" on {condition.machine}" if condition.machine else ""
    dtype = DTYPES.get(condition.dtype, condition.dtype)
    return verdict_on(claim, f"{length}{settings}{dtype}, {condition.device}{on}", compared)


def _held(
    rows: pd.DataFrame, rule: Mapping[str, Any], length: int, model: str, group: Sequence[str], of: int
) -> Comparison:
    """Compares the ratio of the rivals' cost to a model's with what the claim needs."""
    start = rule.get("from")
    who = NAMES[group[0]] if len(group) == 1 else f"the {len(group)} rivals"
    found = ratio(rows, length, group, model, start)
    if found is None or found.span is None:
        asked = [(each, at) for each in (model, *group) for at in (start, length) if at is not None]
        return Comparison(who, None, needs=tuple(_lacking(rows, *each) for each in asked if not _known(rows, *each)))
    value = "" if found.value is None else f" {_written(found.value)}" if found.at_least is None else " at least"
    low, high = map(_written, found.span)
    spread = "" if low == high else f" [{low}, {high}]"
    at = f" at {length:,} tokens" if len(rule["at"]) > 1 else ""
    calls = "" if found.calls is None else f", {found.calls} calls or more"
    sign, needs = _parted(found, found.span, rule, of)
    outcome = ("not told apart", "as claimed", "the other way")[sign]
    told = f"{who}{value}{spread} times {NAMES[model]}{at}{calls}"
    return Comparison("", sign, outcome, told, found.span[0], needs)


def _known(rows: pd.DataFrame, model: str, length: int) -> bool:
    return model in spans(rows, length, [model]).index


def _lacking(rows: pd.DataFrame, model: str, length: int) -> tuple[str, str]:
    """Returns what it would take to measure a model."""
    status = rows["status"].get((model, length))
    return "more memory for" if status == "out of memory" else "a number of", f"{NAMES[model]} at {length:,}"


def _written(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "\u221e"


def _parted(
    found: Ratio, span: tuple[float, float], rule: Mapping[str, Any], of: int
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Decides whether a ratio is as large as claimed; returns the sign, and what a decision would need.

    A time decides if its bounds do, and so few calls would part by chance in less than 5 % of cases. A ratio that
    refutes a claim is corrected for the number of comparisons.
    """
    low, high = span
    memory, substantial, factor = rule["measure"] == "memory", rule.get("substantial", False), rule.get("factor")
    if substantial:
        is_above, is_below = low >= SUBSTANTIAL, high < SLIGHT
    elif factor:
        is_above, is_below = round(low, 2) >= factor, round(high, 2) < factor
    else:
        is_above, is_below = low > 1, high < 1
    if memory and found.share < ALIKE:
        return 0, (("lengths", f"over which memory grows by {ALIKE:.0%} or more"),)
    if memory and not substantial and abs(low - 1) < ALIKE:
        return 0, (("nothing", f"they differ by less than {ALIKE:.0%}"),)
    if not is_above and not is_below:
        word = ("the paper's word", "how much is substantially")
        return 0, (word if memory else ("calls", "more, or less uneven ones"),)
    chance = 0.0 if found.chance is None else found.chance * (of if is_below else 1)
    if chance < 1 - LEVEL and (found.calls is None or found.calls >= LEAST_CALLS):
        return (1 if is_above else -1), ()
    few, many = least_calls(of)
    each = f"{few} of each model" if few == many else f"{few} of one model and {many} of the other"
    return 0, (("rounds", each),)


def least_calls(comparisons: int = 1) -> tuple[int, int]:
    """Returns the minimum calls of each of two models that decide, if one of so many comparisons refutes a claim."""
    pairs = ((calls, more) for more in range(LEAST_CALLS, 100) for calls in (more - 1, more) if calls >= LEAST_CALLS)
    return next(pair for pair in pairs if comparisons * chance_apart(*pair) < 1 - LEVEL)


def verdicts(studies: Sequence[Study], results: Results | None, drifts: Drifts) -> list[Verdict]:
    """Judges every claim at every place where it was measured, or once if nowhere."""
    return [each for claim in claims() for each in verdicts_on(claim, studies, results, drifts)]


def verdicts_on(claim: Claim, studies: Sequence[Study], results: Results | None, drifts: Drifts) -> list[Verdict]:
    """Judges one claim; see `verdicts`."""
    if claim.kind == "scores":
        own = list(of_studies(claim, studies))
        needs = "a study: " + " or ".join(f"`mabert study {name}`" for name in claim.rule["asks"])
    elif claim.kind == "costs":
        own, needs = [] if results is None else list(of_results(claim, results)), "`mabert bench models`"
    else:
        own, needs = list(of_drifts(claim, drifts)), "`mabert study drift`"
    return own or [Verdict(claim, "-", UNMEASURED, takes=(needs,))]


@cache
def of_paper(claim: Claim) -> Verdict:
    """Judges a claim by the paper's own tables."""
    if claim.kind == "drift":
        return Verdict(claim, "the paper", UNMEASURED, "curves without numbers")
    (verdict,) = (
        of_results(claim, papers_results())
        if claim.kind == "costs"
        else of_studies(claim, [papers_study(claim.rule["asks"][-1])], exact=True)
    )
    return verdict


def papers_study(question: str) -> Study:
    """Returns the paper's scores on a question, a value of `QUESTIONS`, as a study with one seed."""
    label = next(label for label, each in QUESTIONS.items() if each == question)
    tables = paper.GLUE if question in ("budget", "baselines") else {1.0: paper.TABLES[question]}
    columns = tuple(Column(key, task["title"], task["metric"], key) for key, task in paper.TASKS.items())
    arms = tuple(
        Arm(row, row, budget, {}, table.mean.loc[[row]].reset_index(drop=True))
        for budget, table in tables.items()
        for row in table.mean.index
    )
    reference = {"pattern": "MMTMMTMMTMMT", "components": "full", "pooling": "map"}.get(question, "mabert")
    return Study(question, question, label, "", reference, "the paper", (), {}, columns, arms)


def papers_results() -> Results:
    """Returns the paper's memory and times as results without a spread."""
    source = Source("paper", datetime.min.replace(tzinfo=UTC), {})
    printed = {measure: paper.TABLES[measure].mean.stack() for measure in MEASURES}
    rows = pd.concat(printed, names=["measure", "model", "length"]).rename("value").reset_index()
    about = Condition("paper", "bfloat16", "cuda")._asdict() | dict.fromkeys(("at_least", *MAY_LACK), math.nan)
    return Results(rows.assign(**about, status="measured", source=[source] * len(rows)), {}, (source,))
