"""One folder a run: what was asked, what came out, and nothing of another run."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mabert.files.reading import read_json_if_there
from mabert.files.writing import WRITING, write_text
from mabert.machine.environment import environment
from mabert.train.fields import read_yaml

REQUEST = "request.yaml"
RESULT = "result.json"
LOGS = "tensorboard"
UNFINISHED = "unfinished"
"""Folder for the checkpoints of a run's trainings, where there are several, while they are under way."""

RESOLVED = "resolved"
"""Where a request says what the run found out when it began."""

DIRECTORY = "directory"
"""Where a request says which directory its relative paths start from."""

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
"""Fields that say where something lies, and what of `resolved` says what it holds: that is compared, not the place."""


def grid_file(folder: Path, rate: float) -> Path:
    """Where the score of a learning rate that fine-tuning tries is kept."""
    return folder / "grid" / f"{rate:g}.json"


class RunFolder:
    """The output folder of a run.

    Attributes:
        path: The folder.
        free: Dotted names in the request that a resumed run may change, since they do not change what comes out.
        trusted: Whether the caller knows that a run in the folder is the one that is asked for, however it was spelt
            and wherever things lay; then only what it found out (`resolved`) must be the same.
    """

    def __init__(self, path: str | Path, free: tuple[str, ...] = (), trusted: bool = False) -> None:
        self.path = Path(path)
        self.free = free
        self.trusted = trusted

    def check(self, request: dict[str, Any], resume: bool) -> None:
        """Whether a run may use the folder; changes nothing.

        Args:
            request: What determines the run, as plain values; on resuming, the part of it that is known so far.
            resume: Whether to go on with the run that is there.

        Raises:
            ValueError: If the folder holds something and the run is new, or holds another run than the one to resume.
        """
        if not resume:
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
        # A run that failed before its first result leaves these; nothing is lost by starting again.
        names = (entry for entry in self.path.iterdir() if entry.name not in (REQUEST, LOGS))
        kept = (entry for entry in names if not entry.name.endswith(WRITING))
        return any(entry.name != UNFINISHED or any(map(Path.is_file, entry.rglob("*"))) for entry in kept)

    def claim(self, request: dict[str, Any], resume: bool) -> None:
        """Takes the folder for a run, or takes it up again; raises as `check` does."""
        import yaml  # which `--help` does without

        self.check(request, resume)
        if not resume:
            self.path.mkdir(parents=True, exist_ok=True)
            whole = {DIRECTORY: str(Path.cwd()), **request}
            write_text(self.path / REQUEST, yaml.safe_dump(whole, sort_keys=False, allow_unicode=True))

    def request(self) -> dict[str, Any]:
        """What was asked."""
        return read_yaml(self.path / REQUEST)

    def resolved(self) -> dict[str, Any]:
        """What the run found out when it began; empty where there is none."""
        return (self.request().get(RESOLVED) or {}) if (self.path / REQUEST).is_file() else {}

    def result(self) -> dict[str, Any] | None:
        """The record of a finished run; None before."""
        return read_json_if_there(self.path / RESULT)

    def write_result(self, outcome: dict[str, Any], seconds: float, **about: Any) -> dict[str, Any]:
        """Writes `result.json` and returns its content.

        Args:
            outcome: What came out.
            seconds: Duration over all starts of the run.
            about: Further entries, such as the seed.
        """
        return write_record(self.path / RESULT, {"request": self.request(), "outcome": outcome, **about}, seconds)


def write_record(file: Path, content: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Writes what is known of a training, with what it ran on, when it ended and how long it took; returns all that."""
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    record = {**content, "environment": environment(), "finished": finished, "seconds": round(seconds, 1)}
    write_text(file, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return record


def located(request: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """What was asked, without what is no part of a recipe; relative paths in the fields of those dotted names are made
    absolute where they lead somewhere from where the run began."""
    began = Path(request.get(DIRECTORY) or Path.cwd())

    def found(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: found(each, f"{name}.{key}".removeprefix(".")) for key, each in value.items()}
        if isinstance(value, list):
            return [found(each, name) for each in value]
        leads = name in names and isinstance(value, str) and value and (began / value).exists()
        return str(began / value) if leads else value

    return found({name: value for name, value in request.items() if name not in (RESOLVED, DIRECTORY)}, "")


def differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Places where two nested values differ: the dotted name, and a phrase with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif old != new:
        yield where, f"{where}: {old!r} there, {new!r} here"
