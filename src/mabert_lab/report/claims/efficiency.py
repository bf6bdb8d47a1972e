"""Claims on time and memory: ratios to MaBERT, and where it needs least, judged within the spread of the calls."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mabert_lab.report import paper
from mabert_lab.report.claims.verdict import UNMEASURED, Verdict, judge
from mabert_lab.report.efficiency.ratios import Ratio, Spread, has_bound, ratio
from mabert_lab.report.efficiency.results import NAMES, Condition, Results
from mabert_lab.report.efficiency.tables import DTYPES, PAPER, Rows
from mabert_lab.report.study.statistics import LEVEL

_WHAT = {"training": "training step", "latency": "latency", "memory": "peak memory"}


@dataclass(frozen=True)
class Claim:
    """That rivals need so many times what MaBERT needs.

    Attributes:
        text: In our words; ``{factor}`` is filled in with the paper's own number.
        source: Label in the paper.
        measure: One of `mabert_lab.report.efficiency.results.MEASURES`.
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
        return min(paper.headline(PAPER[self.measure], self.length, group, self.ours) for group in self.groups)


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
    """Every claim on efficiency under the paper's settings, on every machine, device and precision; where none took
    a measure at the claim's length under those, under the settings that it was taken under.
    """
    verdicts = []
    for claim in CLAIMS:
        text = claim.text.format(factor=f"{claim.in_paper:.2f}")
        told = [] if results is None else [_verdict(claim, text, results, each) for each in _places(claim, results)]
        verdicts += told or [Verdict(text, claim.source, "-", UNMEASURED, "", _times(claim))]
    return verdicts


def _places(claim: Claim, results: Results) -> list[Condition]:
    tables = {condition: results.table(condition, claim.measure) for condition in results.conditions()}
    found = [condition for condition, rows in tables.items() if rows]
    reach = [condition for condition in found if has_bound(tables[condition].get(claim.ours, {}).get(claim.length))]
    return [condition for condition in reach or found if condition.profile == "paper"] or reach or found


def _verdict(claim: Claim, text: str, results: Results, condition: Condition) -> Verdict:
    rows = results.table(condition, claim.measure)
    found = [ratio(rows, claim.length, group, claim.ours) for group in claim.groups]
    threshold = claim.in_paper if claim.quantified else 1.0
    signs = [_speaks(None if each is None else each.spread, threshold, len(found)) for each in found]
    settings = "" if condition.profile == "paper" else f"{condition.profile} settings, "
    on = f" on {condition.machine}" if condition.machine else ""
    place = f"{settings}{DTYPES.get(condition.dtype, condition.dtype)}, {condition.device}{on}"
    return Verdict(text, claim.source, place, judge(signs), _numbers(claim, rows, found), _times(claim))


def _speaks(spread: Spread | None, threshold: float, comparisons: int) -> int | None:
    """What a ratio says of being above a threshold: 1 for it, -1 against it, 0 neither; None if it was not measured.

    One that speaks against it was looked for among all.
    """
    if spread is None:
        return None
    if spread.low > threshold:
        return int(spread.chance <= 1 - LEVEL)
    return -int(spread.high < threshold and spread.chance <= (1 - LEVEL) / comparisons)


def _numbers(claim: Claim, rows: Rows, found: Sequence[Ratio | None]) -> str:
    """The least of the ratios with its spread, and who has no number."""
    asked = {name for group in (*claim.groups, (claim.ours,)) for name in group}
    lacking = [NAMES[name] for name in NAMES if name in asked and not has_bound(rows.get(name, {}).get(claim.length))]
    without = f"no number of {', '.join(lacking)}" if lacking else ""
    pairs = zip(found, claim.groups, strict=True)
    bounded = [(each.spread, each, group) for each, group in pairs if each is not None and each.spread is not None]
    if not bounded:
        return without
    spread, least, group = min(bounded, key=lambda each: each[0].low)
    middle = f"{least.value:.2f} times, " if least.counted == least.wanted else ""
    rivals = f", least against {NAMES[group[0]]}" if len(claim.groups) > 1 else ""
    high = "no bound" if math.isinf(spread.high) else f"{spread.high:.2f}"
    calls = "" if spread.calls is None else f", {spread.calls} calls or more"
    return "; ".join(filter(None, [f"{middle}within {spread.low:.2f} to {high}{rivals}{calls}", without]))


def _times(claim: Claim) -> str:
    return f"{claim.in_paper:.2f} times" + (", least of its rivals" if len(claim.groups) > 1 else "")
