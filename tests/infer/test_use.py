"""Embedding, predicting, filling: in order, whatever the batches, and with one line for what is wrong."""

import io
import json
import os
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mabert import MaBertForMaskedLM, MaBertForSequenceClassification, MaBertModel
from mabert.baselines.load import with_new_head
from mabert.data.batches import batches_by_length
from mabert.infer import windows as windowing
from mabert.infer.embed import embed
from mabert.infer.fill import fill_mask
from mabert.infer.info import info
from mabert.infer.load import load_for_use
from mabert.infer.predict import predict
from mabert.infer.texts import read_rows, read_texts
from mabert.model.blocks import MambaBlock
from mabert.model.heads import PredictionTransform
from mabert.model.load import load_config, load_model
from tests.infer.conftest import saved

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


@pytest.mark.parametrize("masking", ["none", "pre", "post", "pre+post", "exact"])
@pytest.mark.parametrize("pooling", ["map", "attention", "cls", "mean"])
def test_answers_do_not_depend_on_the_size_of_batches_whatever_the_model_does_with_padding(
    words, tmp_path, pooling, masking
):
    kinds = {"num_labels": 2, "pooling": pooling, "padding_safe_masking": masking, "ssm_conv_mode": "centered"}
    model = saved(MaBertForSequenceClassification, tmp_path, words, **kinds)
    for alone, together in zip(predict(model, TEXTS, batch_tokens=1), predict(model, TEXTS), strict=True):
        assert alone["label"] == together["label"]
        assert alone["probability"] == pytest.approx(together["probability"], rel=1e-5)
    np.testing.assert_allclose(embed(model, TEXTS, batch_tokens=1), embed(model, TEXTS), rtol=1e-5, atol=2e-6)


def test_no_padding_is_computed(masked_lm, classifier, words, monkeypatch):
    seen = []
    forward = MambaBlock.forward
    monkeypatch.setattr(
        MambaBlock,
        "forward",
        lambda self, hidden, *rest, **more: seen.append(hidden) or forward(self, hidden, *rest, **more),
    )
    tokens = sum(len(words(text)["input_ids"]) for text in TEXTS)
    for answers in (lambda: embed(masked_lm, TEXTS), lambda: predict(classifier, TEXTS)):
        seen.clear()
        answers()
        assert [tuple(hidden.shape[:2]) for hidden in seen] == [(1, tokens)]


def test_deterministic_answers_take_a_forward_a_text(masked_lm, classifier, words, monkeypatch):
    seen = []
    forward = MaBertModel.forward
    monkeypatch.setattr(
        MaBertModel,
        "forward",
        lambda self, input_ids, *rest, **more: seen.append(input_ids.shape) or forward(self, input_ids, *rest, **more),
    )
    alone = sorted((1, len(words(text)["input_ids"])) for text in TEXTS)
    for answers in (embed, predict):
        seen.clear()
        answers(masked_lm if answers is embed else classifier, TEXTS, deterministic=True)
        assert sorted(map(tuple, seen)) == alone


def test_deterministic_answers_have_the_same_bits_in_any_company(masked_lm, classifier):
    together = embed(masked_lm, TEXTS, deterministic=True)
    for text, vector in zip(TEXTS, together, strict=True):
        assert np.array_equal(embed(masked_lm, [text, *TEXTS[:2]], deterministic=True)[0], vector)
        assert np.array_equal(embed(masked_lm, [text])[0], vector)
    answers = predict(classifier, TEXTS, deterministic=True)
    assert predict(classifier, TEXTS[::-1], deterministic=True) == answers[::-1]


