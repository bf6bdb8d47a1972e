"""What models of the other kinds of tasks say of texts."""

import json
import shutil

import pytest
import torch
from transformers import BertConfig, BertForTokenClassification

import mabert
from mabert import MaBertForQuestionAnswering, MaBertForTokenClassification
from mabert.cli import main
from tests.infer.conftest import saved
from tests.refusal import refusal

TAGS = {"id2label": {0: "O", 1: "B-X", 2: "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}, "num_labels": 3}
SENTENCES = ["the old bird sings.", "a paper  house", "", "stone"]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory, words):
    return saved(MaBertForTokenClassification, tmp_path_factory.mktemp("tagger"), words, **TAGS)


@pytest.fixture
def everywhere(tagger, tmp_path):
    """The same model with a head that tags every word as the beginning of an entity."""
    model = MaBertForTokenClassification.from_pretrained(tagger)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 2.0, 0.0]))
    shutil.copytree(tagger, tmp_path, dirs_exist_ok=True)
    model.save_pretrained(tmp_path)
    return tmp_path


def test_entities_say_where_they_stand_and_words_that_are_given_stay_whole(everywhere):
    given = [*SENTENCES, ["the old", "bird."]]
    found = mabert.load(everywhere, device="cpu").predict(given, progress=False)
    words = [["the", "old", "bird", "sings"], ["a", "paper", "house"], [], ["stone"], ["the old", "bird."]]
    assert [[entity["text"] for entity in answer["entities"]] for answer in found] == words
    chance = torch.tensor([0.0, 2.0, 0.0]).softmax(0)[1].item()
    for text, answer in zip((*SENTENCES, "the old bird."), found, strict=True):
        for entity in answer["entities"]:
            assert text[entity["start"] : entity["end"]] == entity["text"]
            assert (entity["type"], entity["probability"]) == ("X", pytest.approx(chance))


def rounded(answer):
    """An answer whose probabilities are compared up to rounding."""
    if isinstance(answer, list):
        return [rounded(each) for each in answer]
    near = {"entities": rounded, "probability": lambda chance: pytest.approx(chance, rel=1e-4)}
    return {name: near.get(name, lambda same: same)(value) for name, value in answer.items()}


@pytest.mark.parametrize("kind", ["tagger", "reader", "BERT's tagger"])
def test_answers_stand_where_they_say_and_do_not_depend_on_the_batch(request, words, tmp_path, kind):
    if kind == "BERT's tagger":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        BertForTokenClassification(BertConfig(vocab_size=len(words), **sizes, **TAGS)).save_pretrained(tmp_path)
        words.save_pretrained(tmp_path)
    model = mabert.load(tmp_path if kind == "BERT's tagger" else request.getfixturevalue(kind), device="cpu")
    rows = list(zip(QUESTIONS, CONTEXTS, strict=True)) if kind == "reader" else [(text,) for text in SENTENCES]
    together = model.predict(*zip(*rows, strict=True), progress=False)
    assert any(answer.get("entities") or answer.get("answer") for answer in together)
    for row, answer in zip(rows, together, strict=True):
        assert model.predict(*([text] for text in row), progress=False) == [rounded(answer)]
        if kind == "reader":
            assert row[1][answer["start"] : answer["end"]] == answer["answer"]
            assert 0 < answer["probability"] <= 1


