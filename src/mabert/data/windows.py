"""Windows: the examples of pretraining, cut from a token cache at any length.

- `packed`: the documents are joined by [SEP] into one stream, which is cut into pieces of `length - 2` tokens; a piece
  may hold the end of one document and the beginning of the next. Only the last piece is shorter.
- `document`: each document is cut into pieces of `length - 2` tokens by itself; its last piece is shorter, and the
  collator pads it.

Either way a window is `[CLS] piece [SEP]`, and every token of the documents is in exactly one window.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mabert.data.cache import Documents

MODES = ("packed", "document")


class Windows(Protocol):
    """A sequence of windows; `windows[i]` is int64 `(at most length,)` and always the same."""

    length: int

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> np.ndarray: ...


def make_windows(documents: Documents, length: int, mode: str = "packed") -> Windows:
    """Cuts documents into windows.

    Args:
        documents: from `TokenCache.documents()` or `TokenCache.split()`.
        length: tokens of a window at most, [CLS] and the final [SEP] included; at least 4.
        mode: `packed` or `document`.

    Raises:
        ValueError: the length is below 4, the mode is unknown, or there are no documents.
    """
    if mode not in MODES:
        raise ValueError(f"windows are {' or '.join(MODES)}, not {mode!r}")
    return PackedWindows(documents, length) if mode == "packed" else DocumentWindows(documents, length)


class PackedWindows:
    """Windows that fill up across documents; see the module's head.

    Args:
        documents: what to cut.
        length: tokens of a window, at least 4.
    """

    def __init__(self, documents: Documents, length: int) -> None:
        _check(documents, length)
        self.documents = documents
        self.length = length
        # Where each document begins in the joined stream; a separator follows every document but the last.
        self._begins = np.concatenate([[0], np.cumsum(documents.lengths + 1)])
        self._stream = int(self._begins[-1]) - 1

    def __len__(self) -> int:
        return -(-self._stream // (self.length - 2))

    def __getitem__(self, index: int) -> np.ndarray:
        begin = _checked(index, len(self)) * (self.length - 2)
        end = min(begin + self.length - 2, self._stream)
        special = self.documents.cache.special_ids
        window = np.full(end - begin + 2, special["sep"], dtype=np.int64)
        window[0] = special["cls"]
        document = int(np.searchsorted(self._begins, begin, side="right")) - 1
        while document < len(self.documents) and self._begins[document] < end:
            first = int(self._begins[document])
            ids = self.documents[document][max(0, begin - first) : end - first]
            at = max(begin, first) - begin + 1
            window[at : at + len(ids)] = ids
            document += 1
        return window


class DocumentWindows:
    """Windows that never cross a document; see the module's head.

    Args:
        documents: what to cut.
        length: tokens of a window at most, at least 4.
    """

    def __init__(self, documents: Documents, length: int) -> None:
        _check(documents, length)
        self.documents = documents
        self.length = length
        self._firsts = np.concatenate([[0], np.cumsum(-(-documents.lengths // (length - 2)))])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, index: int) -> np.ndarray:
        index = _checked(index, len(self))
        document = int(np.searchsorted(self._firsts, index, side="right")) - 1
        begin = (index - int(self._firsts[document])) * (self.length - 2)
        ids = self.documents[document][begin : begin + self.length - 2]
        special = self.documents.cache.special_ids
        window = np.empty(len(ids) + 2, dtype=np.int64)
        window[0], window[1:-1], window[-1] = special["cls"], ids, special["sep"]
        return window


def _check(documents: Documents, length: int) -> None:
    if length < 4:
        raise ValueError(f"a window of {length} tokens is too short; [CLS] and [SEP] are two of at least 4")
    if not len(documents):
        raise ValueError("there are no documents to cut into windows")


def _checked(index: int, size: int) -> int:
    if not 0 <= index < size:
        raise IndexError(f"window {index} of {size}")
    return index
