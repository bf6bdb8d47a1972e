"""Embedding, predicting, filling: in order, whatever the batches, and with one line for what is wrong."""

import json
import logging
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import decoders

import mabert
from mabert import MaBertForMaskedLM, MaBertForSequenceClassification
from mabert.data.batches import batches_by_length
from mabert.data.tokenizer import train_wordpiece
from mabert.infer import texts as chunking
from mabert.infer.heads import readable
from mabert.infer.info import info
from mabert.infer.loaded import load_for_use
from mabert.model.blocks import MambaBlock
from mabert.model.heads import PredictionTransform
from mabert.model.packing import total_of
from mabert.opening.opened import open_model
from tests.data.conftest import of_bytes, of_pieces
from tests.infer.conftest import saved
from tests.tolerances import VECTORS

TEXTS = ["the bird sings", "a river", "the old stone house holds a small cold light", "wind", "bird bird bird bird"]


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 120))
def test_batches_hold_every_text_once_and_keep_to_their_size(lengths, tokens):
    batches = batches_by_length(lengths, tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= tokens
    firsts = [lengths[batch[0]] for batch in batches]
    assert firsts == sorted(firsts, reverse=True)


@pytest.mark.parametrize(
    ("texts", "how", "told"),
    [
        (TEXTS, {}, []),
        (TEXTS, {"max_length": 10, "truncate": True}, ["texts that were cut: 1 of 5"]),
        (["", *TEXTS, " \t"], {}, ["texts that are empty: 2 of 7"]),
    ],
)
def test_texts_that_were_cut_or_are_empty_are_told_once_at_the_end(masked_lm, monkeypatch, caplog, texts, how, told):
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 2)
    caplog.set_level(logging.INFO)
    assert np.isfinite(mabert.load(masked_lm).embed(texts, **how)).all()
    assert [record.message for record in caplog.records] == told


@pytest.mark.parametrize("masking", ["none", "pre", "post", "pre+post", "exact"])
@pytest.mark.parametrize("pooling", ["map", "attention", "cls", "mean"])
def test_answers_do_not_depend_on_the_size_of_batches_whatever_the_model_does_with_padding(
    words, tmp_path, pooling, masking
):
    kinds = {"num_labels": 2, "pooling": pooling, "padding_safe_masking": masking, "ssm_conv_mode": "centered"}
    model = mabert.load(saved(MaBertForSequenceClassification, tmp_path, words, **kinds))
    for alone, together in zip(model.predict(TEXTS, batch_tokens=1), model.predict(TEXTS), strict=True):
        assert alone["label"] == together["label"]
        assert alone["probability"] == pytest.approx(together["probability"], rel=1e-5)
    np.testing.assert_allclose(model.embed(TEXTS, batch_tokens=1), model.embed(TEXTS), **VECTORS)


@pytest.mark.parametrize("deterministic", [True, False])
def test_no_padding_is_computed_and_deterministic_answers_have_the_same_bits_in_any_company(
    masked_lm, classifier, words, rows_seen, deterministic
):
    tokens = sorted((len(words(text)["input_ids"]) for text in TEXTS), reverse=True)
    for answers in (mabert.load(masked_lm).embed, mabert.load(classifier).predict):
        rows_seen.clear()
        together = answers(TEXTS, deterministic=deterministic)
        assert rows_seen == [(1, total_of(count)) for count in (tokens if deterministic else [sum(tokens)])]
        backwards = answers(TEXTS[::-1], deterministic=deterministic)[::-1]
        assert not deterministic or np.array_equal(together, backwards)
        assert not deterministic or np.array_equal(answers(TEXTS[:1]), together[:1])


