"""Claims on scores: which arm is above which, on average or on a task."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

from mabert_lab.report import paper
from mabert_lab.report.claims.verdict import OPEN, UNMEASURED, Verdict, judge
from mabert_lab.report.grid import percent
from mabert_lab.report.study.results import Row, Study
from mabert_lab.report.study.statistics import LEAST_PAIRS, Difference, Seeds, above, averages, difference
from mabert_lab.report.study.tables import paper_table_of

Pair = tuple[str, str]
"""Keys of two rows of a paper's table; the first is claimed to be above the second."""

_DEFAULT = "MMTMMTMMTMMT"
_MAMBA, _TRANSFORMER = 12 * "M", 12 * "T"
_MIXED = tuple(pattern for pattern in paper.PATTERNS.rows if len(set(pattern)) == 2)
_HIGHEST = ("cola", "mrpc", "mnli_m", "mnli_mm", "rte")  # on which the default pattern is said to be
_WON = ("cola", "mrpc", "qqp", "qnli", "rte")  # on which MaBERT is best at the full budget


@dataclass(frozen=True)
class Claim:
    """That some rows of a table are above others.

    Attributes:
        text: In our words; ``{budget}`` is filled in.
        source: Label in the paper.
        studies: What the studies ask that measure it, of `mabert_lab.report.study.results.QUESTIONS`.
        pairs: What must be above what.
        tasks: On each of which it must be so; empty for the average.
        budgets: At which alone it is claimed; empty for any.
        most: Whether more than half of the tasks are enough for a pair.
        widest: The task on which the rows must be farther apart than on each of `tasks`, in place of the above.
    """

    text: str
    source: str
    studies: tuple[str, ...]
    pairs: tuple[Pair, ...]
    tasks: tuple[str, ...] = ()
    budgets: tuple[float, ...] = ()
    most: bool = False
    widest: str = ""


