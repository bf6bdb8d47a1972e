"""Tokenizers of all families in what the project does with them: encoding, caches, masking."""

from __future__ import annotations

import numpy as np
import pytest

from mabert.data.build import build_cache
from mabert.data.encode import encode_texts
from mabert.data.mlm import IGNORE, MlmMasking
from mabert.data.tokenizer import load_tokenizer
from mabert.data.train_tokenizer import train_tokenizer

SENTENCE = "The quiet river crossed the Castle, unafraid."
RIVER = {"river", "▁river", "Ġriver"}


def ids(tokenizer, *texts: str) -> list[int]:
    return tokenizer(*texts)["input_ids"]


@pytest.mark.parametrize("pair", [False, True])
def test_it_encodes_texts_and_pairs_for_a_classifier(family, trained, pair):
    tokenizer = trained(family)
    texts_a = [SENTENCE * 5, "a river", SENTENCE]
    texts_b = ["the castle", SENTENCE * 5, SENTENCE] if pair else None
    items = encode_texts(tokenizer, texts_a, texts_b, max_length=16, truncate=True)
    lengths = [len(item["input_ids"]) for item in items]
    assert max(lengths) == 16
    for item in items:
        special = [token for token in item["input_ids"] if token in tokenizer.all_special_ids]
        assert len(special) == tokenizer.num_special_tokens_to_add(pair=pair)
        assert (item["input_ids"][0], item["input_ids"][-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    whole = encode_texts(tokenizer, texts_a, texts_b, max_length=None)
    assert [item["input_ids"] for item in whole] == [
        ids(tokenizer, *given) for given in (zip(texts_a, texts_b, strict=True) if pair else zip(texts_a, strict=True))
    ]


def test_names_of_special_tokens_in_a_corpus_are_text(family, trained, tmp_path):
    tokenizer = trained(family)
    (tmp_path / "corpus.txt").write_text("the [MASK] <mask> <s> river </s> <pad> [PAD] [CLS][SEP] castle\n" * 3)
    cache = build_cache(tmp_path / "corpus.txt", tokenizer, tmp_path / "caches", progress=False)
    found = set(cache.ids.tolist())
    assert not found & (set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})
    assert RIVER & set(tokenizer.convert_ids_to_tokens(sorted(found)))


def test_masking_spares_special_tokens_and_draws_none(family, trained):
    tokenizer = trained(family)
    window = np.array(ids(tokenizer, SENTENCE * 20, SENTENCE))
    special = np.isin(window, tokenizer.all_special_ids)
    masking = MlmMasking(tokenizer, mask_share=0.0, random_share=1.0)
    inputs, labels = masking(window, 0, 0, 0)
    chosen = labels != IGNORE
    assert chosen.sum() == round(0.15 * (~special).sum())
    assert not (chosen & special).any()
    assert not np.isin(inputs[chosen], tokenizer.all_special_ids).any()


def test_whole_words_are_for_wordpiece_only(family, trained):
    tokenizer = trained(family)
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


def test_line_ends_are_spaces_or_tokens_of_their_own_but_never_unknown(family, trained, tmp_path):
    tokenizer = trained(family)
    assert tokenizer.unk_token_id not in ids(tokenizer, "the river\nthe\tcastle")
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert ids(again, "the river\nthe castle") == ids(tokenizer, "the river\nthe castle")
    if family not in ("longformer", "modernbert"):  # which have line ends among their bytes
        assert ids(again, "the river\nthe castle") == ids(again, "the river the castle")
