"""Which tokenizer a run gets, and what the record says of it."""

from pathlib import Path

import pytest

from mabert.baselines.registry import FAMILIES
from mabert.cli import main
from mabert.data.corpus import parse_sources
from mabert.data.tokenizer import fingerprint, load_tokenizer
from mabert.train import vocabulary
from mabert.train.vocabulary import beginnings, find_tokenizer, make_tokenizer, trained_tokenizer
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

    monkeypatch.setattr(vocabulary, "load_tokenizer", refuse)
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
    monkeypatch.setattr(vocabulary, "load_tokenizer", lambda hub: hub)
    assert find_tokenizer(FAMILIES[name], None, [], tmp_path) == (FAMILIES[name].hub, f"hub:{FAMILIES[name].hub}")


@pytest.mark.parametrize("name", list(FAMILIES))
def test_without_the_hub_a_wordpiece_is_trained_once(name, without_hub, tmp_path, monkeypatch, caplog):
    text = [str(corpus(tmp_path / "text.txt"))]
    found, origin = find_tokenizer(FAMILIES[name], None, text, tmp_path / "cache")
    assert without_hub == [FAMILIES[name].hub]
    assert origin == f"trained on data.sources: WordPiece of {len(found):,}"
    assert ("token_type_ids" in found("a", "b")) == (name not in ("longformer", "deberta", "modernbert"))
    assert "training a WordPiece" in caplog.text
    monkeypatch.setattr(vocabulary, "train_wordpiece", None)
    again, same = find_tokenizer(FAMILIES[name], None, text, tmp_path / "cache", before=origin)
    assert (fingerprint(again), same) == (fingerprint(found), origin)
    assert len(without_hub) == 1, "a resumed run does not ask the hub for what it did not have"


@pytest.mark.parametrize("name", list(FAMILIES))
def test_it_has_the_published_size(name, tmp_path, monkeypatch):
    sizes = {"albert": 30_000, "longformer": 50_265, "bigbird": 50_358, "deberta": 128_100, "modernbert": 50_368}
    train, asked = vocabulary.train_wordpiece, []
    monkeypatch.setattr(vocabulary, "train_wordpiece", lambda texts, *how: asked.append(how[0]) or train(texts, *how))
    trained_tokenizer(FAMILIES[name], [str(corpus(tmp_path / "text.txt"))], tmp_path / "cache")
    assert asked == [sizes.get(name, 30_522)]


def test_a_size_that_is_asked_for_is_that_of_the_trained_one(without_hub, tmp_path):
    text = [str(corpus(tmp_path / "text.txt"))]
    sizes = {size: len(find_tokenizer(FAMILIES["bert"], None, text, tmp_path, size=size)[0]) for size in (40, 60)}
    assert sizes == {40: 40, 60: 60}


@pytest.mark.parametrize("cased", [False, True])
def test_the_command_writes_the_tokenizer_of_the_text(tmp_path, monkeypatch, capsys, caplog, cased):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("Rivers run to the Sea.\n\nThe Sea is deep, and Rivers are long.\n")
    assert main(["tokenizer", "text.txt", "--size", "50", "-o", "own", *["--cased"][: int(cased)]]) == 0
    made = load_tokenizer("own")
    assert capsys.readouterr().out == f"own: {len(made)} tokens; pretrain with it by tokenizer=own\n"
    (few,) = [record.message for record in caplog.records if "little more than letters" in record.message]
    assert few == "a vocabulary of 50 tokens holds little more than letters; 8,000 to 32,000 are usual"
    assert (made("Sea")["input_ids"] == made("sea")["input_ids"]) != cased
    again = make_tokenizer("text.txt", "again", 50, cased=cased, progress=False)
    assert fingerprint(again) == fingerprint(made)
    caplog.clear()
    make_tokenizer("text.txt", "usual", 1000, progress=False)
    assert not caplog.records
    assert main(["tokenizer", "text.txt", "-o", "own"]) == 2
    assert capsys.readouterr().err == "mabert: own already holds files; name another folder\n"


def test_a_run_that_had_it_from_the_hub_does_not_go_on_with_another(without_hub, tmp_path):
    with pytest.raises(FileNotFoundError):
        find_tokenizer(FAMILIES["bert"], None, [], tmp_path, before="hub:google-bert/bert-base-uncased")


def test_every_source_gives_its_share(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "CHARACTERS", 50)
    for name, letter in (("a", "a"), ("b", "b")):
        (tmp_path / f"{name}.txt").write_text("\n\n".join([letter * 10] * 5))
    parsed = parse_sources([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    read = list(beginnings(parsed))
    assert read == ["a" * 10, "a" * 10, "a" * 5, "b" * 10, "b" * 10, "b" * 5]


def test_other_text_gives_another(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "CHARACTERS", 500)

    def trained(seed):
        text = corpus(tmp_path / "text.txt", seed=seed)
        return trained_tokenizer(FAMILIES["bert"], [text], tmp_path / "cache")

    assert fingerprint(trained(1)) != fingerprint(trained(2))
    assert len(list((tmp_path / "cache").glob("tokenizer-wordpiece-*"))) == 2
