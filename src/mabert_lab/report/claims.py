"""The claims that scores of studies, memory and times decide."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import pandas as pd

from mabert_lab.bench.tables import chance_apart
from mabert_lab.report import paper, studies
from mabert_lab.report.costs import NAMES, Ratio, Results, ratio, spans
from mabert_lab.report.paper import UNMEASURED, Claim, Comparison, Needs, Verdict, verdict_on
from mabert_lab.report.studies import LEAST_PAIRS, LEVEL, NO_SCORES, ArmRun, StudyRun, averages, difference, percent

DEARER = 1.25  # factor in pretraining time that counts as dearer; it is large because each run was timed once
UNLEARNT = "no better than one answer for all"  # outcome of a comparison of two models that learnt nothing
HARDLY = "with a model that hardly learnt"  # outcome with one whose training did not end below its study's line


def of_studies(claim: Claim, every: Sequence[StudyRun]) -> Iterator[Verdict]:
    """Yields a verdict per study and variant, over all budgets that the claim names, or for each if it names none."""
    rule = claim.rule
    # Of how many comparisons the majority decides: two arms on each task, or one arm's average over each other's.
    together = len(rule.get("tasks") or rule["second"]) if rule.get("most") else 1
    own = [study for study in every if study.question in rule["asks"]]
    for study in own:
        title = f"{study.title}, " if len(own) > 1 else ""
        if over_budgets := {"rising": _rising, "steady": _steady}.get(rule.get("form", "")):
            yield verdict_on(claim, f"{title}at {study.size(rule.get('budgets', ()))}", over_budgets(claim, study))
            continue
        for budgets, variant in _places(claim, study):
            gaps = [gap for budget in budgets for gap in _pairs(claim, study, budget, variant)]
            # Divides the level: one more than the comparisons that may fail where a majority decides.
            divisor = together - together // 2
            compared = _compared(study, gaps, divisor)
            if rule.get("form") == "trade":
                compared = [_traded(*each) for each in zip(gaps, compared, strict=True)]
            place = f"{title}at {study.size(budgets)}"
            yield verdict_on(claim, f"{variant}, {place}" if variant else place, compared, together)


def _places(claim: Claim, study: StudyRun) -> Iterator[tuple[Sequence[float], str]]:
    """Yields the budgets and the variant of the arms at each place."""
    named = claim.rule.get("budgets")
    for budgets in [named] if named else [[budget] for budget in study.budgets]:
        yield budgets, ""
        for variant in dict.fromkeys(filter(None, map(study.variant, study.arms))):
            if any(study.by_paper(budget, variant) for budget in budgets):
                yield budgets, variant


class _Gap(NamedTuple):
    """A difference that a claim needs: its name, the gaps by seed, the tasks, what is missing, and the arms."""

    name: str
    gaps: pd.Series
    columns: Sequence[str]
    lacking: Needs
    arms: Sequence[ArmRun]


_NO_ARM = ArmRun("", None, 0.0, {}, pd.DataFrame())  # what stands for an arm that is missing


def _pairs(claim: Claim, study: StudyRun, budget: float, variant: str) -> Iterator[_Gap]:
    """Compares arms of `first` with arms of `second` at one budget, on average or on each task."""
    rule, arms = claim.rule, study.by_paper(budget, variant)
    meet = zip if rule.get("paired") else product
    pairs = [(first, second) for first, second in meet(rule["first"], rule["second"]) if first != second]
    columns = _averaged(study, [arms[key] for pair in pairs for key in pair if key in arms])
    at = f" at {percent(budget)}" if len(rule.get("budgets", ())) > 1 else ""
    for pair in pairs:
        ours, theirs = both = [arms.get(key, _NO_ARM) for key in pair]
        name = " over ".join(study.label_of(arms[key].name if key in arms else key) for key in pair)
        lacking = [("models", study.label_of(key)) for key in pair if key not in arms]
        if not arms:
            lacking = [("budgets", percent(budget))]
        if "tasks" not in rule:
            gaps = averages(ours.scores, columns) - averages(theirs.scores, columns)
            yield _Gap(f"{name}{_on_some(study, columns)}{at}", gaps, columns, lacking, both)
        for task in rule.get("tasks", ()):
            on = [rule["widest"], task] if "widest" in rule else [task]
            yield _on(study, on, f"{name}{at} on ", ours.scores - theirs.scores, lacking, both)


def _on(study: StudyRun, tasks: list[str], name: str, found: pd.DataFrame, lacking: Needs, arms: list[ArmRun]) -> _Gap:
    """Returns the gap on one of the paper's tasks, or on the first of two less that on the second, never on samples."""
    keys = {column.paper: column.key for column in study.columns if not column.sample}
    first, *second = (found.get(keys.get(task, ""), NO_SCORES) for task in tasks)
    absent = [("tasks", paper.TASKS[task]["title"]) for task in tasks if task not in keys]
    used = [keys[task] for task in tasks if task in keys]
    label = name + " less that on ".join(paper.TASKS[task]["title"] for task in tasks)
    return _Gap(label, first - second[0] if second else first, used, [*lacking, *absent], arms)


