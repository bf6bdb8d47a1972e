"""Fine-tuning on kinds of tasks other than one label a text: what is learnt, written and refused."""

import csv
import json

import numpy as np
import pytest
import torch
from datasets import Dataset

from mabert import MaBertForMaskedLM
from mabert.cli import main, train
from mabert.data.entities import metric_names
from mabert.data.table import table_task
from mabert.data.task import Task
from mabert.train.finetune import finetune
from mabert.train.kinds import KINDS, kind_of
from mabert.train.recipe import FinetuneRecipe
from tests.model.helpers import config
from tests.train.helpers import WORDS, kill_at, of_family, same_weights, stop_at, tokenizer, under_torchrun, weights

RECIPE = {"learning_rates": [2e-2], "epochs": 1, "batch_size": 16, "dropout": 0.0, "precision": "fp32"}
THINGS = {"river": "PLACE", "house": "PLACE", "bird": "ANIMAL"}


def tagged(count, seed):
    """Sentences in which some words name places and animals, `old` before one being a part of its name."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word not in (*THINGS, "old")]
    sentences = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(draw.integers(2, 6)):
            thing = draw.choice([*THINGS, ""], p=[0.15, 0.15, 0.2, 0.5])
            if thing and draw.random() < 0.3:
                words += ["old", thing]
                tags += [f"B-{THINGS[thing]}", f"I-{THINGS[thing]}"]
            else:
                words.append(thing or str(draw.choice(plain)))
                tags.append(f"B-{THINGS[thing]}" if thing else "O")
        sentences.append((words, tags))
    columns = {"tokens": [words for words, _ in sentences], "tags": [tags for _, tags in sentences]}
    texts = [" ".join(words) for words in columns["tokens"]]
    return Dataset.from_dict({"text_a": texts, **columns, "index": list(range(count))})


def labelled(count, seed):
    """Texts that are of every topic whose word is in them."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word not in TOPICS]
    texts, labels = [], []
    for _ in range(count):
        holds = [float(draw.random() < 0.4) for _ in TOPICS]
        words = [*draw.choice(plain, size=4), *(topic for topic, held in zip(TOPICS, holds, strict=True) if held)]
        texts.append(" ".join(draw.permutation(words)))
        labels.append(holds)
    return Dataset.from_dict({"text_a": texts, "label": labels, "index": list(range(count))})


