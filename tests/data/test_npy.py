"""`.npy` files that grow: what numpy reads is what was written, whatever the number and size of the pieces."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.npy import NpyRows


@settings(deadline=None, max_examples=30)
@given(pieces=st.lists(st.integers(0, 5), max_size=4), width=st.integers(0, 4))
def test_rows_read_back_and_the_bytes_are_numpys_own(pieces, width):
    whole = np.arange(sum(pieces) * width, dtype=np.float32).reshape(sum(pieces), width)
    file, own = io.BytesIO(), io.BytesIO()
    rows = NpyRows(file, np.dtype(np.float32), (width,))
    at = 0
    for size in pieces:
        rows.write(whole[at : at + size])
        at += size
    rows.finish()
    np.save(own, whole)
    assert file.getvalue() == own.getvalue()


def test_a_row_of_another_width_is_refused():
    rows = NpyRows(io.BytesIO(), np.dtype(np.float32), (3,))
    with pytest.raises(ValueError, match=r"rows of shape \(2,\) among those of shape \(3,\)"):
        rows.write(np.zeros((1, 2)))
