"""Judges every claim by measurements, and by the paper's own tables as evidence of the same form."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache

import pandas as pd

from mabert_lab.report import paper
from mabert_lab.report.drift import Drifts
from mabert_lab.report.efficiency import MAY_LACK, MEASURES, Condition, Results, Source
from mabert_lab.report.evidence_costs import of_results
from mabert_lab.report.evidence_drift import of_drifts
from mabert_lab.report.evidence_scores import of_studies
from mabert_lab.report.judge import UNMEASURED, Claim, Verdict, claims
from mabert_lab.report.studies import QUESTIONS, Arm, Column, Study


def verdicts(studies: Sequence[Study], results: Results | None, drifts: Drifts) -> list[Verdict]:
    """Judges every claim at every place where it was measured, or once if nowhere."""
    return [each for claim in claims() for each in verdicts_on(claim, studies, results, drifts)]


def verdicts_on(claim: Claim, studies: Sequence[Study], results: Results | None, drifts: Drifts) -> list[Verdict]:
    """Judges one claim; see `verdicts`."""
    if claim.kind == "scores":
        own = list(of_studies(claim, studies))
        needs = "a study: " + " or ".join(f"`mabert study {name}`" for name in claim.rule["asks"])
    elif claim.kind == "costs":
        own, needs = [] if results is None else list(of_results(claim, results)), "`mabert bench models`"
    else:
        own, needs = list(of_drifts(claim, drifts)), "`mabert study drift`"
    return own or [Verdict(claim, "-", UNMEASURED, takes=(needs,))]


@cache
def of_paper(claim: Claim) -> Verdict:
    """Judges a claim by the paper's own tables."""
    if claim.kind == "drift":
        return Verdict(claim, "the paper", UNMEASURED, "curves without numbers")
    (verdict,) = (
        of_results(claim, papers_results())
        if claim.kind == "costs"
        else of_studies(claim, [papers_study(claim.rule["asks"][-1])], exact=True)
    )
    return verdict


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
    return Study(question, question, label, "", reference, "the paper", (), {}, columns, arms)


def papers_results() -> Results:
    """Returns the paper's memory and times as results without a spread."""
    source = Source("paper", datetime.min.replace(tzinfo=UTC), {})
    printed = {measure: paper.TABLES[measure].mean.stack() for measure in MEASURES}
    rows = pd.concat(printed, names=["measure", "model", "length"]).rename("value").reset_index()
    about = Condition("paper", "bfloat16", "cuda")._asdict() | dict.fromkeys(("at_least", *MAY_LACK), math.nan)
    return Results(rows.assign(**about, status="measured", source=[source] * len(rows)), {}, (source,))
