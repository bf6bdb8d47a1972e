"""Building the token cache: read ahead, encode in parallel, write once, rename when complete."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import logging
import os
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from mabert.data.cache import IDS, MANIFEST, OFFSETS, TokenCache
from mabert.data.corpus import Source, Sources, parse_sources
from mabert.data.npy import NpyWriter
from mabert.data.progress import Progress
from mabert.data.tokenizer import fingerprint, special_ids
from mabert.writing import locked, whole_folder

logger = logging.getLogger(__name__)

# Raise this whenever the same sources and tokenizer would give another cache.
FORMAT = 2
_BATCH_CHARACTERS = 2_000_000
_PIECE_CHARACTERS = 20_000
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def build_cache(
    sources: Sources,
    tokenizer: PreTrainedTokenizerFast,
    folder: str | Path,
    *,
    text_column: str = "text",
    max_tokens: int | None = None,
    max_documents: int | None = None,
    progress: bool = True,
) -> TokenCache:
    """Tokenises a corpus once, or opens the cache that holds the same.

    The cache lies in a subfolder of `folder` named after all that decides its content: each source (for files path,
    size, modification time and content), the tokenizer, the limits, the version of the format and of the tokenizers
    library. If that subfolder is there, it is reused; otherwise it is built beside its place and renamed when complete,
    so that a killed build leaves nothing that looks finished. Several processes may call this at once: one builds, the
    others wait and reuse.

    Encoding runs on all cores, in the tokenizers library's own threads, while the next documents are read and
    decompressed. Strings such as `[MASK]` in the text are encoded as text.

    Args:
        sources: see `mabert.data.corpus`.
        tokenizer: a fast tokenizer with the five special tokens (`load_tokenizer`).
        folder: where caches are kept.
        text_column: the key or column with the text in JSONL and Parquet files.
        max_tokens: stop after exactly so many tokens, cutting the last document.
        max_documents: stop after so many (non-empty) documents.
        progress: show a progress bar with rate and time left.

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: a source cannot be read, holds no text, or a limit is below 1.
        OSError: the disk is full (`ENOSPC`); nothing half-built is left.
    """
    for name, limit in (("max_tokens", max_tokens), ("max_documents", max_documents)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} is {limit}; it must be at least 1")
    parsed = parse_sources(sources, text_column)
    recipe = {
        "format": FORMAT,
        "tokenizers": tokenizers.__version__,
        "tokenizer": fingerprint(tokenizer),
        "max_tokens": max_tokens,
        "max_documents": max_documents,
        "sources": [source.identity() for source in parsed],
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    place = Path(folder).expanduser() / key
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.with_name(f".{key}.lock")):
        if place.exists():
            logger.info("reusing the token cache %s", place)
            return TokenCache(place)
        _build(place, parsed, tokenizer, recipe, _Limits(max_tokens, max_documents), progress)
    return TokenCache(place)


@dataclass
class _Limits:
    tokens: int | None
    documents: int | None


@dataclass
class _Batch:
    """Pieces of text to encode, and how many pieces each document has."""

    pieces: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    characters: int = 0
    position: int = 0

    def add(self, document: str, position: int) -> None:
        pieces = _pieces(document)
        self.pieces += pieces
        self.counts.append(len(pieces))
        self.characters += len(document)
        self.position = position


def _build(
    place: Path,
    sources: list[Source],
    tokenizer: PreTrainedTokenizerFast,
    recipe: dict[str, Any],
    limits: _Limits,
    progress: bool,
) -> None:
    started = time.monotonic()
    try:
        with whole_folder(place) as building:
            counts = _write_arrays(building, sources, tokenizer, limits, progress)
            manifest = recipe | counts | {"special_ids": special_ids(tokenizer), "vocab_size": len(tokenizer)}
            manifest["seconds"] = round(time.monotonic() - started, 3)
            with (building / MANIFEST).open("w", encoding="utf-8") as file:
                json.dump(manifest, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        told = f"no space left while writing the token cache in {place.parent}; nothing half-built was left there"
        raise OSError(error.errno, told) from error


def _write_arrays(
    building: Path, sources: list[Source], tokenizer: PreTrainedTokenizerFast, limits: _Limits, progress: bool
) -> dict[str, Any]:
    encoder = _encoder(tokenizer)
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    offsets = array("q", [0])
    sizes = [source.size() for source in sources]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    with NpyWriter(building / IDS, dtype) as ids, Progress("tokenising", total, progress) as bar:
        for batch in _read_ahead(_batches(sources)):
            encoded, lengths = _encode(encoder, batch, dtype)
            lengths, stop = _within(limits, lengths, offsets)
            ids.write(encoded[: sum(lengths)])
            offsets.extend(list(itertools.accumulate(lengths, initial=offsets[-1]))[1:])
            bar.update(batch.position, f"{offsets[-1] / 1e6:.1f} M tokens")
            if stop:
                break
    if len(offsets) == 1:
        raise ValueError("the sources hold no text that gives a token")
    with NpyWriter(building / OFFSETS, np.dtype(np.int64)) as file:
        file.write(np.frombuffer(offsets, dtype=np.int64))
    return {"documents": len(offsets) - 1, "tokens": offsets[-1]}


def _encoder(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy that neither cuts nor pads, and takes the names of special tokens in a text for text."""
    encoder = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    return encoder


def _encode(encoder: Tokenizer, batch: _Batch, dtype: np.dtype) -> tuple[np.ndarray, list[int]]:
    """All ids of a batch in one array, and the number of tokens of each of its documents that has any."""
    pieces = [encoding.ids for encoding in encoder.encode_batch_fast(batch.pieces, add_special_tokens=False)]
    sizes = iter([len(piece) for piece in pieces])
    lengths = [sum(itertools.islice(sizes, count)) for count in batch.counts]
    total = sum(lengths)
    ids = np.fromiter(itertools.chain.from_iterable(pieces), dtype, total)
    return ids, [length for length in lengths if length]


def _within(limits: _Limits, lengths: list[int], offsets: array[int]) -> tuple[list[int], bool]:
    """The lengths that still fit the limits, the last one cut, and whether a limit is reached."""
    stop = False
    if limits.documents is not None:
        room = limits.documents - (len(offsets) - 1)
        lengths, stop = lengths[:room], room <= len(lengths)
    if limits.tokens is not None:
        room = limits.tokens - offsets[-1]
        for index, length in enumerate(lengths):
            if room <= length:
                return [*lengths[:index], room], True
            room -= length
    return lengths, stop


def _pieces(document: str) -> list[str]:
    """A long document cut at line ends, so that one book does not keep one core busy while the others wait."""
    if len(document) <= _PIECE_CHARACTERS:
        return [document]
    pieces, start = [], 0
    while len(document) - start > _PIECE_CHARACTERS:
        stop = document.find("\n", start + _PIECE_CHARACTERS) + 1
        if not stop:
            break
        pieces.append(document[start:stop])
        start = stop
    pieces.append(document[start:])
    return pieces


def _batches(sources: list[Source]) -> Iterator[_Batch]:
    batch, before = _Batch(), 0
    for source in sources:
        for document, position in source.read():
            batch.add(document, before + position)
            if batch.characters >= _BATCH_CHARACTERS:
                yield batch
                batch = _Batch()
        before += source.size() or 0
    if batch.counts:
        yield batch


def _read_ahead(batches: Iterator[_Batch]) -> Iterator[_Batch]:
    """The same batches, the next one read in a thread while this one is in use."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        pending = reader.submit(next, batches, None)
        while (batch := pending.result()) is not None:
            pending = reader.submit(next, batches, None)
            yield batch
