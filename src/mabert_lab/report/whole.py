"""The whole report: claims, the reader's own results, and what was not measured, as a page and files beside it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import escape

from mabert_lab.report import charts, drift, efficiency_section, paper, study_section
from mabert_lab.report.document import FLAG, MISSING, Page, page, plain, table, with_best
from mabert_lab.report.efficiency import NAMES
from mabert_lab.report.efficiency_section import flat_rows, letters
from mabert_lab.report.evidence import of_paper, verdicts
from mabert_lab.report.figures import on_paper
from mabert_lab.report.judge import (
    DEPENDS,
    FAILS,
    HOLDS,
    LIMITS,
    METHOD,
    OPEN,
    UNMEASURED,
    WORDS,
    Claim,
    overall,
)
from mabert_lab.report.machine import code_of, machine_of
from mabert_lab.report.sources import Found
from mabert_lab.report.statistics import LEAST_PAIRS
from mabert_lab.report.study_section import papers_table, seeds

TITLE = "MaBERT: the paper's experiment, run again"
NUMBERS = ("claims", "scores", "memory-and-time", "padding", "throughput")
"""Names of the CSV files of a report's folder."""

_SHOWN = 2
"""Places of a claim under one verdict whose numbers stand in the first table; all stand in the last."""

_EVERY = (
    "claim",
    "verdict",
    "measured at",
    "numbers here",
    "it would take",
    "by the paper's own numbers",
)


def report(found: Found, folder: str = "") -> Page:
    """The document: what is decided and what is not, the reader's own results, then all else.

    Args:
        found: What `mabert_lab.report.sources.find` returned.
        folder: Where its figures will lie, from the page.
    """
    judged = _judged(found)
    most = {
        each.title: max((int(arm.scores.count().max()) for arm in each.arms if len(arm.scores)), default=0)
        for each in found.studies
        if not each.converts  # by which no claim is judged
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
        claims=_claims(judged, {} if found.efficiency is None else letters(found.efficiency)),
        absent=[each for name, each in paper.TABLES.items() if each.label not in shown and name not in measured],
        method=METHOD,
        limits=LIMITS,
        origins=_origins(found),
        charts=charts,
        drift=drift,
        efficiency=efficiency_section,
        paper=paper,
        papers_table=papers_table,
        tables=study_section,
        throughput_table=throughput_table,
    )


def write_report(found: Found, output: Path) -> list[Path]:
    """Write the page, the same as Markdown, and a folder of its figures and of its numbers as CSV.

    Args:
        found: What `mabert_lab.report.sources.find` returned.
        output: The page, ``NAME.html``; beside it go ``NAME.md`` and the folder ``NAME``, from which files go that a
            former report wrote and this one does not.

    Returns:
        The files, the page first.

    Raises:
        ValueError: The output is no ``.html`` file, or a file would be written over that is no former report's.
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
    """Tokens a second by model and collection of texts, the highest in bold, the slowest and fastest run in brackets.

    Args:
        file: Of the result, by its name.
        result: What `mabert bench throughput` wrote.
    """
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


def _short(place: str, places: Mapping[str, str]) -> str:
    head, _, machine = place.partition(" on ")
    return f"{head} on {places[machine]}" if machine in places else place


def _claims(judged: pd.DataFrame, machines: Mapping[str, str]) -> dict[str, Any]:
    """What is decided with its numbers, what cannot be told with what it would take, what was not measured, and all."""
    own = dict(list(judged.groupby("text", sort=False)))
    found = {text: overall(each["verdict"]) for text, each in own.items()}
    counted = pd.Series(found).value_counts().reindex([HOLDS, FAILS, DEPENDS, OPEN, UNMEASURED]).dropna()
    decided = [
        (text, f"**{found[text]}**", _told(each, found[text]), _place(each["claim"].iloc[0]))
        for text, each in own.items()
        if found[text] in (HOLDS, FAILS, DEPENDS)
    ]
    notes = ["Of several comparisons that a claim needs, the weakest is shown. Places of the paper go by its labels."]
    notes += [*WORDS, *(f"{letter} is {machine}." for machine, letter in machines.items())]

    def left(verdict: str) -> pd.DataFrame:
        rows = [
            (text, "; ".join(each["short"]), _needs(each), _place(each["claim"].iloc[0]))
            for text, each in own.items()
            if found[text] == verdict
        ]
        return table("", ("claim", "where", "it would take", "in the paper"), rows)

    return {
        "count": len(found),
        "counts": ", ".join(f"{verdict} {count:.0f}" for verdict, count in counted.items()),
        "decided": table("", ("claim", "verdict", "numbers, and where", "in the paper"), decided, notes),
        "open": left(OPEN),
        "missing": left(UNMEASURED),
        "every": table("", _EVERY, map(_whole, judged.itertuples())),
    }


def _told(own: pd.DataFrame, verdict: str) -> str:
    """The numbers of a claim's places, by verdict where these differ, and where there is none."""
    parts = []
    for each in (HOLDS, FAILS):
        these = own[own["verdict"] == each]
        shown = [f"{row.numbers.rpartition('; weakest ')[-1]} ({row.short})" for row in these.itertuples()]
        if shown:
            parts.append((f"**{each}:** " if verdict == DEPENDS else "") + _some(shown))
    for each in (OPEN, UNMEASURED):
        if left := list(own.loc[own["verdict"] == each, "short"]):
            parts.append(f"**{each}:** {_some(left)}")
    return ". ".join(parts)


