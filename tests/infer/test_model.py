"""A model that is opened once for all that is asked of it, in the precision and on the device that are asked for."""

import json
import logging
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import mabert
from mabert import MaBertForMaskedLM, MaBertForMultipleChoice, MaBertForSequenceClassification, MaBertModel
from mabert.infer.loaded import device_named, load_for_use
from mabert.machine import environment
from mabert.model.blocks import MambaBlock
from mabert.model.packing import total_of
from mabert.model.prepack import Int8Linear, PackedLinear, can_prepack
from mabert.opening.opened import open_model
from mabert.ops import int8
from tests.infer.conftest import saved
from tests.tolerances import TOLERANCES, VECTORS

TEXTS = ["the bird sings", "a river", "the old stone house holds a small cold light", "wind", "bird bird bird bird"]
MASKED = ["the [MASK] sings", "a [MASK] under the [MASK]"]
BF16 = TOLERANCES["selective_scan", torch.bfloat16].relative


def test_weights_are_read_once_and_answers_are_those_of_a_model_opened_anew(masked_lm, classifier, reads):
    model = mabert.load(masked_lm)
    assert reads == []
    for _ in range(2):
        np.testing.assert_array_equal(model.embed(TEXTS), mabert.load(masked_lm).embed(TEXTS))
        assert model.fill_mask(MASKED, top=2) == mabert.load(masked_lm).fill_mask(MASKED, top=2)
    assert reads == [MaBertForMaskedLM] * 5, "one for the model, one for each opened anew"
    reads.clear()
    model = mabert.load(classifier)
    for how in ({"pooling": "mean"}, {"pooling": "map"}):
        np.testing.assert_array_equal(model.embed(TEXTS, **how), mabert.load(classifier).embed(TEXTS, **how))
    assert model.predict(TEXTS) == mabert.load(classifier).predict(TEXTS)
    assert reads == [MaBertForSequenceClassification] * 4


def test_vectors_come_from_a_folder_with_any_head(masked_lm, words, tmp_path):
    encoder = MaBertForMaskedLM.from_pretrained(masked_lm).mabert
    for kind in (MaBertModel, MaBertForMultipleChoice):
        folder = tmp_path / kind.__name__
        whole = encoder if kind is MaBertModel else kind(encoder.config)
        whole.base_model.load_state_dict(encoder.state_dict())
        whole.save_pretrained(folder)
        words.save_pretrained(folder)
        np.testing.assert_array_equal(mabert.load(folder).embed(TEXTS), mabert.load(masked_lm).embed(TEXTS))
        with pytest.raises(ValueError, match=rf"was saved as {kind.__name__}; for MaBertForMaskedLM it lacks"):
            mabert.load(folder).fill_mask(MASKED)


@pytest.mark.skipif(not can_prepack(torch.device("cpu"), torch.float32), reason="oneDNN's layouts are for x86")
@pytest.mark.parametrize("precision", [None, "bf16"])
def test_on_a_cpu_weights_are_prepacked_and_say_what_they_said(classifier, precision):
    if precision and not can_prepack(torch.device("cpu"), torch.bfloat16):
        pytest.skip("no instructions for bf16")
    plain = load_for_use(open_model(classifier), "classifier", precision=precision, device="cpu")
    tokens = {"input_ids": torch.tensor(next(plain.encodings(TEXTS[:1]))[0]["input_ids"])[None]}
    with torch.inference_mode(), plain.computing():
        expected = plain.model(**tokens).logits.float().softmax(-1)[0].tolist()
    model = mabert.load(classifier, precision=precision, device="cpu")
    actual = list(model.predict(TEXTS[:1])[0]["probability"].values())
    if precision:  # a product and its activation are rounded once together, where they were rounded twice
        with torch.inference_mode():
            exact = plain.model.float()(**tokens).logits.softmax(-1)[0].tolist()
        assert np.abs(np.subtract(actual, exact)).max() <= 1.2 * np.abs(np.subtract(expected, exact)).max()
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
    layers = {type(module) for module in model._loaded["classifier"].model.modules()}
    assert PackedLinear in layers
    assert torch.nn.Linear not in layers


def test_the_precision_is_the_models_whatever_autocast_the_caller_is_in(classifier):
    model = mabert.load(classifier, device="cpu")
    alone = model.embed(TEXTS)
    with torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_array_equal(model.embed(TEXTS), alone)


def test_a_head_for_choices_is_not_taken_for_one_of_texts(words, tmp_path):
    saved(MaBertForMultipleChoice, tmp_path, words, num_labels=1, pooling="mean")
    message = r"was saved as MaBertForMultipleChoice, which has another head than MaBertForSequenceClassification"
    with pytest.raises(ValueError, match=message):
        mabert.load(tmp_path).predict(TEXTS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": None}))
    assert len(mabert.load(tmp_path).predict(TEXTS)) == 5, "nobody says what it was saved as"


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_in_bf16_are_near_those_in_fp32_and_padding_changes_them_by_no_more_than_rounding(masked_lm, pooling):
    exact = mabert.load(masked_lm, precision="fp32").embed(TEXTS, pooling=pooling)
    model = mabert.load(masked_lm, precision="bf16")
    together = model.embed(TEXTS, pooling=pooling)
    assert together.dtype == np.float32
    largest = np.abs(exact).max()
    assert 0 < np.abs(together - exact).max() < 2 * BF16 * largest
    alone = model.embed(TEXTS, pooling=pooling, deterministic=True)
    assert np.abs(together - alone).max() <= BF16 * largest


def test_a_precision_is_the_one_that_was_asked_for_else_that_of_the_folder(masked_lm, words, tmp_path, monkeypatch):
    MaBertForMaskedLM.from_pretrained(masked_lm, dtype=torch.bfloat16).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)

    def used(precision, fast="float32"):
        monkeypatch.setattr(environment, "fast_dtype", lambda device: fast)
        loaded = load_for_use(open_model(tmp_path), "masked_lm", precision=precision, device="cpu")
        return loaded.model.dtype, loaded.bf16

    assert used(None) == (torch.bfloat16, False)
    assert used("fp32", "bfloat16") == (torch.float32, False)
    assert used("bf16", "bfloat16") == (torch.float32, True)
    assert used("auto") == (torch.float32, False)
    assert used("auto", "bfloat16") == (torch.float32, True)


