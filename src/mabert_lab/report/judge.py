"""What the paper claims (`claims.yaml`), judged by what was measured: one judge for scores, costs and drift.

Each kind of evidence becomes comparisons, each of which speaks for its claim, against it, or does not tell. The paper's
own tables are evidence of the same form, so the same judge says whether they bear a claim out.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from mabert_lab.report import paper
from mabert_lab.report.drift import SITUATIONS, STABLE, VECTORS, written
from mabert_lab.report.efficiency import DTYPES, NAMES, Condition, Ratio, Results, Rows, Source, ratio, span_of
from mabert_lab.report.statistics import LEAST_PAIRS, LEVEL, NO_SCORES, above, averages, difference
from mabert_lab.report.studies import QUESTIONS, Arm, Column, Study, percent

HOLDS, FAILS, OPEN, UNMEASURED = "holds", "does not hold", "cannot be told", "not measured"
STRONGLY, HARDLY = 0.1, 0.5
"""Shares of the drift without masks: at most the first is left where masks suppress it strongly; more than the second
where they do not."""

DEARER = 1.25
"""How many times as long a pretraining must take to count as dearer, since each was timed once."""

ALIKE = 0.01
"""Share by which peak memory must differ to count."""

LEAST_CALLS = 4
"""Timed calls that each model needs, or a time decides nothing."""

_CONTENT: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8"))
METHOD, LIMITS = (tuple(line.strip() for line in _CONTENT[name]) for name in ("method", "limits"))
"""How claims are judged, and what limits the numbers, a sentence or a few each."""


@dataclass(frozen=True, eq=False)
class Claim:
    """One claim of the paper.

    Attributes:
        kind: ``scores``, ``costs`` or ``drift``.
        claim: In our words; ``{budget}`` is filled in.
        source: Label of the table, figure or section of the paper.
        quote: A few words of the paper, by which the place is found.
        note: What a reader must know of the claim itself; may be empty.
        rule: The fields by which it is judged, as `claims.yaml` explains them.
    """

    kind: str
    claim: str
    source: str
    quote: str
    note: str = ""
    rule: Mapping[str, Any] = field(default_factory=dict)


class Comparison(NamedTuple):
    """One thing that a claim says, and what was measured of it.

    Attributes:
        name: What is compared.
        sign: 1 where it is told to be as claimed, -1 where the other way, 0 where that cannot be told, None where it
            was not measured.
        outcome: The same in a word or two.
        told: The numbers.
        value: By which the weakest of several is found.
        needs: What it would take to tell: a kind of thing and which.
    """

    name: str
    sign: int | None
    outcome: str = ""
    told: str = ""
    value: float = math.inf
    needs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """One claim, judged at one scale or under one condition.

    Attributes:
        claim: What was claimed.
        text: In our words, filled in.
        place: Where it was measured: scale and budget, or machine and precision.
        verdict: ``HOLDS``, ``FAILS``, ``OPEN`` or ``UNMEASURED``.
        numbers: Those behind the verdict.
        takes: What it would take to decide it; empty where it is decided.
    """

    claim: Claim
    text: str
    place: str
    verdict: str
    numbers: str = ""
    takes: str = ""


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim, scores first."""
    return tuple(
        Claim(kind, raw["claim"], raw["source"], raw["quote"], raw.get("note", ""), raw)
        for kind in ("scores", "costs", "drift")
        for raw in _CONTENT[kind]
    )


def judge(signs: Iterable[int | None]) -> str:
    """The verdict on a claim that needs every one of some comparisons; see `Comparison` for the signs."""
    found = list(signs)
    if -1 in found:
        return FAILS
    if not found or None in found:
        return UNMEASURED
    return HOLDS if all(sign == 1 for sign in found) else OPEN


