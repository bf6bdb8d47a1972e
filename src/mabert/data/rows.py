"""Reads rows of TSV, CSV, JSONL and Parquet tables with their line numbers."""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from mabert.data import files

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Numbered = Iterator[tuple[int, Row]]

JSON_KINDS = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *JSON_KINDS, ".parquet")

_AFTER_LONE_CR = re.compile(r"(?<=\r)(?!\n)")
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

# csv's default limit, 128 KiB per field, is too low for documents. This one fits a C long of 32 bits.
csv.field_size_limit(2**31 - 1)


def read_rows(path: Path, columns: Sequence[str], beside: Sequence[str] = ()) -> Numbered:
    """Yields rows of a table with at least the given columns.

    Args:
        path: `.csv` (quotes as in RFC 4180), `.tsv` (no quoting), `.jsonl`/`.ndjson` or `.parquet`, possibly compressed
            (`.xz`, `.gz`, `.zst`). For blank lines of a CSV or TSV see `fields_of`; those of JSON Lines are skipped.
        columns: required columns, with a value in every row.
        beside: required columns that may be null.

    Yields:
        Line number (row number from 1 for Parquet) and row.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: unknown kind of file, empty, not UTF-8, a column is missing, or a line is malformed.
    """
    kind = files.kind(path)
    if kind not in TABLES:
        files.check_is_file(path)
        raise ValueError(f"{path}: unknown kind of table {kind!r}; known are .csv, .tsv, .jsonl and .parquet")
    if kind == ".parquet":
        files.check_can_read_twice(path)  # the footer is read before the rows
        with files.open_bytes(path) as (stream, _):
            yield from parquet_rows(path, stream, columns, beside)
    elif kind in JSON_KINDS:
        yield from json_rows(path, files.lines_of_text(path), columns, beside)
    else:
        yield from _with_header(path, [*columns, *beside])


def first_row(path: Path) -> Row:
    """Reads the first row of a JSONL file; empty for other files, and for a pipe, which can be read only once."""
    if files.kind(path) not in JSON_KINDS or not path.is_file():
        return {}
    return next(read_rows(path, []))[1]


def tsv_line(fields: Iterable[Any]) -> str:
    """Joins fields to a TSV line without a line end; escapes tabs, line ends and backslashes, as in `\\t`."""
    return "\t".join(str(field).translate(_ESCAPES) for field in fields)


def fields_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number (from 1) and the fields of each row of a CSV or TSV.

    In a TSV, quotes are ordinary characters and a field ends at the next tab, as text/tab-separated-values defines it
    and the GLUE files need it.

    A blank line behind the first row is a row with an empty field if that row has one field, also at the end of the
    file: so a table of one column has as many rows as the same lines in a text file. If the first row has several
    fields, a blank line is no row. Those between rows are counted in a warning.
    """
    lines = _at_every_end(files.lines_of_text(path))
    if files.kind(path) == ".tsv":
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True)
    width = skipped = blank = 0
    try:
        for fields in reader:
            if not fields and width != 1:
                blank += width > 0
                continue
            width, skipped, blank = width or len(fields), skipped + blank, 0
            yield reader.line_num, fields or [""]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
    if skipped:
        logger.warning("%s: %d blank lines between rows are skipped; a row has a field for each column", path, skipped)


def json_rows(where: str | Path, lines: Iterable[str], columns: Sequence[str], beside: Sequence[str] = ()) -> Numbered:
    """Yields rows of JSON Lines and skips blank lines; see `read_rows`."""
    row = None
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = files.json_object(line.rstrip("\r\n"), f"{where}, line {number}")
            check_values(f"{where}, line {number}", row, columns, beside)
            yield number, row
    if row is None:
        raise ValueError(f"{where}: empty (no rows)")


def parquet_rows(path: Path, stream: BinaryIO, columns: Sequence[str], beside: Sequence[str] = ()) -> Numbered:
    """Yields rows of an open Parquet file, reading only these columns; see `read_rows`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = list(dict.fromkeys((*columns, *beside)))
    try:
        seekable = pa.BufferReader(stream.read()) if path.suffix.lower() in files.COMPRESSIONS else stream
        table = pq.ParquetFile(seekable)
        check_columns(path, table.schema_arrow.names, wanted)
        batches = table.iter_batches(256, columns=wanted)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            check_values(f"{path}, row {number}", row, columns, beside)
            yield number, row
    except pa.ArrowException as error:
        raise ValueError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error


def text_in(row: Row, column: str, where: str) -> str:
    """Returns the text in a column; raises ValueError if it is not text."""
    if not isinstance(row[column], str):
        raise ValueError(f"{where}: {column!r} is {row[column]!r:.60}, not text")
    return row[column]


def texts_in(row: Row, column: str, where: str) -> list[str]:
    """Returns the list of texts in a column; raises ValueError if it is not one."""
    found = row[column]
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"{where}: {column!r} is {found!r:.60}, not a list of texts")
    return found


def check_columns(path: Path, header: Sequence[str], columns: Iterable[str]) -> None:
    """Raises ValueError unless each column is in the header exactly once."""
    for column in columns:
        if header.count(column) != 1:
            problem = "no column" if column not in header else "more than one column"
            raise ValueError(f"{path}: {problem} {column!r}; the columns are {', '.join(header)}")


def check_values(where: str, row: Row, columns: Sequence[str], beside: Sequence[str]) -> None:
    for column in (*columns, *beside):
        if column not in row:
            raise ValueError(f"{where}: no {column!r}; there is {', '.join(row)}")
        if row[column] is None and column not in beside:
            raise ValueError(f"{where}: {column!r} is null; give the row a value, or leave it out")


def _at_every_end(lines: Iterable[str]) -> Iterator[str]:
    """Splits lines after a lone `\\r` too, the line end of old files."""
    for line in lines:
        yield from filter(None, _AFTER_LONE_CR.split(line)) if "\r" in line else (line,)


def header_and_fields(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Returns the first row of a CSV or TSV, and an iterator over the others as from `fields_of`."""
    lines = fields_of(path)
    header = next(lines, (0, []))[1]
    if not "".join(header).strip():
        raise ValueError(f"{path}: empty (no header line)")
    return header, lines


def _with_header(path: Path, columns: Sequence[str]) -> Numbered:
    """Yields rows; warns once if a TSV field looks like a quoted CSV field that is empty or contains quotes."""
    header, lines = header_and_fields(path)
    check_columns(path, header, columns)
    tsv = unwarned = files.kind(path) == ".tsv"
    for number, fields in lines:
        if len(fields) != len(header):
            hint = "; a .tsv has no quoting, so write what quotes a tab or a line end as .csv" if tsv else ""
            raise ValueError(f"{path}, line {number}: {len(fields)} columns where the header has {len(header)}{hint}")
        quoted = [
            field for field in fields if field == '""' or (field[:1] == field[-1:] == '"' and '""' in field[1:-1])
        ]
        if unwarned and quoted:
            unwarned = False
            message = "%s, line %d: %s keeps its quotes, since a .tsv has no quoting; a .csv has"
            logger.warning(message, path, number, quoted[0][:40])
        yield number, dict(zip(header, fields, strict=True))
