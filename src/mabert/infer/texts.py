"""Texts and pairs of texts from files and standard input."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mabert.data import files, rows

TABLES = (".jsonl", ".ndjson", ".tsv", ".csv", ".parquet")


def read_texts(source: str | Path | None, text_column: str = "text", *, jsonl: bool = False) -> list[str]:
    """Texts from a file or standard input: one a line, or one a row of a table.

    Args:
        source: A table (`.jsonl`, `.tsv`, `.csv` or `.parquet`, see `mabert.data.rows`) or, under any other name, a
            text a line; the text formats possibly compressed. None or `-` for standard input.
        text_column: The column of a table that holds the text.
        jsonl: Whether what is no table by its name (standard input, above all) holds an object a line.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is empty, not UTF-8 or malformed, `.json` that is not said to hold an object a line, or a row
            lacks the column.
    """
    return read_columns(source, [text_column], jsonl)[0]


def read_pairs(
    source: str | Path | None, text_column: str, pair_column: str, *, jsonl: bool = False
) -> tuple[list[str], list[str]]:
    """First and second texts of pairs from a table.

    Args:
        source: As for `read_texts`.
        text_column: The column of the first text.
        pair_column: The column of the second.
        jsonl: As for `read_texts`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: As `read_texts`, or if it holds a text a line.
    """
    first, second = read_columns(source, [text_column, pair_column], jsonl)
    return first, second


def read_columns(source: str | Path | None, columns: Sequence[str], jsonl: bool) -> list[list[str]]:
    """The texts of each column, a list a column; see `read_texts`."""
    path = None if source in (None, "-") else Path(source)
    where = "standard input" if path is None else str(path)
    if path is not None and files.kind(path) in TABLES:
        found = [text_row(f"{where}, line {number}", row, columns) for number, row in rows.read_rows(path, [*columns])]
    elif path is not None and files.kind(path) == ".json" and not jsonl:
        raise ValueError(f"{where}: JSON is read as an object a line; if it is that, name it .jsonl or give --jsonl")
    else:
        lines = standard_input() if path is None else lines_of(path)
        if jsonl:
            found = list(json_rows(where, lines, columns))
        elif len(columns) == 1:
            found = [[line] for line in lines]
        else:
            raise ValueError(f"{where}: lines of plain text hold no pairs; those need JSONL, TSV, CSV or Parquet")
    return [[row[place] for row in found] for place in range(len(columns))]


def lines_of(path: Path) -> list[str]:
    """The lines of a file."""
    with files.open_bytes(path) as (stream, _):
        return list(files.lines(path, stream))


def standard_input() -> list[str]:
    """The lines of standard input.

    Raises:
        ValueError: If there are none, or one is not UTF-8.
    """
    lines = list(decode(sys.stdin.buffer))
    if not lines:
        raise ValueError("standard input is empty; one text a line is needed")
    return lines


def decode(stream: Iterable[bytes]) -> Iterator[str]:
    """Lines of standard input as text, without line ends and without a byte order mark.

    Raises:
        ValueError: If a line is not UTF-8; names line and byte.
    """
    offset = 0
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            byte, place = line[error.start], offset + error.start
            raise ValueError(f"standard input, line {number}: not UTF-8: byte 0x{byte:02x} at offset {place}") from None
        offset += len(line)
        yield text.removeprefix("\ufeff") if number == 1 else text


def json_rows(where: str, lines: Iterable[str], columns: Sequence[str]) -> Iterator[list[str]]:
    """The texts of each line that is not blank.

    Raises:
        ValueError: If a line is no JSON object, or lacks a text.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{where}, line {number}"
        yield text_row(place, files.json_object(line, place), columns)


def text_row(where: str, row: dict[str, Any], columns: Sequence[str]) -> list[str]:
    """The texts of one row.

    Raises:
        ValueError: If there is no such column, or something else in it.
    """
    for column in columns:
        if column not in row:
            raise ValueError(f"{where}: no value for {column!r}; there is {', '.join(row)}")
        if not isinstance(row[column], str):
            raise ValueError(f"{where}: {column!r} is {row[column]!r}, not text")
    return [row[column] for column in columns]
