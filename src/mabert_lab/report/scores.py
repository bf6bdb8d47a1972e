"""A study's tables and figures beside the paper's, and the claims that its scores decide."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, product
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.ticker import MaxNLocator

from mabert_lab.report import paper, studies
from mabert_lab.report.charts import INK, LOOKS, line_chart, over_steps, panels, svg, with_grid
from mabert_lab.report.document import FLAG, MISSING, table, with_best, written
from mabert_lab.report.paper import Claim, Comparison, Needs, Verdict, verdict_on
from mabert_lab.report.studies import LEAST_PAIRS, LEVEL, NO_SCORES, Arm, Study, averages, difference, percent

_UNITS = {
    "seed": "fine-tuning seeds",
    "conversion": "conversions (the score of one is the mean over its fine-tunings; where nothing is converted, the "
    "fine-tunings fall into as many groups)",
}
"""What the deviation of a score is taken over."""


def side_by_side(study: Study) -> pd.DataFrame:
    """Tabulates the models' averages; if the paper has any of the models, only those, with its own and the ranks."""
    every = arm_averages(study)
    found = every.dropna(subset="paper") if every["paper"].notna().any() else every
    both = found.dropna(subset=["mean", "paper"]).groupby("budget").filter(lambda each: len(each) > 1)
    ranks = both.groupby("budget")[["mean", "paper"]].rank(ascending=False, method="min")

    def cells(row: Any) -> dict[str, str]:
        return {
            "here": _summary(averages(row.arm.scores, study.averaged)),
            "rank here": written(ranks["mean"].get(row.Index), "{:.0f}"),
            "in the paper": written(row.paper),
            "rank in the paper": written(ranks["paper"].get(row.Index), "{:.0f}"),
        }

    own = {row.arm: cells(row) for row in found.itertuples()}
    notes = [f"Averages over {study.named(study.averaged)}, ± deviation (number of {study.unit}s)."]
    notes += [*_one_answer(study), *_uneven(study, found["seeds"])]
    hardly = [name for name, _ in _unlearnt(study, found["arm"], study.averaged)]
    if hardly and not study.converts:
        notes.append(f"{FLAG}{', '.join(hardly) if len(hardly) < len(found) else 'all models'} had hardly learnt.")
    notes += [f"{FLAG}the paper's numbers: {printed.flag}." for printed in study.printed if printed.flag]
    what = "averages beside the paper's" if found["paper"].notna().any() else "averages"
    return _table(study, what, own.get, notes)


def score_table(study: Study) -> pd.DataFrame:
    """Tabulates all scores, with the best of each budget in bold."""
    keys = [column.key for column in study.scored]
    average = f"average of {len(keys)}"

    def cells(arm: Arm) -> dict[str, str]:
        own = {each.heading: _summary(arm.scores.get(each.key, ()), _why(arm, each.key)) for each in study.columns}
        return {**own, average: _summary(averages(arm.scores, keys))}

    notes = [
        f"Mean ± sample standard deviation over {_UNITS[study.unit]}, in brackets how many; bold is the highest mean, "
        f"significantly or not. The average is over {study.named(keys)}, of the {study.unit}s that have all of them.",
        *_uneven(study, chain.from_iterable(arm.scores.count() for arm in study.arms)),
    ]
    if samples := [each for each in study.columns if each.sample and each.train]:
        told = "; ".join(f"{each.name}, with {each.train:,} training rows" for each in samples)
        notes.append(f"Scores on other rows than the official task's are not scores on that task: {told}.")
    frame = _table(study, "measured here", cells, notes)
    first = frame.shape[1] - len(study.columns) - 1
    frame = with_best(frame, range(first, frame.shape[1]), by=list(frame.columns[1:first]))
    floors = pd.Series({column.key: column.constant for column in study.columns}, dtype=float)
    if floors.notna().any():
        mean = floors[keys].mean(skipna=False)
        frame.loc[len(frame)] = ["the best single class for all", *[""] * (first - 1), *map(written, (*floors, mean))]
    return frame


