"""A progress bar over bytes, with rate and time left."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import (
    Progress as RichProgress,
)


class Progress:
    """Shows how many of a number of bytes are done, on standard error.

    Args:
        title: what is being done.
        total: bytes in all; None where that is not known, which leaves the rate.
        show: False shows nothing.
    """

    def __init__(self, title: str, total: int | None, show: bool = True) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            disable=not show,
        )
        self._task = self._bar.add_task(title, total=total, note="")

    def update(self, done: int, note: str = "") -> None:
        """Sets the bytes done so far and a note beside the bar."""
        self._bar.update(self._task, completed=done, note=note)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