def _traded(gap: _Gap, compared: Comparison) -> Comparison:
    """Adjusts a comparison for cost: a second arm that is dearer does not refute the claim."""
    if compared.sign in (1, None) or gap.gaps.count() < LEAST_PAIRS or compared.outcome in (UNLEARNT, HARDLY):
        return compared
    first, second = (arm.pretraining.get("seconds") for arm in gap.arms)
    if not first or not second:
        return compared._replace(sign=None, needs=(("times of pretraining", gap.name),))
    numbers = f"{compared.numbers} at {first / second:.2f} times the time"
    if second < DEARER * first:
        return compared._replace(numbers=numbers)
    return compared._replace(sign=1, numbers=numbers, outcome="cheaper")


def _rising(claim: Claim, study: StudyRun) -> list[Comparison]:
    """Compares each budget's average with that of the previous one."""
    arms = {arm.budget: arm for arm in study.arms if arm.paper in claim.rule["first"]}
    columns, gaps, steps = _averaged(study, list(arms.values())), [], list(pairwise(sorted(paper.BY_SHARE)))
    for earlier, later in [*steps, *(each for each in pairwise(sorted(arms)) if each not in steps)]:
        after, before = both = [arms.get(budget, _NO_ARM) for budget in (later, earlier)]
        lacking = [("budgets", percent(budget)) for budget in (earlier, later) if budget not in arms]
        name = f"{percent(later)} over {percent(earlier)}{_on_some(study, columns)}"
        rise = averages(after.scores, columns) - averages(before.scores, columns)
        gaps.append(_Gap(name, rise, columns, lacking, both))
    compared = _compared(study, gaps)
    # Measured neighbours with other budgets of the paper between them can only refute the claim.
    return compared[: len(steps)] + [each for each in compared[len(steps) :] if each.sign == -1]


def _steady(claim: Claim, study: StudyRun) -> list[Comparison]:
    """Compares the lead over its deviation across budgets on one task with that on each other task."""
    (key,), rivals = claim.rule["first"], claim.rule["second"]
    arms = {budget: study.by_paper(budget) for budget in claim.rule["budgets"]}
    there = [found for found in arms.values() if found]
    lacking = [("budgets", percent(budget)) for budget, found in arms.items() if not found]
    lacking += [("models", study.label_of(row)) for row in (key, *rivals) if any(row not in found for found in there)]
    steadiness = pd.DataFrame()
    if not lacking:
        leads = [found[key].scores - sum(found[row].scores for row in rivals) / len(rivals) for found in there]
        by_seed = pd.concat(leads, keys=arms).swaplevel().groupby(level=0)
        # Drops seeds that are missing under any budget.
        steadiness = (by_seed.mean() / (by_seed.std() + 1e-6)).where(by_seed.count() == len(leads))
    every = [arm for found in there for arm in found.values()]
    gaps = [_on(study, [claim.rule["widest"], task], "on ", steadiness, lacking, every) for task in claim.rule["tasks"]]
    return _compared(study, gaps)


def _compared(study: StudyRun, gaps: Sequence[_Gap], together: int = 1) -> list[Comparison]:
    """Makes comparisons of paired differences. Equal scores in every pair refute a claim, since neither arm is above
    the other. If all differences must support a claim, none needs a correction. If a majority must, the level is
    divided by one more than may fail (Benjamini and Heller 2008). One that refutes the claim is corrected for all."""
    comparisons = sum(gap.gaps.notna().any() for gap in gaps)
    return [_compare(study, gap, comparisons, together) for gap in gaps]


