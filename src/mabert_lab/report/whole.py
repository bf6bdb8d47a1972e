"""The whole report as a page and files beside it: claims, the user's own results, and what was not measured."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import escape

from mabert_lab.report import drift, efficiency_section, figures, paper, study_section
from mabert_lab.report.claims_section import claim_tables, judged_claims
from mabert_lab.report.document import FLAG, MISSING, Page, page, plain, table, with_best
from mabert_lab.report.efficiency import NAMES, code_of, machine_of
from mabert_lab.report.efficiency_section import flat_rows, letters
from mabert_lab.report.figures import on_paper
from mabert_lab.report.judge import LIMITS, METHOD
from mabert_lab.report.sources import Found
from mabert_lab.report.statistics import LEAST_PAIRS
from mabert_lab.report.study_section import papers_table, seeds

TITLE = "MaBERT: the paper's experiment, run again"
NUMBERS = ("claims", "scores", "memory-and-time", "padding", "throughput")
"""Names of the CSV files in a report's folder."""


def report(found: Found, folder: str = "") -> Page:
    """Makes the report: what is decided and what is not, the user's own results, then everything else.

    Args:
        found: As from `mabert_lab.report.sources.find`.
        folder: Folder of the figures' files, relative to the page.
    """
    judged = judged_claims(found)
    most = {
        each.title: max((int(arm.scores.count().max()) for arm in each.arms if len(arm.scores)), default=0)
        for each in found.studies
        if not each.converts  # conversions judge no claim
    }
    measured = set() if found.efficiency is None else {*found.efficiency.rows["measure"], "parameters"}
    shown = {printed.label for study in found.studies for printed in study.printed}
    return page(
        "report.md",
        TITLE,
        folder,
        found=found,
        results=found.efficiency,
        folded=True,
        few=[f"{title} ({count})" for title, count in most.items() if count < LEAST_PAIRS],
        least_pairs=LEAST_PAIRS,
        claims=claim_tables(judged, letters(found.efficiency)),
        absent=[each for name, each in paper.TABLES.items() if each.label not in shown and name not in measured],
        method=METHOD,
        limits=LIMITS,
        origins=_origins(found),
        figures=figures,
        drift=drift,
        efficiency=efficiency_section,
        paper=paper,
        papers_table=papers_table,
        tables=study_section,
        throughput_table=throughput_table,
    )


def write_report(found: Found, output: Path) -> list[Path]:
    """Writes the page as HTML and Markdown, and a folder with its figures and its numbers as CSV.

    Args:
        found: As from `mabert_lab.report.sources.find`.
        output: The page, ``NAME.html``; ``NAME.md`` and the folder ``NAME`` are written beside it. Files of an earlier
            report that this one does not write are removed from the folder.

    Returns:
        The written files, the page first.

    Raises:
        ValueError: The output is not an ``.html`` file, or would overwrite a file that no earlier report wrote.
    """
    from mabert.files.writing import write_text

    if output.suffix != ".html":
        raise ValueError(f"the output is {output}; it must end in .html")
    folder = output.with_suffix("")
    document = report(found, folder.name)
    files = {output: document.html(), output.with_suffix(".md"): document.markdown()}
    files |= {folder / f"{name}.svg": on_paper(svg) for name, svg in document.figures.items()}
    files |= {folder / f"{name}.csv": frame.to_csv(index=False) for name, frame in _frames(found)}
    for path in _former(files, output).difference(files):
        path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_text(path, text)
    return list(files)


