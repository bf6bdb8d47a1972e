"""A study's part of the report: scores, the paper's beside them, differences from the reference, pretraining."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from mabert_lab.report import paper
from mabert_lab.report.charts import arm_chart, pretraining_chart
from mabert_lab.report.document import MISSING, Figure, Part, Section, table, with_best
from mabert_lab.report.statistics import (
    LEAST_PAIRS,
    LEVEL,
    Difference,
    average_difference,
    averages,
    difference,
    summary,
)
from mabert_lab.report.studies import STARTED, Arm, Study, percent

FLAG = "Flagged: "
"""What a note begins with that must not be overlooked."""


def section(study: Study) -> Section:
    """Everything of one study; what is read first stands open."""
    charts = [
        (arm_chart, "arms", "Average score of each arm, here and in the paper"),
        (pretraining_chart, "loss", "Pretraining loss against step"),
    ]
    drawn = [
        Figure(f"{study.name}-{study.scale}-{name}", drawing, f"{described}: {study.title}")
        for chart, name, described in charts
        if (drawing := chart(study)) is not None
    ]
    beside, further, broken = side_by_side(study), further_table(study), failures(study)
    tables: list[Part] = [score_table(study), difference_table(study)]
    tables += [] if further is None else [further]
    shown = {id(found): found for budget in study.budgets if (found := study.table(budget)) is not None}
    tables += [papers_table(found) for found in shown.values()]
    parts: list[Part] = [told(study), *([study.note] if study.note else []), *([] if beside is None else [beside])]
    parts += [figure for figure in drawn if not figure.name.endswith("-loss")]
    parts.append(Section(f"{study.title}: every score and difference, and the paper's", tables, folded=True))
    loss: list[Part] = [figure for figure in drawn if figure.name.endswith("-loss")]
    settings: list[Part] = [pretraining_table(study), task_table(study), flat(study.settings)]
    parts.append(Section(f"{study.title}: pretraining, tasks and settings", [*loss, *settings], folded=True))
    parts += [Section(f"{study.title}: what failed ({len(broken)})", [broken], folded=True)] if broken else []
    return Section(f"{study.title} ({study.scale})", parts)


def side_by_side(study: Study) -> pd.DataFrame | None:
    """Averages over the tasks that both sides have, with their ranks; None where the paper has none of the arms."""
    columns = [column.key for column in study.scored if column.paper in paper.TASKS]
    papers, rows, ranked = study.papers(columns), [], False
    flags: dict[str, None] = {}
    for budget in study.budgets:
        printed, known = study.table(budget), study.by_paper(budget)
        if printed is None or not papers:
            continue
        ours = {key: summary(averages(study.scores(arm), columns).values()) for key, arm in known.items()}
        theirs = {key: printed.average(key, papers) for key in known if key in printed.mean.index}
        both = {key: (own[0], number) for key, number in theirs.items() if (own := ours[key]) is not None}
        flags |= {printed.flag: None} if printed.flag else {}
        ranked |= len(both) > 1
        for key, number in theirs.items():
            ranks = [_rank(both, key, side) if len(both) > 1 else MISSING for side in (0, 1)]
            rows.append((*_arm(study, known[key]), _summary(ours[key]), ranks[0], f"{number:.3f}", ranks[1]))
    if not rows:
        return None
    notes = [f"Averages over {study.named(columns)}, with their deviation over seeds and how many.", *_uneven(study)]
    notes += [f"{FLAG}the paper's numbers: {flag}." for flag in flags]
    head = [*_head(study), "here", "rank here", "in the paper", "rank in the paper"]
    frame = table(f"{study.title}: averages beside the paper's", head, rows, notes)
    attrs = frame.attrs
    frame = frame if ranked else frame.drop(columns=["rank here", "rank in the paper"])
    frame.attrs = attrs
    return frame


def score_table(study: Study) -> pd.DataFrame:
    """Every score, mean ± sample standard deviation and how many seeds; the best of each budget in bold."""
    columns, blocks = [column.key for column in study.scored], []
    heads = [column.heading for column in study.columns]
    head = [*_head(study), *heads, f"average of {len(columns)}"]
    for budget in study.budgets:
        rows = [
            (
                *_arm(study, arm),
                *(
                    _summary(summary(study.scores(arm).get(key.key, {}).values()), _why(arm, key.key))
                    for key in study.columns
                ),
                _summary(summary(averages(study.scores(arm), columns).values())),
            )
            for arm in study.arms
            if arm.budget == budget
        ]
        first = len(head) - len(study.columns) - 1
        blocks.append(with_best(table("", head, rows), range(first, len(head))))
    floors = [column.constant for column in study.columns]
    if any(floor is not None for floor in floors):
        averaged = [column.constant for column in study.scored if column.constant is not None]
        mean = fmean(averaged) if averaged and len(averaged) == len(columns) else None
        budget_cell = [""] * (len(study.budgets) > 1)
        cells = [_number(each, "{:.3f}") for each in (*floors, mean)]
        blocks.append(table("", head, [("the best single class for all", *budget_cell, *cells)]))
    notes = [
        "Mean ± sample standard deviation over fine-tuning seeds, in brackets how many; bold is the highest mean, told "
        f"from the others or not. The average is over {study.named(columns)}, of the seeds that have all of them.",
        *_uneven(study),
        *_samples(study),
    ]
    frame = pd.concat(blocks, ignore_index=True) if blocks else table("", head, [])
    frame.attrs = {"title": f"{study.title}, measured here", "notes": notes}
    return frame


def further_table(study: Study) -> pd.DataFrame | None:
    """Every score by a metric that is not its column's own, as accuracy is beside F1; None where there is none."""
    own = {column.key: column for column in study.columns}
    further = dict.fromkeys(
        (key, metric)
        for arm in study.arms
        for key, metrics in arm.scores.items()
        for metric in metrics
        if metric != own[key].metric
    )
    rows = [
        (
            *_arm(study, arm),
            *(_summary(summary(arm.scores.get(key, {}).get(metric, {}).values())) for key, metric in further),
        )
        for arm in study.arms
    ]
    head = [*_head(study), *(f"{own[key].name} ({metric})" for key, metric in further)]
    notes = ["Not in the averages, and not in the paper."]
    return table(f"{study.title}: further metrics", head, rows, notes) if further else None


