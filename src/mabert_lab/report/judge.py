"""The paper's claims (`claims.yaml`), and one judge for scores, costs and drift.

Each kind of evidence (`evidence.py`) is turned into comparisons, each of which supports its claim, refutes it, or
leaves it open.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HOLDS, FAILS, OPEN, UNMEASURED = "holds", "does not hold", "cannot be told", "not measured"
DEPENDS = "depends on where"
"""The verdict on a claim that holds in one place and fails in another."""

_CONTENT: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8"))
WORDS, METHOD, LIMITS = (tuple(line.strip() for line in _CONTENT[name]) for name in ("words", "method", "limits"))
"""Explanations of names and numbers, of how claims are judged, and of the numbers' limits."""


@dataclass(frozen=True, eq=False)
class Claim:
    """One claim of the paper.

    Attributes:
        kind: ``scores``, ``costs`` or ``drift``.
        claim: The claim in our words.
        source: Label of the paper's table, figure or section.
        quote: A few words of the paper, to find the place.
        note: Explanation of the claim itself; may be empty.
        rule: Fields by which it is judged, as explained in `claims.yaml`.
    """

    kind: str
    claim: str
    source: str
    quote: str
    note: str = ""
    rule: Mapping[str, Any] = field(default_factory=dict)


class Comparison(NamedTuple):
    """One statement of a claim, and the measurement of it.

    Attributes:
        name: What is compared.
        sign: 1 if as claimed, -1 if the opposite, 0 if undecided, None if not measured.
        outcome: The sign in a word or two.
        told: The numbers.
        value: Number by which the weakest of several is found.
        needs: What a decision would need: pairs of a kind of thing and which one.
    """

    name: str
    sign: int | None
    outcome: str = ""
    told: str = ""
    value: float = math.inf
    needs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """One claim, judged at one scale or under one condition.

    Attributes:
        claim: The claim.
        place: Where it was measured: size of the models, or length, precision and machine.
        verdict: ``HOLDS``, ``FAILS``, ``OPEN`` or ``UNMEASURED``.
        numbers: The numbers behind the verdict.
        takes: What a decision would need, one kind of thing each; empty if decided.
        group: Places that are counted together; empty if each is told by itself.
    """

    claim: Claim
    place: str
    verdict: str
    numbers: str = ""
    takes: tuple[str, ...] = ()
    group: str = ""


@cache
def claims() -> tuple[Claim, ...]:
    """Returns every claim, scores first."""
    return tuple(
        Claim(kind, raw["claim"], raw["source"], raw["quote"], raw.get("note", ""), raw)
        for kind in ("scores", "costs", "drift")
        for raw in _CONTENT[kind]
    )


def judge(signs: Iterable[int | None]) -> str:
    """Returns the verdict on a claim that needs all comparisons; see `Comparison` for the signs."""
    found = list(signs)
    if -1 in found:
        return FAILS
    if not found or None in found:
        return UNMEASURED
    return HOLDS if all(sign == 1 for sign in found) else OPEN


def overall(verdicts: Iterable[str]) -> str:
    """Combines the verdicts on a claim over its places: one place may decide what another leaves open."""
    found = set(verdicts)
    if {HOLDS, FAILS} <= found:
        return DEPENDS
    return next(each for each in (HOLDS, FAILS, OPEN, UNMEASURED) if each in found)


def verdict_on(claim: Claim, place: str, compared: Sequence[Comparison], together: int = 1) -> Verdict:
    """Judges a claim; in each group of `together` comparisons, the majority decides."""
    groups = [compared[first : first + together] for first in range(0, len(compared), together)]
    signs = [_majority([each.sign for each in group]) for group in groups]
    verdict = judge(signs)
    measured = [each for each in compared if each.sign is not None]
    counts = Counter(each.outcome for each in measured) | Counter({"missing": len(compared) - len(measured)})
    shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count and outcome)
    weakest = min(measured, key=lambda each: (each.sign, each.value), default=None)
    numbers = "" if weakest is None else " ".join(filter(None, (weakest.told, weakest.name)))
    if weakest is not None and len(compared) > 1 and shown:
        numbers = f"{shown}; weakest {numbers}"
    needs: dict[str, dict[str, None]] = {}
    undecided = (each for sign, group in zip(signs, groups, strict=True) if sign in (0, None) for each in group)
    for kind, which in [need for each in undecided if each.sign in (0, None) for need in each.needs]:
        needs.setdefault(kind, {})[which] = None
    takes = tuple(f"{kind}: {', '.join(which)}" for kind, which in needs.items())
    return Verdict(claim, place, verdict, numbers, takes if verdict in (OPEN, UNMEASURED) else ())


def _majority(signs: Sequence[int | None]) -> int | None:
    """Returns the sign of the majority; a single comparison keeps its sign."""
    needed = len(signs) // 2 + 1
    if signs.count(1) >= needed:
        return 1
    if len(signs) - signs.count(-1) < needed:
        return -1
    return None if None in signs else 0
