"""What every kind of task learns, writes, resumes and refuses, one label a text and the others alike."""

import csv
import json
import re
from typing import get_args

import numpy as np
import pytest
import torch
from datasets import Dataset

import mabert
from mabert.cli import main
from mabert.data import LabelKind
from mabert.data.encode import encode_rows
from mabert.opening.opened import open_model
from mabert.train import finetune_once
from mabert.train.finetune_run import logits_of
from mabert.train.kinds import KINDS, kind_of
from tests.train.helpers import in_two, kill_at, must_part, of_family, same_weights, stop_at, tokenizer, weights
from tests.train.tasks import ANSWERS, CLASSES, NUMBERS, SEVERAL, TASKS, TOKENS, go, losses, record, splits

EPOCHS = {"classes": 6, "numbers": 8, "several": 6, "tokens": 6, "answers": 12}
ABOVE_CHANCE = {"classes": 0.8, "numbers": 0.5, "several": 0.8, "tokens": 0.8, "answers": 0.6}
"""No answer to any question scores 0.25."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_it_learns_and_writes_what_it_says(pretrained, tmp_path, caplog, kind):
    result = go(pretrained, tmp_path, kind, epochs=EPOCHS[kind], seeds=(3, 4))
    task, scores = TASKS[kind][0], result["outcome"]["scores"]["validation"]
    assert set(scores) == set(task.metrics)
    assert not [record for record in caplog.records if "answering" in record.message], "nothing was learnt"
    main_score = scores[task.main_metric]
    assert main_score["mean"] > ABOVE_CHANCE[kind]
    assert main_score["mean"] == pytest.approx(np.mean(main_score["values"]))
    assert main_score["std"] == pytest.approx(np.std(main_score["values"], ddof=1))
    for seed, accuracy in zip((3, 4), scores.get("accuracy", {}).get("values", [None] * 2), strict=True):
        lines = (tmp_path / f"seed-{seed}/validation.tsv").read_text().splitlines()
        right = [row["prediction"] == row["label"] for row in csv.DictReader(lines, delimiter="\t")]
        assert len(right) == 40
        assert accuracy is None or np.mean(right) == pytest.approx(accuracy)
        assert np.mean(right) > 0.5 or kind == "numbers"


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("ways", [{"unpad": None, "none": None, "pack": None}, {"unpad": 100, "pack": 100}])
def test_packing_changes_nothing_but_rounding(pretrained, tmp_path, kind, ways):
    plain, *others = (
        go(pretrained, tmp_path / way, kind, sizes=(48, 16), packing=way, batch_tokens=tokens)["outcome"]["scores"]
        for way, tokens in ways.items()
    )
    near = 1e-4 if kind == "classes" else 1e-3
    for way, other in zip(list(ways)[1:], others, strict=True):
        assert losses(tmp_path / "unpad") == pytest.approx(losses(tmp_path / way), rel=near), way
        assert kind != "classes" or plain == other, way


@pytest.mark.parametrize(("kind", "learned"), [("classes", True), ("several", True), ("numbers", False)])
def test_longer_texts_are_learnt_and_answered_in_windows(pretrained, tmp_path, caplog, kind, learned):
    """Also by a model without learned positions, which reads texts of any length otherwise."""
    caplog.set_level("INFO")
    run, model, how = tmp_path / "run", pretrained, {"max_length": 6}
    if not learned:
        changes, how = {"position_embedding": "rotary", "max_position_embeddings": 6}, {}
        model = of_family("mabert", tmp_path / "model", **changes)
    go(model, run, kind, **how)
    windows = r"read in windows of 6 tokens: \d\d+ of 160 of train, which has [23]\d\d windows, \d\d of 40 of val"
    assert re.search(windows, caplog.text)
    texts, place = splits(kind)["validation"]["text_a"], run / "seed-0"
    caplog.clear()
    found = mabert.load(place).predict(texts, progress=False)
    assert re.search(r"texts that were read in windows: \d\d of 40", caplog.text)
    opened = open_model(place)
    examples = encode_rows({"text_a": texts}, opened.tokenizer, 6)
    logits = logits_of(opened.plain("classifier"), examples, opened.tokenizer.pad_token_id)
    assert len(logits) > len(texts) + 10
    means = torch.from_numpy(examples.by_row(logits))
    if kind == "numbers":
        assert [answer["score"] for answer in found] == pytest.approx(means[:, 0].tolist(), abs=1e-5)
    else:
        chances = means.sigmoid() if kind == "several" else means.softmax(1)
        expected = [pytest.approx(row, abs=1e-5) for row in chances.tolist()]
        assert [list(answer["probability"].values()) for answer in found] == expected
    lines = (place / "validation.tsv").read_text().splitlines()
    answers = {"classes": "{label}", "numbers": "{score:.4f}", "several": "{labels}"}[kind]
    said = [answers.format(**{**answer, "labels": "|".join(answer.get("labels", ()))}) for answer in found]
    assert [row["prediction"] for row in csv.DictReader(lines, delimiter="\t")] == said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["several", "tokens", "answers"])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(pretrained, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("mabert.train.trainer.MaBertTrainer.save_seconds", 0.0)
    how = {"sizes": (32, 8), "dropout": 0.1, "select": "best", "epochs": 2}
    go(pretrained, tmp_path / "whole", kind, **how)
    for stop, error in ((stop_at, KeyboardInterrupt), (kill_at, SystemError)):
        run = tmp_path / error.__name__
        with pytest.raises(error):
            go(pretrained, run, kind, callbacks=[stop(1)], **how)
        go(pretrained, run, kind, resume=True, **how)
        same_weights(tmp_path / "whole/seed-0", run / "seed-0")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["several", "tokens", "answers"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta"])
def test_other_families_have_such_heads(tmp_path, kind, family):
    model = of_family(family, tmp_path / "model")
    scores = go(model, tmp_path / "run", kind, sizes=(16, 8))["outcome"]["scores"]["validation"]
    assert set(scores) == set(TASKS[kind][0].metrics)


UNLEARNT = {"answers": ("mabert.norm.bias", "qa_outputs.bias")}
"""What moves the logits of all tokens alike, as keys' biases do: a softmax over tokens takes no notice, so the gradient
is zero, and AdamW makes steps of its rounding."""

SHARED = [
    ("classes", "mabert", "length", [1e-6, 2e-2], (0, 1)),
    *(("classes", "mabert", batches, [2e-2], (0,)) for batches in ("random", "tokens")),
    ("classes", "bert", "length", [2e-2], (0,)),
    *((kind, "mabert", "length", [2e-2], (0,)) for kind in ("several", "tokens", "answers")),
]
"""Kinds, families, ways to make batches, rates and seeds of what several processes share."""


def run_shared(folder):
    """Runs all of `SHARED` into a folder beside the models."""
    for place, (kind, family, batches, rates, seeds) in enumerate(SHARED):
        how = {"sizes": (40, 9), "batch_size": 18, "seeds": seeds, "learning_rates": rates}
        how["epochs"] = 2 if kind == "classes" else 1
        how |= {"batch_tokens": 100} if batches == "tokens" else {"batches": batches}
        go(folder.parent / family, folder / str(place), kind, **how)


def run_in_parts(folder):
    """The same in one of several processes, each of which runs its share in parts."""
    must_part()
    finetune_once.AT_ONCE = 60  # tokens
    run_shared(folder)


@pytest.mark.slow
def test_several_processes_share_each_batch_to_the_last(pretrained, tmp_path):
    (tmp_path / "mabert").symlink_to(pretrained)
    of_family("bert", tmp_path / "bert")
    in_two(run_in_parts, tmp_path / "two")
    run_shared(tmp_path / "one")
    for place, case in enumerate(SHARED):
        one, two = tmp_path / "one" / str(place), tmp_path / "two" / str(place)
        rates = [json.loads((folder / "result.json").read_text())["outcome"]["learning_rate"] for folder in (one, two)]
        assert rates[0] == rates[1], case
        for seed in case[-1]:
            alone, shared = (weights(folder / f"seed-{seed}") for folder in (one, two))
            for name in alone:
                if not name.endswith(("attention.key.bias", *UNLEARNT.get(case[0], ()))):
                    told = f"{case}: {name}"
                    torch.testing.assert_close(shared[name], alone[name], rtol=1e-3, atol=1e-4, msg=told)
            steps = [[entry["step"] for entry in record(folder, seed)["history"]] for folder in (one, two)]
            assert steps[0] == steps[1], case
            assert losses(one, seed) == pytest.approx(losses(two, seed), rel=1e-2), case


LINES = {
    "t.conll": ["old B-X", "bird I-X", "", "the O", "bird B-X", ""],
    "t.jsonl": ['{"text": "the bird", "label": ["bird"]}', '{"text": "the house", "label": ["house", "a"]}'],
    "t.csv": ["text,label", "the bird,bird|a", "the house,"],
    "t.json": [
        '{"data": [{"paragraphs": [{"context": "the old bird", "qas": [{"id": "1", "question": "a", "answers":',
        '[{"text": "bird", "answer_start": 8}]}, {"id": "2", "question": "the", "is_impossible": true}]}]}]}',
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "answer"),
    [
        ("t.conll", [], {"entities"}),
        ("t.jsonl", [], {"labels", "probability"}),
        ("t.csv", ["--kind", "several"], {"labels", "probability"}),
        ("t.json", [], {"answer", "start", "end", "probability"}),
    ],
)
def test_the_commands_learn_from_a_file_and_answer(pretrained, tmp_path, capsys, name, options, answer):
    (tmp_path / name).write_text("\n".join(LINES[name]) + "\n")
    (tmp_path / "asked.jsonl").write_text('{"text": "the bird", "question": "a", "context": "the bird"}\n')
    files = ["--train", str(tmp_path / name), "--validation", str(tmp_path / name)]
    run = tmp_path / "run"
    assert main(["finetune", str(pretrained), *files, *options, "--epochs", "1", "-o", str(run)]) == 0
    told = capsys.readouterr().out
    assert "f1" in told
    assert "None" not in told
    assert main(["predict", str(run / "seed-0"), str(tmp_path / "asked.jsonl")]) == 0
    written = json.loads(capsys.readouterr().out)
    assert set(written) - {"text", "question", "context"} == answer


@pytest.mark.parametrize(
    ("task", "labels", "best"),
    [
        (CLASSES, np.array([1, 0, 1]), {"no": 1 / 3, "yes": 2 / 3}),
        (CLASSES, np.array([1, 1]), {}),
        (NUMBERS, np.array([0.0, 1.0]), {}),
        (SEVERAL, np.array([[0.0, 1, 1], [1, 0, 0], [0, 1, 1]]), {"house|river": 8 / 11, "bird": 1 / 4}),
        (TOKENS, [["O", "B-PLACE"], ["O"]], {"O": 0.0}),
        (TOKENS, [["O", "O"], ["O"]], {}),
        (ANSWERS, [["bird"], []], {"": 1 / 2}),
        (ANSWERS, [[], []], {}),
    ],
)
def test_constant_answers_are_scored_as_any(task, labels, best):
    kind = kind_of(task)
    scores = {text: kind.scores(answers, labels)[task.main_metric] for text, answers in kind.constants(labels).items()}
    assert scores == pytest.approx(best)


def test_every_kind_is_known_to_the_command_line():
    assert set(get_args(LabelKind)) == set(KINDS)


def test_a_words_first_piece_is_scored_and_no_other():
    words = tokenizer()
    rows = Dataset.from_dict({"tokens": [["old", "paperbird", "a"]], "tags": [["B-ANIMAL", "I-ANIMAL", "O"]]})
    examples = kind_of(TOKENS).encoded(rows, words, 24, False, "train")
    pieces = words.convert_ids_to_tokens(examples[0]["input_ids"])
    assert len(pieces) > 5, "the second word is of several pieces"
    assert examples[0]["labels"] == [-100, 1, 3, *[-100] * (len(pieces) - 5), 0, -100]
    assert examples.scored == [3]


def test_a_word_is_scored_where_its_name_begins_and_several_ideographs_are_scored_each():
    words = tokenizer()
    rows = Dataset.from_dict(
        {"tokens": [["(bird", "\u4eac\u90fd", ",", "a"]], "tags": [["B-PLACE", "B-PLACE", "O", "O"]]}
    )
    examples = kind_of(TOKENS).encoded(rows, words, 24, False, "train")
    pieces = words.convert_ids_to_tokens(examples[0]["input_ids"])
    assert len(pieces) == 8, "the bracket is a piece by itself"
    assert examples[0]["labels"] == [-100, -100, 2, 2, 4, 0, 0, -100]
    assert examples.scored == [5]


def test_words_that_were_cut_off_are_tagged_as_outside():
    kind = kind_of(TOKENS)
    rows = Dataset.from_dict({"tokens": [["bird"] * 6], "tags": [["B-ANIMAL"] * 6]})
    examples = kind.encoded(rows, tokenizer(), 5, True, "validation")
    logits = np.eye(5)[np.ones(5, int)]
    assert kind.predictions(logits, examples) == [["B-ANIMAL"] * 3 + ["O"] * 3]


def test_a_label_holds_where_its_probability_is_above_one_half_and_the_first_right_answer_is_written():
    kind = kind_of(SEVERAL)
    (answer,) = kind.predictions(np.array([[0.1, 0.0, 3.0]]), None)
    assert kind.written(answer) == "bird|river"
    assert [kind_of(ANSWERS).written(label) for label in (["the a", "a"], [])] == ["the a", ""]


def test_an_answer_is_learnt_where_it_stands_and_none_at_the_beginning():
    rows = Dataset.from_dict(
        {
            "text_a": ["bird", "bird", "bird"],
            "text_b": ["the old river", "the old river", " ".join(["the"] * 30 + ["river"])],
            "answers": [["old river", "the"], [], ["river"]],
            "starts": [[4, 0], [], [120]],
        }
    )
    words = tokenizer()
    examples = kind_of(ANSWERS).encoded(rows, words, 30, False, "train")
    learnt = []
    for passage in examples.passages:
        begin, end = passage.item["start_positions"], passage.item["end_positions"]
        learnt.append((passage.row, words.decode(passage.item["input_ids"][begin : end + 1])))
    assert learnt == [(0, "old river"), (1, "[CLS]"), (2, "[CLS]"), (2, "river")]


def test_answers_that_no_passage_holds_whole_are_told_of(caplog):
    context = " ".join(["the"] * 40)
    rows = Dataset.from_dict({"text_a": ["a"], "text_b": [context], "answers": [[context]], "starts": [[0]]})
    kind_of(ANSWERS).encoded(rows, tokenizer(), 24, False, "train")
    assert "words train: 1 of 1 answers fit in no window of 24 tokens" in caplog.text


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("answers", {"truncate": True}, "truncate is on; contexts that are too long are read in windows"),
        ("tokens", {"pooling": "cls"}, "pooling is 'cls'; that is a classifier's, and this is a tagger"),
        ("tokens", {"max_length": 4}, r"things train: \d+ of 160 texts are longer than 4 tokens"),
        ("classes", {"max_length": 2}, "max_length is 2; special tokens and one token of text need 3"),
        ("classes", {"max_length": 99}, "max_length is 99, the model has positions for 24 tokens"),
        ("classes", {"seeds": ()}, r"seeds is \[\]; it must be at least one, and none twice"),
        ("classes", {"learning_rates": []}, r"learning_rates are \[\]"),
        ("classes", {"dropout": 1}, "dropout is 1; it must be at least 0 and below 1"),
        ("classes", {"precision": "fp16"}, "precision is 'fp16'; it must be one of 'auto', 'fp32', 'bf16'"),
        ("classes", {"select": "Best"}, "select is 'Best'"),
    ],
)
def test_what_is_refused(pretrained, tmp_path, kind, changes, message):
    with pytest.raises(ValueError, match=message):
        go(pretrained, tmp_path / "run", kind, **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"t.conll": "old B-X\n"}, ["--text-column", "words"], "--text-column goes with a table of texts"),
        ({"t.jsonl": '{"text": "a", "label": []}\n'}, [], "all lists of labels in 'label' are empty"),
        ({"t.json": '{"data": []}'}, ["--pair-column", "p"], "--pair-column goes with a table of texts"),
        ({"t.conll": "old B-X\nbird O\n"}, ["--kind", "regression"], "unknown kind of table '.conll'"),
    ],
)
def test_the_command_refuses_in_one_line(pretrained, tmp_path, capsys, files, options, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    file = str(tmp_path / next(iter(files)))
    assert main(["finetune", str(pretrained), "--train", file, "-o", str(tmp_path / "run"), *options]) == 2
    told = capsys.readouterr().err.strip()
    assert message in told
    assert "\n" not in told
