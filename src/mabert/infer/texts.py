"""Texts and pairs of texts from files and standard input, one at a time, and in chunks that are large enough to batch
texts of similar lengths."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mabert.data.entities import sentences_of
from mabert.data.squad import questions_of
from mabert.data.words import Words
from mabert.files import tables

TEXT_COLUMN = "text"

TextRow = tuple[str, ...]
"""A text, or both texts of a pair."""


class RowOfTable(TextRow):
    """Texts of a table's row."""

    kept: dict[str, Any]  # the row's other columns that the output repeats beside the answer


CHUNK_TEXTS = 16_384
"""Most texts of a chunk."""

CHUNK_CHARACTERS = 8_000_000
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


def read_texts(source: str | Path | None, text_column: str | None = None, *, jsonl: bool = False) -> list[str]:
    """Returns all texts of a file or of standard input; see `text_rows`."""
    return [text for (text,) in text_rows(source, text_column, jsonl=jsonl)]


def text_rows(
    source: str | Path | None,
    text_column: str | None = None,
    pair_column: str | None = None,
    *,
    jsonl: bool = False,
    keep: Sequence[str] = (),
    words: bool = False,
) -> Iterable[TextRow]:
    """Streams texts from a file or standard input: one per line, or one per row of a table.

    Args:
        source: A table (`.jsonl`, `.tsv`, `.csv` or `.parquet`, see `mabert.files.tables`) or, under any other name, a
            file with one text per line; text formats may be compressed. None for standard input.
        text_column: The table's column with the text, or the first of a pair; default, `text`.
        pair_column: The column of the second text; default, there are no pairs.
        jsonl: Whether input that is no table by its name (such as standard input) holds one JSON object per line.
        keep: Further columns of a table to keep; each row is then a `RowOfTable`.
        words: Whether a column may hold a list of words instead of a text.

    Returns:
        A stream of rows.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column is given for plain text, or `jsonl` is off for `.json`. While reading: if the source is
            empty, not UTF-8 or malformed, a row lacks a column, or plain text begins with a JSON object.
    """
    path = None if source is None else Path(source)
    where = "standard input" if path is None else str(path)
    columns = [text_column or TEXT_COLUMN, *([] if pair_column is None else [pair_column])]
    if path is not None:
        tables.check_is_file(path)
        if tables.format_of(path) == ".json" and not jsonl:
            raise ValueError(
                f"{where}: JSON is read as an object a line; if it is that, name it .jsonl or give --jsonl"
            )
    lines = standard_input() if path is None else (line.rstrip("\r\n") for line in tables.lines_of_text(path))
    table = None
    if path is not None and tables.format_of(path) in tables.TABLES:
        table = tables.read_rows(path, columns, keep)
    elif jsonl:
        table = tables.json_rows(where, lines, columns, keep)
    if table is not None:
        return (text_row(place, row, columns, keep, words) for place, row in table)
    if keep:
        raise ValueError(f"{where}: lines of plain text have no columns to keep; {keep[0]!r} is asked for")
    if pair_column is not None:
        raise ValueError(f"{where}: lines of plain text hold no pairs; those need JSONL, TSV, CSV or Parquet")
    if text_column is not None:
        raise ValueError(
            f"{where}: lines of plain text have no column {text_column!r}; give --jsonl for an object a line, "
            f"or a file named {', '.join(tables.TABLES)}"
        )
    return plain_rows(where, lines)


def rows_of_task(path: Path, keep: Sequence[str] = ()) -> Iterable[TextRow]:
    """Streams what `mabert finetune` reads in a format of its own: questions with their contexts in the form of SQuAD
    (`.json`), or a word a line, whose sentences become `Words` (CoNLL, under any other suffix). Errors are those of
    `text_rows`. Where fields of a question are kept, such as `id`, each row is a `RowOfTable`."""
    tables.check_is_file(path)
    if tables.format_of(path) == ".json":
        return question_rows(path, keep)
    return ((Words(words),) for words, _, _ in sentences_of(path, tagged=False))


def question_rows(path: Path, keep: Sequence[str]) -> Iterator[TextRow]:
    """Yields each question with its context."""
    columns = ("question", "context")
    for context, question, where in questions_of(path):
        row = {**question, "context": context}
        tables.check_values(where, row, columns, keep)
        yield text_row(where, row, columns, keep)


def has_words(source: str | Path | None) -> bool:
    """Returns whether the first row of a JSONL file has `tokens` and no `text`."""
    first = {} if source is None else tables.first_row(Path(source))
    return "tokens" in first and TEXT_COLUMN not in first


def standard_input() -> Iterator[str]:
    """Yields the lines of standard input; raises ValueError if there are none, or one is not UTF-8."""
    line = None
    for line in tables.lines(sys.stdin.buffer, "standard input"):
        yield line.rstrip("\r\n")
    if line is None:
        raise ValueError("standard input is empty; one text a line is needed")


def plain_rows(where: str, lines: Iterable[str]) -> Iterator[TextRow]:
    """Yields one text per line; raises ValueError if the first that is not blank is a JSON object, which nobody means
    as text."""
    begun = False
    for number, line in enumerate(lines, 1):
        if not begun and line.strip():
            begun = True
            try:
                tables.json_object(line, "")
            except ValueError:
                pass  # a text
            else:
                raise ValueError(f"{where}, line {number}: a JSON object, where a text is read; give --jsonl")
        yield (line,)


def text_row(
    where: str, row: dict[str, Any], columns: Sequence[str], keep: Sequence[str] = (), words: bool = False
) -> TextRow:
    """Returns the texts of one row, and the columns to keep; raises ValueError for a column without text."""
    texts = tuple(
        Words(tables.texts_in(row, column, where))
        if words and isinstance(row[column], list)
        else tables.text_in(row, column, where)
        for column in columns
    )
    if not keep:
        return texts
    found = RowOfTable(texts)
    found.kept = {column: row[column] for column in keep}
    return found


def chunks(rows: Iterable[TextRow]) -> Iterator[Chunk]:
    """Yields all rows chunk by chunk; nothing if there are no rows."""
    held: list[TextRow] = []
    characters = before = 0
    for row in rows:
        held.append(row)
        characters += sum(len(text) for text in row if isinstance(text, str))  # `check_texts` refuses anything else
        if len(held) == CHUNK_TEXTS or characters >= CHUNK_CHARACTERS:
            yield Chunk(held, before, last=False)
            before, held, characters = before + len(held), [], 0
    if held:
        yield Chunk(held, before, last=True)
