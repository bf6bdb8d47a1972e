"""A step in pieces: each is written down as soon as it is there, so that a step that was cut short goes on from it."""

import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mabert.reading import read_json
from mabert_lab.bench.results import measured_on, path_of, write
from mabert_lab.bench.worker import gpu_is_lost

GPU_LOST = 75
"""Exit code of a step that lost the GPU to an error in one piece, where others were not tried yet."""


def nothing_wrong(_: Any) -> str | None:
    """What is wrong with a result, in a line: never anything."""
    return None


class Pieces:
    """What a step has measured so far, by name of the piece, in ``*-gpu-STEP.partial.json``.

    Args:
        step: Name of the step.
        folder: Of results.
        measured: What decides whether numbers may stand together: sources, GPU and versions. Pieces that were left
            there under the same are taken over; what others have left stays as it is.

    Attributes:
        done: Result of each piece that has one.
        errors: Why a piece failed, in a line. Such a piece is tried again, after all that were not tried yet.
    """

    def __init__(self, step: str, folder: Path, measured: list[str | None]) -> None:
        self.step, self.folder, self.measured = step, folder, measured
        self.done: dict[str, Any] = {}
        self.errors: dict[str, str] = {}
        self._environment = measured_on()
        for path in sorted(folder.glob(f"*-gpu-{step}.partial.json")):
            there = read_json(path)
            if there.get("measured") == measured:
                self.done, self.errors, self._environment = there["pieces"], there["errors"], there["environment"]

    def measure(
        self, pieces: Mapping[str, Callable[[], Any]], wrong: Callable[[Any], str | None] = nothing_wrong
    ) -> dict[str, Any]:
        """Measure the pieces that have no result yet. One that fails leaves its reason, and the next has its turn.

        Args:
            pieces: Name to what measures it and returns what JSON can hold; all pieces of the step.
            wrong: Tells what of a result failed, in a line; such a result is kept and counts as failed.

        Returns:
            The results by name, in the order given; a piece without one is left out.

        Raises:
            SystemExit: With `GPU_LOST`.
        """
        waiting = [name for name in pieces if name not in self.done or name in self.errors]
        untried = [name for name in waiting if name not in self.errors]
        for name in sorted(waiting, key=self.errors.__contains__):
            untried = [other for other in untried if other != name]
            reason, lost = None, False
            try:
                self.done[name] = pieces[name]()
                reason = wrong(self.done[name])
            except Exception as error:
                reason, lost = in_a_line(error), gpu_is_lost()
            self.errors.pop(name, None)
            if reason is not None:
                self.errors[name] = reason
                sys.stdout.write(f"{self.step}, {name}: {reason}\n")
                sys.stdout.flush()
            self._write()
            if lost and untried:
                raise SystemExit(GPU_LOST)
            if lost:
                break
            gc.collect()
            torch.cuda.empty_cache()
        return {name: self.done[name] for name in pieces if name in self.done}

    def remove(self) -> None:
        """Take the file away: the step's result is there."""
        self._path.unlink(missing_ok=True)

    @property
    def _name(self) -> str:
        return f"gpu-{self.step}.partial"

    @property
    def _path(self) -> Path:
        return path_of({"environment": self._environment}, self.folder, self._name)

    def _write(self) -> None:
        kept = {"measured": self.measured, "pieces": self.done, "errors": self.errors}
        write({"environment": self._environment, "step": self.step, **kept}, self.folder, self._name)


def in_a_line(error: Exception) -> str:
    """An error in a line of at most 300 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
