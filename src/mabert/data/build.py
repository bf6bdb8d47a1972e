"""Building the token cache: read ahead, encode in parallel, write once, rename when complete.

`datasets.map` gives the same ids, takes longer, and copies the text to the disk first (docs/decisions.md, 2026-11-25).
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from mabert.data.cache import IDS, MANIFEST, OFFSETS, TokenCache, write_npy_header
from mabert.data.corpus import Source, Sources, parse_sources, pieces_of
from mabert.data.tokenizer import fingerprint, special_ids
from mabert.files.json import to_json
from mabert.files.writing import make_once, whole_file, write_text
from mabert.machine.progress import ByteProgress

logger = logging.getLogger(__name__)

# Raise this whenever the same sources and tokenizer would give another cache.
FORMAT = 2
_BATCH_CHARACTERS = 2_000_000


def build_cache(
    sources: Sources,
    tokenizer: PreTrainedTokenizerFast,
    folder: str | Path,
    *,
    text_column: str = "text",
    max_tokens: int | None = None,
    progress: bool = True,
) -> TokenCache:
    """Tokenises a corpus, or opens the cache that holds it already.

    The cache is a subfolder of `folder`. Its name is a digest of everything that its content depends on: each source
    (for files path, size, modification time and content), the tokenizer, `max_tokens`, and the versions of the format
    and of the tokenizers library. A killed build leaves nothing that looks finished. Several processes may call this at
    once: one builds, the others wait and reuse. Strings such as `[MASK]` in the text are encoded as text.

    Args:
        sources: see `mabert.data.corpus`.
        tokenizer: a fast tokenizer with the five special tokens (`load_tokenizer`).
        folder: where caches are kept.
        text_column: the key or column with the text in JSONL and Parquet files.
        max_tokens: stop after exactly this many tokens, at least 1, cutting the last document.
        progress: show a progress bar with rate and time left.

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: a source cannot be read or holds no text.
        CannotSaveError: the disk is full; nothing half-built is left.
    """
    parsed = parse_sources(sources, text_column)
    recipe = {
        "format": FORMAT,
        "tokenizers": tokenizers.__version__,
        "tokenizer": fingerprint(tokenizer),
        "max_tokens": max_tokens,
        "sources": [source.identity() for source in parsed],
    }
    key = hashlib.sha256(to_json(recipe, sort_keys=True).encode()).hexdigest()[:16]
    place = Path(folder).expanduser() / key
    if place.exists():
        logger.info("reusing the token cache %s", place)
    make_once(place, lambda building: _build(building, parsed, tokenizer, recipe, progress))
    return TokenCache(place)


def _build(
    folder: Path, sources: list[Source], tokenizer: PreTrainedTokenizerFast, recipe: dict[str, Any], progress: bool
) -> None:
    started = time.monotonic()
    offsets = _write_ids(folder / IDS, sources, tokenizer, recipe["max_tokens"], progress)
    if len(offsets) == 1:
        raise ValueError("the sources hold no text that gives a token")
    with whole_file(folder / OFFSETS) as file:
        np.save(file, offsets)
    manifest = recipe | {"documents": len(offsets) - 1, "tokens": int(offsets[-1])}
    manifest |= {"special_ids": special_ids(tokenizer), "vocab_size": len(tokenizer)}
    manifest["seconds"] = round(time.monotonic() - started, 3)
    write_text(folder / MANIFEST, to_json(manifest, indent=1))


def _write_ids(
    path: Path, sources: list[Source], tokenizer: PreTrainedTokenizerFast, max_tokens: int | None, progress: bool
) -> np.ndarray:
    """Writes the ids; returns the documents' offsets."""
    encoder = plain_encoder(tokenizer)
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    sizes = [source.size() for source in sources]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    ends = array("q", [0])
    with whole_file(path) as file, ByteProgress("tokenising", total, progress) as bar:
        write_npy_header(file, dtype, (0,))
        for documents, position in _read_ahead(_batches(sources)):
            room = None if max_tokens is None else max_tokens - ends[-1]
            ids, lengths = _encode(encoder, documents, dtype, room)
            file.write(ids[:room].data)
            ends.extend(itertools.islice(itertools.accumulate(lengths, initial=ends[-1]), 1, None))
            bar.advance_to(position, f"{ends[-1]:,} tokens")
            if room is not None and len(ids) >= room:
                break
        offsets = np.array(ends)
        if max_tokens is not None:
            offsets = np.unique(np.minimum(offsets, max_tokens))
        file.seek(0)
        write_npy_header(file, dtype, (int(offsets[-1]),))
    return offsets


def plain_encoder(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Copies the tokenizer. The copy neither truncates nor pads, and reads names of special tokens as plain text."""
    encoder = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    return encoder


def _encode(
    encoder: Tokenizer, documents: list[str], dtype: np.dtype, most: int | None = None
) -> tuple[np.ndarray, list[int]]:
    """Returns all ids in one array, and the number of tokens of each document that has any. Encodes no further once
    there are `most` ids."""
    pieces = ((place, piece) for place, document in enumerate(documents) for piece in pieces_of(document))
    lengths, found, total = [0] * len(documents), [np.zeros(0, dtype)], 0
    while (most is None or total < most) and (some := _of_one_batch(pieces)):
        encodings = encoder.encode_batch_fast([piece for _, piece in some], add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        for (place, _), each in zip(some, ids, strict=True):
            lengths[place] += len(each)
        found.append(np.fromiter(itertools.chain.from_iterable(ids), dtype, sum(map(len, ids))))
        total += len(found[-1])
    return np.concatenate(found), list(filter(None, lengths))


def _of_one_batch(pieces: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    """Takes pieces of about two million characters in all, because an encoding takes many times the memory of its
    text."""
    taken, characters = [], 0
    while characters < _BATCH_CHARACTERS and (piece := next(pieces, None)) is not None:
        taken.append(piece)
        characters += len(piece[1])
    return taken


def _batches(sources: list[Source]) -> Iterator[tuple[list[str], int]]:
    """Yields batches of documents of about two million characters, each with the bytes read so far from all sources."""
    documents: list[str] = []
    characters = before = at = 0
    for source in sources:
        for document, position in source.read():
            documents.append(document)
            characters, at = characters + len(document), before + position
            if characters >= _BATCH_CHARACTERS:
                yield documents, at
                documents, characters = [], 0
        before += source.size() or 0
    if documents:
        yield documents, at


def _read_ahead(batches: Iterator[tuple[list[str], int]]) -> Iterator[tuple[list[str], int]]:
    """Yields the same batches, reading the next one in a thread meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        pending = reader.submit(next, batches, None)
        while (batch := pending.result()) is not None:
            pending = reader.submit(next, batches, None)
            yield batch
