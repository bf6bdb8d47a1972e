"""Progress: a bar with rate and time left in a terminal, occasional lines elsewhere."""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from rich import progress
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

SECONDS = 10.0
"""Minimum time before the first line, and between two lines."""


class Bar(progress.Progress):
    """A context that shows a bar on standard error, or without a terminal, lines of the same.

    `total` is the amount of work, None if it is not known yet; `begun` of it was done before. `amount` and `rate`
    format an amount, and one per second.

    A line that cannot be written is skipped, since the work does not depend on it.
    """

    def __init__(
        self,
        title: str,
        total: float | None,
        *,
        begun: float = 0,
        amount: Callable[[float], str] = "{:,.0f}".format,
        rate: Callable[[float], str] = "{:,.2f}/s".format,
        show: bool = True,
        console: Console | None = None,
    ) -> None:
        self._amount, self._rate, self._begun = amount, rate, begun
        console = console or _Console(stderr=True)
        super().__init__(
            _Column(lambda task: task.description),
            progress.BarColumn(bar_width=10),
            _Column(lambda task: self._done_of(task.completed, task.total)),
            _Column(lambda task: rate(task.speed or 0)),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            _Column(lambda task: task.fields["note"]),
            console=console,
            disable=not (show and console.is_terminal),
            # Otherwise rich would sit between standard output, which carries answers, and its file or pipe.
            redirect_stdout=False,
        )
        self.add_task(title, total=total, note="")
        self.state = self.tasks[0]
        self.state.completed = begun
        self._lines = show and not console.is_terminal
        self._started = self._last = monotonic()

    def advance_to(self, done: float, note: str | None = None) -> None:
        """Sets the amount done so far, and the note beside the bar if one is given."""
        self.update(self.state.id, completed=done, note=self.state.fields["note"] if note is None else note)
        if self._lines and (now := monotonic()) - self._last >= SECONDS:
            self._last = now
            self._write_line((done - self._begun) / (now - self._started))

    def add(self, count: float, total: float | None = None) -> None:
        """Adds to the amount done; sets the whole amount if given."""
        self.update(self.state.id, total=total)
        self.advance_to(self.state.completed + count)

    def _write_line(self, rate: float) -> None:
        done, total = self.state.completed, self.state.total
        parts = [self.state.description, self._done_of(done, total), self._rate(rate)]
        if total is not None and rate > 0:
            parts.append(f"{max(total - done, 0) / rate / 60:.1f} min left")
        with suppress(OSError):
            line = "  ".join([*parts, self.state.fields["note"]]).rstrip()
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _done_of(self, done: float, total: float | None) -> str:
        return self._amount(done) + ("" if total is None else f"/{self._amount(total)}")


class _Column(progress.ProgressColumn):
    """Text made from the state of the work, which may hold square brackets."""

    def __init__(self, text: Callable[[progress.Task], str]) -> None:
        super().__init__()
        self._text = text

    def render(self, task: progress.Task) -> Text:
        return Text(self._text(task), no_wrap=True)


class _Console(Console):
    """A console that survives losing its reader, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def in_bytes(title: str, total: int | None, show: bool = True) -> Bar:
    """Returns a bar over a number of bytes; see `Bar`."""
    return Bar(title, total, amount=_bytes, rate=lambda rate: f"{_bytes(rate)}/s", show=show)


def _bytes(number: float) -> str:
    return decimal(int(number))
