"""Model folders for the tests of use."""

import weakref

import pytest
from transformers import PreTrainedModel

from mabert import MaBertForMaskedLM, MaBertForSequenceClassification
from mabert.model.blocks import MambaBlock
from mabert.model.packing import total_of
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
    names = {0: "a", 1: "b", 2: "c"}
    labels = {"num_labels": 3, "id2label": names, "label2id": {name: number for number, name in names.items()}}
    return saved(MaBertForSequenceClassification, tmp_path_factory.mktemp("classifier"), words, **labels)


@pytest.fixture
def reads(monkeypatch):
    """The classes whose weights were read, one a reading."""
    read, real = [], PreTrainedModel.from_pretrained.__func__
    counted = classmethod(lambda kind, *given, **named: read.append(kind) or real(kind, *given, **named))
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", counted)
    return read


@pytest.fixture
def rows_seen(monkeypatch):
    """The rows and the tokens of what runs through Mamba blocks, the tokens rounded up as prepacking rounds them."""
    seen, forward = [], MambaBlock.forward

    def watched(self, hidden, *rest, **more):
        seen.append((hidden.shape[0], total_of(hidden.shape[1])))
        return forward(self, hidden, *rest, **more)

    monkeypatch.setattr(MambaBlock, "forward", watched)
    return seen


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