def throughput_table(file: str, result: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulates tokens per second by model and collection, the highest in bold, the slowest and fastest run in
    brackets. Earlier versions measured this."""
    cells = {(NAMES[row["model"]], row["lengths"]): _rate(row) for row in result["rows"]}
    collections = list(dict.fromkeys(row["lengths"] for row in result["rows"]))
    models = [name for name in NAMES.values() if any(name == known for known, _ in cells)]
    rows = [(model, *(cells.get((model, each), MISSING) for each in collections)) for model in models]
    notes = [
        "In brackets the slowest and the fastest run, and the texts of a batch. N(256,64) are lengths in tokens with a "
        "mean of 256 and a deviation of 64."
    ]
    shares, lengths = result.get("share", {}), result.get("lengths", {})
    taken = [f"{len(lengths[each]):,} of {each} ({shares[each]:.2%})" for each in collections if each in shares]
    notes += [f"Of the texts that ModernBERT's protocol has of each kind: {', '.join(taken)}."] if taken else []
    notes += [f"{FLAG}a quick trial run, not to be quoted."] if result.get("quick") else []
    title = f"Tokens a second, {result.get('dtype', 'unknown precision')}, {file}"
    return with_best(table(title, ("model", *collections), rows, notes), range(1, len(collections) + 1))


def _origins(found: Found) -> pd.DataFrame:
    """Makes a table of dates, machines and code, with a row for each kind of result on each machine."""
    rows = [
        (study.title, f"`{study.name}-{study.scale}`", about) for study in found.studies for about in study.environments
    ]
    sources = () if found.efficiency is None else found.efficiency.sources
    rows += [("Memory and time", f"`{each.name}`", each.environment) for each in sources]
    for what, kept in (("Padding", found.drifts), ("Throughput", found.throughputs)):
        rows += [(what, f"`{file}`", result.get("environment") or {}) for file, result in kept]
    told = [
        (what, machine_of(about), (about.get("date") or "unknown date")[:10], code_of(about), file)
        for what, file, about in rows
    ]
    frame = table("", ("result", "machine", "dates", "code", "files"), told)
    grouped = frame.groupby(["result", "machine"], sort=False, as_index=False)
    joined = grouped.agg(lambda own: ", ".join(dict.fromkeys(own)))
    joined.attrs.update(frame.attrs)
    return joined


def _rate(row: Mapping[str, Any]) -> str:
    rate = row.get("tokens_per_second")
    if rate is None:
        return f"{MISSING} {row['status']}"
    times = [row[name] for name in ("slowest_ms", "fastest_ms") if row.get(name) and row.get("tokens")]
    ends = "-".join(f"{1e3 * row['tokens'] / time:,.0f}" for time in times)
    return f"{rate:,.0f} ({ends}{', ' if ends else ''}{row['batch']})"


def _frames(found: Found) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the names and tables of the report's CSV files."""
    judged = judged_claims(found).drop(columns="claim").rename(columns={"text": "claim"})
    claims, scores, costs, *others = NUMBERS
    told = judged.assign(takes=judged["takes"].str.join("; "))
    yield claims, told[["claim", "verdict", "place", "numbers", "takes"]]
    if found.studies:
        yield scores, pd.concat([seeds(study) for study in found.studies], ignore_index=True)
    if found.efficiency is not None:
        yield costs, flat_rows(found.efficiency)
    for name, kept in zip(others, (found.drifts, found.throughputs), strict=True):
        if kept:
            yield name, pd.concat([pd.DataFrame(result["rows"]).assign(file=file) for file, result in kept])


def _former(files: Iterable[Path], output: Path) -> set[Path]:
    """Returns the files in the folder that an earlier report wrote: the figures in its Markdown, and numbers.

    Raises:
        ValueError: Names the first file that would be overwritten and that no report wrote.
    """
    markdown, folder = output.with_suffix(".md"), output.with_suffix("")
    told, known = _read(markdown), set()
    if told.startswith(f"# {plain(TITLE)}\n"):
        linked = re.findall(rf"!\[.*\]\({re.escape(folder.name)}/([^/)]+\.svg)\)", told)
        known = {markdown, *(folder / name for name in (*linked, *(f"{name}.csv" for name in NUMBERS)))}
    ours = f"<title>{escape(TITLE)}</title>" in _read(output)
    for path in files:
        if _read(path) and path not in known and not (path == output and ours):
            raise ValueError(f"{path} is there already, and no report wrote it; name another page, or move it away")
    return {path for path in known if path.parent == folder and path.is_file()}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