def test_map_pooling_is_the_classifiers_own_or_refused(classifier, words, tmp_path):
    model = open_model(classifier).plain("classifier")
    ids = words(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        truth = model.pooler(model.mabert(ids).last_hidden_state, torch.ones_like(ids) > 0)[0].numpy()
    np.testing.assert_allclose(mabert.load(classifier).embed(TEXTS, pooling="map")[0], truth, rtol=1e-5, atol=1e-6)
    averaging = saved(MaBertForSequenceClassification, tmp_path, words, pooling="mean")
    with pytest.raises(ValueError, match="pools by 'mean'; pooling 'map' needs a classifier that was trained with it"):
        mabert.load(averaging).embed(TEXTS, pooling="map")


NAMES = {0: "a", 1: "b", 2: "c"}
SEVERAL, SCORES = ({"problem_type": kind} for kind in ("multi_label_classification", "regression"))


@pytest.mark.parametrize(
    ("fields", "kind", "answer"),
    [
        ({"num_labels": 3, "id2label": NAMES}, torch.nn.Softmax(-1), {"label": "b"}),
        ({"num_labels": 3, "id2label": NAMES, **SEVERAL}, torch.nn.Sigmoid(), {"labels": ["a", "b"]}),
        ({"num_labels": 1, "id2label": {0: "a"}, **SEVERAL}, torch.nn.Sigmoid(), {"labels": ["a"]}),
        ({"num_labels": 1}, None, {"score": 2.0}),
        ({"num_labels": 2, "id2label": {0: "a", 1: "b"}, **SCORES}, None, {"scores": {"a": 2.0, "b": 3.0}}),
    ],
)
def test_labels_have_probabilities_and_numbers_have_none(words, tmp_path, fields, kind, answer):
    folder = saved(MaBertForSequenceClassification, tmp_path, words, **fields)
    model, logits = open_model(folder).plain("classifier"), torch.tensor([2.0, 3.0, -1.0])
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(logits[: fields["num_labels"]])
    model.save_pretrained(folder)
    if kind is not None:
        chances = kind(logits[: fields["num_labels"]]).tolist()
        answer = {**answer, "probability": pytest.approx(dict(zip("abc", chances, strict=False)))}
    assert mabert.load(folder).predict(TEXTS[:2]) == [answer] * 2


def test_guesses_are_the_models_and_only_masks_are_decoded(masked_lm, words, monkeypatch):
    texts = ["the [MASK] sings [MASK]", "a [MASK]", "a long [MASK] stone house holds the light"]
    decoded, forward = [], PredictionTransform.forward
    monkeypatch.setattr(
        PredictionTransform, "forward", lambda self, hidden: decoded.append(len(hidden)) or forward(self, hidden)
    )
    answers = mabert.load(masked_lm).fill_mask(texts, top=1000)
    assert decoded == [4]
    monkeypatch.undo()
    model = open_model(masked_lm).plain("masked_lm")
    for text, masks in zip(texts, answers, strict=True):
        ids = words(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            truth = model(ids).logits[ids == words.mask_token_id].softmax(-1)
        assert len(masks) == len(truth)
        for mask, chances in zip(masks, truth, strict=True):
            assert mask == sorted(mask, key=lambda guess: -guess["probability"])
            expected = dict(zip(words.convert_ids_to_tokens(range(len(chances))), chances.tolist(), strict=True))
            assert {guess["token"]: guess["probability"] for guess in mask} == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("before", "left"), [(21, 1), (22, 0)])
def test_a_mask_that_cutting_would_lose_is_an_error(masked_lm, before, left):
    birds, masks, model = "bird " * before, "[MASK] [MASK] ", mabert.load(masked_lm)
    with pytest.raises(ValueError, match=rf"text 2 has 2 \[MASK\], of which cutting it to 24 tokens leaves {left};"):
        model.fill_mask(["a [MASK]", birds + masks], truncate=True)
    assert list(map(len, model.fill_mask(["a [MASK]", masks + birds], truncate=True))) == [1, 2]


def test_long_texts_are_cut_as_asked(masked_lm):
    model = mabert.load(masked_lm)

    def birds(count):
        return [" ".join(["bird"] * count)]

    with pytest.raises(ValueError, match="max_length is 25, the model has positions for 24 tokens"):
        model.embed(["bird"], max_length=25)
    for most in (None, 7):
        cut = model.embed(birds(40), truncate=True, max_length=most)
        np.testing.assert_allclose(cut, model.embed(birds((most or 24) - 2)), rtol=1e-5)


def test_a_model_without_positions_takes_any_length_and_is_cut_where_finetuning_cuts(words, tmp_path):
    folder = saved(MaBertForMaskedLM, tmp_path, words, position_embedding="rotary")
    loaded = load_for_use(open_model(folder), "encoder")
    for how, length in (({}, 42), ({"truncate": True}, 24), ({"truncate": True, "max_length": 30}, 30)):
        assert [len(item["input_ids"]) for item, _ in loaded.encodings(["bird " * 40], **how)] == [length]


def test_info_counts_every_parameter(masked_lm):
    about = info(masked_lm, lengths=(8, 16, 4096))
    model = open_model(masked_lm).plain("masked_lm")
    assert sum(about.parts.values()) == sum(p.numel() for p in model.parameters())
    assert about.parts["head"] == 8 * 8 + 8 + 2 * 8 + model.config.vocab_size
    assert about.weights == 4 * sum(about.parts.values())
    assert set(about.memory) == {8, 16}
    assert 16 * 8 * 4 < about.memory[8] < about.memory[16]


def test_info_knows_the_head_of_a_classifier_and_of_a_bare_encoder(classifier, masked_lm, tmp_path):
    assert info(classifier, lengths=(8,)).parts["head"] == 8 + 3 * 8 + 3
    open_model(masked_lm).plain("encoder").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for saved_as in (config["architectures"], ["SomebodysModel"], ["RobertaForMaskedLM"]):
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": saved_as}))
        assert "head" not in info(tmp_path, lengths=(8,)).parts
        assert open_model(tmp_path).use == "encoder"


def test_wrong_models_and_questions_are_named(masked_lm, classifier, tmp_path):
    def refused(message, folder, how="embed", texts=TEXTS, **options):
        with pytest.raises(ValueError, match=message):
            getattr(mabert.load(folder), how)(texts, **options)

    refused("is a masked language model; `mabert finetune` makes a classifier of it", masked_lm, "predict")
    refused("is an encoder without a head; `mabert finetune` makes a classifier of it", "minilm", "predict")
    refused("for MaBertForMaskedLM it lacks", classifier, "fill_mask", ["a [MASK]"])
    refused(r"text 2 has no \[MASK\] to fill: 'a river'", masked_lm, "fill_mask", ["a [MASK]", "a river"])
    refused("top is 0; it must be at least 1", masked_lm, "fill_mask", ["a [MASK]"], top=0)
    refused(r"pooling is 'max'; it must be one of \['mean', 'cls', 'map'\]", masked_lm, pooling="max")
    refused("batch_tokens is 0; it must be at least 1", masked_lm, batch_tokens=0)
    with pytest.raises(FileNotFoundError, match="holds no model"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="holds a model of type 'bert'; it must be mabert"):
        open_model(tmp_path, ["mabert"])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    with pytest.raises(ValueError, match=r"of type 'roberta'; it must be .*; `mabert convert` reads other types"):
        open_model(tmp_path)


def test_a_folder_without_weights_is_named_and_a_pickle_is_not_read(masked_lm, tmp_path):
    broken = shutil.copytree(masked_lm, tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="holds no weights"):
        mabert.load(broken).embed(TEXTS)
    torch.save(load_file(masked_lm / "model.safetensors"), broken / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="holds no weights"):
        mabert.load(broken).embed(TEXTS)
    (broken / "model.onnx").touch()
    with pytest.raises(FileNotFoundError, match=r"holds no weights .*; model\.onnx is an export, for a runtime"):
        mabert.load(broken).embed(TEXTS)


def test_an_adapter_and_a_nameless_configuration_are_named(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"holds an adapter \(adapter_config\.json\) and no model; join both"):
        mabert.load(tmp_path).embed(TEXTS)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json has no model_type; those known are bert"):
        mabert.load(tmp_path).embed(TEXTS)
    for damaged in ("[]", "{"):
        (tmp_path / "adapter_config.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"adapter_config\.json: (holds list|not JSON)"):
            mabert.load(tmp_path).embed(TEXTS)


def test_a_configuration_that_asks_for_tuples_changes_nothing(masked_lm, tmp_path):
    tuples = shutil.copytree(masked_lm, tmp_path / "tuples")
    fields = json.loads((tuples / "config.json").read_text())
    (tuples / "config.json").write_text(json.dumps({**fields, "return_dict": False}))
    assert np.array_equal(mabert.load(tuples).embed(TEXTS), mabert.load(masked_lm).embed(TEXTS))


def test_missing_tensors_of_the_encoder_are_named_without_a_head(masked_lm, tmp_path):
    broken = shutil.copytree(masked_lm, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    del weights["mabert.layers.0.mixer.cores.0.recurrence.A_log"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"it lacks layers\.0\.mixer\.cores\.0\.recurrence\.A_log"):
        open_model(broken).with_new_head()


def test_a_missing_text_is_named_before_any_work(masked_lm, classifier, monkeypatch):
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 2)
    monkeypatch.setattr(MambaBlock, "forward", None)
    column = pd.Series([*TEXTS, None, "wind"], dtype=object)
    with pytest.raises(ValueError, match=r"^the input: text 6 is None, not text$"):
        mabert.load(masked_lm).embed(column)
    with pytest.raises(ValueError, match=r"^the input: text 2 is nan, not text$"):
        mabert.load(masked_lm).fill_mask(["a [MASK]", float("nan")])
    with pytest.raises(ValueError, match=r"^the input: the second text of pair 6 is None, not text$"):
        mabert.load(classifier).predict(["a"] * 7, column)


def test_vectors_are_a_row_each_in_float32_of_no_texts_too(masked_lm):
    vectors, none = (mabert.load(masked_lm).embed(texts) for texts in (pd.Series(TEXTS, index=range(7, 12)), []))
    assert (vectors.shape, vectors.dtype, none.shape) == ((5, 8), np.float32, (0, 8))


BY_BYTES = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
VOCABULARIES = {
    "wordpiece": (decoders.WordPiece(), "paris,##ing,.,[MASK]", "paris,##ing,.,[MASK]"),
    "bytes": (decoders.ByteLevel(), "ĠcafÃ©,cafÃ©,Ã,Ġ,Ċ,Ġthe,<mask>,ĠÐ¿", "café,café,Ã,Ġ,Ċ,the,<mask>,п"),
    "sentencepiece": (decoders.Metaspace(), "▁Paris,ing,▁,▁港,<unk>", "Paris,ing,▁,港,<unk>"),
    "bytes of SentencePiece": (BY_BYTES, "▁Paris,<0xE2>,<0x41>", "Paris,<0xE2>,A"),
    "word ends": (decoders.BPEDecoder("</w>"), "paris</w>,par", "paris,par"),
    "none": (None, "paris, x", "paris,x"),
}


@pytest.mark.parametrize(("decoder", "pieces", "shown"), VOCABULARIES.values(), ids=VOCABULARIES)
def test_guesses_are_readable_in_every_kind_of_vocabulary(decoder, pieces, shown):
    assert [readable(decoder, piece) for piece in pieces.split(",")] == shown.split(",")


@pytest.mark.parametrize("make", [of_bytes, of_pieces, lambda texts: train_wordpiece(texts, 100)])
def test_a_guess_has_the_text_that_transformers_shows_and_the_vocabularys_own_spelling(tmp_path, make):
    made = make(["the caf\u00e9 and the na\u00efve fa\u00e7ade", "\u6e2f\u306e\u5915\u65b9 sings"] * 20)
    folder = saved(MaBertForMaskedLM, tmp_path, made, vocab_size=len(made) + 2)  # as where sizes are rounded up
    found = mabert.load(folder).fill_mask([f"the {made.mask_token}"], top=10_000, progress=False)[0][0]
    assert [set(guess) for guess in found] == [{"token", "piece", "probability"}] * (len(made) + 2)
    assert {guess["piece"] for guess in found} == {*made.get_vocab(), None}
    for guess in found:
        shown = guess["piece"] and made.decode([made.convert_tokens_to_ids(guess["piece"])]).strip()
        assert guess["token"] == (guess["piece"] if not shown or "\ufffd" in shown else shown)
