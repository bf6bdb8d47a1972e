"""Texts as a stream, so many at a time that batches of like length can be made of them, however many there are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Row = tuple[str, ...]
"""A text, or the two of a pair."""


class RowOfTable(Row):
    """Texts of a table's row.

    Attributes:
        kept: What else of the row is to stand beside its answer, by column.
    """

    kept: dict[str, Any]


TEXTS = 16_384
CHARACTERS = 8_000_000
"""Of a window at most, but for its last text. Its ids are Python lists, up to some 40 bytes a token: about 100 MB."""


@dataclass(frozen=True)
class Window:
    """Texts that follow one another.

    Attributes:
        rows: They.
        before: How many came before them.
        last: Whether the source was seen to end with them.
    """

    rows: list[Row]
    before: int
    last: bool

    @property
    def name(self) -> str:
        """What they are, for messages."""
        if self.last and not self.before:
            return "the input"
        return f"the input, texts {self.before + 1} to {self.before + len(self.rows)}"


def windows(rows: Iterable[Row]) -> Iterator[Window]:
    """All rows, window by window; none for no rows."""
    held: list[Row] = []
    characters = before = 0
    for row in rows:
        held.append(row)
        characters += sum(len(text) for text in row if isinstance(text, str))  # `encode_texts` refuses anything else
        if len(held) == TEXTS or characters >= CHARACTERS:
            yield Window(held, before, last=False)
            before, held, characters = before + len(held), [], 0
    if held:
        yield Window(held, before, last=True)