CLAIMS = (
    Claim(
        f"{_DEFAULT} has the highest average of the patterns",
        "tab:pattern_glue",
        ("pattern",),
        tuple((_DEFAULT, other) for other in paper.PATTERNS.rows if other != _DEFAULT),
    ),
    Claim(
        "Patterns of one kind of layer are below all mixed ones on average",
        "tab:pattern_glue",
        ("pattern",),
        tuple(product(_MIXED, (_MAMBA, _TRANSFORMER))),
    ),
    Claim(
        "Mamba layers alone are the worst pattern on average",
        "tab:pattern_glue",
        ("pattern",),
        tuple((other, _MAMBA) for other in paper.PATTERNS.rows if other != _MAMBA),
    ),
    Claim(
        f"On CoLA, MRPC, MNLI-m, MNLI-mm and RTE {_DEFAULT} has the highest score",
        "tab:pattern_glue",
        ("pattern",),
        tuple((_DEFAULT, other) for other in paper.PATTERNS.rows if other != _DEFAULT),
        _HIGHEST,
    ),
    Claim(
        "Transformer layers alone are below each mixed pattern on most tasks",
        "tab:pattern_glue",
        ("pattern",),
        tuple(product(_MIXED, (_TRANSFORMER,))),
        tuple(paper.TASKS),
        most=True,
    ),
    Claim(
        "MaBERT has the highest average at {budget} of the steps (by the tables; the text says among the top)",
        "fig:glue_budget_avg",
        ("baselines", "budget"),
        tuple(("mabert", rival) for rival in paper.BASELINES),
    ),
    Claim(
        "MaBERT is best on five of eight tasks at all steps: CoLA, MRPC, QQP, QNLI and RTE",
        "tab:glue_full_budget",
        ("baselines", "budget"),
        tuple(("mabert", rival) for rival in paper.BASELINES),
        _WON,
        (1.0,),
    ),
    Claim(
        "MaBERT is best on every task at {budget} of the steps",
        "tab:glue_10pct to tab:glue_50pct",
        ("budget",),
        tuple(("mabert", rival) for rival in paper.BASELINES),
        tuple(paper.TASKS),
        (0.1, 0.25, 0.5),
    ),
    Claim(
        "MaBERT is above each rival on MNLI-m, MNLI-mm and QNLI at {budget} of the steps, so its gains there persist",
        "tab:glue_10pct to tab:glue_50pct",
        ("budget",),
        tuple(("mabert", rival) for rival in paper.BASELINES),
        ("mnli_m", "mnli_mm", "qnli"),
        (0.1, 0.25, 0.5),
    ),
    Claim(
        "MaBERT's lead over each rival is widest on CoLA at {budget} of the steps",
        "tab:glue_10pct to tab:glue_50pct",
        ("budget",),
        tuple(("mabert", rival) for rival in paper.BASELINES),
        tuple(task for task in paper.TASKS if task != "cola"),
        (0.1, 0.25, 0.5),
        widest="cola",
    ),
    Claim(
        "Masking and MAP together are above either alone and above neither, on average",
        "tab:ablation_integration",
        ("components",),
        (("full", "psm_only"), ("full", "map_only"), ("full", "none")),
    ),
    Claim(
        "Masking and MAP together are best on every task",
        "tab:ablation_integration",
        ("components",),
        (("full", "psm_only"), ("full", "map_only"), ("full", "none")),
        tuple(paper.TASKS),
    ),
    Claim(
        "MAP is above [CLS] pooling, with masking and without, on average",
        "tab:ablation_integration",
        ("components",),
        (("full", "psm_only"), ("map_only", "none")),
    ),
    Claim(
        "The full model's lead over [CLS] pooling, with masking and without, is widest on CoLA",
        "tab:ablation_integration",
        ("components",),
        (("full", "psm_only"), ("full", "none")),
        tuple(task for task in paper.TASKS if task != "cola"),
        widest="cola",
    ),
    Claim(
        "Masking alone is above neither, on average",
        "tab:ablation_integration",
        ("components",),
        (("psm_only", "none"),),
    ),
    Claim(
        "Masking alone is above neither on every task",
        "tab:ablation_integration",
        ("components",),
        (("psm_only", "none"),),
        tuple(paper.TASKS),
    ),
    Claim(
        "MAP is the best pooling on average",
        "tab:pooling_pred_100pct",
        ("pooling",),
        tuple(("map", other) for other in paper.POOLINGS if other != "map"),
    ),
    Claim(
        "MAP is the best pooling on every task",
        "tab:pooling_pred_100pct",
        ("pooling",),
        tuple(("map", other) for other in paper.POOLINGS if other != "map"),
        tuple(paper.TASKS),
    ),
    Claim(
        "[CLS] is the worst pooling on average",
        "tab:pooling_pred_100pct",
        ("pooling",),
        tuple((other, "cls") for other in paper.POOLINGS if other != "cls"),
    ),
    Claim(
        "MAP's lead over [CLS] pooling is widest on RTE",
        "tab:pooling_pred_100pct",
        ("pooling",),
        (("map", "cls"),),
        tuple(task for task in paper.TASKS if task != "rte"),
        widest="rte",
    ),
)
_OUTCOMES = (
    "above",
    "below",
    "equal in every pair",
    "no better than one answer for all",
    "not told apart",
    "missing",
)
GROWTH = "MaBERT's average rises with every budget"
_GROWTH_SOURCE = "fig:glue_budget_avg"


class Compared(NamedTuple):
    """One pair, measured and in the paper.

    Attributes:
        name: Which two, and on what.
        found: Here; None where it was not measured.
        in_paper: The paper's difference over the same tasks; None where it has none.
        learnt: Whether any of the two is above one answer for all, without which nothing is compared but chance.
    """

    name: str
    found: Difference | None
    in_paper: float | None
    learnt: bool = True


def score_verdicts(studies: Sequence[Study]) -> list[Verdict]:
    """Every claim on scores, at every scale and budget that it was measured at; once where nowhere."""
    verdicts = []
    for claim in CLAIMS:
        found = _of_all([study for study in studies if study.question in claim.studies], partial(_of_study, claim))
        text = claim.text.format(budget="each share")
        verdicts += found or [Verdict(text, claim.source, "-", UNMEASURED, "", "")]
    rising = _of_all([study for study in studies if study.question == "budget"], _growth)
    return [*verdicts, *(rising or [Verdict(GROWTH, _GROWTH_SOURCE, "-", UNMEASURED, "", "")])]


def _of_all(studies: Sequence[Study], judged: Callable[[Study], Iterable[Verdict]]) -> list[Verdict]:
    """The verdicts of some studies; of several, each says which."""
    if len(studies) == 1:
        return list(judged(studies[0]))
    return [replace(each, place=f"{study.title}, {each.place}") for study in studies for each in judged(study)]


