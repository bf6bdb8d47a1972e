"""WordPiece tokenizers of one's own: where special tokens stand, what is kept of a text."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from mabert.cli import main
from mabert.data import tokenizer as tokenizers
from mabert.data.cache import build_cache
from mabert.data.corpus import parse_sources
from mabert.data.mlm import IGNORED, MlmMasking
from mabert.data.tokenizer import (
    SPECIAL_TOKENS,
    beginnings,
    fingerprint,
    load_tokenizer,
    make_tokenizer,
    special_ids,
    train_wordpiece,
    trained_tokenizer,
)
from tests.data.conftest import VOCABULARY, of_bytes
from tests.train.helpers import corpus

SENTENCE = "The quiet river crossed the Castle, unafraid."
VARIED = [
    "",
    " ",
    SENTENCE,
    "Café, naïve; Ångström -- e\u0301te\u0301 and \ufb01ne",
    "12,345.67 in 2024 (3 %)",
    "\U0001f600 river \U0001f469\u200d\U0001f4bb castle\u2026",
    "riverborne" * 40,
    "a line\nanother\r\nand\ta tab,  two spaces ",
    "``quoted'' \u4e2d\u6587 \u0438 \u0434\u0440.",
    "the [MASK] <mask> river </s> <pad> [SEP]",
]


@pytest.fixture
def own(trained):
    return trained("wordpiece")


def ids(tokenizer, *texts: str) -> list[int]:
    return tokenizer(*texts)["input_ids"]


@pytest.mark.parametrize("segments", [True, False])
def test_saved_and_loaded_it_gives_the_same_ids(texts, tmp_path, segments):
    tokenizer = train_wordpiece(texts, VOCABULARY, segments)
    tokenizer.save_pretrained(tmp_path)
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is type(tokenizer)
    loaded = load_tokenizer(tmp_path)
    assert len(loaded) == len(tokenizer)
    assert special_ids(loaded) == special_ids(tokenizer)
    assert fingerprint(loaded) == fingerprint(tokenizer)
    for first, second in itertools.product(VARIED, [None, *VARIED[:4]]):
        assert loaded(first, second) == tokenizer(first, second)


@pytest.mark.parametrize("segments", [True, False])
def test_special_tokens_and_segments_are_where_they_belong(texts, segments):
    tokenizer, pair = train_wordpiece(texts, VOCABULARY, segments), (SENTENCE, "A bridge.")
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in pair)
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert ids(tokenizer, *pair) == [cls, *a, sep, *b, sep]
    assert ids(tokenizer, SENTENCE) == [cls, *a, sep]
    assert ids(tokenizer, "") == [cls, sep]
    assert tokenizer(*pair).get("token_type_ids") == ([0] * (len(a) + 2) + [1] * (len(b) + 1) if segments else None)


def test_special_tokens_come_first(own):
    assert own.convert_ids_to_tokens(range(5)) == list(SPECIAL_TOKENS)
    assert special_ids(own) == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert set(own.all_special_tokens) == set(SPECIAL_TOKENS)
    assert sorted(own.get_vocab().values()) == list(range(len(own)))
    assert own.decode(ids(own, SENTENCE)).startswith("[CLS] the quiet river")


def test_there_are_as_many_tokens_as_asked_for_or_as_the_text_gives(texts, own):
    assert len(own) == VOCABULARY
    for size in (7, 8, 10, 47):
        assert len(train_wordpiece(texts, size)) <= size
    for text in (["x"], ["a b"], ["the cat sat"] * 2, ["x" * 3000]):
        tokenizer = train_wordpiece(text, 30_522)
        assert len(tokenizer) < 60
        assert tokenizer.unk_token_id not in ids(tokenizer, text[0][:50])


def test_the_alphabet_is_of_the_most_frequent_characters():
    assert {"q", "x"} & train_wordpiece(["q" * 9, "x", "x"], 7).get_vocab().keys() == {"q"}


def test_what_of_a_text_is_kept(own):
    assert ids(own, "The River") == ids(own, "the river")
    assert ids(own, "café") == ids(own, "cafe")
    assert ids(own, "e\u0301te\u0301") == ids(own, "\xe9t\xe9")
    assert own.unk_token_id in ids(own, "\u4e2d")
    assert own.unk_token_id not in ids(own, "the river\nthe\tcastle")
    assert ids(own, "the river\nthe castle") == ids(own, "the river the castle"), "line ends are spaces"


def test_names_of_special_tokens_in_a_corpus_are_text(own, tmp_path):
    (tmp_path / "corpus.txt").write_text("the [MASK] <mask> <s> river </s> <pad> [PAD] [CLS][SEP] castle\n" * 3)
    cache = build_cache(tmp_path / "corpus.txt", own, tmp_path / "caches", progress=False)
    found = set(cache.ids.tolist())
    assert not found & (set(own.all_special_ids) - {own.unk_token_id})
    assert "river" in own.convert_ids_to_tokens(sorted(found))


def test_masking_spares_special_tokens_and_whole_words_are_for_wordpiece(kind, trained):
    tokenizer = trained(kind)
    window = np.array(ids(tokenizer, SENTENCE * 20, SENTENCE))
    special = np.isin(window, tokenizer.all_special_ids)
    inputs, labels = MlmMasking(tokenizer, mask_share=0.0, random_share=1.0)(window, 0, 0, 0)
    chosen = labels != IGNORED
    assert chosen.sum() == round(0.15 * (~special).sum())
    assert not (chosen & special).any()
    assert not np.isin(inputs[chosen], tokenizer.all_special_ids).any()
    if kind == "wordpiece":
        assert MlmMasking(tokenizer, whole_word=True).whole_word
        return
    with pytest.raises(ValueError, match=f"whole_word masking needs a WordPiece.*{type(tokenizer).__name__} has none"):
        MlmMasking(tokenizer, whole_word=True)


def test_number_signs_of_a_text_make_no_wordpiece():
    tokenizer = of_bytes(["## a heading\n" * 50])
    assert "##" in tokenizer.get_vocab()
    with pytest.raises(ValueError, match="whole_word masking needs a WordPiece vocabulary"):
        MlmMasking(tokenizer, whole_word=True)


@pytest.mark.parametrize("texts", [[], [" ", "\n\t"]])
def test_texts_without_words_are_refused(texts):
    with pytest.raises(ValueError, match="the texts hold no words"):
        train_wordpiece(texts, 100)


@pytest.mark.parametrize("size", [5, 6])
def test_a_size_without_room_is_refused(size):
    with pytest.raises(ValueError, match=f"vocab_size is {size}; it must exceed the 5 special tokens by 2"):
        train_wordpiece(["the river"], size)


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


def test_every_source_gives_its_share(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizers, "CHARACTERS", 50)
    for name, letter in (("a", "a"), ("b", "b")):
        (tmp_path / f"{name}.txt").write_text("\n\n".join([letter * 10] * 5))
    parsed = parse_sources([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    read = list(beginnings(parsed))
    assert read == ["a" * 10, "a" * 10, "a" * 5, "b" * 10, "b" * 10, "b" * 5]


def test_other_text_gives_another(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizers, "CHARACTERS", 500)

    def trained(seed):
        text = corpus(tmp_path / "text.txt", seed=seed)
        return trained_tokenizer([text], tmp_path / "cache", 1000, segments=True)

    assert fingerprint(trained(1)) != fingerprint(trained(2))
    assert len(list((tmp_path / "cache").glob("tokenizer-wordpiece-*"))) == 2