def further_table(study: Study) -> list[pd.DataFrame]:
    """Makes a table of scores by further metrics, such as accuracy beside F1; empty if there are none."""
    further = dict.fromkeys(column for arm in study.arms for column in arm.further)
    names = {column.key: column.name for column in study.columns}

    def cells(arm: Arm) -> dict[str, str]:
        return {f"{names[key]} ({metric})": _summary(arm.further.get((key, metric), ())) for key, metric in further}

    notes = ["Not in the averages, and not in the paper."]
    return [_table(study, "further metrics", cells, notes)] if further else []


def difference_table(study: Study) -> pd.DataFrame:
    """Tabulates each arm's difference from the reference arm of its budget, paired by seed, with the interval."""
    compared = study.label_of(study.reference)

    def cells(arm: Arm) -> dict[str, str] | None:
        reference = study.arm(study.reference, arm.budget, study.variant(arm))
        if reference is None or reference is arm:
            return None
        gaps = arm.scores - reference.scores
        both = gaps.columns[gaps.notna().any()]
        whole = difference(averages(arm.scores, both) - averages(reference.scores, both))
        over = f" of {len(both)} tasks" if len(both) < len(study.scored) else ""
        own = {each.heading: _difference(difference(gaps.get(each.key, NO_SCORES))) for each in study.columns}
        return {**own, "average": _difference(whole, over)}

    variants = sorted({variant for arm in study.arms if (variant := study.variant(arm))})
    also = "".join(
        f"; models with {each} less {study.reference}, {each}, that one less {compared}" for each in variants
    )
    notes = [
        f"The model less {compared}{also}. In brackets the {LEVEL:.0%} percentile bootstrap interval over paired "
        f"{study.unit}s and how many pairs. Bold where a paired t test at {1 - LEVEL:.0%} is significant and there "
        f"are {LEAST_PAIRS} pairs; each difference is tested by itself.",
        *_one_answer(study),
    ]
    return _table(study, f"differences from {compared}", cells, notes)


def pretraining_table(study: Study) -> pd.DataFrame:
    def cells(arm: Arm) -> dict[str, str]:
        outcome = arm.pretraining
        return {
            "state": outcome.get("status", "missing"),
            "steps": written(outcome.get("steps"), "{:,.0f}"),
            "tokens (M)": written(outcome.get("tokens"), "{:,.1f}", 1e-6),
            "held-out loss (nats)": written(outcome.get("held_out_loss")),
            "held-out accuracy": written(outcome.get("held_out_accuracy")),
            "parameters (M)": written(outcome.get("parameters"), "{:,.1f}", 1e-6),
            "minutes": written(outcome.get("seconds"), "{:,.1f}", 1 / 60),
            "tokenizer": outcome.get("tokenizer") or MISSING,
        }

    notes = ["Loss and accuracy are of masked tokens of held-out text."]
    done = [arm.pretraining for arm in study.arms if arm.pretraining.get("status") == "done"]
    if len({about.get("tokenizer") for about in done}) > 1:
        notes.append(f"{FLAG}vocabularies differ, and losses and accuracies of different ones cannot be compared.")
    if any(arm.pretraining.get("tokenizer_trained") for arm in study.arms):
        notes.append(f"{FLAG}some vocabularies were trained on the run's text; the paper's models have their own.")
    return _table(study, "pretraining", cells, notes)


def conversion_table(study: Study) -> pd.DataFrame:
    def cells(arm: Arm) -> dict[str, str]:
        made = pd.DataFrame(arm.pretraining.get("conversions") or [{}])
        done = made.reindex(columns=["pattern", "cosine", "floor", "seconds"]).dropna(subset="pattern")
        return {
            "state": arm.pretraining.get("status", "missing"),
            "conversions": f"{len(done)} of {len(made)}",
            "layers": ", ".join(done["pattern"].unique()) or MISSING,
            "cosine to the encoder": _summary(done["cosine"]),
            "floor": _summary(done["floor"]),
            "parameters (M)": written(arm.pretraining.get("parameters"), "{:,.1f}", 1e-6),
            "minutes each": written(done["seconds"].mean(), "{:,.1f}", 1 / 60),
        }

    notes = [
        "The cosine is between the vectors of held-out texts before fine-tuning; the floor is the encoder itself with "
        "its attention held constant in the layers that are converted."
    ]
    return _table(study, "conversions", cells, notes)