def test_who_asks_for_bf16_where_it_is_emulated_is_told(masked_lm, monkeypatch, caplog):
    with caplog.at_level(logging.WARNING, "mabert.machine.environment"):
        for fast in ("bfloat16", "float32"):
            monkeypatch.setattr(environment, "fast_dtype", lambda device, fast=fast: fast)
            mabert.load(masked_lm, precision="bf16", device="cpu").embed(TEXTS)
    assert [record.getMessage() for record in caplog.records] == [
        "precision is bf16, for which this CPU has no instructions: fp32 is several times as fast here"
    ]


def test_labels_and_guesses_in_bf16_are_near_those_in_fp32(masked_lm, classifier):
    def scores(precision):
        labels = [answer["probability"] for answer in mabert.load(classifier, precision=precision).predict(TEXTS)]
        filled = mabert.load(masked_lm, precision=precision).fill_mask(MASKED, top=1000)
        masks = [{guess["token"]: guess["probability"] for guess in mask} for masks in filled for mask in masks]
        return [{name: np.log(chance) for name, chance in chances.items()} for chances in [*labels, *masks]]

    for exact, rounded in zip(scores("fp32"), scores("bf16"), strict=True):
        assert exact == pytest.approx(rounded, abs=4 * BF16 * max(map(abs, exact.values())))
        assert exact != rounded


def test_a_device_and_a_precision_are_found_by_their_names(masked_lm, monkeypatch):
    for asked, message in (
        ({"precision": "fp16"}, r"precision is 'fp16'; it must be one of \['auto', 'fp32', 'bf16', 'int8'\]"),
        ({"device": "gpu"}, r"device is 'gpu'; it must be cpu, cuda or cuda:N"),
        ({"device": "meta"}, r"device is 'meta'; it must be cpu, cuda or cuda:N"),
        ({"device": "cuda:99"}, r"device is 'cuda:99'; GPUs that torch can use here: \d+"),
    ):
        with pytest.raises(ValueError, match=message):
            mabert.load(masked_lm, **asked)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    named = {None: "cuda", "cpu": "cpu", "cuda": "cuda", "cuda:1": "cuda:1", torch.device("cuda:0"): "cuda:0"}
    assert {name: str(device_named(name)) for name in named} == named
    with pytest.raises(ValueError, match="'cuda:2'; GPUs that torch can use here: 2"):
        device_named("cuda:2")


@pytest.mark.parametrize(
    ("error", "texts", "message"),
    [
        *(
            (error, TEXTS, "^out of memory on a batch of 5 texts of 13 tokens each, padding included; ask for fewer")
            for error in (MemoryError("bad"), torch.OutOfMemoryError("bad"), RuntimeError("CUDA error: out of memory"))
        ),
        (RuntimeError("Triton Error [CUDA]: out of memory"), TEXTS[:1], r"on one text; .* a text, now 6 \("),
        (RuntimeError("another error"), TEXTS, "^another error$"),
    ],
)
def test_out_of_memory_names_the_batch_and_other_errors_stay_as_they_are(masked_lm, monkeypatch, error, texts, message):
    monkeypatch.setattr(MambaBlock, "forward", Mock(side_effect=error))
    with pytest.raises(RuntimeError if "another" in message else MemoryError, match=message) as raised:
        mabert.load(masked_lm).embed(texts)
    assert error in (raised.value, raised.value.__cause__)


def test_only_a_model_that_pools_by_attention_runs_text_by_text(words, tmp_path, rows_seen):
    folder = saved(MaBertForSequenceClassification, tmp_path, words, pooling="attention")
    tokens = sorted((len(words(text)["input_ids"]) for text in TEXTS), reverse=True)
    together = mabert.load(folder).embed(TEXTS)
    assert rows_seen == [(1, total_of(sum(tokens)))]
    rows_seen.clear()
    mabert.load(folder).predict(TEXTS)
    assert rows_seen == [(1, total_of(count)) for count in tokens]
    np.testing.assert_allclose(together, mabert.load(folder).embed(TEXTS, deterministic=True), **VECTORS)


def test_a_model_opened_in_8_bits_says_nearly_what_it_says_or_that_it_has_none(masked_lm, tmp_path, words):
    try:
        int8.check()
    except ValueError as error:
        pytest.skip(str(error))
    wide = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
    folder = saved(MaBertForMaskedLM, tmp_path / "wide", words, **wide)
    exact, short = (mabert.load(folder, precision=name) for name in ("fp32", "int8"))
    vectors, near = exact.embed(TEXTS, normalize=True), short.embed(TEXTS, normalize=True)
    assert (vectors * near).sum(1).min() > 0.995
    assert not np.array_equal(vectors, near)
    assert any(isinstance(module, Int8Linear) for module in short._encoder().model.modules())
    assert len(short.fill_mask(MASKED)) == 2
    with pytest.raises(ValueError, match="int8 gains nothing"):
        mabert.load(masked_lm, precision="int8").embed(["a"])
