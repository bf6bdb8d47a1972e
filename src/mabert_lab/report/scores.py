"""A study's tables and figures beside the paper's."""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from mabert_lab.report import paper, studies
from mabert_lab.report.charts import INK, LOOKS, line_chart, over_steps, panels, svg, with_grid
from mabert_lab.report.claims import unlearnt_of
from mabert_lab.report.document import FLAG, MISSING, table, with_best, written
from mabert_lab.report.studies import LEAST_PAIRS, LEVEL, NO_SCORES, ArmRun, StudyRun, averages, difference, percent

_UNITS = {
    "seed": "fine-tuning seeds",
    "conversion": "conversions (the score of one is the mean over its fine-tunings; where nothing is converted, the "
    "fine-tunings fall into as many groups)",
}
"""What the deviation of a score is taken over."""


def side_by_side(study: StudyRun) -> pd.DataFrame:
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
    hardly = [name for name, _ in unlearnt_of(study, found["arm"], study.averaged)]
    if hardly and not study.converts:
        notes.append(f"{FLAG}{', '.join(hardly) if len(hardly) < len(found) else 'all models'} had hardly learnt.")
    notes += [f"{FLAG}the paper's numbers: {printed.flag}." for printed in study.printed if printed.flag]
    what = "averages beside the paper's" if found["paper"].notna().any() else "averages"
    return _table(study, what, own.get, notes)


def score_table(study: StudyRun) -> pd.DataFrame:
    """Tabulates all scores, with the best of each budget in bold."""
    keys = [column.key for column in study.scored]
    average = f"average of {len(keys)}"

    def cells(arm: ArmRun) -> dict[str, str]:
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


def further_table(study: StudyRun) -> list[pd.DataFrame]:
    """Makes a table of scores by further metrics, such as accuracy beside F1; empty if there are none."""
    further = dict.fromkeys(column for arm in study.arms for column in arm.further)
    names = {column.key: column.name for column in study.columns}

    def cells(arm: ArmRun) -> dict[str, str]:
        return {f"{names[key]} ({metric})": _summary(arm.further.get((key, metric), ())) for key, metric in further}

    notes = ["Not in the averages, and not in the paper."]
    return [_table(study, "further metrics", cells, notes)] if further else []


def difference_table(study: StudyRun) -> pd.DataFrame:
    """Tabulates each arm's difference from the reference arm of its budget, paired by seed, with the interval."""
    compared = study.label_of(study.reference)

    def cells(arm: ArmRun) -> dict[str, str] | None:
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


def pretraining_table(study: StudyRun) -> pd.DataFrame:
    def cells(arm: ArmRun) -> dict[str, str]:
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


def conversion_table(study: StudyRun) -> pd.DataFrame:
    def cells(arm: ArmRun) -> dict[str, str]:
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


def task_table(study: StudyRun) -> pd.DataFrame:
    rows = [
        (each.heading, *(written(count, "{:,}") for count in (each.train, each.validation, each.epochs)), each.source)
        for each in study.columns
    ]
    return table(f"{study.title}: tasks", ("task", "training rows", "scored on", "epochs", "source"), rows)


def failures(study: StudyRun) -> list[str]:
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


def seeds(study: StudyRun) -> pd.DataFrame:
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
    study: StudyRun, what: str, cells: Callable[[ArmRun], Mapping[str, str] | None], notes: Iterable[str] = ()
) -> pd.DataFrame:
    """Makes a table with one row per arm, and a budget column if there are several; leaves out arms without cells."""
    found = {arm: own for arm in study.arms if (own := cells(arm)) is not None}
    several = ["budget"] if len(study.budgets) > 1 else []
    rows = [
        (study.label_of(arm.name), *(percent(arm.budget) for _ in several), *own.values()) for arm, own in found.items()
    ]
    return table(f"{study.title}: {what}", ["model", *several, *next(iter(found.values()), {})], rows, notes)


def _why(arm: ArmRun, column: str) -> str:
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


def _uneven(study: StudyRun, shown: Iterable[int]) -> list[str]:
    """Warns if some of the shown scores have more seeds than others."""
    counts = sorted(set(shown) - {0})
    if len(counts) < 2:
        return []
    return [f"{FLAG}scores of {counts[0]} to {counts[-1]} {study.unit}s are compared as if all had as many."]


def _one_answer(study: StudyRun) -> list[str]:
    """Warns of tasks on which all differences are 0 because every model gives a constant answer."""
    every = {
        each: pd.concat([arm.scores[each.key] for arm in study.arms if each.key in arm.scores]) for each in study.scored
    }
    keys = [each.key for each, scores in every.items() if (scores.dropna() == each.constant).all()]
    return [f"On {study.named(keys)} every model gives one answer for all rows, so none differ."] if keys else []


def arm_averages(study: StudyRun) -> pd.DataFrame:
    """Averages each arm over `StudyRun.averaged`, a row each, with the paper's average over the same tasks or NaN."""
    wanted, rows = study.averaged, []
    papers = [each.paper for each in study.columns if each.key in wanted and each.paper in paper.TASKS]
    for arm in study.arms:
        table, theirs = study.table(arm.budget), math.nan
        if table is not None and papers and arm.paper in table.mean.index:
            theirs = table.average(str(arm.paper), papers)
        rows.append((arm, arm.budget, *studies.summary(averages(arm.scores, wanted)), theirs))
    return pd.DataFrame(rows, columns=["arm", "budget", "mean", "std", "seeds", "paper"])


def arm_chart(study: StudyRun) -> str | None:
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


def pretraining_chart(study: StudyRun) -> str | None:
    """Draws the loss of each pretraining of the largest budget, once if arms share it; None if there is none."""
    shared: dict[str, list[ArmRun]] = {}
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


def _label(study: StudyRun, name: str) -> str:
    """Escapes an arm's name for matplotlib, which reads text between two dollar signs as a formula."""
    return study.label_of(name).replace("$", r"\$")
