"""Judges claims by the drift of trained weights under padding."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

from mabert_lab.report.drift import MASKINGS, SITUATIONS, STABLE, VECTORS, Drifts, farthest, names_of, written
from mabert_lab.report.judge import Claim, Comparison, Verdict, verdict_on

STRONGLY, HARDLY = 0.1, 0.5
"""Shares of the drift without masks. Masks suppress drift strongly if at most the first is left, and do not if more
than the second is."""

LEAST = 16
"""Minimum texts for a decision."""

Curves = Mapping[str, Mapping[str, Any]]
"""Rows of one situation by masking: for each kind of vector, the distances at increasing padding, starting at none."""


def of_drifts(claim: Claim, drifts: Drifts) -> Iterator[Verdict]:
    """Yields a verdict for each model and situation."""
    for name, (_, result) in zip(names_of(drifts), drifts, strict=True):
        trained = [row for row in result["rows"] if row["weights"] == "trained"]
        scans = dict.fromkeys(row["direction"] for row in trained)
        for scan, (side, attention) in product(scans, SITUATIONS):
            where = (scan, side, attention)
            rows = [row for row in trained if (row["direction"], row["side"], row["attention"]) == where]
            papers = where == ("forward", *SITUATIONS[0])
            place = f"{scan} scan, padding {side}, attention {attention}" + ", the paper's text" * papers
            place += f", {name}" if len(drifts) > 1 else ""
            group = "in the paper's text" if papers else f"attention {attention}"
            verdict = verdict_on(claim, place, _compared(claim, {row["masking"]: row for row in rows}, result["texts"]))
            yield replace(verdict, group=group)


def _compared(claim: Claim, curves: Curves, texts: int) -> list[Comparison]:
    """Compares the curves of one situation by the claim's rule; too few texts decide nothing."""
    rule = claim.rule["rule"]
    compared = _grows(curves) if rule == "grows" else [_farthest(rule, curves)]
    if texts >= LEAST:
        return compared
    needs = (("texts", f"{LEAST} at least, not {texts}"),)
    return [each if each.sign is None else each._replace(sign=0, value=0, needs=needs) for each in compared]


def _farthest(rule: str, curves: Curves) -> Comparison:
    """Compares the largest distances of any vector under a rule's maskings."""
    maskings, sign, need = _RULES[rule]
    if not set(maskings) <= curves.keys():
        return Comparison("", None, needs=(("curves of", ", ".join(maskings)),))
    far = {masking: farthest(curves[masking]) for masking in maskings}
    told = ", ".join(f"{MASKINGS[masking][0]} {written(distance)}" for masking, distance in far.items())
    needs = ("a situation", "in which padding moves anything") if max(far.values()) <= STABLE else need
    return Comparison("", sign(*far.values()), told=told, needs=(needs,))


def _grows(curves: Curves) -> list[Comparison]:
    """Checks by vector whether longer padding always moves it further, or the longest no further than the shortest."""
    if "none" not in curves:
        return [Comparison("", None, needs=(("curves of", "none"),))]
    signs, ends = [], []
    for kind, title in VECTORS.items():
        _, *distances = curves["none"][kind]
        falls = len(distances) > 1 and distances[-1] <= distances[0]
        rises = len(distances) > 1 and all(less < more for less, more in pairwise(distances))
        signs.append(-1 if falls or max(distances, default=0.0) <= STABLE else int(rises))
        ends.append(f"{title} {written(distances[0])} to {written(distances[-1])}" if distances else "")
    told = ", ".join(ends)
    needs = (("curves", "of more lengths or texts"),)
    return [Comparison("", sign, told=told, value=sign, needs=needs) for sign in signs]


def _moves(none: float) -> int:
    return 1 if none > 10 * STABLE else -int(none <= STABLE)


def _suppressed(none: float, both: float) -> int:
    """Returns the sign of strong suppression: 0 if nothing drifts, or if a tenth to half of the drift is left."""
    return 0 if none <= STABLE else int(both <= STRONGLY * none) - int(both > HARDLY * none)


def _ordered(*far: float) -> int:
    """Returns the sign of the claimed order; 0 if none of the maskings drifts."""
    pre, post, both = (max(each, STABLE) for each in far)
    return 0 if pre == post == both else 1 if both <= post < pre else -1


_RULES: dict[str, tuple[tuple[str, ...], Callable[..., int], tuple[str, str]]] = {
    "moves": (("none",), _moves, ("a distance", "farther from rounding")),
    "suppressed": (("none", "pre+post"), _suppressed, ("the paper's word", "how much is strongly")),
    "ordered": (("pre", "post", "pre+post"), _ordered, ("curves", "farther from rounding")),
}
"""Rules of claims on drift except growth: the maskings compared, the sign, and what a decision would need if padding
moves something."""
