"""Documents from a data set on the Hugging Face hub, or from a local folder that `datasets` reads the same way."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from mabert.files.places import without_waiting
from mabert.files.reading import digest

logger = logging.getLogger(__name__)

SYNTAX = "hub:NAME[:CONFIG][?split=train&text=text&streaming=true&revision=...&rows=1]"
# The rows of these data sets are single sentences of books in reading order; a thousand of them make a document.
_ROWS_PER_DOCUMENT = {"bookcorpus": 1000, "bookcorpus/bookcorpus": 1000}
# The hub's branch with its own Parquet conversion of a data set that was published as a script.
_PARQUET_BRANCH = "refs/convert/parquet"


@dataclass(frozen=True)
class HubSource:
    """A data set read with the `datasets` library; no code of the data set is ever run.

    Attributes:
        name: the data set, such as `wikimedia/wikipedia`, or a local folder.
        config: its configuration, such as `20231101.en`; None for the default one.
        split: `train` or any split expression of `datasets`, such as `train[:1%]` (no slices when streaming),
            `train+test` or `all`.
        text: the column that holds the text.
        streaming: read over the network as needed instead of downloading everything first.
        revision: branch, tag or commit; None for the main branch.
        rows: how many consecutive rows make one document.

    Reading raises a one-line error that names the data set: FileNotFoundError if there is no such data set, ValueError
    if it lacks the configuration, split or column or the column holds anything but text, ConnectionError if the hub
    cannot be reached, and OSError if the disk is full.
    """

    name: str
    config: str | None = None
    split: str = "train"
    text: str = "text"
    streaming: bool = False
    revision: str | None = None
    rows: int = 1

    @classmethod
    def parse(cls, source: str) -> HubSource:
        """Reads the written form, `hub:NAME[:CONFIG][?option=value&...]`.

        Raises:
            ValueError: the name is missing, or an option is unknown or has an invalid value.
        """
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