def difference_table(study: Study) -> pd.DataFrame:
    """Every arm less the reference arm of its budget, paired by seed, with the interval."""
    rows = []
    for arm in study.arms:
        reference = study.reference_of(arm)
        if reference is not None and reference is not arm:
            ours, theirs = study.scores(arm), study.scores(reference)
            each = [difference(ours.get(key.key, {}), theirs.get(key.key, {})) for key in study.columns]
            whole = average_difference(ours, theirs)
            short = whole is not None and len(whole.columns) < len(study.scored)
            over = f" of {len(whole.columns)} tasks" if whole is not None and short else ""
            rows.append((*_arm(study, arm), *map(_difference, each), _difference(whole, over)))
    compared = study.label_of(study.reference)
    variants = sorted({variant for arm in study.arms if (variant := study.variant(arm))})
    told = "".join(f"; arms with {each} less {study.reference}, {each}, that one less {compared}" for each in variants)
    notes = [
        f"The arm less {compared}{told}. In brackets the {LEVEL:.0%} percentile bootstrap interval over paired seeds "
        f"and how many pairs. Bold where a paired t test at {1 - LEVEL:.0%} tells them apart and there are "
        f"{LEAST_PAIRS} pairs; each difference is tested by itself."
    ]
    head = [*_head(study), *(column.heading for column in study.columns), "average"]
    return table(f"{study.title}: differences from {compared}", head, rows, notes)


def papers_table(printed: paper.Table) -> pd.DataFrame:
    """One of the paper's tables, all of it, with what speaks against it; the best of each column in bold."""
    costs = printed.std is None
    head = ["the paper's", *(f"{each:,}" if isinstance(each, int) else each for each in printed.mean.columns)]
    if not costs:
        head = [
            "the paper's",
            *(f"{task['title']} ({task['metric']})" for task in paper.TASKS.values()),
            "average of 8",
        ]
    rows = []
    for row, means in printed.mean.iterrows():
        cells = [f"{mean:,.3f}" for mean in means]
        if printed.std is not None:
            cells = [f"{cell} ± {std:.3f}" for cell, std in zip(cells, printed.std.loc[row], strict=True)]
            cells.append(f"{printed.average(str(row)):.3f}")
        rows.append((paper.NAMES.get(str(row), str(row)), *cells))
    notes = [f"{FLAG}{printed.flag}."] if printed.flag else []
    frame = table(f"{printed.label}: {printed.title} ({printed.unit})", head, rows, notes)
    return frame if "total" in head else with_best(frame, range(1, len(head)), lowest=costs)


def pretraining_table(study: Study) -> pd.DataFrame:
    """How each arm's pretraining went."""
    forms = {"steps": ("{:,.0f}", 1.0), "tokens": ("{:,.1f}", 1e-6), "held_out_loss": ("{:.3f}", 1.0)}
    forms |= {"held_out_accuracy": ("{:.3f}", 1.0), "parameters": ("{:,.1f}", 1e-6), "seconds": ("{:,.1f}", 1 / 60)}
    rows = [
        (
            *_arm(study, arm),
            arm.pretraining.get("status", "missing"),
            *(_number(arm.pretraining.get(name), form, unit) for name, (form, unit) in forms.items()),
            *(arm.pretraining.get(name) or MISSING for name in ("tokenizer", "commit")),
        )
        for arm in study.arms
    ]
    head = [
        *_head(study),
        "state",
        "steps",
        "tokens (M)",
        "held-out loss (nats)",
        "held-out accuracy",
        "parameters (M)",
    ]
    notes = ["Loss and accuracy are of masked tokens of held-out text."]
    done = [arm.pretraining for arm in study.arms if arm.pretraining.get("status") == "done"]
    if len({about.get("tokenizer") for about in done}) > 1:
        notes.append(f"{FLAG}vocabularies differ, and losses and accuracies of different ones cannot be compared.")
    if any(arm.pretraining.get("tokenizer_trained") for arm in study.arms):
        notes.append(f"{FLAG}some vocabularies were trained on the run's text; the paper's models have their own.")
    return table(f"{study.title}: pretraining", [*head, "minutes", "tokenizer", "commit"], rows, notes)


