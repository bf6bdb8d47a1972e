"""A study's part of the report: scores, the paper's beside them, differences from the reference, pretraining."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from mabert_lab.report import paper
from mabert_lab.report.charts import arm_averages
from mabert_lab.report.document import FLAG, MISSING, table, with_best
from mabert_lab.report.statistics import LEAST_PAIRS, LEVEL, NO_SCORES, Difference, averages, difference, summary
from mabert_lab.report.studies import STARTED, Arm, Study, percent

_PRETRAINING = {
    "steps": ("steps", "{:,.0f}", 1.0),
    "tokens (M)": ("tokens", "{:,.1f}", 1e-6),
    "held-out loss (nats)": ("held_out_loss", "{:.3f}", 1.0),
    "held-out accuracy": ("held_out_accuracy", "{:.3f}", 1.0),
    "parameters (M)": ("parameters", "{:,.1f}", 1e-6),
    "minutes": ("seconds", "{:,.1f}", 1 / 60),
}
"""Of each number of a pretraining its heading, its name in the file, its form and the unit that it is multiplied by."""


def side_by_side(study: Study) -> list[pd.DataFrame]:
    """Averages over the tasks that both sides have, with their ranks; nothing where the paper has none of the arms."""
    found = arm_averages(study).dropna(subset="paper")
    both = found.dropna(subset="mean").groupby("budget").filter(lambda each: len(each) > 1)
    ranks = both.groupby("budget")[["mean", "paper"]].rank(ascending=False, method="min")
    rows = [
        (
            *_arm(study, row.arm),
            _summary((row.mean, row.std, row.seeds) if row.seeds else None),
            number(ranks["mean"].get(row.Index), "{:.0f}"),
            f"{row.paper:.3f}",
            number(ranks["paper"].get(row.Index), "{:.0f}"),
        )
        for row in found.itertuples()
    ]
    columns = [column.key for column in study.scored if column.paper in paper.TASKS]
    flags = [each.flag for each in study.printed if each.flag]
    notes = [f"Averages over {study.named(columns)}, with their deviation over seeds and how many.", *_uneven(study)]
    notes += [f"{FLAG}the paper's numbers: {flag}." for flag in flags]
    head = [*_head(study), "here", "rank here", "in the paper", "rank in the paper"]
    frame = table(f"{study.title}: averages beside the paper's", head, rows, notes)
    unranked = [] if len(ranks) else ["rank here", "rank in the paper"]
    return [frame.drop(columns=unranked)] if rows else []


def score_table(study: Study) -> pd.DataFrame:
    """Every score, mean ± sample standard deviation and how many seeds; the best of each budget in bold."""
    scored = study.scored
    keys = [column.key for column in scored]
    rows = [
        (
            *_arm(study, arm),
            *(_summary(summary(arm.scores.get(each.key, ())), _why(arm, each.key)) for each in study.columns),
            _summary(summary(averages(arm.scores, keys))),
        )
        for arm in study.arms
    ]
    notes = [
        "Mean ± sample standard deviation over fine-tuning seeds, in brackets how many; bold is the highest mean, told "
        f"from the others or not. The average is over {study.named(keys)}, of the seeds that have all of them.",
        *_uneven(study),
        *_samples(study),
    ]
    head = [*_head(study), *(column.heading for column in study.columns), f"average of {len(keys)}"]
    frame = table(f"{study.title}, measured here", head, rows, notes)
    frame = with_best(frame, range(len(_head(study)), len(head)), by=_head(study)[1:])
    floors = pd.Series({column.key: column.constant for column in study.columns}, dtype=float)
    if floors.notna().any():
        mean = floors[keys].mean(skipna=False)
        budget = [""] * (len(study.budgets) > 1)
        frame.loc[len(frame)] = ["the best single class for all", *budget, *(number(each) for each in (*floors, mean))]
    return frame


def further_table(study: Study) -> list[pd.DataFrame]:
    """Every score by a metric that is not its column's own, as accuracy is beside F1; nothing where there is none."""
    further = dict.fromkeys(column for arm in study.arms for column in arm.further)
    rows = [
        (*_arm(study, arm), *(_summary(summary(arm.further.get(key, ()))) for key in further)) for arm in study.arms
    ]
    names = {column.key: column.name for column in study.columns}
    head = [*_head(study), *(f"{names[key]} ({metric})" for key, metric in further)]
    notes = ["Not in the averages, and not in the paper."]
    return [table(f"{study.title}: further metrics", head, rows, notes)] if further else []


