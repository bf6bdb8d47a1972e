"""The tables of a study: scores beside the paper's, differences from the reference, and pretraining."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from mabert_lab.report import paper
from mabert_lab.report.document import FLAG, MISSING, table, with_best
from mabert_lab.report.figures import arm_averages
from mabert_lab.report.statistics import LEAST_PAIRS, LEVEL, NO_SCORES, Difference, averages, difference, summary
from mabert_lab.report.studies import Arm, Study, percent

_PRETRAINING = {
    "steps": ("steps", "{:,.0f}", 1.0),
    "tokens (M)": ("tokens", "{:,.1f}", 1e-6),
    "held-out loss (nats)": ("held_out_loss", "{:.3f}", 1.0),
    "held-out accuracy": ("held_out_accuracy", "{:.3f}", 1.0),
    "parameters (M)": ("parameters", "{:,.1f}", 1e-6),
    "minutes": ("seconds", "{:,.1f}", 1 / 60),
}
"""Numbers of a pretraining by heading: name in the file, format, and factor."""


_RANKS = ["rank here", "rank in the paper"]
_UNITS = {
    "seed": "fine-tuning seeds",
    "conversion": "conversions (the score of one is the mean over its fine-tunings; where nothing is converted, the "
    "fine-tunings fall into as many groups)",
}
"""What the deviation of a score is taken over."""


def side_by_side(study: Study) -> pd.DataFrame:
    """Makes a table of the models' averages, over the tasks in `Study.averaged`. If the paper has any of the models,
    only those are shown, with its averages and the ranks of both."""
    every = arm_averages(study)
    found = every.dropna(subset="paper") if every["paper"].notna().any() else every
    both = found.dropna(subset=["mean", "paper"]).groupby("budget").filter(lambda each: len(each) > 1)
    ranks = both.groupby("budget")[["mean", "paper"]].rank(ascending=False, method="min")

    def cells(row: Any) -> dict[str, str]:
        return {
            "here": _written((row.mean, row.std, row.seeds) if row.seeds else None),
            _RANKS[0]: number(ranks["mean"].get(row.Index), "{:.0f}"),
            "in the paper": number(row.paper),
            _RANKS[1]: number(ranks["paper"].get(row.Index), "{:.0f}"),
        }

    own = {row.arm: cells(row) for row in found.itertuples()}
    notes = [f"Averages over {study.named(study.averaged)}, ± deviation (number of {study.unit}s)."]
    notes += [*_one_answer(study), *_uneven(study)]
    notes += [f"{FLAG}the paper's numbers: {printed.flag}." for printed in study.printed if printed.flag]
    if found["paper"].isna().all():
        frame = _table(study, "averages", own.get, notes)
        return frame.drop(columns=["in the paper", *_RANKS], errors="ignore")
    frame = _table(study, "averages beside the paper's", own.get, notes)
    return frame if len(ranks) else frame.drop(columns=_RANKS)


def score_table(study: Study) -> pd.DataFrame:
    """Tabulates all scores: mean ± sample standard deviation and number of seeds, with the best of each budget in
    bold."""
    keys = [column.key for column in study.scored]
    average = f"average of {len(keys)}"

    def cells(arm: Arm) -> dict[str, str]:
        own = {each.heading: _summary(arm.scores.get(each.key, ()), _why(arm, each.key)) for each in study.columns}
        return {**own, average: _summary(averages(arm.scores, keys))}

    notes = [
        f"Mean ± sample standard deviation over {_UNITS[study.unit]}, in brackets how many; bold is the highest mean, "
        f"told from the others or not. The average is over {study.named(keys)}, of the {study.unit}s that have all of "
        "them.",
        *_uneven(study),
        *_samples(study),
    ]
    frame = _table(study, "measured here", cells, notes)
    first = frame.shape[1] - len(study.columns) - 1
    frame = with_best(frame, range(first, frame.shape[1]), by=list(frame.columns[1:first]))
    floors = pd.Series({column.key: column.constant for column in study.columns}, dtype=float)
    if floors.notna().any():
        mean = floors[keys].mean(skipna=False)
        frame.loc[len(frame)] = ["the best single class for all", *[""] * (first - 1), *map(number, (*floors, mean))]
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
        reference = study.reference_of(arm)
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
        f"{study.unit}s and how many pairs. Bold where a paired t test at {1 - LEVEL:.0%} tells them apart and there "
        f"are {LEAST_PAIRS} pairs; each difference is tested by itself.",
        *_one_answer(study),
    ]
    return _table(study, f"differences from {compared}", cells, notes)


def papers_table(printed: paper.Table) -> pd.DataFrame:
    """Makes one of the paper's whole tables with its warning, and the best of each column in bold."""
    cells, costs = printed.mean.map("{:,.3f}".format), printed.std is None
    if printed.std is None:
        cells.columns = [f"{each:,}" if isinstance(each, int) else each for each in cells.columns]
    else:
        cells = cells + printed.std.map(" ± {:.3f}".format)
        cells.columns = [f"{task['title']} ({task['metric']})" for task in paper.TASKS.values()]
        cells["average of 8"] = [f"{printed.average(row):.3f}" for row in cells.index]
    rows = [(paper.NAMES.get(row, row), *cells.loc[row]) for row in cells.index]
    notes = [f"{FLAG}{printed.flag}."] if printed.flag else []
    frame = table(f"{printed.label}: {printed.title} ({printed.unit})", ["the paper's", *cells.columns], rows, notes)
    return frame if "total" in cells else with_best(frame, range(1, frame.shape[1]), lowest=costs)