def asked(count, seed):
    """What is old, in contexts that say so or do not; some are longer than the model."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word != "old"]
    columns = {name: [] for name in ("text_a", "text_b", "answers", "starts")}
    for number in range(count):
        words = [str(word) for word in draw.choice(plain, size=draw.integers(3, 16))]
        place, known = draw.integers(len(words)), number % 4 > 0
        words.insert(place, "old" if known else "small")
        thing = words[place + 1 :][:1]
        columns["text_a"].append("the old")
        columns["text_b"].append(" ".join(words))
        columns["answers"].append(thing if known else [])
        columns["starts"].append([len(" ".join(words[: place + 1])) + 1] if known else [])
    return Dataset.from_dict({**columns, "index": [f"id-{number}" for number in range(count)]})


NAMES = ("O", "B-ANIMAL", "B-PLACE", "I-ANIMAL", "I-PLACE")
TOKENS = Task("things", NAMES, metric_names(["ANIMAL", "PLACE"]), "f1", "tokens")
TOPICS = ("bird", "house", "river")
SEVERAL = table_task("topics", TOPICS, several=True)
ANSWERS = Task("words", (), ("f1", "exact_match"), "f1", "answers")
TASKS = {"tokens": (TOKENS, tagged), "several": (SEVERAL, labelled), "answers": (ANSWERS, asked)}
NEW = list(TASKS)
EPOCHS = {"tokens": 6, "several": 6, "answers": 12}
ABOVE_CHANCE = {"tokens": 0.8, "several": 0.8, "answers": 0.6}
"""No answer to any question scores 0.25."""


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder, words = tmp_path_factory.mktemp("model"), tokenizer()
    torch.manual_seed(1234)
    MaBertForMaskedLM(config(vocab_size=len(words), hidden_size=16, initializer_range=0.1)).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def go(model, output, kind, sizes=(160, 40), callbacks=(), resume=False, seeds=(0,), **changes):
    task, rows = TASKS[kind]
    splits = {"train": rows(sizes[0], 0), "validation": rows(sizes[1], 1)}
    recipe = FinetuneRecipe(**{**RECIPE, **changes})
    return finetune(model, task, splits, output, recipe, seeds, resume=resume, progress=False, callbacks=callbacks)


def table(folder):
    return list(csv.DictReader((folder / "validation.tsv").read_text().splitlines(), delimiter="\t"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEW)
def test_it_learns_and_writes_what_it_says(pretrained, tmp_path, kind):
    result = go(pretrained, tmp_path, kind, epochs=EPOCHS[kind], seeds=(0, 1))
    task = TASKS[kind][0]
    scores = result["outcome"]["scores"]["validation"]
    assert set(scores) == set(task.metrics)
    assert scores[task.main_metric]["mean"] > ABOVE_CHANCE[kind]
    rows = table(tmp_path / "seed-0")
    assert len(rows) == 40
    assert np.mean([row["prediction"] == row["label"] for row in rows]) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize(("packing", "tokens"), [("none", None), ("pack", None), ("pack", 100)])
def test_packing_changes_nothing_but_rounding(pretrained, tmp_path, kind, packing, tokens):
    losses = []
    for name, way in (("plain", "unpad"), ("other", packing)):
        go(pretrained, tmp_path / name, kind, packing=way, batch_tokens=tokens)
        history = json.loads((tmp_path / name / "seed-0/result.json").read_text())["history"]
        losses.append([entry["loss"] for entry in history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize(("stop", "error"), [(stop_at, KeyboardInterrupt), (kill_at, SystemError)])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(pretrained, tmp_path, monkeypatch, kind, stop, error):
    monkeypatch.setattr("mabert.train.trainer.SAVE_SECONDS", 0.0)
    how = {"sizes": (32, 8), "dropout": 0.1, "select": "best", "epochs": 2}
    go(pretrained, tmp_path / "whole", kind, **how)
    with pytest.raises(error):
        go(pretrained, tmp_path / "run", kind, callbacks=[stop(1)], **how)
    go(pretrained, tmp_path / "run", kind, resume=True, **how)
    same_weights(tmp_path / "whole/seed-0", tmp_path / "run/seed-0")


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta"])
def test_other_families_have_such_heads(tmp_path, kind, family):
    model = of_family(family, tmp_path / "model")
    scores = go(model, tmp_path / "run", kind, sizes=(16, 8))["outcome"]["scores"]["validation"]
    assert set(scores) == set(TASKS[kind][0].metrics)


UNLEARNT = {"answers": ("mabert.norm.bias", "qa_outputs.bias")}
"""What moves the logits of all tokens alike, as keys' biases do: a softmax over tokens takes no notice, so the gradient
is zero, and AdamW makes steps of its rounding."""

PROGRAM = """
import sys
from tests.train.helpers import must_part
from tests.train.test_kinds import go
must_part()
go(sys.argv[1], sys.argv[2], sys.argv[3], sizes=(40, 9), batch_size=18, epochs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEW)
def test_several_processes_share_each_batch(pretrained, tmp_path, kind):
    for count in (1, 2):
        code, told = under_torchrun(tmp_path, PROGRAM, pretrained, tmp_path / str(count), kind, processes=count)
        assert code == 0, told
    alone, shared = (weights(tmp_path / f"{count}/seed-0") for count in (1, 2))
    for name in alone:
        if not name.endswith(("attention.key.bias", *UNLEARNT.get(kind, ()))):
            torch.testing.assert_close(shared[name], alone[name], rtol=1e-3, atol=1e-4, msg=name)


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


