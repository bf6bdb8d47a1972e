"""The tables of claims: what is decided, what is open, what was not measured, and every claim at every place."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pandas as pd

from mabert_lab.report.document import table
from mabert_lab.report.efficiency_section import letters
from mabert_lab.report.evidence import of_paper, verdicts
from mabert_lab.report.judge import DEPENDS, FAILS, HOLDS, OPEN, UNMEASURED, WORDS, Claim, overall
from mabert_lab.report.sources import Found

_SHOWN = 2
"""How many places of a claim under one verdict the first table shows with numbers; the last table shows all."""

_EVERY = ("claim", "verdict", "measured at", "numbers here", "it would take", "by the paper's own numbers")


def judged_claims(found: Found) -> pd.DataFrame:
    """Returns all verdicts, one per row; ``short`` is the place, with a letter for the machine if there are several."""
    places = letters(found.efficiency)
    judged = pd.DataFrame(map(vars, verdicts(found.studies, found.efficiency, found.drifts)))
    text = [claim.claim for claim in judged["claim"]]
    return judged.assign(text=text, short=[_short(place, places) for place in judged["place"]])


def _short(place: str, places: Mapping[str, str]) -> str:
    head, _, machine = place.partition(" on ")
    return f"{head} on {places[machine]}" if machine in places else place


def claim_tables(judged: pd.DataFrame, machines: Mapping[str, str]) -> dict[str, Any]:
    """Makes the tables of claims: decided with numbers, open with what a decision needs, unmeasured, and all."""
    own = dict(list(judged.groupby("text", sort=False)))
    found = {text: overall(each["verdict"]) for text, each in own.items()}
    counted = pd.Series(found).value_counts().reindex([HOLDS, FAILS, DEPENDS, OPEN, UNMEASURED]).dropna()
    decided = [
        (text, f"**{found[text]}**", _told(each, found[text]), _place(each["claim"].iloc[0]))
        for text, each in own.items()
        if found[text] in (HOLDS, FAILS, DEPENDS)
    ]
    notes = ["Of several comparisons, the weakest is shown. Places of the paper go by its labels."]
    notes += [*WORDS, *(f"{letter} is {machine}." for machine, letter in machines.items())]

    def left(verdict: str, notes: Sequence[str] = ()) -> pd.DataFrame:
        rows = [
            (text, _where(each), _needs(each), _place(each["claim"].iloc[0]))
            for text, each in own.items()
            if found[text] == verdict
        ]
        return table("", ("claim", "where", "it would take", "in the paper"), rows, notes)

    told = judged[judged["verdict"].isin([HOLDS, FAILS])]
    costs = [row.place for row in told.itertuples() if row.claim.kind == "costs"]
    devices = {", cpu": "processors", ", cuda": "GPUs"}
    return {
        "count": len(found),
        "devices": [name for device, name in devices.items() if any(device in place for place in costs)],
        "counts": ", ".join(f"{verdict} {count:.0f}" for verdict, count in counted.items()),
        "decided": table("", ("claim", "verdict", "numbers, and where", "in the paper"), decided, notes),
        "open": left(OPEN, () if decided else notes),
        "missing": left(UNMEASURED),
        "every": table("", _EVERY, map(_whole, judged.itertuples())),
    }


def _told(own: pd.DataFrame, verdict: str) -> str:
    """Describes the numbers at a claim's places, by verdict if these differ, and how many places tell nothing."""
    parts = []
    if own["group"].all():
        found = [(each, own[own["verdict"] == each]) for each in (HOLDS, FAILS, OPEN)]
        return ". ".join(f"**{each}:** {_counted(each, these, own)}" for each, these in found if len(these))
    for each in (HOLDS, FAILS):
        these = own[own["verdict"] == each]
        shown = [f"{_numbers(row)} ({row.short})" for row in these.itertuples()]
        if shown:
            parts.append((f"**{each}:** " if verdict == DEPENDS else "") + _some(shown))
    for each in (OPEN, UNMEASURED):
        if left := list(own.loc[own["verdict"] == each, "short"]):
            parts.append(f"**{each}:** {left[0] if len(left) == 1 else f'{len(left)} places'}")
    return ". ".join(parts)


def _where(own: pd.DataFrame) -> str:
    """Names a claim's places; of costs with their numbers, which no other table sums up."""
    named = (
        f"{row.short}: {_numbers(row)}" if row.numbers and row.claim.kind == "costs" else row.short
        for row in own.itertuples()
    )
    return "; ".join(named)


def _counted(verdict: str, these: pd.DataFrame, own: pd.DataFrame) -> str:
    """Counts places under a verdict by group, with the numbers of the first of each if it is decided."""
    parts = []
    for group, rows in these.groupby("group", sort=False):
        numbers = "" if verdict == OPEN else f" ({rows['numbers'].iloc[0]})"
        parts.append(f"{group}, {len(rows)} of {(own['group'] == group).sum()}{numbers}")
    return "; ".join(parts)


def _numbers(row: Any) -> str:
    """Returns the weakest comparison's numbers; of a claim on most comparisons also how many came out how."""
    return row.numbers if row.claim.rule.get("most") else row.numbers.rpartition("; weakest ")[-1]


def _some(words: Sequence[str]) -> str:
    """Names the first few, and counts the rest."""
    return "; ".join([*words[:_SHOWN], *([f"and {len(words) - _SHOWN} more"] if len(words) > _SHOWN else [])])


def _needs(own: pd.DataFrame) -> str:
    """Says what a decision on a claim would need at any of its places."""
    return "; ".join(dict.fromkeys(chain.from_iterable(own["takes"])))


def _place(claim: Claim) -> str:
    return f'{claim.source}: "{claim.quote}"' + (f". {claim.note}" if claim.note else "")


def _whole(each: Any) -> tuple[str, ...]:
    """Returns the row of a verdict, with the verdict of the paper's own numbers."""
    claim, theirs = each.claim, of_paper(each.claim)
    told = "; ".join(filter(None, ("" if claim.kind == "drift" else theirs.verdict, theirs.numbers)))
    return each.text, each.verdict, each.short, each.numbers, "; ".join(each.takes), told
