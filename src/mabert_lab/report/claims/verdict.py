"""What is said of a claim, and the table of all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mabert_lab.report.grid import Cell, Grid

HOLDS = "holds"
FAILS = "does not hold"
OPEN = "cannot be told"
UNMEASURED = "not measured"

_TONES = {HOLDS: "good", FAILS: "bad"}


@dataclass(frozen=True)
class Verdict:
    """One claim, judged at one scale or under one condition.

    Attributes:
        claim: In our words.
        source: Label of the table, figure or section of the paper.
        place: Where it was measured: scale and budget, or machine and precision.
        verdict: ``HOLDS``, ``FAILS``, ``OPEN`` or ``UNMEASURED``.
        numbers: Those behind the verdict.
        in_paper: What the paper's own numbers say of the same.
    """

    claim: str
    source: str
    place: str
    verdict: str
    numbers: str
    in_paper: str


def judge(signs: Iterable[int | None]) -> str:
    """The verdict on a claim that needs every one of some comparisons.

    Args:
        signs: Of each comparison: 1 where it is told to be in the claimed direction, -1 where in the other, 0 where it
            cannot be told, None where it was not measured.
    """
    found = list(signs)
    if -1 in found:
        return FAILS
    if not found or None in found:
        return UNMEASURED
    return HOLDS if all(sign == 1 for sign in found) else OPEN


def claims_table(verdicts: Sequence[Verdict]) -> Grid:
    """All of them, in the order given."""
    rows = [
        (
            Cell(each.claim),
            Cell(each.verdict, bold=each.verdict in _TONES, tone=_TONES.get(each.verdict, "")),
            Cell(each.place),
            Cell(each.numbers),
            Cell(each.in_paper),
            Cell(each.source),
        )
        for each in verdicts
    ]
    head = ("claim", "verdict", "measured at", "numbers here", "the paper's numbers", "source")
    return Grid("claims", "The paper's claims and what was measured of them", head, tuple(rows))
