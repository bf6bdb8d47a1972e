"""A study's tables: scores, the paper's beside them, differences from the reference, pretraining."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from mabert_lab.report import paper
from mabert_lab.report.grid import FLAG, MISSING, Cell, Grid, missing, percent, with_best, words
from mabert_lab.report.study.results import MODELS, STARTED, Column, Row, Study
from mabert_lab.report.study.statistics import (
    LEAST_PAIRS,
    LEVEL,
    Difference,
    Summary,
    average_difference,
    averages,
    difference,
    summary,
)

FIRST = {
    "pattern": "pattern",
    "components": "components",
    "pooling": "pooling",
    "budget": "model",
    "baselines": "model",
}
"""What the rows of a study are."""

AVERAGE = "average"


def score_table(study: Study) -> Grid:
    """Every score, mean ± sample standard deviation and how many seeds; the best of each budget in bold."""
    columns = scored(study)
    rows: list[tuple[Cell, ...]] = []
    for _, group in groupby(ordered(study), key=lambda row: row.budget):
        part: list[tuple[Cell, ...]] = [_score_row(study, row, columns) for row in group]
        first = len(part[0]) - len(study.columns) - 1
        for column in range(first, len(part[0])):
            part = with_best(part, column)
        rows += part
    rows += _constant_row(study, columns)
    notes = [
        f"Mean ± sample standard deviation over fine-tuning seeds, in brackets how many; {MISSING} is missing; bold is "
        "the highest mean, whether or not it can be told from the others. "
        f"The average is over {study.named(_keys(columns))}, of the seeds that have all of them.",
        *_uneven(study),
        *_samples(study.columns),
        *_started(study.columns),
    ]
    head = (*_head(study), *(column.heading for column in study.columns), f"{AVERAGE} of {len(columns)}")
    return Grid(f"{study.slug}-scores", f"{study.title}, measured here", head, tuple(rows), tuple(notes))


def further_table(study: Study) -> Grid | None:
    """Every score by a metric that is not its column's own, as accuracy is beside F1; None where there is none."""
    own = {column.key: column.metric for column in study.columns}
    further = {
        (key, metric): None
        for row in study.rows
        for key, metrics in row.scores.items()
        for metric in metrics
        if metric != own.get(key)
    }
    if not further:
        return None
    names = {column.key: column.marked for column in study.columns}
    rows = [
        (
            *_arm(study, row),
            *(_summary(summary(row.scores.get(key, {}).get(metric, {}).values())) for key, metric in further),
        )
        for row in ordered(study)
    ]
    head = (*_head(study), *(f"{names.get(key, key)} ({metric})" for key, metric in further))
    notes = ("Not in the averages, and not in the paper.", *_started(study.columns))
    return Grid(f"{study.slug}-further", f"{study.title}: further metrics", head, tuple(rows), notes)


def paper_tables(study: Study) -> list[tuple[float | None, paper.Table[str, paper.Score]]]:
    """The paper's tables of the same question, each with its budget where it has one."""
    if study.question in ("budget", "baselines"):
        return [(budget, paper.GLUE[budget]) for budget in study.budgets if budget in paper.GLUE]
    tables = {"pattern": paper.PATTERNS, "components": paper.INTEGRATION, "pooling": paper.POOLING}
    table = tables.get(study.question or "")
    return [] if table is None else [(None, table)]


def paper_table_of(study: Study, budget: float) -> paper.Table[str, paper.Score] | None:
    """The paper's table that a budget's rows are set beside; None where it has none."""
    return next((table for own, table in paper_tables(study) if own in (None, budget)), None)


def paper_table(study: Study, table: paper.Table[str, paper.Score]) -> Grid:
    """One of the paper's tables, all of it, with what speaks against it."""
    return _paper_grid(table, study.slug, _first(study), study.label_of)