def _compare(study: StudyRun, gap: _Gap, comparisons: int, together: int) -> Comparison:
    found = difference(gap.gaps)
    if found is None:
        return Comparison(gap.name, None, needs=gap.lacking or [("scores", study.named(gap.columns))])
    ends = "" if found.low is None else f" [{found.low:+.3f}, {found.high:+.3f}] ({found.pairs})"
    more = f"{LEAST_PAIRS} or more" if found.pairs < LEAST_PAIRS else f"more than {found.pairs}"
    needs: Needs = [("seeds", more)]
    why = _why_equal(study, gap.arms) if found.equal and len(gap.arms) == 2 else ""
    unlearnt = () if study.exact else tuple(unlearnt_of(study, gap.arms, gap.columns))
    outcomes = ("not significantly different", "above", "below")
    if study.exact:
        sign = 0 if abs(found.mean) < 1e-9 else int(math.copysign(1, found.mean))
        outcome = ("equal", *outcomes[1:])[sign]
    elif not _learnt(study, gap.arms, gap.columns):
        sign, outcome = 0, UNLEARNT
        needs = [("longer pretraining, for neither model beats one answer for all on", study.named(gap.columns))]
    elif unlearnt and not why:
        sign, outcome = 0, HARDLY
        needs = [("longer pretraining, or another learning rate", name) for name, _ in unlearnt]
    elif found.equal:
        sign, outcome = -int(found.pairs >= LEAST_PAIRS), "equal in every pair"
    else:
        sign = 1 if found.sign(together) == 1 else min(found.sign(comparisons), 0)
        outcome = outcomes[sign]
    name = gap.name + why * (outcome == "equal in every pair")
    return Comparison(name, sign, outcome, f"{found.mean:+.3f}{ends}", found.mean, needs, unlearnt)


def _why_equal(study: StudyRun, arms: Sequence[ArmRun]) -> str:
    """Explains equal scores of two arms if their records show that they are one model."""
    first, second = arms
    cell = first.pretraining.get("cell")
    if cell is None or cell != second.pretraining.get("cell") or not first.scores.equals(second.scores):
        return ""
    asked = study.settings.get("arms") or {}
    ours, theirs = (asked.get(arm.name, {}).get("finetune", {}) for arm in (first, second))
    apart = [f"`{name}` {value} and {theirs.get(name)}" for name, value in ours.items() if theirs.get(name) != value]
    settings = f" with {', '.join(apart)}" if apart else ""
    return f"; both are one pretrained model, and score the same{settings}"


def _averaged(study: StudyRun, arms: Sequence[ArmRun]) -> list[str]:
    """Returns the paper's tasks to average arms over: those on which any arm learnt something, else all scored."""
    scored = [column for column in study.columns if any(column.key in arm.scores for arm in arms)]
    keys = [column.key for column in scored if column.paper in paper.TASKS]
    return [key for key in keys if _learnt(study, arms, [key])] or keys


def _on_some(study: StudyRun, keys: Sequence[str]) -> str:
    """Names the tasks of an average that leaves out some of the study's."""
    whole = {column.key for column in study.columns if column.paper in paper.TASKS}
    return f" on {study.named(keys)}" if whole.difference(keys) else ""


def _learnt(study: StudyRun, arms: Iterable[ArmRun], keys: Iterable[str]) -> bool:
    """Checks whether any arm beats a constant answer on any of some tasks, or that answer's score is unknown."""
    floors = {column.key: column.constant for column in study.columns}
    found = [(arm.scores[key].dropna(), floors[key]) for arm in arms for key in keys if key in arm.scores]
    return any(len(seeds) > 0 and (floor is None or studies.above(seeds, floor)) for seeds, floor in found)


