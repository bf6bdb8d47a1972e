"""Writing a one-dimensional `.npy` file whose length is known only at the end."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np


class NpyWriter:
    """Appends to a `.npy` file; leaving the context completes the header and brings the file to the disk.

    Args:
        path: the file, which must not exist yet.
        dtype: of every array written.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self._path, self._dtype, self._length = path, dtype, 0
        self._file = path.open("xb")
        self._write_header()
        self._start = self._file.tell()

    def write(self, values: np.ndarray) -> None:
        """Appends one array, `(values,)`."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._length += len(values)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                self._write_header()
                # The format pads its header so that any length fits in place.
                if self._file.tell() != self._start:
                    raise RuntimeError(f"{self._path}: the header changed its size with the length")
                self._file.flush()
                os.fsync(self._file.fileno())

    def _write_header(self) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)
