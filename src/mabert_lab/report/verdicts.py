"""Judges every claim of the paper by the results that were found, and by the paper's own tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import pandas as pd

from mabert_lab.report import claims, costs_page, drift, paper
from mabert_lab.report.costs import Results, papers_results
from mabert_lab.report.document import table
from mabert_lab.report.found import Found
from mabert_lab.report.paper import CLAIMS, DEPENDS, FAILS, HOLDS, OPEN, UNMEASURED, Claim, Verdict, overall
from mabert_lab.report.studies import QUESTIONS, ArmRun, Column, StudyRun


def judged(every: Iterable[Found]) -> dict[str, pd.DataFrame]:
    """Returns all verdicts by folder, one per row: the fields of `Verdict`; ``short``, the place, with a letter for the
    machine if there are several; ``marked``, that and the models that hardly learnt there; ``weakest``, the numbers of
    the weakest comparison, of a claim on most comparisons also how many came out how; ``where``, the place, of costs
    with those numbers, which no other table sums up."""
    by_folder = {}
    for found in every:
        letters, rows = costs_page.letters(found.costs), []
        measured = (found.studies, found.costs, found.drifts)
        for each in chain.from_iterable(verdicts_on(claim, *measured) for claim in CLAIMS):
            head, _, machine = each.place.partition(" on ")
            short = f"{head} on {letters[machine]}" if machine in letters else each.place
            weakest = each.numbers if each.claim.rule.get("most") else each.numbers.rpartition("; weakest ")[-1]
            marked = f"{short}; {each.mark}" if each.mark else short
            where = f"{short}: {weakest}" if each.numbers and each.claim.kind == "costs" else short
            rows.append({**vars(each), "short": short, "marked": marked, "weakest": weakest, "where": where})
        by_folder[found.folder] = pd.DataFrame(rows)
    return by_folder


def verdicts_on(
    claim: Claim, studies: Sequence[StudyRun] = (), results: Results | None = None, drifts: drift.Drifts = ()
) -> list[Verdict]:
    """Judges a claim at every place where it was measured, or once if nowhere."""
    if claim.kind == "scores":
        own = list(claims.of_studies(claim, studies))
        needs = "a study: " + " or ".join(f"`mabert study {name}`" for name in claim.rule["asks"])
    elif claim.kind == "costs":
        own, needs = [] if results is None else list(claims.of_results(claim, results)), "`mabert bench models`"
    else:
        own, needs = list(drift.of_drifts(claim, drifts)), "`mabert study drift`"
    return own or [Verdict(claim, "-", UNMEASURED, takes=(needs,))]


@cache
def of_paper(claim: Claim) -> Verdict:
    """Judges a claim by the paper's own tables."""
    if claim.kind == "drift":
        return Verdict(claim, "the paper", "", "curves without numbers")
    if claim.kind == "costs":
        return next(claims.of_results(claim, papers_results()))
    return next(claims.of_studies(claim, [papers_study(claim.rule["asks"][-1])]))


@cache
def papers_study(question: str) -> StudyRun:
    """Returns the paper's scores on a question, a value of `QUESTIONS`, as a study with one seed."""
    label = next(label for label, each in QUESTIONS.items() if each == question)
    tables = paper.BY_SHARE if question in ("budget", "baselines") else {1.0: paper.TABLES[question]}
    columns = tuple(Column(key, task["title"], task["metric"], key) for key, task in paper.TASKS.items())
    arms = []
    for budget, printed in tables.items():
        rows = printed.mean
        arms += [ArmRun(row, row, budget, {}, rows.loc[[row]].reset_index(drop=True)) for row in rows.index]
    reference = {"pattern": "MMTMMTMMTMMT", "components": "full", "pooling": "map"}.get(question, "mabert")
    return StudyRun(question, question, label, "", reference, "the paper", (), {}, columns, tuple(arms), exact=True)


def claim_tables(every: Sequence[Found], found_of: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Makes the tables of claims: decided with numbers, open with what a decision needs, unmeasured, and all. Each
    folder has columns of its own; a claim stands in the first table where any folder decides it."""
    claims_of = {folder: dict(list(own.groupby("claim", sort=False))) for folder, own in found_of.items()}
    verdicts = pd.DataFrame(
        {folder: {claim: overall(each["verdict"]) for claim, each in own.items()} for folder, own in claims_of.items()}
    )

    def claims_table(which: pd.Series, columns: Mapping[str, Callable[[pd.DataFrame, str], str]]) -> pd.DataFrame:
        head = [f"{name}, {folder}" if folder else name for folder in claims_of for name in columns]
        rows = []
        for claim in verdicts.index[which]:
            places = [(own[claim], verdicts.at[claim, folder]) for folder, own in claims_of.items()]
            cells = [cell(*place) for place in places for cell in columns.values()]
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
    for folder, own in found_of.items():
        for row in own.itertuples():
            theirs = of_paper(row.claim)
            printed = "; ".join(filter(None, (theirs.verdict, theirs.numbers)))
            takes = "; ".join(row.takes)
            each_place.append((row.claim.claim, folder, row.verdict, row.marked, row.numbers, takes, printed))
            if row.claim.kind == "costs" and row.verdict in (HOLDS, FAILS):
                measured.append(row.place)
    devices = {", cpu": "processors", ", cuda": "GPUs"}
    head = ("claim", "folder", "verdict", "measured at", "numbers here", "it would take", "by the paper's own numbers")
    return {
        "count": len(verdicts),
        "devices": [name for device, name in devices.items() if any(device in place for place in measured)],
        "counts": {folder: counts(verdicts[folder]) for folder in claims_of},
        "decided": claims_table(decided, {"verdict": _verdict, "numbers, and where": _told}),
        "machines": [
            f"{letter} is {machine}{f' ({found.folder})' if found.folder else ''}."
            for found in every
            for machine, letter in costs_page.letters(found.costs).items()
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
