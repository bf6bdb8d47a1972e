"""What a study shows while it runs: cells done, running and failed, and the time left."""

from collections import Counter, defaultdict
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mabert.reading import read_json_if_there
from mabert.study.cells import CellFiles
from mabert.study.plan import Plan
from mabert.study.runner import Status

SHOWN = 6
"""Failed cells that are listed; the rest are counted."""


class LiveView:
    """Shows a plan's cells: a view that is redrawn in a terminal, a line a change elsewhere.

    Args:
        plan: What is run.
        root: Folder of the study.
        console: Where; default, standard error.
    """

    def __init__(self, plan: Plan, root: Path, console: Console | None = None) -> None:
        self.plan, self.root = plan, root
        self.console = console or Console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=False)
        self.told: dict[str, str] = {}
        self.took: dict[str, tuple[float, float]] = {}

    def __enter__(self) -> "LiveView":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def __call__(self, states: dict[str, Status], running: str | None) -> None:
        """Shows where every cell is."""
        if self.console.is_terminal:
            self.live.update(self.drawn(states, running), refresh=True)
            return
        for name, status in states.items():
            before = self.told.get(name, "waiting")
            if status.state != before and status.state not in ("waiting", "elsewhere"):
                self.told[name] = status.state
                self.console.print(Text(self.line(name, status, states)), soft_wrap=True)

    def line(self, name: str, status: Status, states: dict[str, Status]) -> str:
        """One change in words."""
        took = "" if status.seconds is None else f" in {duration(status.seconds)}"
        why = f": {status.reason}" if status.reason else ""
        done = sum(each.state == "done" for each in states.values())
        return f"{done}/{len(states)} done  {status.state}{took}  {self.plan.cells[name].title} ({name}){why}"

    def drawn(self, states: dict[str, Status], running: str | None) -> Group:
        """The view."""
        counts: Counter[str] = Counter(status.state for status in states.values())
        named = ("done", "running", "elsewhere", "waiting", "failed", "blocked")
        parts = [f"{counts[state]} {state}" for state in named if counts[state]]
        left = self.seconds_left(states, running)
        alone = " for this runner alone" if counts["elsewhere"] else ""
        parts.append("time left: unknown yet" if left is None else f"about {duration(left)} left{alone}")
        grid = Table.grid(padding=(0, 1))
        grid.add_row(Text(f"{self.plan.name}, {self.plan.scale_name}"), "  ".join(parts))
        parts_of_run = [grid] if running is None else [grid, self.progress(running)]
        failed = [(name, status) for name, status in states.items() if status.state == "failed"]
        lines = [
            Text(f"failed  {self.plan.cells[name].title}: {status.reason}", "red") for name, status in failed[:SHOWN]
        ]
        return Group(*parts_of_run, *lines)

    def progress(self, running: str) -> Table:
        """The running cell: its step, rate, and time left."""
        note = self.note(running)
        row = Table.grid(padding=(0, 1))
        title = Text(self.plan.cells[running].title)
        if note is None:
            row.add_row(title, "begins")
            return row
        left = (note["steps"] - note["step"]) / max(note["rate"], 1e-9)
        bar = ProgressBar(total=note["steps"], completed=note["step"], width=20)
        row.add_row(
            title,
            bar,
            f"{note['step']:.0f}/{note['steps']:.0f}",
            f"{note['rate']:.2f} steps/s",
            f"{duration(left)} left",
        )
        return row

    def note(self, name: str) -> dict[str, float] | None:
        """How far a running cell is, as it notes it."""
        try:
            return read_json_if_there(CellFiles(self.root, name).progress)
        except ValueError:  # a machine that lost power may leave anything
            return None

    def seconds_left(self, states: dict[str, Status], running: str | None) -> float | None:
        """Time left for one runner, from what finished cells of each kind took; None before the first of a kind."""
        rates, total = self.rates(), 0.0
        for name, status in states.items():
            cell = self.plan.cells[name]
            if status.state not in ("waiting", "running", "elsewhere"):
                continue
            note = self.note(name) if name == running else None
            if note is not None and note["rate"]:
                total += (note["steps"] - note["step"]) / note["rate"]
            elif cell.kind in rates:
                total += CellFiles(self.root, name).left(cell) * cell.work / rates[cell.kind]
            else:
                return None
        return total

    def rates(self) -> dict[str, float]:
        """Work a second by kind of cell, over the finished cells of the plan."""
        work: defaultdict[str, float] = defaultdict(float)
        seconds: defaultdict[str, float] = defaultdict(float)
        for cell in self.plan.cells.values():
            if cell.name not in self.took and (result := CellFiles(self.root, cell.name).result()) is not None:
                share = len(result["seeds"]) / len(cell.seeds) if cell.seeds else 1.0
                self.took[cell.name] = (share, result["seconds"])
            share, spent = self.took.get(cell.name, (0.0, 0.0))
            work[cell.kind] += share * cell.work
            seconds[cell.kind] += spent
        return {kind: work[kind] / seconds[kind] for kind in work if seconds[kind]}


def duration(seconds: float) -> str:
    """Seconds in words: `45 s`, `12 min`, `3.5 h`, `4.2 days`, `1,200 years`."""
    for size, unit, form in (
        (365.25 * 86400, "years", ",.0f"),
        (86400.0, "days", ".1f"),
        (3600.0, "h", ".1f"),
        (60.0, "min", ".0f"),
    ):
        if seconds >= 1.5 * size:
            return f"{seconds / size:{form}} {unit}"
    return f"{seconds:.0f} s"
