"""What every measurement records beside its numbers, and where it is written."""

import datetime
import json
from pathlib import Path
from typing import Any

from mabert.environment import environment
from mabert.writing import write_text


def measured_on() -> dict[str, Any]:
    """Date, machine, versions and commit."""
    return {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), **environment()}


def path_of(result: dict[str, Any], folder: Path, name: str, suffix: str = ".json") -> Path:
    """Return the file that belongs to a result: date and time of the measurement, what it was, and the kind of file."""
    stamp = result["environment"]["date"].replace(":", "").split("+")[0]
    return folder / f"{stamp}-{name}{suffix}"


def write(result: dict[str, Any], folder: Path, name: str) -> Path:
    """Write one dated JSON file.

    Args:
        result: What was measured, with `measured_on` under ``environment``.
        folder: Made where it is missing.
        name: What was measured, the end of the file's name.

    Returns:
        The file: date and time of the measurement, then ``name``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(result, folder, name)
    write_text(path, json.dumps(result, indent=2) + "\n")
    return path