def verdicts(
    studies: Sequence[Study], results: Results | None, drifts: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[Verdict]:
    """Every claim, at every place where it was measured; once where nowhere.

    Args:
        studies: What `mabert study` wrote.
        results: What `mabert bench models` wrote.
        drifts: File name and content of what `mabert study drift` wrote.
    """
    found: list[Verdict] = []
    for claim in claims():
        if claim.kind == "scores":
            own = list(_of_studies(claim, studies))
            needs = "a study: " + " or ".join(f"`mabert study {name}`" for name in claim.rule["asks"])
        elif claim.kind == "costs":
            own = [] if results is None else list(_of_results(claim, results))
            needs = "`mabert bench models`"
        else:
            drawn = _grows if claim.rule["rule"] == "grows" else partial(_of_curves, claim.rule["rule"])
            own = [
                _verdict(claim, claim.claim, f"padding {side}, attention {attention}{more}", drawn(curves))
                for file, result in drifts
                for side, attention in SITUATIONS
                for more in [f", {file}" if len(drifts) > 1 else ""]
                for curves in [curves_of(result, side, attention)]
            ]
            needs = "`mabert study drift`"
        found += own or [Verdict(claim, claim.claim.replace("{budget}", "each share"), "-", UNMEASURED, takes=needs)]
    return found


@cache
def of_paper(claim: Claim, text: str = "") -> Verdict:
    """What the paper's own tables say of a claim, at the budget that its text names or where they say least for it."""
    if claim.kind == "drift":
        return Verdict(claim, claim.claim, "the paper", UNMEASURED, "curves without numbers")
    if claim.kind == "costs":
        return next(_of_results(claim, papers_results()))
    judged = list(_of_studies(claim, [papers_study(claim.rule["asks"][-1])], exact=True))
    own = [each for each in judged if each.text == text] or judged
    return min(own, key=lambda each: (FAILS, OPEN, UNMEASURED, HOLDS).index(each.verdict))


def papers_study(question: str, scores: Any = None) -> Study:
    """The paper's scores as if they had been measured, each under one seed.

    Args:
        question: One of `mabert_lab.report.studies.QUESTIONS`.
        scores: Of a mean, its scores by seed; default, itself.
    """
    label = next(label for label, each in QUESTIONS.items() if each == question)
    tables = paper.GLUE if question in ("budget", "baselines") else {1.0: paper.TABLES[question]}
    columns = tuple(Column(key, task["title"], task["metric"], key) for key, task in paper.TASKS.items())
    seeds = scores or (lambda mean: {0: mean})
    arms = tuple(
        Arm(row, row, budget, {}, pd.DataFrame({key: seeds(float(mean)) for key, mean in numbers.items()}))
        for budget, table in tables.items()
        for row, numbers in table.mean.iterrows()
    )
    reference = {"pattern": "MMTMMTMMTMMT", "components": "full", "pooling": "map"}.get(question, "mabert")
    return Study(question, question, label, "", reference, "the paper", (), {}, columns, arms)


def papers_results(spread: float = 0.0, rounds: int | None = None, change: Any = None) -> Results:
    """The paper's memory and times as if they had been measured.

    Args:
        spread: Share by which the fastest and the slowest call differ from the median.
        rounds: Timed calls; None for numbers that are exact.
        change: Of measure, model, length and number, another in its place; default, itself.
    """
    source = Source("paper", Path("paper"), datetime.min.replace(tzinfo=UTC), {})
    condition, rows = Condition("paper", "bfloat16", "cuda"), []
    for measure in ("memory", "latency", "training"):
        for model, numbers in paper.TABLES[measure].mean.iterrows():
            for length, printed in numbers.items():
                value = change(measure, model, length, float(printed)) if change else float(printed)
                ends = {"fastest_ms": value * (1 - spread), "slowest_ms": value * (1 + spread), "samples": rounds}
                row = {"measure": measure, "condition": condition, "model": model, "length": length, "source": source}
                about = {"value": value, "at_least": None, "anchor_samples": None, "samples": None}
                rows.append(row | about | (ends if measure != "memory" else {}))
    return Results(tuple(rows), {}, (source,))


def _verdict(claim: Claim, text: str, place: str, compared: Sequence[Comparison], together: int = 1) -> Verdict:
    """The judge: of so many comparisons `together`, most decide."""
    signs = [each.sign for each in compared]
    verdict = judge([_majority(signs[first : first + together]) for first in range(0, len(signs), together)])
    measured = [each for each in compared if each.sign is not None]
    counts = Counter(each.outcome for each in measured) | Counter({"missing": len(compared) - len(measured)})
    shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count and outcome)
    weakest = min(measured, key=lambda each: (each.sign, each.value), default=None)
    numbers = "" if weakest is None else " ".join(filter(None, (weakest.told, weakest.name)))
    if weakest is not None and len(compared) > 1 and shown:
        numbers = f"{shown}; weakest {numbers}"
    needs: dict[str, dict[str, None]] = {}
    for kind, which in [need for each in compared if each.sign in (0, None) for need in each.needs]:
        needs.setdefault(kind, {})[which] = None
    takes = "; ".join(f"{kind}: {', '.join(which)}" for kind, which in needs.items())
    return Verdict(claim, text, place, verdict, numbers, takes if verdict in (OPEN, UNMEASURED) else "")


