"""Records a measurement: progress bar, tables, environment and the result file.

Each measurement has a function `run`, which prints tables and returns the result. It takes `output`, the folder for the
dated JSON file (None writes none); those of speed also take `quick`, by which small sizes and few calls test in seconds
that everything runs: their numbers say nothing.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mabert.files.json import to_json
from mabert.files.writing import write_text
from mabert.machine.environment import environment

Job = Callable[[], None]
"""Measures something and adds it to a result."""


def measured_on() -> dict[str, Any]:
    """Returns date, machine, versions and commit."""
    return {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), **environment()}


def path_of(result: dict[str, Any], folder: Path, name: str, suffix: str = ".json") -> Path:
    """Returns the path of a result file: date and time of the measurement, name and suffix."""
    stamp = result["environment"]["date"].replace(":", "").split("+")[0]
    return folder / f"{stamp}-{name}{suffix}"


def write(result: dict[str, Any], folder: Path, name: str) -> Path:
    """Writes one dated JSON file.

    Args:
        result: What was measured, with `measured_on` under ``environment``.
        folder: Created if missing.
        name: Name of the measurement, the end of the file's name.

    Returns:
        The file's path, see `path_of`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(result, folder, name)
    write_text(path, to_json(result, indent=2) + "\n")
    return path


def record(
    result: dict[str, Any],
    jobs: Mapping[str, Job],
    show: Callable[[Console, dict[str, Any]], None],
    output: Path | None,
    name: str,
) -> dict[str, Any]:
    """Runs the jobs with a progress bar, writes the result after each, and prints it at the end.

    Args:
        result: The jobs add to it; holds `measured_on` under ``environment``.
        jobs: Jobs by title.
        show: Prints the result.
        output: Folder for the dated JSON file; None writes nothing.
        name: Name of the measurement, the end of the file's name.

    Returns:
        The result.
    """
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        bar = progress.add_task(name, total=len(jobs))
        for title, job in jobs.items():
            progress.update(bar, description=title)
            job()
            if output is not None:
                write(result, output, name)
            progress.advance(bar)
    show(console, result)
    if output is not None:
        console.print(f"written to {write(result, output, name)}")
    return result


def table(
    title: str, names: Sequence[str], numbers: Iterable[str], rows: Iterable[Sequence[str]], caption: str | None = None
) -> Table:
    """Makes a table with columns of names on the left, then columns of numbers."""
    made = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=caption)
    for name in names:
        made.add_column(name)
    for name in numbers:
        made.add_column(name, justify="right")
    for row in rows:
        made.add_row(*row)
    return made
