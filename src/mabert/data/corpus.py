"""Documents for pretraining, from files, folders and data sets of the Hugging Face hub.

A source is written as

- `FILE`: `.txt` (also `.text`, `.md`, `.rst`, or no suffix; one paragraph per line, a blank line between documents; a
  document of more than four million characters is cut at a line end, a line of more at a space), `.jsonl` (also
  `.ndjson`; one object per line) or `.parquet`, each possibly compressed: `.xz`, `.gz`, `.zst`;
- `FOLDER`: all such files below it, sorted by path, including those in linked folders, without hidden files;
- `hub:NAME[:CONFIG][?split=train&text=text&streaming=true&revision=...&rows=1]`: a data set of the hub, such as
  `hub:wikimedia/wikipedia:20231101.en`, see `HubSource`.

A document is one string with line feeds between its paragraphs.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl

from mabert.files import tables
from mabert.files.places import expanded, without_waiting
from mabert.files.reading import digest, files_below

logger = logging.getLogger(__name__)

SUFFIXES = (".txt", ".text", ".md", ".rst", "", *tables.JSON_KINDS, ".parquet")
MOST_CHARACTERS = 4_000_000
"""Maximum characters of a document in a text file, more than most books have. Without it, a file without blank lines
would be held in memory and tokenised as one document."""

_PIECE = 20_000
_LONGEST_PIECE = 200_000

SYNTAX = "hub:NAME[:CONFIG][?split=train&text=text&streaming=true&revision=...&rows=1]"
# The rows of these data sets are single sentences of books in reading order; a thousand of them make a document.
_ROWS_PER_DOCUMENT = {"bookcorpus": 1000, "bookcorpus/bookcorpus": 1000}
# The hub's branch with its own Parquet conversion of a data set that was published as a script.
_PARQUET_BRANCH = "refs/convert/parquet"


@dataclass(frozen=True)
class FileSource:
    """One file of documents; `text_column` is the key or column of JSONL and Parquet that holds the text."""

    path: Path
    text_column: str = "text"

    def read(self) -> Iterator[tuple[str, int]]:
        """Yields non-empty documents in file order, each with the bytes taken from disk so far.

        Raises what `tables.open_bytes` does, and a ValueError if there is no text or it is not UTF-8.
        """
        found = False
        with tables.open_bytes(self.path) as (stream, raw):
            for document in self._documents(stream):
                if document := document.strip():
                    found = True
                    yield document, raw.tell()
        if not found:
            raise ValueError(f"{self.path}: holds no text")

    def _documents(self, stream: BinaryIO) -> Iterator[str]:
        kind, column = tables.format_of(self.path), self.text_column
        if kind == ".parquet":
            table = tables.parquet_rows(self.path, stream, [], [column])
        elif kind in tables.JSON_KINDS:
            table = tables.json_rows(self.path, tables.lines(stream, self.path), [column])
        else:
            return paragraphs(tables.lines(stream, self.path, MOST_CHARACTERS))
        return (tables.text_in(row, column, where) for where, row in table if row[column] is not None)

    def size(self) -> int:
        """Returns the file's size on disk in bytes."""
        return self.path.stat().st_size

    def identity(self) -> dict[str, Any]:
        """Returns absolute path, size, modification time, text column and a digest of the content."""
        tables.check_can_read_twice(self.path)
        status = self.path.stat()
        return {
            "path": str(self.path.resolve()),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "text_column": self.text_column,
            "sha256": digest(self.path),
        }


