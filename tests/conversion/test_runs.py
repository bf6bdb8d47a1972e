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
from tests.conversion.helpers import ASKED, bits, convert, saved_teacher
from tests.train.helpers import corpus

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
    config = AutoModel.from_pretrained(folder).config
    assert config.ssm_dt_rank == math.ceil(config.hidden_size / running.STEP_SIZES)
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


def test_what_is_no_core_is_the_teachers(converted, embedder):
    weights, before = load_file(converted[0] / "model.safetensors"), load_file(embedder / "model.safetensors")
    assert torch.equal(weights["embeddings.word_embeddings.weight"], before["embeddings.word_embeddings.weight"])
    name, old = "layers.1.attention.query.weight", "encoder.layer.1.attention.self.query.weight"
    assert torch.equal(weights[name], before[old])
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


@pytest.mark.parametrize(
    ("options", "stages"), [({"end_to_end": 0.0}, ["align"]), ({"end_to_end": 1.0, "expand": 1}, ["end_to_end"])]
)
def test_a_stage_may_be_left_out(tmp_path, small_batches, embedder, words_to_learn, options, stages):
    result = convert(embedder, words_to_learn, tmp_path / "out", **options)
    assert list(result["outcome"]["stages"]) == stages
    assert mabert.load(tmp_path / "out").embed(TEXTS, progress=False).shape == (3, 16)


def test_a_pattern_is_chosen_by_importance_and_cores_go_one_way(tmp_path, small_batches, embedder, words_to_learn):
    result = convert(embedder, words_to_learn, tmp_path / "out", pattern="auto", direction="forward")
    pattern = result["outcome"]["pattern"]
    assert (len(pattern), pattern.count("T")) == (len(result["outcome"]["importance"]), 1)
    config = mabert.load(tmp_path / "out").config
    assert (config.layer_pattern, config.ssm_direction) == (pattern, "forward")


def test_every_seed_gives_cores_of_its_own(tmp_path, small_batches, converted, embedder, words_to_learn):
    convert(embedder, words_to_learn, tmp_path / "out", seed=1)
    assert bits(tmp_path / "out") != bits(converted[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked_lm", "classifier"])
@pytest.mark.parametrize("step", [3, STEPS - 1])
def test_a_stop_changes_no_bit_of_a_model_with_a_head(
    request, tmp_path, monkeypatch, small_batches, words_to_learn, name, step
):
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    teacher = request.getfixturevalue(name)
    for delta in (False, True):
        whole, stopped = tmp_path / f"whole-{delta}", tmp_path / f"stopped-{delta}"
        convert(teacher, words_to_learn, whole, delta=delta)
        with monkeypatch.context() as patch:
            stop_at(patch, step, kill)
            with pytest.raises(SystemError):
                convert(teacher, words_to_learn, stopped, delta=delta)
        convert(teacher, words_to_learn, stopped, delta=delta, resume=True)
        file = "delta.safetensors" if delta else "model.safetensors"
        assert (stopped / file).read_bytes() == (whole / file).read_bytes()


def test_texts_of_several_sources_are_learnt_from_alike(tmp_path, small_batches, embedder, words_to_learn):
    other = corpus(tmp_path / "other.txt", documents=80, seed=5)
    result = mabert.convert(embedder, [words_to_learn, other], tmp_path / "out", **ASKED)
    assert result["request"]["texts"] == [str(words_to_learn), str(other)]
    assert result["request"]["resolved"]["corpus"].count("+") == 1
    assert f"`{words_to_learn}`, `{other}`" in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize("kind", ["electra", "modernbert"])
def test_other_families_go_through(tmp_path, small_batches, words_to_learn, kind):
    result = convert(saved_teacher(tmp_path / "teacher", kind), words_to_learn, tmp_path / "out")
    assert result["outcome"]["use"] == "encoder"
    assert np.isfinite(mabert.load(tmp_path / "out").embed(TEXTS, progress=False)).all()


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_conversion_compares_in_its_own_precision(
    small_batches, monkeypatch, tmp_path, embedder, words_to_learn, precision, dtype
):
    class ComparedError(Exception):
        pass

    def compare(copy, student, *given):
        weight = torch.ones(2, 2)
        raise ComparedError((weight @ weight).dtype)

    monkeypatch.setattr(running, "compare", compare)
    with pytest.raises(ComparedError) as seen:
        convert(embedder, words_to_learn, tmp_path / "out", precision=precision)
    assert seen.value.args == (dtype,)
