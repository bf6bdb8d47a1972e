"""A study's figures: averages of its arms, averages over budgets, pretraining loss; ours solid, the paper's dashed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mabert_lab.report import paper
from mabert_lab.report.figures import DASHED, INK, LOOKS, Look, plain, svg
from mabert_lab.report.grid import percent
from mabert_lab.report.study.results import Row, Study
from mabert_lab.report.study.statistics import Summary, averages, summary
from mabert_lab.report.study.tables import ordered, paper_table_of, paper_tables, scored, vocabularies_differ

_COLOURS = [
    LOOKS[name].colour for name in ("mabert", "modernbert", "longformer", "deberta", "bigbird", "albert", "bert")
]
_TURNS = ("-", DASHED, (0, (1, 1.5)))


class Curve(NamedTuple):
    """One line of a figure of losses.

    Attributes:
        name: In the legend.
        steps: Where it was measured.
        losses: Nats a masked token.
    """

    name: str
    steps: Sequence[float]
    losses: Sequence[float]


def arm_chart(study: Study) -> str | None:
    """Averages of the arms of the largest budget with their deviation, the paper's in a panel beside them, as SVG.

    Returns:
        None where no arm has an average.
    """
    budget = study.budgets[-1]
    rows = [row for row in study.rows if row.budget == budget]
    ours = {row.arm: average(study, row) for row in rows}
    if not any(ours.values()):
        return None
    theirs = _paper_averages(study, budget)
    figure = Figure(figsize=(8.2, 1.3 + 0.3 * len(rows)), layout="constrained")
    panels = figure.subplots(1, 2 if theirs else 1, sharey=True, squeeze=False)[0]
    heights = {row.arm: len(rows) - number for number, row in enumerate(rows)}
    for arm, found in ours.items():
        if found is not None:
            mark = "D" if arm == study.reference else "o"
            panels[0].errorbar(found.mean, heights[arm], xerr=found.std, fmt=mark, color=_COLOURS[0], capsize=2)
    for arm, mean in theirs.items():
        mark = "D" if arm == study.reference else "o"
        panels[1].plot(mean, heights[arm], mark, color=INK, markerfacecolor="none")
    panels[0].set_yticks(list(heights.values()), [_label(study, arm) for arm in heights], fontsize="small")
    panels[0].set_ylim(0.4, len(rows) + 0.6)
    _name_panels(panels, study)
    return svg(figure)


def budget_chart(study: Study) -> str | None:
    """Averages over budgets, the paper's dashed in a panel beside them, as SVG; None where there is no average."""
    arms = dict.fromkeys(row.arm for row in study.rows)
    ours = {arm: {row.budget: average(study, row) for row in ordered(study) if row.arm == arm} for arm in arms}
    if not any(found for line in ours.values() for found in line.values()):
        return None
    figure = Figure(figsize=(8.2, 3.8), layout="constrained")
    theirs = study.question in ("budget", "baselines")
    panels = figure.subplots(1, 2 if theirs else 1, squeeze=False)[0]
    for number, (arm, line) in enumerate(ours.items()):
        look = look_of(study, arm, number)
        points = {budget: found for budget, found in line.items() if found is not None}
        spread = [found.std or 0.0 for found in points.values()]
        heights = [found.mean for found in points.values()]
        panels[0].errorbar(
            [100 * budget for budget in points],
            heights,
            spread,
            color=look.colour,
            marker=look.marker,
            markersize=5,
            label=_label(study, arm),
            elinewidth=0.8,
        )
    papers = study.papers(column.key for column in scored(study))
    for number, arm in enumerate(arms):
        key = next((row.paper for row in study.rows if row.arm == arm), None)
        if theirs and key is not None and key in paper.NAMES and papers:
            look = look_of(study, arm, number)
            heights = [paper.average(table, key, papers) for table in paper.GLUE.values()]
            shares = [100 * budget for budget in paper.GLUE]
            panels[1].plot(
                shares, heights, color=look.colour, marker=look.marker, markerfacecolor="none", linestyle=DASHED
            )
    for axes, budgets in zip(panels, (study.budgets, list(paper.GLUE)), strict=False):
        axes.set_xticks([100 * budget for budget in budgets], [*map(percent, budgets)])
    _name_panels(panels, study)
    for axes in panels:
        axes.set_xlabel("share of the pretraining steps")
        axes.set_ylabel("average score")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return svg(figure)


