"""A study's part of the report."""

from collections.abc import Iterator, Mapping
from typing import Any

from mabert_lab.report.document import Drawing, Fold, Heading, Items, Part, Text
from mabert_lab.report.grid import Grid, percent, words
from mabert_lab.report.study.figures import arm_chart, budget_chart, loss_chart
from mabert_lab.report.study.results import Study
from mabert_lab.report.study.tables import (
    difference_table,
    failures,
    further_table,
    paper_table,
    paper_tables,
    pretraining_table,
    score_table,
    side_by_side,
)


def section(study: Study) -> Iterator[Part]:
    """Everything of one study: what was run, figures, tables beside the paper's, and what failed."""
    yield Heading(2, f"{study.title} ({study.scale})")
    yield Text(summary(study))
    yield from [Text(study.note)] if study.note else []
    yield from _figures(study)
    averages = side_by_side(study)
    yield from [averages] if averages is not None else []
    yield Heading(3, f"{study.title} ({study.scale}): scores")
    yield score_table(study)
    further = further_table(study)
    yield from [further] if further is not None else []
    for _, table in paper_tables(study):
        yield paper_table(study, table)
    yield Heading(3, f"{study.title} ({study.scale}): differences")
    yield difference_table(study)
    yield Heading(3, f"{study.title} ({study.scale}): pretraining")
    yield from _drawn(f"{study.slug}-loss", loss_chart(study), f"Pretraining loss against step, {study.title.lower()}")
    yield pretraining_table(study)
    yield Fold("Settings and tasks", (task_table(study), settings_table(study)))
    broken = failures(study)
    yield from [Fold(f"What failed: {len(broken)}", (Items(tuple(broken)),))] if broken else []


def summary(study: Study) -> str:
    """What was run, in a few sentences."""
    told, training = study.settings.get("pretraining") or {}, _training(study)
    done = sum(row.pretraining.get("status") == "done" for row in study.rows)
    budgets = ", ".join(map(percent, study.budgets))
    label = f" The paper's question is that of `{study.label}`." if study.label else ""
    return (
        f"{len(study.rows)} rows, of which {done} are pretrained: {budgets} of {_count(training.get('steps'))} steps "
        f"of {_count(training.get('batch_size'))} windows{_lengths(told)}, peak learning rate "
        f"{training.get('learning_rate', 'unknown')}, on {_sources(told)}. {_tuning(study)}{label}"
    )


def task_table(study: Study) -> Grid:
    """The tasks: how many rows, how many passes, and from where."""
    rows = [
        words(
            column.heading, *(_count(each) for each in (column.train, column.validation, column.epochs)), column.source
        )
        for column in study.columns
    ]
    head = ("task", "training rows", "scored on", "epochs", "source")
    return Grid(f"{study.slug}-tasks", f"{study.title}: tasks", head, tuple(rows))


def settings_table(study: Study) -> Grid:
    """Every setting of the runs, by its dotted name."""
    rows = [words(name, value) for name, value in flat(study.settings)]
    return Grid(f"{study.slug}-settings", f"{study.title}: settings", ("setting", "value"), tuple(rows))


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as dotted names and text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for number, inner in enumerate(value):
            yield from flat(inner, f"{name}.{number}")
    else:
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _figures(study: Study) -> Iterator[Part]:
    if len(study.budgets) > 1:
        described = f"Average score over pretraining budgets, {study.title.lower()}, here and in the paper"
        yield from _drawn(f"{study.slug}-budgets", budget_chart(study), described)
    else:
        described = f"Average score of each arm with its deviation over seeds, {study.title.lower()}, and the paper's"
        yield from _drawn(f"{study.slug}-arms", arm_chart(study), described)


def _drawn(name: str, chart: str | None, description: str) -> Iterator[Part]:
    if chart is not None:
        yield Drawing(name, chart, description)


def _count(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int | float) else "unknown"


def _training(study: Study) -> Mapping[str, Any]:
    return (study.settings.get("pretraining") or {}).get("training") or {}


def _tuning(study: Study) -> str:
    seeds = study.settings.get("seeds") or []
    first = f"seed {seeds[0]}" if seeds else "the first seed"
    epochs = " or ".join(map(str, sorted({each.epochs for each in study.columns if each.epochs is not None})))
    mnli = f"; small tasks start from the model tuned on MNLI under {first}" if study.settings.get("from_mnli") else ""
    return (
        f"Fine-tuned under {_counted(study)}, {_rates(study, first)}, {epochs or 'unknown'} epochs, "
        f"scored after {_rule(study)}{mnli}."
    )


def _counted(study: Study) -> str:
    """How many seeds were asked for or have scores, which earlier starts may have asked for."""
    found = {seed for row in study.rows for seeds in study.scores(row).values() for seed in seeds}
    number = len(found.union(study.settings.get("seeds") or []))
    return f"{number} seed" if number == 1 else f"{number} seeds"


def _tasks_told(study: Study) -> Mapping[str, Mapping[str, Any]]:
    """The fine-tuning of each task; where the file does not tell, that of the scale for all."""
    return study.settings.get("tasks") or {"every task": study.settings.get("finetuning") or {}}


def _rates(study: Study, first: str) -> str:
    """The learning rate, or how it was chosen."""
    grids = dict.fromkeys(tuple(told.get("learning_rates") or ["the default"]) for told in _tasks_told(study).values())
    told = " or ".join(", ".join(map(str, rates)) for rates in grids)
    if all(len(rates) == 1 for rates in grids):
        return f"learning rate {told}"
    return f"the learning rate chosen from {told} under {first} on the data it is scored on"


def _rule(study: Study) -> str:
    """Which weights are scored, by task where they differ."""
    words = {"last": "the last epoch", "best": "the best epoch on the data it is scored on"}
    rules: dict[str, list[str]] = {}
    for name, told in _tasks_told(study).items():
        rule = str(told.get("select", "last"))
        rules.setdefault(words.get(rule, rule), []).append(name)
    if len(rules) == 1:
        return next(iter(rules))
    return " and ".join(f"{rule} ({', '.join(names)})" for rule, names in rules.items())


def _lengths(told: Mapping[str, Any]) -> str:
    stages = [each for each in told.get("stages") or [] if isinstance(each, Mapping)]
    shown = " and then ".join(str(stage.get("length")) for stage in stages)
    return f" of {shown} tokens" if shown else ""


def _sources(told: Mapping[str, Any]) -> str:
    sources = (told.get("data") or {}).get("sources") or []
    return ", ".join(f"`{source}`" for source in sources) or "unknown text"
