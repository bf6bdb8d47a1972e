"""Model folders for the tests of use."""

import weakref

import pytest

from mabert import MaBertForMaskedLM, MaBertForSequenceClassification
from tests.model import helpers
from tests.train.helpers import tokenizer


@pytest.fixture(scope="session")
def words():
    return tokenizer()


@pytest.fixture(scope="session")
def masked_lm(tmp_path_factory, words):
    return saved(MaBertForMaskedLM, tmp_path_factory.mktemp("lm"), words)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory, words):
    return saved(
        MaBertForSequenceClassification,
        tmp_path_factory.mktemp("classifier"),
        words,
        num_labels=3,
        id2label={0: "a", 1: "b", 2: "c"},
        label2id={"a": 0, "b": 1, "c": 2},
    )


class Text(str):
    """Text of which it can be told whether it is still held."""


class Counted:
    """Rows of one text, as many as asked for; `most` is how many of them were held at once."""

    def __init__(self, texts, count):
        self.texts, self.count, self.alive, self.most = texts, count, set(), 0

    def __iter__(self):
        for number in range(self.count):
            text = Text(self.texts[number % len(self.texts)])
            self.alive.add(number)
            weakref.finalize(text, self.alive.discard, number)
            self.most = max(self.most, len(self.alive))
            yield (text,)


def saved(kind, folder, words, **fields):
    """A random model and the words' tokenizer in a folder."""
    helpers.saved(kind, folder, words, **{"ssm_direction": "bidirectional", **fields})
    return folder
