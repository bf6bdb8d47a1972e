"""A cell: one run of a study, named by the hash of all that determines what comes out of it; and where it lies."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock

from mabert.files.reading import read_json, read_json_if_there
from mabert.files.writing import locked
from mabert.train.run import REQUEST, RESULT, UNFINISHED, grid_file

FORMAT = 3
"""Raised when the same cell would give another result."""

UNLEARNT = ("transformers_version", "unpad")
"""Of a model's configuration, what has no say in its weights."""


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        content: All that determines what comes out, as plain values; its hash is the cell's name.
        order: What is needed to run it: recipe, text or task; plain values.
        title: In a few words.
        needs: The cell that it starts from.
        seeds: Of a fine-tuning.
        steps: Optimizer steps, of all seeds.
        tokens: Tokens that it trains on, of all seeds; of a fine-tuning about.
        parameters: Of the model.
    """

    content: dict[str, Any]
    order: dict[str, Any]
    title: str
    needs: str | None = None
    seeds: tuple[int, ...] = ()
    steps: int = 0
    tokens: int = 0
    parameters: int = 0

    @property
    def name(self) -> str:
        """Twelve hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def kind(self) -> str:
        """`pretraining`, `conversion` or `finetuning`."""
        return self.content["kind"]

    @property
    def work(self) -> float:
        """What it costs, in tokens times parameters."""
        return float(self.tokens) * self.parameters


@dataclass(frozen=True)
class CellFiles:
    """Where a cell lies.

    Attributes:
        root: Folder that all studies and runners share.
        name: The cell's.
    """

    root: Path
    name: str

    def _beside(self, suffix: str) -> Path:
        return self.root / "cells" / f"{self.name}{suffix}"

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self._beside("")

    @property
    def order(self) -> Path:
        """What is to be done."""
        return self._beside(".json")

    @property
    def lock(self) -> Path:
        """Held by the process that runs it."""
        return self._beside(".lock")

    @property
    def log(self) -> Path:
        """What it printed."""
        return self._beside(".log")

    @property
    def failure(self) -> Path:
        """Why it failed last."""
        return self._beside(".failed.json")

    @property
    def progress(self) -> Path:
        """How far it is."""
        return self._beside(".progress.json")

    @property
    def begun(self) -> bool:
        """Whether there is a run to go on with."""
        return (self.run / REQUEST).is_file()

    def result(self, seed: int | None = None) -> dict[str, Any] | None:
        """The record of the run, or of one of its seeds; None before it is finished."""
        return read_json_if_there((self.run if seed is None else self.run / f"seed-{seed}") / RESULT)

    def done(self, cell: Cell) -> bool:
        """Whether nothing is left to do."""
        return self.finished(cell.seeds)

    def finished(self, seeds: Iterable[int]) -> bool:
        """Whether the run's record is there, and that of every one of some seeds.

        Folders are listed: a file system of a network may remember for a minute that a file was not there.
        """
        listed = set(os.listdir(self.run)) if self.run.is_dir() else set()
        return RESULT in listed and set(seeds) <= set(self.seeds())

    def left(self, cell: Cell) -> float:
        """The share of a cell's work that is to be done: since the last checkpoint, and of a fine-tuning the seeds and
        the learning rates of a grid that are not finished."""
        if self.done(cell):
            return 0.0
        whole, checkpoints = 1.0, list(self.run.glob("checkpoint-*"))
        if cell.kind == "finetuning":
            missing = set(cell.seeds) - set(self.seeds())
            rates = cell.content["recipe"]["learning_rates"]
            untried = [] if len(rates) == 1 else [rate for rate in rates if not grid_file(self.run, rate).is_file()]
            runs = len(cell.seeds) + (len(rates) if len(rates) > 1 else 0)
            whole = (len(missing) + len(untried)) / runs
            places = (self.run.glob(f"{UNFINISHED}/seed-{seed}-lr-*/checkpoint-*") for seed in missing)
            checkpoints = [*chain.from_iterable(places)]
        saved = max((int(folder.name.removeprefix("checkpoint-")) for folder in checkpoints), default=0)
        return max(1 / cell.steps, whole - saved / cell.steps)

    def seeds(self) -> list[int]:
        """Seeds that are finished, those of other plans too."""
        found = [folder for folder in self.run.glob("seed-*") if RESULT in os.listdir(folder)]
        return sorted(int(folder.name.removeprefix("seed-")) for folder in found)

    def why_failed(self) -> str | None:
        """Why it failed last, in a line; None where it did not."""
        with contextlib.suppress(FileNotFoundError):  # who tries it again removes it
            return read_json(self.failure)["reason"]
        return None

    def failure_mark(self) -> tuple[int, int] | None:
        """What tells the record of one failure from that of another; None where there is none.

        Not by clocks: that of a file server may go before or behind this machine's.
        """
        with contextlib.suppress(FileNotFoundError):
            about = self.failure.stat()
            return about.st_ino, about.st_mtime_ns
        return None

    def claim(self) -> FileLock:
        """The lock of whoever runs the cell."""
        return locked(self.lock)


def absolute(source: str) -> str:
    """A file's or folder's absolute path; a name on the hub as it is."""
    return source if source.startswith("hub:") else str(Path(source).expanduser().resolve())


def without(content: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A copy of nested values without those of some dotted names."""
    copy = json.loads(json.dumps(content))
    for name in names:
        *path, last = name.split(".")
        place = copy
        for key in path:
            place = place.get(key, {})
        place.pop(last, None)
    return copy