def loss_chart(study: Study) -> str | None:
    """Loss against step, a line for each pretraining of the largest budget, as SVG; None without any."""
    curves = list(_curves(study))
    if not curves:
        return None
    figure = Figure(figsize=(8.2, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        colour, style = _COLOURS[number % len(_COLOURS)], _TURNS[number // len(_COLOURS) % len(_TURNS)]
        axes.plot(curve.steps, curve.losses, color=colour, linestyle=style, linewidth=1.4, label=curve.name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    what = "held-out" if _loss_of(study) == "eval_loss" else "training"
    axes.set_ylabel(f"{what} loss (nats a masked token)")
    if vocabularies_differ(study):
        axes.set_title("vocabularies differ: losses of different ones cannot be compared", color=INK, fontsize="medium")
    plain(axes)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return svg(figure)


def average(study: Study, row: Row) -> Summary | None:
    """A row's average over the tasks that any row has and the paper too, or over all where it has none of them, over
    the seeds that have all of these."""
    found = scored(study)
    columns = [column.key for column in found if column.paper in paper.TASKS] or [column.key for column in found]
    return summary(averages(study.scores(row), columns).values())


def look_of(study: Study, arm: str, number: int) -> Look:
    """How a model is drawn: as in the figures of efficiency where it is one of theirs."""
    key = next((row.paper for row in study.rows if row.arm == arm and row.paper), arm.lower())
    return LOOKS.get(key, Look(_COLOURS[number % len(_COLOURS)], "o"))


def _paper_averages(study: Study, budget: float) -> Mapping[str, float]:
    """The paper's averages by arm, over the tasks that are measured here too."""
    table = paper_table_of(study, budget)
    papers = study.papers(column.key for column in scored(study))
    if table is None or not papers:
        return {}
    known = {key: row for key, row in study.rows_by_paper(budget).items() if key in table.rows}
    return {row.arm: paper.average(table, key, papers) for key, row in known.items()}


def _loss_of(study: Study) -> str:
    """Held-out loss where any pretraining has it, else that of training."""
    entries = [entry for row in study.rows for entry in row.pretraining.get("history") or ()]
    return "eval_loss" if any("eval_loss" in entry for entry in entries) else "loss"


def _curves(study: Study) -> Iterator[Curve]:
    """One for each pretraining, which arms that differ in fine-tuning alone share."""
    budget, name = study.budgets[-1], _loss_of(study)
    shared: dict[str, list[Row]] = {}
    for row in study.rows:
        history = row.pretraining.get("history")
        if row.budget == budget and history:
            shared.setdefault(row.pretraining.get("cell", row.arm), []).append(row)
    for rows in shared.values():
        history = rows[0].pretraining["history"]
        points = {entry["step"]: entry[name] for entry in history if name in entry}
        if points:
            others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
            yield Curve(_label(study, rows[0].arm) + others, list(points), list(points.values()))


def _label(study: Study, arm: str) -> str:
    """An arm's name as matplotlib draws it, which would take what stands between two dollar signs for a formula."""
    return study.label_of(arm).replace("$", r"\$")


def _name_panels(panels: Sequence[Axes], study: Study) -> None:
    flagged = any(table.flagged for _, table in paper_tables(study))
    theirs = "the paper's, the same tasks" + " (flagged: see its table)" * flagged
    for axes, title in zip(panels, (f"here ({study.scale})", theirs), strict=False):
        axes.set_title(title, color=INK, fontsize="medium")
        axes.set_xlabel("average score")
        plain(axes)
