"""A stream of texts in chunks, large enough to batch texts of similar lengths, however many there are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

TextRow = tuple[str, ...]
"""A text, or both texts of a pair."""


class RowOfTable(TextRow):
    """Texts of a table's row."""

    kept: dict[str, Any]  # the row's other columns that the output repeats beside the answer


TEXTS = 16_384
CHARACTERS = 8_000_000
"""Most characters of a chunk, except for its last text. Ids are Python lists, up to 40 bytes a token: about 100 MB."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive texts of a stream."""

    rows: list[TextRow]
    before: int  # number of texts before them
    last: bool  # whether the source is known to end with them

    @property
    def name(self) -> str:
        """Name of the texts in messages."""
        if self.last and not self.before:
            return "the input"
        return f"the input, texts {self.before + 1} to {self.before + len(self.rows)}"


def chunks(rows: Iterable[TextRow]) -> Iterator[Chunk]:
    """Yields all rows chunk by chunk; nothing if there are no rows."""
    held: list[TextRow] = []
    characters = before = 0
    for row in rows:
        held.append(row)
        characters += sum(len(text) for text in row if isinstance(text, str))  # `encode_texts` refuses anything else
        if len(held) == TEXTS or characters >= CHARACTERS:
            yield Chunk(held, before, last=False)
            before, held, characters = before + len(held), [], 0
    if held:
        yield Chunk(held, before, last=True)