def task_table(study: Study) -> pd.DataFrame:
    """The tasks: how many rows, how many passes, and from where."""
    rows = [
        (each.heading, *(_number(count, "{:,}") for count in (each.train, each.validation, each.epochs)), each.source)
        for each in study.columns
    ]
    head = ("task", "training rows", "scored on", "epochs", "source")
    started = [column for column in study.columns if column.start]
    notes = [f"{STARTED} started from the model fine-tuned on {started[0].start}."] if started else []
    return table(f"{study.title}: tasks", head, rows, notes)


def flat(settings: Mapping[str, Any]) -> list[str]:
    """Every setting of the runs, by its dotted name."""
    return [f"`{name}` {value}" for name, value in pd.json_normalize(dict(settings)).iloc[:1].squeeze(axis=0).items()]


def failures(study: Study) -> list[str]:
    """What broke off, a line each."""
    names = {column.key: column.name for column in study.columns}
    lines = []
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
    names = {column.key: column.name for column in study.columns}
    rows = [
        (study.name, study.scale, arm.name, arm.budget, names[key], metric, seed, score)
        for arm in study.arms
        for key, metrics in arm.scores.items()
        for metric, found in metrics.items()
        for seed, score in sorted(found.items())
    ]
    return pd.DataFrame(rows, columns=["study", "scale", "arm", "budget", "task", "metric", "seed", "score"])


def told(study: Study) -> str:
    """What was run, in two sentences."""
    about = study.settings.get("pretraining") or {}
    training = about.get("training") or {}
    sources = ", ".join(f"`{source}`" for source in (about.get("data") or {}).get("sources") or []) or "unknown text"
    done = sum(arm.pretraining.get("status") == "done" for arm in study.arms)
    windows = " and then ".join(str(stage.get("length")) for stage in about.get("stages") or [])
    found = {seed for arm in study.arms for scores in study.scores(arm).values() for seed in scores}
    count = len(found.union(study.settings.get("seeds") or []))
    tasks = (study.settings.get("tasks") or {"every task": study.settings.get("finetuning") or {}}).values()
    rates = sorted({str(rate) for task in tasks for rate in task.get("learning_rates") or ["the default"]})
    chosen = any(len(task.get("learning_rates") or []) > 1 for task in tasks)
    best = any(task.get("select") == "best" for task in tasks)
    on_scored = " or ".join(["learning rate"] * chosen + ["best epoch"] * best)
    budgets, steps = ", ".join(map(percent, study.budgets)), training.get("steps")
    return (
        f"{done} of {len(study.arms)} models are pretrained: {budgets} of {steps if steps is None else f'{steps:,}'} "
        f"steps of {training.get('batch_size')} windows of {windows or 'unknown'} tokens, peak learning rate "
        f"{training.get('learning_rate')}, on {sources}. Fine-tuned under {count} seed{'s' * (count != 1)}, "
        f"learning rate {' or '.join(rates)}"
        + (f"; the {on_scored} is chosen on the data it is scored on" if on_scored else "")
        + ("; small tasks start from the model tuned on MNLI" if study.settings.get("from_mnli") else "")
        + "."
    )


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
    return f"{mean:.3f} ({count})" if std is None else f"{mean:.3f} ± {std:.3f} ({count})"


def _difference(found: Difference | None, over: str = "") -> str:
    if found is None:
        return MISSING
    ends = "" if found.low is None else f"[{found.low:+.3f}, {found.high:+.3f}] "
    text = f"{found.mean:+.3f} {ends}({found.pairs}){over}"
    return f"**{text}**" if found.sign() else text


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return MISSING if value is None else form.format(value * unit if unit != 1 else value)


def _rank(values: Mapping[str, Sequence[float]], key: str, side: int) -> str:
    return str(1 + sum(each[side] > values[key][side] for each in values.values())) if key in values else MISSING


def _uneven(study: Study) -> list[str]:
    """Says so where some scores have more seeds than others."""
    counts = sorted({len(found) for arm in study.arms for found in study.scores(arm).values()})
    told = (
        f"{FLAG}scores have {counts[0]} to {counts[-1]} seeds; bold and ranks do not look at how many."
        if counts
        else ""
    )
    return [told] if len(counts) > 1 else []


def _samples(study: Study) -> Iterable[str]:
    told = [f"{each.name}, with {each.train:,} training rows" for each in study.columns if each.sample and each.train]
    if told:
        yield f"Scores on other rows than the official task's are not scores on that task: {'; '.join(told)}."
