"""Windows: pretraining examples of any length, cut from a token cache.

- `packed`: the documents are joined by [SEP] into one stream, which is cut into pieces of `length - 2` tokens; a piece
  may hold the end of one document and the beginning of the next. Only the last piece is shorter.
- `document`: each document is cut into pieces of `length - 2` tokens by itself; its last piece is shorter, and the
  collator pads it.

Either way a window is `[CLS] piece [SEP]`, and every token of the documents is in exactly one window.
"""

from __future__ import annotations

import numpy as np

from mabert.data.cache import Documents

MODES = ("packed", "document")


class Windows:
    """A sequence of windows; `windows[i]` is int64 `(at most length,)` and always the same.

    Args:
        documents: from `TokenCache.documents()` or `TokenCache.split()`.
        length: tokens of a window at most, [CLS] and the final [SEP] included; at least 4.
        mode: `packed` or `document`.

    Raises:
        ValueError: the mode is unknown, or there are no documents.
    """

    def __init__(self, documents: Documents, length: int, mode: str = "packed") -> None:
        if mode not in MODES:
            raise ValueError(f"windows are {' or '.join(MODES)}, not {mode!r}")
        if not len(documents):
            raise ValueError("there are no documents to cut into windows")
        self.documents, self.length, self._packed = documents, length, mode == "packed"
        body = length - 2
        # Where each document begins in the joined stream (packed), or the index of its first window (document).
        steps = documents.lengths + 1 if self._packed else -(-documents.lengths // body)
        self._begins = np.concatenate([[0], np.cumsum(steps)])
        self._size = -(-(int(self._begins[-1]) - 1) // body) if self._packed else int(self._begins[-1])

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns one window."""
        if not 0 <= index < self._size:
            raise IndexError(f"window {index} of {self._size}")
        body = self.length - 2
        if self._packed:
            piece = self._of_stream(index * body, min((index + 1) * body, int(self._begins[-1]) - 1))
        else:
            document = int(np.searchsorted(self._begins, index, side="right")) - 1
            begin = (index - int(self._begins[document])) * body
            piece = self.documents[document][begin : begin + body]
        special = self.documents.cache.special_ids
        return np.concatenate([[special["cls"]], piece, [special["sep"]]], dtype=np.int64)

    def _of_stream(self, begin: int, end: int) -> np.ndarray:
        """Returns tokens `begin` to `end` of the stream, with a separator between documents."""
        piece = np.full(end - begin, self.documents.cache.special_ids["sep"], dtype=np.int64)
        document = int(np.searchsorted(self._begins, begin, side="right")) - 1
        while document < len(self.documents) and self._begins[document] < end:
            first = int(self._begins[document])
            ids = self.documents[document][max(0, begin - first) : end - first]
            at = max(begin, first) - begin
            piece[at : at + len(ids)] = ids
            document += 1
        return piece
