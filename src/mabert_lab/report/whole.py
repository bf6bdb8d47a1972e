"""The report: one page of all that was found, and the files beside it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import escape

from mabert_lab.report import costs, costs_page, drift, paper, scores
from mabert_lab.report.charts import on_paper
from mabert_lab.report.document import Page, page, plain, table
from mabert_lab.report.found import Found
from mabert_lab.report.studies import LEAST_PAIRS
from mabert_lab.report.verdicts import claim_tables, judged

TITLE = "MaBERT: the paper's experiment, run again"
NUMBERS = ("claims", "scores", "memory-and-time", "padding")  # the CSV files of a report


def report(every: Sequence[Found], verdicts: Mapping[str, pd.DataFrame], folder: str = "") -> Page:
    """Makes the report of what `find` found and how claims were `judged`; `folder` is that of the figures' files."""
    few = []
    for found in every:
        for study in found.studies:
            most = max((int(arm.scores.count().max()) for arm in study.arms if len(arm.scores)), default=0)
            if most < LEAST_PAIRS and not study.converts:  # conversions judge no claim
                few.append(f"{study.title}{found.whence} ({most})")
    shown: dict[str, Any] = {"every": every, "few": few, "claims": claim_tables(every, verdicts)}
    shown |= {"absent": absent(every), "origins": _origins(every), "folded": True}
    return page("report.md", TITLE, folder, **shown, costs_page=costs_page, drift=drift, paper=paper, scores=scores)


def efficiency_page(results: costs.Results) -> Page:
    return page(
        "efficiency.md", "Efficiency over length", results=results, folded=False, costs_page=costs_page, paper=paper
    )


def engines_page(files: Iterable[tuple[str, Mapping[str, Any]]]) -> Page:
    """Makes a page with a table and a figure for each file that `mabert bench models` wrote of contenders, by name."""
    return page("engines.md", "Models in their engines", files=list(files), costs_page=costs_page)


def absent(every: Sequence[Found]) -> list[paper.Table]:
    """Returns the paper's tables that no result is shown next to."""
    results = [found.costs for found in every if found.costs is not None]
    measured = {name for each in results for name in (*each.rows["measure"], "parameters")}
    shown = {printed.label for found in every for study in found.studies for printed in study.printed}
    return [each for name, each in paper.TABLES.items() if each.label not in shown and name not in measured]


def write_report(every: Sequence[Found], output: Path) -> list[Path]:
    """Writes the page of what `find` found as HTML, ``NAME.html``, and beside it ``NAME.md`` without its folded parts,
    and in the folder ``NAME`` the Markdown's figures and all numbers as CSV; returns the files, the page first. Files
    of an earlier report that this one does not write are removed from the folder. ValueError if the output is no
    ``.html`` file, or would overwrite what no earlier report wrote."""
    from mabert.files.writing import write_text

    if output.suffix != ".html":
        raise ValueError(f"the output is {output}; it must end in .html")
    folder = output.with_suffix("")
    verdicts = judged(every)
    document = report(every, verdicts, folder.name)
    files = {output: document.html(), output.with_suffix(".md"): document.markdown()}
    files |= {folder / f"{name}.svg": on_paper(svg) for name, svg in document.linked().items()}
    files |= {folder / f"{name}.csv": frame.to_csv(index=False) for name, frame in _frames(every, verdicts).items()}
    former = _former(files, output).difference(files)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_text(path, text)
    for path in former:
        path.unlink()
    return list(files)


def _origins(every: Sequence[Found]) -> pd.DataFrame:
    """Makes a table of dates, machines and code, with a row for each kind of result on each machine."""
    lines = []
    for found in every:
        ran = []
        for study in found.studies:
            ran += [(study.title, f"{study.name}-{study.scale}", about) for about in study.environments]
        if found.costs is not None:
            ran += [("Memory and time", each.name, each.environment) for each in found.costs.sources]
        ran += [("Padding", file, result.get("environment") or {}) for file, result in found.drifts]
        for what, file, about in ran:
            code, date = costs.code_of(about), (about.get("date") or "unknown date")[:10]
            lines.append((what + found.whence, costs.machine_of(about), date, code, f"`{file}`"))
    frame = pd.DataFrame(lines, columns=["result", "machine", "dates", "code", "files"])
    grouped = frame.groupby(["result", "machine"], sort=False, as_index=False)
    joined = grouped.agg(lambda own: ", ".join(dict.fromkeys(own)))
    return table("", joined.columns, joined.itertuples(index=False))


def _frames(every: Sequence[Found], verdicts_of: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Returns the tables of the report's CSV files by name, with a column of folders if there are several."""
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in NUMBERS}
    for found in every:
        verdicts = verdicts_of[found.folder][["claim", "verdict", "place", "mark", "numbers", "takes"]]
        texts = [claim.claim for claim in verdicts["claim"]]
        own = {
            "claims": [verdicts.assign(claim=texts, takes=verdicts["takes"].str.join("; "))],
            "scores": [scores.seeds(study) for study in found.studies],
            "padding": [pd.DataFrame(result["rows"]).assign(file=file) for file, result in found.drifts],
        }
        if found.costs is not None:
            rows = found.costs.rows.drop(columns="reason")
            own["memory-and-time"] = [rows.assign(source=[source.name for source in rows["source"]])]
        for name, frames in own.items():
            parts[name] += [frame.assign(folder=found.folder) if found.folder else frame for frame in frames]
    return {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items() if frames}


def _former(files: Iterable[Path], output: Path) -> set[Path]:
    """Returns the files in the folder that an earlier report wrote; refuses to overwrite what no report wrote."""
    markdown, folder = output.with_suffix(".md"), output.with_suffix("")
    former, known = _text_of(markdown), set()
    if former.startswith(f"# {plain(TITLE)}\n"):
        linked = re.findall(rf"!\[.*\]\({re.escape(folder.name)}/([^/)]+\.svg)\)", former)
        known = {markdown, *(folder / name for name in (*linked, *(f"{name}.csv" for name in NUMBERS)))}
    ours = f"<title>{escape(TITLE)}</title>" in _text_of(output)
    for path in files:
        if _text_of(path) and path not in known and not (path == output and ours):
            raise ValueError(f"{path} is there already, and no report wrote it; name another page, or move it away")
    return {path for path in known if path.parent == folder and path.is_file()}


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