def pretraining_table(study: Study) -> pd.DataFrame:
    """Makes a table of each arm's pretraining."""

    def cells(arm: Arm) -> dict[str, str]:
        told = arm.pretraining
        numbers = {head: number(told.get(name), form, unit) for head, (name, form, unit) in _PRETRAINING.items()}
        return {"state": told.get("status", "missing"), **numbers, "tokenizer": told.get("tokenizer") or MISSING}

    notes = ["Loss and accuracy are of masked tokens of held-out text."]
    done = [arm.pretraining for arm in study.arms if arm.pretraining.get("status") == "done"]
    if len({about.get("tokenizer") for about in done}) > 1:
        notes.append(f"{FLAG}vocabularies differ, and losses and accuracies of different ones cannot be compared.")
    if any(arm.pretraining.get("tokenizer_trained") for arm in study.arms):
        notes.append(f"{FLAG}some vocabularies were trained on the run's text; the paper's models have their own.")
    return _table(study, "pretraining", cells, notes)


def conversion_table(study: Study) -> pd.DataFrame:
    """Makes a table of each arm's conversions."""

    def cells(arm: Arm) -> dict[str, str]:
        made = pd.DataFrame(arm.pretraining.get("conversions") or [{}])
        done = made.reindex(columns=["pattern", "cosine", "floor", "seconds"]).dropna(subset="pattern")
        return {
            "state": arm.pretraining.get("status", "missing"),
            "conversions": f"{len(done)} of {len(made)}",
            "layers": ", ".join(done["pattern"].unique()) or MISSING,
            "cosine to the encoder": _summary(done["cosine"]),
            "floor": _summary(done["floor"]),
            "parameters (M)": number(arm.pretraining.get("parameters"), "{:,.1f}", 1e-6),
            "minutes each": number(done["seconds"].mean(), "{:,.1f}", 1 / 60),
        }

    notes = [
        "The cosine is between the vectors of held-out texts before fine-tuning; the floor is the encoder itself with "
        "its attention held constant in the layers that are converted."
    ]
    return _table(study, "conversions", cells, notes)


