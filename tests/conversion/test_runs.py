"""Whole conversions by tiny teachers: the folder is ready to use, and a stop at any step changes no bit."""

import itertools
import json
import math
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import mabert
from mabert.cli import main
from mabert.conversion import run as running
from mabert.conversion import training
from mabert.conversion.training import ConversionTrainer
from mabert.data.tokenizer import load_tokenizer
from mabert.infer.predict import predict
from tests.conversion.helpers import bits, convert

TEXTS = ["the bird sings near the river.", "a small house", "cold wind falls slowly over the old road again."]
STEPS = 8
"""Of both stages together."""


def stop_at(monkeypatch, number, stop):
    """Has the training step of that number, counted over both stages, begin with a stop."""
    count, step = itertools.count(), ConversionTrainer.training_step

    def counted(self, *given, **options):
        if next(count) == number:
            stop()
        return step(self, *given, **options)

    monkeypatch.setattr(ConversionTrainer, "training_step", counted)


def kill():
    raise SystemError("killed")


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


QUICK = [(kill, 3, 0.0), (interrupt, STEPS - 1, math.inf), (kill, STEPS - 1, 0.0)]
"""Stops that are not slow to try: what stops, at which step, and after how many seconds a checkpoint is due."""


def test_a_result_says_what_was_done(converted):
    folder, result = converted
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    outcome = result["outcome"]
    assert (outcome["use"], outcome["pattern"]) == ("encoder", "MTM")
    assert sum(stage["steps"] for stage in outcome["stages"].values()) == STEPS
    learnt = sum(stage["tokens"] for stage in outcome["stages"].values())
    assert 1000 <= learnt < 1000 + 30
    assert 0.15 < outcome["stages"]["end_to_end"]["tokens"] / learnt < 0.35
    assert len(outcome["importance"]) == 3
    assert set(result["request"]["resolved"]) >= {"weights", "vocabulary", "corpus", "pattern", "precision"}
    assert not (folder / "unfinished").exists()


def test_an_encoder_is_ready_to_embed(converted, embedder):
    folder, _ = converted
    for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"):
        assert (folder / name).read_bytes() == (embedder / name).read_bytes()
    model, words = AutoModel.from_pretrained(folder), load_tokenizer(folder)
    vectors = mabert.load(folder).embed(TEXTS, progress=False)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            first = model(torch.tensor([words(text)["input_ids"]])).last_hidden_state[0, 0]
        np.testing.assert_allclose(vector, first / first.norm(), rtol=1e-4, atol=1e-6)
    mean = mabert.load(folder).embed(TEXTS, pooling="mean", normalize=False, progress=False)
    assert np.abs(np.linalg.norm(mean, axis=1) - 1).max() > 0.01


def test_what_is_not_a_core_nor_learns_is_the_teachers(converted, embedder):
    weights, before = load_file(converted[0] / "model.safetensors"), load_file(embedder / "model.safetensors")
    assert torch.equal(weights["embeddings.word_embeddings.weight"], before["embeddings.word_embeddings.weight"])
    name, old = "layers.1.attention.query.weight", "encoder.layer.1.attention.self.query.weight"
    assert not torch.equal(weights[name], before[old])  # which learns in the second stage
    assert any(".mixer." in each for each in weights)
    assert not any("layers.0.attention" in each for each in weights)


@pytest.mark.parametrize(
    ("stop", "step", "every"),
    [
        pytest.param(stop, step, every, marks=() if (stop, step, every) in QUICK else pytest.mark.slow)
        for stop in (kill, interrupt)
        for step in range(STEPS)
        for every in (0.0, math.inf)
    ],
)
def test_a_stop_at_any_step_changes_no_bit(
    tmp_path, monkeypatch, small_batches, converted, embedder, words_to_learn, stop, step, every
):
    monkeypatch.setattr(training, "SAVE_SECONDS", every)
    with monkeypatch.context() as patch:
        stop_at(patch, step, stop)
        with pytest.raises(SystemError if stop is kill else KeyboardInterrupt):
            convert(embedder, words_to_learn, tmp_path / "out")
    result = convert(embedder, words_to_learn, tmp_path / "out", resume=True)
    assert bits(tmp_path / "out") == bits(converted[0])
    assert result["outcome"]["agreement"] == converted[1]["outcome"]["agreement"]
    assert (tmp_path / "out/README.md").read_bytes() == (converted[0] / "README.md").read_bytes()
    assert not (tmp_path / "out/unfinished").exists()


@pytest.mark.parametrize("name", ["compare", "save"])
def test_a_stop_behind_the_training_changes_no_bit(
    tmp_path, monkeypatch, small_batches, converted, embedder, words_to_learn, name
):
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(running, name, lambda *given: kill())
        with pytest.raises(SystemError):
            convert(embedder, words_to_learn, tmp_path / "out")
    convert(embedder, words_to_learn, tmp_path / "out", resume=True)
    assert bits(tmp_path / "out") == bits(converted[0])


def test_a_stop_between_the_folder_and_its_result_is_gone_on_with(
    tmp_path, monkeypatch, small_batches, converted, embedder, words_to_learn
):
    with monkeypatch.context() as patch:
        patch.setattr(running.RunFolder, "write_result", lambda *given, **about: kill())
        with pytest.raises(SystemError):
            convert(embedder, words_to_learn, tmp_path / "out")
    result = convert(embedder, words_to_learn, tmp_path / "out", resume=True)
    assert bits(tmp_path / "out") == bits(converted[0])
    assert convert(embedder, words_to_learn, tmp_path / "out", resume=True) == result  # which is finished


def test_it_goes_on_wherever_teacher_and_text_lie(
    tmp_path, monkeypatch, small_batches, converted, embedder, words_to_learn
):
    shutil.copytree(embedder, tmp_path / "teacher")
    shutil.copy(words_to_learn, tmp_path / "text.txt")
    with monkeypatch.context() as patch:
        stop_at(patch, 1, kill)
        with pytest.raises(SystemError):
            convert(embedder, words_to_learn, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    convert("teacher", "text.txt", "out", resume=True)
    assert bits(tmp_path / "out") == bits(converted[0])


def test_a_classifier_keeps_its_head_and_labels(tmp_path, capsys, small_batches, classifier, words_to_learn):
    result = convert(classifier, words_to_learn, tmp_path / "out")
    assert result["outcome"]["use"] == "classifier"
    assert 0 <= next(iter(result["outcome"]["agreement"]["bands"].values()))["student"]["answers"] <= 1
    assert (tmp_path / "out/encoding.json").read_text() == (classifier / "encoding.json").read_text()
    answers = predict(tmp_path / "out", TEXTS)
    assert all(set(answer["probability"]) == {"bad", "fine", "good"} for answer in answers)
    (tmp_path / "rows.csv").write_text("text\n" + "\n".join(TEXTS) + "\n")
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "out"), str(tmp_path / "rows.csv")]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["label"] for each in told] == [each["label"] for each in answers]


def test_a_masked_language_model_fills_masks(tmp_path, small_batches, masked_lm, words_to_learn):
    result = convert(masked_lm, words_to_learn, tmp_path / "out")
    assert result["outcome"]["use"] == "masked_lm"
    ((guesses,),) = mabert.load(tmp_path / "out").fill_mask(["the [MASK] sings"], top=3, progress=False)
    assert len(guesses) == 3
    assert mabert.load(tmp_path / "out").config.sparse_prediction is False
