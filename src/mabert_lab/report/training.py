"""How a pretraining run went."""

from collections.abc import Sequence
from typing import Any

from mabert_lab.report.figures import line_chart


def loss_chart(history: Sequence[dict[str, Any]], marks: Sequence[float] = ()) -> str:
    """Loss against step, on training and on held-out text, as SVG.

    Args:
        history: What the run logged, as its `result.json` has it.
        marks: Steps to mark, such as those where the windows grow.
    """
    logged = [entry for entry in history if "loss" in entry]
    held_out = {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}
    lines = {
        "training": ([entry["step"] for entry in logged], [entry["loss"] for entry in logged]),
        "held out": (list(held_out), list(held_out.values())),
    }
    return line_chart(lines, "step", "loss (nats a masked token)", marks=marks)


def stage_ends(steps: int, stages: Sequence[dict[str, Any]]) -> list[float]:
    """Steps at which a run's windows change length.

    Args:
        steps: Of the whole run.
        stages: As in its request, each with the `share` of the steps it takes.
    """
    ends, done = [], 0.0
    for stage in stages[:-1]:
        done += stage["share"] * steps
        ends.append(done)
    return ends
