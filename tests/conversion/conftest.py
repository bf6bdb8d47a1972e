"""Teachers in folders, and a text to convert them on."""

import contextlib

import pytest
import torch

from mabert.conversion import pieces
from tests.conversion.helpers import convert, saved_teacher, text


@contextlib.contextmanager
def made_once(tmp_path_factory):
    """What a whole session's conversions are made in: their own cache, one thread; yields the patch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MABERT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setattr("mabert.conversion.agreement.BUDGET", 0.0)
        torch.set_num_threads(1)
        yield patch


def make_small(patch=None):
    """Pieces of 16 tokens and more: with steps of 160 a conversion of 1,000 tokens has eight. Its speed is not measured
    for long."""
    patch = patch or pytest.MonkeyPatch()
    patch.setattr(pieces, "SHORTEST", 16)
    patch.setattr("mabert.conversion.agreement.BUDGET", 0.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Tokens and unpacked teachers of the tests alone, and no hub."""
    monkeypatch.setenv("MABERT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setattr("mabert.conversion.agreement.BUDGET", 0.0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def small_batches(monkeypatch):
    make_small(monkeypatch)


@pytest.fixture(scope="session")
def words_to_learn(tmp_path_factory):
    return text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def embedder(tmp_path_factory):
    """An encoder of three layers with the files of sentence-transformers, the first token for a vector."""
    return saved_teacher(tmp_path_factory.mktemp("embedder"), sentences="cls")


@pytest.fixture(scope="session")
def masked_lm(tmp_path_factory):
    return saved_teacher(tmp_path_factory.mktemp("masked_lm"), "roberta", "masked_lm")


@pytest.fixture(scope="session")
def classifier(tmp_path_factory):
    """Of three classes, as `mabert finetune` leaves one."""
    folder = saved_teacher(tmp_path_factory.mktemp("classifier"), "distilbert", "classifier")
    (folder / "encoding.json").write_text('{"max_length": 20, "truncate": true, "pairs": false}\n')
    return folder


@pytest.fixture(scope="session")
def converted(tmp_path_factory, embedder, words_to_learn):
    """A conversion of the embedder that nothing stopped, and its result."""
    with made_once(tmp_path_factory) as patch:
        make_small(patch)
        folder = tmp_path_factory.mktemp("converted") / "out"
        return folder, convert(embedder, words_to_learn, folder)
