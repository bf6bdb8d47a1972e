from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert.data.cache import Documents
from mabert.data.mlm import Windows

CLS, SEP = 2, 3
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def documents_of(lengths, gap=0):
    """Documents whose ids count up from 10 without end, so that every token is known; `gap` tokens lie between them."""
    starts = np.cumsum([0, *(length + gap for length in lengths[:-1])])
    cache = SimpleNamespace(
        ids=np.arange(10, 10 + sum(lengths) + gap * len(lengths)), special_ids={"cls": CLS, "sep": SEP}
    )
    return Documents(cache, starts, starts + np.array(lengths))


def bodies(windows):
    for i in range(len(windows)):
        window = windows[i]
        assert window.dtype == np.int64
        assert window[0] == CLS
        assert window[-1] == SEP
        assert 3 <= len(window) <= windows.length
        yield window[1:-1]


@given(lengths=LENGTHS, length=st.integers(4, 50), gap=st.integers(0, 2))
def test_packed_windows_are_the_joined_stream_cut_evenly(lengths, length, gap):
    documents = documents_of(lengths, gap)
    stream = list(documents[0])
    for i in range(1, len(documents)):
        stream += [SEP, *documents[i]]
    pieces = [stream[i : i + length - 2] for i in range(0, len(stream), length - 2)]
    assert [body.tolist() for body in bodies(Windows(documents, length))] == pieces


@given(lengths=LENGTHS, length=st.integers(4, 50), gap=st.integers(0, 2))
def test_document_windows_never_cross_a_document(lengths, length, gap):
    documents = documents_of(lengths, gap)
    pieces = [
        documents[i][start : start + length - 2].tolist()
        for i in range(len(documents))
        for start in range(0, lengths[i], length - 2)
    ]
    assert [body.tolist() for body in bodies(Windows(documents, length, "document"))] == pieces


@pytest.mark.parametrize("mode", ["packed", "document"])
def test_limits(mode):
    windows = Windows(documents_of([5, 5]), 8, mode)
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"window {index} of 2"):
            windows[index]
    with pytest.raises(ValueError, match="there are no documents to cut"):
        Windows(Documents(None, np.array([]), np.array([])), 8, mode)
