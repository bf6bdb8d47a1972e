"""Made-up rows as `mabert bench models` writes them, and those of tables that pages show."""

from dataclasses import replace
from pathlib import Path

import pytest

from mabert_lab.report import paper
from mabert_lab.report.costs import Condition, papers_results
from mabert_lab.report.drift import SITUATIONS

CPU = Condition("paper", "float32", "cpu")
GPU = Condition("best", "bfloat16", "cuda")
COSTS = [claim for claim in paper.CLAIMS if claim.kind == "costs"]
LOWEST = next(claim for claim in COSTS if claim.claim == "MaBERT has the lowest latency at 2,048 and 4,096 tokens")
SLOW = {"status": "too slow", "reason": "one call took more than 120 s", "at_least_ms": 120_000.0}


def raw(measure, model, length, value=None, condition=CPU, **changes):
    """One row of a file; ``value`` in ms, or MiB with 100 MiB of weights."""
    row = {
        "measure": measure,
        **condition._asdict(),
        "model": model,
        "length": length,
        "batch": 32 if measure == "training" else 1,
        "status": "failed" if value is None else "measured",
        "reason": None,
        "setting": "sdpa",
    }
    if measure == "memory":
        numbers = {"peak_mib": value, "weights_mib": value and 100.0}
    else:
        numbers = {"median_ms": value, "fastest_ms": value and 0.9 * value, "slowest_ms": value and 1.5 * value}
    return {**row, **numbers, "samples": None if measure == "memory" else 15, **changes}


def efficiency(rows, **environment):
    """The content of a file."""
    about = {"date": "2026-01-01T00:00:00+00:00", "processor": "one", "threads": 2, **environment}
    return {"kind": "efficiency", "environment": about, "quick": False, "parameters": {}, "rows": rows}


def whole(condition=CPU):
    """The paper's own numbers as if measured, with ModernBERT beside them."""
    rows = [
        raw(measure, model, length, float(value), condition)
        for measure in ("memory", "latency", "training")
        for model, cells in paper.TABLES[measure].mean.iterrows()
        for length, value in cells.items()
    ]
    measures = ("memory", "latency", "training")
    return rows + [
        raw(measure, "modernbert", length, 333.0, condition) for measure in measures for length in (128, 4096)
    ]


def measured(spread=0.0, rounds=None, change=lambda measure, model, length, value: value):
    """The paper's memory and times, each changed, times with a spread over so many timed calls."""
    made = papers_results()
    about = made.rows[["measure", "model", "length", "value"]].itertuples(index=False)
    rows = made.rows.assign(value=[change(*each) for each in about])
    times = rows["measure"] != "memory"
    rows.loc[times, "fastest_ms"] = rows["value"] * (1 - spread)
    rows.loc[times, "slowest_ms"] = rows["value"] * (1 + spread)
    rows.loc[times, "samples"] = rounds
    return replace(made, rows=rows)


def rivals(calls, factor, spread=0.1):
    """Times of five rivals, one of them at a factor of MaBERT's."""
    return measured(spread, calls, lambda measure, model, *_: {"mabert": 1.0, "longformer": factor}.get(model, 9.0))


def curves(texts=24, scan="forward", **by_masking):
    """Trained weights in every situation; by masking, distances from no padding on."""
    about = [{"weights": "trained", "direction": scan, "side": side, "attention": seen} for side, seen in SITUATIONS]
    rows = [
        {**situation, "masking": masking, "cls": distances, "mean": [each / 2 for each in distances]}
        for situation in about
        for masking, distances in by_masking.items()
    ]
    return [("drift.json", {"texts": texts, "rows": rows})]


def far(none, pre, post, both):
    return {masking: [0.0, far] for masking, far in {"none": none, "pre": pre, "post": post, "pre+post": both}.items()}


def cells(frame, first):
    """The row of a table that begins with a name, without that."""
    (found,) = [list(row[1:]) for row in frame.itertuples(index=False, name=None) if row[0] == first]
    return found


def source():
    """The paper's text; a test without it is skipped."""
    path = Path(__file__).parents[4] / "shared/paper/mabert.tex"
    return path.read_text(encoding="utf-8") if path.is_file() else pytest.skip("the paper's source is not here")