def _of_study(claim: Claim, study: Study) -> Iterator[Verdict]:
    variants = ["", *dict.fromkeys(variant for row in study.rows if (variant := study.variant(row)))]
    for budget in claim.budgets:
        if budget not in study.budgets:
            share = percent(budget)
            place = f"{study.scale}, {share} of the steps"
            yield Verdict(claim.text.format(budget=share), claim.source, place, UNMEASURED, "", "")
    for budget in study.budgets:
        for variant in variants:
            rows = study.rows_by_paper(budget, variant)
            if rows and (not claim.budgets or budget in claim.budgets):
                columns = _compared(study, [row for pair in claim.pairs for key in pair if (row := rows.get(key))])
                compared = [
                    each
                    for pair in claim.pairs
                    for each in (
                        [_on_task(study, budget, rows, pair, task, claim.widest) for task in claim.tasks]
                        or [_on_average(study, budget, rows, pair, columns)]
                    )
                ]
                place = ", ".join(filter(None, (study.scale, f"{percent(budget)} of the steps", variant)))
                flagged = (table := paper_table_of(study, budget)) is not None and table.flagged
                text, together = claim.text.format(budget=percent(budget)), len(claim.tasks) if claim.most else 1
                yield _verdict(text, claim.source, place, compared, study, flagged, together)


def _compared(study: Study, rows: Sequence[Row]) -> tuple[str, ...]:
    """What some rows are averaged over: the paper's tasks on which any of them learnt anything; where that is none,
    those that any has a score of."""
    scored = [
        column.key
        for column in study.columns
        if column.paper in paper.TASKS and any(column.key in study.scores(row) for row in rows)
    ]
    learnt = [key for key in scored if _learnt(study, rows, [key])]
    return tuple(learnt or scored)


def _learnt(study: Study, rows: Iterable[Row | None], keys: Iterable[str]) -> bool:
    """Whether any row is above what one answer for all scores on any of some tasks; so it is taken to be where that is
    not known."""
    floors = {column.key: column.constant for column in study.columns}
    found = [(study.scores(row).get(key, {}), floors[key]) for row in rows if row is not None for key in keys]
    return any(bool(seeds) and (floor is None or above(seeds, floor)) for seeds, floor in found)


def _averages_apart(study: Study, first: Row | None, second: Row | None, columns: tuple[str, ...]) -> Difference | None:
    """One row's average over tasks less another's; None where either lacks one of them."""
    if first is None or second is None or not columns:
        return None
    ours, theirs = (averages(study.scores(row), columns) for row in (first, second))
    return difference(ours, theirs, columns)


def _on_average(study: Study, budget: float, rows: Mapping[str, Row], pair: Pair, columns: tuple[str, ...]) -> Compared:
    found = _averages_apart(study, rows.get(pair[0]), rows.get(pair[1]), columns)
    table = paper_table_of(study, budget)
    # The paper's own average is over the tasks that were measured here.
    papers = study.papers(columns) or tuple(paper.TASKS)
    theirs = None
    if table is not None and papers and all(key in table.rows for key in pair):
        theirs = paper.average(table, pair[0], papers) - paper.average(table, pair[1], papers)
    return Compared(_name(study, rows, pair), found, theirs, _learnt(study, map(rows.get, pair), columns))


def _on_task(study: Study, budget: float, rows: Mapping[str, Row], pair: Pair, task: str, widest: str = "") -> Compared:
    """The gap of two rows on a task, or how much wider it is on another; a sample of a task is not that task."""
    first, second = (rows.get(key) for key in pair)
    keys = {column.paper: column.key for column in study.columns if not column.sample}
    table = paper_table_of(study, budget)

    def gaps(task: str) -> Seeds:
        if first is None or second is None or task not in keys:
            return {}
        ours, theirs = (study.scores(row).get(keys[task], {}) for row in (first, second))
        return {seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()}

    def in_paper(task: str) -> float | None:
        return None if table is None else table.rows[pair[0]][task].mean - table.rows[pair[1]][task].mean

    name, papers = _name(study, rows, pair), in_paper(task)
    learnt = _learnt(study, (first, second), [keys[each] for each in (task, widest) if each in keys])
    if not widest:
        own = gaps(task)
        found = difference(own, dict.fromkeys(own, 0.0), (keys[task],)) if own else None
        return Compared(f"{name} on {paper.TASKS[task].title}", found, papers, learnt)
    found = difference(gaps(widest), gaps(task), tuple(keys[each] for each in (widest, task) if each in keys))
    wider = in_paper(widest)
    return Compared(
        f"{name} on {paper.TASKS[widest].title} less that on {paper.TASKS[task].title}",
        found,
        None if wider is None or papers is None else wider - papers,
        learnt,
    )