def unlearnt_of(study: StudyRun, arms: Iterable[ArmRun], columns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields those of some arms that hardly learnt, each with how that shows on some tasks."""
    for arm in arms:
        loss = arm.pretraining.get("held_out_loss")
        name = study.label_of(arm.name) + (f" at {percent(arm.budget)}" if len(study.budgets) > 1 else "")
        if loss is not None and not loss < study.learnt_below:
            yield name, f"held-out loss {loss:.2f}, not below {study.learnt_below:g}"
        elif not _learnt(study, [arm], columns):
            yield name, f"not above one class for all on {study.named(columns)}"


ALIKE = 0.01  # relative difference of peak memory that counts, and share of it that growth must be
SUBSTANTIAL, SLIGHT = 1.25, 1.1  # from the first ratio on rivals need substantially more, below the second they do not
LEAST_CALLS = 4  # minimum timed calls of each model for a decision


def of_results(claim: Claim, results: Results) -> Iterator[Verdict]:
    """Yields a verdict for each machine, device and precision in the paper's settings, over all lengths of the claim;
    if none can be judged, in any settings. Places that lack a number are told only if no place can be judged."""
    rule = claim.rule
    found = {each: tables[rule["measure"]] for each, tables in results.tables.items() if rule["measure"] in tables}
    reach = {
        each: rows
        for each, rows in found.items()
        if any(len(spans(rows, length, rule["less"], rule.get("from"))) for length in rule["at"])
    }
    asked = list(product(rule["at"], rule["less"], rule["than"]))
    start = f"{rule['from']:,} to " if "from" in rule else "at "
    length = f"{start}{rule['at'][0]:,} tokens, " if len(rule["at"]) == 1 else ""
    every = []
    for condition, rows in (reach or found).items():
        compared = [_held(rows, rule, *each, of=len(asked)) for each in asked]
        settings = "" if condition.profile == "paper" else f"{condition.profile} settings, "
        every.append((condition, verdict_on(claim, f"{length}{settings}{condition.place}", compared)))
    told = [(each, verdict) for each, verdict in every if verdict.verdict != UNMEASURED] or every
    papers = [verdict for each, verdict in told if each.profile == "paper"]
    yield from papers or [verdict for _, verdict in told]


def _held(
    rows: pd.DataFrame, rule: Mapping[str, Any], length: int, model: str, group: Sequence[str], of: int
) -> Comparison:
    """Compares the ratio of the rivals' cost to a model's with what the claim needs."""
    start = rule.get("from")
    who = NAMES[group[0]] if len(group) == 1 else f"the {len(group)} rivals"
    found = ratio(rows, length, group, model, start)
    if found is None or found.span is None:
        lacking = []
        for each, at in product((model, *group), (start, length)):
            if at is not None and not spans(rows, at, [each]):
                out_of_memory = rows["status"].get((each, at)) == "out of memory"
                lacking.append(("more memory for" if out_of_memory else "a number of", f"{NAMES[each]} at {at:,}"))
        return Comparison(who, None, needs=lacking)
    value = "" if found.value is None else f" {_times(found.value)}" if found.at_least is None else " at least"
    low, high = map(_times, found.span)
    spread = "" if low == high else f" [{low}, {high}]"
    at = f" at {length:,} tokens" if len(rule["at"]) > 1 else ""
    calls = "" if found.calls is None else f", {found.calls} calls or more"
    sign, needs = _parted(found, found.span, rule, of)
    outcome = ("undecided", "as claimed", "the other way")[sign]
    numbers = f"{who}{value}{spread} times {NAMES[model]}{at}{calls}"
    return Comparison("", sign, outcome, numbers, found.span[0], needs)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "\u221e"


def _parted(found: Ratio, span: tuple[float, float], rule: Mapping[str, Any], of: int) -> tuple[int, Needs]:
    """Returns whether a ratio is as large as claimed, as a sign, and what a decision would need. A time decides if its
    bounds do, and so few calls would part by chance in less than 5 % of cases. A ratio that refutes a claim is
    corrected for the number of comparisons."""
    low, high = span
    memory, substantial, factor = rule["measure"] == "memory", rule.get("substantial", False), rule.get("factor")
    if substantial:
        is_above, is_below = low >= SUBSTANTIAL, high < SLIGHT
    elif factor:
        is_above, is_below = round(low, 2) >= factor, round(high, 2) < factor
    else:
        is_above, is_below = low > 1, high < 1
    if memory and found.share < ALIKE:
        return 0, [("lengths", f"over which memory grows by {ALIKE:.0%} or more")]
    if memory and not substantial and abs(low - 1) < ALIKE:
        return 0, [("nothing", f"they differ by less than {ALIKE:.0%}")]
    if not is_above and not is_below:
        word = ("the paper's definition", 'how much is "substantially"')
        return 0, [word if memory else ("timings", "more, or steadier ones")]
    chance = found.chance * (of if is_below else 1)
    if chance < 1 - LEVEL and (found.calls is None or found.calls >= LEAST_CALLS):
        return (1 if is_above else -1), []
    few, many = least_calls(of)
    each = f"{few} of each model or more" if few == many else f"{few} of one model and {many} of the other, or more"
    return 0, [("calls", each)]


def least_calls(comparisons: int = 1) -> tuple[int, int]:
    """Returns the minimum calls of each of two models that decide, if one of so many comparisons refutes a claim."""
    pairs = ((calls, more) for more in range(LEAST_CALLS, 100) for calls in (more - 1, more) if calls >= LEAST_CALLS)
    return next(pair for pair in pairs if comparisons * chance_apart(*pair) < 1 - LEVEL)
