"""Tokenizers trained as each family's own: where special tokens stand, what is kept of a text, the same in any run."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from transformers import AlbertConfig, AutoTokenizer, BigBirdConfig, DebertaV2Config, LongformerConfig, ModernBertConfig

from mabert.data.build import build_cache
from mabert.data.mlm import IGNORE, MlmMasking
from mabert.data.tokenizer import checked, fingerprint, load_tokenizer, special_ids
from mabert.data.train_tokenizer import RECIPES, train_tokenizer, train_wordpiece
from tests.data.conftest import VOCABULARY

FAMILIES = list(RECIPES)
UNIGRAM = ["albert", "bigbird", "deberta"]
BYTES = ["longformer", "modernbert"]
LOWERCASE = ["wordpiece", "albert"]
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
RIVER = ("river", "▁river", "Ġriver")
IDS = {
    "wordpiece": ({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}, {}),
    "albert": ({"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}, {}),
    "longformer": ({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}, {"<mask>": -1}),
    "bigbird": ({"<pad>": 0, "</s>": 1, "<s>": 2, "<unk>": 3, "[CLS]": 4, "[SEP]": 5, "[MASK]": 6}, {}),
    "deberta": ({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3}, {"[MASK]": -1}),
    "modernbert": ({}, {"[UNK]": -5, "[CLS]": -4, "[SEP]": -3, "[PAD]": -2, "[MASK]": -1}),
}


def ids(tokenizer, *texts: str) -> list[int]:
    return tokenizer(*texts)["input_ids"]


def test_saved_and_loaded_it_gives_the_same_ids(family, trained, tmp_path):
    tokenizer = trained(family)
    tokenizer.save_pretrained(tmp_path)
    automatic = AutoTokenizer.from_pretrained(tmp_path)
    assert type(automatic) is type(tokenizer)
    # BigBird's class alone leaves our reading of line ends out.
    for loaded in (checked(automatic, tmp_path), load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tokenizer.json")):
        assert len(loaded) == len(tokenizer)
        assert special_ids(loaded) == special_ids(tokenizer)
        assert fingerprint(loaded) == fingerprint(tokenizer)
        for first, second in itertools.product(VARIED, [None, *VARIED[:4]]):
            assert loaded(first, second)["input_ids"] == tokenizer(first, second)["input_ids"]


def test_special_tokens_and_segments_are_where_they_belong(family, trained):
    tokenizer, texts = trained(family), (SENTENCE, "A bridge.")
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    cls, sep, told = tokenizer.cls_token_id, tokenizer.sep_token_id, family not in BYTES
    between = [sep, sep] if family == "longformer" else [sep]
    assert ids(tokenizer, *texts) == [cls, *a, *between, *b, sep]
    assert ids(tokenizer, SENTENCE) == [cls, *a, sep]
    assert ids(tokenizer, "") == [cls, sep]
    segments = tokenizer(*texts, return_token_type_ids=True)["token_type_ids"]
    assert segments == [0] * (len(a) + 2) + [int(told)] * (len(segments) - len(a) - 2)
    assert ("token_type_ids" in tokenizer("a")) == told


def test_ids_of_special_tokens(family, trained):
    tokenizer = trained(family)
    first, last = IDS[family]
    expected = first | {token: len(tokenizer) + index for token, index in last.items()}
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in expected} == expected
    assert set(tokenizer.all_special_tokens) == set(expected)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_the_whole_size_and_its_ids_are_those_of_the_published_models():
    size = {family: recipe.size for family, recipe in RECIPES.items()}
    assert (size["wordpiece"], size["longformer"], size["deberta"]) == (30522, 50265, 128001)
    assert (size["albert"], size["bigbird"]) == (AlbertConfig().vocab_size, BigBirdConfig().vocab_size)
    assert size["deberta"] <= DebertaV2Config().vocab_size
    modern, longformer, first = ModernBertConfig(), LongformerConfig(), RECIPES["longformer"].first
    assert size["modernbert"] <= modern.vocab_size
    of_modern = {token: size["modernbert"] + index for token, index in IDS["modernbert"][1].items()}
    wanted = {"[CLS]": modern.cls_token_id, "[SEP]": modern.sep_token_id, "[PAD]": modern.pad_token_id}
    assert {token: of_modern[token] for token in wanted} == wanted
    assert AlbertConfig().bos_token_id == RECIPES["albert"].first.index("[CLS]")
    assert AlbertConfig().eos_token_id == RECIPES["albert"].first.index("[SEP]")
    of_longformer = (longformer.bos_token_id, longformer.pad_token_id, longformer.eos_token_id)
    assert tuple(map(first.index, ("<s>", "<pad>", "</s>"))) == of_longformer
    for family, config in (("bigbird", BigBirdConfig), ("deberta", DebertaV2Config)):
        assert RECIPES[family].first[config().pad_token_id].lower() in ("<pad>", "[pad]")


def test_there_are_as_many_tokens_as_asked_for_or_as_the_text_gives(family, texts, trained):
    least = RECIPES[family].least
    assert len(trained(family)) == VOCABULARY
    for size in (least, least + 1, least + 3, least + 40):
        assert len(train_tokenizer(family, texts, size)) <= size
    for text in (["x"], ["a b"], ["the cat sat"] * 2, ["x" * 3000]):
        tokenizer = train_tokenizer(family, text)
        assert len(tokenizer) < least + 50
        assert tokenizer.unk_token_id not in ids(tokenizer, text[0][:50])


def test_the_alphabet_is_of_the_most_frequent_characters():
    tokenizer = train_tokenizer("albert", ["q " * 9 + "xa xb xc xd xe"], RECIPES["albert"].least)
    assert {"q", "x"} & tokenizer.get_vocab().keys() == {"q"}
    assert {"q", "x"} & train_wordpiece(["q" * 9, "x", "x"], 7).get_vocab().keys() == {"q"}
    many = " ".join(chr(0x4E00 + index % 700) * 2 for index in range(2000))
    for family in UNIGRAM:
        tokenizer = train_tokenizer(family, [many], 150)
        assert len(tokenizer) <= 150
        assert tokenizer.unk_token_id in ids(tokenizer, many)


@pytest.mark.slow
def test_the_same_texts_give_the_same_tokenizer_in_any_process(texts, trained, tmp_path):
    here = {family: fingerprint(trained(family)) for family in FAMILIES}
    assert {family: fingerprint(train_tokenizer(family, iter(texts), VOCABULARY)) for family in FAMILIES} == here
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    code = (
        "import json, sys\n"
        "from mabert.data.tokenizer import fingerprint\n"
        "from mabert.data.train_tokenizer import RECIPES, train_tokenizer\n"
        "texts = json.load(open(sys.argv[1]))\n"
        f"made = {{family: fingerprint(train_tokenizer(family, texts, {VOCABULARY})) for family in RECIPES}}\n"
        "print(json.dumps(made))\n"
    )
    seed = str((int(os.environ.get("PYTHONHASHSEED", "random").replace("random", "1")) + 1) % 1000)
    there = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "texts.json")],
        env=os.environ | {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(there.stdout) == here


def test_what_of_a_text_is_kept(family, trained):
    tokenizer, same = trained(family), family in LOWERCASE
    assert (ids(tokenizer, "The River") == ids(tokenizer, "the river")) == same
    assert (ids(tokenizer, "café") == ids(tokenizer, "cafe")) == same
    composed = ids(tokenizer, "e\u0301te\u0301") == ids(tokenizer, "\xe9t\xe9")
    assert composed == (family not in ("longformer", "bigbird"))
    assert (tokenizer.unk_token_id in ids(tokenizer, "\u4e2d")) == (family not in BYTES)
    # Line ends are spaces, or tokens of their own among the bytes, but never unknown.
    assert tokenizer.unk_token_id not in ids(tokenizer, "the river\nthe\tcastle")
    assert (ids(tokenizer, "the river\nthe castle") == ids(tokenizer, "the river the castle")) == (family not in BYTES)
    if family in BYTES:
        for text in ("\u4e2d\u6587 \U0001f600\n\t\x00", "".join(map(chr, range(32, 256)))):
            assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=True) == text


def test_a_mask_takes_the_space_before_it(family, trained):
    tokenizer = trained(family)
    tokens = tokenizer.tokenize(f"castle {tokenizer.mask_token} river")
    assert [token.strip() for token in tokens[:-1]] == [*tokenizer.tokenize("castle"), tokenizer.mask_token]
    assert tokens[-1] in RIVER


def test_names_of_special_tokens_in_a_corpus_are_text(family, trained, tmp_path):
    tokenizer = trained(family)
    (tmp_path / "corpus.txt").write_text("the [MASK] <mask> <s> river </s> <pad> [PAD] [CLS][SEP] castle\n" * 3)
    cache = build_cache(tmp_path / "corpus.txt", tokenizer, tmp_path / "caches", progress=False)
    found = set(cache.ids.tolist())
    assert not found & (set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})
    assert set(RIVER) & set(tokenizer.convert_ids_to_tokens(sorted(found)))


def test_masking_spares_special_tokens_and_whole_words_are_for_wordpiece(family, trained):
    tokenizer = trained(family)
    window = np.array(ids(tokenizer, SENTENCE * 20, SENTENCE))
    special = np.isin(window, tokenizer.all_special_ids)
    inputs, labels = MlmMasking(tokenizer, mask_share=0.0, random_share=1.0)(window, 0, 0, 0)
    chosen = labels != IGNORE
    assert chosen.sum() == round(0.15 * (~special).sum())
    assert not (chosen & special).any()
    assert not np.isin(inputs[chosen], tokenizer.all_special_ids).any()
    if family == "wordpiece":
        assert MlmMasking(tokenizer, whole_word=True).whole_word
        return
    with pytest.raises(ValueError, match=f"whole_word masking needs a WordPiece.*{type(tokenizer).__name__} has none"):
        MlmMasking(tokenizer, whole_word=True)


def test_number_signs_of_a_text_make_no_wordpiece():
    tokenizer = train_tokenizer("longformer", ["## a heading\n" * 50], 300)
    assert "##" in tokenizer.get_vocab()
    with pytest.raises(ValueError, match="whole_word masking needs a WordPiece vocabulary"):
        MlmMasking(tokenizer, whole_word=True)


def test_marks_of_word_starts_in_a_text_are_spaces(texts):
    plain = [" ".join(text.split()) for text in texts]
    marked = [text.replace(" ", "▁") for text in plain]
    for family in UNIGRAM:
        made = [fingerprint(train_tokenizer(family, each, VOCABULARY)) for each in (plain, marked)]
        assert made[0] == made[1]


def test_symbols_of_albert_stand_alone(trained):
    tokenizer = trained("albert")
    symbols = ["(", ")", '"', "-", ".", "\N{EN DASH}", "£", "€"]
    assert tokenizer.convert_ids_to_tokens(range(5, 13)) == symbols
    holding = [token for token in tokenizer.get_vocab() if set(token) & set(symbols)]
    assert sorted(holding) == sorted(symbols)
    assert tokenizer.tokenize("(the river...)")[-4:] == [".", ".", ".", ")"]


def test_training_refuses_what_cannot_work(family):
    least = RECIPES[family].least
    with pytest.raises(ValueError, match=f"vocab_size is {least - 1}; .* of {family} need {least}"):
        train_tokenizer(family, ["the river"], least - 1)
    for texts in ([], [" ", "\n\t"]):
        with pytest.raises(ValueError, match=f"cannot train a tokenizer for {family}: the texts hold no words"):
            train_tokenizer(family, texts)


def test_other_refusals():
    with pytest.raises(ValueError, match=r"no tokenizer is known for the family 'gpt'; known are wordpiece, albert, "):
        train_tokenizer("gpt", ["the river"])
    for train, texts in ((train_tokenizer, ("albert", ["(...)"])), (train_wordpiece, ([" ", ""], 100))):
        with pytest.raises(ValueError, match="the texts hold no words"):
            train(*texts)
    for size in (5, 6):
        with pytest.raises(ValueError, match=f"vocab_size is {size}; it must exceed the 5 special tokens by 2"):
            train_wordpiece(["the river"], size)