def test_mean_pooling_is_the_mean_of_the_encoders_vectors(masked_lm, words):
    model = load_model(MaBertModel, masked_lm)
    ids = words(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        truth = model(ids).last_hidden_state.mean(1)[0].numpy()
    np.testing.assert_allclose(embed(masked_lm, TEXTS[:1])[0], truth, rtol=1e-5, atol=1e-6)
    unit = embed(masked_lm, TEXTS[:1], normalize=True)[0]
    np.testing.assert_allclose(unit, truth / np.linalg.norm(truth), rtol=1e-5, atol=1e-6)


def test_map_pooling_is_the_classifiers_own_or_refused(classifier, words, tmp_path):
    model = load_model(MaBertForSequenceClassification, classifier)
    ids = words(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        truth = model.pooler(model.mabert(ids).last_hidden_state, torch.ones_like(ids) > 0)[0].numpy()
    np.testing.assert_allclose(embed(classifier, TEXTS, pooling="map")[0], truth, rtol=1e-5, atol=1e-6)
    averaging = saved(MaBertForSequenceClassification, tmp_path, words, pooling="mean")
    with pytest.raises(ValueError, match="pools by 'mean'; pooling 'map' needs a classifier that was trained with it"):
        embed(averaging, TEXTS, pooling="map")


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
    with pytest.raises(ValueError, match="top is 0; it must be at least 1"):
        fill_mask(masked_lm, ["a [MASK]"], top=0)


def test_guesses_are_the_models_and_only_masks_are_decoded(masked_lm, words, monkeypatch):
    texts = ["the [MASK] sings [MASK]", "a [MASK]", "a long [MASK] stone house holds the light"]
    decoded, forward = [], PredictionTransform.forward
    monkeypatch.setattr(
        PredictionTransform, "forward", lambda self, hidden: decoded.append(len(hidden)) or forward(self, hidden)
    )
    answers = fill_mask(masked_lm, texts, top=1000)
    assert decoded == [4]
    monkeypatch.undo()
    model = load_model(MaBertForMaskedLM, masked_lm)
    for text, masks in zip(texts, answers, strict=True):
        ids = words(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            truth = model(ids).logits[ids == words.mask_token_id].softmax(-1)
        assert len(masks) == len(truth)
        for mask, chances in zip(masks, truth, strict=True):
            assert len(mask) == model.config.vocab_size
            for guess in mask:
                place = words.convert_tokens_to_ids(guess["token"])
                assert guess["probability"] == pytest.approx(chances[place].item(), abs=1e-5)


@pytest.mark.parametrize(("before", "left"), [(21, 1), (22, 0)])
def test_a_mask_that_cutting_would_lose_is_an_error(masked_lm, before, left):
    text = " ".join(["bird"] * before + ["[MASK]", "[MASK]"])
    with pytest.raises(ValueError, match=rf"text 2 has 2 \[MASK\], of which cutting it to 24 tokens leaves {left};"):
        fill_mask(masked_lm, ["a [MASK]", text], truncate=True)
    kept = " ".join(["[MASK]", "[MASK]"] + ["bird"] * before)
    assert [len(masks) for masks in fill_mask(masked_lm, ["a [MASK]", kept], truncate=True)] == [1, 2]


def test_long_texts_are_counted_or_cut(masked_lm):
    long = " ".join(["bird"] * 40)
    message = r"1 of 2 texts are longer than 24 tokens \(the first is text 2, the longest text 2 with 42\)"
    with pytest.raises(ValueError, match=message):
        embed(masked_lm, ["bird", long])
    with pytest.raises(ValueError, match="max_length is 25, the model has positions for 24 tokens"):
        embed(masked_lm, ["bird"], max_length=25)
    cut = embed(masked_lm, [long], truncate=True)
    np.testing.assert_allclose(cut, embed(masked_lm, [" ".join(["bird"] * 22)]), rtol=1e-5)
    shorter = embed(masked_lm, [long], truncate=True, max_length=7)
    np.testing.assert_allclose(shorter, embed(masked_lm, [" ".join(["bird"] * 5)]), rtol=1e-5)


def test_a_model_without_positions_takes_any_length_and_is_cut_where_finetuning_cuts(words, tmp_path):
    folder = saved(MaBertForMaskedLM, tmp_path, words, position_embedding="rotary")
    loaded = load_for_use("encoder", folder)
    assert [len(item["input_ids"]) for item in loaded.encode(["bird " * 40])] == [42]
    assert [len(item["input_ids"]) for item in loaded.encode(["bird " * 40], truncate=True)] == [24]
    assert [len(item["input_ids"]) for item in loaded.encode(["bird " * 40], truncate=True, max_length=30)] == [30]


def test_info_counts_every_parameter(masked_lm):
    about = info(masked_lm, lengths=(8, 16, 4096))
    model = load_model(MaBertForMaskedLM, masked_lm)
    assert sum(about.parts.values()) == sum(p.numel() for p in model.parameters())
    assert about.parts["head"] == 8 * 8 + 8 + 2 * 8 + model.config.vocab_size
    assert about.weights == 4 * sum(about.parts.values())
    assert set(about.memory) == {8, 16}
    assert 16 * 8 * 4 < about.memory[8] < about.memory[16]


def test_info_knows_the_head_of_a_classifier_and_of_a_bare_encoder(classifier, masked_lm, tmp_path, words):
    assert info(classifier, lengths=(8,)).parts["head"] == 8 + 3 * 8 + 3
    load_model(MaBertModel, masked_lm).save_pretrained(tmp_path)
    assert "head" not in info(tmp_path, lengths=(8,)).parts
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["SomebodysModel"]}))
    assert "head" not in info(tmp_path, lengths=(8,)).parts


