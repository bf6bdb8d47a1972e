"""Files that people give: plain, `.xz`, `.gz` or `.zst`, as text or as rows of CSV, TSV, JSONL and Parquet.

`datasets` reads the same formats, but its errors name neither offset nor line, it cannot open pipes, and it reads half
of a `.zst` file as an empty one.
"""

import codecs
import csv
import gzip
import io
import itertools
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from mabert.files.reading import parse_json

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Placed = Iterator[tuple[str, Row]]
"""Rows of a table, each with where it stands, for messages: `a.csv, line 3`, or `a.parquet, row 3`."""

JSON_KINDS = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *JSON_KINDS, ".parquet")

_BLOCK = 1 << 20
_AFTER_LONE_CR = re.compile(r"(?<=\r)(?!\n)")
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

# csv's default limit, 128 KiB per field, is too low for documents. This one fits a C long of 32 bits.
csv.field_size_limit(2**31 - 1)


def _zstd(raw: BinaryIO) -> BinaryIO:
    import pyarrow as pa

    # Unlike zstandard's own reader, Arrow's notices a truncated file.
    return io.BufferedReader(pa.CompressedInputStream(raw, "zstd"), _BLOCK)


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {".xz": lzma.open, ".gz": gzip.open, ".zst": _zstd}
COMPRESSIONS = tuple(_OPENERS)


def format_of(path: Path) -> str:
    """Returns the lower-case suffix under any compression: `.txt` for `a.txt` and `a.TXT.xz`, `""` for none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Yields the decompressed stream of a file, and the raw file beneath it, whose `tell()` counts the bytes taken from
    disk. Raises what `check_is_file` does, and ValueError if compressed data is truncated or damaged."""
    check_is_file(path)
    suffix = path.suffix.lower()
    with path.open("rb") as raw:
        try:
            opened = _OPENERS[suffix](raw) if suffix in _OPENERS else raw
            yield opened, raw
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and (error.errno is not None or suffix not in COMPRESSIONS):
                raise
            if isinstance(error, EOFError) or "Truncated" in str(error):
                damage = "truncated: the compressed data ends before its end mark; fetch it again"
            else:
                damage = f"damaged, or not {suffix} data: {error}"
            raise ValueError(f"{path}: {damage}") from error