@dataclass(frozen=True)
class HubSource:
    """A data set read with the `datasets` library; no code of the data set is ever run.

    Reading raises a one-line error that names the data set: FileNotFoundError if there is no such data set, ValueError
    if it lacks the configuration, split or column or the column holds anything but text, ConnectionError if the hub
    cannot be reached, and OSError if the disk is full.
    """

    name: str  # the data set, such as `wikimedia/wikipedia`, or a local folder
    config: str | None = None  # its configuration, such as `20231101.en`; None for the default one
    # `train` or any split expression of `datasets`, such as `train[:1%]` (no slices when streaming), `train+test` or
    # `all`
    split: str = "train"
    text: str = "text"  # the column that holds the text
    streaming: bool = False  # read over the network as needed instead of downloading everything first
    revision: str | None = None  # branch, tag or commit; None for the main branch
    rows: int = 1  # how many consecutive rows make one document

    @classmethod
    def parse(cls, source: str) -> HubSource:
        """Reads the written form, `hub:NAME[:CONFIG][?option=value&...]`; raises ValueError if the name is missing, or
        an option is unknown or has an invalid value."""
        path, _, query = source.removeprefix("hub:").partition("?")
        name, _, config = path.partition(":")
        if not name:
            raise ValueError(f"{source!r}: no data set named; write {SYNTAX}")
        options: dict[str, Any] = {"rows": _ROWS_PER_DOCUMENT.get(name, 1)}
        # A plus sign joins splits here, but parse_qsl would read it as a space.
        for key, value in parse_qsl(query.replace("+", "%2B"), keep_blank_values=True):
            if key not in ("split", "text", "streaming", "revision", "rows"):
                raise ValueError(f"{source!r}: unknown option {key!r}; write {SYNTAX}")
            options[key] = value
        if (streaming := options.get("streaming", "false")) not in ("true", "false"):
            raise ValueError(f"{source!r}: streaming is true or false, not {streaming!r}")
        if not str(options["rows"]).isdecimal() or int(options["rows"]) < 1:
            raise ValueError(f"{source!r}: rows is a number of rows from 1 up, not {options['rows']!r}")
        options |= {"streaming": streaming == "true", "rows": int(options["rows"])}
        return cls(name, config or None, **options)

    def read(self) -> Iterator[tuple[str, int]]:
        """Yields documents in order, each with the bytes read so far (from the share of rows; 0 if unknown)."""
        length = sum(split.num_examples for split in self._named(self._builder.info.splits or {}))
        size, texts = self.size(), self._texts()
        for count in itertools.count(self.rows, self.rows):
            rows = list(itertools.islice(texts, self.rows))
            if not rows:
                return
            if document := "\n".join(row for row in rows if row.strip()):
                yield document, int(size * min(1.0, count / length)) if size and length else 0

    def size(self) -> int | None:
        """Returns the size of the named splits in bytes, as `datasets` reports it; None if unknown."""
        return sum(split.num_bytes for split in self._named(self._builder.info.splits or {})) or None

    def identity(self) -> dict[str, Any]:
        """Returns the options, and a hub data set's name and commit, or path, times and digests of a folder's files."""
        options = {"config": self._builder.config.name, "split": self.split}
        options |= {"text_column": self.text, "rows": self.rows}
        folder = Path(self.name)
        if not folder.is_dir():
            # The commit on the hub, or, without network, the commit in the local cache.
            return {"hub": self.name, "commit": self._builder.hash, **options}
        there = self._builder.config.data_files or {}
        files = [Path(file) for found in self._named(there) or there.values() for file in found]
        place = {"path": str(folder.resolve()), "mtime_ns": [file.stat().st_mtime_ns for file in files]}
        return {**place, **options, "sha256": [digest(file) for file in files]}

    def dataset(self) -> Any:
        """Opens the split: a `datasets.Dataset`, or an `IterableDataset` when streaming."""
        from datasets.exceptions import DatasetGenerationError, DatasetsError

        builder = self._builder
        try:
            if self.streaming:
                return builder.as_streaming_dataset(split=self.split)
            builder.download_and_prepare()
            return builder.as_dataset(split=self.split)
        except (ValueError, KeyError, OSError, DatasetsError) as error:
            # A DatasetGenerationError says only that something failed; its cause says what.
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) else None
            raise self._one_line(cause or error) from error

    def _named(self, there: Mapping[str, Any]) -> list[Any]:
        """Picks the splits that the expression names from a mapping by split; an empty list if one is missing."""
        names = dict.fromkeys(part.partition("[")[0] for part in self.split.split("+"))
        wanted = list(there) if self.split == "all" else list(names)
        return [there[name] for name in wanted] if set(wanted) <= set(there) else []

    @cached_property
    def _builder(self) -> Any:
        from datasets import load_dataset_builder  # before `without_waiting`, which checks whether it is imported

        try:
            try:
                with without_waiting(self.name):
                    return load_dataset_builder(self.name, self.config, revision=self.revision)
            except RuntimeError as error:
                if "scripts are no longer supported" not in str(error) or self.revision:
                    raise
                logger.info("%s is published as a script; reading the hub's Parquet conversion of it", self.name)
                # On that branch each configuration is a folder.
                return load_dataset_builder(self.name, data_dir=self.config, revision=_PARQUET_BRANCH)
        except (FileNotFoundError, ValueError, ConnectionError, RuntimeError) as error:
            raise self._one_line(error) from error

    def _texts(self) -> Iterator[str]:
        for batch in self.dataset().iter(1000):
            if self.text not in batch:
                raise ValueError(f"hub:{self.name}: no column {self.text!r}; there is {sorted(batch)}")
            for text in batch[self.text]:
                if not isinstance(text, str | None):
                    raise ValueError(f"hub:{self.name}: column {self.text!r} holds {text!r}, not text")
                if text is not None:
                    yield text

    def _one_line(self, error: BaseException) -> Exception:
        """Makes a one-line error of the same kind that names the source."""
        kinds = (FileNotFoundError, ConnectionError, OSError)
        kind = next((kind for kind in kinds if isinstance(error, kind)), ValueError)
        return kind(f"hub:{self.name}: {' '.join(str(error).split())}")


