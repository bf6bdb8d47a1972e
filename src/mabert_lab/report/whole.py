"""The whole report: claims, studies, padding, efficiency, as a page and as files beside it."""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from mabert.writing import write_text
from mabert_lab.report.claims.drift import drift_sources, drift_verdicts
from mabert_lab.report.claims.efficiency import efficiency_verdicts
from mabert_lab.report.claims.scores import score_verdicts
from mabert_lab.report.claims.verdict import FAILS, HOLDS, OPEN, UNMEASURED, Verdict, claims_table
from mabert_lab.report.document import (
    Drawing,
    Fold,
    Heading,
    Items,
    Part,
    Text,
    as_html,
    as_markdown,
    contents,
    unfolded,
)
from mabert_lab.report.figures import on_paper
from mabert_lab.report.grid import Grid, to_csv
from mabert_lab.report.latex import to_latex
from mabert_lab.report.machine import code_of, machine_of
from mabert_lab.report.measurements import (
    drift_section,
    efficiency_not_measured,
    efficiency_section,
    throughput_section,
)
from mabert_lab.report.page import SORTING, TABLES, page
from mabert_lab.report.sources import Found
from mabert_lab.report.study.results import Study
from mabert_lab.report.study.section import section, summary
from mabert_lab.report.study.statistics import LEAST_PAIRS, LEVEL
from mabert_lab.report.study.tables import seed_rows, tables_not_run

TITLE = "MaBERT: the paper's experiment, run again"

LISTING = "files.txt"
"""Where a report's folder names its tables and figures, so that the next one leaves none of them over."""

LIMITS = (
    "**The seeds vary fine-tuning only.** All seeds of an arm share one pretrained model, so neither deviations nor "
    "intervals cover how another pretraining would have come out.",
    f"**Intervals are {LEVEL:.0%} percentile bootstrap intervals over paired seeds; with five pairs they are too "
    f"narrow**, so verdicts rest on the paired t test at {1 - LEVEL:.0%}, which five hardly normal scores strain "
    "as well.",
    f"A comparison of fewer than {LEAST_PAIRS} pairs decides nothing.",
    "**Models, text and steps are those named with each study**, far below the paper's unless the scale is `paper`: "
    "the order of arms can be compared with the paper's, the scores cannot.",
    "A task named a sample has other rows than the official one; its scores are not those of the official task, though "
    "the paper's averages beside them are over the official one.",
    "Scores are on validation data; where fine-tuning keeps the best epoch, or has several learning rates to choose "
    "from, the choice was made on the same data, the rate's by the first seed.",
)


def parts(found: Found) -> list[Part]:
    """The document, part by part."""
    studies = itertools.chain.from_iterable(map(section, found.studies))
    return list(itertools.chain(_head(found), _claims(found), studies, _not_run(found), _measured(found)))


def write_report(found: Found, output: Path) -> list[Path]:
    """Write the page, the same as Markdown, and a folder of its tables and figures.

    Args:
        found: What `mabert_lab.report.sources.find` returned.
        output: The page, ``NAME.html``; beside it go ``NAME.md`` and the folder ``NAME``, from which tables and figures
            go that a former report wrote and this one does not.

    Returns:
        The files, the page first.

    Raises:
        ValueError: The output is no ``.html`` file, or a file would be written over that is no former report's.
    """
    if output.suffix != ".html":
        raise ValueError(f"the output is {output}; it must end in .html")
    document = parts(found)
    folder = output.with_suffix("")
    files = {output: _page(document), output.with_suffix(".md"): _markdown(document, PurePosixPath(folder.name))}
    for part in unfolded(document):
        if isinstance(part, Grid):
            forms = {".csv": to_csv(part), ".tex": to_latex(part), ".md": as_markdown(part, PurePosixPath())}
            files |= {folder / f"{part.name}{suffix}": text for suffix, text in forms.items()}
        elif isinstance(part, Drawing):
            files[folder / f"{part.name}.svg"] = on_paper(part.svg)
    for study in found.studies:
        files[folder / f"{study.slug}-seeds.csv"] = _seeds(seed_rows(study))
    _check_free(files, output)
    folder.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in files if path.parent == folder}
    before = _listed(folder)
    _list(folder, before | names)  # first: a report that is cut off leaves nothing that the next does not know
    for path, text in files.items():
        write_text(path, text)
    for name in before - names:
        (folder / name).unlink(missing_ok=True)
    _list(folder, names)
    return list(files)


def _check_free(files: Iterable[Path], output: Path) -> None:
    """Refuses to write over what no report wrote.

    Page and Markdown are known by their title, the list by the table of claims, which every report has, and the other
    files by the list; without one, as in a repository that keeps but the Markdown and its figures, by the Markdown.

    Raises:
        ValueError: Naming the first file that is none of a report's.
    """
    text, folder = output.with_suffix(".md"), output.with_suffix("")
    listing = folder / LISTING
    listed, told = _read(listing).splitlines(), _read(text)
    ours = told.startswith(f"# {TITLE}\n")

    def known(path: Path) -> bool:
        if path == output:
            return f"<title>{escape(TITLE)}</title>" in _read(path)
        if path == text:
            return ours
        if path == listing:
            return "claims.csv" in listed
        return path.name in listed or (ours and (not listing.is_file() or f"({folder.name}/{path.name})" in told))

    for path in (*files, listing):
        if path.is_file() and path.stat().st_size and not known(path):
            raise ValueError(f"{path} is there already, and no report wrote it; name another page, or move it away")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _listed(folder: Path) -> set[str]:
    """Files of a folder that a report wrote; nothing outside it, whatever the list says."""
    names = _read(folder / LISTING).splitlines()
    return {name for name in names if name == Path(name).name and (folder / name).is_file()}