def difference_table(study: Study) -> pd.DataFrame:
    """Every arm less the reference arm of its budget, paired by seed, with the interval."""
    rows, compared = [], study.label_of(study.reference)
    for arm in study.arms:
        reference = study.reference_of(arm)
        if reference is None or reference is arm:
            continue
        gaps = arm.scores - reference.scores
        both = gaps.columns[gaps.notna().any()]
        whole = difference(averages(arm.scores, both) - averages(reference.scores, both))
        over = f" of {len(both)} tasks" if len(both) < len(study.scored) else ""
        each = [_difference(difference(gaps.get(column.key, NO_SCORES))) for column in study.columns]
        rows.append((*_arm(study, arm), *each, _difference(whole, over)))
    variants = sorted({variant for arm in study.arms if (variant := study.variant(arm))})
    also = "".join(f"; arms with {each} less {study.reference}, {each}, that one less {compared}" for each in variants)
    notes = [
        f"The arm less {compared}{also}. In brackets the {LEVEL:.0%} percentile bootstrap interval over paired seeds "
        f"and how many pairs. Bold where a paired t test at {1 - LEVEL:.0%} tells them apart and there are "
        f"{LEAST_PAIRS} pairs; each difference is tested by itself."
    ]
    head = [*_head(study), *(column.heading for column in study.columns), "average"]
    return table(f"{study.title}: differences from {compared}", head, rows, notes)


def papers_table(printed: paper.Table) -> pd.DataFrame:
    """One of the paper's tables, all of it, with what speaks against it; the best of each column in bold."""
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
    """How each arm's pretraining went."""
    rows = [
        (
            *_arm(study, arm),
            arm.pretraining.get("status", "missing"),
            *(number(arm.pretraining.get(name), form, unit) for name, form, unit in _PRETRAINING.values()),
            *(arm.pretraining.get(name) or MISSING for name in ("tokenizer", "commit")),
        )
        for arm in study.arms
    ]
    notes = ["Loss and accuracy are of masked tokens of held-out text."]
    done = [arm.pretraining for arm in study.arms if arm.pretraining.get("status") == "done"]
    if len({about.get("tokenizer") for about in done}) > 1:
        notes.append(f"{FLAG}vocabularies differ, and losses and accuracies of different ones cannot be compared.")
    if any(arm.pretraining.get("tokenizer_trained") for arm in study.arms):
        notes.append(f"{FLAG}some vocabularies were trained on the run's text; the paper's models have their own.")
    head = [*_head(study), "state", *_PRETRAINING, "tokenizer", "commit"]
    return table(f"{study.title}: pretraining", head, rows, notes)