def _majority(signs: Sequence[int | None]) -> int | None:
    """What most of some comparisons say: that of a single one, as it is."""
    needed = len(signs) // 2 + 1
    if signs.count(1) >= needed:
        return 1
    if len(signs) - signs.count(-1) < needed:
        return -1
    return None if None in signs else 0


# Scores


def _of_studies(claim: Claim, studies: Sequence[Study], exact: bool = False) -> Iterator[Verdict]:
    own = [study for study in studies if study.question in claim.rule["asks"]]
    for study in own:
        title = f"{study.title}, " if len(own) > 1 else ""
        if claim.rule.get("form") in ("rising", "steady"):
            compared = (_rising if claim.rule["form"] == "rising" else _steady)(claim, study, exact)
            yield _verdict(claim, claim.claim, f"{title}{study.scale}", compared)
            continue
        wanted = claim.rule.get("budgets") or study.budgets
        for budget in [*(each for each in wanted if each not in study.budgets), *study.budgets]:
            if budget not in wanted:
                continue
            text = claim.claim.replace("{budget}", percent(budget))
            place = f"{title}{study.scale}, {percent(budget)} of the steps"
            if budget not in study.budgets:
                yield Verdict(claim, text, place, UNMEASURED, takes=f"the budget: {percent(budget)}")
            for variant in ["", *dict.fromkeys(filter(None, map(study.variant, study.arms)))]:
                if arms := study.by_paper(budget, variant):
                    compared = _pairs(claim, study, arms, exact)
                    together = len(claim.rule["tasks"]) if claim.rule.get("most") else 1
                    yield _verdict(claim, text, f"{place}, {variant}" if variant else place, compared, together)


class _Gap(NamedTuple):
    """One difference that a claim needs: its name, the gaps by seed, the tasks, what is missing, and the arms."""

    name: str
    gaps: pd.Series
    columns: tuple[str, ...]
    lacking: list[tuple[str, str]]
    arms: Sequence[Arm | None]


