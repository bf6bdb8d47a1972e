"""Judges claims by memory and times: ratios of models, decided by their spread and number of calls."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from mabert_lab.report.efficiency import DTYPES, NAMES, Ratio, Results, ratio, spans
from mabert_lab.report.judge import Claim, Comparison, Verdict, verdict_on
from mabert_lab.report.statistics import LEVEL

ALIKE = 0.01
"""Relative difference of peak memory that counts."""

LEAST_CALLS = 4
"""Minimum timed calls of each model for a decision."""


def of_results(claim: Claim, results: Results) -> Iterator[Verdict]:
    """Yields a verdict for each of the claim's lengths, and each machine, device and precision in the paper's settings;
    if none of those reached the length, in the settings that did."""
    rule = claim.rule
    asked = list(product(rule["less"], rule["than"]))
    found = {each: tables[rule["measure"]] for each, tables in results.tables.items() if rule["measure"] in tables}
    for length in rule["at"]:
        lengths = (length, rule.get("from", length))
        known = [each for each, rows in found.items() if all(len(spans(rows, at, rule["less"])) for at in lengths)]
        reach = known or list(found)
        for condition in [each for each in reach if each.profile == "paper"] or reach:
            settings = "" if condition.profile == "paper" else f"{condition.profile} settings, "
            on = f" on {condition.machine}" if condition.machine else ""
            dtype = DTYPES.get(condition.dtype, condition.dtype)
            compared = [_held(found[condition], rule, *each, length, len(asked)) for each in asked]
            yield verdict_on(claim, f"at {length:,} tokens, {settings}{dtype}, {condition.device}{on}", compared)


def _held(
    rows: pd.DataFrame, rule: Mapping[str, Any], model: str, group: Sequence[str], length: int, of: int
) -> Comparison:
    """Compares the ratio of the rivals' cost to a model's with a factor or 1."""
    start, factor = rule.get("from"), rule.get("factor")
    who = NAMES[group[0]] if len(group) == 1 else f"the {len(group)} rivals"
    found = ratio(rows, length, group, model, start)
    if found is None or found.span is None:
        lacking = [
            f"{NAMES[each]} at {at:,}"
            for each in (model, *group)
            for at in (start, length)
            if at is not None and each not in spans(rows, at, [each]).index
        ]
        return Comparison(who, None, needs=tuple(("a number of", each) for each in lacking))
    value = "at least" if found.value is None or found.at_least is not None else f"{found.value:.2f}"
    low, high = (f"{end:.2f}" if math.isfinite(end) else "no bound" for end in found.span)
    spread = "" if low == high else f" [{low}, {high}]"
    calls = "" if found.rounds is None else f", {min(found.rounds)} calls or more"
    sign, needs = _parted(found, found.span, factor, of, alike=rule["measure"] == "memory")
    outcome = ("not told apart", "as claimed", "the other way")[sign]
    return Comparison("", sign, outcome, f"{who} {value}{spread} times {NAMES[model]}{calls}", found.span[0], needs)


def _parted(
    found: Ratio, span: tuple[float, float], factor: float | None, of: int, alike: bool
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Decides whether a ratio is above a factor or 1; returns the sign, and what a decision would need.

    It is a permutation test: if two models were equally fast, only one of all assignments of calls to models would put
    all calls of one first. A rival that refutes a claim is corrected for the number of comparisons.
    """
    low, high = span
    least = 1.0 if factor is None else factor
    is_above = low > least if factor is None else round(low, 2) >= least
    is_below = high < least if factor is None else round(high, 2) < least
    if alike and factor is None and abs(low - 1) < ALIKE:
        return 0, (("nothing", f"they differ by less than {ALIKE:.0%}"),)
    if not is_above and not is_below:
        return 0, (("calls that vary less", "their spreads overlap"),)
    needed = least_calls(of if is_below else 1)
    if found.rounds is None or (
        min(found.rounds) >= LEAST_CALLS
        and math.comb(sum(found.rounds), found.rounds[0]) >= math.comb(sum(needed), needed[0])
    ):
        return (1 if is_above else -1), ()
    few, many = needed
    each = f"{few} of each model" if few == many else f"{few} of one model and {many} of the other"
    return 0, (("rounds", each),)


def least_calls(comparisons: int = 1) -> tuple[int, int]:
    """Returns the minimum calls of each of two models at which disjoint ranges are significant."""
    pairs = ((calls, more) for more in range(LEAST_CALLS, 100) for calls in (more - 1, more) if calls >= LEAST_CALLS)
    return next((a, b) for a, b in pairs if comparisons / math.comb(a + b, a) < 1 - LEVEL)