def test_every_kind_is_known_to_the_command_line():
    assert set(train.KINDS) == set(KINDS)


def test_a_words_first_piece_is_scored_and_no_other():
    words = tokenizer()
    rows = Dataset.from_dict({"tokens": [["old", "paperbird", "a"]], "tags": [["B-ANIMAL", "I-ANIMAL", "O"]]})
    examples = kind_of(TOKENS).encoded(rows, words, 24, False, "train")
    pieces = words.convert_ids_to_tokens(examples[0]["input_ids"])
    assert len(pieces) > 5, "the second word is of several pieces"
    assert examples[0]["labels"] == [-100, 1, 3, *[-100] * (len(pieces) - 5), 0, -100]
    assert examples.scored == [3]


def test_words_that_were_cut_off_are_tagged_as_outside():
    kind = kind_of(TOKENS)
    rows = Dataset.from_dict({"tokens": [["bird"] * 6], "tags": [["B-ANIMAL"] * 6]})
    examples = kind.encoded(rows, tokenizer(), 5, True, "validation")
    logits = np.eye(5)[np.ones(5, int)]
    assert kind.answers(logits, examples) == [["B-ANIMAL"] * 3 + ["O"] * 3]


@pytest.mark.parametrize(
    ("answers", "only"), [(["O O", "O"], "O"), (["O B-PLACE", "O"], None)], ids=["none found", "one found"]
)
def test_no_entity_at_all_shows_that_nothing_was_learnt(answers, only):
    told = kind_of(TOKENS).only_answer([tags.split() for tags in answers], [["O", "B-PLACE"], ["O"]])
    assert told == only


@pytest.mark.parametrize(
    ("answers", "only"),
    [([[0, 1, 1]] * 2, "house|river"), ([[0, 0, 0]] * 2, ""), ([[0, 1, 1], [0, 1, 0]], None)],
    ids=["two", "none", "differing"],
)
def test_the_same_labels_for_all_show_that_nothing_was_learnt(answers, only):
    assert kind_of(SEVERAL).only_answer(np.array(answers, bool), np.array([[0, 1, 1], [1, 0, 0]])) == only


def test_a_label_holds_where_its_probability_is_above_one_half():
    kind = kind_of(SEVERAL)
    (answer,) = kind.answers(np.array([[0.1, 0.0, 3.0]]), None)
    assert kind.written(answer) == "bird|river"


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
    assert "words train: 1 of 1 answers stand whole in no passage of 24 tokens" in caplog.text


@pytest.mark.parametrize(("answers", "only"), [(["", ""], ""), (["", "a"], None)])
def test_no_answer_at_all_shows_that_nothing_was_learnt(answers, only):
    kind = kind_of(ANSWERS)
    assert kind.only_answer(answers, [["the a"], []]) == only
    assert [kind.written(label) for label in (["the a", "a"], [])] == ["the a", ""]


def test_contexts_are_not_cut(pretrained, tmp_path):
    with pytest.raises(ValueError, match="truncate is on; contexts that are too long are read in windows"):
        go(pretrained, tmp_path / "run", "answers", truncate=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "cls"}, "pooling is 'cls'; that is a classifier's, and this is a tagger"),
        ({"max_length": 4}, r"things train: \d+ of 160 texts are longer than 4 tokens"),
    ],
)
def test_what_taggers_refuse(pretrained, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        go(pretrained, tmp_path / "run", "tokens", **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"t.conll": "old B-X\n"}, ["--text-column", "words"], "--text-column goes with a table of texts"),
        ({"t.conll": "old\n"}, [], "line 1: the word 'old' has no tag"),
        ({"t.jsonl": '{"text": "a", "label": []}\n'}, [], "all lists of labels in 'label' are empty"),
        ({"t.json": '{"data": []}'}, [], "t.json: no questions"),
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
