"""Shows a study's cells: all of them before the run, and each change during it."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mabert_lab.study.cells import CellFiles
from mabert_lab.study.plan import Plan, cells_of
from mabert_lab.study.runner import Status


class StudyProgress:
    """Prints a line for every change of a cell.

    Args:
        plan: The plan that runs.
        root: Folder of the study.
        console: Output; default, standard error.
    """

    def __init__(self, plan: Plan, root: Path, console: Console | None = None) -> None:
        self.plan, self.root = plan, root
        self.console = console or Console(stderr=True)
        self.printed: dict[str, str] = {}

    def __call__(self, states: Mapping[str, Status]) -> None:
        """Prints what changed since the last call."""
        for name, status in states.items():
            if status.state != self.printed.get(name, "waiting") and status.state not in ("waiting", "elsewhere"):
                self.printed[name] = status.state
                self.console.print(Text(self.line(name, status, states)), soft_wrap=True)

    def line(self, name: str, status: Status, states: Mapping[str, Status]) -> str:
        """Describes one change: the log of a cell that begins, the reason of one that failed."""
        took = "" if status.seconds is None else f" in {timedelta(seconds=round(status.seconds))}"
        about = str(CellFiles(self.root, name).log) if status.state == "running" else status.reason
        done = sum(each.state == "done" for each in states.values())
        line = f"{done}/{len(states)} done  {status.state}{took}  {self.plan.cells[name].title} ({name})"
        return f"{line}: {about}" if about else line


def show_plan(plan: Plan, root: Path, console: Console) -> None:
    """Prints the cells of a plan and which are done."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("cell", "what"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "parameters", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    left = []
    for cell, files in cells_of(plan, root):
        done = files.done(cell)
        if not done:
            left.append(cell.kind)
        steps = "" if cell.steps is None else f"{cell.steps:,}"
        table.add_row(cell.name, Text(cell.title), steps, f"{cell.parameters:,}", "done" if done else "")
    console.print(table)
    first = "conversion" if plan.study.converts else "pretraining"
    console.print(
        f"{plan.name} at scale {plan.scale_name}: {left.count(first)} {first}s and {left.count('finetuning')} "
        "fine-tunings to run",
        soft_wrap=True,
        markup=False,
        emoji=False,
    )