def predicted(capsys, *arguments):
    """What the command writes, a row each."""
    assert main(["predict", *map(str, arguments)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_command_takes_texts_and_words(everywhere, tmp_path, capsys):
    (tmp_path / "t.txt").write_text("the bird\n")
    (tmp_path / "t.jsonl").write_text('{"tokens": ["the", "bird"], "id": 7}\n')
    (tmp_path / "t.json").write_text('{"words": ["the", "bird"]}\n')
    (of_text,) = predicted(capsys, everywhere, tmp_path / "t.txt")
    assert predicted(capsys, everywhere, tmp_path / "t.jsonl", "--keep", "id") == [{"id": 7} | of_text]
    assert predicted(capsys, everywhere, tmp_path / "t.json", "--text-column", "words", "--jsonl") == [of_text]
    assert of_text["text"] == "the bird"
    assert [entity["text"] for entity in of_text["entities"]] == ["the", "bird"]


def test_the_command_reads_the_files_that_finetune_reads(everywhere, reader, tmp_path, capsys):
    (tmp_path / "t.conll").write_text("the DT B-X\nbird NN O\n\nstone NN O\n")
    (tmp_path / "t.jsonl").write_text('{"tokens": ["the", "bird"]}\n{"tokens": ["stone"]}\n')
    assert predicted(capsys, everywhere, tmp_path / "t.conll") == predicted(capsys, everywhere, tmp_path / "t.jsonl")
    rows = [{"id": f"q{place}", "question": question} for place, question in enumerate(QUESTIONS)]
    parts = [{"context": context, "qas": [row]} for context, row in zip(CONTEXTS, rows, strict=True)]
    (tmp_path / "t.json").write_text(json.dumps({"data": [{"paragraphs": parts}]}))
    table = [row | {"context": context} for row, context in zip(rows, CONTEXTS, strict=True)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    of_form, of_table = (predicted(capsys, reader, tmp_path / name, "--keep", "id") for name in ("t.json", "q.jsonl"))
    assert of_form == of_table
    assert [{name: row[name] for name in ("id", "question", "context")} for row in of_form] == table
    assert {*of_form[0]} == {"id", "question", "context", "answer", "start", "end", "probability"}


QAS = '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1", "question": "b"}]}]}]}'


@pytest.mark.parametrize(
    ("kind", "content", "options", "message"),
    [
        ("reader", "the O\n", [], "lines of plain text hold no pairs"),
        ("everywhere", "the O\n", ["--keep", "id"], "lines of plain text have no columns to keep"),
        ("everywhere", None, [], "no such file"),
        ("reader", QAS, ["--keep", "title"], "qas[0]: no 'title'; there is id, question, context"),
        ("reader", '{"data": []}', [], "t.json: no questions"),
        ("reader", '{"question": "a", "context": "b"}', [], "no 'data', which the form of SQuAD has there"),
    ],
)
def test_what_is_wrong_with_such_a_file_is_said(request, tmp_path, capsys, kind, content, options, message):
    file = tmp_path / ("t.json" if str(content).startswith("{") else "t.conll")
    if content is not None:
        file.write_text(content)
    assert message in refusal(capsys, ["predict", request.getfixturevalue(kind), file, *options])


def test_what_a_tagger_refuses(tagger, words, tmp_path):
    model = mabert.load(tagger, device="cpu")
    with pytest.raises(ValueError, match="tags the words of single texts, and pairs are given"):
        model.predict(["a"], ["b"], progress=False)
    with pytest.raises(ValueError, match=r"text 1 is 3, not text"):
        model.predict([3], progress=False)
    saved(MaBertForTokenClassification, tmp_path, words, num_labels=2)
    with pytest.raises(ValueError, match="has the label 'LABEL_0'; those of entities are O, B-TYPE and I-TYPE"):
        mabert.load(tmp_path, device="cpu").predict(["a"], progress=False)


CONTEXTS = ["the old bird sings beside the river.", "a stone falls slowly", "", " ".join(["the paper house"] * 30)]
QUESTIONS = ["what sings", "what falls", "what opens", "the house"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory, words):
    return saved(MaBertForQuestionAnswering, tmp_path_factory.mktemp("reader"), words)


def test_a_long_context_is_read_in_windows_and_a_short_one_in_one_piece(reader, monkeypatch):
    model, seen = mabert.load(reader, device="cpu"), []
    run = MaBertForQuestionAnswering.forward
    monkeypatch.setattr(
        MaBertForQuestionAnswering,
        "forward",
        lambda self, **given: seen.extend(given["attention_mask"].sum(1).tolist()) or run(self, **given),
    )
    limit = model.config.max_position_embeddings
    model.predict(QUESTIONS[:2], CONTEXTS[:2], progress=False)
    assert len(seen) == 2
    model.predict(QUESTIONS[3:], CONTEXTS[3:], progress=False)
    assert len(seen) > 3
    assert max(seen) == limit


def test_what_a_reader_refuses(reader):
    model = mabert.load(reader, device="cpu")
    with pytest.raises(ValueError, match="answers questions from contexts, and the contexts are missing"):
        model.predict(["a"], progress=False)
    with pytest.raises(ValueError, match="truncate is on; contexts that are too long are read in windows"):
        model.predict(["a"], ["b"], truncate=True, progress=False)
    with pytest.raises(ValueError, match=r"question 1 leaves room for 0 tokens"):
        model.predict([CONTEXTS[3]], ["b"], progress=False)