def task_table(study: Study) -> pd.DataFrame:
    rows = [
        (each.heading, *(written(count, "{:,}") for count in (each.train, each.validation, each.epochs)), each.source)
        for each in study.columns
    ]
    return table(f"{study.title}: tasks", ("task", "training rows", "scored on", "epochs", "source"), rows)


def failures(study: Study) -> list[str]:
    """Returns one line per failed run."""
    names, lines = {column.key: column.name for column in study.columns}, []
    for arm in study.arms:
        place = f"{study.label_of(arm.name)}, {percent(arm.budget)}"
        if arm.pretraining.get("status") == "failed":
            kind = "conversion" if study.converts else "pretraining"
            lines.append(f"{place}, {kind}: {arm.pretraining.get('reason') or 'no reason told'}")
        for column, seed, reason in arm.failed:
            run = "" if seed is None else f", seed {seed}"
            lines.append(f"{place}, {names.get(column, column)}{run}: {' '.join(reason.split())}")
    return lines


def seeds(study: Study) -> pd.DataFrame:
    """Returns all scores, one per row."""
    head = ["study", "scale", "arm", "budget", "task", "metric", "seed", "score"]
    rows = []
    for arm in study.arms:
        for each in study.columns:
            by_metric = {each.metric: arm.scores.get(each.key, NO_SCORES)}
            by_metric |= {metric: arm.further[key, metric] for key, metric in arm.further if key == each.key}
            for metric, found in by_metric.items():
                about = (study.name, study.scale, arm.name, arm.budget, each.name, metric)
                rows += [(*about, seed, score) for seed, score in found.dropna().sort_index().items()]
    return pd.DataFrame(rows, columns=head)


def _table(
    study: Study, what: str, cells: Callable[[Arm], Mapping[str, str] | None], notes: Iterable[str] = ()
) -> pd.DataFrame:
    """Makes a table with one row per arm, and a budget column if there are several; leaves out arms without cells."""
    found = {arm: own for arm in study.arms if (own := cells(arm)) is not None}
    several = ["budget"] if len(study.budgets) > 1 else []
    rows = [
        (study.label_of(arm.name), *(percent(arm.budget) for _ in several), *own.values()) for arm, own in found.items()
    ]
    return table(f"{study.title}: {what}", ["model", *several, *next(iter(found.values()), {})], rows, notes)


def _why(arm: Arm, column: str) -> str:
    """Explains why a score is missing."""
    if arm.pretraining.get("status") == "failed":
        return "conversion failed" if "conversions" in arm.pretraining else "pretraining failed"
    reasons = [reason for key, _, reason in arm.failed if key == column]
    return f"failed: {reasons[0].partition(':')[0]}" if reasons else ""


def _summary(scores: Iterable[float], why: str = "") -> str:
    """Writes mean, deviation and number of scores, or why there are none."""
    mean, std, count = studies.summary(scores)
    if not count:
        return f"{MISSING} {why}".strip()
    return f"{mean:.3f} ({count})" if count == 1 else f"{mean:.3f} ± {std:.3f} ({count})"


def _difference(found: studies.Difference | None, over: str = "") -> str:
    if found is None:
        return MISSING
    ends = "" if found.low is None else f"[{found.low:+.3f}, {found.high:+.3f}] "
    text = f"{found.mean:+.3f} {ends}({found.pairs}){over}"
    return f"**{text}**" if found.sign() else text


def _uneven(study: Study, shown: Iterable[int]) -> list[str]:
    """Warns if some of the shown scores have more seeds than others."""
    counts = sorted(set(shown) - {0})
    if len(counts) < 2:
        return []
    return [f"{FLAG}scores of {counts[0]} to {counts[-1]} {study.unit}s are compared as if all had as many."]