def _list(folder: Path, names: Iterable[str]) -> None:
    write_text(folder / LISTING, "".join(f"{name}\n" for name in sorted(names)))


def verdicts(found: Found) -> list[Verdict]:
    """Every claim of the paper, judged."""
    return [*score_verdicts(found.studies), *efficiency_verdicts(found.efficiency), *drift_verdicts(found.drifts)]


def _head(found: Found) -> Iterator[Part]:
    yield Heading(1, TITLE)
    yield Text("What was measured here, set beside the tables of the paper, claim by claim.", "lead")
    runs = [
        f"{study.title} at scale `{study.scale}`: {'; '.join(dict.fromkeys(map(_machine, study.environments)))}"
        for study in found.studies
    ]
    sources = [] if found.efficiency is None else found.efficiency.sources
    runs += [f"Memory and time: {_machine(source.environment)}" for source in sources]
    runs += [f"Padding: {_machine(content.get('environment') or {})}" for _, content in found.drifts]
    runs += [f"Throughput: {_machine(content.get('environment') or {})}" for _, content in found.throughputs]
    yield Items(tuple(dict.fromkeys(runs)))
    if found.studies:
        told = tuple(f"{study.title} at scale `{study.scale}`: {summary(study)}" for study in found.studies)
        yield Fold("What was run, and with what settings", (Items(told),))
    if found.left_out:
        yield Text("Left out:")
        yield Items(found.left_out)


def _claims(found: Found) -> Iterator[Part]:
    judged = verdicts(found)
    counts = ", ".join(
        f"{name} {number}"
        for name in (HOLDS, FAILS, OPEN, UNMEASURED)
        if (number := sum(each.verdict == name for each in judged))
    )
    yield Heading(2, "Claims")
    yield Text(f"Judged by what was measured here, a row for each claim at each place: {counts}.")
    few = [f"{study.title} ({most})" for study in found.studies if (most := _most_seeds(study)) < LEAST_PAIRS]
    if few:
        yield Text(f"**Too few seeds to decide any claim on scores**, {LEAST_PAIRS} being needed: {'; '.join(few)}.")
    yield replace(claims_table(judged), notes=_rules())
    yield Heading(2, "Limits of these numbers")
    yield Items(LIMITS)


def _most_seeds(study: Study) -> int:
    return max((len(seeds) for row in study.rows for seeds in study.scores(row).values()), default=0)


def _rules() -> tuple[str, ...]:
    return (
        "Arms that differ in pretraining have one each, which all their seeds share: what is said of them is said of "
        "these pretrained models.",
        f"A claim on scores {HOLDS} where every comparison it needs is in the claimed direction by a paired t test at "
        f"{1 - LEVEL:.0%}; it {FAILS} where one is in the other direction at that level divided by the number of "
        f"comparisons, or where {LEAST_PAIRS} pairs or more have the same score each; it {OPEN} otherwise. "
        f"Where a needed arm is missing it is {UNMEASURED}, unless another already speaks against it. A claim on most "
        "tasks needs more than half of them, at that level divided by one more than "
        "may be left out.",
        "A task on which no arm of a claim is above what one answer for all scores (by a t test; of fewer than "
        f"{LEAST_PAIRS} seeds by the mean) is left out of the average, and where neither side of a comparison is, that "
        "decides nothing.",
        f"Nothing is corrected for the number of claims: where two arms are alike, {1 - LEVEL:.0%} of single "
        "comparisons tell them apart all the same.",
        "A claim on time is judged in the same way by what the fastest and the slowest call allow, where so few calls "
        "would not part like this by chance, in either direction as in the t test; one of a factor needs the paper's "
        "factor at least. "
        "Only tasks that both sides have are compared, and each row names them.",
    )


def _not_run(found: Found) -> Iterator[Part]:
    folds = [Fold(grid.title, (grid,)) for grid in tables_not_run(found.studies)]
    folds += efficiency_not_measured(found.efficiency)
    if folds or not found.drifts:
        yield Heading(2, "The paper's tables and figures that nothing here is set beside")
    yield from folds
    if not found.drifts:
        figures = " and ".join(f"`{source}`" for source in drift_sources())
        yield Text(f"The paper's curves of drift under padding ({figures}), which give no numbers.")


def _measured(found: Found) -> Iterator[Part]:
    yield from drift_section(found.drifts)
    yield from [] if found.efficiency is None else efficiency_section(found.efficiency)
    yield from throughput_section(found.throughputs)


def _machine(environment: Mapping[str, Any]) -> str:
    date = str(environment.get("date", "unknown date"))[:10]
    return f"{date}, {machine_of(environment)}, {code_of(environment)}"


def _page(document: Sequence[Part]) -> str:
    split = next(number for number, part in enumerate(document) if isinstance(part, Heading) and part.level == 2)
    body = [*map(as_html, document[:split]), contents(document), *map(as_html, document[split:])]
    return page(TITLE, body, TABLES, SORTING)


def _markdown(document: Iterable[Part], folder: PurePosixPath) -> str:
    return "\n".join(as_markdown(part, folder) for part in document)


def _seeds(rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(("arm", "budget", "task", "metric", "seed", "score"))
    lines.writerows(rows)
    return out.getvalue()
