"""Claims on padding: that it moves a text's vector without masks, and not with them.

The paper's figures show cosine distances without the side of the padding or what attention sees, so every situation
is judged.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mabert.report.claims.verdict import UNMEASURED, Verdict, judge
from mabert.report.drift import SITUATIONS, STABLE, VECTORS

_PAPERS = "fig:cola_cosdist_padlen"
_PARTS = "fig:cola_cosdist_decomp"
CLAIMS = (
    ("Without masks in the Mamba layers, padding moves a text's vector", _PAPERS),
    ("With the paper's two masks (pre and post), padding leaves the vector where it is", _PAPERS),
    ("Masking after a block is better than before the scan, and both together are best", _PARTS),
)
_CURVES = "curves without numbers"


def drift_sources() -> tuple[str, ...]:
    """Labels of the paper's figures."""
    return tuple(dict.fromkeys(source for _, source in CLAIMS))


def drift_verdicts(results: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Verdict]:
    """Every claim on drift in every situation, of trained weights; each once where nothing was measured.

    Args:
        results: File name and content of each; the names stand with the verdicts where there are several.
    """
    found = [
        verdict
        for file, result in results
        for situation in SITUATIONS
        for verdict in _judged(result, situation, f", {file}" if len(results) > 1 else "")
    ]
    if not found:
        return [Verdict(text, source, "-", UNMEASURED, "", _CURVES) for text, source in CLAIMS]
    return sorted(found, key=lambda each: [text for text, _ in CLAIMS].index(each.claim))


def furthest(result: Mapping[str, Any], side: str, attention: str) -> dict[str, float]:
    """By masking, how far trained weights let any kind of vector drift at most."""
    return {
        row["masking"]: max(max(row[vector]) for vector in VECTORS)
        for row in result["rows"]
        if (row["weights"], row["side"], row["attention"]) == ("trained", side, attention)
    }


def _judged(result: Mapping[str, Any], situation: tuple[str, str], file: str) -> list[Verdict]:
    far = furthest(result, *situation)
    signs = (_moves(far), _stays(far), _ordered(far))
    shown = ("none", "pre+post", "exact"), ("none", "pre+post", "exact"), ("pre", "post", "pre+post")
    place = f"padding {situation[0]}, attention {situation[1]}{file}"
    return [
        Verdict(text, source, place, judge([sign]), _told(far, names), _CURVES)
        for (text, source), sign, names in zip(CLAIMS, signs, shown, strict=True)
    ]


def _moves(far: Mapping[str, float]) -> int | None:
    return None if "none" not in far else 1 if far["none"] > STABLE else -1


def _stays(far: Mapping[str, float]) -> int | None:
    return None if "pre+post" not in far else 1 if far["pre+post"] <= STABLE else -1


def _ordered(far: Mapping[str, float]) -> int | None:
    """Nothing to order where every one of them keeps the vectors."""
    if not {"pre", "post", "pre+post"} <= far.keys():
        return None
    pre, post, both = (max(far[masking], STABLE) for masking in ("pre", "post", "pre+post"))
    if pre == post == both:
        return 0
    return 1 if both <= post < pre else -1


def _told(far: Mapping[str, float], names: Iterable[str]) -> str:
    told = ", ".join(f"{name} {far[name]:.1e}" for name in names if name in far)
    return f"cosine distance at most: {told}" if told else ""
