"""Lists of texts in Python: what holds texts in another way is refused, and text that UTF-8 cannot hold is mended."""

import re
from collections import UserDict, deque

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

import mabert
from mabert.data.encode import check_texts
from mabert.data.words import Words
from mabert.infer.model import in_rows

NO_LISTS = {
    "a string": ("abc", "one string, 'abc'"),
    "bytes": (b"abc", "a bytes"),
    "a mapping": ({"a": "b"}, "a dict"),
    "a mapping of another class": (UserDict(a="b"), "a UserDict"),
    "a set": ({"a"}, "a set"),
    "a table": (pd.DataFrame({"text": ["a", "b"], "id": [1, 2]}), "a DataFrame of shape (2, 2)"),
    "a table of one column": (pd.DataFrame({"text": ["a", "b"]}), "a DataFrame of shape (2, 1)"),
    "an Arrow table": (pa.table({"text": ["a", "b"]}), "a Table of shape (2, 1)"),
    "a data set": (Dataset.from_dict({"text": ["a", "b"]}), "a Dataset of shape (2, 1)"),
    "rows of an array": (np.array([["a"], ["b"]]), "a ndarray of shape (2, 1)"),
    "a scalar": (np.array("a"), "a ndarray of shape ()"),
    "nothing": (None, "None"),
    "a number": (5, "5"),
}
"""What holds texts, but not as a list of them, and how the message names it."""


@pytest.mark.parametrize("case", NO_LISTS)
def test_what_is_no_list_of_texts_is_refused(case):
    given, found = NO_LISTS[case]
    told = rf"{re.escape(found)}, where a list of texts(, such as one column of a table,)? is needed$"
    for texts in ((given,), (["a"], given)) if given is not None else ((given,),):
        with pytest.raises(ValueError, match=f"^dev: {told}"):
            check_texts(*texts, name="dev")
        with pytest.raises(ValueError, match=f"^the (input|second texts): {told}"):
            in_rows(*texts)


@pytest.mark.parametrize(
    "form",
    [list, tuple, iter, np.array, pd.Series, pd.Index, deque, lambda texts: Dataset.from_dict({"text": texts})["text"]],
)
def test_any_list_column_or_iterator_of_texts_is_taken(form):
    assert in_rows(form(["a", "b"]), form(["c", "d"])) == [("a", "c"), ("b", "d")]


def test_every_question_in_python_refuses_it(masked_lm, classifier):
    table = pd.DataFrame({"text": ["a", "b"]})
    for ask in (
        mabert.load(masked_lm).embed,
        mabert.load(masked_lm).fill_mask,
        mabert.load(classifier).predict,
        lambda texts: mabert.load(classifier).predict(["a"], texts),
        lambda texts: mabert.convert("minilm", texts, "folder"),
    ):
        told = r"^[^\n]*: a DataFrame of shape \(2, 1\), where a list of (texts|files), such as one column[^\n]*$"
        with pytest.raises(ValueError, match=told):
            ask(table)


HALVES = st.text(st.sampled_from("ab \ud83d\ude00\U0001f600"), max_size=8)


@given(st.lists(HALVES, max_size=4), st.lists(st.lists(HALVES, min_size=1, max_size=3), max_size=3))
def test_half_of_a_pair_becomes_one_other_character_and_all_else_stays(texts, sentences):
    def mended(text):
        return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)

    assert in_rows(texts, texts[::-1]) == [(mended(a), mended(b)) for a, b in zip(texts, texts[::-1], strict=True)]
    for (found,), words in zip(in_rows(sentences, words=True), sentences, strict=True):
        expected = Words(map(mended, words))
        assert (found, found.spans) == (expected, expected.spans)
    with pytest.raises(ValueError, match=rf"^the input: text {len(sentences) + 1} is \['b', None\], not text$"):
        in_rows([*sentences, ["b", None]], words=True)


def test_half_of_a_pair_is_answered_as_the_character_it_becomes(masked_lm, classifier):
    model = mabert.load(masked_lm)
    np.testing.assert_array_equal(*(model.embed([f"the {odd} bird"], progress=False) for odd in ("\ud83d", "\ufffd")))
    assert model.fill_mask(["a \ude00 [MASK]"], progress=False) == model.fill_mask(["a \ufffd [MASK]"], progress=False)
    assert len(mabert.load(classifier).predict(["a \ud83d bird"], progress=False)) == 1
