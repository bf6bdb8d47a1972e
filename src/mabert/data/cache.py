"""The token cache: a corpus as one memory-mapped array of ids, tokenised once, with the offsets of its documents.

A cache is a folder with three files, which `build_cache` makes:

- `ids.npy`: the ids of all documents, one after the other, without special tokens; uint16, or uint32 for vocabularies
  beyond 65,536;
- `offsets.npy`: int64, `(documents + 1,)`; document i is `ids[offsets[i] : offsets[i + 1]]` and never empty;
- `manifest.json`: what the cache was made from, and its counts.

`datasets.map` gives the same ids, takes longer, and copies the text to the disk first (docs/decisions.md, 2026-11-25).
"""

from __future__ import annotations

import itertools
import logging
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tokenizers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from mabert.data.corpus import Source, Sources, parse_sources, pieces_of
from mabert.data.tokenizer import fingerprint, special_ids
from mabert.files.reading import key_of, read_json
from mabert.files.writing import make_once, whole_file, write_json

IDS, OFFSETS, MANIFEST = "ids.npy", "offsets.npy", "manifest.json"

logger = logging.getLogger(__name__)

# Raise this whenever the same sources and tokenizer would give another cache.
FORMAT = 2
_BATCH_CHARACTERS = 2_000_000


def write_npy_header(file: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Writes the header of a `.npy` file. NumPy pads it, so it can be overwritten once the first size is known."""
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


class TokenCache:
    """A tokenised corpus on disk, in a folder that `build_cache` wrote: the content of its `manifest`; `ids`,
    `(tokens,)`, memory-mapped, read-only; and `offsets`, int64 `(documents + 1,)`.

    Raises FileNotFoundError if the folder is not a finished cache, and ValueError if its files do not fit its manifest.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).is_file():
            raise FileNotFoundError(f"{self.folder}: not a token cache (it has no {MANIFEST})")
        self.ids, self.offsets = self._array(IDS, mmap_mode="r"), self._array(OFFSETS)
        self.manifest = read_json(self.folder / MANIFEST)
        counts = (self.manifest.get("tokens"), self.manifest.get("documents"))
        if counts != (len(self.ids), len(self.offsets) - 1) or self.offsets[-1] != len(self.ids):
            raise ValueError(
                f"{self.folder}: the arrays hold {len(self.ids)} tokens and {len(self.offsets) - 1} documents, the "
                f"manifest says {counts[0]} and {counts[1]}; delete this folder and build it again"
            )

    def _array(self, name: str, **options: Any) -> np.ndarray:
        try:
            return np.load(self.folder / name, allow_pickle=False, **options)
        except (ValueError, EOFError, FileNotFoundError) as error:
            message = f"{self.folder / name}: damaged token cache: no whole array of numbers; delete the folder"
            raise ValueError(message) from error

    def __reduce__(self) -> tuple[type[TokenCache], tuple[Path]]:
        # Pickling a memory map copies all of it; a worker process opens the files itself instead.
        return TokenCache, (self.folder,)

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens by role: `pad`, `unk`, `cls`, `sep`, `mask`."""
        return self.manifest["special_ids"]

    def split(self, fraction: float = 0.005, seed: int = 0) -> tuple[Documents, Documents]:
        """Splits the documents into training and held-out ones, each in corpus order.

        Documents are taken in random order until `fraction` of all tokens (above 0 and below 1) is held out; the last
        one taken is cut to make it exact, and its beginning stays in training. So a corpus of one document has a
        held-out part too. Raises ValueError if the corpus is too small to give both parts a token.
        """
        total = len(self.ids)
        wanted = max(1, round(total * fraction))
        if wanted >= total:
            raise ValueError(f"cannot hold out {fraction} of a corpus of {total} tokens")
        starts, stops = self.offsets[:-1], self.offsets[1:]
        order = np.random.default_rng(seed).permutation(len(starts))
        left = wanted - np.cumsum((stops - starts)[order])
        last = int(np.argmax(left <= 0))
        # Where the training part of each document ends, and the held-out part begins.
        borders = stops.copy()
        borders[order[: last + 1]] = starts[order[: last + 1]]
        borders[order[last]] -= left[last]
        training, held_out = borders > starts, borders < stops
        return (
            Documents(self, starts[training], borders[training]),
            Documents(self, borders[held_out], stops[held_out]),
        )


@dataclass(frozen=True)
class Documents:
    """Some of a cache's documents, or parts of them."""

    cache: TokenCache  # where the ids are
    starts: np.ndarray  # int64 `(documents,)`, first token of each in `cache.ids`
    stops: np.ndarray  # int64 `(documents,)`, one past the last token; always beyond `starts`

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns the ids of one document."""
        return self.cache.ids[self.starts[index] : self.stops[index]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, int64 `(documents,)`."""
        return self.stops - self.starts

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return int(self.lengths.sum())