def test_wrong_models_are_named(masked_lm, classifier, tmp_path):
    with pytest.raises(ValueError, match=r"was saved as MaBertForMaskedLM; for MaBertForSeq.* it lacks"):
        predict(masked_lm, TEXTS)
    with pytest.raises(ValueError, match="for MaBertForMaskedLM it lacks"):
        fill_mask(classifier, ["a [MASK]"])
    with pytest.raises(ValueError, match=r"pooling is 'max'; it must be one of \['mean', 'cls', 'map'\]"):
        embed(masked_lm, TEXTS, pooling="max")
    with pytest.raises(ValueError, match="batch_tokens is 0; it must be at least 1"):
        embed(masked_lm, TEXTS, batch_tokens=0)
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
    torch.save(load_file(masked_lm / "model.safetensors"), broken / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="holds no weights"):  # a pickle is not read
        embed(broken, TEXTS)


def test_missing_tensors_of_the_encoder_are_named_without_a_head(masked_lm, tmp_path):
    broken = copy_of(masked_lm, tmp_path)
    weights = load_file(broken / "model.safetensors")
    del weights["mabert.layers.0.mixer.cores.0.A_log"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"it lacks layers\.0\.mixer\.cores\.0\.recurrence\.A_log"):
        with_new_head(broken, load_config(broken))


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
    with pytest.raises(ValueError, match="line 2: no 'body'; there is text"):
        read_texts(objects, "body")
    objects.write_text('{"text": "x"}\n{"text": \n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: not JSON"):
        read_texts(objects)
    plain.write_bytes(b"fine\nna\xefve\n")
    with pytest.raises(ValueError, match="not UTF-8: byte 0xef at offset 7"):
        read_texts(plain)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_texts(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        read_texts(tmp_path / "empty.txt")


def test_texts_and_pairs_from_tables(tmp_path):
    rows = [{"a": "one", "b": "x, y"}, {"a": "two", "b": "z"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "t.tsv").write_text("a\tb\none\tx, y\ntwo\tz\n", encoding="utf-8")
    (tmp_path / "t.csv").write_text('a,b\none,"x, y"\ntwo,z\n', encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    for file in sorted(tmp_path.iterdir()):
        assert read_texts(file, "b") == ["x, y", "z"]
        assert list(read_rows(file, "a", "b")) == [("one", "x, y"), ("two", "z")]
        with pytest.raises(ValueError, match=r"t\.\w+.*no (column )?'c'"):
            list(read_rows(file, "a", "c"))
    (tmp_path / "lines.txt").write_text("one\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"lines\.txt: lines of plain text hold no pairs"):
        read_rows(tmp_path / "lines.txt", "a", "b")
    (tmp_path / "t.jsonl").write_text('{"a": 5}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 1: 'a' is 5, not text"):
        read_texts(tmp_path / "t.jsonl", "a")


def test_texts_may_come_from_a_pipe_of_any_name(tmp_path):
    for name, sent in (("63", "one\ntwo\n"), ("t.jsonl", '{"text": "one"}\n{"text": "two"}\n')):
        os.mkfifo(tmp_path / name)
        writer = threading.Thread(target=(tmp_path / name).write_text, args=(sent,))
        writer.start()
        assert read_texts(tmp_path / name) == ["one", "two"]
        writer.join()
    os.mkfifo(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet: a pipe, which can be read once; write what comes from it to a"):
        read_texts(tmp_path / "t.parquet")


def test_columns_that_are_kept_stand_beside_the_texts(tmp_path):
    rows = [{"text": "one", "id": 7, "when": None}, {"text": "two", "id": None, "when": 0.5}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("text,id,when\none,7,\ntwo,,0.5\n")
    typed = {"t.csv": [{"id": "7", "when": ""}, {"id": "", "when": "0.5"}]}
    for file in sorted(tmp_path.iterdir()):
        found = list(read_rows(file, keep=["id", "when"]))
        assert found == [("one",), ("two",)]
        kept = [{name: row[name] for name in ("id", "when")} for row in rows]
        assert [row.kept for row in found] == typed.get(file.name, kept)
        with pytest.raises(ValueError, match=r"no (column )?'date'"):
            list(read_rows(file, keep=["date"]))
    (tmp_path / "t.txt").write_text("one\n")
    with pytest.raises(ValueError, match=r"t\.txt: lines of plain text have no columns to keep; 'id' is asked for"):
        read_rows(tmp_path / "t.txt", keep=["id"])


def test_standard_input(monkeypatch):
    def typed(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    typed(b"\xef\xbb\xbfone\r\n\ntwo")
    assert read_texts(None) == ["one", "", "two"]
    typed(b'{"a": "x", "b": "y"}\n\n{"a": "z", "b": "w"}\n')
    assert list(read_rows("-", "a", "b", jsonl=True)) == [("x", "y"), ("z", "w")]
    for line, message in [
        (b"{", "not JSON"),
        (b"[1]", r"not an object but '\[1\]'"),
        (b'{"a": 1}', "'a' is 1, not text"),
        (b'{"a": null}', "'a' is null; give the row a value, or leave it out"),
        (b'{"b": "x"}', "no 'a'; there is b"),
    ]:
        typed(b'{"a": "x"}\n' + line)
        with pytest.raises(ValueError, match=f"^standard input, line 2: {message}"):
            read_texts(None, "a", jsonl=True)
    typed(b"fine\nna\xefve\n")
    with pytest.raises(ValueError, match=r"^standard input, line 2: not UTF-8: byte 0xef at offset 7; convert it"):
        read_texts(None)


def test_half_a_surrogate_pair_in_json_becomes_the_replacement_character(masked_lm, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "the \\ud83d bird"}\n{"text": "\\ud83d\\ude00 wind", "n": 1}\n')
    texts = read_texts(file)
    assert texts == ["the \ufffd bird", "\U0001f600 wind"]
    assert embed(masked_lm, texts).shape == (2, 8)


def test_one_string_is_no_list_of_texts(masked_lm):
    with pytest.raises(ValueError, match="one string, 'the bird sings'; a list of texts is needed"):
        embed(masked_lm, "the bird sings")


def test_a_missing_text_is_named_before_any_work(masked_lm, classifier, monkeypatch):
    monkeypatch.setattr(windowing, "TEXTS", 2)
    monkeypatch.setattr(MambaBlock, "forward", None)
    column = pd.Series([*TEXTS, None, "wind"], dtype=object)
    with pytest.raises(ValueError, match=r"^the input: text 6 is None, not text$"):
        embed(masked_lm, column)
    with pytest.raises(ValueError, match=r"^the input: text 2 is nan, not text$"):
        fill_mask(masked_lm, ["a [MASK]", float("nan")])
    with pytest.raises(ValueError, match=r"^the input: the second text of pair 6 is None, not text$"):
        predict(classifier, ["a"] * 7, column)


def test_texts_may_come_as_a_column_a_tuple_or_an_iterator(masked_lm, classifier):
    vectors, labels = embed(masked_lm, TEXTS), predict(classifier, TEXTS, TEXTS[::-1], truncate=True)
    column = pd.Series(TEXTS, index=range(7, 12))
    for texts in (column, tuple(TEXTS), iter(TEXTS)):
        np.testing.assert_array_equal(embed(masked_lm, texts), vectors)
    assert predict(classifier, column, tuple(TEXTS[::-1]), truncate=True) == labels


def test_a_classifier_of_several_labels_a_text_names_each_that_is_likely(words, tmp_path):
    names = {0: "a", 1: "b", 2: "c"}
    fields = {"num_labels": 3, "id2label": names, "problem_type": "multi_label_classification"}
    folder = saved(MaBertForSequenceClassification, tmp_path, words, **fields)
    encoded = words(TEXTS[0], return_tensors="pt")
    model = load_model(MaBertForSequenceClassification, folder)
    bias = torch.tensor([9.0, -9.0, 9.0])
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(bias)
    model.save_pretrained(folder)
    (answer,) = predict(folder, TEXTS[:1])
    assert model.eval()(encoded["input_ids"]).logits[0].tolist() == bias.tolist()
    assert answer["labels"] == ["a", "c"]
    assert list(answer["probability"].values()) == pytest.approx(bias.sigmoid().tolist())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"num_labels": 1}, {"score": 2.0}),
        (
            {"num_labels": 2, "id2label": {0: "a", 1: "b"}, "problem_type": "regression"},
            {"scores": {"a": 2.0, "b": 3.0}},
        ),
        (
            {"num_labels": 1, "id2label": {0: "a"}, "problem_type": "multi_label_classification"},
            {"labels": ["a"], "probability": {"a": pytest.approx(torch.tensor(2.0).sigmoid().item())}},
        ),
    ],
)
def test_numbers_are_no_probabilities_and_a_single_label_is_no_number(words, tmp_path, fields, expected):
    folder = saved(MaBertForSequenceClassification, tmp_path, words, **fields)
    model = load_model(MaBertForSequenceClassification, folder)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([2.0, 3.0])[: fields["num_labels"]])
    model.save_pretrained(folder)
    assert predict(folder, TEXTS[:1]) == [expected]


def test_json_is_not_taken_for_lines_of_text(tmp_path):
    file = tmp_path / "texts.json"
    file.write_text('{"text": "the bird"}\n')
    with pytest.raises(ValueError, match=r"texts\.json: JSON is read as an object a line; .* give --jsonl"):
        read_texts(file)
    assert read_texts(file, jsonl=True) == ["the bird"]
