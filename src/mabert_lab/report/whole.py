"""The report: finds results, judges every claim by them, and writes the page and the files beside it."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import escape

from mabert_lab.report import costs, drift, efficiency, paper, scores
from mabert_lab.report.charts import on_paper
from mabert_lab.report.document import FLAG, MISSING, Page, page, plain, table, with_best
from mabert_lab.report.efficiency import Results
from mabert_lab.report.paper import DEPENDS, FAILS, HOLDS, OPEN, UNMEASURED, Claim, Verdict, claims, overall
from mabert_lab.report.studies import LEAST_PAIRS, QUESTIONS, Arm, Column, Study, read_study

_PASSED_OVER = ("cells", "cache", "tokenizers", "conversion")
"""Working folders of studies, whose files come and go; and conversions, which have their own pages."""


@dataclass(frozen=True, eq=False)
class Found:
    """Everything to report of one folder, or of files that were given by name."""

    studies: tuple[Study, ...] = ()  # studies in the order of the paper's sections, each once per scale
    efficiency: Results | None = None  # merged efficiency results; None if there are none
    drifts: tuple[tuple[str, dict[str, Any]], ...] = ()  # file name and content, as of the next two
    throughputs: tuple[tuple[str, dict[str, Any]], ...] = ()  # tokens a second
    engines: tuple[tuple[str, dict[str, Any]], ...] = ()
    left_out: tuple[str, ...] = ()  # one line per file that is not shown, with the reason
    folder: str = ""  # the folder, as it was given; empty if everything is from one

    @property
    def whence(self) -> str:
        """What titles of its results end in; empty if everything is from one folder."""
        return f", from {self.folder}" if self.folder else ""

    @cached_property
    def judged(self) -> pd.DataFrame:
        """All verdicts, one per row: the fields of `Verdict`; ``short``, the place, with a letter for the machine if
        there are several; ``marked``, that and the models that hardly learnt there; ``weakest``, the numbers of the
        weakest comparison, of a claim on most comparisons also how many came out how; ``where``, the place, of costs
        with those numbers, which no other table sums up."""
        letters, rows = costs.letters(self.efficiency), []
        for claim in claims():
            for each in verdicts_on(claim, self.studies, self.efficiency, self.drifts):
                head, _, machine = each.place.partition(" on ")
                short = f"{head} on {letters[machine]}" if machine in letters else each.place
                weakest = each.numbers if claim.rule.get("most") else each.numbers.rpartition("; weakest ")[-1]
                told = {
                    "short": short,
                    "marked": f"{short}; {each.mark}" if each.mark else short,
                    "weakest": weakest,
                    "where": f"{short}: {weakest}" if each.numbers and claim.kind == "costs" else short,
                }
                rows.append({**vars(each), **told})
        return pd.DataFrame(rows)


def find(paths: Iterable[Path | str], apart: bool = True) -> tuple[Found, ...]:
    """Finds and reads all results that can be reported, those of each folder apart.

    A file given by name must be complete. A file in a folder that is incomplete or from a trial run goes to `left_out`.

    Args:
        paths: JSON files, and folders to search; JSON of other kinds is ignored.
        apart: Whether to keep folders apart, instead of reading everything as if it were in one.

    Returns:
        What each folder with results holds, in the order given; files given by name count as one folder.

    Raises:
        FileNotFoundError: A path is missing.
        ValueError: A file given by name is not JSON or is incomplete, or there is nothing to show.
    """
    asked = [Path(path) for path in paths]
    held: dict[str, _Held] = {}
    left_out: dict[str, list[str]] = defaultdict(list)
    for given, path in _files(asked):
        folder = str(given) if apart and given.is_dir() else "files given by name"
        try:
            kind, result = _read_result(path)
        except ValueError as error:
            if path in asked:
                raise
            reason = str(error).removeprefix(f"{path}: ")
            left_out[folder].append(f"`{path.relative_to(given)}`: {reason}")
            continue
        if kind in KINDS:
            held.setdefault(folder, defaultdict(list))[kind].append((path, result))
        elif kind and path in asked:
            raise ValueError(f"{path} holds results of kind {kind!r}, which no page shows; {HELPS}")
    if not held:
        nothing = f"{', '.join(map(str, asked)) or 'no paths'}: nothing to report"
        raise ValueError("; ".join([nothing, HELPS, *chain(*left_out.values())]))
    several, first = len(held) > 1, next(iter(held))
    for folder in sorted(left_out.keys() - held.keys()):
        left_out[first] += [f"{folder}, {line}" for line in left_out[folder]]
    return tuple(_found(whole, left_out[folder], folder if several else "") for folder, whole in held.items())


_Held = dict[str, list[tuple[Path, Any]]]
"""Files of a folder with what was read of each, by kind."""


def _found(held: _Held, left_out: Sequence[str], folder: str) -> Found:
    def named(kind: str) -> tuple[tuple[str, Any], ...]:
        return tuple((path.name, result) for path, result in held[kind])

    studies, older = _latest(held["study"])
    measured = efficiency.merged(result for _, result in held["efficiency"]) if held["efficiency"] else None
    others = named("drift"), named("throughput"), named("engines")
    return Found(studies, measured, *others, (*older, *left_out), folder)


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yields each file once, with the path that was given for it."""
    from mabert.data.rows import check_can_read_twice
    from mabert.files.reading import files_below

    seen = set()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder; give results as JSON")
        if not path.is_dir():
            check_can_read_twice(path)
        for file in files_below(path, _PASSED_OVER) if path.is_dir() else [path]:
            if file.resolve() not in seen and (file.suffix == ".json" or file == path):
                seen.add(file.resolve())
                yield path, file