def task_table(study: Study) -> pd.DataFrame:
    """Makes a table of the tasks: rows, epochs and source."""
    rows = [
        (each.heading, *(number(count, "{:,}") for count in (each.train, each.validation, each.epochs)), each.source)
        for each in study.columns
    ]
    head = ("task", "training rows", "scored on", "epochs", "source")
    return table(f"{study.title}: tasks", head, rows)


def failures(study: Study) -> list[str]:
    """Returns one line per failed run."""
    names, lines = {column.key: column.name for column in study.columns}, []
    for arm in study.arms:
        place = f"{study.label_of(arm.name)}, {percent(arm.budget)}"
        if arm.pretraining.get("status") == "failed":
            kind = "conversion" if study.converts else "pretraining"
            lines.append(f"{place}, {kind}: {arm.pretraining.get('reason') or 'no reason told'}")
        for each in arm.failed:
            seed = "" if each.get("seed") is None else f", seed {each['seed']}"
            task = names.get(each.get("column", "?"), each.get("column", "?"))
            lines.append(f"{place}, {task}{seed}: {' '.join((each.get('reason') or 'no reason told').split())}")
    return lines


def seeds(study: Study) -> pd.DataFrame:
    """Returns all scores, one per row."""
    head = ["study", "scale", "arm", "budget", "task", "metric", "seed", "score"]
    rows = [
        (study.name, study.scale, arm.name, arm.budget, each.name, metric, seed, score)
        for arm in study.arms
        for each in study.columns
        for (key, metric), found in {
            (each.key, each.metric): arm.scores.get(each.key, NO_SCORES),
            **arm.further,
        }.items()
        if key == each.key
        for seed, score in found.dropna().sort_index().items()
    ]
    return pd.DataFrame(rows, columns=head)


def number(value: float | None, form: str = "{:.3f}", unit: float = 1) -> str:
    """Formats a number, or marks a missing one."""
    return MISSING if value is None or math.isnan(value) else form.format(value * unit if unit != 1 else value)


def _table(
    study: Study,
    what: str,
    cells: Callable[[Arm], Mapping[str, str] | None],
    notes: Iterable[str] = (),
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
    failed = [each.get("reason") or "no reason told" for each in arm.failed if each.get("column") == column]
    return f"failed: {failed[0].split(':')[0]}" if failed else ""


def _summary(scores: Iterable[float], why: str = "") -> str:
    return _written(summary(scores), why)


def _written(found: tuple[float, float | None, int] | None, why: str = "") -> str:
    if found is None:
        return f"{MISSING} {why}".strip()
    mean, std, count = found
    return f"{mean:.3f} ({count})" if count == 1 else f"{mean:.3f} ± {std:.3f} ({count})"


def _difference(found: Difference | None, over: str = "") -> str:
    if found is None:
        return MISSING
    ends = "" if found.low is None else f"[{found.low:+.3f}, {found.high:+.3f}] "
    text = f"{found.mean:+.3f} {ends}({found.pairs}){over}"
    return f"**{text}**" if found.sign() else text


def _uneven(study: Study) -> list[str]:
    """Warns if some scores have more seeds than others."""
    counts = sorted({int(count) for arm in study.arms for count in arm.scores.count()})
    if len(counts) < 2:
        return []
    return [f"{FLAG}scores have {counts[0]} to {counts[-1]} {study.unit}s; bold and ranks weigh them alike."]


def _one_answer(study: Study) -> list[str]:
    """Warns of tasks on which all differences are 0 because every model gives a constant answer."""
    keys = [
        column.key
        for column in study.scored
        if all(
            (arm.scores[column.key].dropna() == column.constant).all() for arm in study.arms if column.key in arm.scores
        )
    ]
    return [f"Every model gives one answer for all of {study.named(keys)}, so none differ there."] if keys else []


def _samples(study: Study) -> Iterator[str]:
    told = [f"{each.name}, with {each.train:,} training rows" for each in study.columns if each.sample and each.train]
    if told:
        yield f"Scores on other rows than the official task's are not scores on that task: {'; '.join(told)}."
