"""Rows of tables: TSV, CSV, JSONL and Parquet, each row with the line it stands on."""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mabert.data import files

logger = logging.getLogger(__name__)

Row = dict[str, Any]

_AFTER_LONE_CR = re.compile(r"(?<=\r)(?!\n)")
_DOUBLED_QUOTES = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_BATCH = 1000
"""Rows of Parquet that are held at once."""
_LONGEST_FIELD = 2**31 - 1
"""Characters; more than a C long holds where that has 32 bits, as on Windows, is refused."""


def tsv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers from 1 and fields of the non-empty lines of a TSV.

    Quotes are ordinary characters and a field ends at the next tab, as the text/tab-separated-values type has it and
    the GLUE files need.
    """
    for number, line in enumerate(_at_every_end(files.lines_of_text(path)), 1):
        if line := line.rstrip("\r\n"):
            yield number, line.split("\t")


def tsv_line(fields: Iterable[Any]) -> str:
    """Fields as a line of a TSV, without its end; tabs, line ends and backslashes in them are escaped, as `\\t`."""
    return "\t".join(str(field).translate(_ESCAPES) for field in fields)


def _at_every_end(lines: Iterable[str]) -> Iterator[str]:
    """Lines that end with `\\n` or `\\r\\n`, cut behind a lone `\\r` as well, which old files end lines with."""
    for line in lines:
        if "\r" in line:
            yield from filter(None, _AFTER_LONE_CR.split(line))
        else:
            yield line


def read_rows(path: Path, columns: list[str], beside: Sequence[str] = ()) -> Iterator[tuple[int, Row]]:
    """Rows of a table with at least the given columns.

    Args:
        path: `.csv` (quotes as in RFC 4180), `.tsv` (no quoting), `.jsonl`/`.ndjson` or `.parquet`; the text formats
            may be compressed (`.xz`, `.gz`, `.zst`).
        columns: names that must be there, with a value in every row.
        beside: names that must be there; a row may have null in them.

    Yields:
        Line number (row number from 1 for Parquet) and row.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: unknown kind of file, empty, not UTF-8, a column is missing, or a line is malformed.
    """
    kind = files.kind(path)
    if kind == ".tsv":
        yield from _told_of_quotes(path, _with_header(path, tsv_lines(path), [*columns, *beside]))
    elif kind == ".csv":
        yield from _with_header(path, _csv_lines(path), [*columns, *beside])
    elif kind in (".jsonl", ".ndjson"):
        yield from _json_rows(path, columns, beside)
    elif kind == ".parquet":
        yield from _parquet_rows(path, columns, beside)
    else:
        files.check_is_file(path)
        raise ValueError(f"{path}: unknown kind of table {kind!r}; known are .csv, .tsv, .jsonl and .parquet")


def count(path: Path) -> int | None:
    """How many rows a table has, where that is known without reading it: of a readable Parquet file."""
    if files.kind(path) != ".parquet" or not path.is_file():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):  # which reading it will tell of
        return None


def check_columns(path: Path, header: list[str], columns: list[str]) -> None:
    """Raises ValueError unless each column stands in the header exactly once."""
    for column in columns:
        if header.count(column) != 1:
            problem = "no column" if column not in header else "more than one column"
            raise ValueError(f"{path}: {problem} {column!r}; the columns are {', '.join(header)}")


def check_values(where: str, row: Row, columns: Sequence[str], beside: Sequence[str] = ()) -> None:
    """Raises ValueError unless the row has all columns, and a value in each but those `beside`."""
    for column in (*columns, *beside):
        if column not in row:
            raise ValueError(f"{where}: no {column!r}; there is {', '.join(row)}")
        if row[column] is None and column not in beside:
            raise ValueError(f"{where}: {column!r} is null; give the row a value, or leave it out")


def _with_header(path: Path, lines: Iterator[tuple[int, list[str]]], columns: list[str]) -> Iterator[tuple[int, Row]]:
    _, header = next(lines)
    check_columns(path, header, columns)
    for number, fields in lines:
        if len(fields) != len(header):
            quoted = files.kind(path) == ".tsv" and any(field.startswith('"') for field in fields)
            raise ValueError(
                f"{path}, line {number}: {len(fields)} columns where the header has {len(header)}"
                + ("; a .tsv has no quoting, so write what quotes a tab or a line end as .csv" if quoted else "")
            )
        yield number, dict(zip(header, fields, strict=True))


def _told_of_quotes(path: Path, table: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """The same rows; warns once where a field looks as CSV writers, pandas' among them, quote one that holds quotes."""
    told = False
    for number, row in table:
        if not told and (field := next(filter(_DOUBLED_QUOTES.fullmatch, row.values()), None)) is not None:
            told = True
            logger.warning(
                "%s, line %d: %s keeps its quotes, since a .tsv has no quoting; a .csv has", path, number, field[:40]
            )
        yield number, row


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(_at_every_end(files.lines_of_text(path)), strict=True)
    try:
        while (fields := _next_of(reader)) is not None:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not CSV: {error}") from error


def _next_of(reader: Iterator[list[str]]) -> list[str] | None:
    """The next fields; None at the end. The module's limit of 128 KiB a field is too low for documents; it is a global
    setting, so it is put back before anybody else reads."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _json_rows(path: Path, columns: list[str], beside: Sequence[str]) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(files.lines_of_text(path), 1):
        if not line.strip():
            continue
        row = files.json_object(line, f"{path}, line {number}")
        check_values(f"{path}, line {number}", row, columns, beside)
        yield number, row


def _parquet_rows(path: Path, columns: list[str], beside: Sequence[str]) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files.check_can_read_twice(path)  # its end is read before its rows
    try:
        with pq.ParquetFile(path) as table:
            check_columns(path, table.schema_arrow.names, [*columns, *beside])
            number = 0
            for batch in table.iter_batches(_BATCH, columns=list(dict.fromkeys((*columns, *beside)))):
                for row in batch.to_pylist():
                    number += 1
                    check_values(f"{path}, row {number}", row, columns, beside)
                    yield number, row
    except pa.ArrowException as error:
        raise ValueError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error
