"""Run folders: each holds one run's request and its results, and never those of another run."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from mabert.files import tables
from mabert.files.places import expanded
from mabert.files.reading import read_json_if_there
from mabert.files.writing import WRITING, write_json, write_text
from mabert.machine.environment import environment

REQUEST = "request.yaml"
RESULT = "result.json"
LOGS = "tensorboard"
HISTORY = "history.csv"
HISTORIES = "history"
"""Folder of the tables in runs of several trainings."""

UNFINISHED = "unfinished"
"""Folder for the checkpoints of unfinished trainings, in runs of several."""

MAKE_ROOM = "the last checkpoint is whole; make room and go on by --resume"
"""Advice to a run that a full disk ends."""

RESOLVED = "resolved"
"""Key of a request for values that the run determined when it began."""

DIRECTORY = "directory"
"""Key of a request for the directory of its relative paths."""

LOCATIONS = {
    "data.sources": "corpus",
    "tokenizer": "vocabulary",
    "resolved.tokenizer": "vocabulary",
    "start_from": "weights",
    "model": "weights",
    "teacher": "weights",
    "texts": "corpus",
    "source.data": "data",
    "source.train": "data",
    "source.validation": "data",
    "source.test": "data",
}
"""Fields that are locations, with the key of `resolved` that identifies the content; only the content is compared."""


def grid_file(folder: Path, rate: float) -> Path:
    """Returns the file with the score of one learning rate in a fine-tuning grid."""
    return folder / "grid" / f"{rate:g}.json"


class RunFolder:
    """The output folder of a run; with `resume`, of the run in it. A `with` block gives up what was claimed in it.

    A resumed run may change the dotted names `free` in the request, which do not affect the results. If `trusted`, only
    `resolved` must match: the caller knows that the folder holds the requested run, however the request is spelt and
    wherever files lie.
    """

    def __init__(
        self, path: str | Path, resume: bool = False, *, free: tuple[str, ...] = (), trusted: bool = False
    ) -> None:
        self.path, self.resume, self.free, self.trusted = expanded(path), resume, free, trusted
        self._claimed = contextlib.ExitStack()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *raised: object) -> None:
        self._claimed.close()

    def check(self, request: dict[str, Any]) -> None:
        """Checks whether a run may use the folder; changes nothing. `request` holds plain values that determine the
        run; on resuming, those known so far.

        Raises ValueError if the run is new and the folder holds results, or the run to resume is not the folder's.
        """
        if not self.resume:
            if self.path.exists() and (not self.path.is_dir() or self._holds_results()):
                raise ValueError(
                    f"{self.path} already holds files; name another folder, or go on with that run by --resume"
                )
            return
        if not (self.path / REQUEST).is_file():
            raise ValueError(f"{self.path} holds no run to resume (no {REQUEST})")
        there = self.request()
        known = there.get(RESOLVED) or {}
        compared = [key for key in request if key == RESOLVED or not self.trusted]
        changes = differences({key: there.get(key) for key in compared}, {key: request[key] for key in compared})
        changed = [text for name, text in changes if name not in self.free and known.get(LOCATIONS.get(name)) is None]
        if changed:
            raise ValueError(f"{self.path} holds another run; it differs in " + "; ".join(changed[:5]))

    def _holds_results(self) -> bool:
        # A run that failed before its first result leaves only these; starting again loses nothing.
        names = (entry for entry in self.path.iterdir() if entry.name not in (REQUEST, LOGS, HISTORY, HISTORIES))
        kept = (entry for entry in names if not entry.name.endswith(WRITING))
        return any(entry.name != UNFINISHED or any(map(Path.is_file, entry.rglob("*"))) for entry in kept)

    def claim(self, request: dict[str, Any]) -> None:
        """Claims the folder for a new or resumed run, until the process or a `with` block ends; raises what `check`
        does, and ValueError if another process has claimed it."""
        import yaml  # imported here to keep `--help` fast

        self.check(request)
        self.path.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path, os.O_RDONLY)
        self._claimed.callback(os.close, folder)
        with contextlib.suppress(OSError):  # a file system without locks
            if not lock_descriptor(folder, blocking=False):
                raise ValueError(f"{self.path}: another process is running there; wait for it, or name another folder")
        if not self.resume:
            whole = {DIRECTORY: str(Path.cwd()), **request}
            write_text(self.path / REQUEST, yaml.safe_dump(whole, sort_keys=False, allow_unicode=True))

    def request(self) -> dict[str, Any]:
        """Reads the request."""
        return read_yaml(self.path / REQUEST)

    def resolved(self) -> dict[str, Any]:
        """Reads the values determined when the run to resume began; empty for a new run."""
        begun = self.resume and (self.path / REQUEST).is_file()
        return (self.request().get(RESOLVED) or {}) if begun else {}

    def result(self) -> dict[str, Any] | None:
        """Reads the record of the run to resume; None if it is new or unfinished. ValueError if its model is gone."""
        result = read_json_if_there(self.path / RESULT) if self.resume else None
        if result is not None and not any(self.path.glob("*.safetensors")):
            again = f"remove {RESULT}, and --resume makes it again"
            raise ValueError(f"{self.path} is finished, but its model is gone; {again}")
        return result

    def write_result(self, outcome: dict[str, Any], seconds: float, **about: Any) -> dict[str, Any]:
        """Writes `result.json` and returns its content; `seconds` are those of all starts, `about` further entries."""
        return write_record(self.path / RESULT, {"request": self.request(), "outcome": outcome, **about}, seconds)


def write_record(file: Path, content: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Writes and returns the record of a training, with its environment, end and duration."""
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    record = {**content, "environment": environment(), "finished": finished, "seconds": round(seconds, 1)}
    write_json(file, record, indent=2, ascii_only=False)
    return record


def located(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the recipe part of a request. Relative paths become absolute if they exist relative to the directory
    where the run began."""
    began = Path(request.get(DIRECTORY) or Path.cwd())

    def found(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: found(each, f"{name}.{key}".removeprefix(".")) for key, each in value.items()}
        if isinstance(value, list):
            return [found(each, name) for each in value]
        is_path = isinstance(value, str) and value and (name in LOCATIONS or name == "data.cache")
        return str(began / value) if is_path and (began / value).exists() else value

    return found({name: value for name, value in request.items() if name not in (RESOLVED, DIRECTORY)}, "")


def differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yields the places where two nested values differ: dotted name, and a phrase with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif old != new:
        yield where, f"{where}: {old!r} there, {new!r} here"


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML file with the safe loader."""
    from mabert.files.yaml import parse_yaml  # imported here to keep `--help` fast

    content = parse_yaml(tables.read_text(path), str(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}; a recipe is a mapping of fields")
    return content