def _pairs(claim: Claim, study: Study, arms: Mapping[str, Arm], exact: bool) -> list[Comparison]:
    """Every arm of `first` over every arm of `second`, on average or on each task."""
    rule, gaps = claim.rule, []
    tasks = rule.get("tasks", ())
    pairs = [(first, second) for first, second in product(rule["first"], rule["second"]) if first != second]
    columns = _averaged(study, [arms[key] for pair in pairs for key in pair if key in arms])
    for pair in pairs:
        both = [arms.get(key) for key in pair]
        ours, theirs = map(_scores, both)
        name = " over ".join(study.label_of(arms[key].name if key in arms else key) for key in pair)
        lacking = [("arms", study.label_of(key)) for key in pair if key not in arms]
        if not tasks:
            gaps.append(_Gap(name, averages(ours, columns) - averages(theirs, columns), columns, lacking, both))
        for task in tasks:
            on = [rule["widest"], task] if "widest" in rule else [task]
            gaps.append(_on(study, on, f"{name} on ", ours - theirs, lacking, both))
    together = len(tasks) if rule.get("most") else 1
    compared = _compared(study, gaps, exact, together - together // 2)
    if rule.get("form") != "trade":
        return compared
    return [_traded(study, arms, pair, each) for pair, each in zip(pairs, compared, strict=True)]


def _on(
    study: Study,
    tasks: Sequence[str],
    name: str,
    found: pd.DataFrame,
    lacking: list[tuple[str, str]],
    arms: Sequence[Arm | None],
) -> _Gap:
    """What was found on one of the paper's tasks, or on the first of two less that on the second; a sample of a task is
    not that task."""
    keys = {column.paper: column.key for column in study.columns if not column.sample}
    first, *second = (found.get(keys.get(task, ""), NO_SCORES) for task in tasks)
    absent = [("tasks", paper.TASKS[task]["title"]) for task in tasks if task not in keys]
    used = tuple(keys[task] for task in tasks if task in keys)
    told = name + " less that on ".join(paper.TASKS[task]["title"] for task in tasks)
    return _Gap(told, first - second[0] if second else first, used, lacking + absent, arms)


def _traded(study: Study, arms: Mapping[str, Arm], pair: tuple[str, str], compared: Comparison) -> Comparison:
    """The same, where a better arm speaks against the first only if it was cheaper, and a worse one for it only if it
    was not."""
    first, second = (arms[key].pretraining.get("seconds") if key in arms else None for key in pair)
    if compared.sign is None:
        return compared
    if first is None or second is None:
        return compared._replace(sign=None, needs=(("times of pretraining", study.label_of(pair[1])),))
    told = f"{compared.told} at {first / second:.2f} times the time"
    cheaper, sign = first >= DEARER * second, compared.sign
    outcome = "better and cheaper" if sign < 0 and cheaper else compared.outcome
    sign = (-1 if cheaper else 0) if sign < 0 else 0 if sign > 0 and cheaper else sign
    return compared._replace(
        sign=sign, told=told, outcome=outcome, needs=compared.needs or (("costs", "measured apart"),)
    )


def _rising(claim: Claim, study: Study, exact: bool) -> list[Comparison]:
    """Each budget's average over that of the one before."""
    arms = {arm.budget: arm for arm in study.arms if arm.paper in claim.rule["first"]}
    columns, gaps, steps = _averaged(study, list(arms.values())), [], list(pairwise(sorted(paper.GLUE)))
    # Neighbours that were measured, where the paper has others between them, can speak against the claim only.
    for earlier, later in [*steps, *(each for each in pairwise(sorted(arms)) if each not in steps)]:
        both = [arms.get(budget) for budget in (later, earlier)]
        lacking = [("budgets", percent(budget)) for budget in (earlier, later) if budget not in arms]
        after, before = (averages(_scores(arm), columns) for arm in both)
        gaps.append(_Gap(f"{percent(later)} over {percent(earlier)}", after - before, columns, lacking, both))
    return _compared(study, gaps, exact)


def _steady(claim: Claim, study: Study, exact: bool) -> list[Comparison]:
    """How many times its deviation over the budgets the lead is, on one task less that on each other."""
    (key,), rivals = claim.rule["first"], claim.rule["second"]
    arms = {budget: study.by_paper(budget) for budget in paper.GLUE}
    lacking = [("budgets", percent(budget)) for budget, found in arms.items() if not found]
    there = [found for found in arms.values() if found]
    lacking += [("arms", study.label_of(row)) for row in (key, *rivals) if any(row not in found for found in there)]
    steadiness = pd.DataFrame()
    if not lacking:
        leads = [found[key].scores - sum(found[row].scores for row in rivals) / len(rivals) for found in there]
        by_seed = pd.concat(leads, keys=arms).swaplevel().groupby(level=0)
        # Without the seeds that are not under every budget.
        steadiness = (by_seed.mean() / (by_seed.std() + 1e-6)).where(by_seed.count() == len(leads))
    every = [arm for found in there for arm in found.values()]
    gaps = [_on(study, [claim.rule["widest"], task], "on ", steadiness, lacking, every) for task in claim.rule["tasks"]]
    return _compared(study, gaps, exact)


def _compared(study: Study, gaps: Sequence[_Gap], exact: bool, together: int = 1) -> list[Comparison]:
    """What paired differences say.

    Two arms that have the same score in every pair speak against a claim: neither is above the other. Where all must
    speak for a claim, none needs a correction; where most of some must, as many may be left out as the level is divided
    by, less one (Benjamini and Heller 2008). One that speaks against it was looked for among all.
    """
    return [_compare(study, gap, exact, sum(each.gaps.notna().any() for each in gaps), together) for gap in gaps]


def _compare(study: Study, gap: _Gap, exact: bool, comparisons: int, together: int) -> Comparison:
    found = difference(gap.gaps)
    if found is None:
        return Comparison(gap.name, None, needs=tuple(gap.lacking) or (("scores", study.named(gap.columns)),))
    ends = "" if found.low is None else f" [{found.low:+.3f}, {found.high:+.3f}] ({found.pairs})"
    more = f"{LEAST_PAIRS} or more" if found.pairs < LEAST_PAIRS else f"more than {found.pairs}"
    need = ("seeds", more)
    if exact:
        sign = 0 if abs(found.mean) < 1e-9 else int(math.copysign(1, found.mean))
        outcome = ("equal", "above", "below")[sign]
    elif not _learnt(study, gap.arms, gap.columns):
        sign, outcome = 0, "no better than one answer for all"
        need = ("longer pretraining, for no arm beats one answer for all on", study.named(gap.columns))
    elif found.equal:
        sign, outcome = -int(found.pairs >= LEAST_PAIRS), "equal in every pair"
    else:
        sign = 1 if found.sign(together) == 1 else min(found.sign(comparisons), 0)
        outcome = ("not told apart", "above", "below")[sign]
    return Comparison(gap.name, sign, outcome, f"{found.mean:+.3f}{ends}", found.mean, (need,))


def _averaged(study: Study, arms: Sequence[Arm]) -> tuple[str, ...]:
    """What some arms are averaged over: the paper's tasks on which any of them learnt anything; where that is none,
    those that any has a score of."""
    scored = [column for column in study.columns if any(column.key in arm.scores for arm in arms)]
    keys = [column.key for column in scored if column.paper in paper.TASKS]
    return tuple([key for key in keys if _learnt(study, arms, [key])] or keys)


def _learnt(study: Study, arms: Iterable[Arm | None], keys: Iterable[str]) -> bool:
    """Whether any arm is above what one answer for all scores on any of some tasks, or that is not known."""
    floors = {column.key: column.constant for column in study.columns}
    found = [(_scores(arm)[key].dropna(), floors[key]) for arm in arms for key in keys if key in _scores(arm)]
    return any(len(seeds) > 0 and (floor is None or above(seeds, floor)) for seeds, floor in found)


def _scores(arm: Arm | None) -> pd.DataFrame:
    return pd.DataFrame() if arm is None else arm.scores


# Costs


def _of_results(claim: Claim, results: Results) -> Iterator[Verdict]:
    """Under the paper's settings, on every machine, device and precision; where none reached the claim's lengths under
    those, under the settings that did."""
    rules = claim.rule["rules"]
    found = [each for each in results.conditions() if all(results.table(each, rule["measure"]) for rule in rules)]
    reach = [
        each
        for each in found
        if all(
            any(span_of(results.table(each, rule["measure"]), model, length) for model in rule["less"])
            for rule in rules
            for length in (*rule["at"], *([rule["from"]] if "from" in rule else []))
        )
    ]
    places = [each for each in reach or found if each.profile == "paper"] or reach or found
    for condition in places:
        settings = "" if condition.profile == "paper" else f"{condition.profile} settings, "
        on = f" on {condition.machine}" if condition.machine else ""
        place = f"{settings}{DTYPES.get(condition.dtype, condition.dtype)}, {condition.device}{on}"
        asked = [
            (rule, model, group, length)
            for rule in rules
            for model, group, length in product(rule["less"], rule["than"], rule["at"])
        ]
        compared = [_held(results.table(condition, each[0]["measure"]), *each, len(asked)) for each in asked]
        yield _verdict(claim, claim.claim, place, compared)


def _held(
    rows: Rows,
    rule: Mapping[str, Any],
    model: str,
    group: Sequence[str],
    length: int,
    of: int,
) -> Comparison:
    """How many times what one model needs its rivals need, beside a factor or 1."""
    start, factor = rule.get("from"), rule.get("factor")
    who = NAMES[group[0]] if len(group) == 1 else f"the {len(group)} rivals"
    found = ratio(rows, length, group, model, start)
    if found is None or found.span is None:
        lengths = [each for each in (start, length) if each is not None]
        lacking = [
            f"{NAMES[each]} at {at:,}" for each in (model, *group) for at in lengths if not span_of(rows, each, at)
        ]
        return Comparison(who, None, needs=tuple(("a number of", each) for each in lacking))
    value = "at least" if found.value is None or found.at_least is not None else f"{found.value:.2f}"
    low, high = (f"{end:.2f}" if math.isfinite(end) else "no bound" for end in found.span)
    spread = "" if low == high else f" [{low}, {high}]"
    at = f" at {length:,}" if len(rule["at"]) > 1 else ""
    calls = "" if found.rounds is None else f", {min(found.rounds)} calls or more"
    sign, needs = _parted(found, found.span, factor, of, alike=rule["measure"] == "memory")
    outcome = ("not told apart", "as claimed", "the other way")[sign]
    return Comparison("", sign, outcome, f"{who} {value}{spread} times {NAMES[model]}{at}{calls}", found.span[0], needs)


def _parted(
    found: Ratio, span: tuple[float, float], factor: float | None, of: int, alike: bool
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """What a ratio says of being above a factor, or above 1, and what it would take to tell.

    Were two models equally fast, of so many ways to say which calls are whose one would have all of the one first
    (permutation test). One of several rivals that refutes a claim was looked for among all.
    """
    low, high = span
    least = 1.0 if factor is None else factor
    is_above = low > least if factor is None else round(low, 2) >= least
    is_below = high < least if factor is None else round(high, 2) < least
    if alike and factor is None and abs(low - 1) < ALIKE:
        return 0, (("nothing", f"they differ by less than {ALIKE:.0%}"),)
    if not is_above and not is_below:
        return 0, (("calls that vary less", "their spreads overlap"),)
    needed = least_calls(of if is_below else 1)
    if found.rounds is None or (
        min(found.rounds) >= LEAST_CALLS
        and math.comb(sum(found.rounds), found.rounds[0]) >= math.comb(sum(needed), needed[0])
    ):
        return (1 if is_above else -1), ()
    few, many = needed
    each = f"{few} of each model" if few == many else f"{few} of one model and {many} of the other"
    return 0, (("too few rounds, needed are", each),)


def least_calls(comparisons: int = 1) -> tuple[int, int]:
    """Fewest calls of each of two models from which on one lying wholly beyond the other is told from chance."""
    pairs = ((calls, more) for more in range(LEAST_CALLS, 100) for calls in (more - 1, more) if calls >= LEAST_CALLS)
    return next((a, b) for a, b in pairs if comparisons / math.comb(a + b, a) < 1 - LEVEL)


# Drift

Curves = Mapping[str, Mapping[str, Sequence[float]]]
"""Distances in one situation by masking and kind of vector, at no padding and then at ever more of it."""


def curves_of(result: Mapping[str, Any], side: str, attention: str) -> Curves:
    """The curves of trained weights in one situation."""
    return {
        row["masking"]: {kind: row[kind] for kind in VECTORS}
        for row in result["rows"]
        if (row["weights"], row["side"], row["attention"]) == ("trained", side, attention)
    }


def _of_curves(rule: str, curves: Curves) -> list[Comparison]:
    """What the largest distance of any vector under some maskings says."""
    maskings, sign, need = _DRIFT[rule]
    if not set(maskings) <= curves.keys():
        return [Comparison("", None, needs=(("curves of", ", ".join(maskings)),))]
    far = [max(map(max, curves[masking].values())) for masking in maskings]
    told = ", ".join(f"{name} {written(each)}" for name, each in zip(maskings, far, strict=True))
    needs = (("a situation", f"in which {need}"),)
    return [Comparison("", sign(*far), told=f"cosine distance at most: {told}", needs=needs)]


def _moves(none: float) -> int:
    return 1 if none > 10 * STABLE else -int(none <= STABLE)


def _suppressed(none: float, both: float) -> int:
    """Nothing to suppress where nothing drifts; more than a tenth and up to half is neither the one nor the other."""
    return 0 if none <= STABLE else int(both <= STRONGLY * none) - int(both > HARDLY * none)


def _ordered(*far: float) -> int:
    """Nothing to order where every one of them keeps the vectors."""
    pre, post, both = (max(each, STABLE) for each in far)
    return 0 if pre == post == both else 1 if both <= post < pre else -1


_DRIFT: dict[str, tuple[tuple[str, ...], Callable[..., int], str]] = {
    "moves": (("none",), _moves, "it is farther from rounding"),
    "suppressed": (("none", "pre+post"), _suppressed, "something drifts, and a number for strongly"),
    "ordered": (("pre", "post", "pre+post"), _ordered, "something drifts"),
}
"""Rules of claims on drift but for growth: the maskings they look at, the sign, and what it would take."""


def _grows(curves: Curves) -> list[Comparison]:
    """Of each kind of vector: every longer padding moves it further; or the longest no further than the shortest."""
    compared = []
    for kind, (_, *distances) in curves.get("none", {}).items():
        if max(distances, default=0.0) <= STABLE or (len(distances) > 1 and distances[-1] <= distances[0]):
            sign = -1
        else:
            sign = int(len(distances) > 1 and all(less < more for less, more in pairwise(distances)))
        ends = f"{VECTORS[kind]} {written(distances[0])} to {written(distances[-1])}" if distances else ""
        needs = (("curves", "of more lengths or texts"),)
        compared.append(Comparison(ends, sign, value=sign, needs=needs))
    told = "from the shortest padding to the longest: " + ", ".join(each.name for each in compared)
    absent = Comparison("", None, needs=(("curves of", "none"),))
    return [each._replace(name="", told=told) for each in compared] or [absent]
