"""Claims on padding: that it moves a text's vector without masks, the more the longer it is, and not with them.

The paper's figures show cosine distances without the side of the padding or what attention sees, so every situation
is judged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mabert_lab.report.claims.verdict import UNMEASURED, Verdict, judge
from mabert_lab.report.drift import SITUATIONS, STABLE, VECTORS

Curves = Mapping[str, Mapping[str, Sequence[float]]]
"""Distances in one situation by masking and kind of vector, at no padding and then at ever more of it."""

Sign = int | None
"""As `judge` takes them."""

_PAPERS = "fig:cola_cosdist_padlen"
_PARTS = "fig:cola_cosdist_decomp"
_STRONGLY = 0.1
"""What the paper's word is taken for, which gives no number."""
_IN_PAPER = "curves without numbers"


@dataclass(frozen=True)
class Claim:
    """Something that curves of drift show or do not.

    Attributes:
        text: In our words.
        source: Label in the paper.
        signs: What the curves of a situation say of it.
        told: The numbers behind that.
    """

    text: str
    source: str
    signs: Callable[[Curves], list[Sign]]
    told: Callable[[Curves], str]


def _farthest(curves: Curves) -> dict[str, float]:
    """The largest distance by masking, of any kind of vector."""
    return {masking: max(map(max, kinds.values())) for masking, kinds in curves.items()}


def _largest(*maskings: str) -> Callable[[Curves], str]:
    def told(curves: Curves) -> str:
        far = _farthest(curves)
        return _listed("cosine distance at most", (f"{name} {far[name]:.1e}" for name in maskings if name in far))

    return told


def _listed(what: str, numbers: Iterable[str]) -> str:
    told = ", ".join(numbers)
    return f"{what}: {told}" if told else ""


def _moves(curves: Curves) -> list[Sign]:
    far = _farthest(curves)
    return [None if "none" not in far else 1 if far["none"] > STABLE else -1]


def _grows(curves: Curves) -> list[Sign]:
    """Of each kind of vector: every longer padding moves it further; or the longest no further than the shortest."""
    signs: list[Sign] = []
    for _, *distances in curves.get("none", {}).values():
        if max(distances, default=0.0) <= STABLE or (len(distances) > 1 and distances[-1] <= distances[0]):
            signs.append(-1)
        else:
            signs.append(int(len(distances) > 1 and all(less < more for less, more in pairwise(distances))))
    return signs


def _ends(curves: Curves) -> str:
    kinds = {kind: distances for kind, distances in curves.get("none", {}).items() if len(distances) > 1}
    ends = (f"{VECTORS[kind]} {distances[1]:.1e} to {distances[-1]:.1e}" for kind, distances in kinds.items())
    return _listed("from the shortest padding to the longest", ends)


def _stays(curves: Curves) -> list[Sign]:
    far = _farthest(curves)
    return [None if "pre+post" not in far else 1 if far["pre+post"] <= STABLE else -1]


def _suppressed(curves: Curves) -> list[Sign]:
    """Nothing to suppress where nothing drifts; less than strongly is neither the one nor the other."""
    far = _farthest(curves)
    if not {"none", "pre+post"} <= far.keys():
        return [None]
    if far["none"] <= STABLE:
        return [0]
    return [int(far["pre+post"] <= _STRONGLY * far["none"]) - int(far["pre+post"] >= far["none"])]


def _ordered(curves: Curves) -> list[Sign]:
    """Nothing to order where every one of them keeps the vectors."""
    far = _farthest(curves)
    if not {"pre", "post", "pre+post"} <= far.keys():
        return [None]
    pre, post, both = (max(far[masking], STABLE) for masking in ("pre", "post", "pre+post"))
    if pre == post == both:
        return [0]
    return [1 if both <= post < pre else -1]


CLAIMS = (
    Claim(
        "Without masks in the Mamba layers, padding moves a text's vector",
        _PAPERS,
        _moves,
        _largest("none", "pre+post", "exact"),
    ),
    Claim("Without masks, every longer padding moves it further", _PAPERS, _grows, _ends),
    Claim(
        f"With the paper's two masks (pre and post) it moves strongly less: by {_STRONGLY:.0%} of that at most",
        _PAPERS,
        _suppressed,
        _largest("none", "pre+post"),
    ),
    Claim(
        "With the paper's two masks, padding leaves the vector where it is",
        _PAPERS,
        _stays,
        _largest("none", "pre+post", "exact"),
    ),
    Claim(
        "Masking after a block is better than before the scan, and both together are best",
        _PARTS,
        _ordered,
        _largest("pre", "post", "pre+post"),
    ),
)


def drift_sources() -> tuple[str, ...]:
    """Labels of the paper's figures."""
    return tuple(dict.fromkeys(claim.source for claim in CLAIMS))


def drift_verdicts(results: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Verdict]:
    """Every claim on drift in every situation, of trained weights; each once where nothing was measured.

    Args:
        results: File name and content of each; the names stand with the verdicts where there are several.
    """
    if not results:
        return [Verdict(claim.text, claim.source, "-", UNMEASURED, "", _IN_PAPER) for claim in CLAIMS]
    return [
        _verdict(claim, curves_of(result, *situation), f"padding {situation[0]}, attention {situation[1]}{more}")
        for claim in CLAIMS
        for file, result in results
        for situation in SITUATIONS
        for more in [f", {file}" if len(results) > 1 else ""]
    ]


def curves_of(result: Mapping[str, Any], side: str, attention: str) -> Curves:
    """The curves of trained weights in one situation."""
    return {
        row["masking"]: {kind: row[kind] for kind in VECTORS}
        for row in result["rows"]
        if (row["weights"], row["side"], row["attention"]) == ("trained", side, attention)
    }


def _verdict(claim: Claim, curves: Curves, place: str) -> Verdict:
    return Verdict(claim.text, claim.source, place, judge(claim.signs(curves)), claim.told(curves), _IN_PAPER)
