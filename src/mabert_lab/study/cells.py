"""Cells: the runs of a study, each named by a hash of everything that determines its result."""

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from mabert.files.reading import key_of, read_json_if_there, to_json
from mabert.files.writing import locked
from mabert.train.folder import REQUEST, RESULT

FORMAT = 3  # raise this when the same cell would give another result
WITHOUT_WEIGHTS = ("transformers_version", "unpad")  # configuration fields that do not affect a model's weights


@dataclass(frozen=True)
class Cell:
    """One run."""

    content: dict[str, Any]  # plain values that determine the result; their hash is the cell's name
    order: dict[str, Any]  # plain values needed to run the cell: recipe, text or task
    title: str
    needs: str | None = None  # the cell that it starts from
    seeds: tuple[int, ...] = ()  # of a fine-tuning
    steps: int | None = None  # of the optimizer over all seeds; None if batches are counted in tokens
    parameters: int = 0  # of the model

    @property
    def name(self) -> str:
        """Twelve hexadecimal digits."""
        return key_of(self.content, 12)

    @property
    def kind(self) -> str:
        """`pretraining`, `conversion` or `finetuning`."""
        return self.content["kind"]


class CellFiles:
    """The files of a cell, by its name, in the folder that all studies and runners share."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.run = root / "cells" / name  # the run's folder
        self.order = self.run.with_name(f"{name}.json")  # what the cell's process is to do
        self.lock = self.run.with_name(f"{name}.lock")  # held by that process
        self.log = self.run.with_name(f"{name}.log")  # its output
        self.failure = self.run.with_name(f"{name}.failed.json")  # the reason of the last failure

    @property
    def begun(self) -> bool:
        """Whether there is a run to resume."""
        return (self.run / REQUEST).is_file()

    def result(self, seed: int | None = None) -> dict[str, Any] | None:
        """Reads the record of the run or of one seed; None if unfinished."""
        return read_json_if_there((self.run if seed is None else self.run / f"seed-{seed}") / RESULT)

    def finished(self, seeds: Iterable[int]) -> bool:
        """Checks whether the records of the run and of these seeds exist."""
        # Lists folders, because a network file system may cache for a minute that a file does not exist.
        listed = set(os.listdir(self.run)) if self.run.is_dir() else set()
        return RESULT in listed and set(seeds) <= set(self.seeds())

    def seeds(self) -> list[int]:
        """Returns the finished seeds, including those of other plans."""
        found = [folder for folder in self.run.glob("seed-*") if RESULT in os.listdir(folder)]
        return sorted(int(folder.name.removeprefix("seed-")) for folder in found)

    def results(self) -> dict[int, dict[str, Any]]:
        """Reads the records of the finished seeds; on a network file system one that is listed may not be there yet."""
        read = {seed: self.result(seed) for seed in self.seeds()}
        return {seed: result for seed, result in read.items() if result is not None}

    def why_failed(self) -> str | None:
        """Returns the reason of the last failure in one line; None if there was none."""
        found = read_json_if_there(self.failure)
        return None if found is None else found["reason"]

    def failure_mark(self) -> tuple[int, int] | None:
        """Returns an identifier of the recorded failure, by the file server's clock alone; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            about = self.failure.stat()
            return about.st_ino, about.st_mtime_ns
        return None

    def claim(self) -> FileLock:
        return locked(self.lock)


def absolute(source: str) -> str:
    """Returns the absolute path of a file or folder; hub names stay unchanged."""
    return source if source.startswith("hub:") else str(Path(source).expanduser().resolve())


def without(content: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Copies nested values without those of some dotted names."""
    copy = json.loads(to_json(content))
    for name in names:
        *path, last = name.split(".")
        place = copy
        for key in path:
            place = place.get(key, {})
        place.pop(last, None)
    return copy