def check_is_file(path: Path) -> None:
    """Raises FileNotFoundError or ValueError unless `path` is a non-empty file or a pipe."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: a folder, where a file is needed")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path}: empty (0 bytes)")


def check_can_read_twice(path: Path) -> None:
    """Raises FileNotFoundError or ValueError unless `path` is a file that can be read more than once, not a pipe."""
    check_is_file(path)
    if not path.is_file():
        raise ValueError(f"{path}: a pipe, which can be read once; write what comes from it to a file")


def lines(stream: Iterable[bytes], where: str | Path, longest: int | None = None) -> Iterator[str]:
    """Decodes lines of `where` as UTF-8. Keeps line ends, which a quoted CSV field may contain; drops a byte order
    mark. A line of more than `longest` characters, of a binary file, comes in parts that are cut by `place_to_cut`, and
    is never held whole.

    Raises a ValueError that names `where`, the byte and its offset in the (decompressed) text if a line is not UTF-8.
    """
    blocks = stream if longest is None else iter(partial(cast(BinaryIO, stream).readline, _BLOCK), b"")
    number, before, tail, held = 1, 0, b"", ""
    for block in itertools.chain(blocks, [b""]):
        ends = longest is None or block[-1:] in (b"\n", b"")
        data = tail + block
        try:
            text, used = codecs.utf_8_decode(data, "strict", ends)
        except UnicodeDecodeError as error:
            byte = f"byte 0x{data[error.start]:02x} at offset {before + error.start}"
            raise ValueError(f"{where}, line {number}: not UTF-8: {byte}; convert it to UTF-8") from error
        held += text if before else text.removeprefix("\ufeff")
        before, tail = before + used, data[used:]
        while longest is not None and len(held) > longest and len(held.rstrip("\r\n")) > longest:
            cut = place_to_cut(held, longest)
            yield held[:cut]
            held = held[cut:]
        if ends and held:
            yield held
            number, held = number + 1, ""


def place_to_cut(text: str, longest: int) -> int:
    """Returns where to cut a text of more than `longest` characters: before the last white space that leaves at most so
    many, or after so many if there is none. White space begins what follows, as tokenizers of every kind need it."""
    parts = text[: longest + 1].rsplit(None, 1)
    return len(parts[0]) if len(parts) == 2 else longest


def lines_of_text(path: Path) -> Iterator[str]:
    """Yields the lines of a (decompressed) file with their ends; errors are those of `open_bytes` and `lines`."""
    with open_bytes(path) as (stream, _):
        yield from lines(stream, path)


def read_text(path: Path) -> str:
    """Reads a whole (decompressed) file as text and keeps its line ends; raises ValueError if it is all white space."""
    text = "".join(lines_of_text(path))
    if not text.strip():
        raise ValueError(f"{path}: empty (nothing but white space)")
    return text


def json_object(line: str, where: str) -> dict[str, Any]:
    """Reads a row of JSON Lines; raises a ValueError that names `where` if it is not a JSON object."""
    row = parse_json(line, where, nan=True, line=False)
    if not isinstance(row, dict):
        raise ValueError(f"{where}: not an object but {line.strip()[:40]!r}")
    return row


def read_rows(path: Path, columns: Sequence[str], beside: Sequence[str] = ()) -> Placed:
    """Yields the rows of a table, each with its place: `.csv` (quotes as in RFC 4180), `.tsv` (no quoting),
    `.jsonl`/`.ndjson` or `.parquet`, possibly compressed (`.xz`, `.gz`, `.zst`).

    Every row must have a value in `columns`; those `beside` must be there and may be null. For blank lines of a CSV or
    TSV see `fields_of`; those of JSON Lines are skipped.

    Raises FileNotFoundError if there is no such file, and ValueError if it is of an unknown kind, empty or not UTF-8, a
    column is missing, or a line is malformed.
    """
    kind = format_of(path)
    if kind not in TABLES:
        check_is_file(path)
        raise ValueError(f"{path}: unknown kind of table {kind!r}; known are .csv, .tsv, .jsonl and .parquet")
    if kind == ".parquet":
        check_can_read_twice(path)  # the footer is read before the rows
        with open_bytes(path) as (stream, _):
            yield from parquet_rows(path, stream, columns, beside)
    elif kind in JSON_KINDS:
        yield from json_rows(path, lines_of_text(path), columns, beside)
    else:
        yield from _with_header(path, [*columns, *beside])


def first_row(path: Path) -> Row:
    """Reads the first row of a JSONL file; empty for other files, and for a pipe, which can be read only once."""
    if format_of(path) not in JSON_KINDS or not path.is_file():
        return {}
    return next(read_rows(path, []))[1]


def tsv_line(fields: Iterable[Any]) -> str:
    """Joins fields to a TSV line without a line end; escapes tabs, line ends and backslashes, as in `\\t`."""
    return "\t".join(str(field).translate(_ESCAPES) for field in fields)


def fields_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number (from 1) and the fields of each row of a CSV or TSV.

    In a TSV, quotes are ordinary characters and a field ends at the next tab, as text/tab-separated-values defines it
    and the GLUE files need it.

    A blank line is no row if the first row has several fields; a warning counts those between rows. If the first row
    has one field, a later blank line is a row with an empty field, also at the end of the file: so a table of one
    column has as many rows as the same lines in a text file.
    """
    lines = _at_every_end(lines_of_text(path))
    if format_of(path) == ".tsv":
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True)
    width = skipped = blank = began = 0
    try:
        for fields in reader:
            began = reader.line_num
            if not fields and width != 1:
                blank += width > 0
                continue
            width, skipped, blank = width or len(fields), skipped + blank, 0
            yield reader.line_num, fields or [""]
    except csv.Error as error:
        where = f"{path}, line {reader.line_num}"
        raise ValueError(f"{where}: not CSV: {error}; the row begins in line {began + 1}") from error
    if skipped:
        logger.warning("%s: %d blank lines between rows are skipped; a row has a field for each column", path, skipped)


def json_rows(where: str | Path, lines: Iterable[str], columns: Sequence[str], beside: Sequence[str] = ()) -> Placed:
    """Yields rows of JSON Lines and skips blank lines; see `read_rows`."""
    row = None
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{where}, line {number}"
            row = json_object(line.rstrip("\r\n"), place)
            check_values(place, row, columns, beside)
            yield place, row
    if row is None:
        raise ValueError(f"{where}: empty (no rows)")


def parquet_rows(path: Path, stream: BinaryIO, columns: Sequence[str], beside: Sequence[str] = ()) -> Placed:
    """Yields rows of an open Parquet file, reading only these columns; see `read_rows`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = list(dict.fromkeys((*columns, *beside)))
    try:
        seekable = pa.BufferReader(stream.read()) if path.suffix.lower() in COMPRESSIONS else stream
        table = pq.ParquetFile(seekable)
        check_columns(path, table.schema_arrow.names, wanted)
        batches = table.iter_batches(256, columns=wanted)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            place = f"{path}, row {number}"
            check_values(place, row, columns, beside)
            yield place, row
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


def _with_header(path: Path, columns: Sequence[str]) -> Placed:
    """Yields rows; warns once if a TSV field looks like a quoted CSV field that is empty or contains quotes."""
    header, lines = header_and_fields(path)
    check_columns(path, header, columns)
    tsv = unwarned = format_of(path) == ".tsv"
    for number, fields in lines:
        place = f"{path}, line {number}"
        if len(fields) != len(header):
            hint = "; a .tsv has no quoting, so write what quotes a tab or a line end as .csv" if tsv else ""
            raise ValueError(f"{place}: {len(fields)} columns where the header has {len(header)}{hint}")
        quoted = [
            field for field in fields if field == '""' or (field[:1] == field[-1:] == '"' and '""' in field[1:-1])
        ]
        if unwarned and quoted:
            unwarned = False
            message = "%s: %s keeps its quotes, since a .tsv has no quoting; a .csv has"
            logger.warning(message, place, quoted[0][:40])
        yield place, dict(zip(header, fields, strict=True))