def _read_result(path: Path) -> tuple[str, Any]:
    """Reads and checks a file; returns its kind and content, or empty values if it states no kind."""
    from mabert.files.reading import read_json_value

    try:
        content = read_json_value(path, nan=True)
    except ValueError as error:
        raise ValueError(f"{error}; give a file of results") from None
    kind = str(content.get("kind", "")) if isinstance(content, dict) else ""
    if kind not in KINDS:
        return kind, content
    writer, read = KINDS[kind]
    try:
        return kind, read(content, str(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not as {writer} writes it ({type(error).__name__}: {error})") from None


def _with_fields(own: str, of_row: str) -> Callable[[dict[str, Any], str], Any]:
    """Returns a function that checks that a file has some fields, and others in each row, and returns its content."""

    def checked(content: dict[str, Any], _: str) -> dict[str, Any]:
        itemgetter(*own.split())(content)
        for row in content["rows"]:
            itemgetter(*of_row.split())(row)
        return content

    return checked


_DRIFT = "weights direction conv side attention masking cls mean"

_ENGINES = "measure model dtype length median_ms samples reason setting"

KINDS: Mapping[str, tuple[str, Callable[[dict[str, Any], str], Any]]] = {
    "study": ("mabert study", lambda content, _: read_study(content)),
    "efficiency": ("mabert bench models", efficiency.read_results),
    "drift": ("mabert study drift", _with_fields("texts lengths rows", _DRIFT)),
    # No command writes these any more; the committed page shows some.
    "throughput": ("an earlier version", _with_fields("rows", "model lengths status batch tokens_per_second")),
    "engines": ("mabert bench models", _with_fields("environment rows", _ENGINES)),
}
"""Kinds of results: what writes them, and the function that checks them."""

HELPS = "give JSON files that mabert study, mabert bench models, mabert study drift wrote"


def _latest(studies: Iterable[tuple[Path, Study]]) -> tuple[tuple[Study, ...], list[str]]:
    """Keeps the file with the latest finished cell of each study and scale; reports the others, by path if they have
    the same name."""
    latest: dict[tuple[str, str], tuple[Path, Study]] = {}
    older = []
    for path, study in sorted(studies, key=lambda found: found[1].finished):
        before, _ = latest.get((study.name, study.scale), (None, None))
        if before is not None:
            names = (before, path) if before.name == path.name else (before.name, path.name)
            older.append(f"`{names[0]}`: `{names[1]}` is a later state of the same study at the same scale")
        latest[study.name, study.scale] = path, study
    order = list(QUESTIONS.values())

    def place(study: Study) -> tuple[int, str, str]:
        return order.index(study.question) if study.question else len(order), study.name, study.scale

    return tuple(sorted((study for _, study in latest.values()), key=place)), older


def verdicts_on(
    claim: Claim, studies: Sequence[Study] = (), results: Results | None = None, drifts: drift.Drifts = ()
) -> list[Verdict]:
    """Judges a claim at every place where it was measured, or once if nowhere."""
    if claim.kind == "scores":
        own = list(scores.of_studies(claim, studies))
        needs = "a study: " + " or ".join(f"`mabert study {name}`" for name in claim.rule["asks"])
    elif claim.kind == "costs":
        own, needs = [] if results is None else list(costs.of_results(claim, results)), "`mabert bench models`"
    else:
        own, needs = list(drift.of_drifts(claim, drifts)), "`mabert study drift`"
    return own or [Verdict(claim, "-", UNMEASURED, takes=(needs,))]


@cache
def of_paper(claim: Claim) -> Verdict:
    """Judges a claim by the paper's own tables."""
    if claim.kind == "drift":
        return Verdict(claim, "the paper", "", "curves without numbers")
    if claim.kind == "costs":
        return next(costs.of_results(claim, papers_results()))
    return next(scores.of_studies(claim, [papers_study(claim.rule["asks"][-1])]))


@cache
def papers_study(question: str) -> Study:
    """Returns the paper's scores on a question, a value of `QUESTIONS`, as a study with one seed."""
    label = next(label for label, each in QUESTIONS.items() if each == question)
    tables = paper.GLUE if question in ("budget", "baselines") else {1.0: paper.TABLES[question]}
    columns = tuple(Column(key, task["title"], task["metric"], key) for key, task in paper.TASKS.items())
    arms = tuple(
        Arm(row, row, budget, {}, table.mean.loc[[row]].reset_index(drop=True))
        for budget, table in tables.items()
        for row in table.mean.index
    )
    reference = {"pattern": "MMTMMTMMTMMT", "components": "full", "pooling": "map"}.get(question, "mabert")
    return Study(question, question, label, "", reference, "the paper", (), {}, columns, arms, exact=True)


def papers_results() -> Results:
    """Returns the paper's memory and times as results without a spread."""
    source = efficiency.Source("paper", datetime.min.replace(tzinfo=UTC), {})
    printed = {measure: paper.TABLES[measure].mean.stack() for measure in efficiency.MEASURES}
    rows = pd.concat(printed, names=["measure", "model", "length"]).rename("value").reset_index()
    about = efficiency.Condition("paper", "bfloat16", "cuda")._asdict()
    about |= dict.fromkeys(("at_least", *efficiency.MAY_LACK), math.nan)
    return Results(rows.assign(**about, status="measured", source=[source] * len(rows)), {}, (source,))


def claim_tables(every: Sequence[Found]) -> dict[str, Any]:
    """Makes the tables of claims: decided with numbers, open with what a decision needs, unmeasured, and all. Each
    folder has verdicts and columns of its own; a claim stands in the first table where any folder decides it."""
    judged = {found.folder: dict(list(found.judged.groupby("claim", sort=False))) for found in every}
    verdicts = pd.DataFrame(
        {folder: {claim: overall(each["verdict"]) for claim, each in own.items()} for folder, own in judged.items()}
    )

    def claims_table(which: pd.Series, columns: Mapping[str, Callable[[pd.DataFrame, str], str]]) -> pd.DataFrame:
        head = [f"{name}, {folder}" if folder else name for folder in judged for name in columns]
        rows = []
        for claim in verdicts.index[which]:
            cells = [
                cell(own[claim], verdicts.at[claim, folder])
                for folder, own in judged.items()
                for cell in columns.values()
            ]
            note = f". {claim.note}" if claim.note else ""
            rows.append((claim.claim, *cells, f'{claim.source}: "{claim.quote}"{note}'))
        return table("", ("claim", *head, "in the paper"), rows)

    def counts(own: pd.Series) -> str:
        parts = []
        for kind, subject in (("scores", "scores"), ("costs", "memory and time"), ("drift", "padding")):
            found = own[[claim.kind == kind for claim in own.index]].value_counts()
            order = (HOLDS, FAILS, DEPENDS, OPEN, UNMEASURED)
            told = ", ".join(f"{verdict} {found[verdict]}" for verdict in order if verdict in found)
            parts.append(f"on {subject}, {told}")
        return "; ".join(parts)

    decided = verdicts.isin([HOLDS, FAILS, DEPENDS]).any(axis=1)
    still_open = ~decided & verdicts.eq(OPEN).any(axis=1)
    left = {
        "where": lambda own, _: "; ".join(own["where"]),
        "it would take": lambda own, _: "; ".join(dict.fromkeys(chain.from_iterable(own["takes"]))),
    }
    each_place, measured = [], []
    for found in every:
        for row in found.judged.itertuples():
            theirs = of_paper(row.claim)
            printed = "; ".join(filter(None, (theirs.verdict, theirs.numbers)))
            takes = "; ".join(row.takes)
            each_place.append((row.claim.claim, found.folder, row.verdict, row.marked, row.numbers, takes, printed))
            if row.claim.kind == "costs" and row.verdict in (HOLDS, FAILS):
                measured.append(row.place)
    devices = {", cpu": "processors", ", cuda": "GPUs"}
    head = ("claim", "folder", "verdict", "measured at", "numbers here", "it would take", "by the paper's own numbers")
    return {
        "count": len(verdicts),
        "devices": [name for device, name in devices.items() if any(device in place for place in measured)],
        "counts": {folder: counts(verdicts[folder]) for folder in judged},
        "decided": claims_table(decided, {"verdict": _verdict, "numbers, and where": _told}),
        "machines": [
            f"{letter} is {machine}{f' ({found.folder})' if found.folder else ''}."
            for found in every
            for machine, letter in costs.letters(found.efficiency).items()
        ],
        "open": claims_table(still_open, left),
        "missing": claims_table(~decided & ~still_open, left),
        "every": table("", head, each_place),
    }


def _verdict(own: pd.DataFrame, verdict: str) -> str:
    """Writes a verdict, and how many of a claim's places give it if the others tell nothing."""
    decided = (own["verdict"] == verdict).sum()
    some = verdict in (HOLDS, FAILS) and decided < len(own)
    return f"**{verdict}**" + (f" where decided ({decided} of {len(own)})" if some else "")


def _told(own: pd.DataFrame, verdict: str) -> str:
    """Describes the numbers at a claim's places, by verdict if these differ, and how many places tell nothing."""
    if verdict in (OPEN, UNMEASURED):  # another folder decides it
        return "; ".join(own["where"]) if verdict == OPEN else ""
    places = {each: own[own["verdict"] == each] for each in (HOLDS, FAILS, OPEN, UNMEASURED)}
    places = {each: these for each, these in places.items() if len(these)}
    if own["group"].all():
        counted = {each: _counted(each, these, own) for each, these in places.items() if each != UNMEASURED}
        return ". ".join(f"**{each}:** {told}" for each, told in counted.items())
    parts, most = [], 2  # the last table shows all
    for each, these in places.items():
        if each in (HOLDS, FAILS):
            shown = [f"{row.weakest} ({row.marked})" for row in these[:most].itertuples()]
            more = [f"and {len(these) - most} more"] if len(these) > most else []
            told = "; ".join([*shown, *more])
        else:
            told = these["short"].iloc[0] if len(these) == 1 else f"{len(these)} places"
        parts.append(told if each == verdict else f"**{each}:** {told}")
    return ". ".join(parts)


def _counted(verdict: str, these: pd.DataFrame, own: pd.DataFrame) -> str:
    """Counts places under a verdict by group, with the numbers of the first of each if it is decided."""
    parts = []
    for group, rows in these.groupby("group", sort=False):
        numbers = "" if verdict == OPEN else f" ({rows['numbers'].iloc[0]})"
        parts.append(f"{group}, {len(rows)} of {(own['group'] == group).sum()}{numbers}")
    return "; ".join(parts)


TITLE = "MaBERT: the paper's experiment, run again"

NUMBERS = ("claims", "scores", "memory-and-time", "padding", "throughput")
"""Names of the CSV files in a report's folder."""


def report(every: Sequence[Found], folder: str = "") -> Page:
    """Makes the report of what `find` found: what is decided and what is not, the user's own results, then everything
    else. The folder is that of the figures' files, relative to the page."""
    few = []
    for found in every:
        for study in found.studies:
            most = max((int(arm.scores.count().max()) for arm in study.arms if len(arm.scores)), default=0)
            if most < LEAST_PAIRS and not study.converts:  # conversions judge no claim
                few.append(f"{study.title}{found.whence} ({most})")
    return page(
        "report.md",
        TITLE,
        folder,
        every=every,
        folded=True,
        few=few,
        claims=claim_tables(every),
        absent=absent(every),
        origins=_origins(every),
        costs=costs,
        drift=drift,
        paper=paper,
        scores=scores,
        throughput_table=throughput_table,
    )


def absent(every: Sequence[Found]) -> list[paper.Table]:
    """Returns the paper's tables that no result is shown next to."""
    results = [found.efficiency for found in every if found.efficiency is not None]
    measured = {name for each in results for name in (*each.rows["measure"], "parameters")}
    shown = {printed.label for found in every for study in found.studies for printed in study.printed}
    return [each for name, each in paper.TABLES.items() if each.label not in shown and name not in measured]


def write_report(every: Sequence[Found], output: Path) -> list[Path]:
    """Writes the page as HTML, without its folded parts as Markdown, the Markdown's figures, and all numbers as CSV.

    Args:
        every: As from `find`.
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
    document = report(every, folder.name)
    files = {output: document.html(), output.with_suffix(".md"): document.markdown()}
    files |= {folder / f"{name}.svg": on_paper(svg) for name, svg in document.linked().items()}
    files |= {folder / f"{name}.csv": frame.to_csv(index=False) for name, frame in _frames(every).items()}
    former = _former(files, output).difference(files)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_text(path, text)
    for path in former:
        path.unlink()
    return list(files)


def throughput_table(file: str, result: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulates tokens per second by model and collection, the highest in bold, the slowest and fastest run in
    brackets. Earlier versions measured this."""
    cells = {(row["model"], row["lengths"]): _rate(row) for row in result["rows"]}
    collections = list(dict.fromkeys(row["lengths"] for row in result["rows"]))
    models = {row["model"] for row in result["rows"]}
    rows = [
        (name, *(cells.get((model, each), MISSING) for each in collections))
        for model, name in efficiency.NAMES.items()
        if model in models
    ]
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


def _origins(every: Sequence[Found]) -> pd.DataFrame:
    """Makes a table of dates, machines and code, with a row for each kind of result on each machine."""
    lines = []
    for found in every:
        ran = [
            (study.title, f"{study.name}-{study.scale}", about)
            for study in found.studies
            for about in study.environments
        ]
        if found.efficiency is not None:
            ran += [("Memory and time", each.name, each.environment) for each in found.efficiency.sources]
        for what, kept in (("Padding", found.drifts), ("Throughput", found.throughputs)):
            ran += [(what, file, result.get("environment") or {}) for file, result in kept]
        for what, file, about in ran:
            code, date = efficiency.code_of(about), (about.get("date") or "unknown date")[:10]
            lines.append((what + found.whence, efficiency.machine_of(about), date, code, f"`{file}`"))
    frame = pd.DataFrame(lines, columns=["result", "machine", "dates", "code", "files"])
    grouped = frame.groupby(["result", "machine"], sort=False, as_index=False)
    joined = grouped.agg(lambda own: ", ".join(dict.fromkeys(own)))
    return table("", joined.columns, joined.itertuples(index=False))


def _rate(row: Mapping[str, Any]) -> str:
    rate = row.get("tokens_per_second")
    if rate is None:
        return f"{MISSING} {row['status']}"
    times = [row[name] for name in ("slowest_ms", "fastest_ms") if row.get(name) and row.get("tokens")]
    ends = "-".join(f"{1e3 * row['tokens'] / time:,.0f}" for time in times)
    return f"{rate:,.0f} ({ends}{', ' if ends else ''}{row['batch']})"


def _frames(every: Sequence[Found]) -> dict[str, pd.DataFrame]:
    """Returns the tables of the report's CSV files by name, with a column of folders if there are several."""
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in NUMBERS}
    for found in every:
        judged = found.judged[["claim", "verdict", "place", "mark", "numbers", "takes"]]
        texts = [claim.claim for claim in judged["claim"]]
        own = {
            "claims": [judged.assign(claim=texts, takes=judged["takes"].str.join("; "))],
            "scores": [scores.seeds(study) for study in found.studies],
            "padding": [pd.DataFrame(result["rows"]).assign(file=file) for file, result in found.drifts],
            "throughput": [pd.DataFrame(result["rows"]).assign(file=file) for file, result in found.throughputs],
        }
        if found.efficiency is not None:
            rows = found.efficiency.rows.drop(columns="reason")
            own["memory-and-time"] = [rows.assign(source=[source.name for source in rows["source"]])]
        for name, frames in own.items():
            parts[name] += [frame.assign(folder=found.folder) if found.folder else frame for frame in frames]
    return {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items() if frames}


def _former(files: Iterable[Path], output: Path) -> set[Path]:
    """Returns the files in the folder that an earlier report wrote: the figures in its Markdown, and numbers.

    Raises:
        ValueError: Names the first file that would be overwritten and that no report wrote.
    """
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