def _one_answer(study: Study) -> list[str]:
    """Warns of tasks on which all differences are 0 because every model gives a constant answer."""
    every = {
        each: pd.concat([arm.scores[each.key] for arm in study.arms if each.key in arm.scores]) for each in study.scored
    }
    keys = [each.key for each, scores in every.items() if (scores.dropna() == each.constant).all()]
    return [f"On {study.named(keys)} every model gives one answer for all rows, so none differ."] if keys else []


DEARER = 1.25  # factor in pretraining time that counts as dearer; it is large because each run was timed once
UNLEARNT = "no better than one answer for all"  # outcome of a comparison of two models that learnt nothing
HARDLY = "with a model that hardly learnt"  # outcome with one whose training did not end below its study's line


def of_studies(claim: Claim, every: Sequence[Study]) -> Iterator[Verdict]:
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


def _places(claim: Claim, study: Study) -> Iterator[tuple[Sequence[float], str]]:
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
    arms: Sequence[Arm]


_NO_ARM = Arm("", None, 0.0, {}, pd.DataFrame())  # what stands for an arm that is missing


def _pairs(claim: Claim, study: Study, budget: float, variant: str) -> Iterator[_Gap]:
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


def _on(study: Study, tasks: Sequence[str], name: str, found: pd.DataFrame, lacking: Needs, arms: list[Arm]) -> _Gap:
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


def _rising(claim: Claim, study: Study) -> list[Comparison]:
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


def _steady(claim: Claim, study: Study) -> list[Comparison]:
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


def _compared(study: Study, gaps: Sequence[_Gap], together: int = 1) -> list[Comparison]:
    """Makes comparisons of paired differences. Equal scores in every pair refute a claim, since neither arm is above
    the other. If all differences must support a claim, none needs a correction. If a majority must, the level is
    divided by one more than may fail (Benjamini and Heller 2008). One that refutes the claim is corrected for all."""
    comparisons = sum(gap.gaps.notna().any() for gap in gaps)
    return [_compare(study, gap, comparisons, together) for gap in gaps]


def _compare(study: Study, gap: _Gap, comparisons: int, together: int) -> Comparison:
    found = difference(gap.gaps)
    if found is None:
        return Comparison(gap.name, None, needs=gap.lacking or [("scores", study.named(gap.columns))])
    ends = "" if found.low is None else f" [{found.low:+.3f}, {found.high:+.3f}] ({found.pairs})"
    more = f"{LEAST_PAIRS} or more" if found.pairs < LEAST_PAIRS else f"more than {found.pairs}"
    needs: Needs = [("seeds", more)]
    why = _why_equal(study, gap.arms) if found.equal and len(gap.arms) == 2 else ""
    unlearnt = () if study.exact else tuple(_unlearnt(study, gap.arms, gap.columns))
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


def _why_equal(study: Study, arms: Sequence[Arm]) -> str:
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


def _averaged(study: Study, arms: Sequence[Arm]) -> list[str]:
    """Returns the paper's tasks to average arms over: those on which any arm learnt something, else all scored."""
    scored = [column for column in study.columns if any(column.key in arm.scores for arm in arms)]
    keys = [column.key for column in scored if column.paper in paper.TASKS]
    return [key for key in keys if _learnt(study, arms, [key])] or keys


def _on_some(study: Study, keys: Sequence[str]) -> str:
    """Names the tasks of an average that leaves out some of the study's."""
    whole = {column.key for column in study.columns if column.paper in paper.TASKS}
    return f" on {study.named(keys)}" if whole.difference(keys) else ""


def _learnt(study: Study, arms: Iterable[Arm], keys: Iterable[str]) -> bool:
    """Checks whether any arm beats a constant answer on any of some tasks, or that answer's score is unknown."""
    floors = {column.key: column.constant for column in study.columns}
    found = [(arm.scores[key].dropna(), floors[key]) for arm in arms for key in keys if key in arm.scores]
    return any(len(seeds) > 0 and (floor is None or studies.above(seeds, floor)) for seeds, floor in found)