def build_cache(
    sources: Sources,
    tokenizer: PreTrainedTokenizerFast,
    folder: str | Path,
    *,
    max_tokens: int | None = None,
    progress: bool = True,
) -> TokenCache:
    """Tokenises a corpus, or opens the cache in `folder` that holds it already.

    The cache is a subfolder. Its name is a digest of everything that its content depends on: each source (for files
    path, size, modification time and content), the tokenizer, `max_tokens`, and the versions of the format and of the
    tokenizers library. A killed build leaves nothing that looks finished. Several processes may call this at once: one
    builds, the others wait and reuse. Strings such as `[MASK]` in the text are encoded as text. With `max_tokens`,
    exactly so many are kept and the last document is cut.

    Raises FileNotFoundError if a source does not exist, ValueError if one cannot be read or holds no text, and
    CannotSaveError if the disk is full; nothing half-built is left.
    """
    parsed = parse_sources(sources)
    made_of = {
        "format": FORMAT,
        "tokenizers": tokenizers.__version__,
        "tokenizer": fingerprint(tokenizer),
        "max_tokens": max_tokens,
        "sources": [source.identity() for source in parsed],
    }
    key = key_of(made_of, 16)
    place = Path(folder) / key
    if place.exists():
        logger.info("reusing the token cache %s", place)
    make_once(place, lambda building: _build(building, parsed, tokenizer, made_of, progress))
    return TokenCache(place)


def _build(
    folder: Path, sources: list[Source], tokenizer: PreTrainedTokenizerFast, made_of: dict[str, Any], progress: bool
) -> None:
    started = time.monotonic()
    offsets = _write_ids(folder / IDS, sources, tokenizer, made_of["max_tokens"], progress)
    if len(offsets) == 1:
        raise ValueError("the sources hold no text that gives a token")
    with whole_file(folder / OFFSETS) as file:
        np.save(file, offsets)
    manifest = made_of | {"documents": len(offsets) - 1, "tokens": int(offsets[-1])}
    manifest |= {"special_ids": special_ids(tokenizer), "vocab_size": len(tokenizer)}
    manifest["seconds"] = round(time.monotonic() - started, 3)
    write_json(folder / MANIFEST, manifest, indent=1)


def _write_ids(
    path: Path, sources: list[Source], tokenizer: PreTrainedTokenizerFast, max_tokens: int | None, progress: bool
) -> np.ndarray:
    """Writes the ids; returns the documents' offsets."""
    from mabert.machine.progress import in_bytes  # rich is slow to import, and few read text

    encoder = plain_encoder(tokenizer)
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    sizes = [source.size() for source in sources]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    ends, last = array("q", [0]), 0
    with whole_file(path) as file, in_bytes("tokenising", total, progress) as bar:
        write_npy_header(file, dtype, (0,))
        for pieces, position in _read_ahead(_batches(sources)):
            encodings = encoder.encode_batch_fast([piece for _, piece in pieces], add_special_tokens=False)
            found = [encoding.ids for encoding in encodings]
            ids = np.fromiter(itertools.chain.from_iterable(found), dtype, sum(map(len, found)))
            file.write(ids[: None if max_tokens is None else max_tokens - ends[-1]].data)
            for (document, _), own in zip(pieces, found, strict=True):
                if own and document != last:
                    ends.append(ends[-1])
                    last = document
                ends[-1] += len(own)
            bar.advance_to(position, f"{ends[-1]:,} tokens")
            if max_tokens is not None and ends[-1] >= max_tokens:
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


Batch = tuple[list[tuple[int, str]], int]
"""Pieces, each with its document's number from 1, and the bytes read so far from all sources."""


def _batches(sources: list[Source]) -> Iterator[Batch]:
    """Yields the pieces of all documents in batches of about two million characters, because an encoding takes many
    times the memory of its text."""
    pieces: list[tuple[int, str]] = []
    number = characters = before = at = 0
    for source in sources:
        for document, position in source.read():
            number, at = number + 1, before + position
            for piece in pieces_of(document):
                pieces.append((number, piece))
                characters += len(piece)
                if characters >= _BATCH_CHARACTERS:
                    yield pieces, at
                    pieces, characters = [], 0
        before += source.size() or 0
    if pieces:
        yield pieces, at


def _read_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yields the same batches, reading the next one in a thread meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        pending = reader.submit(next, batches, None)
        while (batch := pending.result()) is not None:
            pending = reader.submit(next, batches, None)
            yield batch
