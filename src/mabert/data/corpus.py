"""Documents for pretraining, from files, folders and hub data sets.

A source is written as

- `FILE`: `.txt` (also `.text`, `.md`, `.rst`, or no suffix; one paragraph per line, a blank line between documents; a
  document of more than four million characters is cut at a line end, a line of more at a space), `.jsonl` (also
  `.ndjson`; one object per line) or `.parquet`, each possibly compressed: `.xz`, `.gz`, `.zst`;
- `FOLDER`: all such files below it, sorted by path, including those in linked folders, without hidden files;
- `hub:NAME[:CONFIG][?split=train&text=text&streaming=true&revision=...&rows=1]`: a data set of the Hugging Face hub,
  such as `hub:wikimedia/wikipedia:20231101.en` (see `mabert.data.hub`).

A document is one string with line feeds between its paragraphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mabert.data import files, rows
from mabert.data.hub import HubSource
from mabert.files.reading import digest, files_below

KINDS = (".txt", ".text", ".md", ".rst", "", *rows.JSON_KINDS, ".parquet")
LONGEST = 4_000_000
"""Maximum characters of a document in a text file, more than most books have. Without it, a file without blank lines
would be held in memory and tokenised as one document."""

_PIECE = 20_000
_LONGEST_PIECE = 200_000


@dataclass(frozen=True)
class FileSource:
    """One file of documents; `text_column` is the key or column of JSONL and Parquet that holds the text."""

    path: Path
    text_column: str = "text"

    def read(self) -> Iterator[tuple[str, int]]:
        """Yields non-empty documents in file order, each with the bytes taken from disk so far.

        Raises what `files.open_bytes` does, and a ValueError if there is no text or it is not UTF-8.
        """
        found = False
        with files.open_bytes(self.path) as (stream, raw):
            for document in self._documents(stream):
                if document := document.strip():
                    found = True
                    yield document, raw.tell()
        if not found:
            raise ValueError(f"{self.path}: holds no text")

    def _documents(self, stream: BinaryIO) -> Iterator[str]:
        kind, column = files.kind(self.path), self.text_column
        if kind == ".parquet":
            table = rows.parquet_rows(self.path, stream, [], [column])
        elif kind in rows.JSON_KINDS:
            table = rows.json_rows(self.path, files.lines(stream, self.path), [column])
        else:
            return paragraphs(files.lines(stream, self.path, LONGEST))
        return (
            rows.text_in(row, column, f"{self.path}, line {number}") for number, row in table if row[column] is not None
        )

    def size(self) -> int:
        """Returns the file's size on disk in bytes."""
        return self.path.stat().st_size

    def identity(self) -> dict[str, Any]:
        """Returns absolute path, size, modification time, text column and a digest of the content."""
        files.check_can_read_twice(self.path)
        status = self.path.stat()
        return {
            "path": str(self.path.resolve()),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "text_column": self.text_column,
            "sha256": digest(self.path),
        }


Source = FileSource | HubSource
Sources = str | Path | Iterable[str | Path | Source]
"""One or several sources, written in the syntax above or parsed."""


def parse_sources(sources: Sources, text_column: str = "text") -> list[Source]:
    """Parses sources; a folder becomes the files in it.

    Args:
        sources: one or several sources in the syntax above; parsed ones stay as they are.
        text_column: the key or column with the text in JSONL and Parquet files; a hub source names its own.

    Raises:
        FileNotFoundError: a file or folder does not exist.
        ValueError: nothing was given, a file is of an unknown kind, or a folder holds no file of a known kind.
    """
    written = [sources] if isinstance(sources, str | Path) else list(sources)
    if not written:
        raise ValueError("no source of documents given: name a file, a folder or hub:NAME")
    parsed: list[Source] = []
    for source in written:
        if not isinstance(source, str | Path):
            parsed.append(source)
        elif isinstance(source, str) and source.startswith("hub:"):
            parsed.append(HubSource.parse(source))
        else:
            parsed.extend(FileSource(path, text_column) for path in _files_of(Path(source).expanduser()))
    return parsed


def read_documents(sources: Sources) -> Iterator[str]:
    """Yields the documents of the sources, one after the other; the argument is that of `parse_sources`."""
    for source in parse_sources(sources):
        for document, _ in source.read():
            yield document


def identities(sources: Sources) -> list[dict[str, Any]]:
    """Returns what identifies the sources, without paths and times; the argument is that of `parse_sources`."""
    known = (source.identity() for source in parse_sources(sources))
    return [{name: each[name] for name in each if name not in ("path", "mtime_ns")} for each in known]


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yields the documents of plain text: runs of non-blank lines, cut at a line end before they exceed `LONGEST`."""
    document: list[str] = []
    characters = 0
    for line in lines:
        line = line.rstrip("\r\n")
        blank = not line or line.isspace()
        if document and (blank or characters + len(line) > LONGEST):
            yield "\n".join(document)
            document, characters = [], 0
        if not blank:
            document.append(line)
            characters += len(line)
    yield "\n".join(document)


def pieces_of(document: str) -> Iterator[str]:
    """Cuts a document into pieces that a tokenizer takes one by one, so that one book does not keep one core busy while
    the others wait, and needs little memory: at line ends, and a line that is long for a book at white space."""
    start = 0
    while start < len(document):
        stop = document.find("\n", start + _PIECE, start + _LONGEST_PIECE) + 1
        if not stop:
            rest = document[start : start + _LONGEST_PIECE + 1]
            stop = start + (len(rest) if len(rest) <= _LONGEST_PIECE else files.place_to_cut(rest, _LONGEST_PIECE))
        yield document[start:stop]
        start = stop


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder (a hub data set is written hub:NAME)")
    if path.is_dir():
        found = [file for file in files_below(path) if files.kind(file) in KINDS and file.suffix]
        if not found:
            raise ValueError(f"{path}: no .txt, .jsonl or .parquet file (nor .xz, .gz, .zst of these) in this folder")
        return found
    if files.kind(path) not in KINDS:
        raise ValueError(
            f"{path}: unknown kind of file {files.kind(path)!r}; known are .txt, .jsonl and .parquet "
            "(write a table as .jsonl: an object a line, the text in its field text)"
        )
    return [path]