def _unlearnt(study: Study, arms: Iterable[Arm], columns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields those of some arms that hardly learnt, each with how that shows on some tasks."""
    for arm in arms:
        loss = arm.pretraining.get("held_out_loss")
        name = study.label_of(arm.name) + (f" at {percent(arm.budget)}" if len(study.budgets) > 1 else "")
        if loss is not None and not loss < study.learnt_below:
            yield name, f"held-out loss {loss:.2f}, not below {study.learnt_below:g}"
        elif not _learnt(study, [arm], columns):
            yield name, f"not above one class for all on {study.named(columns)}"


def arm_averages(study: Study) -> pd.DataFrame:
    """Averages each arm over `Study.averaged`, a row each, with the paper's average over the same tasks or NaN."""
    wanted, rows = study.averaged, []
    papers = [each.paper for each in study.columns if each.key in wanted and each.paper in paper.TASKS]
    for arm in study.arms:
        table, theirs = study.table(arm.budget), math.nan
        if table is not None and papers and arm.paper in table.mean.index:
            theirs = table.average(str(arm.paper), papers)
        rows.append((arm, arm.budget, *studies.summary(averages(arm.scores, wanted)), theirs))
    return pd.DataFrame(rows, columns=["arm", "budget", "mean", "std", "seeds", "paper"])


def arm_chart(study: Study) -> str | None:
    """Draws the arms' averages with deviations, and the paper's in a second panel; None if there are no averages."""
    found = arm_averages(study).dropna(subset=["mean", "paper"], how="all")
    if found["mean"].isna().all():
        return None
    columns = 2 if found["paper"].notna().any() else 1
    drawing, (both,) = panels((8.2, 1.3 + 0.3 * len(found)), 1, columns, sharey=True, squeeze=False)
    heights, several = range(len(found), 0, -1), len(study.budgets) > 1
    for height, row in zip(heights, found.itertuples(), strict=True):
        mark = "D" if row.arm.name == study.reference else "o"
        if row.seeds:
            std = None if math.isnan(row.std) else row.std
            both[0].errorbar(row.mean, height, xerr=std, fmt=mark, color=LOOKS["mabert"][0], capsize=2)
        if not math.isnan(row.paper):
            both[1].plot(row.paper, height, mark, color=INK, markerfacecolor="none")
    labels = [_label(study, arm.name) + f", {percent(arm.budget)}" * several for arm in found["arm"]]
    both[0].set_yticks(heights, labels, fontsize="small")
    both[0].set_ylim(0.4, len(found) + 0.6)
    flagged = any((printed := study.table(budget)) is not None and printed.flag for budget in study.budgets)
    titles = ("here", "the paper's, same tasks" + " (flagged)" * flagged)
    for axes, title in zip(both, titles, strict=False):
        axes.set_title(title, color=INK, fontsize="medium")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        with_grid(axes, xlabel="average score")
    return svg(drawing)


def pretraining_chart(study: Study) -> str | None:
    """Draws the loss of each pretraining of the largest budget, once if arms share it; None if there is none."""
    shared: dict[str, list[Arm]] = {}
    for arm in study.arms:
        if arm.budget == study.budgets[-1] and arm.pretraining.get("history"):
            shared.setdefault(arm.pretraining.get("cell", arm.name), []).append(arm)
    for key, what in (("eval_loss", "held-out"), ("loss", "training")):
        lines = {}
        for first, *more in shared.values():
            name = _label(study, first.name) + f" and {len(more)} more" * bool(more)
            lines[name] = over_steps(first.pretraining["history"], key)
        if any(steps for steps, _ in lines.values()):
            return line_chart(lines, "step", f"{what} loss (nats a masked token)")
    return None


def _label(study: Study, name: str) -> str:
    """Escapes an arm's name for matplotlib, which reads text between two dollar signs as a formula."""
    return study.label_of(name).replace("$", r"\$")
