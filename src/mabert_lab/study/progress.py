"""Shows a study's cells and the work left, before and during the run."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.status import Status as Spinner
from rich.table import Table
from rich.text import Text

from mabert.files.reading import read_json_if_there
from mabert_lab.study.cells import CellFiles
from mabert_lab.study.plan import Plan
from mabert_lab.study.runner import Status


class StudyProgress(AbstractContextManager["StudyProgress"]):
    """Prints a line for every change of a cell; a terminal also shows the progress of the running cell.

    Args:
        plan: The plan that runs.
        root: Folder of the study.
        console: Output; default, standard error.
    """

    def __init__(self, plan: Plan, root: Path, console: Console | None = None) -> None:
        self.plan, self.root = plan, root
        self.console = console or Console(stderr=True)
        self.spinner = Spinner("", console=self.console)
        self.printed: dict[str, str] = {}

    def __enter__(self) -> "StudyProgress":
        if self.console.is_terminal:
            self.spinner.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.spinner.stop()

    def __call__(self, states: Mapping[str, Status], running: str | None) -> None:
        """Shows the state of every cell."""
        for name, status in states.items():
            if status.state != self.printed.get(name, "waiting") and status.state not in ("waiting", "elsewhere"):
                self.printed[name] = status.state
                self.console.print(Text(self.line(name, status, states)), soft_wrap=True)
        if self.console.is_terminal and running is not None:
            self.spinner.update(Text(self.running(running, states)))

    def line(self, name: str, status: Status, states: Mapping[str, Status]) -> str:
        """Describes one change."""
        took = "" if status.seconds is None else f" in {duration(status.seconds)}"
        why = f": {status.reason}" if status.reason else ""
        done = sum(each.state == "done" for each in states.values())
        return f"{done}/{len(states)} done  {status.state}{took}  {self.plan.cells[name].title} ({name}){why}"

    def running(self, name: str, states: Mapping[str, Status]) -> str:
        """Describes the progress of the running cell and the time left for all."""
        parts = [self.plan.cells[name].title]
        try:
            note = read_json_if_there(CellFiles(self.root, name).progress)
        except ValueError:  # a power failure may leave a damaged file
            note = None
        if note is not None:
            left = (note["steps"] - note["step"]) / max(note["rate"], 1e-9)
            parts += [
                f"{note['step']:.0f}/{note['steps']:.0f}",
                f"{note['rate']:.2f} steps/s",
                f"{duration(left)} left",
            ]
        waiting = [each for each, status in states.items() if status.state in ("waiting", "running", "elsewhere")]
        parts.append(f"all: {in_words(seconds_left(self.plan, self.root, waiting))}")
        return "  ".join(parts)


def seconds_left(plan: Plan, root: Path, names: list[str]) -> float | None:
    """Estimates the time of cells run one after the other from finished cells of their kind; None before the first of a
    kind."""
    work: defaultdict[str, float] = defaultdict(float)
    seconds: defaultdict[str, float] = defaultdict(float)
    for cell in plan.cells.values():
        if (result := CellFiles(root, cell.name).result()) is not None:
            work[cell.kind] += cell.work * (len(result["seeds"]) / len(cell.seeds) if cell.seeds else 1.0)
            seconds[cell.kind] += result["seconds"]
    wanted = [plan.cells[name] for name in names]
    if any(not work[cell.kind] for cell in wanted):
        return None
    return sum(
        CellFiles(root, cell.name).left(cell) * cell.work * seconds[cell.kind] / work[cell.kind] for cell in wanted
    )


def show_plan(plan: Plan, root: Path, console: Console) -> None:
    """Prints the cells of a plan, and what is left to run."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("cell", "what"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "tokens", "parameters", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    shares = {name: CellFiles(root, name).left(cell) for name, cell in plan.cells.items()}
    for name, cell in plan.cells.items():
        counts = (f"{cell.steps:,}", shortened(cell.tokens), shortened(cell.parameters))
        table.add_row(name, Text(cell.title), *counts, f"{shares[name]:.0%}" if shares[name] else "done")
    console.print(table)
    left = [cell for name, cell in plan.cells.items() if shares[name]]
    first = "conversion" if plan.study.converts else "pretraining"
    kinds = [sum(cell.kind == kind for cell in left) for kind in (first, "finetuning")]
    tokens = sum(shares[cell.name] * cell.tokens for cell in left)
    console.print(
        f"{plan.name} at scale {plan.scale_name}: {kinds[0]} {first}s and {kinds[1]} fine-tunings to run, "
        f"{sum(shares[cell.name] * cell.steps for cell in left):,.0f} steps, {shortened(tokens)} tokens; "
        f"{in_words(seconds_left(plan, root, [cell.name for cell in left]))}",
        soft_wrap=True,
        markup=False,
        emoji=False,
    )


def in_words(seconds: float | None) -> str:
    """Formats the time left, or says when it will be known."""
    if seconds is None:
        return "the time left is said here once a cell of each kind is finished"
    return f"about {duration(seconds)} left for one runner"


def duration(seconds: float) -> str:
    """Formats seconds: `45 s`, `12 min`, `3.5 h`, `4.2 days`, `1,200 years`."""
    for size, unit, form in (
        (365.25 * 86400, "years", ",.0f"),
        (86400.0, "days", ".1f"),
        (3600.0, "h", ".1f"),
        (60.0, "min", ".0f"),
    ):
        if seconds >= 1.5 * size:
            return f"{seconds / size:{form}} {unit}"
    return f"{seconds:.0f} s"


def shortened(number: float) -> str:
    """Formats a count with a suitable unit."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"
