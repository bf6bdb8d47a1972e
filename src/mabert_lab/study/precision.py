"""Warns of a plan whose cells another machine has at another precision, or whose precision is slow on this one."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from mabert.files.reading import to_json
from mabert.machine.environment import fast_dtype
from mabert_lab.study.cells import Cell, CellFiles
from mabert_lab.study.plan import Plan, cells_of


def at_another_precision(plan: Plan, root: Path) -> str | None:
    """Checks whether another machine left a cell of the plan at another precision, its own fastest one.

    Returns:
        One line about the first such cell, with the fields that make machines share cells; None if there is none.
    """
    left_open = {
        field: None
        for cell in plan.cells.values()
        for field, asked in [precision_of(cell, cell.order["recipe"])]
        if asked["precision"] == "auto"
    }
    for cell in plan.cells.values():
        content = json.loads(to_json(cell.content))
        field, resolved = precision_of(cell, content["recipe"])
        here, there = ("bf16", "fp32") if resolved["precision"] == "bf16" else ("fp32", "bf16")
        resolved["precision"] = there
        if field in left_open and CellFiles(root, dataclasses.replace(cell, content=content).name).order.is_file():
            fields = " ".join(f"{each}={there}" for each in left_open)
            return (
                f"precision auto is {here} on this machine, and {root} has {cell.title!r} at {there}, which is not "
                f"shared; to go on with it: {fields}"
            )
    return None


def emulated_precision(plan: Plan, root: Path) -> str | None:
    """Checks whether unfinished cells ask for bf16 on a machine that emulates it in float32.

    Returns:
        One line with the fields that ask for it; None if there are none.
    """
    left = [cell for cell, files in cells_of(plan, root) if not files.done(cell)]
    asked = (precision_of(cell, cell.order["recipe"]) for cell in left)
    fields = dict.fromkeys(field for field, recipe in asked if recipe["precision"] == "bf16")
    if not fields or fast_dtype() != "float32":
        return None
    return (
        f"{' and '.join(fields)}: bf16, for which this machine has no instructions; fp32, or auto, is several times as "
        "fast here (a cell in fp32 is another cell)"
    )


def precision_of(cell: Cell, recipe: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the field that sets a cell's precision, and the section of its recipe that holds it."""
    if cell.kind == "pretraining":
        return "pretrain.training.precision", recipe["training"]
    if cell.kind == "conversion":
        return "convert.recipe.precision", recipe
    return "finetune.precision", recipe
