"""Embedding, predicting, filling: in order, whatever the batches, and with one line for what is wrong."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mabert import MaBertForMaskedLM, MaBertForSequenceClassification, MaBertModel
from mabert.data.batches import batches_by_length
from mabert.infer.embed import embed
from mabert.infer.fill import fill_mask
from mabert.infer.info import info
from mabert.infer.predict import predict
from mabert.infer.texts import read_texts
from mabert.model.load import load_config, load_model, with_new_head

TEXTS = ["the bird sings", "a river", "the old stone house holds a small cold light", "wind", "bird bird bird bird"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 120))
def test_batches_hold_every_text_once_and_keep_to_their_size(lengths, tokens):
    batches = batches_by_length(lengths, tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= tokens
    firsts = [lengths[batch[0]] for batch in batches]
    assert firsts == sorted(firsts, reverse=True)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_vector_is_the_same_in_any_company(masked_lm, pooling):
    together = embed(masked_lm, TEXTS, pooling=pooling)
    assert together.shape == (5, 8)
    assert together.dtype == np.float32
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(embed(masked_lm, [text], pooling=pooling)[0], vector, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(embed(masked_lm, TEXTS, pooling=pooling, batch_tokens=1), together, rtol=1e-5, atol=2e-6)
    backwards = embed(masked_lm, TEXTS[::-1], pooling=pooling)[::-1]
    np.testing.assert_allclose(backwards, together, rtol=1e-5, atol=2e-6)


def test_mean_pooling_is_the_mean_of_the_encoders_vectors(masked_lm, words):
    model = load_model(MaBertModel, masked_lm)
    ids = words(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        truth = model(ids).last_hidden_state.mean(1)[0].numpy()
    np.testing.assert_allclose(embed(masked_lm, TEXTS[:1])[0], truth, rtol=1e-5, atol=1e-6)
    unit = embed(masked_lm, TEXTS[:1], normalize=True)[0]
    np.testing.assert_allclose(unit, truth / np.linalg.norm(truth), rtol=1e-5, atol=1e-6)


def test_no_texts_give_no_vectors(masked_lm):
    assert embed(masked_lm, []).shape == (0, 8)


def test_labels_with_probabilities(classifier):
    answers = predict(classifier, TEXTS)
    assert len(answers) == 5
    for answer in answers:
        assert set(answer["probability"]) == {"a", "b", "c"}
        assert sum(answer["probability"].values()) == pytest.approx(1, abs=1e-5)
        assert answer["label"] == max(answer["probability"], key=answer["probability"].get)
    alone = predict(classifier, TEXTS[2:3])[0]["probability"]
    assert alone == pytest.approx(answers[2]["probability"], abs=1e-5)


def test_every_mask_gets_its_guesses(masked_lm):
    (two, one) = fill_mask(masked_lm, ["the [MASK] sings [MASK]", "a [MASK]"], top=3)
    assert (len(two), len(one)) == (2, 1)
    for mask in [*two, *one]:
        chances = [guess["probability"] for guess in mask]
        assert len(mask) == 3
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(chances) <= 1
    with pytest.raises(ValueError, match=r"text 2 has no \[MASK\] to fill: 'a river'"):
        fill_mask(masked_lm, ["a [MASK]", "a river"])


def test_long_texts_are_counted_or_cut(masked_lm):
    long = " ".join(["bird"] * 40)
    with pytest.raises(ValueError, match=r"1 of 2 texts are longer than the model's 24 tokens \(the longest has 42\)"):
        embed(masked_lm, ["bird", long])
    cut = embed(masked_lm, [long], truncate=True)
    np.testing.assert_allclose(cut, embed(masked_lm, [" ".join(["bird"] * 22)]), rtol=1e-5)


def test_info_counts_every_parameter(masked_lm):
    about = info(masked_lm, lengths=(8, 16, 4096))
    model = load_model(MaBertModel, masked_lm)
    assert sum(about.parts.values()) == sum(p.numel() for p in model.parameters())
    assert about.weights == 4 * sum(about.parts.values())
    assert set(about.memory) == {8, 16}
    assert 16 * 8 * 4 < about.memory[8] < about.memory[16]


def test_wrong_models_are_named(masked_lm, classifier, tmp_path):
    with pytest.raises(ValueError, match=r"was saved as MaBertForMaskedLM; for MaBertForSeq.* it lacks"):
        predict(masked_lm, TEXTS)
    with pytest.raises(ValueError, match="for MaBertForMaskedLM it lacks"):
        fill_mask(classifier, ["a [MASK]"])
    with pytest.raises(ValueError, match=r"pooling is 'max'; it must be one of \['mean', 'cls', 'map'\]"):
        embed(masked_lm, TEXTS, pooling="max")
    with pytest.raises(FileNotFoundError, match="no model folder"):
        load_config(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="holds no model"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="holds a model of type 'bert'; a 'mabert' one is needed"):
        load_config(tmp_path)


def copy_of(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("size", [4, 3000])
def test_cut_off_weights_are_named(masked_lm, tmp_path, size):
    broken = copy_of(masked_lm, tmp_path)
    (broken / "model.safetensors").write_bytes((masked_lm / "model.safetensors").read_bytes()[:size])
    with pytest.raises(ValueError, match=r"the weights in .* are damaged or cut short"):
        embed(broken, TEXTS)
    (broken / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="holds no weights"):
        embed(broken, TEXTS)


def test_missing_tensors_of_the_encoder_are_named_without_a_head(masked_lm, tmp_path):
    broken = copy_of(masked_lm, tmp_path)
    weights = load_file(broken / "model.safetensors")
    del weights["mabert.layers.0.mixer.cores.0.A_log"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"it lacks layers\.0\.mixer\.cores\.0\.A_log"):
        with_new_head(MaBertForSequenceClassification, broken, load_config(broken))


def test_a_tokenizer_with_more_entries_than_the_model_is_refused(masked_lm, words, tmp_path):
    model = MaBertForMaskedLM(load_config(masked_lm))
    model.resize_token_embeddings(len(words) - 3)
    model.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"has {len(words)} entries, the model's vocabulary {len(words) - 3}"):
        embed(tmp_path, TEXTS)


def test_texts_from_files(tmp_path):
    plain, objects = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one\ntwo words\n\nfour\n", encoding="utf-8")
    assert read_texts(plain) == ["one", "two words", "", "four"]
    objects.write_text('{"text": "x", "body": "y"}\n{"text": "z"}\n', encoding="utf-8")
    assert read_texts(objects) == ["x", "z"]
    with pytest.raises(ValueError, match="line 2 has no text 'body'; it has"):
        read_texts(objects, "body")
    objects.write_text('{"text": "x"}\n{"text": \n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_texts(objects)
    plain.write_bytes(b"fine\nna\xefve\n")
    with pytest.raises(ValueError, match="not UTF-8: byte 0xef at offset 7"):
        read_texts(plain)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_texts(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        read_texts(tmp_path / "empty.txt")
