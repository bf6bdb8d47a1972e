"""Claims on time and memory: ratios to MaBERT, and where it needs least.

Medians are compared within the spread of the fastest and the slowest call: a ratio lies between the rival's fastest
over MaBERT's slowest and the rival's slowest over MaBERT's fastest. Memory has no spread.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from mabert.report import paper
from mabert.report.claims.verdict import UNMEASURED, Verdict, judge
from mabert.report.efficiency.results import NAMES, Condition, Results, Row, factor
from mabert.report.efficiency.tables import DTYPES, PAPER, Rows

_WHAT = {"training": "training step", "latency": "latency", "memory": "peak memory"}


class Ratio(NamedTuple):
    """Rivals over MaBERT.

    Attributes:
        low: The least that the spreads allow.
        middle: Of the medians; None where a rival is only known to be slower than a limit.
        high: The most that the spreads allow.
    """

    low: float
    middle: float | None
    high: float


@dataclass(frozen=True)
class Claim:
    """That rivals need so many times what MaBERT needs.

    Attributes:
        text: In our words; ``{factor}`` is filled in with the paper's own number.
        source: Label in the paper.
        measure: One of `mabert.report.efficiency.results.MEASURES`.
        length: Tokens.
        groups: Rivals; within a group their mean is taken, and every group must need more.
        quantified: Whether the paper's factor is claimed, or only that rivals need more.
        ours: The model that needs less.
    """

    text: str
    source: str
    measure: str
    length: int
    groups: tuple[tuple[str, ...], ...]
    quantified: bool = False
    ours: str = "mabert"

    @property
    def in_paper(self) -> float:
        """The least factor of the paper's own numbers."""
        table = PAPER[self.measure].rows
        ours = table[self.ours][self.length]
        return min(fmean(table[rival][self.length] for rival in group) / ours for group in self.groups)


def _claims() -> Iterator[Claim]:
    five, each = (paper.BASELINES,), tuple((rival,) for rival in paper.BASELINES)
    for measure in ("training", "latency"):
        source, what = PAPER[measure].label, _WHAT[measure]
        told = f"At 4,096 tokens the {what} of {{rivals}} is at least {{{{factor}}}} times MaBERT's"
        yield Claim(told.format(rivals="the five baselines on average"), source, measure, 4096, five, True)
        yield Claim(told.format(rivals="BERT alone"), source, measure, 4096, (("bert",),), True)
        for length in (2048, 4096):
            yield Claim(f"MaBERT has the lowest {what} at {length:,} tokens", source, measure, length, each)
    others = (*(group for group in each if group != ("bert",)), ("mabert",))
    for length in (128, 512):
        text = f"BERT has the lowest latency at {length:,} tokens"
        yield Claim(text, "fig:eff_scaling", "latency", length, others, ours="bert")
    text = "BERT needs less memory than MaBERT at 128 tokens"
    yield Claim(text, "fig:eff_scaling", "memory", 128, (("mabert",),), ours="bert")
    text = "MaBERT needs less memory than DeBERTa at 2,048 tokens"
    yield Claim(text, PAPER["memory"].label, "memory", 2048, (("deberta",),))
    text = "MaBERT needs less memory than BigBird and DeBERTa at 4,096 tokens"
    yield Claim(text, "fig:eff_scaling", "memory", 4096, (("bigbird",), ("deberta",)))


CLAIMS = tuple(_claims())


def efficiency_verdicts(results: Results | None) -> list[Verdict]:
    """Every claim on efficiency under the paper's settings, on every device and precision; where a measure was not
    taken under those, under the settings that it was.
    """
    verdicts = []
    for claim in CLAIMS:
        text = claim.text.format(factor=f"{claim.in_paper:.2f}")
        told = [] if results is None else [_verdict(claim, text, results, each) for each in _places(claim, results)]
        verdicts += told or [Verdict(text, claim.source, "-", UNMEASURED, "", _times(claim))]
    return verdicts


def ratio(rows: Rows, length: int, rivals: Sequence[str], ours: str = "mabert") -> Ratio | None:
    """The mean of rivals over one model, with what their spreads allow; None where one of them has no number."""
    mine = rows.get(ours, {}).get(length)
    own = _span(mine)
    turns = mine if ours == "mabert" else None
    spans = [_span(rows.get(rival, {}).get(length), turns) for rival in rivals]
    if own is None or own.middle is None or any(span is None for span in spans):
        return None
    known = [span for span in spans if span is not None]
    middles = [span.middle for span in known if span.middle is not None]
    middle = fmean(middles) / own.middle if len(middles) == len(known) else None
    return Ratio(fmean(span.low for span in known) / own.high, middle, fmean(span.high for span in known) / own.low)


def _places(claim: Claim, results: Results) -> list[Condition]:
    found = [condition for condition in results.conditions() if results.table(condition, claim.measure)]
    return [condition for condition in found if condition.profile == "paper"] or found


def _span(row: Row | None, beside: Row | None = None) -> Ratio | None:
    """What a row lies between, scaled to the turns of the one that it is held against where it had others; of one that
    was too slow, only the lower end is known."""
    if row is not None and row.value is not None:
        low, high = row.numbers.get("fastest_ms", row.value), row.numbers.get("slowest_ms", row.value)
        scale = factor(row, beside)
        return Ratio(scale * low, scale * row.value, scale * high)
    if row is not None and row.limit is not None and row.measure != "memory":
        return Ratio(1000 * row.limit, None, math.inf)
    return None


def _verdict(claim: Claim, text: str, results: Results, condition: Condition) -> Verdict:
    rows = results.table(condition, claim.measure)
    found = [ratio(rows, claim.length, group, claim.ours) for group in claim.groups]
    threshold = claim.in_paper if claim.quantified else 1.0
    signs = [None if each is None else int(each.low > threshold) - int(each.high < threshold) for each in found]
    settings = "" if condition.profile == "paper" else f"{condition.profile} settings, "
    place = f"{settings}{DTYPES.get(condition.dtype, condition.dtype)}, {condition.device}"
    return Verdict(text, claim.source, place, judge(signs), _numbers(claim, rows, found), _times(claim))


def _numbers(claim: Claim, rows: Rows, found: Sequence[Ratio | None]) -> str:
    """The least of the ratios with its spread, and who has no number."""
    asked = {name for group in (*claim.groups, (claim.ours,)) for name in group}
    lacking = [NAMES[name] for name in NAMES if name in asked and _span(rows.get(name, {}).get(claim.length)) is None]
    without = f"no number of {', '.join(lacking)}" if lacking else ""
    measured = [(each, group) for each, group in zip(found, claim.groups, strict=True) if each is not None]
    if not measured:
        return without
    least, group = min(measured, key=lambda each: each[0].low)
    middle = "" if least.middle is None else f"{least.middle:.2f} times, "
    rivals = f", least against {NAMES[group[0]]}" if len(claim.groups) > 1 else ""
    high = "no bound" if math.isinf(least.high) else f"{least.high:.2f}"
    return "; ".join(filter(None, [f"{middle}within {least.low:.2f} to {high}{rivals}", without]))


def _times(claim: Claim) -> str:
    return f"{claim.in_paper:.2f} times" + (", least of its rivals" if len(claim.groups) > 1 else "")