def tables_not_run(studies: Iterable[Study]) -> list[Grid]:
    """The paper's tables of scores that no study is set beside."""
    shown = {table.label for study in studies for _, table in paper_tables(study)}
    kinds = [(paper.PATTERNS, "pattern"), *((table, "budget") for table in paper.GLUE.values())]
    kinds += [(paper.INTEGRATION, "components"), (paper.POOLING, "pooling")]
    names = {**MODELS, **paper.INTEGRATIONS, **paper.POOLINGS}
    return [
        _paper_grid(table, "not-run", FIRST[question], lambda row: names.get(row, row))
        for table, question in kinds
        if table.label not in shown
    ]


def _paper_grid(table: paper.Table[str, paper.Score], prefix: str, first: str, label_of: Callable[[str], str]) -> Grid:
    head = (first, *(f"{task.title} ({task.metric})" for task in paper.TASKS.values()))
    rows = [
        (
            Cell(label_of(row)),
            *(Cell(f"{score.mean:.3f}", f"± {score.std:.3f}", score.mean) for score in cells.values()),
            _number(paper.average(table, row), "{:.3f}"),
        )
        for row, cells in table.rows.items()
    ]
    for column in range(1, len(head) + 1):
        rows = with_best(rows, column)
    notes = ["As printed, mean ± standard deviation over five seeds; the averages and the bold are computed from it."]
    notes.append(f"{FLAG if table.flagged else 'Provenance: '}{table.provenance}.")
    name = f"{prefix}-paper-{table.label.removeprefix('tab:').replace('_', '-')}"
    return Grid(
        name, f"The paper's {table.label}: {table.title}", (*head, f"{AVERAGE} of 8"), tuple(rows), tuple(notes)
    )


def side_by_side(study: Study) -> Grid | None:
    """Averages over the tasks that both sides have, with their ranks; None where the paper has none of the rows."""
    columns = [column for column in scored(study) if column.paper in paper.TASKS]
    papers = study.papers(_keys(columns))
    rows = []
    for budget in study.budgets:
        table = paper_table_of(study, budget)
        known = study.rows_by_paper(budget)
        if table is not None and papers:
            ours = {key: summary(averages(study.scores(row), _keys(columns)).values()) for key, row in known.items()}
            theirs = {key: paper.average(table, key, papers) for key in known if key in table.rows}
            means = {key: found.mean for key, found in ours.items() if found is not None and key in theirs}
            both = {key: number for key, number in theirs.items() if key in means}
            for key, number in theirs.items():
                cells = (_summary(ours[key]), _rank(means, key), _number(number, "{:.3f}"), _rank(both, key))
                rows.append((*_arm(study, known[key]), *cells))
    if not rows:
        return None
    notes = [f"Over {study.named(_keys(columns))}. Ranks are among the rows of one budget that have both averages."]
    notes += [*_uneven(study), *_started(columns)]
    flagged = dict.fromkeys(table.provenance for _, table in paper_tables(study) if table.flagged)
    notes += [f"{FLAG}the paper's numbers: {each}." for each in flagged]
    if any(column.sample for column in columns):
        notes.append("The paper trained on all rows of the tasks that are samples here.")
    head = (*_head(study), "here", "rank here", "in the paper", "rank in the paper")
    return Grid(
        f"{study.slug}-averages", f"{study.title}: averages beside the paper's", head, tuple(rows), tuple(notes)
    )


def difference_table(study: Study) -> Grid:
    """Every arm less the reference arm of its budget, paired by seed, with the interval."""
    rows = []
    for row in ordered(study):
        reference = study.reference_of(row)
        if reference is not None and reference is not row:
            ours, theirs = study.scores(row), study.scores(reference)
            each = [difference(ours.get(key, {}), theirs.get(key, {})) for key in _keys(study.columns)]
            whole = average_difference(ours, theirs)
            rows.append((*_arm(study, row), *map(_difference, each), _averaged(whole, len(scored(study)))))
    variants = sorted({variant for row in study.rows if (variant := study.variant(row))})
    compared = study.label_of(study.reference)
    told = "".join(
        f" (arms with {variant} less {study.label_of(f'{study.reference}, {variant}')}, that one less {compared})"
        for variant in variants
    )
    notes = (
        f"The arm less {compared}{told}; in brackets the {LEVEL:.0%} percentile bootstrap "
        f"interval over paired seeds and how many pairs. Bold where a paired t test at {1 - LEVEL:.0%} tells them "
        f"apart and there are {LEAST_PAIRS} pairs; each difference is tested by itself.",
        *_started(study.columns),
    )
    head = (*_head(study), *(column.heading for column in study.columns), AVERAGE)
    title = f"{study.title}: differences from {compared}"
    return Grid(f"{study.slug}-differences", title, head, tuple(rows), notes)