Source = FileSource | HubSource
Sources = str | Path | Iterable[str | Path | Source]
"""One or several sources, written in the syntax above or parsed."""


def parse_sources(sources: Sources, text_column: str = "text") -> list[Source]:
    """Parses sources in the syntax above; a folder becomes the files in it, and parsed ones stay as they are.
    `text_column` is the key or column with the text in JSONL and Parquet files; a hub source names its own.

    Raises FileNotFoundError if a file or folder does not exist, and ValueError if nothing was given, a file is of an
    unknown kind, or a folder holds no file of a known kind.
    """
    written = [sources] if isinstance(sources, str | Path) else list(sources)
    if not all(written) or not written:
        raise ValueError("no source of documents given: name a file, a folder or hub:NAME")
    parsed: list[Source] = []
    for source in written:
        if not isinstance(source, str | Path):
            parsed.append(source)
        elif isinstance(source, str) and source.startswith("hub:"):
            parsed.append(HubSource.parse(source))
        else:
            parsed.extend(FileSource(path, text_column) for path in _files_of(expanded(source)))
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
    """Yields the documents of plain text: runs of non-blank lines, cut at a line end before `MOST_CHARACTERS`."""
    document: list[str] = []
    characters = 0
    for line in lines:
        line = line.rstrip("\r\n")
        blank = not line or line.isspace()
        if document and (blank or characters + len(line) > MOST_CHARACTERS):
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
            stop = start + (len(rest) if len(rest) <= _LONGEST_PIECE else tables.place_to_cut(rest, _LONGEST_PIECE))
        yield document[start:stop]
        start = stop


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder (a hub data set is written hub:NAME)")
    if path.is_dir():
        found = [file for file in files_below(path) if tables.format_of(file) in SUFFIXES and file.suffix]
        if not found:
            raise ValueError(f"{path}: no .txt, .jsonl or .parquet file (nor .xz, .gz, .zst of these) in this folder")
        return found
    if tables.format_of(path) not in SUFFIXES:
        raise ValueError(
            f"{path}: unknown kind of file {tables.format_of(path)!r}; known are .txt, .jsonl and .parquet "
            "(write a table as .jsonl: an object a line, the text in its field text)"
        )
    return [path]
