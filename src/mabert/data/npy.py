"""Writing a `.npy` file whose length is known only at the end."""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np


class NpyRows:
    """Appends rows to a stream, which holds a whole `.npy` file when it is finished.

    Args:
        file: an empty stream that can seek.
        dtype: of every array written.
        row: the shape of a row; `()`, the default, makes an array of one dimension.
    """

    def __init__(self, file: BinaryIO, dtype: np.dtype, row: tuple[int, ...] = ()) -> None:
        self._file, self._dtype, self._row, self._length = file, dtype, row, 0
        self._write_header()

    def write(self, rows: np.ndarray) -> None:
        """Appends one array, `(rows, *row)`; raises ValueError where its rows have another shape."""
        if rows.shape[1:] != self._row:
            raise ValueError(f"rows of shape {rows.shape[1:]} among those of shape {self._row}")
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._length += len(rows)

    def finish(self) -> None:
        """Completes the header, which the format pads so that any length fits in place."""
        self._file.seek(0)
        self._write_header()
        self._file.seek(0, os.SEEK_END)

    def _write_header(self) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._file, header | {"shape": (self._length, *self._row)})