def pretraining_table(study: Study) -> Grid:
    """How each arm's pretraining went."""
    head = (
        *_head(study),
        *("state", "steps", "tokens (M)", "held-out loss (nats)", "held-out accuracy", "parameters (M)", "minutes"),
        *("tokenizer", "commit"),
    )
    rows = [
        (
            *_arm(study, row),
            *words(row.pretraining.get("status", "missing")),
            *_pretraining(row),
            *words(*(row.pretraining.get(name) or MISSING for name in ("tokenizer", "commit"))),
        )
        for row in ordered(study)
    ]
    notes = ["Loss and accuracy are of masked tokens of held-out text."]
    if vocabularies_differ(study):
        notes.append(f"{FLAG}vocabularies differ, and losses and accuracies of different ones cannot be compared.")
    elif len(study.budgets) == 1:
        rows = with_best(rows, head.index("held-out loss (nats)"), lowest=True)
    if any(row.pretraining.get("tokenizer_trained") for row in study.rows):
        notes.append(f"{FLAG}some vocabularies were trained on the run's text; the paper's models have their own.")
    return Grid(f"{study.slug}-pretraining", f"{study.title}: pretraining", head, tuple(rows), tuple(notes))


def vocabularies_differ(study: Study) -> bool:
    """Whether the finished pretrainings have not all the same vocabulary."""
    return len({row.pretraining.get("tokenizer") for row in study.rows if row.pretraining.get("status") == "done"}) > 1


def failures(study: Study) -> list[str]:
    """What broke off, a line each."""
    names = {column.key: column.name for column in study.columns}
    lines = []
    for row in ordered(study):
        place = f"{study.label_of(row.arm)}, {percent(row.budget)}"
        if row.pretraining.get("status") == "failed":
            lines.append(f"{place}, pretraining: {row.pretraining.get('reason') or 'no reason told'}")
        for each in row.failed:
            seed = "" if each.seed is None else f", seed {each.seed}"
            lines.append(f"{place}, {names.get(each.column, each.column)}{seed}: {each.reason}")
    return lines


def seed_rows(study: Study) -> list[tuple[str, ...]]:
    """Every score there is, for files: arm, budget, task, metric, seed, score."""
    names = {column.key: column.name for column in study.columns}
    return [
        (row.arm, f"{row.budget:g}", names[key], metric, str(seed), f"{score!r}")
        for row in ordered(study)
        for key, metrics in row.scores.items()
        for metric, seeds in metrics.items()
        for seed, score in sorted(seeds.items())
    ]


def ordered(study: Study) -> list[Row]:
    """The rows by budget, each in the order of the file."""
    return sorted(study.rows, key=lambda row: row.budget)


def scored(study: Study) -> list[Column]:
    """The tasks that any row has a score of."""
    return [column for column in study.columns if any(column.key in study.scores(row) for row in study.rows)]


def _head(study: Study) -> tuple[str, ...]:
    first = _first(study)
    return (first, "budget") if len(study.budgets) > 1 else (first,)


def _first(study: Study) -> str:
    return FIRST.get(study.question or "", "arm")


def _arm(study: Study, row: Row) -> tuple[Cell, ...]:
    budget = (Cell(percent(row.budget), value=row.budget),) if len(study.budgets) > 1 else ()
    return (Cell(study.label_of(row.arm)), *budget)


