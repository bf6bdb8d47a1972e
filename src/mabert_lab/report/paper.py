"""The paper's numbers (`paper.yaml`) and claims (`claims.yaml`), and one judge for scores, costs and drift.

Each kind of evidence (`claims.py`, `drift.py`) is turned into comparisons, each of which supports its claim, refutes
it, or leaves it open.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd
import yaml

from mabert_lab.report.document import FLAG, table, with_best

_CONTENT: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
MODELS: dict[str, str] = _CONTENT["models"]  # the paper's models in the order of its tables, with their printed names
BASELINES = tuple(model for model in MODELS if model != "mabert")

TASKS: dict[str, dict[str, str]] = _CONTENT["tasks"]
"""Title and metric of the score columns, in order; MRPC and QQP are F1, although the text also names accuracy."""

NAMES: dict[str, str] = {**MODELS, "modernbert": "ModernBERT", **_CONTENT["arms"]}
"""Printed names of models and arms, also of ModernBERT, which the paper lacks; a pattern is its own name."""

RECIPE: str = _CONTENT["recipe"]  # pretraining of the paper's models
MACHINE: str = _CONTENT["machine"]  # machine of the memory and time tables


@dataclass(frozen=True)
class Table:
    label: str  # in the paper's source
    title: str  # description of the numbers
    unit: str  # unit of every cell, as the paper writes it
    mean: pd.DataFrame  # the numbers, with models or arms as rows and tasks or lengths as columns
    std: pd.DataFrame | None = None  # standard deviations over five seeds; None for memory and time
    flag: str = ""  # warning to show with the numbers; empty if there is none

    def average(self, row: str, columns: Sequence[str] = tuple(TASKS)) -> float:
        """Averages a row's numbers over some columns; KeyError if there is no such row or column."""
        return fmean(self.mean.loc[row, list(columns)])


def _table(raw: dict[str, Any]) -> Table:
    about = {name: raw[name] for name in ("label", "title", "unit")} | {"flag": raw.get("flag", "")}
    if "columns" in raw:
        return Table(**about, mean=pd.DataFrame.from_dict(raw["rows"], orient="index", columns=raw["columns"]))
    rows = pd.DataFrame(raw["rows"]).T
    mean, std = (pd.DataFrame(dict(rows[part]), index=list(TASKS)).T for part in ("mean", "std"))
    return Table(**about, mean=mean, std=std)


TABLES: dict[str, Table] = {name: _table(raw) for name, raw in _CONTENT["tables"].items()}
BY_SHARE = {share: TABLES[f"glue_{100 * share:g}"] for share in (0.1, 0.25, 0.5, 1.0)}  # by share of the steps

HOLDS, FAILS, OPEN, UNMEASURED = "holds", "does not hold", "cannot be told", "not measured"
DEPENDS = "depends on where"  # the verdict on a claim that holds in one place and fails in another

_RULES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8"))

LEARNT_BELOW: float = _RULES["learnt_below"]  # held-out loss in nats a masked token, if a study names none

WORDS, METHOD, LIMITS = (
    tuple(line.format(learnt_below=LEARNT_BELOW) for line in _RULES[name]) for name in ("words", "method", "limits")
)
"""Explanations of names and numbers, of how claims are judged, and of the numbers' limits."""


@dataclass(frozen=True, eq=False)
class Claim:
    kind: str  # ``scores``, ``costs`` or ``drift``
    claim: str  # in our words
    source: str  # label of the paper's table, figure or section
    quote: str  # a few words of the paper, to find the place
    note: str  # explanation of the claim itself; may be empty
    rule: Mapping[str, Any]  # fields by which it is judged, as explained in `claims.yaml`


Needs = Sequence[tuple[str, str]]  # what a decision would need: pairs of a kind of thing and which one


class Comparison(NamedTuple):
    """One statement of a claim, and the measurement of it."""

    name: str  # what is compared
    sign: int | None  # 1 if as claimed, -1 if the opposite, 0 if undecided, None if not measured
    outcome: str = ""  # the sign in a word or two
    numbers: str = ""
    value: float = math.inf  # number by which the weakest of several is found
    needs: Needs = ()
    unlearnt: tuple[tuple[str, str], ...] = ()  # models of it that hardly learnt: pairs of the name and how that shows


@dataclass(frozen=True)
class Verdict:
    """One claim, judged at one scale or under one condition."""

    claim: Claim
    place: str  # where it was measured: size of the models, or length, precision and machine
    verdict: str  # ``HOLDS``, ``FAILS``, ``OPEN`` or ``UNMEASURED``; empty for the paper's curves
    numbers: str = ""  # the numbers behind the verdict
    takes: tuple[str, ...] = ()  # what a decision would need, one kind of thing each; empty if decided
    group: str = ""  # places that are counted together; empty if each is told by itself
    mark: str = ""  # which of the models that were compared hardly learnt; empty if none


CLAIMS = tuple(
    Claim(kind, raw["claim"], raw["source"], raw["quote"], raw.get("note", ""), raw)
    for kind in ("scores", "costs", "drift")
    for raw in _RULES[kind]
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
    numbers = "" if weakest is None else " ".join(filter(None, (weakest.numbers, weakest.name)))
    if weakest is not None and len(compared) > 1 and shown:
        numbers = f"{shown}; weakest {numbers}"
    undecided = (each for sign, group in zip(signs, groups, strict=True) if sign in (0, None) for each in group)
    needs = _grouped(need for each in undecided if each.sign in (0, None) for need in each.needs)
    takes = tuple(f"{kind}: {', '.join(which)}" for kind, which in needs.items())
    unlearnt = _grouped((why, name) for each in measured for name, why in each.unlearnt)
    mark = "; ".join(
        f"{' and '.join(names) if len(names) < 3 else f'{len(names)} models'} had hardly learnt: {why}"
        for why, names in unlearnt.items()
    )
    return Verdict(claim, place, verdict, numbers, takes if verdict in (OPEN, UNMEASURED) else (), mark=mark)


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, None]]:
    """Groups the second of each pair, without repeats, by the first."""
    found: dict[str, dict[str, None]] = {}
    for first, second in pairs:
        found.setdefault(first, {})[second] = None
    return found


def _majority(signs: Sequence[int | None]) -> int | None:
    """Returns the sign of the majority; a single comparison keeps its sign."""
    needed = len(signs) // 2 + 1
    if signs.count(1) >= needed:
        return 1
    if len(signs) - signs.count(-1) < needed:
        return -1
    return None if None in signs else 0


def papers_table(printed: Table) -> pd.DataFrame:
    """Makes one of the paper's whole tables with its warning, and the best of each column in bold."""
    cells = printed.mean.map("{:,.3f}".format)
    if printed.std is None:
        cells.columns = [f"{each:,}" if isinstance(each, int) else each for each in cells.columns]
    else:
        cells = cells + printed.std.map(" ± {:.3f}".format)
        cells.columns = [f"{task['title']} ({task['metric']})" for task in TASKS.values()]
        cells["average of 8"] = [f"{printed.average(row):.3f}" for row in cells.index]
    rows = [(NAMES.get(row, row), *cells.loc[row]) for row in cells.index]
    notes = [f"{FLAG}{printed.flag}."] if printed.flag else []
    frame = table(f"{printed.label}: {printed.title} ({printed.unit})", ["the paper's", *cells.columns], rows, notes)
    return frame if "total" in cells else with_best(frame, range(1, frame.shape[1]), lowest=printed.std is None)