def task_table(study: Study) -> pd.DataFrame:
    """The tasks: how many rows, how many passes, and from where."""
    rows = [
        (each.heading, *(number(count, "{:,}") for count in (each.train, each.validation, each.epochs)), each.source)
        for each in study.columns
    ]
    head = ("task", "training rows", "scored on", "epochs", "source")
    started = [column.start for column in study.columns if column.start]
    notes = [f"{STARTED} started from the model fine-tuned on {started[0]}."] if started else []
    return table(f"{study.title}: tasks", head, rows, notes)


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of the runs, by its dotted name."""
    return pd.json_normalize(dict(settings)).iloc[:1].squeeze(axis=0).to_dict()


def failures(study: Study) -> list[str]:
    """What broke off, a line each."""
    names, lines = {column.key: column.name for column in study.columns}, []
    for arm in study.arms:
        place = f"{study.label_of(arm.name)}, {percent(arm.budget)}"
        if arm.pretraining.get("status") == "failed":
            lines.append(f"{place}, pretraining: {arm.pretraining.get('reason') or 'no reason told'}")
        for each in arm.failed:
            seed = "" if each.get("seed") is None else f", seed {each['seed']}"
            task = names.get(each.get("column", "?"), each.get("column", "?"))
            lines.append(f"{place}, {task}{seed}: {' '.join((each.get('reason') or 'no reason told').split())}")
    return lines


def seeds(study: Study) -> pd.DataFrame:
    """Every score there is, a row each."""
    head = ("study", "scale", "arm", "budget", "task", "metric", "seed", "score")
    rows = [
        (study.name, study.scale, arm.name, arm.budget, each.name, metric, seed, score)
        for arm in study.arms
        for each in study.columns
        for metric, found in [
            (each.metric, arm.scores.get(each.key, NO_SCORES)),
            *((metric, scores) for (key, metric), scores in arm.further.items() if key == each.key),
        ]
        for seed, score in found.dropna().sort_index().items()
    ]
    return pd.DataFrame(rows, columns=head)


def told(study: Study) -> str:
    """What was run, in two sentences, with what a reader must not overlook."""
    about = study.settings.get("pretraining") or {}
    training = about.get("training") or {}
    sources = ", ".join(f"`{source}`" for source in (about.get("data") or {}).get("sources") or []) or "unknown text"
    done = sum(arm.pretraining.get("status") == "done" for arm in study.arms)
    windows = " and then ".join(str(stage.get("length")) for stage in about.get("stages") or [])
    count = len({seed for arm in study.arms for seed in arm.scores.index}.union(study.settings.get("seeds") or []))
    tasks = (study.settings.get("tasks") or {"every task": study.settings.get("finetuning") or {}}).values()
    rates = sorted({str(rate) for task in tasks for rate in task.get("learning_rates") or ["the default"]})
    chosen = ["learning rate"] * any(len(task.get("learning_rates") or []) > 1 for task in tasks)
    chosen += ["best epoch"] * any(task.get("select") == "best" for task in tasks)
    budgets, steps = ", ".join(map(percent, study.budgets)), training.get("steps")
    return (
        f"{done} of {len(study.arms)} models are pretrained: {budgets} of {steps if steps is None else f'{steps:,}'} "
        f"steps of {training.get('batch_size')} windows of {windows or 'unknown'} tokens, peak learning rate "
        f"{training.get('learning_rate')}, on {sources}. Fine-tuned under {count} seed{'s' * (count != 1)}, "
        f"learning rate {' or '.join(rates)}"
        + (f"; the {' or '.join(chosen)} is chosen on the data it is scored on" if chosen else "")
        + ("; small tasks start from the model tuned on MNLI" if study.settings.get("from_mnli") else "")
        + "."
    )


def number(value: float | None, form: str = "{:.3f}", unit: float = 1) -> str:
    """A number in a form and unit, or what stands for one that is missing."""
    return MISSING if value is None or math.isnan(value) else form.format(value * unit if unit != 1 else value)


def _head(study: Study) -> list[str]:
    return ["arm", "budget"] if len(study.budgets) > 1 else ["arm"]


def _arm(study: Study, arm: Arm) -> list[str]:
    return [study.label_of(arm.name), *([percent(arm.budget)] if len(study.budgets) > 1 else [])]


def _why(arm: Arm, column: str) -> str:
    """Why a score is missing."""
    if arm.pretraining.get("status") == "failed":
        return "pretraining failed"
    failed = [each.get("reason") or "no reason told" for each in arm.failed if each.get("column") == column]
    return f"failed: {failed[0].split(':')[0]}" if failed else ""


def _summary(found: tuple[float, float | None, int] | None, why: str = "") -> str:
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
    """Says so where some scores have more seeds than others."""
    counts = sorted({int(count) for arm in study.arms for count in arm.scores.count()})
    if len(counts) < 2:
        return []
    return [f"{FLAG}scores have {counts[0]} to {counts[-1]} seeds; bold and ranks do not look at how many."]


def _samples(study: Study) -> Iterator[str]:
    told = [f"{each.name}, with {each.train:,} training rows" for each in study.columns if each.sample and each.train]
    if told:
        yield f"Scores on other rows than the official task's are not scores on that task: {'; '.join(told)}."