def _score_row(study: Study, row: Row, columns: Sequence[Column]) -> tuple[Cell, ...]:
    scores = study.scores(row)
    cells = [
        _summary(summary(scores.get(column.key, {}).values()), _reason(row, column.key)) for column in study.columns
    ]
    whole = summary(averages(scores, _keys(columns)).values())
    return (*_arm(study, row), *cells, _summary(whole))


def _constant_row(study: Study, columns: Sequence[Column]) -> list[tuple[Cell, ...]]:
    """What a score has to be compared with: an answer that looks at no text."""
    scores = [column.constant for column in study.columns]
    if all(score is None for score in scores):
        return []
    averaged = [column.constant for column in columns if column.constant is not None]
    mean = fmean(averaged) if averaged and len(averaged) == len(columns) else None
    budget = (Cell(""),) if len(study.budgets) > 1 else ()
    return [(Cell("the best single class for all"), *budget, *(_number(each, "{:.3f}") for each in (*scores, mean)))]


def _reason(row: Row, column: str) -> str:
    if row.pretraining.get("status") == "failed":
        return "pretraining failed"
    failed = [each.reason for each in row.failed if each.column == column]
    return f"failed: {failed[0].split(':')[0]}" if failed else ""


def _summary(found: Summary | None, why: str = "") -> Cell:
    if found is None:
        return missing(why)
    spread = "" if found.std is None else f"± {found.std:.3f} "
    return Cell(f"{found.mean:.3f}", f"{spread}({found.number})", found.mean)


def _difference(found: Difference | None) -> Cell:
    if found is None:
        return missing()
    ends = "" if found.low is None else f"[{found.low:+.3f}, {found.high:+.3f}] "
    return Cell(f"{found.mean:+.3f}", f"{ends}({found.pairs})", found.mean, bold=found.sign() != 0)


def _averaged(found: Difference | None, whole: int) -> Cell:
    cell = _difference(found)
    if found is None or len(found.columns) == whole:
        return cell
    count = len(found.columns)
    return Cell(cell.text, f"{cell.rest} of {count} task{'s' * (count > 1)}", cell.value, cell.bold)


def _pretraining(row: Row) -> tuple[Cell, ...]:
    told = row.pretraining
    return (
        _number(told.get("steps"), "{:,.0f}"),
        _number(told.get("tokens"), "{:,.1f}", 1e-6),
        _number(told.get("held_out_loss"), "{:.3f}"),
        _number(told.get("held_out_accuracy"), "{:.3f}"),
        _number(told.get("parameters"), "{:,.1f}", 1e-6),
        _number(told.get("seconds"), "{:,.1f}", 1 / 60),
    )


def _number(value: float | None, form: str, unit: float = 1.0) -> Cell:
    return missing() if value is None else Cell(form.format(value * unit), value=value * unit)


def _rank(values: Mapping[str, float], key: str) -> Cell:
    if key not in values:
        return missing()
    rank = 1 + sum(value > values[key] for value in values.values())
    return Cell(str(rank), value=float(rank))


def _keys(columns: Iterable[Column]) -> tuple[str, ...]:
    return tuple(column.key for column in columns)


def _uneven(study: Study) -> list[str]:
    """Says so where some scores have more seeds than others."""
    counts = sorted({len(seeds) for row in study.rows for seeds in study.scores(row).values()})
    if len(counts) < 2:
        return []
    return [f"{FLAG}scores have {counts[0]} to {counts[-1]} seeds; bold and ranks do not look at how many."]


def _samples(columns: Iterable[Column]) -> list[str]:
    told = [
        f"{column.name}, with {column.train:,} training rows" for column in columns if column.sample and column.train
    ]
    return (
        [f"Scores on other rows than the official task's are not scores on that task: {'; '.join(told)}."]
        if told
        else []
    )


def _started(columns: Iterable[Column]) -> list[str]:
    marked = [column for column in columns if column.start]
    starts = dict.fromkeys(str(column.start).upper() for column in marked)
    models = f"the model that was fine-tuned on {' or '.join(starts)}, not from the pretrained one"
    return [f"{STARTED} {', '.join(column.name for column in marked)}: started from {models}."] if marked else []