def _some(words: Sequence[str]) -> str:
    """The first of several, and how many more there are."""
    return "; ".join([*words[:_SHOWN], *([f"and {len(words) - _SHOWN} more"] if len(words) > _SHOWN else [])])


def _needs(own: pd.DataFrame) -> str:
    """What it would take to decide a claim at any of its places."""
    return "; ".join(dict.fromkeys("; ".join(own["takes"]).split("; ")))


def _place(claim: Claim) -> str:
    return f'{claim.source}: "{claim.quote}"' + (f". {claim.note}" if claim.note else "")


def _whole(each: Any) -> tuple[str, ...]:
    """The row of a verdict, with what the paper's own numbers say of its claim."""
    claim, theirs = each.claim, of_paper(each.claim)
    told = "; ".join(filter(None, ("" if claim.kind == "drift" else theirs.verdict, theirs.numbers)))
    return each.text, each.verdict, each.short, each.numbers, each.takes, told


def _origins(found: Found) -> pd.DataFrame:
    """When, on what and by which code everything was measured, a row for each kind of result on each machine."""
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


def _judged(found: Found) -> pd.DataFrame:
    """Every verdict, a row each; ``short`` is its place, a letter for a machine of many."""
    places = {} if found.efficiency is None else letters(found.efficiency)
    judged = pd.DataFrame(map(vars, verdicts(found.studies, found.efficiency, found.drifts)))
    text = [claim.claim for claim in judged["claim"]]
    return judged.assign(text=text, short=[_short(place, places) for place in judged["place"]])


def _frames(found: Found) -> Iterator[tuple[str, pd.DataFrame]]:
    """The report's numbers for files, by name."""
    judged = _judged(found).drop(columns="claim").rename(columns={"text": "claim"})
    claims, scores, costs, *others = NUMBERS
    yield claims, judged[["claim", "verdict", "place", "numbers", "takes"]]
    if found.studies:
        yield scores, pd.concat([seeds(study) for study in found.studies], ignore_index=True)
    if found.efficiency is not None:
        yield costs, flat_rows(found.efficiency)
    for name, kept in zip(others, (found.drifts, found.throughputs), strict=True):
        if kept:
            yield name, pd.concat([pd.DataFrame(result["rows"]).assign(file=file) for file, result in kept])


def _former(files: Iterable[Path], output: Path) -> set[Path]:
    """Files in the folder that a former report wrote: the figures that its Markdown names, and numbers.

    Raises:
        ValueError: Naming the first file that would be written over and is none of a report's.
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
