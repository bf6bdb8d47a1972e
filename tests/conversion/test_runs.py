"""Whole conversions by tiny teachers: the folder is ready to use, and a stop at any step changes no bit."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel

import mabert
from mabert import MaBertForSequenceClassification
from mabert.conversion import agreement, resolve, training
from mabert.conversion import convert as running
from mabert.conversion.agreement import in_words
from mabert.conversion.recipe import at_depth
from mabert.data.tokenizer import load_tokenizer
from mabert.train.folder import RunFolder
from mabert_lab.cli import main
from tests.conversion.helpers import ASKED, TEXTS, bits, convert, saved_teacher, stop_at
from tests.train.helpers import check_claimed, claim, corpus, interrupt, kill, too_much

STEPS = 8
"""Of both stages together."""


QUICK = [(kill, 3, 0.0), (interrupt, STEPS - 1, math.inf), (kill, STEPS - 1, 0.0)]
"""Stops that are not slow to try: what stops, at which step, and after how many seconds a checkpoint is due."""


def test_a_result_says_what_was_done(converted):
    folder, result = converted
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    outcome = result["outcome"]
    assert (outcome["use"], outcome["pattern"]) == ("encoder", "MTM")
    assert sum(stage["steps"] for stage in outcome["stages"].values()) == STEPS
    config = AutoModel.from_pretrained(folder).config
    assert config.ssm_dt_rank == math.ceil(config.hidden_size / resolve.WIDTH_PER_RANK)
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


@pytest.mark.parametrize(
    ("stop", "step", "every"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in (
            *((kill, step, 0.0) for step in (*range(0, STEPS, 2), 3, STEPS - 1)),
            *((interrupt, step, math.inf) for step in range(1, STEPS, 2)),  # which saves by itself
            (kill, STEPS - 2, math.inf),  # with nothing saved
            (interrupt, STEPS - 2, 0.0),
        )
    ],
)
def test_a_stop_at_any_step_changes_no_bit(
    tmp_path, monkeypatch, small_batches, converted, embedder, words_to_learn, stop, step, every
):
    monkeypatch.setattr(training.ConversionTrainer, "save_seconds", every)
    with monkeypatch.context() as patch:
        stop_at(patch, step, stop)
        with pytest.raises(SystemError if stop is kill else KeyboardInterrupt):
            convert(embedder, words_to_learn, tmp_path / "out")
    result = convert(embedder, words_to_learn, tmp_path / "out", resume=True)
    assert bits(tmp_path / "out") == bits(converted[0])
    assert result["outcome"]["agreement"] == converted[1]["outcome"]["agreement"]
    assert (tmp_path / "out/README.md").read_bytes() == (converted[0] / "README.md").read_bytes()
    assert not (tmp_path / "out/unfinished").exists()


def test_the_command_goes_on_where_it_was_interrupted(
    tmp_path, monkeypatch, capsys, small_batches, converted, embedder, words_to_learn
):
    words = ["convert", str(embedder), "-o", str(tmp_path / "out"), "--text", str(words_to_learn), "--pattern", "MTM"]
    words += ["--tokens", "1000", "--length", "30", "--precision", "fp32", "--batch-tokens", "160"]
    with monkeypatch.context() as patch:
        stop_at(patch, 4, interrupt)
        assert main(words) == 130
    assert "go on with --resume" in capsys.readouterr().err.splitlines()[-1]
    assert list((tmp_path / "out/unfinished/align").glob("checkpoint-*"))
    assert not (tmp_path / "out/model.safetensors").exists()
    check_claimed(monkeypatch)
    assert main([*words, "--resume"]) == 0
    claim(tmp_path / "out")
    assert bits(tmp_path / "out") == bits(converted[0])
    told = capsys.readouterr().out.splitlines()
    assert set(in_words(converted[1]["outcome"]["agreement"])) < {*told}
    assert told[-1].endswith("out: a MaBERT, ready to use")
    assert (tmp_path / "out/conversion.html").is_file()


@pytest.mark.parametrize(("place", "name"), [(running, "compare"), (running, "save"), (RunFolder, "write_result")])
def test_a_stop_behind_the_training_changes_no_bit_wherever_teacher_and_text_lie_then(
    tmp_path, monkeypatch, small_batches, converted, embedder, words_to_learn, place, name
):
    monkeypatch.setattr(training.ConversionTrainer, "save_seconds", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, lambda *given, **about: kill())
        with pytest.raises(SystemError):
            convert(embedder, words_to_learn, tmp_path / "out")
    shutil.copytree(embedder, tmp_path / "teacher")
    shutil.copy(words_to_learn, tmp_path / "text.txt")
    monkeypatch.chdir(tmp_path)
    result = convert("teacher", "text.txt", "out", resume=True)
    assert bits(tmp_path / "out") == bits(converted[0])
    assert convert("teacher", "text.txt", "out", resume=True) == result  # which is finished


@pytest.mark.parametrize(
    ("kind", "options", "stages", "config"),
    [
        ("bert", {"end_to_end": 0.0, "seed": 1}, ["align"], {}),
        ("bert", {"end_to_end": 1.0, "expand": 1}, ["end_to_end"], {"ssm_inner_size": 16}),
        ("bert", {"pattern": "auto", "direction": "forward"}, ["align", "end_to_end"], {"ssm_direction": "forward"}),
        ("electra", {}, ["align", "end_to_end"], {"embedding_size": 8}),
        ("modernbert", {}, ["align", "end_to_end"], {"position_embedding": "rotary"}),
    ],
)
def test_any_teacher_and_options_make_an_embedder(
    tmp_path, small_batches, converted, words_to_learn, kind, options, stages, config
):
    teacher, other = saved_teacher(tmp_path / "teacher", kind), corpus(tmp_path / "other.txt", documents=80, seed=5)
    result = mabert.convert(teacher, [words_to_learn, other], tmp_path / "out", **{**ASKED, **options})
    assert np.isfinite(mabert.load(tmp_path / "out").embed(TEXTS, progress=False)).all()
    made = mabert.load(tmp_path / "out").config
    assert {name: getattr(made, name) for name in config} == config
    outcome = result["outcome"]
    assert (outcome["use"], list(outcome["stages"]), outcome["pattern"]) == ("encoder", stages, made.layer_pattern)
    assert (len(outcome["importance"]), made.layer_pattern.count("T")) == (3, 1)
    assert result["request"]["texts"] == [str(words_to_learn), str(other)]
    assert result["request"]["resolved"]["corpus"].count("+") == 1
    assert f"`{words_to_learn.name}`, `{other.name}`" in (tmp_path / "out/README.md").read_text()
    assert bits(tmp_path / "out") != bits(converted[0])


@pytest.mark.parametrize(("asked", "depth"), [("MMT", 3), ("mmt", 6), ("MMT*2", 12)])
def test_a_pattern_is_repeated_to_the_teachers_depth(asked, depth):
    assert at_depth(asked, depth) == "MMT" * (depth // 3)


def test_a_wrong_pattern_is_refused_before_the_text_is_read(tmp_path):
    teacher = saved_teacher(tmp_path / "teacher")
    with pytest.raises(ValueError, match="pattern is 'MMX'; it must be letters M and T"):
        convert(teacher, tmp_path / "no text", tmp_path / "out", pattern="MMX")


def test_a_teacher_of_one_layer_loses_its_attention(tmp_path, small_batches, words_to_learn):
    teacher = saved_teacher(tmp_path / "teacher", depth=1)
    assert convert(teacher, words_to_learn, tmp_path / "out", pattern="auto")["outcome"]["pattern"] == "M"


@pytest.mark.parametrize(
    ("problem", "kind", "said"),
    [("multi_label_classification", "several", "labels"), ("regression", "regression", "scores")],
)
def test_a_text_may_have_several_labels_or_numbers(
    tmp_path, monkeypatch, small_batches, words_to_learn, problem, kind, said
):
    told, divergence = [], training.divergence
    monkeypatch.setattr(training, "divergence", lambda *logits: told.append(logits[2]) or divergence(*logits))
    more = {"problem_type": problem}
    teacher = saved_teacher(tmp_path / "teacher", "bert", "classifier", more=more)
    result = convert(teacher, words_to_learn, tmp_path / "out")
    assert set(told) == {kind}
    assert all(said in answer for answer in mabert.load(tmp_path / "out").predict(TEXTS, progress=False))
    model = MaBertForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert agreement.answers(model, [{"input_ids": torch.tensor([2, 5, 6, 3])}]).shape == (1, 3)
    assert 0 <= next(iter(result["outcome"]["agreement"]["bands"].values()))["student"]["answers"] <= 1


def test_the_process_is_looked_at_after_each_step(tmp_path, monkeypatch, small_batches, embedder, words_to_learn):
    looked = []
    monkeypatch.setattr("mabert.machine.processes.FreedMemory.after_step", lambda self: looked.append(self))
    result = convert(embedder, words_to_learn, tmp_path / "out")
    assert len(looked) == sum(stage["steps"] for stage in result["outcome"]["stages"].values())


@pytest.mark.parametrize(("length", "longest"), [(20, 32), (40, 40)])
def test_sentence_transformers_reads_as_much_as_the_student_learnt(
    tmp_path, small_batches, embedder, words_to_learn, length, longest
):
    convert(embedder, words_to_learn, tmp_path / "out", length=length)
    assert json.loads((tmp_path / "out/sentence_bert_config.json").read_text())["max_seq_length"] == longest
    with pytest.raises(ValueError, match=f"longer than {longest} tokens"):
        mabert.load(tmp_path / "out").embed(["a small house " * 30], progress=False)


@pytest.mark.parametrize(("length", "longest"), [(20, 20), (44, 44)])
def test_a_classifier_reads_as_in_fine_tuning_or_as_much_as_the_student_learnt(
    tmp_path, small_batches, classifier, words_to_learn, length, longest
):
    convert(classifier, words_to_learn, tmp_path / "out", length=length)
    assert json.loads((tmp_path / "out/encoding.json").read_text())["max_length"] == longest


def test_a_classifier_keeps_its_head_and_labels(tmp_path, capsys, small_batches, classifier, words_to_learn):
    result = convert(classifier, words_to_learn, tmp_path / "out")
    assert result["outcome"]["use"] == "classifier"
    assert 0 <= next(iter(result["outcome"]["agreement"]["bands"].values()))["student"]["answers"] <= 1
    assert (tmp_path / "out/encoding.json").read_text() == (classifier / "encoding.json").read_text()
    answers = mabert.load(tmp_path / "out").predict(TEXTS)
    assert all(set(answer["probability"]) == {"bad", "fine", "good"} for answer in answers)
    (tmp_path / "rows.csv").write_text("text\n" + "\n".join(TEXTS) + "\n")
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "out"), str(tmp_path / "rows.csv")]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["label"] for each in told] == [each["label"] for each in answers]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step", "delta"), [("masked_lm", STEPS - 1, False), ("classifier", 3, True)])
def test_a_stop_changes_no_bit_of_a_model_with_a_head(
    request, tmp_path, monkeypatch, small_batches, words_to_learn, name, step, delta
):
    monkeypatch.setattr(training.ConversionTrainer, "save_seconds", 0.0)
    teacher = request.getfixturevalue(name)
    convert(teacher, words_to_learn, tmp_path / "whole", delta=delta)
    with monkeypatch.context() as patch:
        stop_at(patch, step, kill)
        with pytest.raises(SystemError):
            convert(teacher, words_to_learn, tmp_path / "stopped", delta=delta)
    convert(teacher, words_to_learn, tmp_path / "stopped", delta=delta, resume=True)
    file = "delta.safetensors" if delta else "model.safetensors"
    assert (tmp_path / "stopped" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


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


def test_want_of_memory_names_the_options_that_help(monkeypatch, tmp_path, small_batches, embedder, words_to_learn):
    monkeypatch.setattr(training.ConversionTrainer, "compute_loss", too_much)
    helps = r"at step 1, with .* at once .*; a smaller --batch-tokens or --length helps$"
    with pytest.raises(MemoryError, match=helps):
        convert(embedder, words_to_learn, tmp_path / "out")
