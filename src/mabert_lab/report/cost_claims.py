"""The claims that memory and times decide."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from mabert_lab.bench.bounds import chance_apart
from mabert_lab.report.costs import NAMES, Ratio, Results, ratio, spans
from mabert_lab.report.paper import UNMEASURED, Claim, Comparison, Needs, Verdict, verdict_on
from mabert_lab.report.studies import LEVEL

ALIKE = 0.01  # relative difference of peak memory that counts, and share of it that growth must be
SUBSTANTIAL, SLIGHT = 1.25, 1.1  # from the first ratio on rivals need substantially more, below the second they do not
LEAST_CALLS = 4  # minimum timed calls of each model for a decision


def of_results(claim: Claim, results: Results) -> Iterator[Verdict]:
    """Yields a verdict for each machine, device and precision in the paper's settings, over all lengths of the claim;
    if none can be judged, in any settings. Places that lack a number are told only if no place can be judged."""
    rule = claim.rule
    found = {each: tables[rule["measure"]] for each, tables in results.tables.items() if rule["measure"] in tables}
    reach = {
        each: rows
        for each, rows in found.items()
        if any(len(spans(rows, length, rule["less"], rule.get("from"))) for length in rule["at"])
    }
    asked = list(product(rule["at"], rule["less"], rule["than"]))
    start = f"{rule['from']:,} to " if "from" in rule else "at "
    length = f"{start}{rule['at'][0]:,} tokens, " if len(rule["at"]) == 1 else ""
    every = []
    for condition, rows in (reach or found).items():
        compared = [_held(rows, rule, *each, of=len(asked)) for each in asked]
        settings = "" if condition.profile == "paper" else f"{condition.profile} settings, "
        every.append((condition, verdict_on(claim, f"{length}{settings}{condition.place}", compared)))
    told = [(each, verdict) for each, verdict in every if verdict.verdict != UNMEASURED] or every
    papers = [verdict for each, verdict in told if each.profile == "paper"]
    yield from papers or [verdict for _, verdict in told]


def _held(
    rows: pd.DataFrame, rule: Mapping[str, Any], length: int, model: str, group: Sequence[str], of: int
) -> Comparison:
    """Compares the ratio of the rivals' cost to a model's with what the claim needs."""
    start = rule.get("from")
    who = NAMES[group[0]] if len(group) == 1 else f"the {len(group)} rivals"
    found = ratio(rows, length, group, model, start)
    if found is None or found.span is None:
        lacking = []
        for each, at in product((model, *group), (start, length)):
            if at is not None and not spans(rows, at, [each]):
                out_of_memory = rows["status"].get((each, at)) == "out of memory"
                lacking.append(("more memory for" if out_of_memory else "a number of", f"{NAMES[each]} at {at:,}"))
        return Comparison(who, None, needs=lacking)
    value = "" if found.value is None else f" {_times(found.value)}" if found.at_least is None else " at least"
    low, high = map(_times, found.span)
    spread = "" if low == high else f" [{low}, {high}]"
    at = f" at {length:,} tokens" if len(rule["at"]) > 1 else ""
    calls = "" if found.calls is None else f", {found.calls} calls or more"
    sign, needs = _parted(found, found.span, rule, of)
    outcome = ("undecided", "as claimed", "the other way")[sign]
    numbers = f"{who}{value}{spread} times {NAMES[model]}{at}{calls}"
    return Comparison("", sign, outcome, numbers, found.span[0], needs)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "\u221e"


def _parted(found: Ratio, span: tuple[float, float], rule: Mapping[str, Any], of: int) -> tuple[int, Needs]:
    """Returns whether a ratio is as large as claimed, as a sign, and what a decision would need. A time decides if its
    bounds do, and so few calls would part by chance in less than 5 % of cases. A ratio that refutes a claim is
    corrected for the number of comparisons."""
    low, high = span
    memory, substantial, factor = rule["measure"] == "memory", rule.get("substantial", False), rule.get("factor")
    if substantial:
        is_above, is_below = low >= SUBSTANTIAL, high < SLIGHT
    elif factor:
        is_above, is_below = round(low, 2) >= factor, round(high, 2) < factor
    else:
        is_above, is_below = low > 1, high < 1
    if memory and found.share < ALIKE:
        return 0, [("lengths", f"over which memory grows by {ALIKE:.0%} or more")]
    if memory and not substantial and abs(low - 1) < ALIKE:
        return 0, [("nothing", f"they differ by less than {ALIKE:.0%}")]
    if not is_above and not is_below:
        word = ("the paper's definition", 'how much is "substantially"')
        return 0, [word if memory else ("timings", "more, or steadier ones")]
    chance = found.chance * (of if is_below else 1)
    if chance < 1 - LEVEL and (found.calls is None or found.calls >= LEAST_CALLS):
        return (1 if is_above else -1), []
    few, many = least_calls(of)
    each = f"{few} of each model or more" if few == many else f"{few} of one model and {many} of the other, or more"
    return 0, [("calls", each)]


def least_calls(comparisons: int = 1) -> tuple[int, int]:
    """Returns the minimum calls of each of two models that decide, if one of so many comparisons refutes a claim."""
    pairs = ((calls, more) for more in range(LEAST_CALLS, 100) for calls in (more - 1, more) if calls >= LEAST_CALLS)
    return next(pair for pair in pairs if comparisons * chance_apart(*pair) < 1 - LEVEL)
