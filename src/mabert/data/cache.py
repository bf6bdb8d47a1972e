"""The token cache: a corpus as one memory-mapped array of ids, with the offsets of its documents.

A cache is a folder with three files, which `mabert.data.build` makes:

- `ids.npy`: the ids of all documents, one after the other, without special tokens; uint16, or uint32 for vocabularies
  beyond 65,536;
- `offsets.npy`: int64, `(documents + 1,)`; document i is `ids[offsets[i] : offsets[i + 1]]` and never empty;
- `manifest.json`: what the cache was made from, and its counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mabert.files.reading import read_json

IDS, OFFSETS, MANIFEST = "ids.npy", "offsets.npy", "manifest.json"


def write_npy_header(file: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Writes the header of a `.npy` file. NumPy pads it, so it can be overwritten once the first size is known."""
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


class TokenCache:
    """A tokenised corpus on disk.

    Args:
        folder: a folder that `build_cache` wrote.

    Attributes:
        folder: that folder.
        manifest: the content of `manifest.json`.
        ids: `(tokens,)`, memory-mapped, read-only.
        offsets: int64 `(documents + 1,)`.

    Raises:
        FileNotFoundError: the folder is not a finished cache.
        ValueError: its files do not fit its manifest.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).is_file():
            raise FileNotFoundError(f"{self.folder}: not a token cache (it has no {MANIFEST})")
        self.manifest = read_json(self.folder / MANIFEST)
        self.ids, self.offsets = self._array(IDS, mmap_mode="r"), self._array(OFFSETS)
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

    def documents(self) -> Documents:
        """Returns all documents."""
        return Documents(self, self.offsets[:-1], self.offsets[1:])

    def split(self, fraction: float = 0.005, seed: int = 0) -> tuple[Documents, Documents]:
        """Splits the documents into training and held-out ones, each in corpus order.

        Documents are taken in random order until `fraction` of all tokens is held out; the last one taken is cut to
        make it exact, and its beginning stays in training. So a corpus of one document has a held-out part too.

        Args:
            fraction: share of the tokens held out, above 0 and below 1.
            seed: chooses the documents.

        Raises:
            ValueError: the corpus is too small to give both parts a token.
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
    """Some of a cache's documents, or parts of them.

    Attributes:
        cache: where the ids are.
        starts: int64 `(documents,)`, first token of each in `cache.ids`.
        stops: int64 `(documents,)`, one past the last token; always beyond `starts`.
    """

    cache: TokenCache
    starts: np.ndarray
    stops: np.ndarray

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
