"""Which tokenizer a run gets, and what the record says of it."""

from pathlib import Path

import pytest

from mabert.baselines.registry import FAMILIES
from mabert.data import tokenizer as tokenizers
from mabert.data.tokenizer import fingerprint, load_tokenizer
from mabert.train import pretrain_run
from mabert.train.pretrain_run import find_tokenizer
from tests.train.helpers import corpus, tokenizer


@pytest.fixture
def without_hub(monkeypatch):
    """A machine that the hub cannot be reached from."""
    asked = []

    def refuse(name):
        if Path(name).is_dir():
            return load_tokenizer(name)
        asked.append(name)
        raise FileNotFoundError(f"{name}: no such tokenizer, here or on the hub")

    monkeypatch.setattr(pretrain_run, "load_tokenizer", refuse)
    return asked


def test_the_one_that_is_asked_for_comes_first(tmp_path):
    own = tokenizer()
    own.save_pretrained(tmp_path / "own")
    found, origin = find_tokenizer(FAMILIES["albert"], str(tmp_path / "own"), [], tmp_path)
    assert fingerprint(found) == fingerprint(own)
    assert origin == str(tmp_path / "own")
    with pytest.raises(FileNotFoundError):
        find_tokenizer(FAMILIES["albert"], str(tmp_path / "none.json"), [], tmp_path)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_familys_own_is_that_of_its_published_model(name, monkeypatch, tmp_path):
    monkeypatch.setattr(pretrain_run, "load_tokenizer", lambda hub: hub)
    assert find_tokenizer(FAMILIES[name], None, [], tmp_path) == (FAMILIES[name].hub, f"hub:{FAMILIES[name].hub}")


@pytest.mark.parametrize("name", list(FAMILIES))
def test_without_the_hub_a_wordpiece_is_trained_once(name, without_hub, tmp_path, monkeypatch, caplog):
    text = [str(corpus(tmp_path / "text.txt"))]
    found, origin = find_tokenizer(FAMILIES[name], None, text, tmp_path / "cache")
    assert without_hub == [FAMILIES[name].hub]
    assert origin == f"trained on data.sources: WordPiece of {len(found):,}"
    assert ("token_type_ids" in found("a", "b")) == (name not in ("longformer", "deberta", "modernbert"))
    assert "training a WordPiece" in caplog.text
    monkeypatch.setattr(tokenizers, "train_wordpiece", None)
    again, same = find_tokenizer(FAMILIES[name], None, text, tmp_path / "cache", before=origin)
    assert (fingerprint(again), same) == (fingerprint(found), origin)
    assert len(without_hub) == 1, "a resumed run does not ask the hub for what it did not have"


@pytest.mark.parametrize("name", list(FAMILIES))
def test_it_has_the_published_size(name, without_hub, tmp_path, monkeypatch):
    sizes = {"albert": 30_000, "longformer": 50_265, "bigbird": 50_358, "deberta": 128_100, "modernbert": 50_368}
    train, asked = tokenizers.train_wordpiece, []
    monkeypatch.setattr(tokenizers, "train_wordpiece", lambda texts, *how: asked.append(how[0]) or train(texts, *how))
    find_tokenizer(FAMILIES[name], None, [str(corpus(tmp_path / "text.txt"))], tmp_path / "cache")
    assert asked == [sizes.get(name, 30_522)]


def test_a_size_that_is_asked_for_is_that_of_the_trained_one(without_hub, tmp_path):
    text = [str(corpus(tmp_path / "text.txt"))]
    sizes = {size: len(find_tokenizer(FAMILIES["bert"], None, text, tmp_path, size=size)[0]) for size in (40, 60)}
    assert sizes == {40: 40, 60: 60}


def test_a_run_that_had_it_from_the_hub_does_not_go_on_with_another(without_hub, tmp_path):
    with pytest.raises(FileNotFoundError):
        find_tokenizer(FAMILIES["bert"], None, [], tmp_path, before="hub:google-bert/bert-base-uncased")
