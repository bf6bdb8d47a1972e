"""Progress: a bar over bytes in a terminal, occasional lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from rich import progress
from rich.console import Console
from rich.filesize import decimal

SECONDS = 10.0
"""Minimum time before the first line, and between two lines."""


class Lines:
    """Writes occasional lines on progress to standard error if it is no terminal.

    A line that cannot be written is skipped, since the work does not depend on it.

    Args:
        title: Name of the work.
        begun: Amount done before.
        amount: Formats an amount.
        rate: Formats an amount per second.
        show: False writes nothing.
    """

    def __init__(
        self,
        title: str,
        *,
        begun: float = 0,
        amount: Callable[[float], str] = "{:,.0f}".format,
        rate: Callable[[float], str] = "{:,.2f}/s".format,
        show: bool = True,
    ) -> None:
        self._title, self._begun, self._amount, self._rate = title, begun, amount, rate
        self._console = _Console(stderr=True)
        self._shown = show and not self._console.is_terminal
        self._started = self._last = monotonic()

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Writes a line if it is time for one: the amount done, the total if known, and a note."""
        now = monotonic()
        if not self._shown or now - self._last < SECONDS:
            return
        self._last = now
        rate = (done - self._begun) / (now - self._started)
        of = "" if total is None else f"/{self._amount(total)}"
        parts = [self._title, f"{self._amount(done)}{of}", self._rate(rate)]
        if total is not None and rate > 0:
            parts.append(f"{max(total - done, 0) / rate / 60:.1f} min left")
        with suppress(OSError):
            line = "  ".join([*parts, note]).rstrip()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Console(Console):
    """A console that survives losing its reader, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ByteProgress(progress.Progress):
    """A bar over a number of bytes on standard error; without a terminal, see `Lines`.

    Args:
        title: Name of the work.
        total: Total bytes; None if not known, which leaves the rate.
        show: False shows nothing.
    """

    def __init__(self, title: str, total: int | None, show: bool = True) -> None:
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=12),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            disable=not show,
        )
        self._task = self.add_task(title, total=total, note="")
        self._total = total
        self._lines = Lines(title, amount=_bytes, rate=lambda rate: f"{_bytes(rate)}/s", show=show)

    def advance_to(self, done: int, note: str = "") -> None:
        """Sets the bytes done so far and a note beside the bar."""
        self.update(self._task, completed=done, note=note)
        self._lines.update(done, self._total, note)


def _bytes(number: float) -> str:
    return decimal(int(number))
