"""Records a measurement: progress bar, tables, environment and the result file.

Each measurement has a function `run`, which prints tables and returns the result. It takes `output`, the folder for the
dated JSON file (None writes none); those of speed also take `quick`, by which small sizes and few calls test in seconds
that everything runs: their numbers say nothing.
"""

import datetime
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import mabert
import mabert_lab
from mabert.files.reading import read_json, to_json
from mabert.files.writing import write_json
from mabert.machine.environment import environment
from mabert.machine.progress import Bar
from mabert_lab.bench.tables import digits


def measured_on() -> dict[str, Any]:
    """Returns date, machine, versions, commit, and the checksum of the sources, since not every copy has a commit."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": date, **environment(), "sources": sources()}


def sources() -> str:
    """Returns a checksum of the code of package and lab."""
    folders = [Path(module.__file__ or "").parent for module in (mabert, mabert_lab)]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def path_of(result: dict[str, Any], folder: Path, name: str, suffix: str = ".json") -> Path:
    """Returns the path of a result file: date and time of the measurement, its name and a suffix."""
    stamp = result["environment"]["date"].replace(":", "").split("+")[0]
    return folder / f"{stamp}-{name}{suffix}"


def write(result: dict[str, Any], folder: Path, name: str) -> Path:
    """Writes a result to its JSON file in a folder, which is made if missing; returns the file, see `path_of`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(result, folder, name)
    write_json(path, result, indent=2)
    return path


def record(
    result: dict[str, Any],
    jobs: Mapping[str, Callable[[], None]],
    show: Callable[[Console, dict[str, Any]], None],
    output: Path | None,
    name: str,
    resume: bool = False,
) -> dict[str, Any]:
    """Runs jobs with a progress bar, prints and writes the result after each, and returns it.

    Args:
        result: The jobs add to it; holds `measured_on` under ``environment``. Each row names its ``job``.
        jobs: Jobs by title.
        show: Prints the whole result at the end.
        output: Folder for the dated JSON file; None writes nothing.
        name: End of the file's name.
        resume: Whether to go on with the newest file of the same request, see `take_over`: with the jobs that are
            missing, then with those of which a row failed.
    """
    if resume and output is not None:
        take_over(result, output, name)
    rows: list[dict[str, Any]] = result.get("rows", [])  # the jobs add to the same list
    there = {row.get("job") for row in rows}
    failed = {row.get("job") for row in rows if row.get("status") == "failed"}
    missing = [title for title in jobs if title not in there]
    again = [title for title in jobs if title in failed]
    console = Console()
    with Bar(name, len(jobs), begun=len(jobs) - len(missing) - len(again), console=console) as bar:
        for title in (*missing, *again):
            bar.update(bar.state.id, description=title)
            rows[:] = [row for row in rows if row.get("job") != title]  # those of a failed try
            before = len(rows)
            jobs[title]()
            for row in rows[before:]:
                row["job"] = title
                console.print(f"{title}: {in_short(row)}", highlight=False)
            if output is not None:
                write(result, output, name)
            bar.add(1)
    show(console, result)
    if output is not None:
        console.print(f"written to {write(result, output, name)}")
    return result


def take_over(result: dict[str, Any], folder: Path, name: str) -> None:
    """Adds what the newest file of the same request holds. A request is all that a result holds before anything is
    measured, on the same device by the same sources and versions of torch and Triton."""
    asked = json.loads(to_json({key: value for key, value in result.items() if value not in ([], {})}))
    here = asked.pop("environment")
    for path in sorted(folder.glob(f"*-{name}.json"), reverse=True):
        there = read_json(path)
        then = there["environment"]
        same = all(here.get(field) == then.get(field) for field in ("device", "processor", "sources"))
        same &= all(here["packages"].get(each) == then["packages"].get(each) for each in ("torch", "triton"))
        if same and asked.items() <= there.items():
            result.update(there)
            return


def in_short(row: Mapping[str, Any]) -> str:
    """Returns a row's side, task and numbers, or why it has none."""
    what = ", ".join(str(row[field]) for field in ("model", "side", "task") if field in row)
    if row.get("status", "measured") != "measured":
        return f"{what} {row['status']}: {row['reason']}"
    units = {"median_ms": "ms", "tokens_per_second": "tokens/s", "peak_mib": "MiB"}
    numbers = [f"{digits(row[field])} {unit}" for field, unit in units.items() if row.get(field) is not None]
    return f"{what} {', '.join(numbers)}"


def times_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Returns a row's median and its range, in milliseconds."""
    return digits(row["median_ms"]), "-".join(digits(row[end]) for end in ("fastest_ms", "slowest_ms"))


def place_of(result: Mapping[str, Any]) -> str:
    """Returns where a result was measured: the GPU's name, or the number of threads."""
    environment, threads = result["environment"], result["environment"]["threads"]
    return environment["device"] if result["device"] == "cuda" else f"{threads} thread{'s' * (threads > 1)}"


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