def _growth(study: Study) -> Iterator[Verdict]:
    rows = {row.budget: row for row in study.rows if row.paper == "mabert"}
    columns = _compared(study, list(rows.values()))
    papers = study.papers(columns) or tuple(paper.TASKS)
    compared = []
    steps = list(pairwise(sorted(paper.GLUE)))
    # Neighbours that were measured, where the paper has others between them, can speak against the claim only.
    steps += [each for each in pairwise(sorted(rows)) if each not in steps]
    for earlier, later in steps:
        found = _averages_apart(study, rows.get(later), rows.get(earlier), columns)
        known = [paper.average(paper.GLUE[each], "mabert", papers) for each in (later, earlier) if each in paper.GLUE]
        in_paper = known[0] - known[1] if len(known) == 2 else None
        learnt = _learnt(study, (rows.get(later), rows.get(earlier)), columns)
        compared.append(Compared(f"{percent(later)} over {percent(earlier)}", found, in_paper, learnt))
    yield _verdict(GROWTH, _GROWTH_SOURCE, study.scale, compared, study, False)


def _verdict(
    claim: str,
    source: str,
    place: str,
    compared: Sequence[Compared],
    study: Study,
    flagged: bool,
    together: int = 1,
) -> Verdict:
    """Judges a claim; of so many comparisons `together`, most decide."""
    measured = sum(each.found is not None for each in compared)
    signs = [_speaks(each, measured, together) for each in compared]
    verdict = judge([_majority(signs[first : first + together]) for first in range(0, len(signs), together)])
    numbers = _numbers(compared, signs, study)
    theirs = [(each.in_paper, each.name) for each in compared if each.in_paper is not None]
    told = "" if not theirs else f"least {min(theirs)[0]:+.3f}: {min(theirs)[1]}"
    if theirs and together > 1:
        above = [each.in_paper > 0 for each in compared if each.in_paper is not None]
        counts = [sum(above[first : first + together]) for first in range(0, len(above), together)]
        told = f"above on {min(counts)} to {max(counts)} of {together} tasks"
    told += " (flagged)" if theirs and flagged else ""
    if verdict == OPEN and all(each.found is not None and each.found.pairs < LEAST_PAIRS for each in compared):
        numbers += f"; fewer than {LEAST_PAIRS} pairs"
    return Verdict(claim, source, place, verdict, numbers, told)


def _majority(signs: Sequence[int | None]) -> int | None:
    """What most of some comparisons say: that of a single one, as it is."""
    needed = len(signs) // 2 + 1
    if signs.count(1) >= needed:
        return 1
    if len(signs) - signs.count(-1) < needed:
        return -1
    return None if None in signs else 0


def _speaks(compared: Compared, comparisons: int, together: int = 1) -> int | None:
    """What a comparison says of the claim that it is one of: 1 for it, -1 against it, 0 neither; None if not measured.

    Two that have the same score in every pair speak against it: neither is above the other.

    Where all must speak for the claim, none needs a correction; where most of some must, as many may be left out as
    the level is divided by, less one (Benjamini and Heller 2008, "Screening for partial conjunction hypotheses"). One
    that speaks against it was looked for among all.
    """
    found = compared.found
    if found is None:
        return None
    if not compared.learnt:
        return 0
    if found.equal and found.pairs >= LEAST_PAIRS:
        return -1
    return 1 if found.sign(together - together // 2) == 1 else min(found.sign(comparisons), 0)


def _numbers(compared: Sequence[Compared], signs: Sequence[int | None], study: Study) -> str:
    """How many comparisons point which way, the one that speaks most against the claim, and over what tasks."""
    measured = [(each, each.found, sign) for each, sign in zip(compared, signs, strict=True) if each.found is not None]
    if not measured:
        return ""
    counts = Counter(_outcome(each, found, sign) for each, found, sign in measured)
    counts["missing"] = signs.count(None)
    weakest, least, _ = min(measured, key=lambda each: (each[2] or 0, each[1].mean))
    ends = "" if least.low is None else f" [{least.low:+.3f}, {least.high:+.3f}]"
    shown = ", ".join(f"{counts[what]} {what}" for what in _OUTCOMES if counts[what])
    columns = {column for _, found, _ in measured for column in found.columns}
    return f"{shown}; least {least.mean:+.3f}{ends} ({least.pairs}): {weakest.name}; over {study.named(columns)}"


def _outcome(compared: Compared, found: Difference, sign: int | None) -> str:
    if not compared.learnt:
        return "no better than one answer for all"
    if found.equal:
        return "equal in every pair"
    return {1: "above", -1: "below"}.get(sign or 0, "not told apart")


def _name(study: Study, rows: Mapping[str, Row], pair: Pair) -> str:
    first, second = (study.label_of(rows[key].arm if key in rows else key) for key in pair)
    return f"{first} over {second}"
