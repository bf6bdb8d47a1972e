"""Writing a `.npy` file whose length is known only at the end."""

from __future__ import annotations

import os
from pathlib import Path
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
        self._start = file.tell()

    def write(self, rows: np.ndarray) -> None:
        """Appends one array, `(rows, *row)`.

        Raises:
            ValueError: its rows have another shape.
        """
        if rows.shape[1:] != self._row:
            raise ValueError(f"rows of shape {rows.shape[1:]} among those of shape {self._row}")
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._length += len(rows)

    def finish(self) -> None:
        """Completes the header."""
        self._file.seek(0)
        self._write_header()
        # The format pads its header so that any length fits in place.
        if self._file.tell() != self._start:
            raise RuntimeError("the header changed its size with the length")
        self._file.seek(0, os.SEEK_END)

    def _write_header(self) -> None:
        shape = (self._length, *self._row)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


class NpyWriter:
    """Appends to a `.npy` file; leaving the context completes the header and brings the file to the disk.

    Args:
        path: the file, which must not exist yet.
        dtype: of every array written.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self._file = path.open("xb")
        self._rows = NpyRows(self._file, dtype)

    def write(self, values: np.ndarray) -> None:
        """Appends one array, `(values,)`."""
        self._rows.write(values)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._rows.finish()
                self._file.flush()
                os.fsync(self._file.fileno())
